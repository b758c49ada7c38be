"""Pools by class in exported files: every pool is there, with its own GPUs, ports and flags."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ridgeline.cli.export import export
from ridgeline.cli.main import run
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Pool, Router
from ridgeline.engines.exporting.checks import check_pools
from ridgeline.engines.exporting.deployment import Deployment, Start, deployments_of
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


BEHIND = "mixed-offline-0.mixed-offline-pods"


@pytest.mark.parametrize(
    ("target", "old", "new", "words"),
    [
        # The four mistakes that only pools make possible: another pool's servers, or nobody's.
        ("compose", "--worker-urls http://vllm-offline-0:", "--worker-urls http://vllm-chat-0:",
         "pool offline: router-offline: --worker-urls names vllm-chat-0, which is none of its"),
        ("compose", " http://vllm-chat-1:8000", "",
         "pool chat: router-chat: --worker-urls leaves out vllm-chat-1"),
        ("kubernetes", f"http://{BEHIND}:", "http://mixed-chat-0.mixed-chat-pods:",
         "pool offline: mixed-offline-router: --worker-urls names mixed-chat-0.mixed-chat-pods"),
        ("kubernetes", f"http://{BEHIND}:", "http://mixed-offline-0.other-pods:",
         "pool offline: mixed-offline-router: --worker-urls names mixed-offline-0.other-pods"),
        ("kubernetes", "selector: {app: mixed-chat-r", "selector: {app: mixed-offline-r",
         "pool chat: Service mixed-chat: its selector is of no pods here"),
        ("kubernetes", "selector: {app: mixed-chat-router}", "selector: {app: mixed-chat}",
         "pool chat: Service mixed-chat: it goes past the router"),
        ("kubernetes", "{app: mixed-chat-router}\n    spec", "{app: mixed-chat}\n    spec",
         "Service mixed-chat-pods: its selector is of the pods of mixed-chat and mixed-chat-ro"),
        ("kubernetes", "name: mixed-offline-router", "name: mixed-chat-router",
         "two objects are called Deployment mixed-chat-router"),
    ],
)  # fmt: skip
def test_requests_that_go_to_another_pool_are_told(
    target: str, old: str, new: str, words: str
) -> None:
    (text,) = files_of(WANTED, target).values()
    assert old in text
    problems = check_pools(text.replace(old, new, 1), target, WANTED)
    assert any(words in problem for problem in problems), problems


@pytest.mark.parametrize("wanted", [WANTED, WANTED[:1]])
def test_a_router_that_was_taken_out_is_told(wanted: tuple[Deployment, ...]) -> None:
    (text,) = files_of(wanted, "kubernetes").values()
    bodies = list(yaml.safe_load_all(text))
    routing = [b for b in bodies if b["metadata"]["labels"]["app"] == f"{wanted[-1].label}-router"]
    assert [b["kind"] for b in routing] == ["Deployment", "Service"]
    for gone, words in ((routing, "no router (--worker-urls)"), (routing[1:], "no Service leads")):
        left = yaml.safe_dump_all([b for b in bodies if b not in gone])
        problems = check_pools(left, "kubernetes", wanted)
        assert any(words in problem for problem in problems), problems
    (text,) = files_of(wanted, "compose").values()
    body = yaml.safe_load(text)
    name = "router-offline" if len(wanted) > 1 else "router-chat"
    del body["services"][name]
    problems = check_pools(yaml.safe_dump(body), "compose", wanted)
    assert any("there is no router (--worker-urls) before its servers" in p for p in problems)


# names that were one name, long ones with one beginning, and ones that a file makes of another's
NAMES = [
    ("a_b", "A-B"), ("a_b", "a-b"), ("Chat", "chat"),
    ("latency-bound-interactive-chat", "latency-bound-interactive-batch"),
    ("chat", "chat-router"), ("chat", "chat-pods"), ("chat", "chat-0"), ("router", "pods"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["compose", "kubernetes"])
@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize(("one", "other"), NAMES)
def test_the_names_of_two_pools_never_clash(
    one: str, other: str, routed: bool, target: str
) -> None:
    pools = tuple(replace(p, name=n) for p, n in zip(POOLS, (one, other), strict=True))
    launch = Launch(router=Router()) if routed else None
    wanted = deployments_of("my-study", replace(APART, pools=pools, launch=launch))
    (text,) = files_of(wanted, target).values()
    assert check_pools(text, target, wanted) == ()
    if target == "compose":
        keys = [line for line in text.splitlines() if line.startswith("  ") and line[2] != " "]
        assert len(keys) == len(set(keys)) == (6 if routed else 4)  # with the volume
        return
    bodies = list(yaml.safe_load_all(text))
    assert len({(b["kind"], b["metadata"]["name"]) for b in bodies}) == len(bodies)
    pods = [b["spec"]["template"]["metadata"]["labels"] for b in bodies if "template" in b["spec"]]
    for selector in (b["spec"]["selector"] for b in bodies):
        its = selector.get("matchLabels", selector)
        assert sum(its.items() <= labels.items() for labels in pods) == 1


def test_two_pools_whose_names_would_be_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.engines.exporting.deployment.DIGEST", 0)
    pools = tuple(replace(p, name=n) for p, n in zip(POOLS, ("a_b", "A-B"), strict=True))
    with pytest.raises(BadInput, match="the pools a_b and A-B would both be called"):
        deployments_of("s", replace(APART, pools=pools))


@pytest.mark.parametrize("target", ["compose", "kubernetes"])
def test_a_key_that_is_there_twice_is_told(target: str) -> None:
    (text,) = files_of(WANTED, target).values()
    old = "  vllm-chat-1:" if target == "compose" else "  replicas: 2\n"
    new = "  vllm-chat-0:" if target == "compose" else "  replicas: 2\n  replicas: 2\n"
    with pytest.raises(BadInput, match="is there twice"):
        check_pools(text.replace(old, new, 1), target, WANTED)


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


ORIGINS = """\
name: mixed
model: Qwen/Qwen3-4B
engine: twin
engine_version: 0.21.0
hardware: {gpu: H100-SXM, count: 2}
workload:
  arrivals: {users: 200}
  classes:
    chat: {share: 0.8, prompts: {tokens: 64}, output_tokens: {max: 16}}
    batch: {share: 0.2, prompts: {tokens: 64}, output_tokens: {max: 64}}
  duration_s: 10
