"""What is wrong with a deployment's file, held against the configuration that it is to run.

Files are edited by people after they were exported, so the text is read, not what made it. A check
says what, where and what to do; the platforms' own schemas are for their own tools.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import looks_secret
from ridgeline.engines.exporting import readmodal
from ridgeline.engines.exporting.commands import command_problems, leaked_problems
from ridgeline.engines.exporting.deployment import Deployment, in_clear, is_pinned
from ridgeline.engines.exporting.names import gpu_name
from ridgeline.engines.exporting.reading import (
    accelerators,
    devices,
    documents,
    duration_s,
    gpus_of,
    listed,
    mapping,
    published,
    startup_s,
)
from ridgeline.engines.exporting.routes import cluster_routes, compose_routes, doubles, overlaps

Problems = Iterator[str]


def check_pools(text: str, target: str, wanted: Sequence[Deployment]) -> tuple[str, ...]:
    """As `check`, of a file that holds the pools of a configuration: each against its own.

    What is of no pool is looked at with the first. A file for SkyPilot or Modal is of one pool, the
    one whose name it has.
    """
    if len(wanted) == 1:
        return check(text, target, wanted[0])
    if target not in ("compose", "kubernetes"):
        mine = [d for d in wanted if re.search(rf"(?<![\w-]){d.label}(?![\w-])", text)]
        if len(mine) != 1:
            names = ", ".join(d.label for d in wanted)
            return (f"it is of none of the pools: it must be called one of {names}",)
        return check(text, target, mine[0])
    found: list[str] = []
    try:
        for deployment, part in _by_pool(text, target, wanted):
            told = _held(part, target, deployment)
            found += [f"pool {deployment.pool}: {problem}" for problem in told]
        if target == "compose":
            found += _shared(mapping(documents(text)[0], "services"))
        found += _whole(text, target)  # with comments, too, which are in no part
    except (AttributeError, KeyError, TypeError) as error:
        raise BadInput(
            f"cannot be read as a file for {target}: {error}",
            fix="see what ridgeline export writes",
        ) from None
    return tuple(dict.fromkeys(found))


def _by_pool(
    text: str, target: str, wanted: Sequence[Deployment]
) -> Iterator[tuple[Deployment, str]]:
    """Each pool with the part of the file that is its own."""
    import yaml  # noqa: PLC0415  heavy

    bodies = documents(text)
    if target == "compose":
        services = mapping(bodies[0], "services")
        places = {name: _place([f"{name}-"], [f"{d.server}-" for d in wanted],
                               [f"router-{d.key}-" for d in wanted])
                  for name in services}  # fmt: skip
        for place, deployment in enumerate(wanted):
            own = {n: s for n, s in services.items() if places[n] == place}
            yield deployment, yaml.safe_dump({**bodies[0], "services": own})
        return
    labels = [_words_of(one) for one in bodies]
    at = [_place(words, [f"{d.label}-" for d in wanted]) for words in labels]
    for place, deployment in enumerate(wanted):
        objects = [one for one, its in zip(bodies, at, strict=True) if its == place]
        yield deployment, yaml.safe_dump_all(objects)


def _words_of(one: Mapping[str, Any]) -> list[str]:
    """What says of which pool an object of a cluster is: its name and its label."""
    metadata = one.get("metadata") or {}
    label = (metadata.get("labels") or {}).get("app")
    return [f"{word}-" for word in (metadata.get("name"), label) if word]


def _place(words: Sequence[str], *beginnings: Sequence[str]) -> int:
    """The pool with the longest of the beginnings that one of the words has; the first, if none."""
    fits = [
        (len(begin), -place)
        for listed in beginnings
        for place, begin in enumerate(listed)
        if any(word.startswith(begin) for word in words)
    ]
    return -max(fits)[1] if fits else 0


def _shared(services: Mapping[str, Any]) -> Problems:
    named = [g for s in services.values() for d in devices(s) for g in gpus_of(d) if g is not None]
    if len(set(named)) < len(named):
        yield f"two servers share a GPU: device_ids {', '.join(sorted(named))}"


def check(text: str, target: str, wanted: Deployment) -> tuple[str, ...]:
    """Problems of the file, a line each, none when it is fine; raises BadInput for unreadable text.

    GPUs and their kind, model, flags and image, secrets in clear, who can reach it, and probes that
    are shorter than a measured start.
    """
    return tuple(dict.fromkeys([*_held(text, target, wanted), *_whole(text, target)]))


def _held(text: str, target: str, wanted: Deployment) -> list[str]:
    """Problems of a file, or of a pool's part of it, against what it is to run."""
    try:
        return list(_CHECKS[target](text, wanted))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(
            f"cannot be read as a file for {target}: {error}",
            fix="see what ridgeline export writes",
        ) from None


