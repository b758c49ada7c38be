"""`ridgeline report`, and the command as a whole."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_study import STUDY

from ridgeline.cli.main import VERBS
from ridgeline.cli.main import run as ridgeline
from support.reference import slowness


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "s.yaml").write_text(STUDY)
    out = folder / "o"
    args = ["study", str(folder / "s.yaml"), "--repeats", "1", "--quiet", "--out", str(out)]
    assert ridgeline(args) == 0
    return out


def test_a_copied_study_gives_table_and_page(
    stored: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    page = tmp_path / "deep" / "report.html"
    assert ridgeline(["report", str(copy), "--html", str(page)]) == 0
    shown = capfd.readouterr()
    assert "sixteen" in shown.out
    assert str(page) in shown.err
    assert "TWIN" in page.read_text()
    assert ridgeline(["report", str(copy), "--quiet"]) == 0
    assert capfd.readouterr().out == ""


def test_lines_in_a_pipe_end_where_their_words_end(stored: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline.cli.main", "report", str(stored)],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 8
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) <= 80
    assert "small · Qwen/Qwen3-0.6B · all 2 runs valid" in lines


def test_what_is_no_study_is_one_line(
    stored: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    for place, words in (
        (tmp_path, "holds no study"),
        (tmp_path / "none", "there is no such folder"),
        (tmp_path / "file", "is no JSON"),
    ):
        assert ridgeline(["report", str(place)]) == 2
        err = capfd.readouterr().err
        assert words in err
        assert len(err.splitlines()) == 1
    (tmp_path / "file").unlink()
    shutil.copytree(stored, tmp_path / "c")
    index = tmp_path / "c" / "index.json"
    for text in ("", "[]", '{"schema": 2}', json.dumps({"schema": 1, "name": 5})):
        index.write_text(text)
        assert ridgeline(["report", str(tmp_path / "c")]) == 3
        err = capfd.readouterr().err
        assert len(err.splitlines()) == 1
        assert "index.json" in err


def test_help_is_quick_and_names_every_verb() -> None:
    """CPU time, which other work on the machine hardly stretches, and no more than work that is
    known; the acceptance tests time it.
    """
    took = []
    for _ in range(5):
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline.cli.main", "--help"],
            check=True,
            capture_output=True,
            text=True,
        )
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime)
    assert all(f"  {verb} " in done.stdout for verb in VERBS)
    assert min(took) < 0.3 * slowness()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ridgeline.cli.main import run\nrun(['--help'])\n"
        "heavy = {'numpy', 'polars', 'scipy', 'pydantic', 'rich', 'jinja2', 'yaml'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["sudy"], 2, "No such command 'sudy'"),
        (["report"], 2, "DIR"),
        (["--version"], 0, ""),
        ([], 2, ""),
    ],
)
def test_the_command_itself(
    capfd: pytest.CaptureFixture[str], args: list[str], code: int, line: str
) -> None:
    assert ridgeline(args) == code
    shown = capfd.readouterr()
    assert line in shown.err
    assert len(shown.err.splitlines()) <= 1


def test_output_into_a_closed_pipe_is_no_error(stored: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m ridgeline.cli.main report {stored} | head -c 1",
        check=False,
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
