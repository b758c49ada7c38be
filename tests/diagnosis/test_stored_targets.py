"""Which series of a Prometheus are of one server: twice scraped, twice named, of two models."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, page

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchstate import State
from ridgeline.diagnosis import storedpool
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.exporter import render
from ridgeline.diagnosis.gathering import gather
from ridgeline.diagnosis.live import Price
from ridgeline.diagnosis.stored import PrometheusServer, Stored, together
from ridgeline.diagnosis.storedauth import Credentials
from ridgeline.diagnosis.storedpool import StoredPool
from ridgeline.load.address import parse_address
from support.fake_prometheus import FakePrometheus, served

INSTANCE = {"job": "vllm", "instance": "10.0.0.1:8000"}


def _page(t: float, rate: float = 100, model: str = "m", begun: float = 1.7e9) -> str:
    """A server that has made `rate` tokens/s since t 0."""
    figures = {
        R: 3, W: 0, KV: 0.05, PRE: 0, STEPS: 50.0 * t, MADE: rate * t, PROMPT: rate * t,
        'vllm:request_success_total{finished_reason="stop"}': 10 * t,
        'http_requests_total{handler="/v1/completions"}': 10 * t,
    }  # fmt: skip
    own = {"process_cpu_seconds_total": 0.1 * t, "process_start_time_seconds": begun}
    names = {k: f"{k.rstrip('}')}," if "{" in k else f"{k}{{" for k in figures}
    lines = page({f'{names[k]}model_name="{model}"}}': v for k, v in figures.items()})
    return lines + "".join(f"{name} {value}\n" for name, value in own.items())


def _kept(*rows: tuple[Mapping[str, str], float, Mapping[str, Any]]) -> FakePrometheus:
    """Targets: labels, how much later each was scraped, and what their pages are like."""
    fake = FakePrometheus(1000.0)
    for step in range(20):
        for labels, later, like in rows:
            fake.scraped(_page(15 * step, **like), 700 + 15 * step + later, labels)
    return fake


def _look(fake: FakePrometheus) -> tuple[Stored, Evidence]:
    with served(fake) as url:
        seen = PrometheusServer(parse_address(url), Credentials()).look(300.0)
    return seen, gather(together(seen.targets), stored=True)


@pytest.mark.parametrize(
    ("one", "other", "later"),
    [
        ({"job": "service"}, {"job": "pod"}, 3.0),
        ({"prometheus_replica": "a"}, {"prometheus_replica": "b"}, 0.0),
        ({"replica": "a"}, {"replica": "b"}, 4.0),
    ],
)
def test_a_server_that_is_there_twice_counts_once(
    one: dict[str, str], other: dict[str, str], later: float
) -> None:
    seen, e = _look(_kept(({**INSTANCE, **one}, 0, {}), ({**INSTANCE, **other}, later, {})))
    assert [t.name for t in seen.targets] == ["10.0.0.1:8000"]
    assert e.per_s(e.generation_tokens) == pytest.approx(100)
    assert e.running is not None
    assert e.running.mean == 3
    assert "scraped or kept twice" in seen.said[0]


@pytest.mark.parametrize("differs", ["namespace", "cluster", "tenant"])
def test_the_same_address_in_two_places_is_two_servers(differs: str) -> None:
    other = {"rate": 900, "begun": 1.6e9}
    rows = ({**INSTANCE, differs: "a"}, 0, {}), ({**INSTANCE, differs: "b"}, 3, other)
    seen, e = _look(_kept(*rows))
    assert [t.name for t in seen.targets] == [f"10.0.0.1:8000 ({differs}={x})" for x in "ab"]
    assert e.per_s(e.generation_tokens) == pytest.approx(1000)
    assert not seen.said


def test_two_servers_that_began_at_once_are_told_apart_by_their_counters() -> None:
    seen, e = _look(_kept(({**INSTANCE, "namespace": "a"}, 0, {}),
                          ({**INSTANCE, "namespace": "b"}, 3, {"rate": 900})))  # fmt: skip
    assert len(seen.targets) == 2
    assert e.per_s(e.generation_tokens) == pytest.approx(1000)


def test_two_models_are_not_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ((INSTANCE, 0, {"model": "llama"}),
            ({"job": "vllm", "instance": "b:8000"}, 0, {"model": "qwen", "rate": 9}))  # fmt: skip
    fake = _kept(*rows)
    with served(fake) as url:
        assert ridgeline(["doctor", "--prometheus", url, "--no-gains"]) == 2
        said = capsys.readouterr().err
        assert "servers of 2 models" in said
        assert "llama (10.0.0.1:8000); qwen (b:8000)" in said
        one = ["--match", '{model_name="llama"}']
        assert ridgeline(["doctor", "--prometheus", url, "--no-gains", *one]) == 0
    assert "100 output tokens/s" in capsys.readouterr().out


def test_dropped_process_metrics_say_nothing_of_front_ends() -> None:
    def without(t: float) -> str:
        return "".join(f"{x}\n" for x in _page(t).splitlines() if not x.startswith("process_"))

    fake = FakePrometheus(1000.0)
    for step in range(20):
        fake.scraped(without(15 * step), 700 + 15 * step, INSTANCE)
    _, e = _look(fake)
    assert not e.several_fronts
    assert e.api_servers is None, "not told"
    fake = FakePrometheus(1000.0)
    for step in range(20):
        text = without(15 * step) + 'python_info{implementation="CPython"} 1\n'
        fake.scraped(text, 700 + 15 * step, INSTANCE)
    assert _look(fake)[1].api_servers == 1


def test_a_warning_of_a_partial_answer_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    fake = _kept((INSTANCE, 0, {}))
    whole = fake.answer
    fake.answer = lambda q: {**whole(q), "warnings": ["store 7 is not there"]}  # type: ignore[method-assign]
    with served(fake) as url:
        assert ridgeline(["doctor", "--prometheus", url, "--no-gains"]) == 0
    assert "may be a part of it: store 7 is not there" in capsys.readouterr().err


def test_of_a_part_of_the_series_no_sums_are_exported(capsys: pytest.CaptureFixture[str]) -> None:
    fake = _kept((INSTANCE, 0, {}))
    whole = fake.answer
    for warnings, sums in ((["store 7 is not there"], False), ([], True)):
        fake.answer = lambda q, w=warnings: {**whole(q), "warnings": w}  # type: ignore[misc]
        with served(fake) as url, StoredPool(
            PrometheusServer(parse_address(url), Credentials()), period_s=60, known=Known(),
            price=Price(4.0), slo=None,
        ) as pool:  # fmt: skip
            state = State(pool, None)
            state.look()
            state.look()
        text = render(state.now, whole=state.whole)
        assert "ridgeline_replica_output_tokens_per_second" in text
        assert ("ridgeline_pool_output_tokens_per_second" in text) is sums
        assert capsys.readouterr().err.count("store 7 is not there") == (not sums)


def test_no_odd_answer_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storedpool, "LEAST_PERIOD_S", 0.05)
    fake = _kept((INSTANCE, 0, {}))
    whole = fake.answer
    odd: list[object] = [None, [1], [{"metric": {}, "values": [["x", "y"]]}], "no rows"]
    with served(fake) as url, StoredPool(
        PrometheusServer(parse_address(url), Credentials()), period_s=0.05, known=Known(),
        price=Price(), slo=None,
    ) as pool:  # fmt: skip
        assert pool.now()[0].up
        for rows in odd:
            body = {"status": "success", "data": {"resultType": "matrix", "result": rows}}
            fake.answer = lambda q, body=body: whole(q) if q == "time()" else body  # type: ignore[misc]
            _until(pool, up=False)
            fake.answer = whole  # type: ignore[method-assign]
            _until(pool, up=True)
        monkeypatch.setattr(storedpool, "TIMEOUT_S", 0.2)
        monkeypatch.setattr(pool._server, "look", lambda _: time.sleep(1.0))
        _until(pool, up=False)
        assert "has not answered for" in str(pool.now()[0].trouble)


def test_no_sample_of_the_export_is_there_twice() -> None:
    fake = _kept(({**INSTANCE, "job": "a"}, 0, {}), ({**INSTANCE, "job": "b"}, 3, {"rate": 7}))
    with served(fake) as url, StoredPool(
        PrometheusServer(parse_address(url), Credentials()), period_s=60, known=Known(),
        price=Price(4.0), slo=None,
    ) as pool:  # fmt: skip
        text = render(pool.now())
    names = [x.rsplit(" ", 1)[0] for x in text.splitlines() if not x.startswith("#")]
    assert len(names) == len(set(names))
    assert len([n for n in names if n.startswith("ridgeline_replica_up")]) == 2


def _until(pool: StoredPool, *, up: bool) -> None:
    end = time.monotonic() + 10
    while pool.now()[0].up is not up:
        assert time.monotonic() < end, pool.now()[0]
        time.sleep(0.02)
