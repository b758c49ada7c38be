"""From the `pools` of a study file to those of a configuration, with the checks between keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import nearest
from ridgeline.domain.knobs import Configuration, Pool
from ridgeline.domain.workload import Workload
from ridgeline.workload.enginemodel import PoolPart

if TYPE_CHECKING:
    from ridgeline.workload.studyfile import Path_, Source


def with_pools(
    source: "Source",
    configuration: Configuration,
    parts: Mapping[str, PoolPart] | None,
    workload: Workload,
    path: "Path_",
) -> Configuration:
    """The configuration divided into these pools, which stand at `path`; raises BadInput.

    A pool's knobs are the configuration's with the pool's own on top. Every class of the workload
    is served by exactly one pool.
    """
    if not parts:
        return replace(configuration, pools=())
    names = [kind.name for kind in workload.classes]
    if not names:
        what = "pools are for classes of requests, and the workload has none"
        raise source.error(path, what, "add workload.classes, or leave pools out")
    of: dict[str, str] = {}
    pools = []
    for name, part in parts.items():
        here = (*path, name)
        listed = tuple(part.classes or (name,))
        for kind in listed:
            place = here if part.classes is None else (*here, "classes")
            wrong, fix = _untakable(kind, name, names, of)
            if wrong:
                raise source.error(place, wrong, fix)
            of[kind] = name
        urls = _urls(source, configuration, part, here)
        knobs = configuration.knobs.with_changes(_given(part.set))
        pools.append(Pool(name, listed, knobs, urls))
    missing = [kind for kind in names if kind not in of]
    if missing:
        what = f"no pool serves the class {missing[0]!r}"
        raise source.error(path, what, f"add it to the classes of one of {', '.join(parts)}")
    found = replace(configuration, pools=tuple(pools))
    if configuration.engine == "endpoint":
        return found
    return replace(found, gpus=found.layout_gpus)


def _untakable(kind: str, pool: str, names: list[str], of: Mapping[str, str]) -> tuple[str, str]:
    """Why the pool cannot serve the class, and what to do; empty where it can."""
    if kind not in names:
        what = f"there is no class {kind!r}{nearest(kind, names)} for the pool {pool}"
        return what, f"workload.classes has {', '.join(names)}"
    if kind in of:
        return f"the class {kind!r} is in two pools, {of[kind]} and {pool}", "give it to one"
    return "", ""


def _urls(
    source: "Source", configuration: Configuration, part: PoolPart, path: "Path_"
) -> tuple[str, ...]:
    """Where the pool's servers are, for an endpoint, which needs them."""
    given = (part.url,) if isinstance(part.url, str) else tuple(part.url or ())
    if configuration.engine == "endpoint":
        if not given:
            raise source.error(path, "a pool of engine: endpoint needs the key 'url'")
        if _given(part.set):
            what = "engine options reach no server that runs already"
            raise source.error((*path, "set"), what, "start the pool's servers with them")
    elif given:
        what = f"url belongs to engine: endpoint, not to {configuration.engine}"
        raise source.error((*path, "url"), what)
    for at, url in enumerate(given):
        here = (*path, "url") if isinstance(part.url, str) else (*path, "url", at)
        source.check_url(here, url)
    return given


def _given(part: Any) -> dict[str, Any]:
    """The knobs that stand in the file (a key without a value counts as not given)."""
    if part is None:
        return {}
    found = {name: getattr(part, name) for name in part.model_fields_set}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if v is not None}


def pools_change(base: Configuration, configuration: Configuration) -> str:
    """What differs in the pools, in words; empty when nothing does."""
    if base.pools == configuration.pools:
        return ""
    if not configuration.pools:
        return "one pool"
    told = []
    for pool in configuration.pools:
        own = [
            f"{name} {value}" for name, value in pool.knobs.given().items()
            if name != "data_parallel_size" and getattr(configuration.knobs, name) != value
        ]  # fmt: skip
        servers = pool.knobs.data_parallel_size or 1
        words = ", ".join([f"{servers} for {' and '.join(pool.classes)}", *own])
        told.append(f"{pool.name} ({words})")
    return f"pools {', '.join(told)}"
