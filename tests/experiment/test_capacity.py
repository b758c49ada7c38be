"""What fits, told before anything runs; and the size that an engine's own log tells."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.errors import BadInput, RidgelineError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.capacity import memory_of, missing_bytes
from ridgeline.experiment.planning import plan
from ridgeline.experiment.predicting import Predictor

LOG_21 = "INFO GPU KV cache size: {tokens} tokens\nINFO Maximum concurrency for 4,096 tokens: 9x\n"


def host(gpu: str = "H100-SXM", **knobs: object) -> Configuration:
    return Configuration(
        "Qwen3-4B", Knobs().with_changes({"max_model_len": 4096, **knobs}), gpu=gpu
    )


def load(users: int, prompt: int, output: int, seconds: float = 4.0) -> Workload:
    return Workload(
        Arrivals(users=users), Prompts(Lengths(prompt)), Outputs(Lengths(output)),
        duration_s=seconds, warmup_s=1.0,
    )  # fmt: skip


def test_a_start_for_max_num_seqs_comes_from_the_pool() -> None:
    """400 000 tokens, 1024 in, 512 out: 400 000 / (1024 + 512 / 2) = 312 running."""
    found = memory_of(twin_of(host(num_gpu_blocks_override=25_001)), load(400, 1024, 512))
    assert found.kv_tokens == 400_000
    assert found.running == pytest.approx(312.5)
    assert "start with max_num_seqs 312" in found.notes[0]


def test_more_slots_than_the_pool_holds_are_told_and_preempt() -> None:
    """256 streams in room for 72 of mean length: the arithmetic first, then preemptions."""
    # 72 requests of 768 + 256 tokens
    configuration = host(
        "A10G", num_gpu_blocks_override=72 * 64 + 1, max_num_seqs=256, max_model_len=2048
    )
    traffic = load(256, 768, 256, seconds=20.0)
    found = memory_of(twin_of(configuration), traffic)
    assert found.requests == 72
    assert found.first_limit.startswith("KV memory: 72 requests of 1024 tokens fit, then preempt")
    assert found.notes == (
        "max_num_seqs 256 is more than fit: 256 x 896 tokens (half of the answer) are"
        " 229\u2009376, the pool holds 73\u2009728; start with max_num_seqs 82",
    )
    predicted = Predictor(Slo())(configuration, traffic, {})
    assert predicted.preemptions
    few = configuration.knobs.with_changes({"max_num_seqs": 72})
    assert Predictor(Slo())(replace(configuration, knobs=few), traffic, {}).preemptions == 0


@pytest.mark.parametrize("tokens", [300_000, 600_000])
def test_the_log_s_size_is_taken_and_carried_over_to_other_settings(tokens: int) -> None:
    configuration = host()
    planned = twin_of(configuration)
    shift = missing_bytes(planned, LOG_21.format(tokens=f"{tokens:,}"), "vllm.log")
    predict = Predictor(Slo(), shift)
    with predict.engine(configuration).start(configuration) as endpoint:
        assert endpoint.twin.memory.kv_tokens == pytest.approx(tokens, abs=32)
    # Under FP8 the plan frees 3.63 GB (its linear weights at one byte less), whatever the log said.
    fp8 = host(quantization="fp8")
    with predict.engine(fp8).start(fp8) as endpoint:
        more = (endpoint.twin.memory.kv_tokens - tokens) * 147_456
        assert more == pytest.approx(3.633e9, rel=0.01)


def test_a_pool_below_one_full_request_is_refused_with_the_way_out() -> None:
    """20 000 tokens for prompts of up to 32 768: nothing of that length can ever run."""
    long = host(max_model_len=32_768)
    log = LOG_21.format(tokens="20,000")
    with pytest.raises(RidgelineError, match="estimated maximum model length is 200"):
        plan(long, load(4, 128, 32), Slo(), top=1, log=(log, "log"))


def test_a_log_without_the_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no line with the KV cache's size"):
        missing_bytes(twin_of(host()), "INFO Starting\n", "vllm.log")


STUDY = """\
name: s
model: Qwen3-4B
hardware: {gpu: %s, count: 2}
workload:
  {arrivals: {users: 4}, prompts: {tokens: %s}, output_tokens: 16, duration_s: 2, warmup_s: 1}
