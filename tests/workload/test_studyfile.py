"""Study files: what they mean, and that every mistake is one line with its place."""

from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import KNOB_NAMES
from ridgeline.domain.slo import Limit
from ridgeline.domain.summary import (
    ClientFigures,
    Cost,
    Goodput,
    Percentiles,
    RequestCounts,
    Roofline,
    Summary,
    Throughput,
    VerdictFigures,
)
from ridgeline.domain.workload import Arrivals, Lengths, SharedPrefix
from ridgeline.experiment.findings import hold_against
from ridgeline.experiment.statistics import merge
from ridgeline.workload.enginemodel import KnobsPart
from ridgeline.workload.study import METRICS, Finding, Mark, Statement, Study, override
from ridgeline.workload.studyfile import load_study, parse_study
from ridgeline.workload.studymodel import StudyPart

STUDIES = Path(__file__).parents[2] / "studies"

TEXT = """\
name: chat-400
model: Qwen/Qwen3-VL-4B-Instruct
hardware: {gpu: H100-SXM, count: 4, price_per_gpu_hour: 3.95}
engine: twin
workload:
  arrivals: {users: 400}
  prompts: {dataset: synthetic, tokens: {mean: 256, spread: 0.5}}
  output_tokens: {max: 96}
  duration_s: 90
  seed: 7
slo: {ttft_p95_ms: 2000, itl_p95_ms: 20, error_rate: 0.001}
baseline: {data_parallel_size: 4, max_num_seqs: 32}
experiments:
  - {name: seqs-64, set: {max_num_seqs: 64}}
  - name: crowd
    workload: {arrivals: {rate_per_s: 50}, prompts: {tokens: 12}}
    hardware: {gpu: h200 sxm, price_per_gpu_hour: 4.5}
repeats: 2
"""


def parsed(text: str = TEXT) -> Study:
    return parse_study(text, "chat.yaml")


def test_the_documented_form_means_what_it_says() -> None:
    study = parsed()
    assert (study.name, study.engine, study.repeats) == ("chat-400", "twin", 2)
    assert [e.name for e in study.experiments] == ["baseline", "seqs-64", "crowd"]
    base = study.baseline
    assert base.configuration.knobs.given() == {"max_num_seqs": 32, "data_parallel_size": 4}
    assert base.configuration.gpus == 4
    assert base.configuration.price_per_gpu_hour == 3.95
    assert base.workload.arrivals == Arrivals(users=400)
    assert base.workload.prompts.tokens == Lengths(256, 0.5)
    assert (base.workload.outputs.tokens.low, base.workload.outputs.tokens.high) == (96, 96)
    assert (base.workload.duration_s, base.workload.seed) == (90, 7)
    assert study.slo.limits == (
        Limit("ttft_p95_ms", 2000), Limit("itl_p95_ms", 20), Limit("error_rate", 0.001),
    )  # fmt: skip


def test_an_experiment_keeps_what_it_does_not_change() -> None:
    seqs, crowd = parsed().experiments[1:]
    assert seqs.configuration.knobs.given() == {"max_num_seqs": 64, "data_parallel_size": 4}
    assert seqs.workload == parsed().baseline.workload
    assert seqs.change == "max_num_seqs 32 -> 64"
    # arrivals are replaced whole (a rate, no users any more), other keys merge.
    assert crowd.workload.arrivals == Arrivals(rate_per_s=50)
    assert crowd.workload.prompts.tokens == Lengths(12)
    assert crowd.workload.outputs == parsed().baseline.workload.outputs
    assert crowd.configuration.gpu == "H200-SXM"
    assert crowd.configuration.price_per_gpu_hour == 4.5
    assert "gpu H100-SXM -> H200-SXM" in crowd.change


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("{min: 64, max: 96}", 64, 96),
        ("{min: 1, max: 4096}", 1, 4096),
        ("{min: 7, max: 8}", 7, 8),
        ("96", 96, 96),
        ("{mean: 100, spread: 0.25}", 75, 125),
    ],
)
def test_lengths(text: str, low: int, high: int) -> None:
    study = parsed(TEXT.replace("{max: 96}", text))
    tokens = study.baseline.workload.outputs.tokens
    assert (tokens.low, tokens.high) == (low, high)


