"""A tuning that tried to speculate says, by the twin, at how many users it pays."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.setting import setting_of
from ridgeline.tuning.speculating import speculation_lines
from ridgeline.tuning.trial import Candidate, History, Trial
from ridgeline.workload.studyfile import parse_study

STUDY = """\
name: drafts
model: Qwen/Qwen3-4B
engine_version: "0.21.0"
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  arrivals: {users: 16}
  prompts: {tokens: {min: 100, max: 300}}
  output_tokens: {min: 40, max: 60, ignore_eos: true}
  duration_s: 4
  warmup_s: 1
baseline: {max_num_seqs: 256, enable_prefix_caching: false, enforce_eager: true}
"""
DRAFTS = {"method": "ngram", "num_speculative_tokens": 16}


def lines(folder: Path, *tried: Candidate) -> tuple[str, ...]:
    history = History(tuple(Trial(i + 1, c, "unsure") for i, c in enumerate(tried)))
    found: Any = SimpleNamespace(
        told=SimpleNamespace(history=history), winner=Candidate({"max_num_seqs": 256})
    )
    setting = setting_of(parse_study(STUDY))
    with closing(Oracle(setting, folder, cores=1)) as oracle:
        session: Any = SimpleNamespace(setting=setting, oracle=oracle)
        return speculation_lines(session, found)


def test_where_it_ends_to_pay_is_a_note_with_its_basis(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, Candidate(), Candidate({"speculative_config": DRAFTS}))
    assert line.startswith('speculation {"method": "ngram", "num_speculative_tokens": 16} (by the')
    assert "pays up to" in line
    assert "costs from 256 on" in line
    assert "leave it off above 256" in line


def test_a_tuning_without_it_says_nothing(tmp_path: Path) -> None:
    assert lines(tmp_path, Candidate({"max_num_seqs": 8})) == ()
