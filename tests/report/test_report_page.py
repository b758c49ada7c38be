"""The page as text: complete in itself, escaped, honest about what is missing."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from study_factory import CASES, bench, study

from ridgeline.domain.errors import StoreError
from ridgeline.report.evidence import distribution
from ridgeline.report.html import render, write
from ridgeline.report.model import COST, Difference, ErrorLine

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Outline(HTMLParser):
    """Collects what the tests ask of the page's structure."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._quiet = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._quiet += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._quiet -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._quiet:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def payload_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page() -> str:
    return render(study())


def test_the_page_names_no_address_that_could_be_fetched(page):
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert {a.split("/")[2] for a in addresses} <= {"www.w3.org"}, addresses
    outline = Outline(page)
    assert not [a for a in outline.all("script") if "src" in a]
    links = [a["href"] for a in outline.all("link")]
    assert links == ["data:,"]
    assert not outline.all("img")
    policy = next(a for a in outline.all("meta") if a.get("http-equiv"))["content"]
    assert policy.startswith("default-src 'none'")
    assert "@import" not in page.split("</style>")[0]


def test_ten_thousand_requests_stay_a_small_page():
    rng = np.random.default_rng(1)
    report = bench(n=10_000)
    row = replace(
        report.rows[0],
        ttft=distribution(rng.lognormal(-1, 0.5, 10_000)),
        itl=distribution(rng.lognormal(-4, 0.5, 960_000), rng.lognormal(-3, 0.5, 10_000)),
    )
    size = len(render(replace(report, rows=(row,))).encode())
    assert size < 3_000_000
    assert len(render(study()).encode()) < 3_000_000


def test_texts_from_files_and_servers_are_escaped():
    report = study(cases=CASES[:3])
    rows = tuple(
        replace(
            r,
            name=EVIL + r.name,
            change=EVIL,
            runs=tuple(replace(x, state="void", reasons=(EVIL,)) for x in r.runs),
            errors=(ErrorLine("stream_error", 1, EVIL),),
        )
        for r in report.rows
    )
    finding = replace(report.findings[0], claim=EVIL, reason=EVIL, ours=EVIL, published=EVIL)
    text = render(
        replace(report, name=EVIL, model=EVIL, baseline=rows[0].name, rows=rows, study_yaml=EVIL,
                findings=(finding,), how=((EVIL, EVIL),), reproduce=EVIL, load=EVIL, gpus=EVIL)
    )  # fmt: skip
    outline = Outline(text)
    # Four script elements of ours, not one more; no image, no handler.
    assert len(outline.all("script")) == 3
    assert not outline.all("img")
    assert not [a for _, a in outline.tags if any(k.startswith("on") for k in a)]
    assert EVIL in outline.text
    # Inside the drawing data a name is text twice: for the script element and for plotly.
    names = [t["name"] for c in payload_of(text)["charts"] for v in c["views"].values()
             for t in v["data"] if "alert" in t.get("name", "")]  # fmt: skip
    assert names
    assert not [n for n in names if "<" in n]


def test_a_server_error_is_quoted_once_with_its_count():
    report = bench(50)
    row = replace(report.rows[0], errors=(ErrorLine("timeout_first", 50, "<b>busy</b> try later"),))
    outline = Outline(render(replace(report, rows=(row,))))
    assert 'timeout_first × 50: "<b>busy</b> try later"' in outline.text


def test_half_failed_is_fifty_in_words_and_a_red_headline():
    text = render(bench(50))
    assert '<p class="answer bad">' in text
    outline = Outline(text)
    assert "0.50" in outline.text
    assert "50 of 100 failed" in outline.text
    assert "∞ (50 % failed)" in outline.text
    assert "throughput and cost count successes only" in outline.text


def test_every_section_says_whether_it_is_twin_or_measured(page):
    assert page.count('class="tag twin"') >= page.count("<h2")
    assert "MEASURED" not in Outline(page).text
    measured = Outline(render(bench())).text
    assert "MEASURED vLLM 0.32.0" in measured
    assert "TWIN" not in measured


def test_void_runs_are_shown_with_their_reason_and_not_ranked():
    report = study(cases=CASES[:3])
    rows = tuple(
        replace(r, void=True, runs=tuple(replace(x, state="void", reasons=("too warm",))
                                         for x in r.runs))
        if r.name == "seqs-64" else r for r in report.rows
    )  # fmt: skip
    text = render(replace(report, rows=rows))
    outline = Outline(text)
    assert "⊘ void: shown, not ranked, in no average" in outline.text
    assert "seqs-64-1, seqs-64-2, seqs-64-3 void: too warm" in outline.text
    drawn = [t.get("meta") for c in payload_of(text)["charts"] if c["key"] == "tradeoff"
             for v in c["views"].values() for t in v["data"]]  # fmt: skip
    assert "seqs-64" not in drawn
    assert "graphs" in drawn


def test_what_was_not_measured_says_so_and_is_no_zero():
    outline = Outline(render(bench()))
    # Cost and tokens per GPU of an endpoint whose hardware and price nobody told.
    assert "not measured" in outline.text
    assert "not known" in outline.text


def test_headings_are_in_order_and_tables_have_scopes(page):
    levels = [int(t[1]) for t, _ in Outline(page).tags if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all("scope" in a for a in Outline(page).all("th"))


def test_every_chart_has_a_table_behind_it(page):
    outline = Outline(page)
    charts = [a for a in outline.all("div") if (a.get("class") or "") == "chart"]
    assert len(charts) == 6
    assert len(outline.all("details")) == len(charts)
    assert all(a["aria-labelledby"] for a in charts)


def test_the_sentence_and_the_table_need_no_script(page):
    before_scripts = page.split("<script>")[0]
    text = Outline(before_scripts).text
    assert "34 % cheaper than the baseline (95 % interval 30 to 37 %)" in text
    for case in CASES:
        assert case.name in text
    assert before_scripts.count('<svg class="diff"') == len(CASES) - 1


def test_bars_point_the_way_of_the_difference_and_mark_zero():
    report = study(cases=CASES[:3])
    better = Difference(-0.2, -0.25, -0.15, "clearly better")
    worse = Difference(0.2, 0.15, 0.25, "clearly worse")
    rows = (
        report.rows[0],
        replace(report.rows[1], against_baseline={COST: worse}),
        replace(report.rows[2], against_baseline={COST: better}),
    )
    text = render(replace(report, rows=rows))
    zero = float(re.search(r'class="zero" x1="([\d.]+)"', text)[1])
    bars = dict(re.findall(r'class="bar (good|bad)" x="([\d.]+)"', text))
    assert float(bars["good"]) < zero
    assert float(bars["bad"]) == pytest.approx(zero, abs=0.1)


def test_an_unwritable_place_is_one_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="cannot write the page"):
        write(bench(), blocked / "report.html")
