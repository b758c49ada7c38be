"""Engines in containers and on other hosts; `docker` and `ssh` are stand-ins that run them here."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fake_far import Far, far_side

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.engines.launching import command_line, far_program
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.started import ServerLaunch, free_port
from ridgeline.engines.vllm import VllmEngine
from ridgeline.experiment.engines import _check_installed

FAKE = Path(__file__).with_name("fake_engine.py")
ODD = 'it\'s a "$HOME" `x` \\ & ; é'  # what no quoting may change


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with far_side(tmp_path) as found:
        monkeypatch.setenv("PATH", found.path)
        yield found


def engine(tmp_path: Path, ready_s: float = 20.0) -> VllmEngine:
    return VllmEngine(ServerLaunch(log_folder=tmp_path / "logs", ready_s=ready_s))


def configuration(tmp_path: Path, ending: str, **launch: object) -> Configuration:
    prepared = tmp_path / "prepared.log"
    prepared.write_text("INFO up")
    command = (sys.executable, str(FAKE), str(prepared), ending, "{model}")
    given = Launch(command=command, ready_s=20.0, **launch)  # type: ignore[arg-type]
    return Configuration("tiny", Knobs(max_num_seqs=4), engine="vllm", launch=given)


def gone(far: Far, limit_s: float = 15.0) -> bool:
    deadline = time.monotonic() + limit_s
    while far.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not far.alive()


def test_the_container_gets_its_gpus_variables_folders_and_words(tmp_path: Path) -> None:
    launch = Launch(image="vllm/vllm-openai:v0.21.0", container=("--shm-size", "16g"))
    line = command_line(
        ["vllm", "serve", str(tmp_path), "--x", ODD], {"A": "secret", "GONE": ""}, launch, 4711,
        gpus=["2", "3"],
    )  # fmt: skip
    name = f"ridgeline-{os.getpid()}-4711"
    assert line.command == (
        "docker", "run", "--rm", "--init", "--name", name, "--network", "host", "--ipc", "host",
        "--gpus", '"device=2,3"', "--env", "A", "--volume", f"{tmp_path}:{tmp_path}:ro",
        "--shm-size", "16g", "--entrypoint", "vllm", "vllm/vllm-openai:v0.21.0",
        "serve", str(tmp_path), "--x", ODD,
    )  # fmt: skip
    assert line.environment == {"A": "secret", "GONE": ""}
    assert line.cleanup == ("docker", "rm", "--force", name)
    assert line.url == "http://127.0.0.1:4711"
    assert not line.ours


def test_a_variable_without_a_value_is_the_starters_own() -> None:
    """Secrets: docker takes it from its environment, SSH's login has it; no command line does."""
    taken = {"HF_TOKEN": None, "GONE": ""}
    here = command_line(["vllm"], taken, Launch(), 4711)
    assert here.environment == {"GONE": ""}
    image = command_line(["vllm"], taken, Launch(image="a"), 4711)
    assert image.command[image.command.index("--env") + 1] == "HF_TOKEN"
    assert image.environment == {"GONE": ""}
    host = command_line(["vllm"], taken, Launch(host="box"), 4711)
    assert "HF_TOKEN" not in host.command[-1]


def test_a_variable_that_is_to_be_taken_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    launch = Launch(command=(sys.executable, "{model}"), environment={"HF_TOKEN": None})
    spec = Configuration("tiny", Knobs(), engine="llamacpp", launch=launch)
    with pytest.raises(BadInput, match="HF_TOKEN is to be taken from the environment and is not"):
        _check_installed(spec)
    monkeypatch.setenv("HF_TOKEN", "x")
    assert _check_installed(spec) is None


