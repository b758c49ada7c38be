"""`ridgeline init`: a running command becomes a study file that validates and keeps no secret."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.errors import BadInput
from ridgeline.experiment.engines import refusal
from ridgeline.workload.serve_command import parse_serve_command
from ridgeline.workload.study import Study
from ridgeline.workload.studyfile import load_study, parse_study


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What `init ... --out -` prints: file and messages."""
    assert run(["init", *arguments, "--out", "-"]) == 0
    found = capsys.readouterr()
    return found.out, found.err


def study_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Study:
    return parse_study(made(capsys, *arguments)[0])


@pytest.mark.parametrize(
    ("flags", "knobs"),
    [
        ("--max-num-seqs 64", {"max_num_seqs": 64}),
        ("--max-num-seqs=64", {"max_num_seqs": 64}),
        ("--max_num_seqs 64", {"max_num_seqs": 64}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--enable-prefix-caching", {"enable_prefix_caching": True}),
        ("--enable-chunked-prefill=False", {"enable_chunked_prefill": False}),
        ("--enforce-eager", {"enforce_eager": True}),
        ("-tp 2 -dp 4", {"tensor_parallel_size": 2, "data_parallel_size": 4}),
        ("-tp=2 -pp 1", {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}),
        ("-O3", {"optimization_level": 3}),
        ("-O 1", {"optimization_level": 1}),
        ("--max-model-len 1k", {"max_model_len": 1000}),
        ("--max-model-len 1K", {"max_model_len": 1024}),
        ("--max-model-len 25.6k", {"max_model_len": 25600}),
        ("--max-num-batched-tokens 8K", {"max_num_batched_tokens": 8192}),
        ("--kv-cache-memory-bytes 2G", {"kv_cache_memory_bytes": 2 << 30}),
        ("--gpu-memory-utilization 0.95", {"gpu_memory_utilization": 0.95}),
        ("--kv-cache-dtype fp8 --quantization fp8",
         {"kv_cache_dtype": "fp8", "quantization": "fp8"}),
        ("--cudagraph-capture-sizes 1 2 4 8", {"cudagraph_capture_sizes": (1, 2, 4, 8)}),
        ("""--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""",
         {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
        ("--speculative-config.method eagle --speculative-config.num_speculative_tokens 3",
         {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}}),
        ("--spec-method ngram --spec-tokens 2",
         {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}),
    ],
)  # fmt: skip
def test_flags_become_knobs(flags: str, knobs: dict[str, Any]) -> None:
    found = parse_serve_command(f"vllm serve Qwen/Qwen3-4B {flags}")
    assert found.knobs == knobs
    assert found.model == "Qwen/Qwen3-4B"
    assert found.unknown == ()
    # The model may stand anywhere.
    if not flags.startswith("--cudagraph"):
        assert parse_serve_command(f"vllm serve {flags} Qwen/Qwen3-4B") == found


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m --max-num-seqs 8",
        "CUDA_VISIBLE_DEVICES=0 nohup /opt/venv/bin/vllm serve m --max-num-seqs 8 > log 2>&1 &",
        "vllm serve m \\\n  --max-num-seqs 8",
        "python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs=8",
        "docker run --gpus all --shm-size 8g -p 8000:8000 vllm/vllm-openai:v0.21.0"
        " --model m --max-num-seqs 8",
        "vllm serve --max-num-seqs 8 --model m && echo ready",
    ],
)
def test_the_forms_of_a_command(command: str) -> None:
    found = parse_serve_command(command)
    assert (found.model, found.knobs, found.unknown) == ("m", {"max_num_seqs": 8}, ())


SECRETS = [
    "vllm serve m --api-key S3CRET",
    "vllm serve m --api-key=S3CRET",
    "vllm serve m --api-key S3CRET S3CRET2 --port 1",
    "vllm serve m --hf-token S3CRET",
    "vllm serve --port 1 m --api_key S3CRET",
    "HF_TOKEN=S3CRET vllm serve m",
    "VLLM_API_KEY=S3CRET vllm serve m",
    "OTHER=S3CRET vllm serve m",
    "docker run -e HF_TOKEN=S3CRET -e 'X=S3CRET' vllm/vllm-openai --model m",
    "vllm serve m --some-auth-token S3CRET --some-password=S3CRET",
    "vllm serve m S3CRET",
]


