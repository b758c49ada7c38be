"""What is not exact meets the baseline only after its answers were judged, on servers that answer.

The engine of arithmetic is half as fast again with fewer bits; each KV type has a server whose
model departs from the baseline's by as much as the case asks for.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Launch
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.tunetext import sections, tune_console
from ridgeline.tuning.budgeting import Limits, reserve_of
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.gate import not_judged
from ridgeline.tuning.journal import read_journal
from ridgeline.tuning.outcome import TuneResult, read_result, write_result
from ridgeline.tuning.session import Found
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from support.logprob_server import Behaviour, logprob_server
from support.tunedengine import FEWER, SCRIPT_FOLDER, Listed, TunedEngine, session, setting

GARBAGE, ROUNDED = 3.0, 0.01
LOSSY = setting(risk="lossy")
# The bundled prompts take the fake servers seconds; the user's own are eight, and the long ones.
OWN = "\n".join(
    f"The weather of day {n} was fine and people were out in the park." for n in range(8)
)
PROMPTS = 8 + 4


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    file = tmp_path_factory.mktemp("prompts") / "own.txt"
    file.write_text(OWN)
    return replace(LOSSY, spec=replace(LOSSY.spec, quality_prompts=str(file)))


def small(**more: Any) -> Behaviour:
    return Behaviour(max_model_len=160, **more)


@contextmanager
def servers(**behaviours: Behaviour) -> Iterator[dict[str, str]]:
    """URL by KV type."""
    with ExitStack() as stack:
        yield {n: stack.enter_context(logprob_server(b)) for n, b in behaviours.items()}


def fewer(seqs: int, kind: str = "fp8") -> Candidate:
    return Candidate({"max_num_seqs": seqs, "kv_cache_dtype": kind})


def exact(*numbers: int) -> list[Candidate]:
    return [Candidate(), *(Candidate({"max_num_seqs": n}) for n in numbers)]


def tuned(
    folder: Path,
    candidates: Sequence[Candidate],
    urls: Mapping[str, str],
    the_setting: Setting,
    limits: Limits | None = None,
) -> tuple[Found, TuneResult]:
    engine = TunedEngine(servers=urls)
    with session(folder, Listed(candidates), engine, the_setting, limits) as begun:
        found = begun.run()
        result = conclude(begun, found)
    write_result(folder, result)
    return found, result


def texts(folder: Path, result: TuneResult) -> tuple[str, str]:
    """The terminal's and the page's."""
    console = Console(width=2000, record=True, file=io.StringIO())
    console.print(tune_console(result))
    return console.export_text(), render(load_report(folder))


def test_the_fastest_does_not_win_when_its_answers_are_garbage(tmp_path: Path) -> None:
    """Its figures are in tune.json, on the terminal and on the page."""
    reference = Behaviour()
    with servers(auto=reference, fp8=Behaviour(noise=GARBAGE)) as urls:
        found, result = tuned(tmp_path, FEWER, urls, LOSSY)
    fastest = max(found.told.trials, key=lambda t: t.value or 0.0)
    assert fastest.candidate.key == fewer(140).key
    assert found.winner.change == {"max_num_seqs": 140}
    assert not any("kv_cache_dtype" in c.change for c in found.finalists)
    (judged,) = result.judged
    assert (judged.outcome, judged.may_win) == ("fail", False)
    assert judged.part == {"kv_cache_dtype": "fp8"}
    assert "is below 0.99" in judged.sentence()
    body = json.loads((tmp_path / "tune.json").read_text())["judged"][0]["verdict"]
    assert body["candidate"]["recovery"]["value"] < 0.5
    assert body["repeat"]["kl"]["value"] == 0.0
    assert read_result(tmp_path) == result
    prompts = sum(path == "/tokenize" for path, _ in reference.asked)
    assert prompts == 2 * body["candidate"]["prompts"], "twice over, for all candidates"
    for text in texts(tmp_path, result):
        assert "fail: likelihood recovery" in text
        assert f"{body['candidate']['kl']['value']:.4f}" in text


def test_a_change_that_passes_may_win(tmp_path: Path, lossy: Setting) -> None:
    with servers(auto=small(), fp8=small(noise=ROUNDED)) as urls:
        found, result = tuned(tmp_path, FEWER, urls, lossy)
    assert found.winner.key == fewer(140).key
    (judged,) = result.judged
    assert judged.outcome == "pass"
    assert found.told.other_s >= judged.gpu_s > 0, "its GPU time counts"


def test_a_candidate_is_asked_on_along_the_baselines_answers(
    tmp_path: Path, lossy: Setting
) -> None:
    """What follows a near tie is judged too."""
    how = small(noise=0.3)
    with servers(auto=small(), fp8=how) as urls:
        tuned(tmp_path, FEWER, urls, lossy)
    answers = [b for path, b in how.asked if path == "/v1/completions" and "logprobs" in b]
    asked_on = [b for b in answers if b["max_tokens"] < 32]
    assert len(answers) - len(asked_on) == sum(path == "/tokenize" for path, _ in how.asked)
    assert asked_on


def test_each_candidate_is_held_against_answers_asked_for_once(
    tmp_path: Path, lossy: Setting
) -> None:
    """One fails and one passes, on one reading of the baseline."""
    reference = small()
    listed = [*exact(120), fewer(140, "fp8_e5m2"), fewer(140), fewer(130, "fp8_e5m2")]
    with servers(auto=reference, fp8=small(noise=ROUNDED), fp8_e5m2=small(noise=GARBAGE)) as urls:
        found, result = tuned(tmp_path, listed, urls, lossy)
    assert {j.words: j.outcome for j in result.judged} == {
        "max_num_seqs=140, kv_cache_dtype=fp8_e5m2": "fail",
        "max_num_seqs=140, kv_cache_dtype=fp8": "pass",
    }
    assert found.winner.key == fewer(140).key
    (section,) = [s for s in sections(result) if s.key == "quality"]
    assert len(section.rows) == 2
    assert sum(path == "/tokenize" for path, _ in reference.asked) == 2 * PROMPTS


def test_a_change_that_did_nothing_is_named_and_goes(tmp_path: Path, lossy: Setting) -> None:
    """The candidate without it takes its place in the duel, though the search never had it."""
    with servers(auto=small(), fp8=small()) as urls:
        found, result = tuned(tmp_path, [*exact(120), fewer(160)], urls, lossy)
    (judged,) = result.judged
    assert judged.outcome == "no-op"
    assert "kv_cache_dtype=fp8 did nothing" in judged.sentence()
    assert [c.words for c in found.finalists] == ["max_num_seqs=160", "max_num_seqs=120"]
    assert found.winner.change == {"max_num_seqs": 160}


@pytest.mark.parametrize("case", ["no logprobs", "no address", "of the baseline"])
def test_what_cannot_be_judged_does_not_win(tmp_path: Path, lossy: Setting, case: str) -> None:
    good, mute = small(noise=ROUNDED), small(no_prompt_logprobs=True)
    auto = mute if case == "of the baseline" else small()
    with servers(auto=auto, fp8=mute if case == "no logprobs" else good) as urls:
        if case == "no address":
            del urls["fp8"]
        found, result = tuned(tmp_path, FEWER, urls, lossy)
    (judged,) = result.judged
    assert (judged.outcome, judged.may_win) == ("unknown", False)
    words = "no address" if case == "no address" else "tells no prompt_logprobs"
    assert words in judged.sentence()
    assert found.winner.change == {"max_num_seqs": 140}


def test_without_room_in_the_budget_nothing_is_asked_and_nothing_passes(
    tmp_path: Path, lossy: Setting
) -> None:
    reference = small()
    with servers(auto=reference, fp8=small(noise=ROUNDED)) as urls:
        found, result = tuned(tmp_path, FEWER, urls, lossy, limits=Limits(gpu_s=60.0))
    assert reference.asked == []
    (judged,) = result.judged
    assert "its budget has no room to ask it" in judged.sentence()
    assert "kv_cache_dtype" not in found.winner.change


def test_judging_has_its_share_of_the_budget() -> None:
    whole = Limits()
    plain, lossy = (reserve_of(setting(risk=r), whole, 100.0).total_s for r in ("exact", "lossy"))
    assert lossy >= plain + 4 * 100.0, "four engines that are started to be asked"
    assert reserve_of(LOSSY, Limits(gpu_s=1000.0), 100.0).total_s == pytest.approx(450.0)


@pytest.mark.parametrize(("kill_at", "judged"), [(5, True), (7, True), (3, False)])
def test_killed_after_a_verdict_it_does_not_ask_again(
    tmp_path: Path, lossy: Setting, kill_at: int, judged: bool
) -> None:
    """In the search after the verdict, in the duel, and before anything was judged."""
    reference, candidate = small(), small(noise=GARBAGE)
    with servers(auto=reference, fp8=candidate) as urls:
        words = [str(lossy.spec.quality_prompts)]
        words += [f"{kind}={url}" for kind, url in urls.items()]

        def begin(kill: int) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, str(SCRIPT_FOLDER / "tunedengine.py"), str(tmp_path), str(kill),
                 *words],
                env=os.environ | {"PYTHONPATH": str(SCRIPT_FOLDER.parent)},
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        assert begin(kill_at).returncode == -9
        asked = len(reference.asked), len(candidate.asked)
        assert bool(asked[0]) is judged
        assert bool(read_journal(tmp_path / "tune.jsonl").judged) is judged
        again = begin(0)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("max_num_seqs=140 True")
    if judged:
        assert asked == (len(reference.asked), len(candidate.asked))
    assert len(read_journal(tmp_path / "tune.jsonl").judged) == 1


def test_random_weights_are_never_judged_nor_proposed(tmp_path: Path) -> None:
    base = LOSSY.configuration
    assert not_judged(LOSSY) is None
    for arguments in (("--load-format", "dummy"), ("--load-format=dummy",)):
        dummy = replace(base, launch=Launch(arguments=arguments))
        assert "random weights" in str(not_judged(replace(LOSSY, configuration=dummy)))
    dummy = replace(base, knobs=replace(base.knobs, load_format="dummy"))
    of_dummy = replace(LOSSY, configuration=dummy)
    assert "random weights" in str(not_judged(of_dummy))
    found, result = tuned(tmp_path, FEWER, {}, of_dummy)
    assert found.winner.change == {"max_num_seqs": 140}, "whatever a policy asks for"
    assert result.judged == ()


STUDY = """\
name: bits
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  arrivals: {users: 40}
  prompts: {tokens: {min: 100, max: 300}}
  output_tokens: {min: 20, max: 60, ignore_eos: true}
  duration_s: 4
  warmup_s: 2
  seed: 1
