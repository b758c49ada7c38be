"""Pieces of Compose, Kubernetes and SkyPilot files, in any of their allowed forms."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.domain.errors import BadInput

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def documents(text: str) -> list[dict[str, Any]]:
    """The mappings of a YAML text, at least one; raises BadInput, for a doubled key as well."""
    import yaml  # noqa: PLC0415

    try:
        for root in yaml.compose_all(text, yaml.SafeLoader):
            _once(root)
        found = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise BadInput(f"not YAML: {' '.join(str(error).split())}") from None
    return [d for d in found if isinstance(d, dict)] or [{}]


def _once(node: Any) -> None:
    """Raises BadInput where a mapping has a key twice: the first of them would be lost."""
    import yaml  # noqa: PLC0415

    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            _once(one)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
            place = f"line {key.start_mark.line + 1}"
            raise BadInput(f"the key {key.value!r} is there twice", where=place, fix="rename one")
        if isinstance(key, yaml.ScalarNode):
            seen.add(key.value)
        _once(value)


def mapping(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A member that must be a mapping; raises BadInput."""
    found = body.get(key)
    if not isinstance(found, dict):
        raise BadInput(f"there is no mapping {key!r}", where="the file")
    return found


def listed(variables: Any) -> dict[str, Any]:
    """Variables as a mapping, from a mapping or a list of NAME=value (SkyPilot: of mappings)."""
    if isinstance(variables, Mapping):
        return dict(variables)
    found: dict[str, Any] = {}
    for one in variables or ():
        if isinstance(one, Mapping):
            found.update(one)
        else:
            name, _, value = str(one).partition("=")
            found[name] = value
    return found


def devices(service: Any) -> list[Mapping[str, Any]]:
    """GPU reservations of a Compose service."""
    node: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return [d for d in node or [] if isinstance(d, Mapping)]


def gpus_of(device: Mapping[str, Any]) -> list[str | None]:
    """The GPUs of a reservation by their ids, None for one that is only counted.

    Raises BadInput for `count: all`: how many that is depends on the host.
    """
    ids = device.get("device_ids")
    if ids:
        return [str(i) for i in ids]
    if str(device.get("count")) == "all":
        raise BadInput("count: all takes every GPU of the host", where="devices", fix="name them")
    return [None] * int(device.get("count") or 0)


def published(port: Any) -> str:
    """The address on which Compose publishes a port, "" for all of the host's."""
    if isinstance(port, Mapping):
        return str(port.get("host_ip") or "")
    text = str(port)
    return text.rsplit(":", 2)[0] if text.count(":") >= 2 else ""


def duration_s(text: Any) -> float:
    """A duration of Compose ("1m30s") in seconds; raises BadInput."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(text))
    if not parts or "".join(a + b for a, b in parts) != str(text):
        raise BadInput(f"{text!r} is no duration", where="healthcheck", fix="as in 90s")
    return sum(float(n) * _UNITS[unit] for n, unit in parts)


def startup_s(probe: Any) -> float | None:
    """Seconds that a Kubernetes startupProbe allows (its defaults: 0 + 3 x 10)."""
    if not isinstance(probe, Mapping):
        return None
    delay, period = probe.get("initialDelaySeconds", 0), probe.get("periodSeconds", 10)
    return float(delay) + float(period) * float(probe.get("failureThreshold", 3))


def accelerators(given: Any) -> tuple[str | None, int]:
    """SkyPilot's accelerators as (name, how many): "H200:2", "H200", {H200: 2} or a list of one.

    Raises BadInput for a choice of several: which of them runs is not known.
    """
    if given is None:
        return None, 0
    if isinstance(given, Mapping):
        found = [(str(k), int(v or 1)) for k, v in given.items()]
    else:
        texts = (
            [given]
            if isinstance(given, str)
            else list(given if isinstance(given, Sequence) else ())
        )
        found = [(t.partition(":")[0], int(t.partition(":")[2] or 1)) for t in map(str, texts)]
    if len(found) != 1:
        raise BadInput(
            "one kind of GPU is expected", where="accelerators", fix="name the measured one"
        )
    return found[0]
