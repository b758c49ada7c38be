"""The page: one HTML file that holds everything it shows and asks the network for nothing."""

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ridgeline.domain.errors import StoreError
from ridgeline.domain.numerals import THIN
from ridgeline.report.bars import difference_bar, marker, scale_of
from ridgeline.report.cards import LONGEST, below, style
from ridgeline.report.charts import Chart, build_charts
from ridgeline.report.charts.knee import level_table
from ridgeline.report.figures import comparisons_words, ranking_metric, sorted_rows
from ridgeline.report.model import COST, ExperimentRow, StudyReport
from ridgeline.report.parts import part_tables
from ridgeline.report.remarks import remarks
from ridgeline.report.sentence import answer
from ridgeline.report.statistics import STATISTICS, StatisticsLine, statistics_lines
from ridgeline.report.style import styles
from ridgeline.report.table import (
    GROUPS,
    TableRow,
    band_words,
    error_texts,
    metric_words,
    table_rows,
)
from ridgeline.report.tunetext import sections
from ridgeline.report.verdict import run_counts, void_lines

# Addresses in the vendored bundle (help texts, an unused map source). Removed so that the page
# holds no address that anything could fetch; the namespaces of w3.org are names, not fetched.
_ADDRESS = re.compile(r"https?://(?!www\.w3\.org/)[^\s\"'`)\\]*")


def render(report: StudyReport) -> str:
    """The whole page as text. Every text of the report is escaped."""
    return fill("page.html.j2", **_context(report))


def fill(template: str, **values: Any) -> str:
    """A page of the package's templates, its style inlined. Every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - heavy

    environment = Environment(
        loader=PackageLoader("ridgeline.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole_numbers"] = whole_numbers
    environment.globals.update(below=below, longest=LONGEST)
    css = Markup(asset("page.css") + style())  # noqa: S704 - the package's own files
    return environment.get_template(template).render(css=css, **values)


def whole_numbers(text: str) -> str:
    """For prose that wraps: the thin space of thousands as the one at which no line breaks."""
    return text.replace(THIN, "\u202f")


def write(report: StudyReport, path: Path) -> None:
    """Write the page; raises StoreError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write the page ({error.strerror})", where=str(path),
            fix="choose a folder that is writable and has space",
        ) from error  # fmt: skip


def _context(report: StudyReport) -> dict[str, Any]:
    found = answer(report)
    chosen = _first_choice(report, found.row)
    charts = {chart.key: chart for chart in build_charts(report, chosen)}
    looks = styles(report)
    valid, total, text = run_counts(report)
    return {
        "report": report,
        "answer": found,
        "groups": _groups(report),
        "bars": _bars(report),
        "markers": {name: marker(look) for name, look in looks.items()},
        "levels": None if report.knee is None else level_table(report.knee),
        "compared": metric_words(ranking_metric(report)),
        "has_cost": ranking_metric(report) == COST,
        "charts": charts,
        "chosen": chosen,
        "published": "published" if any(row.published for row in report.rows) else "",
        "hovers": {row.name: _hover(row) for row in report.rows},
        "run_counts": text,
        "all_valid": valid == total,
        "void_lines": void_lines(report),
        "comparisons": comparisons_words(report),
        "bands": band_words(report),
        "one_run": _one_run(report),
        "part_tables": part_tables(report),
        "statistics": _statistics(report),
        "statistic_names": STATISTICS,
        "remarks": _remarks(report),
        "tune": report.tune,
        "tune_sections": [] if report.tune is None else sections(report.tune),
        "failed": [(row.name, error_texts(row)) for row in report.rows if error_texts(row)],
        "script": Markup(asset("page.js")),  # noqa: S704 - the package's own file
        "plotly": Markup(plotly_bundle()) if charts else "",  # noqa: S704 - vendored file
        "payload": payload(report, charts, chosen),
    }


def asset(name: str) -> str:
    """A text file of the package's assets."""
    return resources.files("ridgeline.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plotly_bundle() -> str:
    """The vendored plotly bundle without any fetchable address."""
    return _ADDRESS.sub("", asset("plotly-basic.min.js"))


def payload(report: StudyReport, charts: dict[str, Chart], chosen: str) -> Markup:
    """The charts as JSON that is safe inside a script element."""
    body = {
        "chosen": chosen,
        "baseline": report.baseline,
        "charts": [
            {
                "key": chart.key,
                "height": chart.height,
                "first": chart.first,
                "byExperiment": chart.by_experiment,
                "dropLabels": chart.drop_labels,
                "views": {name: view.to_json() for name, view in chart.views.items()},
            }
            for chart in charts.values()
        ],
    }
    return script_text(json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")))


def script_text(text: str) -> Markup:
    """JSON as it can stand inside a script element."""
    # "</script>" and "<!--" end or change a script element whatever the type says.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped just above


def _statistics(report: StudyReport) -> list[StatisticsLine]:
    """Every statistic of a single run; a study's table has its own figures."""
    if len(report.rows) != 1 or report.rows[0].summary is None:
        return []
    return statistics_lines(report.rows[0].summary)


def _remarks(report: StudyReport) -> list[tuple[str, str]]:
    if len(report.rows) != 1 or report.rows[0].summary is None:
        return []
    return remarks(report.rows[0].summary)


def _one_run(report: StudyReport) -> str:
    """Which repeat the pictures of single requests show; "" where there is only one run each."""
    if all(len(row.runs) < 2 for row in report.rows):
        return ""
    shown = [row.details_of for row in report.rows if row.details_of]
    repeats = {name.rpartition("-r")[2] for name in shown}
    which = (
        f"repeat {repeats.pop()} alone"
        if len(repeats) == 1
        else f"one run each ({', '.join(shown)})"
    )
    return f"Of {which}; the figures of the table are over all valid repeats."


def _first_choice(report: StudyReport, named: str | None) -> str:
    if named is not None and named != report.baseline:
        return named
    others = [row.name for row in sorted_rows(report) if row.name != report.baseline]
    return others[0] if others else (report.rows[0].name if report.rows else "")


def _groups(report: StudyReport) -> list[tuple[str, list[TableRow]]]:
    rows = table_rows(report)
    found = [(words, [row for row in rows if row.state == state]) for state, words in GROUPS]
    return [(words, group) for words, group in found if group]


def _bars(report: StudyReport) -> dict[str, Markup]:
    path = ranking_metric(report)
    known = {
        row.name: row.against_baseline[path]
        for row in report.rows
        if row.ranked and path in row.against_baseline and row.name != report.baseline
        and row.against_baseline[path].delta is not None
    }  # fmt: skip
    scale = scale_of(list(known.values()))
    return {name: difference_bar(one, scale) for name, one in known.items()}


def _hover(row: ExperimentRow) -> str:
    if row.configuration is None:
        return row.load or ""
    knobs = " ".join(f"{k}={v}" for k, v in row.configuration.knobs.given().items())
    gpu = f"{row.configuration.gpus} × {row.configuration.gpu or row.configuration.engine}"
    return ", ".join(filter(None, (gpu, row.load, knobs)))