baseline: {max_num_seqs: 8, enable_prefix_caching: false}
tune:
  risk: lossy
  only: true
  finalists: 1
  space: {max_num_seqs: [8, 64], kv_cache_dtype: [auto, fp8], quantization: [null, fp8]}
"""


def test_on_the_twin_it_is_said_once_and_only_exact_ones_are_tried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bits.yaml").write_text(STUDY)
    out = tmp_path / "out"
    code = ridgeline(["tune", str(tmp_path / "bits.yaml"), "--engine", "twin", "--trials", "4",
                      "--quiet", "--out", str(out)])  # fmt: skip
    told = capfd.readouterr()
    assert code == 0, told
    result = read_result(out)
    assert result is not None
    assert {n for t in result.trials for n in t.change} <= {"max_num_seqs"}
    assert result.quality == (
        "not applicable: a twin has no weights; only exact changes are tried and may win",
    )
    assert (told.out + told.err).count("a twin has no weights") == 1


def test_prompts_that_cannot_be_read_are_refused_before_the_first_trial(tmp_path: Path) -> None:
    spec = replace(LOSSY.spec, quality_prompts=str(tmp_path / "none.txt"))
    engine = TunedEngine()
    with (
        pytest.raises(BadInput, match=r"none\.txt"),
        session(tmp_path / "out", Listed(FEWER), engine, replace(LOSSY, spec=spec)),
    ):
        pass
    assert engine.started == []
