"""A server with known times that takes vLLM's options: `ridgeline twin` with fixed latencies.

Its first argument is a file that holds STUDY; what starts it writes that and takes it away.
"""

import os
import sys

TTFT_MS, ITL_MS = "50", "20"
STUDY = """\
name: known-times
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM}
workload: {arrivals: {users: 1}}
"""


def main() -> None:
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    os.execv(sys.executable, [
        sys.executable, "-P", "-m", "ridgeline.cli.main", "twin", sys.argv[1],
        "--host", given["--host"], "--port", given["--port"],
        "--fixed-ttft-ms", TTFT_MS, "--fixed-itl-ms", ITL_MS,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
