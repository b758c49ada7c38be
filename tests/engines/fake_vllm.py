"""An installation that looks like vLLM's to whoever asks its argument parser; it serves nothing."""

import sys
from dataclasses import dataclass
from pathlib import Path

INIT = """\
import os, pathlib
__version__ = {version!r}
with (pathlib.Path(__file__).parent / "imports").open("a") as file:
    file.write("x")
"""
ARGPARSE = """\
import argparse


class FlexibleArgumentParser(argparse.ArgumentParser):
    pass
"""
CLI_ARGS = """\
import argparse, json


def optional_type(return_type):
    def _optional_type(text):
        return None if text in ("", "None") else return_type(text)
    return _optional_type


def human_readable_int(text):
    import re
    number, unit = re.fullmatch(r"(\\d+(?:\\.\\d+)?)([kKmMgGtT]?)", text).groups()
    return int(float(number) * {"": 1, "k": 1e3, "K": 2**10, "m": 1e6, "M": 2**20}.get(unit, 1))


def make_arg_parser(parser):
    switch = argparse.BooleanOptionalAction
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--max-num-seqs", type=int, default=None)
    parser.add_argument("--max-num-batched-tokens", type=human_readable_int)
    parser.add_argument("--enable-prefix-caching", action=switch, default=None)
    parser.add_argument("--enforce-eager", action=switch, default=False)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    kinds = ["auto", "fp8", "bfloat16"]
    parser.add_argument("--kv-cache-dtype", type=str, default="auto", choices=kinds)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+")
    parser.add_argument("--speculative-config", type=optional_type(json.loads), default=None)
    parser.add_argument("--optimization-level", type=optional_type(int), default=2)
    return parser
"""
PROGRAM = """\
#!{python}
import pathlib, sys
pathlib.Path({started!r}).touch()
sys.exit(1)
"""


@dataclass(frozen=True)
class FakeVllm:
    """Where it lies: the program, the folder for PYTHONPATH, and what tells of its use."""

    program: Path
    path: Path
    started: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.path)}

    @property
    def imports(self) -> int:
        """How often it was imported."""
        file = self.path / "vllm" / "imports"
        return len(file.read_text()) if file.exists() else 0


def install(folder: Path, version: str = "0.21.0", place: str = "openai") -> FakeVllm:
    """`place`: the folder of entrypoints with the parser (openai up to 0.21, then launchers)."""
    package = folder / "lib" / "vllm"
    parts = {
        "": INIT.format(version=version),
        "utils": "",
        "entrypoints": "",
        f"entrypoints/{place}": "",
    }
    for part, text in parts.items():
        (package / part).mkdir(parents=True, exist_ok=True)
        (package / part / "__init__.py").write_text(text)
    (package / "utils" / "argparse_utils.py").write_text(ARGPARSE)
    (package / "entrypoints" / place / "cli_args.py").write_text(CLI_ARGS)
    program, started = folder / "bin" / "vllm", folder / "started"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM.format(python=sys.executable, started=str(started)))
    program.chmod(0o755)
    return FakeVllm(program, package.parent, started)