def test_other_parts_of_a_workload() -> None:
    text = TEXT.replace("{users: 400}", "{users: 3, think_time_s: 1.5}").replace(
        "tokens: {mean: 256, spread: 0.5}",
        "tokens: 8, shared_prefix: {tokens: 1024, groups: 8}",
    )
    text = text.replace("duration_s: 90", "duration_s: 60\n  warmup_s: 0\n  requests: 500")
    workload = parsed(text).baseline.workload
    assert workload.arrivals == Arrivals(users=3, think_time_s=1.5)
    assert workload.prompts.shared_prefix == SharedPrefix(1024, 8)
    assert (workload.duration_s, workload.warmup_s, workload.requests) == (60, 0, 500)
    gamma = TEXT.replace("{users: 400}", "{rate_per_s: 2, process: gamma, burstiness: 0.5}")
    arrivals = parsed(gamma).baseline.workload.arrivals
    assert arrivals == Arrivals(rate_per_s=2, process="gamma", burstiness=0.5)


MISTAKES = [
    ("{users: 400}", "{users: 4, steps: [{users: 1, for_s: 1}]}", 6, "either 'users' or 'rate"),
    ("{users: 400}", "{steps: []}", 6, "must be a list of at least 1"),
    ("{users: 400}", "{steps: [{for_s: 3}]}", 6, "a step needs either 'users' or 'rate_per_s'"),
    (
        "{users: 400}",
        "{steps: [{users: 1, for_s: 3}, {rate_per_s: 1, for_s: 3}]}",
        6,
        "steps are all of users or all of rates",
    ),
    ("{users: 400}", "{steps: [{users: 1, for_s: 3}]}", 9, "the steps of the load decide"),
    ("{users: 400}", "{users: 4, max_concurrency: 2}", 6, "belongs to rate_per_s, not to users"),
    ("{users: 400}", "{rate_per_s: 4, ramp_s: 2}", 6, "ramp_s belongs to users, not to a rate"),
    ("seed: 7", "seed: 7\n  classes: {a: {share: 0.5}}", 11, "make 0.5, not 1"),
    ("seed: 7", "seed: 7\n  classes: {a: {share: 1, shar: 1}}", 11, "did you mean 'share'?"),
    ("seed: 7", "seed: 7\n  classes: {a: {share: 1, slo: {ttft: 1}}}", 11, "unknown key 'ttft'"),
    ("seed: 7", "seed: 7\n  classes: {a b: {share: 1}}", 11, "a name of letters"),
    ("seed: 7", "seed: 7\n  sessions: {turns: 20000}", 11, "at most 10\u2009000 turns"),
    (
        "seed: 7",
        "seed: 7\n  sessions: {think_time_s: 2}",
        11,
        "'workload.sessions.turns' is missing",
    ),
    # (what stands there, what a user wrote instead, line, words of the message)
    ("max_num_seqs: 32", "max_num_sequences: 32", 12, "did you mean 'max_num_seqs'?"),
    ("max_num_seqs: 32", "swap_space: 4", 12, "no knob: launch: {arguments: [--swap-space]}"),
    ("max_num_seqs: 64", "max_seqs: 64", 14, "unknown key 'max_seqs' in experiments[0].set"),
    (
        "max_num_seqs: 32",
        "max_num_seqs: 0",
        12,
        "a number >= 1 and <= 1\u2009000\u2009000 (requests), not 0",
    ),
    (
        "max_num_seqs: 64",
        "max_num_seqs: '64'",
        14,
        "a whole number >= 1 and <= 1\u2009000\u2009000 (requests), not '64'",
    ),
    ("max_num_seqs: 64", "max_num_seqs: 6.5", 14, "a whole number"),
    ("max_num_seqs: 64", "enforce_eager: 1", 14, "enforce_eager must be true or false, not 1"),
    ("max_num_seqs: 64", "gpu_memory_utilization: 92", 14, "<= 1 (share of the memory), not 92"),
    ("duration_s: 90", "duration_s: 90s", 9, "(seconds), not '90s'"),
    ("duration_s: 90", "duration_s: -1", 9, "> 0 and <= 86400 (seconds), not -1"),
    ("duration_s: 90", "duration_s: .inf", 9, "duration_s"),
    ("duration_s: 90", "duration_ms: 90", 9, "did you mean 'duration_s'?"),
    ("engine: twin", "engine: vlm", 4, "did you mean 'vllm'?"),
    ("engine: twin", "engine: endpoint", 4, "needs the key 'url'"),
    ("engine: twin", "engine: twin\nurl: http://localhost", 5, "url belongs to engine: endpoint"),
    ("model: Qwen/Qwen3-VL-4B-Instruct\n", "", 1, "the key 'model' is missing"),
    ("  arrivals: {users: 400}\n", "", 5, "the key 'workload.arrivals' is missing"),
    ("gpu: H100-SXM", "gpu: H100-SMX", 3, "did you mean 'H100-SXM'?"),
    ("gpu: H100-SXM, ", "", 3, "the twin needs the key 'hardware.gpu'"),
    ("count: 4", "count: 2", 3, "4 GPUs are needed"),
    ("{users: 400}", "{users: 400, rate_per_s: 3}", 6, "either 'users' or 'rate_per_s'"),
    ("{users: 400}", "{users: 400, process: poisson}", 6, "process belongs to rate_per_s"),
    ("{users: 400}", "{rate_per_s: 4, think_time_s: 1}", 6, "think_time_s belongs to users"),
    ("{users: 400}", "{rate_per_s: 4, burstiness: 1}", 6, "burstiness needs process: gamma"),
    ("{users: 400}", "{userz: 400}", 6, "did you mean 'users'?"),
    ("{rate_per_s: 50}", "{rate_per_s: 0}", 16, "workload.arrivals.rate_per_s must be"),
    ("{rate_per_s: 50}", "{rate: 50}", 16, "unknown key 'rate'"),
    ("tokens: 12", "tokens: nine", 16, "workload.prompts.tokens"),
    ("{max: 96}", "{max: 96, mean: 3}", 8, "by mean and spread or by min and max"),
    ("{max: 96}", "{min: 96}", 8, "min needs max"),
    ("{max: 96}", "{min: 97, max: 96}", 8, "min (97) is above max (96)"),
    ("itl_p95_ms", "itl_p96_ms", 11, "unknown key 'itl_p96_ms' in slo"),
    ("error_rate: 0.001", "error_rate: 5", 11, "<= 1 (share), not 5"),
    ("name: seqs-64", "name: baseline", 14, "two experiments are called 'baseline'"),
    ("name: seqs-64", "name: ../x", 14, "a name of letters, digits"),
    ("  seed: 7", "  seed: 7\n  seed: 8", 11, "the key 'seed' is given twice"),
    ("repeats: 2", "repeats: 0", 18, "repeats must be a number >= 1"),
    ("repeats: 2", "repeat: 2", 18, "did you mean 'repeats'?"),
    ("{users: 400}", "{users: 4, think_time_s: .inf}", 6, "think_time_s must be a finite number"),
    ("{users: 400}", "{users: 4, think_time_s: 1.0e+300}", 6, "<= 86400 (seconds)"),
    ("{users: 400}", "{rate_per_s: .inf}", 6, "must be a finite number"),
    ("{users: 400}", "{rate_per_s: 1.0e-13}", 6, ">= 0.001"),
    ("{users: 400}", "{rate_per_s: 9, process: gamma, burstiness: 1.0e-9}", 6, ">= 0.01"),
    ("{mean: 256, spread: 0.5}", "1.0e+12", 7, "<= 10\u2009000\u2009000 (tokens)"),
    ("{mean: 256, spread: 0.5}", ".inf", 7, "must be a finite number"),
    ("{mean: 256, spread: 0.5}", "{mean: 256, spread: .nan}", 7, "must be a finite number"),
    ("{max: 96}", "{max: 3000000000}", 8, "<= 10\u2009000\u2009000 (tokens)"),
    (
        "tokens: {mean: 256, spread: 0.5}",
        "shared_prefix: {tokens: 3000000000}",
        7,
        "10\u2009000\u2009000",
    ),
    (
        "tokens: {mean: 256, spread: 0.5}",
        "shared_prefix: {tokens: 4, groups: 1000000000000}",
        7,
        "<= 1\u2009000\u2009000 (groups)",
    ),
    ("price_per_gpu_hour: 3.95", "price_per_gpu_hour: .inf", 3, "must be a finite number"),
    ("price_per_gpu_hour: 3.95", "price_per_gpu_hour: .nan", 3, "must be a finite number"),
    ("ttft_p95_ms: 2000", "ttft_p95_ms: .inf", 11, "must be a finite number"),
    (
        "max_num_seqs: 64",
        "max_num_batched_tokens: 100000000000",
        14,
        "<= 10\u2009000\u2009000 (tokens)",
    ),
    ("max_num_seqs: 64", "watermark: .nan", 14, "must be a finite number"),
    ("max_num_seqs: 64", "data_parallel_size: 1000000000", 14, "<= 4096 (replicas)"),
    ("repeats: 2", "equal_within: .inf", 18, "must be a finite number"),
    (
        "slo: {ttft_p95_ms: 2000, itl_p95_ms: 20, error_rate: 0.001}",
        "slo: {attainment: 0.95}",
        11,
        "attainment is the share of the requests inside the latency limits",
    ),
    ("repeats: 2", "repeats: [", 19, "is not valid YAML"),
    ("  seed: 7", "\tseed: 7", 10, "is not valid YAML"),
]


