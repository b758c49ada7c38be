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
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR [FILE...]",
            help="The folder of a study, a bench, a knee or a recording of watch. Several of them,"
            " or result files of vllm bench serve, GuideLLM and AIPerf beside them, give a"
            " side-by-side table.",
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the self-contained page here.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as Markdown, for a repository.")
    ] = None,
    export_vllm: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write DIR's first run as vllm bench serve does."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no table.")] = False,
) -> int:
    """Show the results in DIR, and write them as one HTML page that needs no network.

    Runs that were cut off are recovered from their journals first.
    """
    if len(paths) > 1 or paths[0].is_file():
        return _side_by_side(paths, html, markdown, export_vllm, quiet=quiet)
    (directory,) = paths
    if _recording(directory, html, markdown, export_vllm, quiet=quiet):
        return 0
    from ridgeline.experiment.results import load_results  # noqa: PLC0415
    from ridgeline.report.html import write  # noqa: PLC0415
    from ridgeline.report.load import report_of  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    _check_folder(directory)
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
    if export_vllm is not None:
        from ridgeline.report.vllmbench import write_vllm_bench  # noqa: PLC0415

        runs = [run for e in results.experiments for run in (*e.counted.values(), *e.stored)]
        if not runs:
            raise BadInput("holds no finished run", where=str(directory))
        write_vllm_bench(runs[0], export_vllm)
        say(f"{runs[0].meta.run_id} as vllm bench serve would write it: {export_vllm}")
    return 0


def _recording(directory: Path, html: Path | None, *files: Path | None, quiet: bool) -> bool:
    """Shows what `ridgeline watch --record` kept; False where it kept nothing."""
    from ridgeline.diagnosis.recorded import is_recording  # noqa: PLC0415

    if not is_recording(directory):
        return False
    if any(files):
        raise BadInput("is a recording of `ridgeline watch`, which has a page and a table only",
                       where=str(directory), fix="use --html FILE")  # fmt: skip
    from ridgeline.report.watched import watched_console  # noqa: PLC0415

    if not quiet:
        show(watched_console(directory))
    if html is not None:
        from ridgeline.report.watchedpage import write  # noqa: PLC0415

        write(directory, html)
        say(f"report: {html}")
    return True


def _check_folder(directory: Path) -> None:
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    if not directory.is_dir():
        raise BadInput("there is no such folder", where=str(directory), fix=_FIX)
    if not StudyDirectory(directory).exists():
        inside = sorted(f.parent.name for f in directory.glob("*/index.json"))
        fix = f"name one of those in it: {', '.join(inside)}" if inside else _FIX
        raise BadInput("holds no study (no index.json)", where=str(directory), fix=fix)


def _side_by_side(
    paths: list[Path],
    html: Path | None,
    markdown: Path | None,
    export_vllm: Path | None,
    *,
    quiet: bool,
) -> int:
    """Measurements of several tools in one table."""
    from ridgeline.experiment.results import load_results  # noqa: PLC0415
    from ridgeline.report.foreign import read_results  # noqa: PLC0415
    from ridgeline.report.sidebyside import console as tables  # noqa: PLC0415
    from ridgeline.report.sidebyside import of_run, side_by_side, write  # noqa: PLC0415

    if export_vllm is not None:
        raise BadInput("--export-vllm needs one folder", fix="leave the other paths out")
    found = []
    for path in paths:
        if path.is_file():
            found += read_results(path)
            continue
        _check_folder(path)
        for experiment in load_results(path).experiments:
            run = next(iter(experiment.counted.values()), None)
            run = run or next((r for r in experiment.stored if r.summary is not None), None)
            if run is not None:
                found.append(of_run(run))
    page = side_by_side(found)
    if not quiet:
        show(tables(page))
    write(page, page=html, text=markdown)
    for target in (html, markdown):
        if target is not None:
            say(f"report: {target}")
    return 0


def _console(report: "StudyReport") -> "RenderableType":
    """The report of a study, of a single run or of a load sweep."""
    from ridgeline.report.console import single_run, study  # noqa: PLC0415  heavy for --help
    from ridgeline.report.kneetext import knee_console  # noqa: PLC0415

    if report.tune is not None:
        from ridgeline.report.tunetext import tune_console  # noqa: PLC0415

        return tune_console(report.tune)
    if report.knee is not None:
        return knee_console(report.knee, wide=console().width >= WIDE)
    return single_run(report) if report.baseline is None else study(report)