def _whole(text: str, target: str) -> list[str]:
    """Problems that are of no pool alone."""
    bodies = documents(text) if target == "kubernetes" else []
    return [*doubles(bodies), *overlaps(bodies), *_secret_lines(text)]


def _secret_lines(text: str) -> list[str]:
    lines = enumerate(text.splitlines(), 1)
    return [f"a secret stands in clear: line {n}" for n, line in lines if looks_secret(line)]


def _compose(text: str, wanted: Deployment) -> Problems:
    services = mapping(documents(text)[0], "services")
    gpus: list[str | None] = []
    for name, service in services.items():
        yield from _variables(listed(service.get("environment")), name)
        words = [*_words(service, "entrypoint"), *_words(service, "command")]
        yield from leaked_problems(words, name)
        yield from _reachable(service, name)
        if not devices(service):
            continue
        copies = int((service.get("deploy") or {}).get("replicas", service.get("scale", 1)))
        if copies != 1:
            yield f"{name}: {copies} copies of one server share its GPUs: write a service for each"
        mine = [g for d in devices(service) for g in gpus_of(d)]
        gpus += mine * copies
        if len(mine) != wanted.gpus_per_replica:
            yield f"{name}: {len(mine)} GPUs, a server needs {wanted.gpus_per_replica}: set devices"
        yield from _image(service.get("image"), wanted, name)
        yield from command_problems([w.replace("$$", "$") for w in words], wanted, name)
        health = service.get("healthcheck") or {}
        allowed = duration_s(health.get("start_period", "0s"))
        allowed += duration_s(health.get("interval", "30s")) * int(health.get("retries", 3))
        yield from _probe(allowed if health else None, wanted, f"{name}: healthcheck")
    yield from compose_routes(services, wanted)
    yield from _gpus(len(gpus), wanted, "deploy.resources.reservations.devices")
    named = [g for g in gpus if g is not None]
    if len(set(named)) < len(named):
        yield f"two servers share a GPU: device_ids {', '.join(sorted(named))}"


def _words(service: Mapping[str, Any], key: str) -> list[str]:
    """Entrypoint or command of a service, which may be one line."""
    given = service.get(key) or []
    return shlex.split(given) if isinstance(given, str) else [str(w) for w in given]


def _reachable(service: Mapping[str, Any], name: str) -> Problems:
    if service.get("network_mode") == "host":
        yield f"{name}: network_mode host makes it reachable from outside: leave it out"
    for port in service.get("ports") or ():
        if not published(port).startswith(("127.", "localhost", "[::1]", "::1")):
            yield f"{name}: port {port} is reachable from outside: publish it on 127.0.0.1"


def _kubernetes(text: str, wanted: Deployment) -> Problems:
    gpus = 0
    for one in documents(text):
        kind, name = one.get("kind"), str((one.get("metadata") or {}).get("name"))
        if kind in ("Secret", "ConfigMap"):
            held = {**(one.get("data") or {}), **(one.get("stringData") or {})}
            if kind == "Secret" and held:
                yield f"a secret stands in clear: Secret {name}; make it with kubectl, by name"
            yield from _variables(held, f"{kind} {name}")
        if kind == "Service" and (one.get("spec") or {}).get("type", "ClusterIP") != "ClusterIP":
            kind = one["spec"]["type"]
            yield f"Service {name}: type {kind} is reachable from outside the cluster"
        if kind in ("Deployment", "StatefulSet"):
            found, problems = _workload(one, name, wanted)
            gpus += found
            yield from problems
    yield from _gpus(gpus, wanted, "nvidia.com/gpu times replicas")
    yield from cluster_routes(documents(text), wanted)


def _workload(one: Mapping[str, Any], name: str, wanted: Deployment) -> tuple[int, list[str]]:
    """GPUs of a Deployment or StatefulSet, and what is wrong with it."""
    pod, problems, gpus = one["spec"]["template"]["spec"], [], 0
    if pod.get("hostNetwork"):
        problems.append(f"{name}: hostNetwork makes it reachable from outside: leave it out")
    for container in pod["containers"]:
        where = f"{name}, container {container['name']}"
        values = {e["name"]: e.get("value") for e in container.get("env") or ()}
        problems += _variables(values, where)
        words = [str(w) for key in ("command", "args") for w in container.get(key) or ()]
        problems += leaked_problems(words, where)
        if any("hostPort" in p for p in container.get("ports") or ()):
            problems.append(f"{where}: hostPort makes it reachable from outside: leave it out")
        limit = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
        if limit is None:
            continue
        gpus += int(limit) * int(one["spec"].get("replicas", 1))
        if int(limit) != wanted.gpus_per_replica:
            needs = f"a replica needs {wanted.gpus_per_replica}: set nvidia.com/gpu"
            problems.append(f"{where}: {limit} GPUs, {needs}")
        product = (pod.get("nodeSelector") or {}).get("nvidia.com/gpu.product")
        problems += _kind(product, gpu_name(wanted.gpu, "kubernetes"), f"{name}: nodeSelector")
        problems += _image(container.get("image"), wanted, where)
        problems += command_problems(words, wanted, where)
        allowed = startup_s(container.get("startupProbe"))
        problems += _probe(allowed, wanted, f"{where}: startupProbe")
    return gpus, problems


