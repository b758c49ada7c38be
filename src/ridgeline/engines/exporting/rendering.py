"""Deployments as text: Docker Compose, Kubernetes, SkyPilot, Modal."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.engines.exporting.deployment import (
    PORT,
    ROUTER_PACKAGE,
    Deployment,
    is_pinned,
)
from ridgeline.engines.exporting.names import gpu_name
from ridgeline.engines.router import router_words

# Target -> (template, the file's name)
FILES = {
    "compose": ("compose.yaml.j2", "compose.yaml"),
    "kubernetes": ("kubernetes.yaml.j2", "kubernetes.yaml"),
    "skypilot": ("skypilot.yaml.j2", "skypilot.yaml"),
    "modal": ("modal.py.j2", "modal_app.py"),
}
TOGETHER = ("compose", "kubernetes")  # one file holds all pools of a configuration


def render(deployment: Deployment, target: str) -> str:
    """The file's text; raises BadInput where the platform has no name for the GPU."""
    return render_pools((deployment,), target)


def files_of(deployments: Sequence[Deployment], target: str) -> dict[str, str]:
    """Name of a file -> its text. Compose and Kubernetes hold all pools in one file; a file for
    SkyPilot or Modal is one service. Errors as in `render`.
    """
    name = FILES[target][1]
    if len(deployments) == 1 or target in TOGETHER:
        return {name: render_pools(deployments, target)}
    stem, dot, end = name.partition(".")
    return {f"{stem}-{d.key}{dot}{end}": render(d, target) for d in deployments}


def render_pools(deployments: Sequence[Deployment], target: str) -> str:
    """One file of all these pools, for a target of TOGETHER; errors as in `render`."""
    import jinja2  # noqa: PLC0415

    loader = jinja2.PackageLoader("ridgeline.engines.exporting")
    # text for people and YAML, not HTML; every value goes through `q`
    environment = jinja2.Environment(  # noqa: S701
        loader=loader, trim_blocks=True, undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["q"] = _quoted
    environment.filters["literal"] = lambda text: text.replace("$", "$$")  # Compose interpolates
    template = environment.get_template(FILES[target][0])
    if target == "compose":
        first = deployments[0]
        app = first if first.pool is None else replace(first, pool=None)
        pools, host_port = [], PORT
        for d in deployments:
            pools.append({"d": d, "host_port": host_port, **_compose(d)})
            host_port += d.replicas + (d.router is not None)
        notes = list(dict.fromkeys(note for d in deployments for note in d.notes))
        secrets = list(dict.fromkeys(name for d in deployments for name in d.secrets))
        return _ended(
            template.render(
                app=app, pools=pools, notes=notes, secrets=secrets, port=PORT, pinned=is_pinned
            )
        )
    texts = [
        _ended(template.render(d=d, port=PORT, pinned=is_pinned(d.image), **_MORE[target](d)))
        for d in deployments
    ]  # fmt: skip
    return "---\n".join(texts)


def _ended(text: str) -> str:
    return text.rstrip("\n") + "\n"


def _quoted(value: Any) -> str:
    """As JSON, which YAML and Python read alike (texts, lists of texts and mappings of texts)."""
    return json.dumps(value, ensure_ascii=False)


def _compose(d: Deployment) -> dict[str, Any]:
    per = d.gpus_per_replica
    starts = [d.first_gpu + r * per for r in range(d.replicas)]
    gpus = [[str(g) for g in range(start, start + per)] for start in starts]
    urls = [f"http://{d.server}-{r}:{PORT}" for r in range(d.replicas)]
    router = "router" if d.pool is None else f"router-{d.key}"
    return {"gpus": gpus, "router": _router(d, urls), "router_name": router}


def _kubernetes(d: Deployment) -> dict[str, Any]:
    urls = [f"http://{d.label}-{r}.{d.label}-pods:{PORT}" for r in range(d.replicas)]
    literals = " ".join(f"--from-literal={n}=..." for n in d.secrets)
    product = gpu_name(d.gpu, "kubernetes")
    return {"product": product, "router": _router(d, urls), "literals": literals}


def _skypilot(d: Deployment) -> dict[str, Any]:
    line = shlex.join([*d.command, "--host", "0.0.0.0", "--port", str(PORT)])  # noqa: S104
    literals = " ".join(f"--secret {n}" for n in d.secrets)
    return {"accelerator": gpu_name(d.gpu, "skypilot"), "line": line, "literals": literals}


def _modal(d: Deployment) -> dict[str, Any]:
    literals = " ".join(f"{n}=..." for n in d.secrets)
    return {"accelerator": gpu_name(d.gpu, "modal"), "literals": literals}


def _router(d: Deployment, urls: list[str]) -> str:
    """The router's shell line, its package with it: there is no image of it."""
    if d.router is None:
        return ""
    words = router_words(d.router, PORT, PORT + 1000, urls)
    host = words.index("--host") + 1
    words[host] = "0.0.0.0"  # noqa: S104  inside its container
    return f"pip install --quiet {ROUTER_PACKAGE} && exec {shlex.join(words)}"


_MORE: Mapping[str, Callable[[Deployment], dict[str, Any]]] = {
    "kubernetes": _kubernetes, "skypilot": _skypilot, "modal": _modal,
}  # fmt: skip
