"""The account of runs of the real vLLM on the CPU names a full batch and a slow proxy."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.summary import Summary
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.experiment.engines import engine_named
from ridgeline.experiment.plan import plan_of, plan_runs
from ridgeline.experiment.protocol import carry_out
from ridgeline.workload.studyfile import load_study

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm"), str(TESTS / "engines"), str(TESTS / "acceptance")]
from real_vllm import ENVIRONMENT, environment_folder, make_model  # noqa: E402
from test_convicted import check_account, proxied  # noqa: E402

pytestmark = pytest.mark.acceptance
SLOTS = 4
STUDY = """\
name: staged
model: {model}
engine: endpoint
url: {url}
baseline: {{max_num_seqs: {slots}}}
api: completions
workload:
  arrivals: {{users: {users}}}
  prompts: {{tokens: {{min: 40, max: 80}}}}
  output_tokens: {{min: 32, max: 64, ignore_eos: true}}
  warmup_s: 2
  duration_s: 8
"""


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL and model of a server with four slots."""
    python = environment_folder() / "bin" / "python"
    if not python.exists():
        pytest.fail("no vLLM for the CPU: run scripts/vllm_cpu_env.sh")
    folder = tmp_path_factory.mktemp("convicted")
    model = str(make_model(python, folder / "tiny"))
    engine = VllmEngine(
        ServerLaunch(
            command=(str(python), "-P", "-m", "vllm.entrypoints.openai.api_server",
                     "--model", "{model}"),
            arguments=("--distributed-executor-backend", "uni"),
            environment=ENVIRONMENT, log_folder=folder / "logs", ready_s=240.0,
        )
    )  # fmt: skip
    knobs = Knobs(
        max_num_seqs=SLOTS, max_model_len=2048, block_size=32, kv_cache_memory_bytes=64 * 2**20,
        enforce_eager=True, load_format="dummy", enable_prefix_caching=False,
    )  # fmt: skip
    with engine.start(Configuration(model, knobs, engine="vllm")) as endpoint:
        yield endpoint._replicas[0].url, model


def measured(folder: Path, url: str, model: str, users: int) -> Summary:
    file = folder / "study.yaml"
    file.write_text(STUDY.format(url=url, model=model, users=users, slots=SLOTS))
    (run,) = plan_runs(plan_of(load_study(file)))[:1]
    stored = carry_out(run, folder / "run", engine_named("endpoint"), SilentWatch())
    assert stored.failure is None, stored.failure
    assert stored.summary is not None
    return stored.summary


def test_a_full_batch(tmp_path: Path, vllm: tuple[str, str]) -> None:
    found = measured(tmp_path, *vllm, users=16)
    print(found.binding_limit, dict(found.accounting))
    check_account(found)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("batch ceiling: max_num_seqs 4 is full with 1")
    assert found.accounting["queue"] > 0.5 * (found.e2e_s.mean or 0)


def test_a_proxy_that_delays(tmp_path: Path, vllm: tuple[str, str]) -> None:
    url, model = vllm
    with proxied(url, 0.15) as slow:
        found = measured(tmp_path, slow, model, users=3)
    print(found.binding_limit, dict(found.accounting))
    check_account(found)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("network or proxy: ")
    assert found.accounting["network_http"] > 0.14