def _skypilot(text: str, wanted: Deployment) -> Problems:
    body = documents(text)[0]
    resources = mapping(body, "resources")
    kind, count = accelerators(resources.get("accelerators"))
    service = body.get("service") or {}
    policy = service.get("replica_policy")
    if policy:
        yield f"service.replica_policy: {wanted.replicas} replicas were measured, no other number"
    nodes = int(body.get("num_nodes") or 1)
    if nodes != 1:
        yield f"num_nodes: {nodes}, a replica was measured on one"
    replicas = int(service.get("replicas", (policy or {}).get("min_replicas", 1)))
    yield from _gpus(count * replicas * nodes, wanted, "accelerators")
    yield from _kind(kind, gpu_name(wanted.gpu, "skypilot"), "accelerators")
    image = str(resources.get("image_id") or "").removeprefix("docker:")
    yield from _image(image, wanted, "image_id")
    words = shlex.split(str(body.get("run", "")), comments=True)
    yield from leaked_problems(words, "run")
    yield from command_problems(words, wanted, "run")
    for part in ("envs", "secrets"):
        yield from _variables(listed(body.get(part)), part)
    probe = service.get("readiness_probe")
    # a path alone is allowed; SkyPilot waits for 1200 s then
    allowed = (
        probe.get("initial_delay_seconds", 1200) if isinstance(probe, Mapping) else probe and 1200
    )
    yield from _probe(
        None if allowed is None else float(allowed), wanted, "service.readiness_probe"
    )


def _modal(text: str, wanted: Deployment) -> Problems:
    file = readmodal.read(text)
    yield from _gpus(file.gpus * file.servers, wanted, "gpu times min_containers")
    yield from _kind(file.gpu, gpu_name(wanted.gpu, "modal"), "gpu")
    for image in file.images or (None,):
        yield from _image(image, wanted, "image")
    yield from (f"a secret stands in clear: {what}" for what in file.leaks)
    yield from _variables(file.variables, "a mapping")
    yield from leaked_problems(file.command, "COMMAND")
    yield from command_problems(file.command, wanted, "COMMAND")
    if not file.starts_command:
        yield "serve: it does not start COMMAND: subprocess.Popen([*COMMAND, ...])"
    yield from _probe(file.startup_s, wanted, "startup_timeout")


_CHECKS: Mapping[str, Callable[[str, Deployment], Problems]] = {
    "compose": _compose, "kubernetes": _kubernetes, "skypilot": _skypilot, "modal": _modal,
}  # fmt: skip


def _gpus(found: int, wanted: Deployment, where: str) -> Problems:
    if found != wanted.gpus:
        needs = f"{wanted.replicas} x {wanted.gpus_per_replica}"
        yield f"{found} GPUs, the configuration needs {wanted.gpus} ({needs}): set {where}"


def _kind(found: str | None, wanted: str | None, where: str) -> Problems:
    if wanted is not None and found is not None and found != wanted:
        yield f"{where}: {found}, the configuration is for {wanted}"


def _probe(allowed_s: float | None, wanted: Deployment, where: str) -> Problems:
    start = wanted.start
    if allowed_s is None:
        yield f"{where}: there is none, or it allows no start: add it"
    elif start.measured and allowed_s < start.seconds:
        yield (
            f"{where}: allows {allowed_s:g} s, a start takes {start.seconds:g} s ({start.told}):"
            f" allow {start.allowed_s} s"
        )


def _image(image: Any, wanted: Deployment, where: str) -> Problems:
    if not image or not is_pinned(str(image)):
        yield f"{where}: the image {image} is not pinned: give a version or a digest"
    elif str(image) != wanted.image:
        yield f"{where}: the image {image}, the configuration is for {wanted.image}"


def _variables(values: Mapping[str, Any], where: str) -> Problems:
    for name, value in values.items():
        if in_clear(str(name), value):
            yield f"a secret stands in clear: {where}: {name}; refer to it by name"
