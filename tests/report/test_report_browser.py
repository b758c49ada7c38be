"""The page as a reader sees it: headless Chromium, laptop and phone, light and dark."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from study_factory import CASES, ROOF, bench, study
from watched_recording import record

from ridgeline.domain.knee import Estimate, KneeLevel, KneeResult
from ridgeline.report.html import write
from ridgeline.report.load import load_report
from ridgeline.report.watchedpage import write as write_watched

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if BROWSER is None and os.environ.get("CI") != "true":
    pytest.skip("no chromium on this machine", allow_module_level=True)

pytestmark = pytest.mark.browser
LAPTOP, PHONE = {"width": 1366, "height": 768}, {"width": 390, "height": 844}
ALL_CHARTS = ("tradeoff", "roofline", "seconds", "ecdf-ttft", "ecdf-itl", "time")


@dataclass
class Seen:
    """An open page and what it did."""

    page: object
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ask(self, script: str, argument=None):
        return self.page.evaluate(script, argument)


@pytest.fixture(scope="module")
def browser():
    assert BROWSER is not None, "install chromium (apt-get install chromium)"
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    evil = study(cases=CASES[:3])
    rows = tuple(
        replace(
            r, name=f"<img src=x onerror=alert({i})>{r.name}", change="<script>alert(9)</script>"
        )
        for i, r in enumerate(evil.rows)
    )
    reports = {
        "study": study(),
        "bench": bench(50),
        "evil": replace(evil, rows=rows, baseline=rows[0].name),
    }
    for name, report in reports.items():
        write(report, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in reports}


@contextmanager
def opened(browser, path: Path, viewport, scheme="light", *, scripts=True) -> Iterator[Seen]:
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, java_script_enabled=scripts
    )
    page = context.new_page()
    seen = Seen(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.complaints.append(message.text)
            if message.type in ("error", "warning") else None)  # fmt: skip
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (seen.complaints.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    if scripts:
        page.wait_for_selector("html[data-ready=true]", state="attached", timeout=30_000)
    try:
        yield seen
    finally:
        context.close()


def until(seen: Seen, script: str, seconds: float = 15) -> None:
    """Wait for a condition. The page's content policy forbids the browser to poll by itself."""
    end = time.monotonic() + seconds
    while not seen.ask(script):
        assert time.monotonic() < end, f"never true: {script}"
        seen.page.wait_for_timeout(50)


def drawn_points(seen: Seen, key: str) -> int:
    return seen.ask("key => document.querySelectorAll(`#chart-${key} .main-svg path`).length", key)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_page_is_complete_quiet_and_asks_for_nothing(browser, pages, viewport, scheme):
    with opened(browser, pages["study"], viewport, scheme) as seen:
        assert seen.requests == [pages["study"].as_uri()]
        assert seen.complaints == []
        assert seen.ask("document.documentElement.scrollWidth") <= viewport["width"]
        for key in ALL_CHARTS:
            assert drawn_points(seen, key) > 3, key
        markers = "document.querySelectorAll('#chart-tradeoff .points path').length"
        assert seen.ask(markers) == len(CASES)
        # No text of a chart may leave its picture on the right.
        over = seen.ask(
            "Array.from(document.querySelectorAll('.chart text')).filter(t => "
            "t.getBoundingClientRect().right > "
            "t.closest('.chart').getBoundingClientRect().right + 1).map(t => t.textContent)"
        )
        assert over == []
        ground = seen.ask("getComputedStyle(document.body).backgroundColor")
        chart = seen.ask("document.querySelector('.chart .main-svg').style.background")
        assert ground == chart
        dark = sum(map(int, ground[4:-1].split(","))) < 200
        assert dark == (scheme == "dark")


def test_answer_table_and_picture_are_on_the_first_laptop_screen(browser, pages):
    with opened(browser, pages["study"], LAPTOP) as seen:
        ends = seen.ask(
            "['.answer', 'table.main', '#chart-tradeoff .main-svg'].map("
            "s => document.querySelector(s).getBoundingClientRect().bottom)"
        )
        assert max(ends) <= LAPTOP["height"], ends


def test_without_scripts_the_answer_and_the_table_stand(browser, pages):
    with opened(browser, pages["study"], LAPTOP, scripts=False) as seen:
        page = seen.page
        assert "34 % cheaper than the baseline" in page.inner_text(".answer")
        rows = page.locator("table.main tbody tr:not(.group)")
        assert rows.count() == len(CASES)
        assert page.locator("svg.diff").first.bounding_box()["width"] > 50
        assert page.locator("#tradeoff noscript, #tradeoff .chart").first.is_visible()
        assert "its numbers are in the table below" in page.inner_text("#chart-tradeoff")
        page.locator("#tradeoff summary").click()
        assert "fp8-seqs-64" in page.inner_text("#tradeoff details")
        assert seen.requests == [pages["study"].as_uri()]


