"""The command line that starts an engine: here, in a container, on another host over SSH.

What runs elsewhere is no process of ours. A container is removed by its name once its client has
ended, and a far host gets a small shell program that ends the engine when its standard input
closes, which it does when SSH, Ridgeline or the line between the machines goes, whatever the cause.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.domain.knobs import Launch
from ridgeline.engines.process import ENDED

HOST = "127.0.0.1"
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  an engine that is asked for at its host's own address
PORT_TAKEN = 98  # the exit code, as errno has it

_SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes",
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
    "-o", "LogLevel=ERROR",  # else a line for every connection before the engine listens
)  # fmt: skip

# `setsid` makes a process group of its own that can be ended as a whole; descriptor 3 is the input.
_FAR = """\
if grep -qsE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6; then
 echo 'Address already in use: port {port} of this host' >&2
 printf '\\n{ended} {taken}\\n'; exit {taken}
fi
exec 3<&0
{variables}
setsid {command} </dev/null 3<&- &
p=$!
(
 while read -r _; do :; done <&3
 kill -s TERM -- "-$p"; i=0
 while [ "$i" -lt 100 ] && kill -s 0 -- "-$p"; do sleep 0.1; i=$((i+1)); done
 kill -s KILL -- "-$p"
) >/dev/null 2>&1 &
w=$!
wait "$p"; c=$?
kill -s KILL "$w" 2>/dev/null
kill -s KILL -- "-$p" 2>/dev/null
{cleanup}
printf '\\n{ended} %s\\n' "$c"  # a line of its own, also after a progress bar
exit "$c"
"""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What is started here, and where its server answers.

    `cleanup` and `holds_input` go to the process's guard. `ours`: the engine's processes are ours,
    so what they take from this host can be read.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    url: str
    cleanup: tuple[str, ...] = ()
    holds_input: bool = False
    ours: bool = True


def command_line(
    words: Sequence[str],
    environment: Mapping[str, str | None],
    launch: Launch,
    port: int,
    *,
    gpus: Sequence[str] | None = None,
    near_port: int | None = None,
) -> CommandLine:
    """The engine's own words where the launch wants them.

    `port` is where it listens; `gpus`: those that it may use. `near_port`: this end of a tunnel.
    """
    environment = dict(environment)
    command = tuple(words)
    cleanup: tuple[str, ...] = ()
    if launch.image is not None:
        name = f"ridgeline-{os.getpid()}-{port}"
        cleanup = ("docker", "rm", "--force", name)
        command = _in_image(words, environment, launch, name, gpus)
    elif gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if launch.host is None:
        ours = launch.image is None
        added = {name: value for name, value in environment.items() if value is not None}
        return CommandLine(command, added, f"http://{HOST}:{port}", cleanup, ours=ours)
    near = (near_port or port) if launch.tunnel else port
    forward = ("-L", f"{HOST}:{near}:{HOST}:{port}") if launch.tunnel else ()
    address = HOST if launch.tunnel else launch.host.rpartition("@")[2]
    far = far_program(command, environment, port, cleanup)
    return CommandLine(
        (*_SSH, *forward, launch.host, f"exec sh -c {shlex.quote(far)}"),
        {}, f"http://{address}:{near}", holds_input=True, ours=False,
    )  # fmt: skip


def asking_elsewhere(
    launch: Launch, command: Sequence[str], *, gpu: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How a program on standard input reaches the engine's own Python, where that is not here.

    Two command lines: without and with the word `identify`. An image that is not there yet is not
    fetched for it.
    """

    def line(*words: str) -> tuple[str, ...]:
        inside: tuple[str, ...]
        if launch.image is not None:
            gpus = ("--gpus", "all") if gpu else ()
            inside = ("docker", "run", "--rm", "--interactive", "--pull", "never", *gpus)
            inside = (*inside, "--entrypoint", "python3", launch.image, "-", *words)
            return inside if launch.host is None else (*_SSH, launch.host, shlex.join(inside))
        assert launch.host is not None
        variables = [f"{k}={v}" for k, v in launch.environment.items() if v]
        before = shlex.join(["env", *variables])
        if Path(command[0]).name.startswith("python"):
            python = shlex.quote(command[0])
        else:  # the interpreter that the program names in its first line
            python = f"$(sed -n '1s/^#! *//p' \"$(command -v {shlex.quote(command[0])})\")"
        far = f"exec {before} {python} - {shlex.join(words)}"
        return (*_SSH, launch.host, f"exec sh -c {shlex.quote(far)}")

    return line(), line("identify")


def program_needed(launch: Launch, command: Sequence[str]) -> str:
    """The program that must be on this machine for the launch."""
    if launch.host is not None:
        return "ssh"
    return command[0] if launch.image is None else "docker"


def model_words(model: str, launch: Launch) -> str:
    """The model as the engine is to be told it: in a container, a folder by its whole path."""
    if launch.image is not None and launch.host is None and Path(model).is_dir():
        return str(Path(model).resolve())
    return model


def _in_image(
    words: Sequence[str],
    environment: Mapping[str, str | None],
    launch: Launch,
    name: str,
    gpus: Sequence[str] | None,
) -> tuple[str, ...]:
    """`docker run` with the host's network and memory, folders named in the words read-only.

    Variables are named only: docker takes their values from its own environment, so that none
    shows in the list of processes.
    """
    assert launch.image is not None
    command = ["docker", "run", "--rm", "--init", "--name", name]
    command += ["--network", "host", "--ipc", "host"]
    if gpus is not None:  # the quotes are docker's: it reads the value as a row of a table
        command += ["--gpus", f'"device={",".join(gpus)}"']
    for variable, value in environment.items():
        command += ["--env", variable] if value != "" else []
    if launch.host is None:
        folders = dict.fromkeys(w for w in words if w.startswith("/") and Path(w).is_dir())
        for folder in folders:
            command += ["--volume", f"{folder}:{folder}:ro"]
    return (*command, *launch.container, "--entrypoint", words[0], launch.image, *words[1:])


def far_program(
    words: Sequence[str],
    environment: Mapping[str, str | None],
    port: int,
    cleanup: Sequence[str] = (),
) -> str:
    """The shell program that runs the words on another host and ends them with its input."""
    variables = [
        f"export {name}={shlex.quote(value)}" if value else f"unset {name}"
        for name, value in environment.items()
        if value is not None  # as it is set there: a secret does not travel in a command line
    ]
    ending = f"{shlex.join(cleanup)} >/dev/null 2>&1" if cleanup else ":"
    return _FAR.format(
        port=port, taken=PORT_TAKEN, ended=ENDED, variables="\n".join(variables) or ":",
        command=shlex.join(words), cleanup=ending,
    )  # fmt: skip
