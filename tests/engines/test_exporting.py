"""Exported files, held against the configuration; and what a person may have broken in them."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.engines.exporting.checks import check
from ridgeline.engines.exporting.deployment import Deployment, Start, deployment_of, is_pinned
from ridgeline.engines.exporting.rendering import FILES, render

MEASURED = Start(97.0, "measured")
PAIR = Configuration(
    "Qwen/Qwen3-4B",
    Knobs(
        max_num_seqs=64, max_cudagraph_capture_size=1024, enable_prefix_caching=False,
        tensor_parallel_size=2, data_parallel_size=2,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
    ),
    engine="vllm", engine_version="0.21.0", gpu="H200-SXM", gpus=4,
    launch=Launch(environment={"HF_TOKEN": None, "VLLM_USE_FLASHINFER_SAMPLER": "0"}),
)  # fmt: skip
TARGETS = tuple(FILES)


def deployment(configuration: Configuration = PAIR, **more: object) -> Deployment:
    return deployment_of("Chat, 400 users", configuration, start=MEASURED, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_exported_has_nothing_wrong(target: str) -> None:
    assert check(render(deployment(), target), target, deployment()) == ()
    routed = replace(PAIR, launch=Launch(router=Router(policy="cache_aware")))
    assert check(render(deployment(routed), target), target, deployment(routed)) == ()


@pytest.mark.parametrize("target", TARGETS)
def test_every_flag_the_secrets_names_and_no_value_are_in_the_file(target: str) -> None:
    text = render(deployment(revision="a1b2c3"), target)
    for word in ("--max-num-seqs", "--no-enable-prefix-caching", "--tensor-parallel-size",
                 "--revision", "a1b2c3", "VLLM_API_KEY", "HF_TOKEN", "ngram",
                 "vllm/vllm-openai:v0.21.0"):  # fmt: skip
        assert word in text, word
    assert "--data-parallel-size" not in text, "one server for each replica, as it was measured"


def test_compose_gives_every_server_its_own_gpus_and_a_port_of_the_loopback() -> None:
    body = yaml.safe_load(render(deployment(), "compose"))
    servers = body["services"]
    ids = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
           for s in servers.values()]  # fmt: skip
    assert ids == [["0", "1"], ["2", "3"]]
    assert [s["ports"] for s in servers.values()] == [
        ["127.0.0.1:8000:8000"], ["127.0.0.1:8001:8000"],
    ]  # fmt: skip
    environment = servers["vllm-0"]["environment"]
    assert environment["HF_TOKEN"] == "${HF_TOKEN:?set it}"
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert servers["vllm-0"]["healthcheck"]["start_period"] == "254s"  # 2 x 97 + 60


def test_a_router_stands_before_the_servers_and_has_the_only_first_port() -> None:
    routed = replace(PAIR, launch=Launch(router=Router(policy="cache_aware")))
    services = yaml.safe_load(render(deployment(routed), "compose"))["services"]
    (line,) = services["router"]["command"]
    assert "--policy cache_aware" in line
    assert "--worker-urls http://vllm-0:8000 http://vllm-1:8000" in line
    assert services["router"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["vllm-1"]["ports"] == ["127.0.0.1:8002:8000"]
    kinds = [d["kind"] for d in yaml.safe_load_all(render(deployment(routed), "kubernetes"))]
    assert kinds == ["StatefulSet", "Service", "Deployment", "Service"]
    assert "http://chat-400-users-1.chat-400-users-pods:8000" in render(
        deployment(routed), "kubernetes"
    )


@pytest.mark.parametrize(("target", "old", "new", "word"), [
    ("compose", 'device_ids: ["2", "3"]', 'device_ids: ["2"]', "3 GPUs, the configuration nee"),
    ("compose", 'device_ids: ["2", "3"]', 'device_ids: ["1", "2"]', "two servers share a GPU"),
    ("compose", "${VLLM_API_KEY:?set it}", "letmein", "in clear: vllm-0: VLLM_API_KEY"),
    ("compose", "start_period: 254s", "start_period: 30s", "allows 60 s, a start takes 97 s"),
    ("compose", ":v0.21.0", ":latest", "is not pinned"),
    ("compose", '"64"', '"32"', "--max-num-seqs 32, the configuration has 64"),
    ("compose", '      - "--no-enable-prefix-caching"\n', "", "caching is missing"),
    ("kubernetes", "nvidia.com/gpu: 2", "nvidia.com/gpu: 1", "2 GPUs, the configuration needs 4"),
    ("kubernetes", "replicas: 2", "replicas: 3", "6 GPUs, the configuration needs 4"),
    ("kubernetes",
     "valueFrom:\n                secretKeyRef: {name: chat-400-users, key: HF_TOKEN}",
     'value: "hunter2"', "in clear: chat-400-users, container vllm: HF_TOKEN"),
    ("kubernetes", "failureThreshold: 26", "failureThreshold: 3", "allows 30 s, a start takes 97"),
    ("skypilot", "H200:2", "H200:1", "2 GPUs, the configuration needs 4"),
    ("skypilot", "HF_TOKEN: null", "HF_TOKEN: hf_0123456789abcdefghij", "in clear: secrets"),
    ("skypilot", "initial_delay_seconds: 254", "initial_delay_seconds: 20", "allows 20 s, a start"),
    ("modal", '"H200:2"', '"H200:8"', "16 GPUs, the configuration needs 4"),
    ("modal", 'modal.Secret.from_name("chat-400-users")',
     'modal.Secret.from_dict({"HF_TOKEN": "hunter2"})', "in clear: Secret.from_dict"),
    ("modal", "startup_timeout=254", "startup_timeout=60", "allows 60 s, a start takes 97 s"),
    ("modal", "min_containers=2", "min_containers=1", "2 GPUs, the configuration needs 4"),
    ("modal", '"Qwen/Qwen3-4B"', '"Qwen/Qwen3-32B"', "it serves Qwen/Qwen3-32B"),
    ("modal", '"H200:2"', '"A10:2"', "gpu: A10, the configuration is for H200"),
    ("modal", "Popen([*COMMAND, ", 'Popen(["sleep", "9", ', "it does not start COMMAND"),
    ("modal", "import modal\n", "import modal, os\nos.environ['VLLM_API_KEY'] = 'letmein'\n",
     "in clear: VLLM_API_KEY"),
    ("compose", "Qwen/Qwen3-4B", "Qwen/Qwen3-32B", "it serves Qwen/Qwen3-32B"),
    ("compose", '"64"', '"64"\n      - "--enforce-eager"', "--enforce-eager is not in the config"),
    ("compose", '"64"', '"64"\n      - "--max_num_seqs"\n      - "8"', "more than once"),
    ("compose", ":v0.21.0", ":nightly-cu130", "is not pinned"),
    ("compose", ":v0.21.0", ":v0.20.0", "the configuration is for vllm/vllm-openai:v0.21.0"),
    ("compose", "127.0.0.1:8000:8000", "8000:8000", "reachable from outside"),
    ("compose", "${HF_TOKEN:?set it}", "${HF_TOKEN:-mysecret}", "in clear: vllm-0: HF_TOKEN"),
    ("compose", "${HF_TOKEN:?set it}", "$$ecretvalue", "in clear: vllm-0: HF_TOKEN"),
    ("compose", "    deploy:\n", "    deploy:\n      replicas: 2\n", "copies of one server share"),
    ("compose", 'entrypoint: ["vllm", "serve"]', 'entrypoint: ["sleep"]', "does not run"),
    ("kubernetes", "type: ClusterIP", "type: LoadBalancer", "reachable from outside the cluster"),
    ("kubernetes", "NVIDIA-H200", "NVIDIA-L4", "NVIDIA-L4, the configuration is for NVIDIA-H200"),
    ("kubernetes", '["vllm", "serve"]', '["vllm", "serve", "--api-key", "abcdefgh"]',
     "in clear: chat-400-users, container vllm: --api-key"),
    ("skypilot", "  accelerators: H200:2\n", "", "0 GPUs, the configuration needs 4"),
    ("skypilot", "num_nodes: 1", "num_nodes: 2", "num_nodes: 2"),
    ("skypilot", "accelerators: H200:2", "accelerators: {L4: 2}", "L4, the configuration"),
])  # fmt: skip
def test_a_mistake_in_a_file_is_caught(target: str, old: str, new: str, word: str) -> None:
    text = render(deployment(), target)
    assert old in text
    problems = check(text.replace(old, new), target, deployment())
    assert any(word in p for p in problems), problems


def test_a_kubernetes_secret_with_its_values_is_caught() -> None:
    text = render(deployment(), "kubernetes")
    text += (
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {VLLM_API_KEY: x}\n"
    )
    assert any("in clear: Secret s" in p for p in check(text, "kubernetes", deployment()))


def test_other_forms_that_a_platform_allows_are_read_too() -> None:
    sky = render(deployment(), "skypilot").replace("H200:2", "{H200: 2}")
    assert check(sky, "skypilot", deployment()) == ()
    compose = render(deployment(), "compose").replace("start_period: 254s", "start_period: 4m14s")
    assert check(compose, "compose", deployment()) == ()


def test_without_a_measured_start_probes_are_not_judged() -> None:
    assumed = deployment_of("Chat, 400 users", PAIR)
    text = render(deployment(), "kubernetes")  # made with a start of 97 s: allows less than 300
    assert check(text, "kubernetes", assumed) == ()


def test_a_dollar_stays_one_in_compose() -> None:
    """Compose replaces $NAME in every value; what was measured had the dollar."""
    priced = replace(PAIR, launch=Launch(environment={"FORMAT": "a$b"}, arguments=("--x", "${y}")))
    text = render(deployment(priced), "compose")
    assert '"a$$b"' in text
    assert '"$${y}"' in text
    assert check(text, "compose", deployment(priced)) == ()


@pytest.mark.parametrize(("target", "old", "new"), [
    ("compose", "retries: 3", "retries: many"),
    ("compose", 'device_ids: ["0", "1"]', "count: all"),
    ("kubernetes", "nvidia.com/gpu: 2", "nvidia.com/gpu: one"),
    ("kubernetes", "periodSeconds: 10", "periodSeconds: ten"),
    ("kubernetes", "  template:\n", "  templates:\n"),
    ("skypilot", "initial_delay_seconds: 254", "initial_delay_seconds: lots"),
    ("skypilot", "vllm serve", "vllm 'serve"),
    ("modal", '"H200:2"', '"H200:x"'),
    ("modal", "startup_timeout=254", 'startup_timeout="254s"'),
])  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(target: str, old: str, new: str) -> None:
    text = render(deployment(), target)
    assert old in text
    with pytest.raises(BadInput) as caught:
        check(text.replace(old, new), target, deployment())
    assert "\n" not in str(caught.value)


def test_a_secret_known_by_its_form_is_caught_wherever_it_stands() -> None:
    text = render(deployment(), "compose") + "# key of the hub: hf_0123456789abcdefghijkl\n"
    assert any("line" in p and "in clear" in p for p in check(text, "compose", deployment()))


@pytest.mark.parametrize("target", TARGETS)
def test_text_that_is_no_such_file_is_said_in_one_line(target: str) -> None:
    with pytest.raises(BadInput, match=r"not YAML|no mapping|not Python") as caught:
        check("services: [\n", target, deployment())
    assert "\n" not in str(caught.value)


def test_an_image_is_pinned_by_a_version_or_a_digest() -> None:
    assert is_pinned("vllm/vllm-openai:v0.21.0")
    assert is_pinned("registry.example:5000/vllm@sha256:0123")
    assert not is_pinned("vllm/vllm-openai")
    assert not is_pinned("vllm/vllm-openai:latest")
    assert not is_pinned("registry.example:5000/vllm")


@pytest.mark.parametrize(("changed", "told"), [
    ({"engine_version": None}, "no version of vLLM is known"),
    ({"engine": "llamacpp"}, "only vLLM's servers are exported"),
    ({"launch": Launch(command=("my-vllm", "serve"))}, "a command of your own"),
])  # fmt: skip
def test_what_cannot_be_written_down_is_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        deployment(replace(PAIR, **changed))  # type: ignore[arg-type]


def test_a_gpu_without_a_name_at_the_platform_is_refused_there_only() -> None:
    card = replace(PAIR, gpu="H100-PCIe")
    assert "NVIDIA-H100-PCIe" in render(deployment(card), "kubernetes")
    with pytest.raises(BadInput, match="what modal calls H100-PCIe is not known"):
        render(deployment(card), "modal")


def test_a_model_in_a_folder_is_mounted_where_it_is(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    local = replace(PAIR, model=str(model))
    assert f'"{model}:{model}:ro"' in render(deployment(local), "compose")
    assert f"hostPath: {{path: {model}, type: Directory}}" in render(
        deployment(local), "kubernetes"
    )
    with pytest.raises(BadInput, match="a folder has no revision"):
        deployment(local, revision="a1b2c3")


def test_what_only_a_measurement_needs_stays_out_and_is_said() -> None:
    """Random weights serve nobody; a share of a GPU was for the engines beside it."""
    measured = replace(
        PAIR, launch=Launch(arguments=("--load-format", "dummy", "--seed", "1"), resident=7)
    )
    with pytest.raises(BadInput, match="random weights in the shape of Qwen/Qwen3-4B"):
        deployment(measured)
    made = deployment(measured, model="org/weights")
    assert made.command[2] == "org/weights"
    assert made.words[-2:] == ("--seed", "1")
    assert "dummy" not in made.words
    assert any("random weights" in note for note in made.notes)
    assert any("one of 7 engines" in note for note in made.notes)