def test_a_click_on_a_row_fixes_the_experiment(browser, pages):
    with opened(browser, pages["study"], LAPTOP) as seen:
        page = seen.page
        title = page.locator("#title-ecdf-ttft")
        assert title.inner_text().startswith("TTFT of fp8-seqs-64:")
        page.locator("tr[data-name=eager] td").first.click()
        until(
            seen,
            "document.getElementById('title-ecdf-ttft').textContent.startsWith('TTFT of eager:')",
        )
        until(seen, "document.getElementById('title-time').textContent.startsWith('eager:')")
        assert page.locator("tr.chosen").get_attribute("data-name") == "eager"
        # The keyboard does the same.
        page.locator("tr[data-name=seqs-64] button").focus()
        page.keyboard.press("Enter")
        until(seen, "document.getElementById('title-time').textContent.startsWith('seqs-64:')")
        pressed = "button.pick[aria-pressed=true]"
        assert page.locator(pressed).inner_text() == "seqs-64"
        assert seen.complaints == []


def test_the_latency_axis_can_be_changed(browser, pages):
    with opened(browser, pages["study"], LAPTOP) as seen:
        seen.page.get_by_role("button", name="ITL", exact=True).click()
        until(
            seen,
            "document.querySelector('#chart-tradeoff .xtitle').textContent.startsWith('p95 ITL')",
        )


def test_hovering_tells_configuration_and_figures(browser, pages):
    with opened(browser, pages["study"], LAPTOP) as seen:
        box = seen.page.locator("#chart-tradeoff .points path").first.bounding_box()
        seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        seen.page.wait_for_selector("#chart-tradeoff .hovertext", timeout=5000)
        text = seen.page.locator("#chart-tradeoff .hoverlayer").text_content()
        for words in ("max_num_seqs=32", "4 × H100-SXM", "p95 TTFT", "TWIN: prediction"):
            assert words in text


def test_charts_follow_the_reader_who_changes_to_dark(browser, pages):
    with opened(browser, pages["study"], LAPTOP) as seen:
        seen.page.emulate_media(color_scheme="dark")
        until(
            seen,
            "document.querySelector('#chart-seconds .main-svg').style.background"
            " === getComputedStyle(document.body).backgroundColor",
        )


def test_it_prints_to_a4_on_white_even_for_a_dark_reader(browser, pages):
    with opened(browser, pages["study"], LAPTOP, "dark") as seen:
        seen.page.emulate_media(media="print", color_scheme="dark")
        seen.page.set_viewport_size({"width": 710, "height": 1000})
        seen.ask("void window.dispatchEvent(new Event('beforeprint'))")
        until(
            seen,
            "Array.from(document.querySelectorAll('.chart')).every(c => "
            "c.querySelector('.main-svg').style.background === 'rgb(255, 255, 255)' && "
            "c.querySelector('.main-svg').getBoundingClientRect().width <= 710)",
        )
        assert seen.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert seen.ask("document.documentElement.scrollWidth") <= 710
        assert seen.page.pdf(format="A4")[:4] == b"%PDF"


def test_a_single_run_gets_a_page(browser, pages):
    with opened(browser, pages["bench"], LAPTOP) as seen:
        assert seen.complaints == []
        colour = seen.ask("getComputedStyle(document.querySelector('.answer')).color")
        red, green, blue = map(int, colour[4:-1].split(","))
        assert red > 2 * green
        assert red > 2 * blue
        assert "0.50" in seen.page.inner_text("table.main")
        assert drawn_points(seen, "ecdf-ttft") > 1


def test_names_that_are_markup_run_nothing(browser, pages):
    with opened(browser, pages["evil"], LAPTOP) as seen:
        for row in seen.page.locator("tr[data-name]").all():
            row.locator("td").first.click()
        box = seen.page.locator("#chart-tradeoff .points path").first.bounding_box()
        seen.page.mouse.move(box["x"] + 4, box["y"] + 4)
        seen.page.wait_for_timeout(300)
        assert seen.complaints == []
        assert seen.requests == [pages["evil"].as_uri()]
        assert seen.page.locator("img").count() == 0