def test_a_host_is_reached_by_a_tunnel_or_at_its_address() -> None:
    tunnel = command_line(["vllm"], {}, Launch(host="me@box"), 4711, near_port=4712)
    assert tunnel.command[:2] == ("ssh", "-T")
    assert tunnel.command[-4:-1] == ("-L", "127.0.0.1:4712:127.0.0.1:4711", "me@box")
    assert (tunnel.url, tunnel.holds_input) == ("http://127.0.0.1:4712", True)
    direct = command_line(["vllm"], {}, Launch(host="me@box", tunnel=False), 4711)
    assert "-L" not in direct.command
    assert direct.url == "http://box:4711"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_nothing_is_lost_between_here_and_the_far_program(shell: str) -> None:
    """Through the login shell of the far host and its `sh -c`."""
    show = "import os, sys; print([*sys.argv[1:], os.environ['V'], os.environ.get('GONE')])"
    far = far_program([sys.executable, "-c", show, ODD, ""], {"V": ODD, "GONE": ""}, free_port())
    # its standard input stays open: an end of it is the word to stop
    running = subprocess.Popen(
        [shell, "-c", f"exec sh -c {shlex.quote(far)}"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "GONE": "x"},
    )  # fmt: skip
    assert running.stdin is not None
    assert running.stdout is not None
    said = running.stdout.read().splitlines()
    assert said == [repr([ODD, "", ODD, None]), "", "ridgeline: ended there with exit code 0"]
    assert running.wait() == 0
    running.stdin.close()
    running.stdout.close()


