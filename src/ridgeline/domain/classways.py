"""Ways to serve several classes of requests on the same GPUs, as configurations.

One pool first come first served, one pool with the engine's priority scheduling, or a pool for each
group of classes: every split of the replicas.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ridgeline.domain.knobs import Configuration, Pool
from ridgeline.domain.workload import TrafficClass, Workload

FCFS, PRIORITY, POOLS = "one pool, fcfs", "one pool, priority", "separate pools"
URGENT, BATCH = "urgent", "batch"
# What vLLM's priority scheduling is not. (what one may hope for, why it is not so)
CANNOT = (
    ("priority for an urgent request when all slots are taken", "vLLM takes no slot from a"
     " running request: it waits until one ends; preemption gives KV blocks to a request that runs"
     " already, never to one that waits"),
    ("priority as a fair share", "there is no ageing: the batch class waits for as long as"
     " urgent requests fill the engine"),
)  # fmt: skip


def one_pool(base: Configuration, replicas: int, policy: str) -> Configuration:
    """All classes on so many replicas, under a scheduling policy of vLLM."""
    change = {"data_parallel_size": replicas, "scheduling_policy": policy}
    made = replace(base, knobs=base.knobs.with_changes(change), pools=())
    return replace(made, gpus=made.layout_gpus)


def pooled(
    base: Configuration, replicas: Mapping[str, int], group: Mapping[str, str]
) -> Configuration:
    """A pool for each group of classes, with so many replicas; inside each first come first served.

    group: class -> the group that it is in.
    """
    pools = []
    for name, count in replicas.items():
        change = {"data_parallel_size": count, "scheduling_policy": "fcfs"}
        kinds = tuple(kind for kind, its in group.items() if its == name)
        pools.append(Pool(name, kinds, base.knobs.with_changes(change)))
    made = replace(base, pools=tuple(pools))
    return replace(made, gpus=made.layout_gpus)


def splits(replicas: int, groups: Sequence[str]) -> Iterator[dict[str, int]]:
    """Every way to divide the replicas among the groups, each with one at least."""
    first, *rest = groups
    if not rest:
        yield {first: replicas}
        return
    for count in range(1, replicas - len(rest) + 1):
        for others in splits(replicas - count, rest):
            yield {first: count, **others}


def groups_of(classes: Sequence[TrafficClass]) -> dict[str, str]:
    """Class -> URGENT or BATCH: those with limits of their own, else those of smallest priority,
    else the one with the least work are urgent.
    """
    limited = {c.name for c in classes if c.slo.limits}
    if 0 < len(limited) < len(classes):
        return {c.name: URGENT if c.name in limited else BATCH for c in classes}
    ranks: dict[str, float] = {c.name: c.priority or 0 for c in classes}
    if len(set(ranks.values())) == 1:
        ranks = {c.name: c.prompts.mean_tokens + c.outputs.tokens.mean for c in classes}
    first = min(ranks.values())
    return {name: URGENT if rank == first else BATCH for name, rank in ranks.items()}


def ranked(load: Workload, group: Mapping[str, str]) -> Workload:
    """The workload with a priority on every request: its own, or by its group where none has."""
    if any(kind.priority is not None for kind in load.classes):
        return load
    kinds = tuple(replace(c, priority=int(group[c.name] == BATCH)) for c in load.classes)
    return replace(load, classes=kinds)


def odd_priorities(load: Workload) -> Iterator[str]:
    """What is odd about the priorities of the classes: smaller is earlier in vLLM."""
    ranks = {kind.name: kind.priority or 0 for kind in load.classes}
    if any(kind.priority is not None for kind in load.classes) and len(set(ranks.values())) == 1:
        yield "all classes have the same priority: one pool with priorities is one pool, fcfs"
    limited = [kind.name for kind in load.classes if kind.slo.limits]
    for name in limited:
        before = [k for k, rank in ranks.items() if k not in limited and rank < ranks[name]]
        if before:
            yield (
                f"{before[0]} (priority {ranks[before[0]]}) goes before {name} ({ranks[name]}),"
                " which has limits: in vLLM the smaller priority is the earlier"
            )