def test_the_latencies_of_a_void_run_have_the_whole_width(browser, tmp_path):
    """A void run has no account of its seconds: what stood beside it was an empty half page."""
    report = bench(50)
    void = replace(report, rows=(replace(report.rows[0], void=True),))
    write(void, tmp_path / "void.html")
    with opened(browser, tmp_path / "void.html", LAPTOP) as seen:
        width, table, room = seen.ask(
            "(s => [s.clientWidth, s.querySelector('table').scrollWidth,"
            " document.querySelector('main').clientWidth])"
            "(document.querySelector('[aria-labelledby=h-statistics]'))"
        )
        assert width > 0.95 * room
        assert table <= width


def test_on_a_phone_the_roofs_words_do_not_meet(browser, tmp_path):
    """fp8 on an H100: a ridge far to the right, and a long number on its roof."""
    report = study()
    roof = replace(ROOF, peak_flops_per_s=1979e12, dtype="fp8")
    fp8 = tuple(replace(r, roof=roof if i % 2 else r.roof) for i, r in enumerate(report.rows))
    write(replace(report, rows=fp8), tmp_path / "fp8.html")
    with opened(browser, tmp_path / "fp8.html", PHONE) as seen:
        words = seen.ask(
            "Array.from(document.querySelectorAll('#chart-roofline .annotation-text'))"
            ".filter(t => t.textContent.includes('FLOP'))"
            ".map(t => [t.textContent, t.getBoundingClientRect().toJSON()])"
        )
        assert any("ridge 591" in text for text, _ in words)
        met = [
            (one, two)
            for i, (one, r) in enumerate(words)
            for two, q in words[i + 1 :]
            if r["left"] < q["right"] and q["left"] < r["right"]
            and r["top"] + 2 < q["bottom"] and q["top"] + 2 < r["bottom"]
        ]  # fmt: skip
        assert met == []


# Of each box of a table: what it hides to the side, and of each figure whether it can be seen and,
# where its row is a card, whether its head stands beside it.
TABLES = """() => {
    document.querySelectorAll('details').forEach(d => { d.open = true; });
    return [...document.querySelectorAll('.scroll')].map(box => ({
        title: box.getAttribute('aria-label'), over: box.scrollWidth - box.clientWidth,
        card: getComputedStyle(box.querySelector('tbody tr')).display === 'grid',
        heads: [...box.querySelectorAll('thead th')].map(h => h.firstChild.textContent.trim()),
        figures: [...box.querySelectorAll('tbody td')].map(c => {
            const r = c.getBoundingClientRect();
            const head = getComputedStyle(c, '::before').content;
            return {left: r.left, right: r.right, cut: c.scrollWidth - c.clientWidth, head};
        }),
    }));
}"""
PAGES = ("study", "bench", "knee", "watched", "h200")
WIDTHS = (390, 768, 1280)


def found_knee() -> KneeResult:
    """Seven levels, the last two beyond the knee."""
    levels = [
        KneeLevel(f"users-{users}", float(users), "valid", 4000, 4000, (), tokens_per_s=made,
                  requests_per_s=made / 96, ttft_p95_s=wait, itl_p95_s=0.0123)
        for users, made, wait in ((1, 81.0, 0.03), (4, 310.0, 0.04), (16, 1210.0, 0.05),
                                  (64, 4480.0, 0.09), (128, 7900.0, 0.3), (256, 8100.0, 12.0),
                                  (512, 8090.0, 44.0))
    ]  # fmt: skip
    return KneeResult(name="knee", load="users", measured=True, levels=tuple(levels),
                      knee=Estimate(128.0, 110.0, 150.0), plateau_tokens_per_s=8100.0)  # fmt: skip


