"""The page of a recording of `ridgeline watch`: figures and findings over its time."""

import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ridgeline import __version__
from ridgeline.diagnosis.recorded import (
    DOWN,
    NONE,
    Stretch,
    damaged,
    series,
    stretches,
    summaries,
    twins,
)
from ridgeline.domain.errors import StoreError
from ridgeline.domain.numerals import counted, significant
from ridgeline.report.charts.base import Chart, DataTable, Json, View, axis, note, safe
from ridgeline.report.html import asset, fill, plotly_bundle, script_text
from ridgeline.report.watched import FIGURES, TWIN_WORDS, findings_words, gone_words, lost_words

MOST_POINTS = 1200  # of a line: more than a screen has columns
MOST_LINES = 12  # replicas that one picture shows
ALL = "all replicas"
_COLOURS = ("@c0", "@c1", "@c2", "@c3", "@c4", "@c5", "@base")
_FILLS = ("@c1", "@c0", "@c4", "@c3", "@c2", "@c5")
# a panel's title, its lines (metric, what it says, dash), the factor
_PANELS: tuple[tuple[str, tuple[tuple[str, str, str], ...], float], ...] = (
    ("output tokens/s", (("output_tokens_per_s", "output tokens/s", "solid"),), 1.0),
    ("TTFT, ms", (("ttft_p95_s", "p95", "solid"), ("ttft_p50_s", "p50", "dot")), 1e3),
    ("time between tokens, ms", (("itl_p95_s", "p95", "solid"), ("itl_p50_s", "p50", "dot")), 1e3),
    ("requests", (("waiting", "waiting", "solid"), ("running", "running", "dot")), 1.0),
    ("KV cache, %", (("kv_use", "KV cache, %", "solid"),), 100.0),
)

Points = list[tuple[float, float]]
Figures = dict[str, Points]


def write(folder: Path, path: Path) -> None:
    """Write the page of a recording; raises StoreError."""
    text = render(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write the page ({error.strerror})", where=str(path),
            fix="choose a folder that is writable and has space",
        ) from error  # fmt: skip


def render(folder: Path) -> str:
    """The whole page as text: nothing on it asks the network. Raises StoreError."""
    rows, figures, spans = summaries(folder), series(folder), stretches(folder)
    shown = [metric for metric in FIGURES if any(metric in row.means for row in rows)]
    seconds = max((row.seconds for row in rows), default=0.0)
    charts = [c for c in (_findings(spans), _over_time(figures, seconds)) if c is not None]
    return fill(
        "watched.html.j2",
        badge=_badge(folder),
        name=folder.resolve().name, version=__version__, seconds=counted(seconds), charts=charts,
        answer=" ".join(filter(None, (_answer(spans, len(rows)), lost_words(damaged(folder))))),
        gone=gone_words(folder),
        head=("replica", "answered", *(FIGURES[m][0] for m in shown), "what came first"),
        rows=[
            (row.name, f"{row.up} of {row.looks}",
             *(FIGURES[m][1](row.means[m]) if m in row.means else "-" for m in shown),
             findings_words(row))
            for row in rows
        ],
        left_out=max(0, len(figures) - MOST_LINES), most=MOST_LINES,
        script=Markup(asset("page.js")),  # noqa: S704 - the package's own file
        plotly=Markup(plotly_bundle()),  # noqa: S704 - vendored file
        payload=_payload(charts),
    )  # fmt: skip


def _badge(folder: Path) -> tuple[str, str, str]:
    """(class, word, what it means)."""
    if twins(folder):
        return "twin", "TWIN", TWIN_WORDS
    return "measured", "MEASURED", "read from the servers' own metrics"


def _payload(charts: Sequence[Chart]) -> Markup:
    body = [
        {"key": c.key, "height": c.height, "first": c.first, "byExperiment": False,
         "dropLabels": False, "views": {name: view.to_json() for name, view in c.views.items()}}
        for c in charts
    ]  # fmt: skip
    return script_text(json.dumps({"chosen": "", "charts": body}, allow_nan=False,
                                  ensure_ascii=False, separators=(",", ":")))  # fmt: skip


