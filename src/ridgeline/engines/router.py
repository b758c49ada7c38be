"""A balancer before the replicas, so that they have one URL: vllm-router, or one like it.

It takes vllm-router's options. Its process stands beside the engines': own group, own log, gone
with us. Counters and tokenizers are asked at the replicas, so that it makes no difference to them.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.domain.knobs import Router
from ridgeline.engines.knobs import NotAsked, interpreter_of
from ridgeline.engines.launching import HOST

INSTALL = "install it (pip install vllm-router; scripts/vllm_router_env.sh), or name its program"
DISTRIBUTION = "vllm-router"


def router_words(
    router: Router, port: int, metrics_port: int, urls: Sequence[str], host: str = HOST
) -> list[str]:
    """Its whole command line, before the replicas at `urls`; `host`: the address it listens on."""
    policy = [] if router.policy is None else ["--policy", router.policy]
    return [
        *router.command, "--host", host, "--port", str(port), *policy,
        "--prometheus-host", HOST, "--prometheus-port", str(metrics_port),
        *router.arguments, "--worker-urls", *urls,
    ]  # fmt: skip


def router_facts(router: Router) -> Mapping[str, object]:
    """What is kept with a run about the router before its replicas; absent is what is not known."""
    facts = {
        "command": list(router.command),
        "policy": router.policy,
        "arguments": list(router.arguments),
        "version": next(filter(None, map(_version, router.command)), None),
    }
    return {name: value for name, value in facts.items() if value}


def _version(program: str) -> str | None:
    """Of the package in the environment that the program is of; None for any other word.

    The program need not be a command's first word: `chrt --rr 1 vllm-router`.
    """
    found = shutil.which(program)
    python = None if found is None else interpreter_of(found, None)
    if python is None or isinstance(python, NotAsked) or not Path(python).exists():
        return None
    ask = f"import importlib.metadata as m; print(m.version({DISTRIBUTION!r}))"
    try:
        done = subprocess.run(  # noqa: S603  the program's own interpreter
            [python, "-I", "-c", ask], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
