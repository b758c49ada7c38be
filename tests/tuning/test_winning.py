"""What a user takes away runs what was measured."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.tuning.winning import compose, serve_command, serve_script

ONE = Configuration(
    "Qwen/Qwen3-4B", Knobs(max_num_seqs=128), engine="vllm", engine_version="0.21.0",
    gpu="H200-SXM",
    launch=Launch(environment={"HF_TOKEN": None, "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}),
)  # fmt: skip
STUDY: Any = SimpleNamespace(name="chat")


def test_the_script_has_the_environment_and_asks_for_what_is_taken_from_it() -> None:
    script = serve_script(ONE)
    assert "export VLLM_ATTENTION_BACKEND=FLASH_ATTN\n" in script
    assert ': "${HF_TOKEN:?set it}"\n' in script
    assert script.endswith("exec vllm serve Qwen/Qwen3-4B --max-num-seqs 128 --port 8000\n")


def test_replicas_are_servers_of_their_own_as_they_were_measured() -> None:
    pair = replace(ONE, knobs=Knobs(data_parallel_size=2, tensor_parallel_size=2), gpus=4)
    script = serve_script(pair)
    assert "--data-parallel-size" not in script
    servers = [line for line in script.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES")]
    assert [line.split()[0] for line in servers] == [
        "CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=2,3",
    ]  # fmt: skip
    assert [line.split("--port ")[1] for line in servers] == ["8000 &", "8001 &"]
    assert "round-robin" in script


def test_a_program_of_the_users_own_is_the_one_that_is_started() -> None:
    own = replace(ONE, launch=Launch(command=("/opt/vllm", "serve", "{model}")))
    assert serve_command(own).startswith("/opt/vllm serve Qwen/Qwen3-4B ")


def test_compose_is_the_exported_file_or_none(tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.mkdir()
    text = compose(STUDY, replace(ONE, model=str(model)))
    assert text is not None
    server = yaml.safe_load(text)["services"]["vllm-0"]
    assert server["image"] == "vllm/vllm-openai:v0.21.0"
    assert server["volumes"] == [f"{model}:{model}:ro"]
    assert server["environment"]["VLLM_ATTENTION_BACKEND"] == "FLASH_ATTN"
    assert compose(STUDY, replace(ONE, engine_version=None)) is None, "no release is known"
    assert compose(STUDY, replace(ONE, engine="llamacpp")) is None
