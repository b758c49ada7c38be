"""`ridgeline serve` where something beside it stands still, is taken, stale or closed."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from test_serve import ENGINE, FAST, ROUTER, poke, study

from ridgeline.domain.knobs import Router
from ridgeline.serving import front as fronts
from ridgeline.serving.front import Front
from support.served import Served, Users, ask, free_port, lives, serving_of

SERVE = [sys.executable, "-P", "-m", "ridgeline.cli.main", "serve"]
SLOW = """\
#!/bin/sh
# a Python with vLLM, whose import takes long
if [ "$1" = "-" ]; then
  echo $$ >> "{folder}/asked"; sleep {slow_s}
  [ "$2" = identify ] && echo "@@"; exit 1
fi
shift 2
exec {engine} "$@"
"""


def installation(folder: Path, slow_s: float) -> list[str]:
    folder.mkdir()
    program = folder / "python3"
    engine = " ".join(ENGINE[:2])
    program.write_text(SLOW.format(folder=folder, slow_s=slow_s, engine=engine))
    program.chmod(0o755)
    return [str(program), "-m", "vllm.x", "{model}"]


def test_a_hung_newcomer_and_a_slow_check_cost_the_healthy_replica_nothing(tmp_path: Path) -> None:
    """15 s, because a router is given up after 10 s of silence."""
    hangs = tmp_path / "hangs"
    environment = {"STAND_IN_HANGS": str(hangs)}
    old, new = installation(tmp_path / "old", 0.0), installation(tmp_path / "new", 13.0)
    file = study(tmp_path, command=old, environment=environment)
    with serving_of(file, tmp_path / "state", "--hung-seconds", "30") as served:
        hangs.touch()
        served.below(served.replica(0)["url"])[0].kill()
        served.wait_for("lost")
        found: list[tuple[int, dict]] = []
        extra = {"stream": True}
        stream = threading.Thread(
            target=lambda: found.append(ask(served.port, tokens=1500, extra=extra))
        )
        stream.start()
        served.wait_for("ready", 3)  # and hangs from now on, as it enters
        study(tmp_path, seqs=9, command=new, environment=environment)
        served.change()
        asked = tmp_path / "new" / "asked"
        served.wait(asked.exists, 5.0)
        begun = time.monotonic()
        ages = []
        while time.monotonic() - begun < 12.5:
            time.sleep(0.5)
            ages.append(time.time() - (served.folder / "serve.json").stat().st_mtime)
        assert max(ages) < 4.0  # the loop went on
        stream.join()
        assert found[0][0] == 200, found
        assert not served.events("router-lost")


class RouterWorld:
    """A router of its own, kept by nobody else."""

    def __init__(self, folder: Path, port: int) -> None:
        self.told: list[tuple[str, str]] = []
        self.port = port
        self.front = Front(
            Router(command=tuple(ROUTER)), "127.0.0.1", port, url=f"http://127.0.0.1:{port}",
            logs=folder, tell=lambda event, words: self.told.append((event, words)),
        )  # fmt: skip

    def until(self, what: str, limit_s: float = 15.0) -> float:
        """Keep it until that was told; the longest that a turn took, in seconds."""
        longest, end = 0.0, time.monotonic() + limit_s
        while what not in [event for event, _ in self.told] + ["up"] * self.front.up:
            assert time.monotonic() < end, self.told
            begun = time.monotonic()
            self.front.keep([])
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.05)
        return longest


def test_a_hung_router_is_killed_without_a_wait_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fronts, "SILENT_S", 3.0)
    world = RouterWorld(tmp_path, free_port())
    world.until("up")
    found = [p for p in psutil.Process().children(recursive=True)
             if str(world.port) in p.cmdline()]  # fmt: skip
    for process in found[1:]:
        process.suspend()
    assert world.until("router-lost") < 0.5  # its guard alone would have waited for 10 s
    begun = time.monotonic()
    world.until("up")
    assert time.monotonic() - begun < 5.0
    assert world.front.restarts == 1
    begun = time.monotonic()
    while not world.front.end(kill=True):
        assert time.monotonic() - begun < 5.0
        time.sleep(0.05)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True


def test_a_router_is_not_taken_for_ours_when_another_process_answers(tmp_path: Path) -> None:
    port = free_port()
    words = [*ROUTER, "--host", "127.0.0.1", "--port", str(port), "--worker-urls"]
    with subprocess.Popen(words) as other:
        try:
            begun = time.monotonic()
            while not listens(port):
                assert time.monotonic() - begun < 10.0
            world = RouterWorld(tmp_path, port)
            while world.front.failure is None:
                assert time.monotonic() - begun < 15.0, world.told
                world.front.keep([])
                assert not world.front.up
                time.sleep(0.05)
            assert "in use" in world.front.failure or f"process {other.pid}" in world.front.failure
            assert other.poll() is None
        finally:
            other.kill()
    while not world.front.end(kill=True):
        time.sleep(0.05)


def test_a_second_serve_on_the_port_is_refused_while_the_first_one_starts(tmp_path: Path) -> None:
    file = study(tmp_path, environment={"STAND_IN_STARTS_S": "30"})
    with serving_of(file, tmp_path / "state", ready_s=0) as served:
        served.wait_for("starting", 2)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", served.port))  # nothing listens there yet
        words = [*SERVE, str(file), "--port", str(served.port), "--state", str(tmp_path / "b")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2
        assert "has this port; give another --port" in done.stderr.splitlines()[-1]
        assert not (tmp_path / "b" / "events.jsonl").exists()


def test_a_change_that_needs_more_gpus_is_refused_and_nothing_moves(tmp_path: Path) -> None:
    head = "hardware: {gpu: H100-SXM, count: 4}\n"
    file = study(tmp_path)
    file.write_text(head + file.read_text())
    with serving_of(file, tmp_path / "state", "--gpus", "0,1", *FAST) as served:
        served.forget()
        study(tmp_path, replicas=3)
        file.write_text(head + file.read_text())
        served.change()
        served.wait_for("refused")
        (refused,) = served.events("refused")
        assert {e["event"] for e in served.events()} == {"note", "refused"}
        assert "needs 3 GPUs, 2 are to be used" in refused["words"]
        assert ask(served.port)[0] == 200
        assert [r["state"] for r in served.state()["replicas"]] == ["up", "up"]


def apply(file: Path, state: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVE, str(file), "--state", str(state), "--apply", *more],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_an_apply_is_answered_for_itself_and_a_stale_one_is_nobodys(tmp_path: Path) -> None:
    file, state = study(tmp_path), tmp_path / "state"
    state.mkdir()
    stale = {"name": "x", "file": str(file), "experiment": "other", "engine": None}
    (state / "apply.json").write_text(json.dumps(stale))
    with serving_of(file, state, *FAST) as served:
        served.change()
        served.wait_for("unchanged")
        assert ask(served.port)[1]["seqs"] == "8"  # not 16, as somebody once wanted
        # of two at once one is refused, the other one is carried out; neither is told the other's
        third = study(tmp_path, seqs=33, name="third.yaml")
        both = [apply(file, state, "--experiment", "other"), apply(third, state)]
        said = [process.communicate(timeout=60)[1] for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 2]
        assert ask(served.port)[1]["seqs"] == ("16" if codes[0] == 0 else "33")
        assert "another --apply waits for its answer" in said[codes.index(2)]
        assert said[codes.index(0)].count(" changed: ") == 1
        # what was rolled back is not what a later SIGHUP reads
        bad = apply(study(tmp_path, seqs=13, name="bad.yaml"), state)
        assert "rolling-back" in bad.communicate(timeout=60)[1]
        assert bad.returncode == 3
        count = len(served.events("unchanged"))
        served.change()
        served.wait_for("unchanged", count + 1)
        # a serve that ends meanwhile leaves nobody waiting
        served.look()
        slow = study(tmp_path, seqs=7, name="slow.yaml", environment={"STAND_IN_STARTS_S": "60"})
        last = apply(slow, state)
        served.wait_for("changing", 3)
        served.process.kill()
        assert "has ended before it answered" in last.communicate(timeout=20)[1]
        assert last.returncode == 3
        served.wait_gone()


def terminal(tmp_path: Path) -> tuple[Served, int]:
    """A serve that a terminal of its own controls, and the terminal's other end."""
    file, port = study(tmp_path), free_port()
    words = [*SERVE, str(file), "--port", str(port), "--state", str(tmp_path / "state"), *FAST]
    main, other = pty.openpty()
    code = "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0);"
    code += "os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=other, stdout=other, stderr=other,
        start_new_session=True, text=True, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(other)
    return Served(process, tmp_path / "state", port), main


