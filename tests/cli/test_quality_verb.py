"""`ridgeline quality`, against servers whose model is known."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.errors import EndpointError
from support.logprob_server import Behaviour, logprob_server

QUICK = ["--answer-tokens", "8", "--longest", "300"]


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    with logprob_server() as url:
        yield url


def test_a_good_candidate_passes(
    reference: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "verdict.json"
    with logprob_server(Behaviour(noise=0.01, cache_dtype="fp8", model="other")) as url:
        code = ridgeline(["quality", reference, url, "--changed", "kv_cache_dtype=fp8",
                          "--json", str(out), *QUICK])  # fmt: skip
    shown = capfd.readouterr()
    assert code == 0, shown
    body = json.loads(out.read_text())
    assert body["outcome"] == "pass"
    assert body["acted"] is True
    assert body["candidate"]["prompts"] == 28
    assert body["long"]["prompts"] == 4
    assert body["repeat"]["kl"]["value"] == 0.0, "the reference was asked twice"
    assert body["evidence"]["candidate_kv_cache_dtype"] == "fp8"
    assert "repeated" in shown.out
    assert "KL of the worst prompt" in shown.out, "the rows keep their names at 80 columns"
    assert "candidate: reading 28 prompts" in shown.err
    assert "quality: pass" in shown.err


def test_a_bad_one_fails_and_says_by_how_much(
    reference: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logprob_server(Behaviour(noise=1.5)) as url:
        assert ridgeline(["quality", reference, url, *QUICK]) == 1
    told = capfd.readouterr().err
    assert "quality: fail" in told
    assert "likelihood recovery 0." in told


def test_a_knob_that_did_nothing_is_named(
    reference: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logprob_server() as url:
        code = ridgeline(["quality", reference, url, "--changed", "quantization=fp8", *QUICK])
        assert code == 1
        assert "quantization=fp8 did nothing" in capfd.readouterr().err
        assert ridgeline(["quality", reference, url, "--changed", "max_num_seqs=64", *QUICK]) == 0


def test_own_prompts_are_asked_with_the_long_ones(reference: str, tmp_path: Path) -> None:
    own = tmp_path / "mine.txt"
    own.write_text(
        "".join(f"This is my prompt number {i}, about the weather.\n" for i in range(12))
    )
    how = Behaviour(noise=0.01)
    with logprob_server(how) as url:
        assert ridgeline(["quality", reference, url, "--prompts", str(own), *QUICK]) in (0, 3)
    texts = [body["prompt"] for path, body in how.asked if path == "/tokenize"]
    assert len(texts) == 16
    assert "This is my prompt number 11, about the weather." in texts


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--dummy-weights"], 3, "not applicable random weights"),
        (["--changed", "kv_cash_dtype=fp8"], 2, "did you mean 'kv_cache_dtype'"),
        (["--changed", "kv_cache_dtype"], 2, "give it as KNOB=VALUE"),
        (["--prompts", "no-such-file"], 2, "no-such-file"),
        (["--threshold", "1.5"], 2, "less than or equal to 1"),
        (["--tasks", "arc_easy"], 2, "the tasks need the model's tokenizer"),
        (["--tasks", "arc_easy", "--tokenizer", "t", "--tasks-folder", "nowhere"], 2,
         "is no folder"),
        (["--tasks", "arc_easy", "--tokenizer", "t", "--lm-eval", "no-such-python"], 2,
         "no-such-python: cannot be run"),
        (["--tasks", "arc_easy", "--tokenizer", "t", "--lm-eval", sys.executable], 2,
         "has no lm_eval; make an environment"),
        (["--tasks", "arc_easy", "--tokenizer", "a,b"], 2, "cannot be given 'a,b'"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged(
    reference: str, extra: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logprob_server() as candidate:
        assert ridgeline(["quality", reference, candidate, *QUICK, *extra]) == code
    told = capfd.readouterr().err
    assert words in " ".join(told.split())


def test_an_endpoint_without_prompt_logprobs_is_unknown(
    reference: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with logprob_server(Behaviour(no_prompt_logprobs=True)) as url:
        assert ridgeline(["quality", reference, url, *QUICK]) == 3
    assert "quality: unknown" in capfd.readouterr().err


@pytest.mark.parametrize("extra", [[], ["--floor"]])
def test_a_server_is_not_compared_with_itself(
    reference: str, extra: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    same = reference.replace("127.0.0.1", "localhost") + "/v1"
    with logprob_server() as other:
        urls = [reference, other, "--floor", other] if extra else [reference, same]
        assert ridgeline(["quality", *urls, *QUICK]) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert f"{'candidate and noise floor' if extra else 'reference and candidate'} are the" in told


def test_two_models_of_one_server_may_be_compared(reference: str) -> None:
    models = ["--model", "letters", "--candidate-model", "letters-tuned"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeline.tuning.quality.least_context", refuse)
        assert ridgeline(["quality", reference, reference, *models, *QUICK]) == 3


def refuse(asked: object) -> int | None:
    raise EndpointError("was asked", where="here")


def test_answers_that_turn_into_garbage_are_found(
    reference: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its first token is right, and from then on it says the same one for ever."""
    with logprob_server(Behaviour(stuck_on=33)) as url:
        assert ridgeline(["quality", reference, url, *QUICK]) == 1
    assert "greedy agreement 0." in capfd.readouterr().err


def test_a_candidate_with_less_context_is_asked_as_far_as_it_reads(
    reference: str, tmp_path: Path
) -> None:
    out = tmp_path / "verdict.json"
    with logprob_server(Behaviour(noise=0.01, max_model_len=200)) as url:
        assert ridgeline(["quality", reference, url, "--json", str(out), *QUICK]) == 0
    body = json.loads(out.read_text())
    assert body["long"]["tokens"] == 4 * (200 - 8 - 1)
    assert body["long"]["greedy"]["prompts"] == 4, "their answers are compared too"


def test_16_bits_of_a_model_whose_type_no_server_tells_are_no_no_op(reference: str) -> None:
    with logprob_server() as url:
        changed = ["--changed", "kv_cache_dtype=float16"]
        assert ridgeline(["quality", reference, url, *changed, *QUICK]) == 0