@pytest.mark.parametrize(("before", "after", "line", "words"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(
    before: str, after: str, line: int, words: str
) -> None:
    assert before in TEXT
    with pytest.raises(BadInput) as caught:
        parsed(TEXT.replace(before, after))
    message = str(caught.value)
    assert message.startswith(f"chat.yaml:{line}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("a: &x [*x]", "nested too deeply"),
        ("a: \x00", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
        ("? [1, 2]\n: 3\n", "not valid YAML"),
        ("1: 2", "chat.yaml:1"),
    ],
)
def test_what_is_no_study_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=r"chat\.yaml") as caught:
        parsed(text)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        load_study(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        load_study(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(BadInput, match=r"not UTF-8 text \(byte 9\)"):
        load_study(tmp_path / "latin.yaml")


def test_a_relative_model_folder_is_taken_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(TEXT.replace("Qwen/Qwen3-VL-4B-Instruct", "./tiny"))
    assert load_study(path).model == str(tmp_path.resolve() / "tiny")


def test_a_study_of_endpoints_needs_no_gpu() -> None:
    text = (
        "name: two\nmodel: m\nengine: endpoint\nurl: http://127.0.0.1:1\n"
        "workload: {arrivals: {users: 1}}\nhardware: {count: 8, price_per_gpu_hour: 2}\n"
        "experiments: [{name: other, url: 'http://127.0.0.1:2'}]\n"
    )
    base, other = parsed(text).experiments
    assert base.configuration.url == "http://127.0.0.1:1"
    assert other.configuration.url == "http://127.0.0.1:2"
    assert (base.configuration.gpus, base.configuration.gpu) == (8, None)


ENDPOINTS = """\
name: two
model: m
engine: endpoint
url: http://127.0.0.1:1
hardware: {count: 4, price_per_gpu_hour: 2}
workload: {arrivals: {users: 1}}
baseline: {data_parallel_size: 4}
experiments: [{name: other, set: {max_num_seqs: 9}, url: 'http://127.0.0.1:2'}]
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        (", url: 'http://127.0.0.1:2'", "", 8, "engine options reach no server"),
        ("127.0.0.1:2", "127.0.0.1:1", 8, "engine options reach no server"),
        ("count: 4, ", "", 5, "the GPUs of an endpoint must be counted"),
        ("count: 4, price_per_gpu_hour: 2", "gpu: H100-SXM", 5, "must be counted"),
        ("count: 4", "count: 8", 5, "the layout takes 4 GPUs, hardware.count is 8"),
        ("max_num_seqs: 9", "data_parallel_size: 8", 8, "8 GPUs, hardware.count is 4"),
    ],
)
def test_an_endpoints_options_and_gpus_must_be_those_of_its_server(
    before: str, after: str, line: int, words: str
) -> None:
    assert parsed(ENDPOINTS).experiments[1].configuration.knobs.max_num_seqs == 9
    with pytest.raises(BadInput, match=rf"chat\.yaml:{line}: ") as caught:
        parsed(ENDPOINTS.replace(before, after))
    assert words in str(caught.value)


def test_another_engine_takes_the_gpus_of_its_own_layout() -> None:
    text = TEXT.replace("engine: twin", "engine: endpoint\nurl: http://127.0.0.1:1").replace(
        "  - {name: seqs-64, set: {max_num_seqs: 64}}\n", ""
    )
    study = parsed(text.replace("baseline: {data_parallel_size: 4, ", "baseline: {"))
    assert study.baseline.configuration.gpus == 4
    twin = override(study, engine="twin").baseline.configuration
    assert (twin.gpus, twin.url) == (1, None)
    with pytest.raises(BadInput, match="--engine endpoint: an endpoint needs the key 'url'"):
        override(parsed(), engine="endpoint")


def test_every_knob_can_stand_in_a_file() -> None:
    assert set(KnobsPart.model_fields) == set(KNOB_NAMES)
    text = TEXT.replace(
        "{max_num_seqs: 64}",
        "{cudagraph_capture_sizes: [1, 2], speculative_config: {method: ngram}}",
    )
    knobs = parsed(text).experiments[1].configuration.knobs
    assert knobs.cudagraph_capture_sizes == (1, 2)
    assert knobs.speculative_config == {"method": "ngram"}


def test_the_command_line_overrides_a_frozen_study() -> None:
    study = parsed()
    other = override(study, engine="vllm", repeats=5, only=["crowd"])
    assert (other.engine, other.repeats) == ("vllm", 5)
    assert [e.name for e in other.experiments] == ["baseline", "crowd"]
    assert {e.configuration.engine for e in other.experiments} == {"vllm"}
    assert study.engine == "twin"
    with pytest.raises(BadInput, match="did you mean 'crowd'"):
        override(study, only=["crown"])
    with pytest.raises(BadInput, match="did you mean 'vllm'"):
        override(study, engine="vlllm")
    with pytest.raises(BadInput, match="at least 1"):
        override(study, repeats=0)


@pytest.mark.parametrize(
    ("statement", "interval", "mark"),
    [
        (Statement("m", low=3), (3.1, 3.4), "reproduced"),
        (Statement("m", low=3), (2.9, 3.4), "not reproduced"),
        (Statement("m", low=3), (0.5, 0.9), "reversed"),
        (Statement("m", low=3), (0.5, 1.1), "not reproduced"),
        (Statement("m", low=1), (1.0, 1.0), "not reproduced"),  # no difference is not more
        (Statement("m", low=1), (1.01, 1.2), "reproduced"),
        (Statement("m", low=1), (0.98, 1.2), "not reproduced"),
        (Statement("m", high=1), (1.0, 1.0), "not reproduced"),
        (Statement("m", high=1), (0.8, 0.9), "reproduced"),
        (Statement("m", high=1), (1.1, 1.2), "reversed"),
        (Statement("m", low=1), (1.0001, 1.004), "reproduced"),
        (Statement("m", high=0.9), (0.85, 0.95), "not reproduced"),
        (Statement("m", low=0.98, high=1.02), (0.99, 1.01), "reproduced"),
        (Statement("m", low=0.98, high=1.02), (1.0, 1.0), "reproduced"),
        (Statement("m", low=0.98, high=1.02), (1.2, 1.3), "not reproduced"),
    ],
)
def test_a_mark_needs_the_whole_interval(
    statement: Statement, interval: tuple[float, float], mark: Mark
) -> None:
    assert statement.mark(*interval) == mark


def test_a_difference_that_nobody_would_pay_for_is_not_more() -> None:
    more, bounds = Statement("m", low=1), Statement("m", low=0.98, high=1.02)
    assert more.mark(1.001, 1.004, 0.005) == "not reproduced"
    assert more.mark(1.001, 1.006, 0.005) == "reproduced"
    assert more.mark(0.996, 0.999, 0.005) == "not reproduced"
    assert bounds.mark(1.001, 1.004, 0.005) == "reproduced"
    assert parsed().equal_within == 0.005
    assert parsed(TEXT + "equal_within: 0.02\n").equal_within == 0.02


def test_a_finding_of_two_statements_needs_both() -> None:
    more, less = Statement("a", low=1), Statement("b", high=1)
    finding = Finding("x", "more in all, less each", "e", "base", (more, less))
    up, down, flat = (1.2, 1.3), (0.7, 0.8), (1.0, 1.0)
    assert finding.mark({"a": up, "b": down}) == "reproduced"
    assert finding.mark({"a": up, "b": flat}) == "not reproduced"
    assert finding.mark({"a": up, "b": up}) == "reversed"
    assert finding.mark({"a": up}) is None


FINDING = """\
findings:
  - id: f
    claim: seqs-64 is faster
    compare: [seqs-64, baseline]
    ratio: [{metric: ttft_s.p95, is: lower}]
    twin: reproduced
    because: of the queue
"""


def test_findings_are_read_and_follow_their_experiments() -> None:
    study = parsed(TEXT + FINDING)
    (finding,) = study.findings
    assert (finding.first, finding.second, finding.expected) == (
        "seqs-64", "baseline", "reproduced",
    )  # fmt: skip
    assert finding.statements == (Statement("ttft_s.p95", high=1.0),)
    assert override(study, only=["crowd"]).findings == ()
    assert len(override(study, only=["seqs-64"]).findings) == 1


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[seqs-64, baseline]", "[seqs-46, baseline]", "did you mean 'seqs-64'?"),
        ("[seqs-64, baseline]", "[baseline, baseline]", "compared with itself"),
        ("[seqs-64, baseline]", "[baseline]", "a list of at least 2"),
        ("ttft_s.p95", "ttft_p95", "did you mean 'ttft_s.p95'?"),
        (", is: lower", "", "either 'is' or"),
        ("is: lower", "is: lower, at_most: 2", "either 'is' or"),
        ("is: lower", "at_least: 3, at_most: 2", "at_least 3 is above at_most 2"),
        ("    because: of the queue\n", "", "needs its reason ('because')"),
        ("twin: reproduced", "twin: maybe", "reproduced, not reproduced, reversed"),
    ],
)
def test_mistakes_in_findings(before: str, after: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parsed(TEXT + FINDING.replace(before, after))
    assert str(caught.value).startswith("chat.yaml:")
    assert words in str(caught.value)


@pytest.mark.parametrize("metric", METRICS)
def test_every_figure_that_a_finding_may_name_can_be_judged(metric: str) -> None:
    """Three repeats with a planted ratio of two: no name that is accepted stays without a mark."""
    study = parsed(TEXT + FINDING.replace("ttft_s.p95", metric).replace("is: lower", "at_least: 1"))
    (finding,) = study.findings
    slow, fast = (
        {r: planted(metric, v * f) for r, v in enumerate((1.0, 1.01, 0.99))} for f in (1, 2)
    )
    merged = {"seqs-64": merge(list(fast.values())), "baseline": merge(list(slow.values()))}
    assert hold_against(finding, fast, slow, merged).mark == "reproduced"


def planted(metric: str, value: float) -> Summary:
    """A twin's summary in which one figure has the value."""
    group, _, name = metric.partition(".")
    none = Percentiles()
    blank = Summary(
        "twin", 60.0, RequestCounts(100, 100, 0, 0.0), none, none, none, none, none, none,
        Throughput(), Cost(), Roofline(), Goodput(), (), {}, ClientFigures(), VerdictFigures(True),
    )  # fmt: skip
    return replace(blank, **{group: replace(getattr(blank, group), **{name: value})})


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("ttft_s.p95", "requests.error_rate", "a known name"),  # a share may be zero: no ratio
        ("ttft_s.p95", "cost.usd_per_thousand_requests", "needs a price, and seqs-64 has none"),
        ("ttft_s.p95", "goodput.requests_per_s", "there are none"),
    ],
)
def test_a_finding_that_no_run_can_decide_is_refused(before: str, after: str, words: str) -> None:
    text = TEXT.replace(", price_per_gpu_hour: 3.95", "")
    text = text.replace("ttft_p95_ms: 2000, itl_p95_ms: 20, ", "")
    parsed(text + FINDING)
    with pytest.raises(BadInput, match=r"chat\.yaml:23: ") as caught:
        parsed(text + FINDING.replace(before, after))
    assert words in str(caught.value)


def test_published_values_belong_to_experiments() -> None:
    text = TEXT + "published: {source: a paper, runs: {seqs-64: {ttft_p95_ms: 3029}}}\n"
    study = parsed(text)
    assert study.published is not None
    assert study.published.runs == {"seqs-64": {"ttft_p95_ms": 3029}}
    with pytest.raises(BadInput, match="did you mean 'seqs-64'"):
        parsed(text.replace("runs: {seqs-64", "runs: {seqs-46"))


def test_the_bundled_study_is_the_published_one() -> None:
    study = load_study(STUDIES / "h100-twelve.yaml")
    assert [e.name for e in study.experiments] == [
        "graphs", "eager", "seqs-64", "no-chunked-prefill", "fp8", "replicas-8",
        "prefix-caching", "users-1000", "final", "single-gpu", "fp8-seqs-64", "h200",
    ]  # fmt: skip
    knobs = study.baseline.configuration.knobs
    assert (knobs.max_num_seqs, knobs.enable_chunked_prefill, knobs.enable_prefix_caching) == (
        32, True, False,
    )  # fmt: skip
    assert study.experiment("replicas-8").configuration.gpus == 8
    assert study.experiment("users-1000").workload.arrivals.users == 1000
    assert study.experiment("single-gpu").configuration.gpus == 1
    assert study.published is not None
    assert study.published.runs["graphs"]["ttft_p95_ms"] == 3029
    assert all(f.expected and f.because for f in study.findings)


def test_the_schema_for_editors_agrees_with_the_reader() -> None:
    schema = StudyPart.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for path in [*STUDIES.glob("*.yaml")]:
        check.validate(yaml.safe_load(path.read_text()))
    check.validate(yaml.safe_load(TEXT))
    wrong = yaml.safe_load(TEXT.replace("max_num_seqs: 32", "max_num_sequences: 32"))
    assert not check.is_valid(wrong)
    wrong = yaml.safe_load(TEXT.replace("{max: 96}", "{maximum: 96}"))
    assert not check.is_valid(wrong)


LAUNCH = """\
launch:
  command: [python3, -m, vllm.entrypoints.cli.main, serve, "{model}"]
  arguments: [--load-format, dummy]
  environment: {HF_HUB_OFFLINE: "1"}
  ready_s: 600
  resident: 4
  start_together: false
  cold_s: 5
"""


def test_launch_says_how_every_experiments_engine_starts() -> None:
    study = override(parsed(TEXT + LAUNCH), engine="vllm")
    for experiment in study.experiments:
        launch = experiment.configuration.launch
        assert launch is not None
        assert launch.command == ("python3", "-m", "vllm.entrypoints.cli.main", "serve", "{model}")
        assert launch.arguments == ("--load-format", "dummy")
        assert launch.environment == {"HF_HUB_OFFLINE": "1"}
        assert (launch.ready_s, launch.resident, launch.cold_s) == (600.0, 4, 5.0)
        assert launch.start_together is False
    assert "launch" not in study.experiments[1].change
    jsonschema.validate(yaml.safe_load(TEXT + LAUNCH), StudyPart.model_json_schema())


def test_without_launch_the_engine_starts_its_own_way() -> None:
    assert parsed().baseline.configuration.launch is None
    empty = parsed(TEXT + "launch: {}\n").baseline.configuration.launch
    assert empty is not None
    assert (empty.command, empty.resident, empty.start_together) == (None, None, True)


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        ("{command: [vllm, serve]}", r"chat\.yaml:\d+: the command says nowhere which model"),
        ("{command: []}", "launch.command must be a list of at least 1"),
        ("{environment: {OMP_NUM_THREADS: 1}}", "environment.OMP_NUM_THREADS must be a text"),
        ("{resident: 0}", r"launch.resident must be a number >= 1 and <= 1000 \(engines\), not 0"),
        ("{redy_s: 5}", "unknown key 'redy_s' in launch .*did you mean 'ready_s'"),
        ("{ready_s: 0}", "launch.ready_s must be a number > 0"),
    ],
)
def test_a_wrong_launch_is_one_line(launch: str, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        parsed(TEXT + f"launch: {launch}\n")


@pytest.mark.parametrize(
    ("launch", "named"),
    [
        ("{environment: {HF_TOKEN: KEY}}", "HF_TOKEN"),
        ("{environment: {AWS_SECRET_ACCESS_KEY: KEY}}", "AWS_SECRET_ACCESS_KEY"),
        ("{environment: {VLLM_API_KEY: KEY}}", "VLLM_API_KEY"),
        ("{environment: {HARMLESS: hf_KEYKEYKEYKEYKEYKEY}}", "HARMLESS"),
        ("{environment: {HTTPS_PROXY: 'http://me:KEY@proxy:1'}}", "HTTPS_PROXY"),
        ("{arguments: [--api-key, KEY]}", "--api-key"),
        ("{arguments: [--api_key=KEY]}", "api_key"),
        ("{arguments: [--hf-token, KEY]}", "--hf-token"),
        ("{arguments: ['--x', '{\"api_key\": \"KEY\"}']}", "api_key"),
        ("{arguments: ['--x', 'sk-KEYKEYKEYKEYKEYKEY']}", "a value"),
        ("{command: [sh, -c, 'HF_TOKEN=KEY vllm serve {model}']}", "HF_TOKEN"),
        ("{command: [sh, -c, 'vllm serve {model} --api-key KEY']}", "--api-key"),
        ("{command: [env, HF_TOKEN=KEY, vllm, serve, '{model}']}", "HF_TOKEN"),
        ("{image: a, container: [-e, HF_TOKEN=KEY]}", "HF_TOKEN"),
        ("{router: {arguments: [--api-key, KEY]}}", "--api-key"),
    ],
)
def test_a_secret_in_a_launch_is_refused_and_not_repeated(launch: str, named: str) -> None:
    with pytest.raises(BadInput, match="looks like a secret, and results keep it") as caught:
        parsed(TEXT + f"launch: {launch}\n")
    assert caught.value.what.count(named) == 1
    assert "KEY" not in str(caught.value).replace(named, "")


@pytest.mark.parametrize(
    "launch",
    [
        "{environment: {HF_TOKEN: null, HF_TOKEN_PATH: /k, AWS_SECRET_ACCESS_KEY: ''}}",
        "{environment: {TOKENIZERS_PARALLELISM: 'false', VLLM_MAX_TOKENS: '5', KV_PATH: a}}",
        "{arguments: [--long-prefill-token-threshold, '4', --ssl-keyfile, /k, --api-key-file, /k]}",
        "{arguments: [--hf-token, --seed, '1', --max-num-batched-tokens=8]}",
        "{command: [sh, -c, 'vllm serve {model} --api-key $KEY --x=$HF_TOKEN']}",
        "{image: a, container: [-e, HF_TOKEN, --env, HF_TOKEN=$HF_TOKEN, -v, '/a:/b']}",
    ],
)
def test_names_places_and_references_are_no_secrets(launch: str) -> None:
    assert parsed(TEXT + f"launch: {launch}\n").baseline.configuration.launch is not None


def test_launch_does_not_belong_to_a_server_that_runs_already() -> None:
    text = TEXT.replace("engine: twin", "engine: endpoint\nurl: http://127.0.0.1:8000")
    with pytest.raises(BadInput, match="launch belongs to an engine that Ridgeline starts"):
        parsed(text + LAUNCH)


def test_an_automatic_warm_up_has_a_limit() -> None:
    text = TEXT.replace("duration_s: 90", "duration_s: 90\n  warmup_s: auto")
    workload = parsed(text).baseline.workload
    assert (workload.warmup_auto, workload.warmup_s) == (True, 60.0)
    limited = parsed(text.replace("auto", "auto\n  warmup_limit_s: 25")).baseline.workload
    assert (limited.warmup_auto, limited.warmup_s) == (True, 25)
    assert not parsed().baseline.workload.warmup_auto


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("warmup_s: soon", "workload.warmup_s must be a number >= 0"),
        ("warmup_s:", "workload.warmup_s must be a number"),
        ("warmup_s: -1", "warmup_s"),
        ("warmup_s: 5\n  warmup_limit_s: 9", "warmup_limit_s belongs to warmup_s: auto"),
        ("warmup_s: auto\n  warmup_limit_s: 0", "warmup_limit_s"),
    ],
)
def test_warm_ups_that_mean_nothing(lines: str, said: str) -> None:
    with pytest.raises(BadInput) as error:
        parsed(TEXT.replace("duration_s: 90", f"duration_s: 90\n  {lines}"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_change_of_classes_is_told_by_their_names_and_shares() -> None:
    told = {e.name: e.change for e in load_study(STUDIES / "h200-prompts.yaml").experiments}
    assert told["long"] == "classes none -> short 70% + long 30%"
