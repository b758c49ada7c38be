"""The `tune:` section of a study file: what it becomes, and what is refused with its line."""

import pytest
from jsonschema import Draft202012Validator

from ridgeline.domain.errors import BadInput
from ridgeline.workload.schemas import schema_of
from ridgeline.workload.study import Span, TuneSpec
from ridgeline.workload.studyfile import parse_study

TEXT = """\
name: chat
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1}
workload: {arrivals: {users: 40}, duration_s: 5}
baseline: {max_num_seqs: 16}
tune:
  objective: goodput
  risk: numerics
  finalists: 2
  window_s: 8
  only: true
  space:
    max_num_seqs: [16, 32]
    max_num_batched_tokens: {min: 2048, max: 8192}
    quantization: fixed
    routing: [round-robin, least-loaded]
"""


def test_the_section_becomes_a_value() -> None:
    assert parse_study(TEXT).tune == TuneSpec(
        objective="goodput",
        risk="numerics",
        finalists=2,
        window_s=8.0,
        host_gpus=1,
        only=True,
        space={
            "max_num_seqs": (16, 32),
            "max_num_batched_tokens": Span(2048, 8192),
            "quantization": None,
            "routing": ("round-robin", "least-loaded"),
        },
    )


def test_without_it_the_defaults_hold() -> None:
    spec = parse_study(TEXT.split("tune:", maxsplit=1)[0]).tune
    assert (spec.objective, spec.risk, spec.finalists, spec.space) == ("cost", "exact", 3, {})


@pytest.mark.parametrize(
    ("good", "bad", "line", "words"),
    [
        ("goodput", "goodputs", 7, "did you mean 'goodput'?"),
        ("finalists: 2", "finalist: 2", 9, "did you mean 'finalists'?"),
        ("max_num_seqs: [16", "max_num_seq: [16", 13, "did you mean 'max_num_seqs'?"),
        ("[16, 32]", "[16, 0]", 13, "max_num_seqs must be a number >= 1"),
        ("[16, 32]", "16", 13, "a list of values, {min, max} or fixed"),
        ("{min: 2048, max: 8192}", "{min: 2048}", 14, "needs min and max"),
        ("min: 2048", "min: 9000", 14, "from a number to a larger one"),
        ("least-loaded", "leastloaded", 16, "routing must be one of"),
    ],
)
def test_a_mistake_is_told_with_its_line(good: str, bad: str, line: int, words: str) -> None:
    with pytest.raises(BadInput) as told:
        parse_study(TEXT.replace(good, bad, 1), "chat.yaml")
    assert str(told.value).startswith(f"chat.yaml:{line}: ")
    assert words in str(told.value)


def test_nothing_to_tune_is_refused() -> None:
    text = TEXT.split("  space:", maxsplit=1)[0] + "  space: {max_num_seqs: fixed}\n"
    with pytest.raises(BadInput, match="only leaves nothing to tune"):
        parse_study(text)


def test_the_editors_schema_knows_it() -> None:
    import yaml  # noqa: PLC0415

    validator = Draft202012Validator(schema_of("study"))
    body = yaml.safe_load(TEXT)
    assert list(validator.iter_errors(body)) == []
    body["tune"]["space"]["max_num_seqs"] = 16
    assert list(validator.iter_errors(body)) != []
