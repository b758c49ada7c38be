"""The whole search over HTTP: the twin's server with four slots has its knee at 0.95 x 4 users.

Run by `make acceptance`; its figure stands in docs/acceptance.md. On a machine with more work than
cores the client is the limit, and the search then says that instead of a knee.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance
COMMAND = [sys.executable, "-m", "ridgeline.cli.main"]
STUDY = """\
name: slots
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM}
workload: {arrivals: {users: 4}, prompts: {tokens: 128}, output_tokens: {max: 32}}
baseline: {max_num_seqs: 4}
"""


def test_the_knee_of_four_slots(tmp_path: Path) -> None:
    file, result = tmp_path / "slots.yaml", tmp_path / "k.json"
    file.write_text(STUDY)
    server = subprocess.Popen(
        [*COMMAND, "twin", str(file), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://" in line)
        url = "http://" + line.split("http://")[1].split()[0]
        sizes = ["--prompt-tokens", "128", "--output-tokens", "32", "--requests", "40"]
        limits = ["--most", "32", "--minutes", "5", "--json", str(result), "--quiet"]
        done = subprocess.run(
            [*COMMAND, "knee", url, *sizes, *limits, "--out", str(tmp_path / "o")],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert done.returncode == 0, done.stderr
    body = json.loads(result.read_text())
    knee = body["knee"]
    print(f"\nknee {knee['value']:.2f} users ({knee['low']} to {knee['high']}), 0.95 N = 3.8")
    assert knee["value"] == pytest.approx(3.8, abs=0.3)
    assert body["measured"] is True
