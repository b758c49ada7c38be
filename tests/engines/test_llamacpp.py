"""llama.cpp's real server as an engine, alone and beside another in one study."""

import sys
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.engines.llamacpp import LlamaCppEngine, llama_arguments
from ridgeline.engines.started import ServerLaunch
from ridgeline.experiment.engines import check_startable, engine_named
from ridgeline.experiment.plan import plan_of
from ridgeline.experiment.results import results_of
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.studyfile import load_study, parse_study
from support.llamacpp import write_model

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
