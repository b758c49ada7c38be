"""Classes with rates of their own, and pools of servers for classes: what a study file says."""

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.experiment.plan import fingerprint, plan_of
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.study import Study
from ridgeline.workload.studyfile import parse_study

TEXT = """\
name: mixed
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 4, price_per_gpu_hour: 3.95}
workload:
  arrivals: {rate_per_s: 20}
  classes:
    chat: {share: 0.8, output_tokens: 32, priority: 0, slo: {ttft_p95_ms: 300}}
    batch: {share: 0.2, output_tokens: 512, priority: 10}
baseline: {data_parallel_size: 4, max_num_seqs: 64}
experiments:
  - name: apart
    set: {max_num_batched_tokens: 4096}
    pools:
      chat: {set: {data_parallel_size: 3, max_num_seqs: 32}}
      offline: {classes: [batch], set: {data_parallel_size: 1}}
"""


def parsed(text: str = TEXT) -> Study:
    return parse_study(text, "mixed.yaml")


def refused(old: str, new: str) -> str:
    assert old in TEXT
    with pytest.raises(BadInput) as found:
        parsed(TEXT.replace(old, new))
    return str(found.value)


def test_a_pool_has_the_experiments_knobs_with_its_own_on_top() -> None:
    apart = parsed().experiments[1]
    chat, offline = apart.configuration.pools
    assert (chat.name, chat.classes, offline.classes) == ("chat", ("chat",), ("batch",))
    assert chat.knobs.given() == {
        "max_num_seqs": 32, "max_num_batched_tokens": 4096, "data_parallel_size": 3,
    }  # fmt: skip
    assert offline.knobs.max_num_seqs == 64
    assert apart.configuration.gpus == apart.configuration.replicas == 4
    assert [part.gpus for part in apart.configuration.parts] == [3, 1]
    assert all(not part.pools for part in apart.configuration.parts)
    assert apart.change == (
        "max_num_batched_tokens default -> 4096,"
        " pools chat (3 for chat, max_num_seqs 32), offline (1 for batch)"
    )


def test_without_pools_a_configuration_is_its_only_part() -> None:
    base = parsed().baseline.configuration
    assert base.parts == (base,)
    assert (base.layout_gpus, base.replicas) == (4, 4)


def test_an_experiment_has_the_pools_of_the_baseline_unless_it_says_none() -> None:
    text = TEXT.replace("baseline: {data", "pools: {chat: {}, batch: {}}\nbaseline: {data")
    text = text.replace("data_parallel_size: 4", "data_parallel_size: 2").replace(
        "- name: apart\n    set: {max_num_batched_tokens: 4096}\n    pools:\n"
        "      chat: {set: {data_parallel_size: 3, max_num_seqs: 32}}\n"
        "      offline: {classes: [batch], set: {data_parallel_size: 1}}\n",
        "- {name: seqs, set: {max_num_seqs: 8}}\n  - {name: one, pools: {}}\n",
    )
    base, seqs, one = (e.configuration for e in parsed(text).experiments)
    assert [p.knobs.max_num_seqs for p in base.pools] == [64, 64]
    assert [p.knobs.max_num_seqs for p in seqs.pools] == [8, 8]
    assert (one.pools, one.gpus, base.gpus) == ((), 2, 4)


def test_pools_are_part_of_what_was_measured_and_their_absence_is_as_before() -> None:
    base, apart = plan_of(parsed()).experiments
    plain = parsed(TEXT.split("experiments:", maxsplit=1)[0]).baseline
    same = fingerprint(plain.configuration, plain.workload, "chat", {})
    assert fingerprint(base.configuration, base.workload, "chat", {}) == same
    assert fingerprint(apart.configuration, apart.workload, "chat", {}) != same


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("classes: [batch]", "classes: [bach]",
         ["mixed.yaml:15", "there is no class 'bach'", "batch"]),
        ("classes: [batch]", "classes: [batch, chat]", ["mixed.yaml:15", "'chat' is in two pools"]),
        ("      offline: {classes: [batch], set: {data_parallel_size: 1}}\n", "",
         ["mixed.yaml:13", "no pool serves the class 'batch'"]),
        ("data_parallel_size: 3", "data_parallel_size: 8",
         ["9 GPUs are needed", "count is 4"]),
        ("set: {data_parallel_size: 1}", "set: {data_paralel_size: 1}",
         ["mixed.yaml:15", "unknown key 'data_paralel_size'"]),
        ("classes: [batch], set", "url: 'http://127.0.0.1:1', classes: [batch], set",
         ["mixed.yaml:15", "url belongs to engine: endpoint"]),
        ("share: 0.2, ", "", ["mixed.yaml:8", "neither a share nor a rate_per_s"]),
        ("share: 0.2, ", "rate_per_s: 2, ", ["mixed.yaml:7", "all a rate_per_s"]),
        ("  arrivals: {rate_per_s: 20}\n", "", ["'workload.arrivals' is missing"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(old: str, new: str, words: list[str]) -> None:
    said = refused(old, new)
    assert "\n" not in said
    for word in words:
        assert word in said


def test_classes_may_have_rates_of_their_own() -> None:
    text = TEXT.replace("  arrivals: {rate_per_s: 20}\n", "")
    text = text.replace("share: 0.8", "rate_per_s: 6").replace("share: 0.2", "rate_per_s: 2")
    work = parsed(text).baseline.workload
    assert work.arrivals.rate_per_s == 8.0
    assert [kind.share for kind in work.classes] == [0.75, 0.25]
    schedule = draw_schedule(work)
    assert schedule.class_of is not None
    assert schedule.intended_ns is not None
    batch = schedule.intended_ns[schedule.class_of == 1] / 1e9
    gaps = batch[1:] - batch[:-1]
    # 200 arrivals of a Poisson process: mean gap 0.5 s, deviation as large as the mean
    assert gaps.mean() == pytest.approx(0.5, rel=0.25)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.25)


@pytest.mark.parametrize(
    "arrivals", ["{rate_per_s: 20}", "{users: 4}", "{process: gamma}", "{think_time_s: 1}"]
)
def test_rates_of_classes_go_with_no_other_load(arrivals: str) -> None:
    text = TEXT.replace("{rate_per_s: 20}", arrivals)
    text = text.replace("share: 0.8", "rate_per_s: 6").replace("share: 0.2", "rate_per_s: 2")
    with pytest.raises(BadInput, match=r"mixed\.yaml:5.*does not go with classes"):
        parsed(text)


def test_pools_of_an_endpoint_are_urls() -> None:
    text = TEXT.split("baseline:", maxsplit=1)[0] + (
        "engine: endpoint\npools:\n  chat: {url: 'http://127.0.0.1:8001'}\n"
        "  batch: {url: ['http://127.0.0.1:8002', 'http://127.0.0.1:8003']}\n"
    )
    base = parsed(text).baseline.configuration
    assert [p.url for p in base.parts] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert base.parts[1].more_urls == ("http://127.0.0.1:8003",)
    with pytest.raises(BadInput, match="needs the key 'url'"):
        parsed(text.replace("{url: 'http://127.0.0.1:8001'}", "{}"))