def read_from(descriptor: int, over: threading.Event) -> threading.Thread:
    def work() -> None:
        os.set_blocking(descriptor, False)
        while not over.wait(0.05):
            with suppress(OSError):
                os.read(descriptor, 65536)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_closed_terminal_and_one_that_nobody_reads_stop_no_supervision(tmp_path: Path) -> None:
    served, main = terminal(tmp_path)
    try:
        over = threading.Event()
        reader = read_from(main, over)
        served.wait_for("serving")
        over.set()
        reader.join()
        os.set_blocking(main, True)
        time.sleep(5.0)  # a table each half a second: the terminal's buffer is full
        served.below(served.replica(0)["url"])[0].kill()
        served.wait_for("lost")
        served.wait_for("up", 3)
        os.close(main)  # its window is closed
        served.wait_for("terminal-closed")
        served.below(served.replica(1)["url"])[0].kill()
        served.wait_for("up", 4)
        assert ask(served.port)[0] == 200
        assert served.stop(signal.SIGTERM) == 0
        assert served.left() == []
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def test_a_reader_of_its_output_that_ends_costs_no_request(tmp_path: Path) -> None:
    file, port = study(tmp_path), free_port()
    words = [*SERVE, str(file), "--port", str(port), "--state", str(tmp_path / "state"), *FAST]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:  # fmt: skip
        served = Served(process, tmp_path / "state", port)
        served.wait_for("serving")
        assert process.stderr is not None
        process.stderr.close()
        with Users(port, 4, tokens=20, pause_s=0.05) as users:
            served.below(served.replica(0)["url"])[0].kill()
            served.wait_for("up", 3)
        assert users.statuses().keys() == {200}
        assert served.stop(signal.SIGTERM) == 0


