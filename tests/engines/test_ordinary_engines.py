"""What Ridgeline starts is scheduled in the ordinary way, also when Ridgeline itself is not.

The client may go before all other work (`chrt`); an engine that inherits that takes the client's
place on the core, and is not what a server that runs by itself is.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from twin_server_support import running

from support.realtime import realtime, realtime_allowed

# Started by a Ridgeline: tells how it and a process that it starts are scheduled, as the kernel
# says it. Fields of proc(5), counted after the name: 19 is nice, 41 the policy (0 is SCHED_OTHER).
TELLS = """
import subprocess, sys
show = "import pathlib; print(pathlib.Path('/proc/self/stat').read_text(), flush=True)"
exec(show)
subprocess.run([sys.executable, "-c", show], check=True)
"""
STARTS = """
import json, sys, time
from pathlib import Path
from ridgeline.engines.process import EngineProcess
log = Path(sys.argv[1])
process = EngineProcess([sys.executable, "-c", sys.argv[2]], log)
while process.poll() is None:
    time.sleep(0.02)
process.stop()
print(process.poll())
"""
ORDINARY = (0, 0)  # nice, policy


def started_under(tmp_path: Path, *before: str) -> list[tuple[int, int]]:
    log = tmp_path / "engine.log"
    words = [*before, sys.executable, "-c", STARTS, str(log), TELLS]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "0", log.read_text()
    lines = [line.rsplit(")", 1)[1].split() for line in log.read_text().splitlines() if line]
    return [(int(fields[19 - 3]), int(fields[41 - 3])) for fields in lines]


@pytest.mark.skipif(not realtime_allowed(), reason="real-time scheduling is not allowed here")
@pytest.mark.parametrize(
    "before",
    [
        ("chrt", "--rr", "1"),
        ("chrt", "--fifo", "50"),
        ("chrt", "--reset-on-fork", "--rr", "1"),
        ("nice", "-n", "-10"),
        ("nice", "-n", "-10", "chrt", "--rr", "1"),
    ],
    ids=" ".join,
)
def test_an_engine_does_not_inherit_what_the_client_was_given(
    tmp_path: Path, before: tuple[str, ...]
) -> None:
    assert started_under(tmp_path, *before) == [ORDINARY, ORDINARY]


def test_who_asked_for_less_gets_less(tmp_path: Path) -> None:
    """`nice ridgeline ...` is a wish for all of it."""
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = (min(19, mine + 5), 0)
    assert started_under(tmp_path, "nice", "-n", "5") == [wanted, wanted]


@pytest.mark.skipif(not realtime_allowed(), reason="real-time scheduling is not allowed here")
def test_a_study_under_chrt_has_ordinary_engines_and_a_client_that_is_first(tmp_path: Path) -> None:
    """Engine and router of a whole study; what each process was is read while it runs."""
    here = Path(__file__).parent
    (tmp_path / "prepared.log").write_text("INFO up")
    engine = [sys.executable, str(here / "fake_engine.py"), str(tmp_path / "prepared.log"), "serve"]
    body = {
        "name": "first", "model": "tiny", "engine": "vllm", "repeats": 1,
        "launch": {
            "command": [*engine, "{model}"], "ready_s": 30,
            "router": {"command": [sys.executable, str(here / "fake_router.py")]},
        },
        "workload": {"arrivals": {"users": 1}, "prompts": {"tokens": 8},
                     "output_tokens": {"max": 4}, "warmup_s": 0.5, "duration_s": 3.0},
        "baseline": {"max_num_seqs": 4}, "experiments": [],
    }  # fmt: skip
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(body))
    words = ["chrt", "--rr", "1", sys.executable, "-P", "-m", "ridgeline.cli.main"]
    with (tmp_path / "said").open("w") as said:
        study = subprocess.Popen(
            [*words, "study", str(file), "--out", str(tmp_path / "out")], stdout=said, stderr=said
        )
    seen: dict[str, int] = {}
    try:
        until = time.monotonic() + 60
        while len(seen) < 2 and study.poll() is None and time.monotonic() < until:
            seen |= policies(study.pid)
            time.sleep(0.05)
        assert os.sched_getscheduler(study.pid) == os.SCHED_RR
    finally:
        study.terminate()
        study.wait(40)
    said_text = (tmp_path / "said").read_text()
    assert seen == {"fake_engine.py": os.SCHED_OTHER, "fake_router.py": os.SCHED_OTHER}, said_text


@pytest.mark.skipif(not realtime_allowed(), reason="real-time scheduling is not allowed here")
def test_a_twin_that_is_started_first_stays_first(tmp_path: Path) -> None:
    """The wish for short slices, which every twin has, is one of the ordinary policy."""
    with running(tmp_path, "--fixed-ttft-ms", "10", "--fixed-itl-ms", "10") as ordinary:
        assert os.sched_getscheduler(ordinary.process.pid) & ~os.SCHED_RESET_ON_FORK == 0
    with realtime(), running(tmp_path, "--fixed-ttft-ms", "10", "--fixed-itl-ms", "10") as first:
        assert os.sched_getscheduler(first.process.pid) == os.SCHED_RR


def policies(root: int) -> dict[str, int]:
    """The policy of every engine and router below `root`, by its script; guards are none."""
    found = {}
    for process in psutil.Process(root).children(recursive=True):
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if len(words) > 1 and Path(words[1]).name in ("fake_engine.py", "fake_router.py"):
                found[Path(words[1]).name] = os.sched_getscheduler(process.pid)
    return found