def _answer(spans: Sequence[Stretch], replicas: int) -> str:
    """What came first most of the time, over all replicas, in one sentence."""
    total = sum(s.end_s - s.begin_s for s in spans)
    by: dict[str, float] = {}
    for s in spans:
        by[s.finding] = by.get(s.finding, 0.0) + s.end_s - s.begin_s
    if not total:
        return f"{replicas} replicas were looked at once: nothing over time."
    ranked = sorted(by.items(), key=lambda row: -row[1])
    words = {NONE: "no finding", DOWN: "no answer"}
    shares = [f"{words.get(f, f)} {seconds / total:.0%}" for f, seconds in ranked[:4]]
    return f"What came first, by its share of the time looked at: {', '.join(shares)}."


# -- the findings as a time line


def _findings(spans: Sequence[Stretch]) -> Chart | None:
    """A bar a replica, cut where another finding comes first."""
    if not any(s.end_s > s.begin_s for s in spans):
        return None
    names = list(dict.fromkeys(s.replica for s in spans))[:MOST_LINES]
    ids = [f for f in dict.fromkeys(s.finding for s in spans) if f not in (NONE, DOWN)]
    fills = {f: _FILLS[i % len(_FILLS)] for i, f in enumerate(ids)} | {NONE: "@grid", DOWN: "@bad"}
    data: list[Json] = [_bars([s for s in spans if s.finding == finding and s.replica in names],
                              finding, fills[finding], names)
                        for finding in (NONE, *ids, DOWN)]  # fmt: skip
    layout = {
        "barmode": "overlay", "uniformtext": {"mode": "hide", "minsize": 9},
        "xaxis": axis("seconds from the first look", rangemode="tozero"),
        "yaxis": axis("", tickvals=list(range(len(names))), range=[len(names) - 0.4, -0.6],
                      ticktext=[safe(_short(n)) for n in names], showgrid=False),
    }  # fmt: skip
    table = DataTable(
        ("replica", "from, s", "to, s", "first finding"),
        tuple((s.replica, f"{s.begin_s:.0f}", f"{s.end_s:.0f}", s.finding) for s in spans),
    )
    said = ", ".join(ids[:4]) or "none"
    view = View(f"The finding that comes first, over time: {said}", data, layout)
    return Chart("findings", {ALL: view}, table, 90 + 26 * len(names), ALL)


def _bars(spans: Sequence[Stretch], finding: str, fill: str, names: Sequence[str]) -> Json:
    ink = "@ink" if finding == NONE else "@panel"
    return {
        "type": "bar", "orientation": "h", "base": [s.begin_s for s in spans],
        "x": [s.end_s - s.begin_s for s in spans], "y": [names.index(s.replica) for s in spans],
        "marker": {"color": fill}, "width": 0.72, "text": [safe(finding)] * len(spans),
        "textposition": "inside", "insidetextanchor": "middle", "constraintext": "inside",
        "cliponaxis": True, "textangle": 0, "insidetextfont": {"color": ink, "size": 10.5},
        "hovertext": [f"{safe(s.finding)}, {s.begin_s:.0f} to {s.end_s:.0f} s" for s in spans],
        "hoverinfo": "text",
    }  # fmt: skip


# -- the figures


def _over_time(figures: dict[str, Figures], seconds: float) -> Chart | None:
    """A panel a figure; one view of all replicas (their p95), and one of each."""
    names = [n for n in figures if any(m in figures[n] for _, ls, _ in _PANELS for m, _, _ in ls)]
    if not names or not seconds:
        return None
    names = names[:MOST_LINES]
    views = {_short(n): _view({n: figures[n]}, seconds, _title(figures[n], _short(n)))
             for n in names}  # fmt: skip
    if len(names) > 1:
        title = f"{len(names)} replicas side by side; of latencies their p95"
        views = {ALL: _view({n: figures[n] for n in names}, seconds, title), **views}
    return Chart("time", views, _table(figures, names), 620, next(iter(views)))


def _title(told: Figures, name: str) -> str:
    rates = [v for _, v in told.get("output_tokens_per_s", [])]
    if not rates:
        return name
    return f"{name}: {min(rates):,.0f} to {max(rates):,.0f} output tokens/s"