@pytest.fixture(scope="module")
def many_pages(pages, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("many")
    write_watched(record(folder / "kept"), folder / "watched.html")
    write(replace(study(), knee=found_knee()), folder / "knee.html")
    write(load_report(H200, details=True), folder / "h200.html")
    return {**pages, **{name: folder / f"{name}.html" for name in ("watched", "knee", "h200")}}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_every_table_is_in_sight(browser, many_pages, name, width):
    with opened(browser, many_pages[name], {"width": width, "height": 844}) as seen:
        tables = seen.ask(TABLES)
        assert len(tables) >= 3
        for table in tables:
            assert table["over"] <= 1, f"{table['title']} must be dragged at {width} px"
            for figure in table["figures"]:
                assert figure["left"] >= 0, table["title"]
                assert figure["right"] <= width, table["title"]
                assert figure["cut"] <= 1, table["title"]
                if table["card"]:
                    assert figure["head"].strip('"') in table["heads"], table["title"]
        assert seen.ask("() => document.documentElement.scrollWidth") <= width
        if width != 768:
            assert tables[0]["card"] == (width == 390), "a laptop has the table itself"


def test_on_a_phone_the_words_below_a_bar_do_not_meet_the_next_one(browser, tmp_path):
    """The limits of the H200's probe take four lines there; what has no room is in the table."""
    write(load_report(PROBE, details=False), tmp_path / "probe.html")
    with opened(browser, tmp_path / "probe.html", PHONE) as seen:
        words, bars = seen.ask("""() => {
            const within = (query) => [...document.querySelectorAll(query)].map(
                e => e.getBoundingClientRect()).map(r => [r.top, r.bottom, r.left, r.right]);
            return [within('#chart-seconds .annotation .bg'),
                    within('#chart-seconds .barlayer .point path')];
        }""")
        assert len(words) == 12, "six totals, six limits"
        met = [
            (w, b) for w in words for b in bars
            if w[0] + 2 < b[1] and b[0] + 2 < w[1] and w[2] < b[3] - 1 and b[2] + 1 < w[3]
        ]  # fmt: skip
        assert met == []
        table = seen.page.locator("#chart-seconds ~ details").text_content()
        assert "bound by engine core CPU (SMs active 47% of the time)" in table


def test_a_table_that_goes_on_to_the_side_shows_it(browser, pages):
    """The shades are drawn below the content: nothing inside may paint over the right one."""
    with opened(browser, pages["study"], PHONE) as seen:
        shades = seen.ask("getComputedStyle(document.querySelector('.scroll')).backgroundImage")
        assert shades.count("linear-gradient") == 4
        fixed = seen.ask("getComputedStyle(document.querySelector('.scroll')).backgroundAttachment")
        assert fixed == "local, local, scroll, scroll"
        assert seen.complaints == []


def test_the_words_of_a_limit_hide_the_curve_behind_them(browser, pages):
    with opened(browser, pages["study"], PHONE) as seen:
        grounds = seen.ask(
            "Array.from(document.querySelectorAll('#chart-ecdf-ttft .annotation'))"
            ".filter(a => a.textContent.includes('SLO'))"
            ".map(a => getComputedStyle(a.querySelector('.bg')).fillOpacity)"
        )
        assert grounds == ["1"]


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE])
def test_a_recording_of_watch_gets_a_page(browser, tmp_path, viewport):
    write_watched(record(tmp_path / "kept"), tmp_path / "watched.html")
    with opened(browser, tmp_path / "watched.html", viewport) as seen:
        until(seen, "() => document.documentElement.dataset.ready === 'true'")
        assert seen.complaints == []
        assert [r for r in seen.requests if not r.startswith("file:")] == []
        assert seen.ask("() => document.documentElement.scrollWidth") <= viewport["width"]
        assert seen.ask("() => document.querySelectorAll('#chart-findings .point').length") == 5
        seen.page.click('button[data-view="gpu-1:8000"]')
        until(seen, "() => document.getElementById('title-time').textContent.startsWith('gpu-1')")
        lines = "() => document.querySelectorAll('#chart-time .scatterlayer .trace').length"
        until(seen, f"() => ({lines})() === 8")


H200 = Path(__file__).parents[2] / "results/h200/one-gpu"
PROBE = Path(__file__).parents[2] / "results/h200/probe"
TUNING = Path(__file__).parents[2] / "results/h200/tune/h200-tune-32"


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["1280", "phone"])
def test_a_tunings_tables_show_every_column(browser, tmp_path, viewport):
    """The H200's tuning: names of five options, six columns; on a phone a row is a card."""
    write(load_report(TUNING, details=False), tmp_path / "tune.html")
    with opened(browser, tmp_path / "tune.html", viewport) as seen:
        found = seen.ask("""() => [...document.querySelectorAll('#tune .scroll')].map(box => ({
            title: box.getAttribute('aria-label'), over: box.scrollWidth - box.clientWidth,
            cells: [...box.querySelectorAll('tbody th, tbody td')].map(c => {
                const r = c.getBoundingClientRect();
                return [r.left, r.right, c.scrollWidth - c.clientWidth];
            }),
        }))""")
        assert len(found) >= 4, "duel, knobs, envelope, search"
        for table in found:
            assert table["over"] <= 1, f"{table['title']} is cut at {viewport}"
            for left, right, over in table["cells"]:
                assert left >= 0, table
                assert right <= viewport["width"] + 1, table
                assert over <= 1, table
        assert seen.ask("() => document.documentElement.scrollWidth") <= viewport["width"]
        heads = seen.ask("""() => [...document.querySelectorAll('#tune td')].map(
            c => [c.dataset.head, getComputedStyle(c, '::before').content])""")
        assert all(head for head, _ in heads)
        if viewport is PHONE:
            assert all(head in shown for head, shown in heads), "each figure has its head beside it"
