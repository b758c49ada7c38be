"""Every --help as a stranger reads it: 80 columns, ranges in words, an example to type."""

import re
import sys

import pytest

from ridgeline.cli.helptext import GROUPS, in_words
from ridgeline.cli.main import EXAMPLES, VERBS, run


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")

    def ask(*arguments: str) -> str:
        assert run([*arguments, "--help"]) == 0
        return capsys.readouterr().out

    return ask


@pytest.mark.parametrize("verb", VERBS)
def test_a_verbs_help_is_whole_and_plain(verb: str, told) -> None:
    text = told(verb)
    assert max(map(len, text.splitlines())) <= 80
    assert "x<=" not in text
    assert "x>=" not in text
    assert sys.prefix not in text, "a default that is a path of this machine"
    example = EXAMPLES[verb]
    assert example in text
    assert example.startswith(f"ridgeline {verb} ")
    for option in re.findall(r"--[a-z-]+", example.partition("'")[0]):
        assert re.search(rf"^  {option}\b", text, re.MULTILINE), option


@pytest.mark.parametrize("verb", ["bench", "knee"])
def test_many_options_stand_under_headings(verb: str, told) -> None:
    heads = re.findall(r"^([A-Z][a-z ]+):$", told(verb), re.MULTILINE)
    assert heads == ["Arguments", "Options", *GROUPS]


def test_every_option_that_a_heading_names_is_there(told) -> None:
    both = told("bench") + told("knee")
    missing = [
        o for names in GROUPS.values() for o in names if not re.search(rf"^  {o}\b", both, re.M)
    ]
    assert missing == []


def test_the_first_help_says_where_to_begin_and_the_exit_codes(told) -> None:
    text = " ".join(told().split())
    assert "init writes a study file, plan predicts it without a GPU" in text
    assert "Exit code 0: done. 1: a target or a check was missed. 2: bad input." in text


def test_ranges_in_words() -> None:
    assert in_words("[default: 1.0; 0.2<=x<=60]") == "[default: 1.0; 0.2 to 60]"
    assert in_words("[x>=0]") == "[at least 0]"
    assert in_words("[0<=x<=9223372036854775807]") == "[at least 0]"
