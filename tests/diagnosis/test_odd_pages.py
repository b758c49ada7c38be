"""Pages that are cut, odd or missing, dead engines and requests that fail: one replica's trouble
neither hides the others nor passes for health.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, evidence, findings, page, words

from ridgeline.cli.main import run as ridgeline
from ridgeline.diagnosis.gathering import gather
from ridgeline.diagnosis.live import Pool
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.saved import parsed
from ridgeline.diagnosis.watching import watch
from ridgeline.load.address import parse_address
from support.mock_server import MockServer, plain_stream
from support.mock_server import page as reply

ITL = "vllm:inter_token_latency_seconds"
ODD = [f'{ITL}_bucket{{engine="0"}} 3\n', f'{ITL}_bucket{{engine="0",le="abc"}} 3\n']


def _at(i: int, more: str = "") -> str:
    return more + page({
        R: 3, W: 0, KV: 0.1, STEPS: 100 + 800 * i, MADE: 1000 + 8000 * i, PROMPT: 5000 + 10_000 * i,
        PRE: 0,
    })  # fmt: skip


def _ended(stop: float, abort: float, error: float) -> str:
    return "".join(
        f'vllm:request_success_total{{engine="0",finished_reason="{why}"}} {n}\n'
        for why, n in (("stop", stop), ("abort", abort), ("error", error))
    )


@pytest.mark.parametrize("odd", ODD)
def test_a_bucket_without_an_edge_is_no_reason_to_stop(odd: str) -> None:
    seen = evidence(_at(0, odd), _at(1, odd))
    assert seen.generation_tokens == 8000
    assert diagnose(seen)


def test_a_bucket_of_nan_is_left_out() -> None:
    prompts = 'vllm:request_prompt_tokens_bucket{engine="0",le="100"} 5\n'

    def gaps(low: str, n: int) -> str:
        edges = f'{ITL}_bucket{{le="0.01"}} {low}\n{ITL}_bucket{{le="+Inf"}} {n}\n'
        return f"{edges}{ITL}_sum {n / 2}\n{ITL}_count {n}\n{prompts}"

    assert diagnose(evidence(_at(0, gaps("0", 0)), _at(1, gaps("NaN", 10))))


@pytest.mark.parametrize("odd", ODD)
def test_a_watch_goes_on_beside_an_odd_line(odd: str) -> None:
    with ExitStack() as stack:
        bodies = (_at(0), _at(0, odd))
        mocks = [
            stack.enter_context(
                MockServer([plain_stream(1)], {"/metrics": reply(200, "text/plain", b.encode())})
            )
            for b in bodies
        ]
        pool = Pool([parse_address(m.url) for m in mocks], {})
        for replica in pool.replicas:
            replica._look()
            replica._look()
            replica._close()
        assert [row.up for row in pool.now()] == [True, True]


def test_a_rule_that_fails_takes_only_its_replica_from_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bad(*_: object, **__: object) -> object:
        raise KeyError("le")

    with MockServer(
        [plain_stream(1)], {"/metrics": reply(200, "text/plain", _at(0).encode())}
    ) as m:
        pool = Pool([parse_address(m.url)], {})
        pool.replicas[0]._look()
        pool.replicas[0]._close()
        monkeypatch.setattr("ridgeline.diagnosis.live.gather", bad)
        (row,) = pool.now()
    assert not row.up
    assert "is not understood (KeyError: 'le')" in str(row.trouble)


def test_a_folder_that_cannot_be_made_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline(["doctor", "http://127.0.0.1:9", "--save", "/proc/nope"]) == 2
    assert "/proc/nope: cannot be made" in capsys.readouterr().err


def test_gauges_that_are_no_numbers_are_told_as_such() -> None:
    text = page({R: float("nan"), W: float("nan"), KV: float("nan"), STEPS: 9, MADE: 9})
    first = diagnose(evidence(text, text))[0]
    assert first.id == "metrics-absent"
    assert "absent, or NaN" in first.title


# -- a page that was cut short


def test_counts_that_only_the_last_page_has_are_not_known() -> None:
    begun = page({R: 4, W: 0, KV: 0.1, STEPS: 1e6, PRE: 0})
    later = page({R: 4, W: 0, KV: 0.1, STEPS: 1e6 + 900, MADE: 5e7, PROMPT: 9e7, PRE: 0})
    seen = evidence(begun, later)
    assert (seen.steps, seen.generation_tokens, seen.prompt_tokens) == (900, None, None)
    ranks = evidence(page({R: [1, 1], W: [0, 0], MADE: 5e7}),
                     page({R: [1, 1], W: [0, 0], MADE: [5e7 + 9, 5e7]}))  # fmt: skip
    assert ranks.generation_tokens is None, "of one rank the first page was silent"
    grown = evidence(page({R: 1, W: 0, MADE: 500}), page({R: [1, 1], W: [0, 0], MADE: [509, 40]}))
    assert grown.generation_tokens == 49, "a rank that began since began at 0"


def test_a_line_that_was_cut_is_not_read(tmp_path: Path) -> None:
    text = page({R: 4, W: 0, STEPS: 1_000_900, MADE: 50_003_000})
    whole = parsed(text, "x")
    cut = parsed(text[:-5], "x")
    assert whole.total(MADE) == 50_003_000
    assert cut.total(MADE) is None
    assert cut.total(STEPS) == 1_000_900


# -- what is dead or fails is not fine


@pytest.mark.parametrize("running", [0, 4])
def test_a_dead_engine_is_the_first_thing_said(running: int) -> None:
    text = page({R: running, W: 0, KV: 0.0, STEPS: 100, MADE: 1000, PROMPT: 5000, PRE: 0})
    found = diagnose(evidence(text, text, health=503))
    assert (found[0].id, found[0].kind) == ("unhealthy", "fault")
    assert "fine" not in {f.kind for f in found}
    assert "unhealthy" not in findings(evidence(_at(0), _at(1), health=404)), "no such page"


def test_requests_that_end_in_errors_are_a_fault() -> None:
    found = diagnose(evidence(_at(0, _ended(10, 0, 0)), _at(1, _ended(10, 0, 500))))
    assert (found[0].id, found[0].kind) == ("requests-fail", "fault")
    assert "100%" in found[0].title
    assert "fine" not in {f.kind for f in found}
    one = findings(evidence(_at(0, _ended(10, 0, 0)), _at(1, _ended(900, 0, 5))))
    assert "requests-fail" not in one


def test_most_clients_leaving_is_not_fine() -> None:
    found = diagnose(evidence(_at(0, _ended(10, 0, 0)), _at(1, _ended(60, 450, 0))))
    assert (found[0].id, found[0].kind) == ("clients-leave", "fault")
    assert "fine" not in {f.kind for f in found}
    assert "abort counter does not move" in words(found[0])
    few = findings(evidence(_at(0, _ended(10, 0, 0)), _at(1, _ended(110, 10, 0))))
    assert few["clients-leave"].kind == "note"


# -- one of several is gone


def test_one_replica_that_is_gone_is_named_and_the_others_are_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = reply(200, "text/plain", page({R: 64, W: 90, KV: 0.1, PRE: 0}).encode())
    with MockServer([plain_stream(1)], {"/metrics": body}) as one:
        gone = "http://127.0.0.1:9"
        seen = watch([parse_address(one.url), parse_address(gone)], {}, 1.0)
        assert gather(seen.snapshots).running is not None
        assert seen.unread == (gone,)
        assert ridgeline(["doctor", one.url, gone, "--seconds", "1"]) == 0
        text = capsys.readouterr().out
    assert "1 of 2 replicas tell nothing: http://127.0.0.1:9" in text
    assert "the slots are full: 64 requests run" in text


def test_html_at_metrics_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    login = reply(200, "text/html", b"<html><body>Log in</body></html>")
    with MockServer([plain_stream(1)], {"/metrics": login, "/prometheus/metrics": login}) as mock:
        assert ridgeline(["doctor", mock.url, "--seconds", "1"]) == 3
    assert "a web page (HTML), of a proxy or a login?" in capsys.readouterr().err
