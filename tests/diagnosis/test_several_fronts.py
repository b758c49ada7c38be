"""API servers: several share a page, one may starve; healthy ones are left in peace."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
from diagnosis_pages import MADE, PROMPT, STEPS, R, W, evidence, findings, histogram, page, words

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.gathering import gather
from ridgeline.diagnosis.saved import read_saved
from ridgeline.telemetry.host import RoleClock, whole_server

HTTP = 'http_requests_total{handler="/v1/completions",method="POST"}'
CPU, BEGUN = "process_cpu_seconds_total", "process_start_time_seconds"
ITL = "vllm:inter_token_latency_seconds"


def _seen(fronts: int, *, process: bool, held_s: float, known: Known | None = None) -> Evidence:
    """10 requests/s of 100 tokens, 20 ms a step: 20 in flight; each of `fronts` counts a step.

    held_s: what a request spends in the front end, beside 0.01 s of prefill and 1.98 s of decode.
    """
    rows = []
    for i in range(3):
        t, n = 10.0 * i, 100 * i
        values = {
            R: 20, W: 0, HTTP: n, MADE: 1000 * t, PROMPT: 500 * t, STEPS: fronts * t / 0.02,
            "vllm:num_preemptions_total": 0, "vllm:kv_cache_usage_perc": 0.2,
            'vllm:request_success_total{finished_reason="length"}': n,
            **histogram(ITL, {0.025: 990 * t}, 0.02 * 990 * t),
            **histogram("vllm:request_queue_time_seconds", {0.3: n}, 0.0),
            **histogram("vllm:request_prefill_time_seconds", {0.3: n}, 0.01 * n),
            **histogram("vllm:request_decode_time_seconds", {2.5: n}, 1.98 * n),
            **histogram("vllm:e2e_request_latency_seconds", {5: n}, (1.99 + held_s) * n),
        }  # fmt: skip
        if process:
            values |= {CPU: 0.35 * t, BEGUN: 1.7e9}
        rows.append(page(values))
    return evidence(*rows, apart_s=10.0, known=known)


def test_a_page_that_several_api_servers_share_is_known_by_what_it_lacks() -> None:
    shared = _seen(4, process=False, held_s=0.005)
    assert shared.several_fronts
    assert shared.api_servers is None
    alone = _seen(1, process=True, held_s=0.005)
    assert not alone.several_fronts
    assert alone.api_servers == 1
    cut = replace(shared, several_fronts=False)  # as of a page with nothing but vLLM's own
    assert cut.api_servers == 1


def test_steps_that_four_servers_count_are_not_taken_for_a_busy_engine() -> None:
    """2000 counted in 10 s of 20 ms: four times what fits."""
    shared = Account(_seen(4, process=False, held_s=0.005))
    assert shared.steps is not None
    assert shared.steps == 1000, "20 s of 20 ms, from the time between tokens"
    alone = Account(_seen(1, process=True, held_s=0.005))
    assert alone.steps == 1000


def test_a_healthy_server_with_several_fronts_is_fine_but_not_surely() -> None:
    found = findings(_seen(4, process=False, held_s=0.005))
    assert [f.kind for f in found.values() if f.kind in ("limit", "fault")] == []
    first = next(iter(found.values()))
    assert (first.id, first.confidence) == ("nothing-wrong", "low")
    assert "several API servers share this page" in words(first)
    told = _seen(4, process=False, held_s=0.005, known=Known(api_servers=4))
    first = next(iter(findings(told).values()))
    assert (first.id, first.confidence) == ("nothing-wrong", "medium")


def test_several_full_fronts_are_named_without_their_cpu() -> None:
    found = next(iter(findings(_seen(4, process=False, held_s=0.9)).values()))
    assert found.id == "api-server-cpu"
    (more, *_) = found.tries
    assert (more.knob, more.value) == ("api_server_count", "twice what it is")
    assert "how many there are is not told" in str(more.why_no_gain)


def test_four_calm_ones_on_this_host_and_a_single_full_one() -> None:
    known = Known(api_servers=4)
    calm = replace(_seen(4, process=False, held_s=0.005, known=known), cores={"api server": 0.35,
                   "engine core": 0.6}, host_idle=0.4)  # fmt: skip
    assert "api-server-cpu" not in findings(calm)
    full = replace(_seen(1, process=True, held_s=0.9), cores={"api server": 0.97,
                   "engine core": 0.6}, host_idle=0.4)  # fmt: skip
    first = next(iter(findings(full).values()))
    assert (first.id, first.confidence) == ("api-server-cpu", "high")
    assert first.tries[0].value == "2"


def test_one_that_the_host_has_no_cpu_for_is_named() -> None:
    """It takes a third of a core, because there is no more: the others take the rest."""
    starved = replace(_seen(1, process=True, held_s=0.9), cores={"api server": 0.33,
                      "engine core": 0.6}, host_idle=0.01)  # fmt: skip
    first = next(iter(findings(starved).values()))
    assert first.id == "api-server-cpu"
    assert "the host's CPUs are idle 1% of the time" in words(first)
    idle = replace(starved, host_idle=0.5)
    assert "api-server-cpu" not in findings(idle), "something else holds them: a client that reads"


def test_of_several_servers_the_busiest_counts() -> None:
    from ridgeline.diagnosis.gathering import Snapshot  # noqa: PLC0415
    from ridgeline.telemetry.prometheus import merged, parse_metrics  # noqa: PLC0415

    def at(t: float) -> Snapshot:
        texts = [page({R: 1, W: 0, CPU: cores * t}) for cores in (0.3, 0.5, 0.4)]
        return Snapshot(t, merged([parse_metrics(text) for text in texts]))

    assert gather([at(0.0), at(10.0)]).cores == {"api server": 0.5}


def test_four_real_api_servers_as_they_were_recorded() -> None:
    """vLLM 0.32.0 with --api-server-count 4 and eight users, whose pages do not say that."""
    files = sorted((Path(__file__).parent / "data").glob("vllm-0.32.0-four-fronts-*.txt"))
    seen = gather(read_saved(files, None))
    assert len(files) == 3
    assert seen.several_fronts
    assert seen.steps is not None
    found = findings(seen)
    first = next(iter(found.values()))
    assert (first.id, first.confidence) == ("nothing-wrong", "low")
    assert not [f.id for f in found.values() if f.kind in ("limit", "fault")]


SERVER = """
import subprocess, sys, time
names = ["VLLM::EngineCore", *(f"VLLM::APIServer_{i}" for i in range(int(sys.argv[1])))]
rows = [subprocess.Popen(["bash", "-c", f"exec -a {n} sleep 60"]) for n in names]
print(*(r.pid for r in rows), flush=True)
time.sleep(60)
"""


def test_api_servers_are_counted_by_their_processes(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    for several in (0, 4):
        words = [sys.executable, str(script), str(several)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            pids = []
            try:
                assert server.stdout is not None
                pids = [int(word) for word in server.stdout.readline().split()]
                _named(pids)
                clock = RoleClock(server.pid)
                clock.look()
                assert clock.api_servers == (several or 1)
                for pid in pids[1:]:
                    assert whole_server(pid) == server.pid, "any of them may be found to listen"
                assert whole_server(server.pid) == server.pid
            finally:
                for pid in (*pids, server.pid):
                    psutil.Process(pid).kill()


def _named(pids: list[int]) -> None:
    """Wait until each bears its name."""
    end = time.monotonic() + 10
    while not all("VLLM" in " ".join(psutil.Process(pid).cmdline()[:1]) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.02)
