"""What a long benchmark has found, kept as JSON lines, so that it goes on where it was ended."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")  # a dataclass
Variant = TypeVar("Variant")


def each(
    grounds: Mapping[str, Callable[[int], Any]],
    seeds: Iterable[int],
    variants: Iterable[Variant],
    kept: Path,
    *,
    kind: Callable[..., Found],
    which: Callable[[Found], tuple[str, int, Variant]],
    run: Callable[[Any, int, Variant], Found],
) -> Iterator[Found]:
    """What `run` finds on every ground, seed and variant, seed by seed.

    kept: JSON lines; what they have is not run again. which: (ground, seed, variant) of a finding.
    Seeds whose truth has no configuration that can be shown to be feasible are left out.
    """
    varied = tuple(variants)
    done = {which(f): f for f in read(kept, kind)}
    with kept.open("a", encoding="utf-8") as file:
        for seed in seeds:
            for name, make in grounds.items():
                for variant in varied:
                    found = done.get((name, seed, variant))
                    if found is None and not math.isnan(make(seed).truth.best):
                        found = run(make(seed), seed, variant)
                        file.write(json.dumps(asdict(found)) + "\n")  # type: ignore[call-overload]
                        file.flush()
                    if found is not None:
                        yield found


def read(kept: Path, kind: Callable[..., Found]) -> list[Found]:
    """Findings that a file has; none without a file."""
    if not kept.exists():
        return []
    return [kind(**json.loads(line)) for line in kept.read_text("utf-8").splitlines()]