baseline: %s
"""


@pytest.mark.parametrize(
    ("gpu", "prompt", "knobs", "words"),
    [
        ("H100", "128", "{max_model_len: 4096, tensor_parallel_size: 3}", "2 GPUs|count|divisible"),
        ("H1000", "128", "{}", "unknown GPU 'H1000' .did you mean"),
        ("H100", "0", "{}", "prompts.tokens"),
        ("H100", "99999999", "{}", "prompts.tokens"),
        ("H100", "4096", "{max_model_len: 2048}", "max_model_len"),
        ("H100", "128", "{max_num_seqs: 512, max_num_batched_tokens: 256}", "greater than or"),
        ("H100", "128", "{enable_chunked_prefill: false, max_num_batched_tokens: 512}",
         "smaller than max_model_len"),
        ("A100-SXM-80GB", "128", "{quantization: fp8}", "no fp8 tensor cores"),
        ("L4", "128", "{max_model_len: 40960, gpu_memory_utilization: 0.5}", "KV cache is needed"),
        ("H100", "128", "{kv_cache_dtype: int4}", "engine calls it int4_per_token_head"),
        ("H100", "128", "{pipeline_parallel_size: 2}", "does not model pipeline parallelism"),
        ("H100", "128", "{gpu_memory_utilization: 0.05}", "no available memory"),
        ("H100", "128", "{watermark: 0.1}", "does not exist in release 0.21"),
        ("H100", "128", "{max_model_len: 999999}", "above the model's own limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    gpu: str,
    prompt: str,
    knobs: str,
    words: str,
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY % (gpu, prompt, knobs))
    assert run(["plan", str(path), "--top", "1"]) in (2, 3)
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1, told
    assert re.search(words, told), told


def test_the_page_fits_80_columns_and_names_the_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path, log = tmp_path / "study.yaml", tmp_path / "vllm.log"
    path.write_text(STUDY % ("H100", "128", "{max_model_len: 4096, max_num_seqs: 8}"))
    log.write_text(LOG_21.format(tokens="300,000"))
    assert run(["plan", str(path), "--top", "2", "--explain", "--log", str(log)]) == 0
    shown, said = capsys.readouterr()
    # where nobody can watch a line change, each part of the search is told once
    assert [line for line in said.splitlines() if line.startswith("planning: single changes")]
    assert 3 <= len([line for line in said.splitlines() if line.startswith("planning: ")]) <= 6
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "by the engine's log" in shown
    # A band's ends, in the unit of the figure: a symmetric ± beyond 100 % would be no band.
    assert "±" not in shown
    ends = re.findall(r"\(([\d.\u2009]+)–([\d.\u2009]+) ms\)", shown)
    assert len(ends) >= 6
    plain = [[float(n.replace("\u2009", "")) for n in pair] for pair in ends]
    assert all(0 < low < high for low, high in plain)
    assert "the 2 best candidates" in shown
    for words in ("waiting for kernel launches", "all-reduces", "waiting in the queue", "1: "):
        assert words in shown


def test_the_limit_that_is_named_is_a_line_of_the_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory bandwidth stands for several parts; none of them alone has the share that is told."""
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "study.yaml"
    path.write_text(STUDY % ("H100", "128", "{max_model_len: 4096, max_num_seqs: 8}"))
    assert run(["plan", str(path), "--top", "1", "--explain"]) == 0
    shown = capsys.readouterr().out.split("Where the time goes: the baseline")[1]
    limit = re.search(r"bound by memory bandwidth \((\d+) %\)", shown)
    line = re.search(r"memory bandwidth: .* together\s+([\d.]+)%", shown)
    assert limit is not None
    assert line is not None
    assert round(float(line[1])) == int(limit[1])
