"""`ridgeline report`: show what a study or a bench left on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output import console, say, show
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ridgeline.report.model import StudyReport

WIDE = 110  # columns that the table of a load sweep needs for its intervals
_FIX = "give the folder that `ridgeline study` or `ridgeline bench` wrote"


def report(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of a study or a bench."),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the self-contained page here.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as Markdown, for a repository.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no table.")] = False,
) -> int:
    """Show the results in DIR, and write them as one HTML page that needs no network.

    Runs that were cut off are recovered from their journals first.
    """
    from ridgeline.experiment.results import load_results  # noqa: PLC0415
    from ridgeline.report.html import write  # noqa: PLC0415
    from ridgeline.report.load import report_of  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    if not directory.is_dir():
        what = "is a file, not a folder" if directory.exists() else "there is no such folder"
        raise BadInput(what, where=str(directory), fix=_FIX)
    if not StudyDirectory(directory).exists():
        inside = sorted(f.parent.name for f in directory.glob("*/index.json"))
        fix = f"name one of those in it: {', '.join(inside)}" if inside else _FIX
        raise BadInput("holds no study (no index.json)", where=str(directory), fix=fix)
    results = load_results(directory)
    loaded = report_of(results, StudyDirectory(directory), details=html is not None)
    if not quiet:
        show(_console(loaded))
    if html is not None:
        write(loaded, html)
        say(f"report: {html}")
    if markdown is not None:
        from ridgeline.report.markdown import write as write_markdown  # noqa: PLC0415

        counted = {e.name: tuple(e.counted.values()) for e in results.experiments}
        write_markdown(loaded, counted, markdown)
        say(f"report: {markdown}")
    return 0


def _console(report: "StudyReport") -> "RenderableType":
    """The report of a study, of a single run or of a load sweep."""
    from ridgeline.report.console import single_run, study  # noqa: PLC0415  heavy for --help
    from ridgeline.report.kneetext import knee_console  # noqa: PLC0415

    if report.knee is not None:
        return knee_console(report.knee, wide=console().width >= WIDE)
    return single_run(report) if report.baseline is None else study(report)
