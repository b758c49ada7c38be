"""Options held against the installation's own parser, before anything is started."""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import pytest
from fake_vllm import FakeVllm, install

from ridgeline.cli.main import run
from ridgeline.engines.knob_check import _once, check_words
from ridgeline.engines.knobs import Catalogue, NotAsked, catalogue, questions_for

STUDY = """\
name: s
model: m
engine: vllm
{more}
launch:
  command: ["{program}", serve, "{{model}}", {command}]
  environment: {{PYTHONPATH: "{path}"}}
  arguments: [{arguments}]
workload: {{arrivals: {{users: 1}}, duration_s: 1, warmup_s: 0}}
baseline: {{{baseline}}}
experiments:
  - name: other
    set: {{{changed}}}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    _once.cache_clear()


@pytest.fixture
def vllm(tmp_path: Path) -> FakeVllm:
    return install(tmp_path / "fake")


def asked(vllm: FakeVllm) -> Catalogue:
    questions = questions_for([str(vllm.program), "serve", "{model}"], vllm.environment)
    assert not isinstance(questions, NotAsked)
    found = catalogue(questions, vllm.environment)
    assert isinstance(found, Catalogue), found
    return found


def study(vllm: FakeVllm, tmp_path: Path, **parts: str) -> str:
    text = STUDY.format(**{"program": vllm.program, "path": vllm.path, "arguments": "", "more": "",
                           "command": "", "baseline": "", "changed": "", **parts})  # fmt: skip
    (tmp_path / "s.yaml").write_text(text)
    return text


def test_the_parser_tells_names_types_defaults_and_choices(vllm: FakeVllm) -> None:
    found = asked(vllm)
    assert found.version == "0.21.0"
    assert found.folder == str(vllm.path / "vllm")
    rows = {o.name: (o.kind, o.default, o.choices, o.nargs) for o in found.options}
    assert rows["max_num_seqs"] == ("int", None, None, None)
    assert rows["max_num_batched_tokens"] == ("size", None, None, None)
    assert rows["enforce_eager"] == ("switch", False, None, None)
    assert rows["headless"] == ("flag", False, None, None)
    assert rows["gpu_memory_utilization"] == ("float", 0.92, None, None)
    assert rows["kv_cache_dtype"] == ("text", "auto", ("auto", "fp8", "bfloat16"), None)
    assert rows["speculative_config"] == ("json", None, None, None)
    assert rows["cudagraph_capture_sizes"] == ("int", None, None, "+")


def test_later_versions_keep_the_parser_elsewhere(tmp_path: Path) -> None:
    found = asked(install(tmp_path / "late", "0.33.0", "launchers"))
    assert found.version == "0.33.0"
    assert "--max-num-seqs" in found.flags


def test_an_installation_is_asked_once_until_it_changes(vllm: FakeVllm) -> None:
    first = asked(vllm)
    assert asked(vllm) == first
    assert vllm.imports == 1
    file = vllm.path / "vllm" / "entrypoints" / "openai" / "cli_args.py"
    file.write_text(file.read_text().replace("--enforce-eager", "--enforce-lazy"))
    os.utime(file, ns=(2**62, 2**62))
    assert "--enforce-lazy" in asked(vllm).flags
    assert vllm.imports == 2


def test_a_cache_that_is_damaged_or_cannot_be_written_costs_time_only(
    vllm: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(vllm)
    (file,) = (tmp_path / "cache" / "ridgeline" / "knobs").iterdir()
    file.write_text('{"options": 3')
    assert asked(vllm) == first
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a-file"))
    assert asked(vllm) == first


# What argparse itself says of each line is the truth here, not this file.
LINES = [
    "m --max-num-seqs 64", "m --max-num-seqs=64", "m --max-num-seqs", "m --max-num-seqs many",
    "m --max-num-seqs=6.5", "m --max-num-sequences 3", "m --max-num-se 3", "m --max-num 3",
    "m --max-num-batched-tokens 8K", "m --max-num-batched-tokens 8q", "m --enforce-eager",
    "m --no-enforce-eager", "m --enforce-eager=true", "m --headless", "m --no-headless",
    "m --kv-cache-dtype fp8", "m --kv-cache-dtype fp9", "m --kv-cache-dtype", "m -tp 2",
    "m -tp two", "m --gpu-memory-utilization 0.9", "m --gpu-memory-utilization most",
    "m --cudagraph-capture-sizes 1 2 4", "m --cudagraph-capture-sizes 1 x",
    "m --cudagraph-capture-sizes", "m --speculative-config {\"a\":1}", "m --speculative-config {a}",
    "m --speculative-config None", "m --optimization-level 3", "m --watermark 0.1",
    "m --max-num-seqs -1", "m --enforce-eager false", "m --enable-prefix-caching false",
    "m --headless true", "m extra --max-num-seqs 3", "m --max-num-seqs 3 extra",
    "m --max-num-seqs.foo 3", "m --enforce-eager.x 1", "m --kv-cache-dtype.x=1", "m extra",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_words_are_judged_as_argparse_judges_them(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(vllm.path))
    from vllm.entrypoints.openai.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    taken = True
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            make_arg_parser(FlexibleArgumentParser()).parse_args(line.split())
        except (SystemExit, AttributeError):  # the latter: the fake's size of "8q"
            taken = False
    assert (check_words(line.split(), asked(vllm)) is None) == taken


def test_a_key_belongs_to_a_json_option(vllm: FakeVllm) -> None:
    """vLLM's parser makes JSON of it, which argparse alone does not know."""
    known = asked(vllm)
    for words in ("--speculative-config.method ngram", "--speculative-config.a.b=1"):
        assert check_words(["m", *words.split()], known) is None
    said = check_words(["m", "--max-num-seqs.foo", "3"], known) or ""
    assert "--max-num-seqs is no JSON option and has no key --max-num-seqs.foo" in said
    # without a model before it, the word after a switch is the model
    assert check_words(["--enforce-eager", "m"], known) is None


