"""`ridgeline bench` against the real vLLM, held against the server's own counters.

The counters are read by this test with another parser and another client than the product's.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from real_vllm import MODEL_NAME, RealVllm, ServerCounts

pytestmark = pytest.mark.vllm

USERS, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 256, 128, 64
TRAFFIC = [
    f"--users={USERS}", f"--requests={REQUESTS}", f"--prompt-tokens={PROMPT_TOKENS}",
    f"--output-tokens={OUTPUT_TOKENS}", "--ignore-eos", "--seed=11",
]  # fmt: skip
RIDGELINE = Path(sys.executable).with_name("ridgeline")


@dataclass(frozen=True)
class Bench:
    """One bench: what it printed and stored, and what the server counted meanwhile."""

    code: int
    errors: str
    summary: dict[str, Any]
    facts: dict[str, Any]
    requests: pl.DataFrame  # one row for each request of the run, warm-up included
    server: ServerCounts

    def mean_s(self, begin: str, end: str) -> float:
        """Mean time between two stamps of a request, over every request of the run."""
        return float((self.requests[end] - self.requests[begin]).mean()) / 1e9  # type: ignore[arg-type]

    def server_mean_s(self, latency: str) -> float:
        """The server's mean "ttft" or "e2e" over the run; off by its slack at most, upwards.

        The server's sum also holds the calibration requests.
        """
        total_s: float = getattr(self.server, f"{latency}_sum_s")
        return total_s / len(self.requests)

    @property
    def ttft_slack_s(self) -> float:
        """What the calibration requests can add to the mean TTFT: none took longer than the upper
        end of the histogram's last bucket that has grown (a long prompt of theirs may take longer
        than a short request of the run).
        """
        counts = self.server.ttft_buckets
        longest_s = next(bound for bound, count in counts if count == self.server.ttft_count)
        extra: int = self.facts["extra_requests"]
        return extra * longest_s / len(self.requests)

    @property
    def slack_s(self) -> float:
        extra: int = self.facts["extra_requests"]
        return extra * self.server_mean_s("e2e") / len(self.requests)


def call_bench(server: RealVllm, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [RIDGELINE, "bench", server.url, *options,
         "--json", folder / "out.json", "--out", folder / "runs"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def run_bench(server: RealVllm, folder: Path, *options: str) -> Bench:
    before = server.counts()
    done = call_bench(server, folder, *options)
    added = server.counts().since(before)
    # 3 is "void": these runs are short, and a busy machine may make the client late. What was
    # counted must be right all the same.
    assert done.returncode in (0, 3), done.stderr
    (stored,) = folder.rglob("run.json")
    return Bench(
        code=done.returncode,
        errors=done.stderr,
        summary=json.loads((folder / "out.json").read_text()),
        facts=json.loads(stored.read_text())["facts"],
        requests=pl.read_parquet(stored.with_name("requests.parquet")),
        server=added,
    )


@pytest.fixture(scope="module", params=["chat", "completions"])
def bench(
    request: pytest.FixtureRequest, vllm: RealVllm, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    folder = tmp_path_factory.mktemp(request.param)
    return run_bench(vllm, folder, *TRAFFIC, f"--endpoint={request.param}")


def test_counts_equal_the_servers_own_to_the_last_token(bench: Bench) -> None:
    facts, sent = bench.facts, bench.requests
    assert bench.server.requests == len(sent) + facts["extra_requests"]
    assert bench.server.prompt_tokens == (
        sent["prompt_tokens"].sum() + facts["extra_prompt_tokens"]
    )
    assert bench.server.generation_tokens == (
        sent["output_tokens"].sum() + facts["extra_output_tokens"]
    )
    assert bench.summary["requests"]["sent"] == REQUESTS


def test_ridgelines_own_scrape_agrees_with_this_one(bench: Bench) -> None:
    own = bench.facts["counters"]
    assert own["requests_ok"] == bench.server.requests
    assert own["prompt_tokens"] == bench.server.prompt_tokens
    assert own["generation_tokens"] == bench.server.generation_tokens
    assert own["prefix_cache_hits"] == bench.server.prefix_cache_hits


def test_every_request_succeeds_at_full_length(bench: Bench) -> None:
    assert bench.requests["failure"].null_count() == len(bench.requests)
    assert bench.summary["requests"]["ok"] == REQUESTS
    assert bench.summary["requests"]["failed"] == 0
    assert bench.requests["output_tokens"].unique().to_list() == [OUTPUT_TOKENS]
    assert set(bench.requests["finish_reason"]) == {"length"}
    assert not bench.summary["tokens_estimated"]


def test_ttft_and_itl_are_measured(bench: Bench) -> None:
    for latency in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        for statistic in ("mean", "p50", "p95"):
            value = bench.summary[latency][statistic]
            if value is None:  # a busy machine: the client read late, and says so
                told = bench.summary["intervals"][f"{latency}.{statistic}"]["reason"]
                assert told.startswith("not resolvable: the client read late"), told
                continue
            assert value > 0, (latency, statistic)
    # p99 of 256 requests would rest on the slowest one alone
    assert bench.summary["ttft_s"]["p99"] is None


def test_client_ttft_and_e2e_stand_beside_the_servers_own(bench: Bench) -> None:
    """The client sees what the server sees, plus the way there and back.

    The server's clock for a request starts once its API process has read and tokenised it, so the
    client's mean is never below. On two cores that API process, the engine and the client share
    the processors and the way there costs tens of milliseconds. The bound is 30 % of the mean time
    from the first to the last chunk, which grows with the same contention: a stamp of the wrong
    chunk, or of the wrong clock, lies outside.
    """
    bound_s = 0.3 * bench.mean_s("first_ns", "last_ns")
    ttft_s = bench.mean_s("sent_ns", "first_ns") - bench.server_mean_s("ttft")
    e2e_s = bench.mean_s("sent_ns", "last_ns") - bench.server_mean_s("e2e")
    assert -bench.ttft_slack_s <= ttft_s <= bound_s
    assert -bench.slack_s <= e2e_s <= bound_s


def test_one_users_ttft_is_the_servers_within_25_ms(vllm: RealVllm, tmp_path: Path) -> None:
    """Without contention the way there and back is short. Noise only adds: the best of three."""
    traffic = ["--users=1", "--requests=16", "--prompt-tokens=128", "--output-tokens=8"]
    differences_s = []
    for attempt in range(3):
        run = run_bench(vllm, tmp_path / str(attempt), *traffic, "--ignore-eos", "--warmup=0")
        differences_s.append(run.mean_s("sent_ns", "first_ns") - run.server_mean_s("ttft"))
        assert differences_s[-1] >= -run.ttft_slack_s
        if differences_s[-1] < 0.025:
            return
    pytest.fail(f"client TTFT is above the server's by {differences_s} s")


def test_a_wrong_model_name_is_one_clear_line(vllm: RealVllm, tmp_path: Path) -> None:
    before = vllm.counts()
    done = call_bench(vllm, tmp_path, "--users=1", "--requests=1", "--model=tinny")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "tinny" in line, "it names what was asked for"
    assert f"'{MODEL_NAME}'" in line, "and what the server has"
    assert vllm.counts() == before, "nothing was sent"


def planned_lengths(run: Bench) -> dict[int, list[int]]:
    """User -> prompt lengths, in the order of the turns."""
    table = run.requests.sort("index").group_by("user").agg("planned_prompt_tokens")
    return dict(table.iter_rows())


def test_the_same_seed_again_hits_no_prefix_cache(vllm: RealVllm, tmp_path: Path) -> None:
    """Equal lengths, fresh text: a second run must not measure the first one's cache."""
    traffic = ["--users=4", "--requests=16", "--prompt-tokens=256", "--spread=0.5", "--seed=5"]
    traffic += ["--output-tokens=8", "--ignore-eos", "--endpoint=completions", "--warmup=0"]
    first = run_bench(vllm, tmp_path / "first", *traffic)
    second = run_bench(vllm, tmp_path / "second", *traffic)
    lengths = [planned_lengths(run) for run in (first, second)]
    for user in range(4):
        # who gets how many turns depends on timing; the k-th turn of a user does not
        pairs = list(zip(lengths[0][user], lengths[1][user], strict=False))
        assert pairs
        assert all(one == other for one, other in pairs)
    assert len(set(lengths[0][0] + lengths[0][1])) > 2, "the lengths do vary"
    assert second.server.prefix_cache_queries == second.server.prompt_tokens > 0
    assert (first.server.prefix_cache_hits, second.server.prefix_cache_hits) == (0, 0)


