"""A client that is killed in the middle of a run has lost the last second at most."""

import signal
import subprocess
import sys
from pathlib import Path

from ridgeline.store.journal import read_journal
from support.mock_server import MockProcess, plain_stream

USERS = 6
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from ridgeline.domain.run import SilentWatch
from ridgeline.store.journal import Journal
from support import driving

class Told(SilentWatch):
    def live(self, figures):
        print(figures.elapsed_s, figures.sent, flush=True)

journal = Journal(Path(sys.argv[2]), {"run_id": "killed"})
driving.MemorySink = lambda: journal
driving.drive(sys.argv[1], driving.closed(6, duration_s=60.0), watch=Told())
"""


def test_a_killed_client_loses_the_last_second_at_most(tmp_path: Path) -> None:
    here, path = str(Path(__file__).parent.parent), tmp_path / "journal"
    with MockProcess([plain_stream(3, first_ms=10, gap_ms=5)]) as mock:
        command = [sys.executable, "-c", SCRIPT, mock.url, str(path), here]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            elapsed_s, sent = 0.0, 0
            while elapsed_s < 2.0:
                words = client.stdout.readline().split()
                elapsed_s, sent = float(words[0]), int(words[1])
            client.send_signal(signal.SIGKILL)
    found = read_journal(path).requests
    assert sent > 100
    assert max(r.end_ns or 0 for r in found) > (elapsed_s - 1.0) * 1e9
    # nothing is missing before that but what was still on its way
    indices = {r.index for r in found}
    assert len(set(range(max(indices))) - indices) <= USERS
    assert all(r.chunk_ns is not None and len(r.chunk_ns) == 3 for r in found)
