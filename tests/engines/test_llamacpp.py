"""llama.cpp's real server as an engine, alone and beside another in one study."""

import json
import sys
import threading
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.endpoint import EndpointEngine
from ridgeline.engines.llamacpp import LlamaCppEngine, llama_arguments
from ridgeline.engines.started import ServerLaunch
from ridgeline.experiment.engines import check_startable, engine_named
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_of, plan_runs
from ridgeline.experiment.protocol import carry_out
from ridgeline.experiment.results import results_of
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.store.run_directory import StoredRun, read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.studyfile import load_study, parse_study
from support.llamacpp import LlamaServer, serve, write_model

THREADS = Launch(arguments=("--threads", "1"), cold_s=0.0)
STUDY = """\
name: two-engines
model: {model}
engine: llamacpp
launch: {{arguments: [--threads, "1"], cold_s: 0, resident: 1, ready_s: 60}}
workload:
  arrivals: {{users: 4}}
  prompts: {{tokens: {{min: 64, max: 96}}}}
  output_tokens: {{min: 8, max: 24, ignore_eos: true}}
  warmup_s: 0.5
  duration_s: 2
  seed: 3
baseline_name: llamacpp
baseline: {{max_num_seqs: 4, max_model_len: 1024}}
experiments:
  - name: other
    engine: vllm
    engine_version: "9.9"
    launch:
      command: [{python}, {fake}, {log}, serve, "{{model}}"]
repeats: 2
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_knobs_become_llama_server_s_flags() -> None:
    knobs = Knobs(max_num_seqs=8, max_model_len=512, max_num_batched_tokens=256)
    assert llama_arguments(knobs) == [
        "--parallel", "8", "--batch-size", "256", "--ctx-size", "4096",
    ]  # fmt: skip
    assert llama_arguments(Knobs(enable_prefix_caching=False))[-1] == "--no-cache-prompt"
    with pytest.raises(BadInput, match="has no such knob") as caught:
        llama_arguments(Knobs(enforce_eager=True))
    assert caught.value.where == "enforce_eager"


def test_it_starts_answers_and_is_gone_afterwards(gguf: Path, tmp_path: Path) -> None:
    engine = LlamaCppEngine(ServerLaunch(log_folder=tmp_path, ready_s=60.0))
    at = Configuration(
        str(gguf), Knobs(max_num_seqs=4, max_model_len=512), "llamacpp", launch=THREADS
    )
    with engine.start(at) as endpoint:
        family = [p for p in psutil.Process().children(recursive=True) if str(gguf) in p.cmdline()]
        assert family
        assert endpoint.alive()
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)


def test_a_start_that_fails_quotes_the_engine(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nothing")
    engine = LlamaCppEngine(ServerLaunch(log_folder=tmp_path, ready_s=60.0))
    at = Configuration(str(broken), Knobs(), "llamacpp")
    with pytest.raises(RunFailed, match="ended with exit code"), engine.start(at):
        pass


def test_two_engines_under_one_workload(gguf: Path, tmp_path: Path) -> None:
    """llama.cpp beside a server of another kind, each by its own command, model and knobs."""
    fake, log = Path(__file__).with_name("fake_engine.py"), tmp_path / "prepared.log"
    log.write_text("INFO up")
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.format(model=gguf, python=sys.executable, fake=fake, log=log))
    study = load_study(file)
    check_startable(study, str(file))
    plan = plan_of(study)
    first, other = (e.configuration for e in plan.experiments)
    assert (first.engine, other.engine) == ("llamacpp", "vllm")
    assert other.knobs == Knobs(), "the baseline's knobs are of its own engine"
    assert other.engine_version == "9.9"
    assert other.launch is not None
    assert other.launch.arguments == ()
    assert other.launch.ready_s == 60
    assert "engine llamacpp -> vllm" in plan.experiments[1].change

    directory = StudyDirectory(tmp_path / "out")
    outcome = run_plan(
        plan, directory, engine_named, SilentStudyWatch(), command="study", retries=0
    )
    finished = sorted(
        outcome.index.runs, key=lambda r: (tmp_path / "out" / r / "run.json").stat().st_mtime_ns
    )
    assert finished == ["llamacpp-r1", "other-r1", "other-r2", "llamacpp-r2"], "interleaved"
    run = read_run(directory.run_folder("llamacpp-r1"))
    assert run.facts is not None
    assert run.summary is not None
    assert run.facts.server["engine"] == "llamacpp"
    assert run.summary.requests.failed == 0
    assert run.summary.requests.ok > 0
    telemetry = run.facts.server["telemetry"]
    assert telemetry["engine"]["running_max"] <= 4  # type: ignore[index]
    names = [e.name for e in results_of(outcome.index, directory, study).experiments]
    assert names == ["llamacpp", "other"]


def test_engines_that_cannot_be_compared_are_refused() -> None:
    text = (
        "name: s\nmodel: m.gguf\nengine: llamacpp\nworkload: {arrivals: {users: 1}}\n"
        "experiments: [{name: x, engine: twin}]\n"
    )
    with pytest.raises(BadInput, match="twin cannot be compared with llamacpp") as caught:
        parse_study(text, "s.yaml", folder=Path())
    assert caught.value.where is not None
    assert caught.value.where.startswith("s.yaml:5")


WORKLOAD = Workload(
    Arrivals(users=3), Prompts(Lengths(80)), Outputs(Lengths(12), ignore_eos=True), duration_s=60,
    warmup_s=0, requests=30, seed=5,
)  # fmt: skip


def drive_at(server: LlamaServer, folder: Path, endpoint: str = "chat") -> StoredRun:
    at = Configuration("tiny", Knobs(), "endpoint", url=server.url)
    experiment = PlannedExperiment("e", at, WORKLOAD)
    plan = Plan("p", "bench", None, (experiment,), endpoint=endpoint)
    return carry_out(plan_runs(plan)[0], folder, EndpointEngine(), SilentWatch())


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_its_counters_agree_with_usage_to_the_token(
    endpoint: str, gguf: Path, tmp_path: Path
) -> None:
    """What this run says of itself, what usage said, and what a scrape of our own finds."""
    with serve(gguf, slots=4) as server:
        before = server.counts()
        run = drive_at(server, tmp_path / "run", endpoint)
        grown = server.counts().since(before)
    facts, summary = run.facts, run.summary
    assert facts is not None
    assert summary is not None
    assert summary.requests.ok >= 30
    counters = facts.counters
    assert counters is not None
    records = run.records()
    assert counters.generation_tokens == grown.generation_tokens
    assert grown.generation_tokens == np.nansum(records.output_tokens) + facts.extra_output_tokens
    whole = grown.prompt_tokens + grown.cached_prompt_tokens
    assert counters.prompt_tokens == whole
    assert whole == np.nansum(records.prompt_tokens) + facts.extra_prompt_tokens
    assert counters.prefix_cache_hits == grown.cached_prompt_tokens
    told = (*summary.verdict.reasons, *summary.verdict.warnings)
    assert not any("counts disagree" in text for text in told)
    (missing,) = (text for text in told if "not checked against the server's counters" in text)
    assert missing.endswith(": requests"), "llama.cpp counts no requests; tokens are checked"
    assert not any("not checked whether prompts came out of a prefix cache" in x for x in told)


def test_another_client_at_the_server_shows_in_its_counters(gguf: Path, tmp_path: Path) -> None:
    """Somebody else's 3 requests during the run: more tokens than this run asked for."""
    with serve(gguf, slots=4) as server:
        body = {"messages": [{"role": "user", "content": "x" * 50}], "max_tokens": 40}
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        stop = threading.Event()

        def other() -> None:
            while not stop.is_set():
                urllib.request.urlopen(request, timeout=30).read()

        thread = threading.Thread(target=other)
        thread.start()
        try:
            run = drive_at(server, tmp_path / "run")
        finally:
            stop.set()
            thread.join()
    assert run.summary is not None
    assert not run.summary.verdict.valid
    found = [text for text in run.summary.verdict.reasons if "counts disagree" in text]
    assert any("output tokens" in text for text in found)
    assert any("prompt tokens" in text for text in found)
