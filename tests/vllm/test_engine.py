"""The vLLM adapter starts, reads and stops the real engine, and tells why it does not start."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from real_vllm import ENVIRONMENT

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.workload.schedule import draw_schedule

pytestmark = pytest.mark.vllm

KV_BYTES = 64 * 2**20
KNOBS = Knobs(
    max_num_seqs=4, max_model_len=2048, block_size=32, kv_cache_memory_bytes=KV_BYTES,
    enforce_eager=True, load_format="dummy",
)  # fmt: skip
# key and value (2), 2 layers, 2 heads of 64 numbers of 2 bytes each
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 64 * 2


def engine_of(python: Path, folder: Path) -> VllmEngine:
    module = ("-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}")
    return VllmEngine(
        ServerLaunch(
            command=(str(python), *module),
            arguments=("--distributed-executor-backend", "uni"),
            environment=ENVIRONMENT,
            log_folder=folder / "logs",
            ready_s=240.0,
        )
    )


def failing_start(engine: VllmEngine, model: Path) -> RunFailed:
    impossible = KNOBS.with_changes({"max_num_batched_tokens": 2})
    with (
        pytest.raises(RunFailed) as failed,
        engine.start(Configuration(str(model), impossible, engine="vllm")),
    ):
        pass
    return failed.value


@pytest.fixture(scope="module")
def refusal(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[RunFailed]]:
    """A start that fails: it has the core that the start of the other test leaves idle."""
    engine = engine_of(vllm_python, tmp_path_factory.mktemp("refusal"))
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(failing_start, engine, tiny_model)


@pytest.mark.usefixtures("refusal")
def test_it_serves_the_configuration_and_leaves_nothing_behind(
    vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    engine = engine_of(vllm_python, tmp_path)
    workload = Workload(
        Arrivals(users=12), Prompts(Lengths(64)), Outputs(Lengths(32), ignore_eos=True),
        requests=36, warmup_s=0.0,
    )  # fmt: skip
    sink = MemorySink()
    with engine.start(Configuration(str(tiny_model), KNOBS, engine="vllm")) as endpoint:
        facts = endpoint.drive(DrivePlan(draw_schedule(workload), "salt"), sink, SilentWatch())
    assert [r.failure for r in sink.requests] == [None] * 36
    assert {r.output_tokens for r in sink.requests} == {32}
    (url,) = cast("list[str]", facts.server["urls"])
    (start,) = cast("list[dict[str, float]]", facts.server["replicas"])
    assert start["kv_tokens"] == KV_BYTES // KV_BYTES_PER_TOKEN
    assert 0 < start["healthy_s"] <= start["ready_s"]
    assert most_at_once(sink) == 4, "max_num_seqs was handed on and acted"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=5)


def most_at_once(sink: MemorySink) -> int:
    """The most requests that were generating (first to last chunk) at the same moment."""
    edges = []
    for record in sink.requests:
        assert record.first_ns is not None
        assert record.last_ns is not None
        edges += [(record.first_ns, 1), (record.last_ns, -1)]
    running = most = 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    return most


def test_a_start_that_fails_quotes_the_engine(refusal: Future[RunFailed]) -> None:
    failed = refusal.result()
    assert "batch_config" in str(failed)
    assert "must be greater than or equal to max_num_seqs" in str(failed)
    assert failed.fix == "raise max_num_batched_tokens or lower max_num_seqs"