@pytest.mark.parametrize(
    ("parts", "line", "words"),
    [
        ({"arguments": "--max-num-sequences, '8'"}, 8,
         ["vLLM 0.21.0 has no option --max-num-sequences", "nearest: --max-num-seqs"]),
        ({"changed": "watermark: 0.02"}, 13, ["has no option --watermark", "experiment other"]),
        ({"changed": "kv_cache_dtype: fp9"}, 13, ["--kv-cache-dtype does not know 'fp9'", "fp8"]),
        ({"baseline": "optimization_level: 3, dtype: half"}, 10, ["no option --dtype"]),
        ({"arguments": "--max-num-seqs, many"}, 8, ["takes a whole number, not 'many'"]),
        ({"arguments": "--enforce-eager=yes"}, 8, ["is a switch and takes no value"]),
        ({"arguments": "--enforce-eager, 'false'"}, 8,
         ["--enforce-eager is a switch and takes no value ('false' follows it)"]),
        ({"arguments": "other"}, 8, ["one model is served, and beside '{model}' there is 'other'"]),
        ({"command": "--max-num-sequences, '8'"}, 6, ["no option --max-num-sequences"]),
        ({"command": "--max-num-seqs, many"}, 6, ["launch.command", "a whole number, not 'many'"]),
        ({"more": 'engine_version: "0.33.0"'}, 4, ["this is vLLM 0.21.0", "not 0.33.0"]),
    ],
)  # fmt: skip
def test_a_study_is_refused_in_one_line_before_any_engine_is_started(
    vllm: FakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    parts: dict[str, str], line: int, words: list[str],
) -> None:  # fmt: skip
    study(vllm, tmp_path, **parts)
    assert run(["study", "s.yaml", "--quiet"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"s.yaml:{line}: " in said[0]
    for word in words:
        assert word in said[0]
    assert not vllm.started.exists()
    assert not (tmp_path / "runs").exists()


def test_an_engine_that_cannot_be_asked_is_told_and_tried(
    vllm: FakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program is a shell script: nobody can know what it starts."""
    vllm.program.write_text(f"#!/bin/bash\ntouch {vllm.started}\necho no such thing\nexit 7\n")
    study(vllm, tmp_path, changed="watermark: 0.02")
    assert run(["study", "s.yaml", "--quiet", "--repeats", "1"]) == 3
    said = capsys.readouterr().err
    note = f"engine options were not checked before the start (vllm: {vllm.program} is no Python"
    assert note in said
    assert "baseline, other" in said
    index = json.loads((tmp_path / "runs" / "s" / "index.json").read_text())
    assert any(n.startswith(note) for n in index["notes"])
    assert vllm.started.exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["docker", "run", "image"], "docker starts it somewhere else"),
        ([sys.executable, "-P", "serve.py"], "is not told to run vLLM"),
        (["./mine", "serve"], "what ./mine starts is not known"),
        (["vllm-that-is-not-here"], "is not known"),
    ],
)
def test_where_nobody_can_be_asked_the_reason_is_told(command: list[str], why: str) -> None:
    found = questions_for(command, {})
    assert isinstance(found, NotAsked)
    assert why in found.why


def test_the_interpreter_is_found_behind_wrappers_and_shebangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python(*command: str) -> object:
        found = questions_for(command, {})
        return found.why if isinstance(found, NotAsked) else found.ask[0]

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}")
    script = tmp_path / "vllm"
    script.touch(0o755)
    for head, found in {
        "#!/opt/a/bin/python3.12\n": "/opt/a/bin/python3.12",
        "#!/usr/bin/env python3\n": str(Path(sys.executable).parent / "python3"),
        "#!/usr/bin/env -S python3 -u\n": str(Path(sys.executable).parent / "python3"),
        "#!/bin/sh\n'''exec' \"/long path/bin/python\" \"$0\" \"$@\"\n' '''\n":
            "/long path/bin/python",
    }.items():  # fmt: skip
        script.write_text(head)
        assert python("vllm", "serve", "m") == found
        assert python("numactl", "-N", "0", "vllm", "serve", "m") == found
    assert python(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server") == (
        sys.executable
    )


def test_an_installation_that_is_broken_says_why(vllm: FakeVllm) -> None:
    (vllm.path / "vllm" / "__init__.py").write_text("raise ImportError('no libcudart.so.13')")
    questions = questions_for([str(vllm.program), "serve"], vllm.environment)
    assert not isinstance(questions, NotAsked)
    found = catalogue(questions, vllm.environment)
    assert isinstance(found, NotAsked)
    assert "no libcudart.so.13" in found.why


def test_the_verb_shows_it(vllm: FakeVllm, capsys: pytest.CaptureFixture[str],
                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(vllm.path))
    assert run(["knobs", "seqs", "dtype", "--engine", str(vllm.program)]) == 0
    shown = capsys.readouterr().out
    assert "vLLM 0.21.0" in shown
    assert "--kv-cache-dtype" in shown
    assert "bfloat16" in shown
    assert "--enforce-eager" not in shown
    assert run(["knobs", "--json", "-", "--engine", str(vllm.program)]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["version"], len(body["options"])) == ("0.21.0", 12)
    assert run(["knobs", "max_num_sequences", "--engine", str(vllm.program)]) == 2
    assert "did you mean 'max_num_seqs'" in capsys.readouterr().err
    assert run(["knobs", "--engine", "/no/such/vllm"]) == 2
    told = capsys.readouterr().err
    assert "there is no /no/such/vllm" in told
    assert "scripts/vllm_cpu_env.sh" in told
