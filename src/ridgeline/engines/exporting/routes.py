"""Who sends requests where in a deployment's file: routers, Services, selectors.

Of one pool's part of a file: its requests may reach its own servers and no others. Pools make this
mistake possible, and a file with it starts and answers.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ridgeline.engines.exporting.deployment import Deployment
from ridgeline.engines.exporting.reading import devices

URLS = "--worker-urls"  # vllm-router's, and of what takes its options
ADD = "see what ridgeline export writes"
Problems = Iterator[str]
Object = Mapping[str, Any]


def compose_routes(services: Mapping[str, Any], wanted: Deployment) -> Problems:
    """Routers of a Compose file against the servers in it."""
    names = {name: service for name, service in services.items() if devices(service)}
    routed = False
    for name, service in services.items():
        words = _words(service.get("entrypoint")) + _words(service.get("command"))
        urls = _worker_urls(words)
        if urls is None:
            continue
        routed = True
        hosts = [urlsplit(url).hostname or url for url in urls]
        own = {n: [n, s.get("container_name"), s.get("hostname")] for n, s in names.items()}
        yield from _workers(name, hosts, own)
    if wanted.router is not None and not routed:
        yield f"there is no router ({URLS}) before its servers: {ADD}"


def cluster_routes(bodies: Sequence[Object], wanted: Deployment) -> Problems:
    """Routers and Services of a cluster's objects against the servers among them."""
    workloads = [one for one in bodies if one.get("kind") in ("Deployment", "StatefulSet")]
    services = [one for one in bodies if one.get("kind") == "Service"]
    servers = [one for one in workloads if _has_gpus(one)]
    routers = [(one, urls) for one in workloads if (urls := _worker_urls(_started(one)))]
    for one, urls in routers:
        hosts = [(urlsplit(url).hostname or url).split(".")[:2] for url in urls]
        own = {f"{_name(s)}-{r}": [[f"{_name(s)}-{r}", s["spec"].get("serviceName")]]
               for s in servers for r in range(int(s["spec"].get("replicas", 1)))}  # fmt: skip
        yield from _workers(_name(one), hosts, own)
    if wanted.router is not None and not routers:
        yield f"there is no router ({URLS}) before its servers: {ADD}"
    for one in workloads:
        chosen = (one["spec"].get("selector") or {}).get("matchLabels")
        if not _chooses(chosen, one):
            yield f"{_name(one)}: its selector is not of its own pods: set matchLabels"
    entry = [one for one, _ in routers] or servers
    entered = False
    for service in services:
        selector = (service.get("spec") or {}).get("selector")
        chosen = [one for one in workloads if _chooses(selector, one)]
        if not chosen:
            yield f"Service {_name(service)}: its selector is of no pods here: {selector}"
        headless = (service.get("spec") or {}).get("clusterIP") == "None"
        entered |= any(one is its for one in chosen for its in entry)
        if routers and not headless and any(one is its for one in chosen for its in servers):
            yield f"Service {_name(service)}: it goes past the router, to the servers"
    if not entered:
        yield f"no Service leads to its {'router' if routers else 'servers'}: {ADD}"


def overlaps(bodies: Sequence[Object]) -> Problems:
    """Selectors of a cluster's objects that are of the pods of several workloads."""
    workloads = [one for one in bodies if one.get("kind") in ("Deployment", "StatefulSet")]
    for one in bodies:
        selector = (one.get("spec") or {}).get("selector")
        if one.get("kind") != "Service":
            selector = (selector or {}).get("matchLabels")
        chosen = [_name(its) for its in workloads if _chooses(selector, its)]
        if len(chosen) > 1:
            which = f"{one['kind']} {_name(one)}"
            yield f"{which}: its selector is of the pods of {' and '.join(chosen)}"


def doubles(bodies: Sequence[Object]) -> Problems:
    """Objects of one kind and name: the last of them replaces the others."""
    seen = set()
    for one in bodies:
        place = (one.get("kind"), (one.get("metadata") or {}).get("namespace"), _name(one))
        if place in seen:
            which = f"{one.get('kind')} {_name(one)}"
            yield f"two objects are called {which}: the last replaces the other"
        seen.add(place)


def _workers(name: str, hosts: Sequence[Any], own: Mapping[str, Sequence[Any]]) -> Problems:
    """A router's workers against the servers, each of which has several names."""
    known = [one for names in own.values() for one in names if one]
    for host in hosts:
        if host not in known:
            told = host if isinstance(host, str) else ".".join(host)
            yield f"{name}: {URLS} names {told}, which is none of its servers: {', '.join(own)}"
    for server, names in own.items():
        if not any(host in names for host in hosts):
            yield f"{name}: {URLS} leaves out {server}"


def _worker_urls(words: Sequence[str]) -> list[str] | None:
    """The URLs in a command line, which may be a shell's one word; None: it is no router's."""
    for part in words:
        if URLS not in part:
            continue
        line = list(words) if part == URLS else shlex.split(part.replace("$$", "$"))
        if URLS not in line:
            continue
        rest = line[line.index(URLS) + 1 :]
        end = next((i for i, word in enumerate(rest) if not re.match(r"\w+://", word)), len(rest))
        return rest[:end]
    return None


def _words(given: Any) -> list[str]:
    return shlex.split(given) if isinstance(given, str) else [str(word) for word in given or ()]


def _started(one: Object) -> list[str]:
    """Command-line words of all containers of a workload."""
    containers = one["spec"]["template"]["spec"]["containers"]
    return [str(w) for c in containers for key in ("command", "args") for w in c.get(key) or ()]


def _has_gpus(one: Object) -> bool:
    containers = one["spec"]["template"]["spec"]["containers"]
    limits = [(c.get("resources") or {}).get("limits") or {} for c in containers]
    return any("nvidia.com/gpu" in its for its in limits)


def _chooses(selector: Any, one: Object) -> bool:
    """Whether a selector of labels is of the pods of a workload."""
    labels = (one["spec"]["template"].get("metadata") or {}).get("labels") or {}
    return bool(selector) and all(labels.get(k) == v for k, v in selector.items())


def _name(one: Object) -> str:
    return str((one.get("metadata") or {}).get("name"))