@pytest.mark.parametrize("command", SECRETS)
def test_secrets_are_never_written(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, messages = made(capsys, "--from", command)
    assert "S3CRET" not in text + messages


def test_harmless_and_unknown_options_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve Qwen/Qwen3-4B --port 8000 --served-model-name a b --max-num-rows 3"
    text, messages = made(capsys, "--from", f"{command} --wonder-flag 7")
    assert "#   --port 8000" in text
    assert "#   --served-model-name a b" in text
    assert messages.count("\n") == 1
    assert "--max-num-rows 3 (did you mean max-num-seqs?)" in messages
    assert "--wonder-flag 7" in messages
    assert "port" not in messages
    assert parse_study(text).baseline.configuration.knobs.given() == {}


def test_the_file_is_the_running_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of(
        capsys, "--from",
        "vllm serve Qwen/Qwen3-4B --max-num-seqs 64 -dp 4 --no-enable-prefix-caching",
        "--gpu", "h200 sxm",
    )  # fmt: skip
    base = study.baseline.configuration
    assert (base.model, base.gpu, base.gpus) == ("Qwen/Qwen3-4B", "H200-SXM", 4)
    assert base.knobs.given() == {
        "max_num_seqs": 64, "enable_prefix_caching": False, "data_parallel_size": 4,
    }  # fmt: skip
    changes = {e.name: e.change for e in study.experiments[1:]}
    assert changes["seqs-128"] == "max_num_seqs 64 -> 128"
    assert "max_cudagraph_capture_size" in changes["capture-1024"]
    assert "fp8" in changes


@pytest.mark.parametrize(
    ("arguments", "experiments"),
    [
        (["--model", "Qwen/Qwen3-4B"], ["capture-1024", "fp8"]),
        (["--model", "Qwen/Qwen3-4B", "--gpu", "A100-SXM-80GB"], ["capture-1024"]),
        (["--from", "vllm serve m --enforce-eager"], ["graphs", "fp8"]),
        (["--from", "vllm serve m-FP8 --max-cudagraph-capture-size 1024"], ["budget-4096"]),
    ],
)
def test_what_is_tried_first_fits_the_start(
    arguments: list[str], experiments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_of(capsys, *arguments)
    assert [e.name for e in study.experiments[1:]] == experiments


@pytest.mark.parametrize(
    "model", ["../odd dir/my model", "123", "no", "a: b", "ünï/cöde", "x" * 99]
)
def test_odd_model_names_survive(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of(capsys, "--model", model)
    assert study.model == (str(Path(model).resolve()) if model.startswith("../") else model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --from"),
        (["--model", "m", "--from", "vllm serve m"], "give either --from"),
        (["--from", "ollama run llama"], "is no vLLM serve command"),
        (["--from", "vllm serve --max-num-seqs 4"], "names no model"),
        (["--from", "vllm serve m --max-num-seqs"], "--max-num-seqs needs a value"),
        (["--from", "vllm serve m --max-num-seqs many"], "needs a whole number, not 'many'"),
        (["--from", "vllm serve m --max-num-seqs 1k"], "needs a whole number, not '1k'"),
        (["--from", "vllm serve m --max-num-seq 64"], "no option (did you mean --max-num-seqs?)"),
        (["--from", "vllm serve m --max-num-sesq=64"], "no option (did you mean --max-num-seqs?)"),
        (["--from", "vllm serve m --gpu-memory-utilization x"], "needs a number"),
        (["--from", "vllm serve m --gpu-memory-utilization 92"], "<= 1 (share of the memory)"),
        (["--from", "vllm serve m --speculative-config '{'"], "needs JSON"),
        (["--from", "vllm serve m 'open"], "cannot be split into words"),
        (["--model", "m", "--gpu", "H100-SMX"], "did you mean 'H100-SXM'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", *arguments, "--out", "-"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message


@pytest.mark.parametrize(
    ("arguments", "engine", "gone", "words"),
    [
        (["--model", "Qwen/Qwen3-4B"], "twin", None, ""),
        (["--model", "some/model-that-nobody-knows"], "vllm", None, "unknown model"),
        (["--from", "vllm serve Qwen/Qwen3-4B -pp 2"], "vllm", None, "pipeline parallelism"),
        (["--from", "vllm serve Qwen/Qwen3-4B --enable-expert-parallel"], "vllm", None,
         "expert parallelism"),
        (["--from", "vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.5"], "vllm", None,
         "no available memory for the cache blocks"),
        (["--from", "vllm serve Qwen/Qwen3-4B --max-model-len 512"], "twin", None, ""),
        (["--from", "vllm serve Qwen/Qwen3-4B --max-num-seqs 5000"], "twin", "seqs-10000",
         "left out experiment seqs-10000"),
    ],
)  # fmt: skip
def test_what_is_written_can_run(
    arguments: list[str],
    engine: str,
    gone: str | None,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, messages = made(capsys, *arguments)
    study = parse_study(text)
    assert study.engine == engine
    assert words in messages
    assert messages.count("\n") == bool(words)
    assert [refusal(spec) for spec in study.experiments] == [None] * len(study.experiments)
    assert gone is None or gone not in [spec.name for spec in study.experiments]
    assert gone is None or f"# - {{name: {gone}" in text


def test_a_model_that_needs_more_gpus_gets_them(capsys: pytest.CaptureFixture[str]) -> None:
    text, messages = made(capsys, "--model", "Qwen/Qwen3-32B", "--gpu", "A100-SXM-40GB")
    study = parse_study(text)
    assert study.engine == "twin"
    assert (study.baseline.configuration.gpus or 1) > 1
    assert refusal(study.baseline) is None
    assert "does not fit on one" in messages


def test_a_file_is_not_overwritten_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.yaml"
    assert run(["init", "--model", "Qwen/Qwen3-4B", "--out", str(path)]) == 0
    assert load_study(path).model == "Qwen/Qwen3-4B"
    assert run(["init", "--model", "other", "--out", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert load_study(path).model == "Qwen/Qwen3-4B"
    assert run(["init", "--model", "other", "--out", str(path), "--force"]) == 0
    assert load_study(path).model == "other"
    assert run(["init", "--model", "m", "--out", str(tmp_path / "no" / "s.yaml")]) == 2


def test_max_model_len_auto_is_said_not_guessed() -> None:
    found = parse_serve_command("vllm serve m --max-model-len auto")
    assert found.knobs == {}
    assert found.unknown == ("--max-model-len auto (give the length as a number)",)


def test_a_suffix_with_a_fraction_must_stay_whole() -> None:
    with pytest.raises(BadInput, match="no whole number"):
        parse_serve_command("vllm serve m --max-model-len 1.5K")


def test_init_is_a_command_of_its_own(tmp_path: Path) -> None:
    """The installed command line, in a fresh process and an empty folder."""
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline.cli.main", "init", "--model", "Qwen/Qwen3-4B"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == ""
    assert load_study(tmp_path / "study.yaml").name == "Qwen3-4B"