def test_the_prefix_cache_would_have_hit_a_repeated_prompt(vllm: RealVllm) -> None:
    """The control of the test above: this server does cache, and does count it."""
    before = vllm.counts()
    body = {"model": MODEL_NAME, "prompt": "once more " * 100, "max_tokens": 1}
    for _ in range(2):
        vllm.post("/v1/completions", body)
    assert vllm.counts().since(before).prefix_cache_hits >= 32


def test_sessions_carry_the_talk_and_the_counts_stay_equal(vllm: RealVllm, tmp_path: Path) -> None:
    """Each turn's prompt is the talk so far; the server finds what it has computed before."""
    traffic = ["--users=8", "--requests=48", "--turns=3", "--prompt-tokens=96", "--warmup=0"]
    run = run_bench(vllm, tmp_path, *traffic, "--output-tokens=32", "--ignore-eos")
    facts, sent = run.facts, run.requests
    assert sent["failure"].null_count() == len(sent) >= 48
    assert run.server.requests == len(sent) + facts["extra_requests"]
    assert run.server.prompt_tokens == sent["prompt_tokens"].sum() + facts["extra_prompt_tokens"]
    assert run.server.generation_tokens == (
        sent["output_tokens"].sum() + facts["extra_output_tokens"]
    )
    turns = sent.group_by("turn").agg(pl.col("prompt_tokens").mean(), pl.len()).sort("turn")
    assert turns["turn"].to_list() == [0, 1, 2]
    first, second, third = turns["prompt_tokens"]
    # a turn adds its own 96 tokens and the reply before it, of 32, which may be tokenised anew
    for growth in (second - first, third - second):
        assert 100 < growth < 200
    # every turn but the first of a session begins with a prompt that was computed: whole blocks
    later = sent.filter(pl.col("turn") > 0)
    assert run.server.prefix_cache_hits > 0.5 * (later["prompt_tokens"].sum() - 128 * len(later))