def test_a_port_that_is_taken_there_is_told(tmp_path: Path, far: Far) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            ["sh", "-c", far_program(["true"], {}, port)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 98
    assert f"Address already in use: port {port}" in done.stderr


@pytest.mark.parametrize("where", [{"image": "engine:1"}, {"host": "me@box"},
                                   {"image": "engine:1", "host": "me@box"}])  # fmt: skip
def test_it_starts_serves_and_leaves_nothing(
    tmp_path: Path, far: Far, where: dict[str, str]
) -> None:
    wanted = configuration(tmp_path, "child", **where)
    with engine(tmp_path).start(wanted) as endpoint:
        assert endpoint.alive()
        log = endpoint._replicas[0].process.log_text()
        assert "INFO up" in log  # streamed back
        running = far.alive()
        assert running
        roots = [psutil.Process(far.running[name].pid) for name in running]
        family = [p for root in roots for p in (root, *root.children(recursive=True))]
        assert any("sleep" in p.name() for p in family)
    assert gone(far, 0.5)
    assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("where", [{"image": "engine:1"}, {"host": "me@box"}])
def test_kill_9_of_ridgeline_leaves_nothing_there(
    tmp_path: Path, far: Far, where: dict[str, str]
) -> None:
    """The far side is no descendant: only its own watch or the clean-up can end it."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from ridgeline.domain.knobs import Configuration, Knobs, Launch\n"
        "from ridgeline.engines.started import ServerLaunch\n"
        "from ridgeline.engines.vllm import VllmEngine\n"
        f"wanted = {configuration(tmp_path, 'serve', **where)!r}\n"
        f"engine = VllmEngine(ServerLaunch(log_folder=Path({str(tmp_path)!r})))\n"
        "with engine.start(wanted):\n"
        "    print('up', flush=True); time.sleep(600)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    assert ours.stdout.readline() == "up\n"
    assert far.alive()
    os.kill(ours.pid, signal.SIGKILL)
    ours.wait()
    ours.stdout.close()
    assert gone(far)


def test_a_container_that_ignores_the_signal_is_removed_by_name(tmp_path: Path, far: Far) -> None:
    from ridgeline.engines import guard  # noqa: PLC0415

    assert guard.GRACE_S <= 10.0
    stubborn = [sys.executable, "-c", "import signal, time\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                "print('up', flush=True); time.sleep(600)"]  # fmt: skip
    line = command_line(stubborn, {}, Launch(image="engine:1"), 4711)
    process = EngineProcess(line.command, tmp_path / "log", {}, cleanup=line.cleanup)
    deadline = time.monotonic() + 20
    while "up" not in process.log_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    # the client alone is killed, as a user or the kernel might
    subprocess.run(["pkill", "-9", "-P", str(process.pid)], check=True)
    process.stop()
    assert gone(far, 1.0)


@pytest.mark.parametrize(
    ("where", "said", "kind"),
    [
        ({"host": "me@box"}, "ssh: connect to host box port 22: Connection refused", "host"),
        ({"host": "me@box"}, "me@box: Permission denied (publickey).", "host"),
        ({"image": "no:1"}, "docker: Error response from daemon: no such image: no:1", "image"),
    ],
)
def test_a_way_that_is_closed_is_told_in_its_own_words(
    tmp_path: Path, far: Far, where: dict[str, str], said: str, kind: str
) -> None:
    program = tmp_path / "bin" / ("ssh" if "host" in where else "docker")
    program.write_text(f"#!/bin/sh\necho {shlex.quote(said)} >&2\nexit 255\n")
    wanted = configuration(tmp_path, "serve", **where)
    with pytest.raises(RunFailed) as caught, engine(tmp_path).start(wanted):
        pass
    assert str(caught.value).count(said) == 1
    assert caught.value.failure_class == kind  # type: ignore[attr-defined]


NOISE = "; ".join(f"echo 'channel {n}: open failed: connect failed' >&2" for n in range(9))


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("printf 'Loading safetensors: 50%%\\r' >&2; exit 137", ""),
        ("printf 'no newline' >&2; exit 137", ""),
        ("echo boom; exit 137", NOISE),
        ("yes 0123456789 | head -c 300000; exit 137", NOISE),
    ],
)
def test_the_end_there_is_seen_whatever_stands_around_it(
    tmp_path: Path, words: str, after: str
) -> None:
    """SSH stays while somebody holds a connection through it, and may write meanwhile."""
    far = far_program(["sh", "-c", words], {}, free_port())
    script = f"sh -c {shlex.quote(far)}; {after or ':'}; exec sleep 60"
    process = EngineProcess(["sh", "-c", script], tmp_path / "log", holds_input=True)
    try:
        code, deadline = None, time.monotonic() + 10
        while code is None and time.monotonic() < deadline:
            code = process.poll()
            time.sleep(0.02)
        assert code == 137
        time.sleep(0.2)  # more is written: what was seen is not forgotten
        assert process.poll() == 137
        assert "ridgeline:" not in process.log_text()
    finally:
        os.kill(process.pid, signal.SIGKILL)  # or it would give the far side its 14 s
        process.stop()


def test_ssh_does_not_write_between_the_engines_lines() -> None:
    command = command_line(["vllm"], {}, Launch(host="box"), 4711).command
    assert command[command.index("LogLevel=ERROR") - 1] == "-o"


def test_the_engine_there_is_asked_for_its_options(tmp_path: Path, far: Far) -> None:
    """Its own first line names the interpreter; the container's is python3."""
    from fake_vllm import install  # noqa: PLC0415

    from ridgeline.domain.errors import BadInput  # noqa: PLC0415
    from ridgeline.engines.vllm import VllmDialect  # noqa: PLC0415

    vllm = install(tmp_path / "fake")
    command = (str(vllm.program), "serve", "{model}")
    launch = Launch(command=command, host="me@box", environment=vllm.environment)
    wanted = Configuration("m", Knobs(watermark=0.1), engine="vllm", launch=launch)
    with pytest.raises(BadInput, match=r"vLLM 0\.21\.0 has no option --watermark"):
        VllmDialect().check(wanted, command)
    fine = replace(wanted, knobs=Knobs(max_num_seqs=4))
    assert VllmDialect().check(fine, command) is None
    assert not vllm.started.exists()
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho 'ssh: no route' >&2; exit 255\n")
    elsewhere = replace(fine, launch=replace(launch, host="you@box"))
    assert "ssh: no route" in (VllmDialect().check(elsewhere, command) or "")
