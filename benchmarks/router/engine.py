"""A server with known times that takes vLLM's options: `ridgeline twin` with fixed latencies."""

import os
import sys
import tempfile

TTFT_MS, ITL_MS = "50", "20"
STUDY = """\
name: known-times
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM}
workload: {arrivals: {users: 1}}
"""


def main() -> None:
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(STUDY)
    os.execv(sys.executable, [
        sys.executable, "-P", "-m", "ridgeline.cli.main", "twin", file.name,
        "--host", given["--host"], "--port", given["--port"],
        "--fixed-ttft-ms", TTFT_MS, "--fixed-itl-ms", ITL_MS,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
