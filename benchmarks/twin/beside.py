"""A first prediction, from a cold start: the twin beside AIConfigurator, on this machine.

    python -m benchmarks.twin.beside --aiconfigurator PATH

PATH is the program `aiconfigurator` of an environment of its own (aiconfigurator==0.12.0 from
PyPI, half a gigabyte). Processor seconds of each process, imports included, best of N. One
configuration: Qwen3-32B on four H100, 32 requests at a time of 1024 prompt and 128 output tokens.
Theirs computes a steady state from operator tables, ours simulates 13 seconds of traffic step by
step. BLIS is not run: its Go source is in no registry that packages come from.
"""

import argparse
import os
import re
import subprocess
import sys

OURS = """
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.experiment.predicting import Predictor
knobs = Knobs(tensor_parallel_size=4, max_num_seqs=32, max_model_len=4096)
host = Configuration("Qwen/Qwen3-32B", knobs, gpu="H100", gpus=4)
load = Workload(Arrivals(users=32), Prompts(Lengths(1024)), Outputs(Lengths(128)),
                duration_s=10.0, warmup_s=3.0)
found = Predictor(Slo())(host, load, {}).summary
print(f"TTFT: {found.ttft_s.mean * 1e3:.3f} ms")
print(f"TPOT: {found.tpot_s.mean * 1e3:.3f} ms")
"""
THEIRS = (
    "cli estimate --model-path Qwen/Qwen3-32B --system h100_sxm --backend vllm"
    " --estimate-mode agg --isl 1024 --osl 128 --batch-size 32 --tp-size 4"
)


def measure(command: list[str]) -> tuple[float, dict[str, float]]:
    """Processor seconds of a process and its children, and the latencies that it printed (ms)."""
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    spent = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    found = re.findall(r"(TTFT|TPOT):\s+([0-9.]+) ms", done.stdout)
    return spent, {name: float(value) for name, value in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.twin.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--aiconfigurator", metavar="PATH", help="the program; left out: ours only")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    given = parser.parse_args()
    commands = {"Ridgeline": [sys.executable, "-c", OURS]}
    if given.aiconfigurator is not None:
        commands["AIConfigurator"] = [given.aiconfigurator, *THEIRS.split()]
    print(f"{'':16}{'CPU s':>8}{'TTFT ms':>10}{'TPOT ms':>10}")
    spent = {}
    for name, command in commands.items():
        spent[name], found = min((measure(command) for _ in range(given.runs)), key=lambda r: r[0])
        print(f"{name:16}{spent[name]:8.2f}{found['TTFT']:10.1f}{found['TPOT']:10.2f}")
    if len(spent) > 1:
        print(f"ratio: {spent['AIConfigurator'] / spent['Ridgeline']:.1f}")


if __name__ == "__main__":
    main()
