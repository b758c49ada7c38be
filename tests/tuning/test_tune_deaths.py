"""A tuning's last word on what dies, is not sure to meet the targets or was hardly measured."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.cli.main import run
from ridgeline.cli.winneroption import tuned_from
from ridgeline.domain.errors import GIVEN_UP, BadInput, RunFailed
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.engines.base import DrivePlan, Endpoint
from ridgeline.tuning import dueling
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.choosing import choose
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.outcome import TuneResult, read_result, write_result
from ridgeline.tuning.session import Found
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from support.tunedengine import Listed, TunedEndpoint, TunedEngine, session, setting

Dies = Callable[[int, int], bool]
FIRST_ROUND = 7 + dueling.FRESH_SEEDS  # the seed of the duel's first round


@dataclass
class MortalEndpoint(TunedEndpoint):
    dies: Dies = lambda seqs, seed: False
    words: str = "the engine died under load"

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        if self.dies(self.configuration.knobs.max_num_seqs or 0, plan.schedule.workload.seed):
            raise RunFailed(self.words)
        return super().drive(plan, sink, watch)


@dataclass
class MortalEngine(TunedEngine):
    """Dies in the runs that `dies` (of max_num_seqs and the run's seed) names."""

    dies: Dies = lambda seqs, seed: False
    words: str = "the engine died under load"

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        with super().start(configuration):
            yield MortalEndpoint(self, configuration, dies=self.dies, words=self.words)  # type: ignore[misc]


def never(seqs: int, seed: int) -> bool:
    return False


def seqs(*numbers: int) -> list[Candidate]:
    return [Candidate(), *(Candidate({"max_num_seqs": n}) for n in numbers)]


def tuned(
    folder: Path,
    candidates: list[Candidate],
    dies: Dies = never,
    of: Setting | None = None,
    limits: Limits | None = None,
) -> tuple[Found, TuneResult]:
    engine = MortalEngine(dies=dies)
    with session(folder, Listed(candidates), engine, of, limits) as begun:
        found = begun.run()
        return found, conclude(begun, found)


def test_a_finalist_that_died_in_one_round_is_barred_and_told(tmp_path: Path) -> None:
    """It is the fastest by far; nor is its dead round measured again, now or after a restart."""

    def once(seqs: int, seed: int) -> bool:
        return seqs == 160 and seed == FIRST_ROUND + 1

    found, result = tuned(tmp_path, seqs(160), once)
    assert found.winner.change == {}
    assert "max_num_seqs=160 died in 1 of 2 rounds" in result.verdict
    assert result.duel is not None
    assert result.duel.duelists[1].verdict == "died in 1 of 2 rounds"
    again, _ = tuned(tmp_path, seqs(160), never)
    assert again.winner.change == {}
    body = json.loads((tmp_path / "finalist-1-r2" / "run.json").read_text())
    assert body["state"] == "failed"


def test_the_next_finalist_wins_where_the_best_one_died(tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, seqs(160, 140), lambda n, seed: n == 160 and seed == FIRST_ROUND)
    assert found.winner.change == {"max_num_seqs": 140}
    assert found.clear


@pytest.mark.parametrize("first", [0, FIRST_ROUND])  # it never runs, or dies in the duel alone
def test_a_baseline_that_does_not_run_does_not_stay(tmp_path: Path, first: int) -> None:
    """Its finalists have the least rounds, which tell that they meet the targets; it has none."""
    found, result = tuned(tmp_path, seqs(160, 140), lambda n, seed: n == 100 and seed >= first)
    assert found.winner.change == {"max_num_seqs": 160}
    assert "the baseline does not run, it died in 1 of 1 round" in result.verdict
    assert found.clear
    assert found.duel is not None
    assert sorted(found.duel.summaries(found.winner)) == [1, 2, 3]
    assert not (tmp_path / "baseline-r2").exists()
    assert result.recommended
    again, told = tuned(tmp_path, seqs(160, 140), never)
    assert (again.winner, told.verdict) == (found.winner, result.verdict)


def test_one_round_beside_a_baseline_that_does_not_run_is_told_as_that(tmp_path: Path) -> None:
    """Where the budget ends after it: what ran within its targets is named, and not clearly."""
    found, _ = tuned(tmp_path, seqs(160, 140), lambda n, seed: n == 100 and seed >= FIRST_ROUND)
    assert found.duel is not None
    found.duel._read(1)
    one = choose(found.duel, ())
    assert (one.winner.change, one.clear) == ({"max_num_seqs": 160}, False)
    assert "one round decides nothing" in one.why


def test_without_any_that_runs_nothing_is_recommended(tmp_path: Path) -> None:
    found, result = tuned(tmp_path, seqs(160), lambda n, seed: seed >= FIRST_ROUND)
    assert not found.recommended
    assert result.verdict.startswith("No recommendation: the baseline does not run")
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result


def test_a_start_that_the_budget_ended_is_no_death(tmp_path: Path) -> None:
    engine = MortalEngine(dies=lambda n, seed: seed == FIRST_ROUND, words=GIVEN_UP)
    with session(tmp_path, Listed(seqs(160)), engine) as begun:
        found = begun.run()
    assert found.duel is not None
    assert [found.duel.died(c) for c in found.duel.candidates] == [None, None]
    assert found.recommended


def test_a_baseline_that_crashes_and_has_no_rival_is_not_recommended(tmp_path: Path) -> None:
    _, result = tuned(tmp_path, seqs(), lambda n, seed: True)
    assert not result.recommended
    assert result.verdict.startswith("No recommendation: no trial has a figure that counts")


@pytest.mark.parametrize(("baseline", "winner"), [(True, 0), (None, 160)])
def test_what_may_miss_the_targets_is_no_clear_winner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    baseline: bool | None,
    winner: int,
) -> None:
    """Over a baseline that meets them it does not win, over one that may miss them not clearly."""
    meets = {0: baseline}
    monkeypatch.setattr(Duel, "meets", lambda self, c: meets.get(len(c.change)))
    found, result = tuned(tmp_path, seqs(160))
    assert found.winner.change.get("max_num_seqs", 0) == winner
    assert not found.clear
    assert "may miss the targets" in result.verdict