def test_one_replica_and_no_router_named_needs_no_router(tmp_path: Path) -> None:
    file = study(tmp_path, replicas=1, router=None)
    with serving_of(file, tmp_path / "state") as served:
        assert (
            "it has the URL itself, as with --router none" in (tmp_path / "state.out").read_text()
        )
        assert ask(served.port)[1]["port"] == str(served.port)
        study(tmp_path, replicas=1, seqs=5, router={"command": ROUTER})
        served.change()
        served.wait_for("changed")


def test_after_a_kill_the_next_one_waits_for_what_still_ends(tmp_path: Path) -> None:
    file, state = study(tmp_path), tmp_path / "state"
    with serving_of(file, state, *FAST) as served:
        served.look()
        engines = [served.below(r["url"])[0] for r in served.state()["replicas"]]
        for engine in engines:
            engine.suspend()  # heeds no TERM: its guard takes 10 s
        served.process.kill()
        served.process.wait()
    with serving_of(file, state, *FAST, ready_s=0) as again:
        again.forget()
        again.wait_for("starting")
        begun = [e["event"] for e in again.events()]
        assert begun.index("waiting") < begun.index("starting")
        assert not any(map(lives, engines))
        again.wait_for("serving")
        assert ask(again.port)[0] == 200


def test_another_router_is_not_told_as_changed(tmp_path: Path) -> None:
    file = study(tmp_path)
    with serving_of(file, tmp_path / "state") as served:
        study(tmp_path, router={"command": ROUTER, "policy": "cache_aware"})
        served.change()
        served.wait_for("refused")
        assert "another router" in served.events("refused")[0]["words"]
        assert file.exists()
        poke(f"http://127.0.0.1:{served.port}", "/remove_worker?url=http://127.0.0.1:9")
