"""An engine behind a real sshd on the loopback: the tunnel, the log, and no engine left behind.

Needs Debian's openssh-server; `RIDGELINE_SSHD` names the program where it is not on the PATH.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines import started
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.started import ServerLaunch, free_port
from ridgeline.engines.vllm import VllmEngine
from ridgeline.workload.schedule import draw_schedule

pytestmark = pytest.mark.acceptance
ENGINE = Path(__file__).parents[1] / "engines" / "twin_engine.py"
MARK = "served-by-a-real-sshd"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name that `ssh` knows, behind an sshd of our own."""
    sshd = os.environ.get("RIDGELINE_SSHD") or shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(sshd).exists():
        pytest.fail("no sshd: apt-get install openssh-server, or set RIDGELINE_SSHD")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True
        )
    port = free_port()
    (tmp_path / "allowed").write_text((tmp_path / "user.pub").read_text())
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {tmp_path}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/allowed\nPidFile none\nUsePAM no\nPermitRootLogin yes\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"Host box\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {tmp_path}/user\n StrictHostKeyChecking no\n"
        f" UserKnownHostsFile {tmp_path}/known\n LogLevel ERROR\n"
    )
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    daemon = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
    try:
        deadline = time.monotonic() + 10
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield "box"
    finally:
        daemon.terminate()
        daemon.wait()


def configuration(host: str) -> Configuration:
    command = (sys.executable, str(ENGINE), "{model}", MARK)
    launch = Launch(command=command, host=host, ready_s=60.0, environment={"ODD": "it's $HOME"})
    return Configuration("Qwen/Qwen3-4B", Knobs(), engine="vllm", launch=launch)


def engines() -> list[psutil.Process]:
    """The engine's shell, marked by a word of its command line, and the server below it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "twin" in words and any(w.endswith(".yaml") for w in words):
            found.append(process)
    return found


def gone(before: set[int], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while {p.pid for p in engines()} - before and time.monotonic() < deadline:
        time.sleep(0.05)
    return not {p.pid for p in engines()} - before


def test_it_serves_through_the_tunnel_and_is_gone(tmp_path: Path, host: str) -> None:
    before = {p.pid for p in engines()}
    work = Workload(
        Arrivals(users=4), Prompts(Lengths(12)), Outputs(Lengths(6), ignore_eos=True),
        duration_s=2.0, warmup_s=0.0,
    )  # fmt: skip
    sink = MemorySink()
    with VllmEngine(ServerLaunch(log_folder=tmp_path / "logs")).start(configuration(host)) as up:
        assert {p.pid for p in engines()} - before
        up.drive(DrivePlan(draw_schedule(work), "salt"), sink, SilentWatch())
        assert "http://" in up._replicas[0].process.log_text()
    assert gone(before, 1.0)
    assert len(sink.requests) > 50
    assert all(r.failure is None and r.output_tokens == 6 for r in sink.requests)


@pytest.mark.parametrize("killed", ["ridgeline", "guard", "ssh"])
def test_kill_9_of_any_part_here_ends_the_engine_there(
    tmp_path: Path, host: str, killed: str
) -> None:
    before = {p.pid for p in engines()}
    script = (
        "import time; from pathlib import Path\n"
        "from ridgeline.domain.knobs import Configuration, Knobs, Launch\n"
        "from ridgeline.engines.started import ServerLaunch\n"
        "from ridgeline.engines.vllm import VllmEngine\n"
        f"wanted = {configuration(host)!r}\n"
        f"engine = VllmEngine(ServerLaunch(log_folder=Path({str(tmp_path)!r})))\n"
        "with engine.start(wanted):\n"
        "    print('up', flush=True); time.sleep(600)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    try:
        assert ours.stdout.readline() == "up\n"
        (guard,) = psutil.Process(ours.pid).children()
        (client,) = guard.children()
        assert {p.pid for p in engines()} - before
        os.kill({"ridgeline": ours.pid, "guard": guard.pid, "ssh": client.pid}[killed],
                signal.SIGKILL)  # fmt: skip
        if killed == "guard":  # the client lives on without one: it ends with its own input
            assert not client.is_running() or gone(before, 20.0)
        assert gone(before, 20.0)
    finally:
        ours.kill()
        ours.wait()
        ours.stdout.close()


def test_an_engine_that_dies_there_is_known_at_once(tmp_path: Path, host: str) -> None:
    """With its own words, and although the connection could stay."""
    dies = (sys.executable, "-c", "print('ValueError: no room', flush=True); raise SystemExit(3)")
    launch = Launch(command=(*dies, "{model}"), host=host, ready_s=60.0)
    wanted = Configuration("m", Knobs(), engine="vllm", launch=launch)
    begun = time.monotonic()
    with (
        pytest.raises(RunFailed, match=r"exit code 3 before it was ready: ValueError: no room"),
        VllmEngine(ServerLaunch(log_folder=tmp_path / "logs")).start(wanted),
    ):
        pass
    assert time.monotonic() - begun < 20.0  # not the 60 s of the ready limit


def test_a_port_that_is_taken_there_is_told(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = iter([other.getsockname()[1], free_port()])
        monkeypatch.setattr(started, "free_port", lambda: next(ports))
        with (
            pytest.raises(RunFailed, match=r"port: .*98 before it was ready: Address already in"),
            VllmEngine(ServerLaunch(log_folder=tmp_path / "logs")).start(configuration(host)),
        ):
            pass
