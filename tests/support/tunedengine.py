"""A tuning on an engine that answers by arithmetic, as a library and as a process to be killed.

`python tunedengine.py FOLDER [KILLED [PROMPTS KV=URL...]]`: a tuning of ten trials into FOLDER;
with KILLED above 0 it dies by SIGKILL in the middle of that run (counted from 1), "soak" in that
one, once, LATE_S seconds (of the environment) after its begin. With URLs, by KV type, it is of
FEWER and its answers are judged.

The engine: every request waits 100 ms / speed and gives a token every 10 ms / speed; speed is
max_num_seqs / 100, slowed by the square of how far max_num_batched_tokens is from 2048 (in
doublings, a tenth each). max_num_seqs 13 does not start; from 900 on an engine starts and dies with
more than 20 users. A run is off by 2 % (by its seed and its options).
"""

import contextlib
import math
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import RecordSink, RequestRecord
from ridgeline.domain.run import ClientCheck, RunFacts, ServerCounters, Watch, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan, Endpoint
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.gate import Gate
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.measuring import StudyGround
from ridgeline.tuning.port import Ask
from ridgeline.tuning.session import Session
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.sidebyside import SideBySide
from ridgeline.tuning.trial import Candidate, History
from ridgeline.tuning.watching import SilentTuneWatch, TuneWatch
from ridgeline.workload.study import TuneSpec

SCRIPT_FOLDER = Path(__file__).parent
TTFT_NS, GAP_NS = 100_000_000, 10_000_000
LOAD = Workload(
    Arrivals(users=8), Prompts(Lengths(20, 0.5)), Outputs(Lengths(30, 0.5)),
    duration_s=20.0, warmup_s=2.0, seed=7,
)  # fmt: skip


SOAKED = -1  # as kill_at: in the soak
FEWER_BITS = ("fp8", "fp8_e5m2", "int8_per_token_head")  # half as fast again


def speed(configuration: Configuration) -> float:
    knobs = configuration.knobs
    off = math.log2((knobs.max_num_batched_tokens or 2048) / 2048)
    fewer_bits = 1.5 if knobs.kv_cache_dtype in FEWER_BITS else 1.0
    return fewer_bits * (knobs.max_num_seqs or 100) / 100 / (1 + 0.1 * off * off)


@dataclass
class TunedEndpoint:
    engine: "TunedEngine"
    configuration: Configuration
    source: str = "measured"

    @property
    def urls(self) -> tuple[str, ...]:
        return self.engine.urls_of(self.configuration)

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        load, seqs = plan.schedule.workload, self.configuration.knobs.max_num_seqs or 100
        self.engine.drives += 1
        soaked = self.engine.kill_at == SOAKED and (load.arrivals.users or 0) > 20
        if self.engine.drives == self.engine.kill_at or soaked:
            time.sleep(float(os.environ.get("LATE_S", "0")))
            os.kill(os.getpid(), signal.SIGKILL)
        if seqs >= 900 and (load.arrivals.users or 0) > 20:
            error = RunFailed("oom_under_load: CUDA out of memory, says the engine")
            error.failure_class = "oom_under_load"  # type: ignore[attr-defined]
            raise error
        rng = np.random.default_rng(
            [load.seed, zlib.crc32(repr(self.configuration.knobs).encode())]
        )
        slow = float(np.exp(rng.normal(0, self.engine.noise))) / speed(self.configuration)
        start, end = round(load.warmup_s * 1e9), round((load.warmup_s + load.duration_s) * 1e9)
        assert plan.schedule.users is not None
        assert plan.schedule.user_start_ns is not None
        index = tokens = prompts = 0
        for user in range(plan.schedule.users):
            at, turn = int(plan.schedule.user_start_ns[user]), 0
            while at < end and not watch.stop_asked():
                want = plan.schedule.closed(user, turn)
                first = at + round(TTFT_NS * slow)
                chunks = first + round(GAP_NS * slow) * np.arange(want.output_tokens)
                sink.request(
                    RequestRecord(
                        index=index, user=user, intended_ns=at, sent_ns=at,
                        first_ns=int(chunks[0]), last_ns=int(chunks[-1]), end_ns=int(chunks[-1]),
                        planned_prompt_tokens=want.prompt_tokens,
                        planned_output_tokens=want.output_tokens,
                        prompt_tokens=want.prompt_tokens, output_tokens=want.output_tokens,
                        finish_reason="length", chunk_ns=chunks.astype(np.int64),
                    )
                )  # fmt: skip
                tokens, prompts = tokens + want.output_tokens, prompts + want.prompt_tokens
                at, turn, index = int(chunks[-1]), turn + 1, index + 1
        return RunFacts(
            source="measured",
            window=Window(start, end),
            client=ClientCheck("simulated", cpu_share=0.1),
            counters=ServerCounters(
                requests_ok=index, prompt_tokens=prompts, generation_tokens=tokens
            ),
            server={"engine": "fake", "version": "1"},
            interrupted=watch.stop_asked(),
        )


