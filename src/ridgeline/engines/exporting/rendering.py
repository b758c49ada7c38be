"""Deployments as text: Docker Compose, Kubernetes, SkyPilot, Modal."""

import json
import shlex
from collections.abc import Callable, Mapping
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


def render(deployment: Deployment, target: str) -> str:
    """The file's text; raises BadInput where the platform has no name for the GPU."""
    import jinja2  # noqa: PLC0415

    loader = jinja2.PackageLoader("ridgeline.engines.exporting")
    # text for people and YAML, not HTML; every value goes through `q`
    environment = jinja2.Environment(  # noqa: S701
        loader=loader, trim_blocks=True, undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["q"] = _quoted
    environment.filters["literal"] = lambda text: text.replace("$", "$$")  # Compose interpolates
    more = _MORE[target](deployment)
    text = environment.get_template(FILES[target][0]).render(
        d=deployment, port=PORT, pinned=is_pinned(deployment.image), **more
    )
    return text.rstrip("\n") + "\n"


def _quoted(value: Any) -> str:
    """As JSON, which YAML and Python read alike (texts, lists of texts and mappings of texts)."""
    return json.dumps(value, ensure_ascii=False)


def _compose(d: Deployment) -> dict[str, Any]:
    per = d.gpus_per_replica
    gpus = [[str(g) for g in range(r * per, (r + 1) * per)] for r in range(d.replicas)]
    urls = [f"http://vllm-{r}:{PORT}" for r in range(d.replicas)]
    return {"gpus": gpus, "router": _router(d, urls)}


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
    "compose": _compose, "kubernetes": _kubernetes, "skypilot": _skypilot, "modal": _modal,
}  # fmt: skip
