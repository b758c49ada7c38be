"""A stand-in for an engine that really streams: vLLM's options in, `ridgeline twin` behind them.

usage: twin_engine.py MODEL [--port N and anything else that an engine is given]
`RIDGELINE_TEST_TTFT_MS` and `RIDGELINE_TEST_ITL_MS` are its times.
"""

import os
import sys
import tempfile

STUDY = """\
name: stand-in
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM}
workload: {arrivals: {users: 1}}
"""


def main() -> None:
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(STUDY)
    times = [os.environ.get(f"RIDGELINE_TEST_{name}_MS", "5") for name in ("TTFT", "ITL")]
    os.execv(sys.executable, [
        sys.executable, "-P", "-m", "ridgeline.cli.main", "twin", file.name,
        "--host", given["--host"], "--port", given["--port"],
        "--fixed-ttft-ms", times[0], "--fixed-itl-ms", times[1],
    ])  # fmt: skip


main()
