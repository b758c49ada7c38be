"""The far side of `ssh` and `docker` on this machine: a server whose children are nobody's else.

A container is a child of docker's daemon and a remote program one of sshd: both outlive a client
that is killed, and see its end only as the end of their input. The programs `ssh` and `docker`
that `install` writes are such clients, which ask this server to start what they are told.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLIENT = """\
#!{python}
import json, os, signal, socket, sys, threading
words, kind = sys.argv[1:], {kind!r}

def ask(body):
    link = socket.socket(socket.AF_UNIX)
    link.connect({address!r})
    socket.send_fds(link, [json.dumps(body).encode() + b"\\n"], [1, 2])
    return link

def both(near, far):
    def copy(a, b):
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    for a, b in ((near, far), (far, near)):
        threading.Thread(target=copy, args=(a, b), daemon=True).start()

def forward(listening, port):
    while True:
        near, _ = listening.accept()
        try:
            both(near, socket.create_connection(("127.0.0.1", port)))
        except OSError:
            near.close()

if "-L" in words:
    _, port, _, far_port = words[words.index("-L") + 1].split(":")
    listening = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=forward, args=(listening, int(far_port)), daemon=True).start()
told = ask({{"kind": kind, "words": words, "env": dict(os.environ)}})
if kind == "docker" and words[0] == "run":
    name = words[words.index("--name") + 1]
    signal.signal(signal.SIGTERM, lambda *_: ask({{"kind": "signal", "name": name}}))
def feed():
    while data := os.read(0, 4096):
        told.sendall(data)
    told.shutdown(socket.SHUT_WR)
threading.Thread(target=feed, daemon=True).start()
answer = told.makefile().readline()
sys.exit(int(answer or 255))
"""


@dataclass
class Far:
    """What was asked, and the processes that run there by name (docker) or number (ssh)."""

    folder: Path
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """For PATH: the folder with `ssh` and `docker`, before the usual ones."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def alive(self) -> list[str]:
        return [name for name, process in self.running.items() if process.poll() is None]

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                link, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(link,), daemon=True).start()

    def one(self, link: socket.socket) -> None:
        with link:
            head, fds, _, _ = socket.recv_fds(link, 1 << 20, 2)
            while not head.endswith(b"\n"):
                head += link.recv(1 << 20)
            try:
                answer = self.answer(json.loads(head), link, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            with contextlib.suppress(OSError):
                link.sendall(f"{answer}\n".encode())

    def answer(self, body: dict[str, Any], link: socket.socket, fds: list[int]) -> int:
        self.asked.append(body)
        if body["kind"] == "signal":
            self.running[body["name"]].terminate()
            return 0
        if body["words"][:2] == ["rm", "--force"]:
            process = self.running.get(body["words"][2])
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return 0
        words, name, environment = self.inside(body)
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=fds[0], stderr=fds[1], env=environment,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        self.running[name] = process
        threading.Thread(target=self.pump, args=(link.dup(), process), daemon=True).start()
        code = process.wait()
        if body["kind"] == "docker":  # a container ends with its first process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def inside(self, body: dict[str, Any]) -> tuple[list[str], str, dict[str, str]]:
        """What is to be run. A container sees only the variables that it was given."""
        words, env = body["words"], body["env"]
        base = {name: env[name] for name in ("PATH", "HOME") if name in env}
        if body["kind"] == "ssh":
            shell = ["/bin/bash", "-c", words[-1]]  # the login shell gets one text
            return shell, str(len(self.running)), base
        entry = words.index("--entrypoint")
        given = [words[i + 1] for i, w in enumerate(words[:entry]) if w == "--env"]
        run = [words[entry + 1], *words[entry + 3 :]]
        return run, words[words.index("--name") + 1], base | {n: env[n] for n in given}

    @staticmethod
    def pump(link: socket.socket, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with link, contextlib.suppress(OSError, ValueError):
            while data := link.recv(4096):
                process.stdin.write(data)
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()


@contextlib.contextmanager
def far_side(folder: Path) -> Iterator[Far]:
    """The server, with its programs in `folder`/bin; what still runs is killed at the end."""
    (folder / "bin").mkdir()
    address = str(folder / "far.sock")
    for kind in ("ssh", "docker"):
        program = folder / "bin" / kind
        program.write_text(CLIENT.format(python=sys.executable, kind=kind, address=address))
        program.chmod(0o755)
    far = Far(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        thread = threading.Thread(target=far.serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield far
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for process in far.running.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