def test_one_round_is_not_clear(tmp_path: Path) -> None:
    """The baseline misses its target and the finalist meets it: by three rounds, two and one."""
    found, _ = tuned(tmp_path, seqs(250), of=setting("ttft_p95_ms=65"))
    assert (found.winner.change, found.clear, found.rounds) == ({"max_num_seqs": 250}, True, 3)
    assert found.duel is not None
    found.duel._read(2)
    short = choose(found.duel, ())
    assert (short.winner.change, short.clear) == ({"max_num_seqs": 250}, False)
    assert "seen in 2 rounds only" in short.why
    found.duel._read(1)
    one = choose(found.duel, ())
    assert (one.winner.change, one.clear) == ({}, False)
    assert "one round of the duel decides nothing" in one.why


def test_rounds_that_no_budget_held_are_not_told(tmp_path: Path) -> None:
    found, result = tuned(tmp_path, seqs(160), limits=Limits(gpu_s=45))
    assert found.rounds == 0
    assert "no duel was held: its budget is used" in result.verdict
    assert result.duel is not None
    assert (result.duel.rounds, result.duel.ended) == (0, "no duel was held: its budget is used")


def test_a_crash_in_any_trial_bars_from_the_duel(tmp_path: Path) -> None:
    """The second trial of a candidate has the seed after the first one's."""
    found, _ = tuned(tmp_path, seqs(160, 160, 140), lambda n, seed: n == 160 and seed == 8)
    states = [t.state for t in found.told.trials if t.candidate.change == {"max_num_seqs": 160}]
    assert states == ["feasible", "crashed"]
    assert [c.change for c in found.finalists] == [{"max_num_seqs": 140}]


def test_the_latency_that_is_told_is_the_one_that_was_judged(tmp_path: Path) -> None:
    _, result = tuned(tmp_path, seqs(160))
    (limit,) = result.winner.limits
    assert result.winner.ttft_p95_ms == limit.value
    assert f"p95 TTFT {limit.value:,.3g} ms" in result.verdict


def test_the_duel_counts_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = setting()
    four = replace(one, configuration=replace(one.configuration, gpus=4))
    ticks = itertools.count(0, 10)
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), time=time.time)
    monkeypatch.setattr(dueling, "time", clock)
    tuned(tmp_path, seqs(160), of=four)
    lines = [json.loads(x) for x in (tmp_path / "tune.jsonl").read_text().splitlines()]
    assert [x["gpu_s"] for x in lines if x.get("what") == "duel"] == [40.0] * 3, (
        "10 s of 4 GPUs a round"
    )


STUDY = """\
name: small
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  {arrivals: {users: 4}, prompts: {tokens: 100}, output_tokens: 20, duration_s: 4, warmup_s: 2}
slo: {ttft_p95_ms: 400}
baseline: {max_num_seqs: 8}
tune: {only: true, finalists: 1, space: {max_num_seqs: [8, 64]}}
"""


def test_a_budget_that_measures_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    call = ["tune", str(tmp_path / "small.yaml"), "--quiet", "--out", str(tmp_path / "out")]
    assert run([*call, "--gpu-minutes", "0"]) == 2
    assert "--gpu-minutes: a budget of 0 minutes measures nothing" in capsys.readouterr().err
    assert run([*call, "--gpu-minutes", "0.01"]) == 3
    assert "nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / "out" / "winner.yaml").exists()
    found = read_result(tmp_path / "out")
    assert found is not None
    assert found.verdict == "No recommendation: nothing was measured."
    with pytest.raises(BadInput, match="recommends nothing"):
        tuned_from(tmp_path / "out")
    (tmp_path / "small.yaml").write_text(STUDY.replace("ttft_p95_ms: 400", "ttft_p95_ms: 300"))
    assert run([*call, "--gpu-minutes", "0.01"]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "another question" in x]
    assert "slo.ttft_p95_ms: 400 -> 300; choose another folder with --out" in line