@dataclass
class TunedEngine:
    name: str = "fake"
    noise: float = 0.02
    kill_at: int | None = None  # the process dies in the middle of this drive, from 1
    drives: int = 0
    started: list[int | None] = field(default_factory=list)
    servers: Mapping[str, str] = field(default_factory=dict)  # URL by KV type, for the gate

    def urls_of(self, configuration: Configuration) -> tuple[str, ...]:
        url = self.servers.get(configuration.knobs.kv_cache_dtype or "auto")
        return () if url is None else (url,)

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        seqs = configuration.knobs.max_num_seqs
        self.started.append(seqs)
        if seqs == 13:
            raise RunFailed("CUDA out of memory, says the engine", where="fake")
        yield TunedEndpoint(self, configuration)  # type: ignore[misc]


@dataclass
class Listed:
    """A policy that measures a list, `at_once` at a time."""

    candidates: Sequence[Candidate]
    at_once: int = 2
    window_s: float = 20.0

    def ask(self, history: History, left_s: float) -> Ask | None:
        own = [t for t in history.trials if (t.run or "trial").startswith("trial")]
        done = len(own)  # beside them are the runs of duels that it goes on after
        todo = tuple(self.candidates[done : done + self.at_once])
        return Ask(todo, self.window_s, ("the next of the list",) * len(todo)) if todo else None


def best_first(history: History) -> list[tuple[Candidate, float]]:
    found = [t for t in history.trials if t.state in ("feasible", "unsure") and t.value]
    ranked = sorted(found, key=lambda t: -(t.value or 0))
    return list({t.candidate.key: (t.candidate, t.value or 0.0) for t in ranked}.values())


def setting(
    slo: str = "ttft_p95_ms=500", *, seqs: int = 100, finalists: int = 3, risk: str = "exact"
) -> Setting:
    base = Configuration("m", Knobs(max_num_seqs=seqs), "fake", price_per_gpu_hour=2.0)
    spec = TuneSpec(finalists=finalists, risk=risk)
    return Setting("s", base, LOAD, parse_slo(slo), "chat", spec)


@contextlib.contextmanager
def session(
    folder: Path,
    policy: Listed,
    engine: TunedEngine,
    the_setting: Setting | None = None,
    limits: Limits | None = None,
    watch: TuneWatch | None = None,
    side: SideBySide | None = None,
) -> Iterator[Session]:
    made, told = the_setting or setting(), watch or SilentTuneWatch()
    with (
        TuneJournal(folder) as journal,
        LastingEngines(lambda name: engine, made.places, made.configuration) as engines,
        contextlib.closing(Oracle(made, folder)) as oracle,
    ):
        ground = StudyGround(made, folder, engines, journal, told, oracle.expect, "test", side=side)
        yield Session(
            made, folder, ground, oracle, policy, best_first, engines, journal, told,
            limits or Limits(), Gate(made, folder, engines, journal, told, lambda: 1.0),
        )  # fmt: skip


TEN = [
    Candidate(),
    *(Candidate({"max_num_seqs": n}) for n in (80, 120, 140, 13, 160)),
    *(Candidate({"max_num_seqs": 160, "max_num_batched_tokens": n}) for n in (1024, 4096, 8192)),
    Candidate({"max_num_seqs": 150}),
]
FEWER = [
    Candidate(),
    *(Candidate({"max_num_seqs": n}) for n in (120, 140)),
    *(Candidate({"max_num_seqs": n, "kv_cache_dtype": "fp8"}) for n in (140, 130)),
]


if __name__ == "__main__":
    asked_at = sys.argv[2] if len(sys.argv) > 2 else "0"
    kill_at = SOAKED if asked_at == "soak" else int(asked_at)
    urls = dict(word.split("=", 1) for word in sys.argv[4:])
    made = TunedEngine(kill_at=kill_at, servers=urls)
    listed, asked = TEN, setting()
    if urls:
        judged = replace(setting(risk="lossy").spec, quality_prompts=sys.argv[3])
        listed, asked = FEWER, replace(asked, spec=judged)
    with session(Path(sys.argv[1]), Listed(listed), made, asked) as begun:
        found = begun.run()
        print(found.winner.words, found.clear, found.rounds)
