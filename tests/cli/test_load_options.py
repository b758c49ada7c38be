"""The load options of `ridgeline bench`: what they mean, and one line for each mistake."""

import re

import pytest

from ridgeline.cli.loadoptions import LoadOptions, arrivals_of, classes_of
from ridgeline.cli.main import VERBS, run
from ridgeline.domain.errors import BadInput
from ridgeline.domain.slo import Limit
from ridgeline.domain.workload import Arrivals, Lengths, LoadStep, Outputs, Prompts, SharedPrefix


def test_steps_and_caps() -> None:
    steps = arrivals_of(LoadOptions(rate_steps="5:30, 10.5:20", max_concurrency=7))
    assert steps.steps == (LoadStep(30, rate_per_s=5), LoadStep(20, rate_per_s=10.5))
    assert steps.max_concurrency == 7
    assert not steps.closed_loop
    users = arrivals_of(LoadOptions(user_steps="8:30,16:30", think_time_s=2.0, ramp_s=3.0))
    assert users.steps == (LoadStep(30, users=8), LoadStep(30, users=16))
    assert users.closed_loop
    assert (users.peak_users, users.think_time_s, users.ramp_s) == (16, 2.0, 3.0)
    assert arrivals_of(LoadOptions(users=4)) == Arrivals(users=4)


def test_classes_take_what_they_do_not_say_from_the_other_options() -> None:
    chat, batch = classes_of(
        ["chat:share=0.8,prompt_tokens=300,ttft_p95_ms=500,priority=0",
         "batch:share=0.2,output_tokens=900,shared_prefix_tokens=64"],
        Prompts(Lengths(100, 0.5)), Outputs(Lengths(50), ignore_eos=True),
    )  # fmt: skip
    assert (chat.name, chat.share, chat.priority) == ("chat", 0.8, 0)
    assert chat.prompts == Prompts(Lengths(300, 0.5))
    assert chat.slo.limits == (Limit("ttft_p95_ms", 500),)
    assert batch.outputs == Outputs(Lengths(900), ignore_eos=True)
    assert batch.prompts == Prompts(Lengths(100, 0.5), SharedPrefix(64))
    assert (batch.priority, batch.slo.limits) == (None, ())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LoadOptions(), "give either --users or --rate"),
        (LoadOptions(users=1, rate_steps="1:1"), "give either --users or --rate"),
        (LoadOptions(rate_steps="5"), "'5' is not LOAD:SECONDS"),
        (LoadOptions(rate_steps="5:30,"), "'' is not LOAD:SECONDS"),
        (LoadOptions(rate_steps="x:30"), "a rate must be a number, not 'x'"),
        (LoadOptions(rate_steps="nan:30"), "a rate must be a number"),
        (LoadOptions(rate_steps="5:0"), "a step lasts above 0"),
        (LoadOptions(rate_steps="5:inf"), "a step's length must be a number"),
        (LoadOptions(rate_steps="0:30"), "--rate-steps must be above 0"),
        (LoadOptions(user_steps="2.5:30"), "users must be a whole number"),
        (LoadOptions(user_steps="0:30"), "users must be a whole number from 1"),
        (LoadOptions(rate=1, think_time_s=1), "--think-time belongs to users"),
        (LoadOptions(users=1, think_time_s=float("nan")), "--think-time must be 0 to"),
        (LoadOptions(rate=1, ramp_s=1), "--ramp belongs to users"),
        (LoadOptions(users=1, max_concurrency=1), "--max-concurrency belongs to a rate"),
    ],
)
def test_a_wrong_load_is_one_line(options: LoadOptions, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        arrivals_of(options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["chat"], "'chat' is not NAME:share=0.8"),
        (["chat:share=0.5"], "the shares of the classes make 0.5, not 1"),
        (["a:share=0.5", "a:share=0.5"], "the class 'a' is given twice"),
        (["a:prompt_tokens=4"], "a class needs its share"),
        (["a:share=1,prompt_token=4"], "did you mean 'prompt_tokens'?"),
        (["a:share=1,share=1"], "share is given twice"),
        (["a:share=0"], "share must be above 0"),
        (["a:share=1,prompt_tokens=0"], "prompt_tokens must be a whole number from 1"),
        (["a:share=1,priority=1.5"], "priority must be a whole number"),
        (["a:share=1,ttft_p95_ms=-1"], "ttft_p95_ms must be a number >= 0"),
        (["a:share=1,error_rate=2"], "a share between 0 and 1"),
    ],
)
def test_a_wrong_class_is_one_line(texts: list[str], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        classes_of(texts, Prompts(), Outputs())
    assert words in str(caught.value)
    assert "--class" in str(caught.value)


OF_OTHER_TOOLS = {  # of vLLM's own benchmark, and of the servers that are compared
    "bench": {"--save-detailed"}, "quality": {"--dtype", "--max-logprobs"},
}  # fmt: skip


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_names_no_raw_type_and_no_option_that_the_verb_does_not_have(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert not re.search(r"^  -.*<(\w+ range|str|path|int|float)>", shown, re.MULTILINE)
    named = set(re.findall(r"--[a-z][a-z-]*[a-z]", re.sub(r"-\n\s+", "-", shown)))
    own = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
    own |= set(re.findall(r"^  --[a-z-]+ / (--no-[a-z-]+)", shown, re.MULTILINE))
    assert named - own == OF_OTHER_TOOLS.get(verb, set())
