"""Pools by class in exported files: every pool is there, with its own GPUs, ports and flags."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ridgeline.cli.export import export
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Pool, Router
from ridgeline.engines.exporting.checks import check_pools
from ridgeline.engines.exporting.deployment import Start, deployments_of
from ridgeline.engines.exporting.rendering import FILES, files_of

POOLS = (
    Pool("chat", ("chat",), Knobs(data_parallel_size=2, max_num_seqs=32)),
    Pool("offline", ("batch", "night"), Knobs(tensor_parallel_size=2, max_num_seqs=256)),
)
APART = Configuration(
    "Qwen/Qwen3-4B", Knobs(), engine="vllm", engine_version="0.21.0", gpu="H200-SXM", gpus=4,
    launch=Launch(router=Router()), pools=POOLS,
)  # fmt: skip
WANTED = deployments_of("Mixed", APART, start=Start(97.0, "measured"))


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("target", tuple(FILES))
def test_what_is_exported_has_nothing_wrong(target: str, routed: bool) -> None:
    served = APART if routed else replace(APART, launch=None)
    wanted = deployments_of("Mixed", served, start=Start(97.0, "measured"))
    files = files_of(wanted, target)
    assert len(files) == (1 if target in ("compose", "kubernetes") else 2)
    for name, text in files.items():
        assert check_pools(text, target, wanted) == (), name
    told = "".join(files.values())
    assert "pool chat: for the requests of chat, and no others" in told
    assert "pool offline: for the requests of batch and night, and no others" in told


def test_pools_on_one_host_share_no_gpu_and_no_port() -> None:
    body = yaml.safe_load(files_of(WANTED, "compose")["compose.yaml"])
    services = body["services"]
    ids = {
        name: one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, one in services.items() if "deploy" in one
    }  # fmt: skip
    assert ids == {
        "vllm-chat-0": ["0"], "vllm-chat-1": ["1"], "vllm-offline-0": ["2", "3"],
    }  # fmt: skip
    ports = [one["ports"][0] for one in services.values()]
    assert len(set(ports)) == len(ports) == 5
    line = services["router-offline"]["command"][0]
    assert "http://vllm-offline-0:8000" in line
    assert "chat" not in line
    flags = services["vllm-offline-0"]["command"]
    assert flags[flags.index("--max-num-seqs") + 1] == "256"


def test_a_cluster_has_a_service_for_each_pool() -> None:
    text = files_of(WANTED, "kubernetes")["kubernetes.yaml"]
    bodies = list(yaml.safe_load_all(text))
    services = {b["metadata"]["name"]: b for b in bodies if b["kind"] == "Service"}
    assert {"mixed-chat", "mixed-offline"} <= set(services)
    sets = [b for b in bodies if b["kind"] == "StatefulSet"]
    assert [b["spec"]["replicas"] for b in sets] == [2, 1]
    names = [b["metadata"]["name"] for b in bodies if b["kind"] in ("StatefulSet", "Deployment")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("target", "old", "new", "words"),
    [
        ("compose", '["1"]', '["2"]', "two servers share a GPU"),
        ("compose", '"256"', '"64"', "pool offline: vllm-offline-0: --max-num-seqs 64"),
        ("compose", '["2", "3"]', '["2"]', "pool offline: vllm-offline-0: 1 GPUs"),
        ("compose", "#\n", "# hf_abcdefghijklmnopqrstuvwxyz0123456789\n", "a secret stands"),
        ("compose", "start_period: 254s", "start_period: 9s", "pool chat: vllm-chat-0: healthchec"),
        ("kubernetes", "replicas: 2", "replicas: 3", "pool chat: 3 GPUs"),
        ("kubernetes", "nvidia.com/gpu: 2", "nvidia.com/gpu: 1", "pool offline: mixed-offline"),
        ("kubernetes", "failureThreshold: 26", "failureThreshold: 3", "startupProbe"),
        ("skypilot", "name: mixed-offline", "name: other", "it is of none of the pools"),
        ("modal", '"H200:2"', '"H200:1"', "1 GPUs, the configuration needs 2"),
    ],
)  # fmt: skip
def test_a_seeded_mistake_is_told_with_its_pool(
    target: str, old: str, new: str, words: str
) -> None:
    texts = [text for text in files_of(WANTED, target).values() if old in text]
    assert texts, f"{old} is in no file"
    problems = check_pools(texts[0].replace(old, new, 1), target, WANTED)
    assert any(words in problem for problem in problems), problems


def test_an_image_whose_tag_moves_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H100-SXM}\n"
        "workload: {arrivals: {users: 4}}\n"
    )
    image = "vllm/vllm-openai:latest"
    assert export(file, to=["compose"], image=image, out=tmp_path / "d") == 0
    assert f"note: the tag of {image} moves" in capsys.readouterr().err
    assert export(file, to=["compose"], image="vllm/vllm-openai:v0.21.0", out=tmp_path / "d") == 0
    assert "the tag of" not in capsys.readouterr().err
