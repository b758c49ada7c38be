"""What is wrong with a deployment's file, held against the configuration that it is to run.

Files are edited by people after they were exported, so the text is read, not what made it. A check
says what, where and what to do; the platforms' own schemas are for their own tools.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import looks_secret, secret_in_words
from ridgeline.engines.exporting.deployment import Deployment, in_clear, is_pinned

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
Problems = Iterator[str]


def check(text: str, target: str, wanted: Deployment) -> tuple[str, ...]:
    """Problems of the file, a line each, none when it is fine; raises BadInput for unreadable text.

    GPUs, secrets in clear, probes shorter than a start, images that move, flags that differ.
    """
    found = list(_CHECKS[target](text, wanted))
    found += [f"a secret stands in clear: {where}" for where in _secrets_in(text)]
    return tuple(dict.fromkeys(found))


def _compose(text: str, wanted: Deployment) -> Problems:
    services = _mapping(_yaml(text), "services")
    engines = {n: s for n, s in services.items() if _devices(s)}
    gpus = [g for s in engines.values() for d in _devices(s) for g in _gpus_of(d)]
    yield from _gpus(len(gpus), wanted, "deploy.resources.reservations.devices")
    named = [g for g in gpus if g is not None]
    if len(set(named)) < len(named):
        yield f"two servers share a GPU: device_ids {', '.join(sorted(named))}"
    for name, service in engines.items():
        yield from _image(service.get("image"), name)
        yield from _words(service.get("command") or [], wanted, name)
        yield from _variables(_listed(service.get("environment")), name)
        health = service.get("healthcheck") or {}
        allowed = _seconds(health.get("start_period", "0s"))
        allowed += _seconds(health.get("interval", "30s")) * int(health.get("retries", 3))
        yield from _probe(allowed if health else None, wanted, f"{name}: healthcheck")


def _kubernetes(text: str, wanted: Deployment) -> Problems:
    import yaml  # noqa: PLC0415

    documents = [
        d for d in _documents(text, yaml) if d.get("kind") in ("Deployment", "StatefulSet")
    ]
    gpus = 0
    for one in documents:
        pod = one["spec"]["template"]["spec"]
        for container in pod["containers"]:
            where = f"{one['metadata']['name']}, container {container['name']}"
            yield from _variables(
                {e["name"]: e.get("value") for e in container.get("env") or ()}, where
            )
            limit = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
            if limit is None:
                continue
            gpus += int(limit) * int(one["spec"].get("replicas", 1))
            if int(limit) != wanted.gpus_per_replica:
                yield (
                    f"{where}: {limit} GPUs, a replica needs {wanted.gpus_per_replica}:"
                    " set nvidia.com/gpu"
                )
            yield from _image(container.get("image"), where)
            yield from _words(container.get("args") or [], wanted, where)
            yield from _probe(_startup(container.get("startupProbe")), wanted,
                              f"{where}: startupProbe")  # fmt: skip
    yield from _gpus(gpus, wanted, "nvidia.com/gpu times replicas")


def _skypilot(text: str, wanted: Deployment) -> Problems:
    body = _yaml(text)
    resources = _mapping(body, "resources")
    count = str(resources.get("accelerators", "")).partition(":")[2]
    service = body.get("service") or {}
    yield from _gpus(int(count or 1) * int(service.get("replicas", 1)), wanted, "accelerators")
    yield from _image(str(resources.get("image_id", "")).removeprefix("docker:"), "image_id")
    yield from _words(shlex.split(str(body.get("run", ""))), wanted, "run")
    for part in ("envs", "secrets"):
        yield from _variables(body.get(part) or {}, part)
    probe = service.get("readiness_probe")
    allowed = probe.get("initial_delay_seconds", 1200) if isinstance(probe, Mapping) else None
    yield from _probe(allowed, wanted, "service.readiness_probe")


def _modal(text: str, wanted: Deployment) -> Problems:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise BadInput(f"not Python: {error.msg}", where=f"line {error.lineno}") from None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    given = {k.arg: _literal(k.value) for c in calls for k in c.keywords if k.arg}
    count = str(given.get("gpu") or "").partition(":")[2]
    servers = int(given.get("min_containers") or 1)
    yield from _gpus(int(count or 1) * servers, wanted, "gpu times min_containers")
    images = [c.args[0] for c in calls if _called(c) == "from_registry" and c.args]
    for image in images:
        yield from _image(_literal(image), "image")
    if any(_called(c) == "from_dict" for c in calls):
        yield "a secret stands in clear: Secret.from_dict; use Secret.from_name"
    words = next((_literal(n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign)
                  and getattr(n.targets[0], "id", "") == "COMMAND"), None)  # fmt: skip
    yield from _words(words or [], wanted, "COMMAND")
    environment = given.get("env")
    yield from _variables(environment if isinstance(environment, dict) else {}, "env")
    allowed = given.get("startup_timeout")
    yield from _probe(None if allowed is None else float(allowed), wanted, "startup_timeout")


_CHECKS: Mapping[str, Callable[[str, Deployment], Problems]] = {
    "compose": _compose, "kubernetes": _kubernetes, "skypilot": _skypilot, "modal": _modal,
}  # fmt: skip


def _gpus(found: int, wanted: Deployment, where: str) -> Problems:
    if found != wanted.gpus:
        needs = f"{wanted.replicas} x {wanted.gpus_per_replica}"
        yield f"{found} GPUs, the configuration needs {wanted.gpus} ({needs}): set {where}"


def _probe(allowed_s: float | None, wanted: Deployment, where: str) -> Problems:
    start = wanted.start
    if allowed_s is None:
        yield f"{where}: there is none, or it allows no start: add it"
    elif allowed_s < start.seconds:
        yield (
            f"{where}: allows {allowed_s:g} s, a start takes {start.seconds:g} s ({start.told}):"
            f" allow {start.allowed_s} s"
        )


def _image(image: Any, where: str) -> Problems:
    if not image or not is_pinned(str(image)):
        yield f"{where}: the image {image} is not pinned: give a version or a digest"


def _variables(values: Mapping[str, Any], where: str) -> Problems:
    for name, value in values.items():
        if in_clear(name, value):
            yield f"a secret stands in clear: {where}: {name}; refer to it by name"


def _words(words: Iterable[Any], wanted: Deployment, where: str) -> Problems:
    """Flags of the configuration that are missing or have another value."""
    have = [str(w) for w in words]
    leaked = secret_in_words(have)
    if leaked is not None:
        yield f"a secret stands in clear: {where}: {leaked}; vLLM takes its key from VLLM_API_KEY"
    expected = _options(wanted.words)
    found = _options(have)
    for flag, value in expected.items():
        if flag not in found:
            yield f"{where}: {flag} is missing, the configuration has {flag} {value}".rstrip()
        elif found[flag] != value:
            yield f"{where}: {flag} {found[flag]}, the configuration has {value or 'no value'}"


def _options(words: Iterable[str]) -> dict[str, str]:
    """Flag -> what follows it, as one text."""
    found: dict[str, str] = {}
    flag = None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found[flag] = value if equals else ""
        elif flag is not None:
            found[flag] = f"{found[flag]} {word}".strip()
    return found


def _secrets_in(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if looks_secret(line):
            yield f"line {number}"


def _startup(probe: Any) -> float | None:
    """Seconds that a Kubernetes startupProbe allows (its defaults: 0 + 3 x 10)."""
    if not isinstance(probe, Mapping):
        return None
    delay, period = probe.get("initialDelaySeconds", 0), probe.get("periodSeconds", 10)
    return float(delay) + float(period) * float(probe.get("failureThreshold", 3))


def _devices(service: Any) -> list[Mapping[str, Any]]:
    node: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return [d for d in node or [] if isinstance(d, Mapping)]


def _gpus_of(device: Mapping[str, Any]) -> list[str | None]:
    ids = device.get("device_ids")
    return [str(i) for i in ids] if ids else [None] * int(device.get("count") or 0)


def _seconds(text: Any) -> float:
    """A duration of Compose ("1m30s") in seconds; raises BadInput."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(text))
    if "".join(a + b for a, b in parts) != str(text):
        raise BadInput(f"{text!r} is no duration", where="healthcheck", fix="as in 90s")
    return sum(float(n) * _UNITS[unit] for n, unit in parts)


def _listed(environment: Any) -> dict[str, Any]:
    """Compose's environment, a mapping or a list of NAME=value."""
    if isinstance(environment, Mapping):
        return dict(environment)
    return dict(str(e).partition("=")[::2] for e in environment or ())


def _yaml(text: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415

    (first, *_) = _documents(text, yaml) or [{}]
    return first


def _documents(text: str, yaml: Any) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise BadInput(f"not YAML: {' '.join(str(error).split())}") from None
    return [d for d in found if isinstance(d, dict)]


def _mapping(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = body.get(key)
    if not isinstance(found, dict):
        raise BadInput(f"there is no mapping {key!r}", where="the file")
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