def _view(figures: dict[str, Figures], seconds: float, title: str) -> View:
    panels = [p for p in _PANELS if any(m in f for f in figures.values() for m, _, _ in p[1])]
    layout: Json = {
        "xaxis": axis("seconds from the first look", range=[0, seconds], anchor="free", position=0),
        "annotations": [], "margin": {"t": 14},
    }  # fmt: skip
    data: list[Json] = []
    step = 1 / len(panels)
    for index, (words, lines, factor) in enumerate(panels):
        number, top = "" if index == 0 else str(index + 1), 1 - index * step
        layout[f"yaxis{number}"] = axis(
            "", domain=[max(0.0, top - step + 0.045), top - 0.035], rangemode="tozero", nticks=4,
            anchor="x",
        )  # fmt: skip
        one = len(figures) == 1
        dashes = ", ".join(f"{w} {'line' if d == 'solid' else 'dots'}" for _, w, d in lines)
        said = f"{words} ({dashes})" if one and len(lines) > 1 else (
            f"{words} {lines[0][1]}" if len(lines) > 1 else words)  # fmt: skip
        layout["annotations"].append(
            note(0, top - 0.035, said, xref="paper", yref="paper", xanchor="left",
                 yanchor="bottom", font={"size": 11, "color": "@ink"}))  # fmt: skip
        for place, (name, told) in enumerate(figures.items()):
            colour = _COLOURS[place % len(_COLOURS)]
            for metric, what, dash in lines if one else lines[:1]:
                if metric in told:
                    label = what if one else f"{_short(name)} {what}"
                    look = (label, colour, dash, f"y{number}")
                    data.append(_line(told[metric], factor, look))
    if len(figures) > 1:
        (metric, *_), factor = panels[0][1][0], panels[0][2]
        layout["annotations"] += _names(figures, metric, factor)
    return View(title, data, layout)


def _names(figures: dict[str, Figures], metric: str, factor: float) -> list[Json]:
    """Each replica's name on its line in the uppermost panel."""
    found = []
    for place, (name, told) in enumerate(figures.items()):
        points = told.get(metric)
        if points:
            at, value = points[len(points) * 4 // 5]
            colour = _COLOURS[place % len(_COLOURS)]
            found.append(note(at, value * factor, safe(_short(name)), bgcolor="@panel",
                              borderpad=1, font={"size": 11, "color": colour}))  # fmt: skip
    return found


def _line(points: Points, factor: float, look: tuple[str, str, str, str]) -> Json:
    """look: what it says, its colour, its dash and its axis."""
    words, colour, dash, y = look
    every = max(1, 2 * len(points) // MOST_POINTS)
    usual = points[-1][0] / max(1, len(points) - 1)
    xs: list[float] = []
    ys: list[float | None] = []
    for at, value in _thinned(points, every):
        if xs and at - xs[-1] > 5 * max(usual, 1.0) * every:
            xs.append(at)  # it did not answer in between: no line over that
            ys.append(None)
        xs.append(round(at, 2))
        ys.append(round(value * factor, 4))
    return {
        "type": "scatter", "mode": "lines", "name": safe(words), "x": xs, "y": ys, "yaxis": y,
        "line": {"color": colour, "width": 1.4, "dash": dash}, "connectgaps": False,
        "hovertemplate": f"{safe(words)}: %{{y:.4~g}} at %{{x:.0f}} s<extra></extra>",
    }  # fmt: skip


def _thinned(points: Points, every: int) -> Points:
    """Of so many points each the least and the most: a peak stays a peak."""
    if every <= 2:
        return points
    found: Points = []
    for start in range(0, len(points), every):
        part = points[start : start + every]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        found += sorted(ends)
    return found


def _table(figures: dict[str, Figures], names: Sequence[str]) -> DataTable:
    """Mean, least and most of each line."""
    rows: list[tuple[str, ...]] = []
    for name in names:
        for words, lines, factor in _PANELS:
            for metric, what, _ in lines:
                values = [v * factor for _, v in figures[name].get(metric, [])]
                if values:
                    label = words if what == words else f"{words}, {what}"
                    mean = sum(values) / len(values)
                    cells = (mean, min(values), max(values))
                    rows.append(
                        (name, label, *(significant(v, 4) for v in cells), f"{len(values)}")
                    )
    return DataTable(("replica", "figure", "mean", "least", "most", "looks"), tuple(rows))


def _short(name: str) -> str:
    return name.removeprefix("http://").removeprefix("https://")
