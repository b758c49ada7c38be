"""`ridgeline schema`: the JSON Schemas of the study file and of what the verbs write."""

from typing import Annotated

import typer

from ridgeline.cli.output import write_json
from ridgeline.domain.errors import BadInput, nearest

# As in workload.schemas.KINDS, which is not imported for --help.
KINDS = ("study", "summary", "study-result", "knee", "diagnosis")


def schema(
    of: Annotated[
        str, typer.Option(metavar="KIND", help=f"Which one: {', '.join(KINDS)}.")
    ] = "study",
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to write it; '-' prints it.")
    ] = "-",
) -> int:
    """Print the JSON Schema of the study file (for editors), or of a result."""
    from ridgeline.workload.schemas import schema_of  # noqa: PLC0415  only when it is asked for

    if of not in KINDS:
        raise BadInput(
            f"there is no schema of {of!r}{nearest(of, KINDS)}",
            where="--of",
            fix=f"use one of {', '.join(KINDS)}",
        )
    write_json(out, schema_of(of))
    return 0