baseline: {data_parallel_size: 2, max_num_seqs: 8}
experiments:
  - name: apart
    set: {max_num_seqs: 16}
    pools:
      chat: {set: {data_parallel_size: 1}}
      batch: {set: {data_parallel_size: 1, max_num_seqs: 32}}
repeats: 1
"""


def test_a_comment_says_where_the_flag_below_it_is_from(tmp_path: Path) -> None:
    """Of each pool its own: the experiment's value stood over another flag."""
    file, runs, out = tmp_path / "m.yaml", tmp_path / "runs", tmp_path / "d"
    file.write_text(ORIGINS)
    assert run(["study", str(file), "--out", str(runs), "--quiet"]) in (0, 3)
    targets = ["kubernetes", "compose", "modal"]
    assert export(file, to=targets, experiment="apart", runs=runs, out=out) == 0
    chat, batch = [
        part for part in (out / "kubernetes.yaml").read_text().split("# apart of study") if part
    ]
    assert "# max_num_seqs: 16, by experiment apart (before: 8)" in chat
    assert "# max_num_seqs: 32, by pool batch of experiment apart (before: 8)" in batch
    for part, slots in ((chat, "16"), (batch, "32")):
        assert f'- "{slots}"' in part
        assert part.count("max_num_seqs: ") == 1
    for part, own, other in ((chat, "chat", "batch"), (batch, "batch", "chat")):
        assert "# all pools together: predicted by the digital twin" in part
        assert f"# of this, {own}: " in part
        assert f"# of this, {other}: " not in part
    head = (out / "compose.yaml").read_text().partition("services:")[0]
    assert "# vllm-chat, max_num_seqs: 16, by experiment apart (before: 8)" in head
    assert "# vllm-batch, max_num_seqs: 32, by pool batch of experiment apart (before: 8)" in head
    # 200 users of one pool's one replica, twice: all may ask for its classes at once
    assert "max_inputs=400)" in (out / "modal_app-batch.py").read_text()


def test_the_terminal_says_that_a_share_of_a_gpu_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("""\
name: shared
model: Qwen/Qwen3-4B
engine: vllm
engine_version: "0.21.0"
hardware: {gpu: H200-SXM}
workload: {arrivals: {users: 4}}
baseline: {gpu_memory_utilization: 0.13}
launch: {resident: 7}
""")
    assert run(["export", str(file), "--to", "compose", "--out", str(tmp_path / "d")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "note: measured as one of 7 engines on a GPU" in told
