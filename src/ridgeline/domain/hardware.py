"""The GPU catalogue: dense peak figures with their source, looked up by a forgiving name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ridgeline.domain.errors import BadInput, nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Rates are per GPU; FLOP/s are DENSE (a figure with 2:4 sparsity is twice that).

    `memory_bytes` is the vendor's decimal figure, `driver_memory_bytes` what the driver shows
    (None = not known). `link_bytes_per_s` is one direction. `flops` maps "bf16", "fp8", "fp4" to
    FLOP/s; a precision that the GPU lacks is missing from it. `confidence`: high, medium or low.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    driver_memory_bytes: int | None
    bandwidth_bytes_per_s: float
    flops: Mapping[str, float]
    link: str | None
    link_bytes_per_s: float | None
    source: str
    confidence: str

    @property
    def total_memory_bytes(self) -> int:
        """What an engine sees as total memory: the driver's figure, the vendor's where unknown."""
        return self.driver_memory_bytes or self.memory_bytes

    def peak_flops(self, precision: str) -> float:
        """Dense FLOP/s of "bf16", "fp8" or "fp4"; raises BadInput where the GPU lacks it."""
        try:
            return self.flops[precision]
        except KeyError:
            has = ", ".join(self.flops)
            raise BadInput(
                f"{self.name} has no {precision} tensor throughput (it has {has})"
            ) from None


def differing_rates(one: Gpu, other: Gpu) -> tuple[str, ...]:
    """Names of the figures that decide a step's time and are not the same."""
    names = ("bandwidth_bytes_per_s", "link_bytes_per_s", "flops")
    return tuple(n for n in names if getattr(one, n) != getattr(other, n))


@cache
def catalogue() -> tuple[Gpu, ...]:
    """All GPUs that Ridgeline knows."""
    return tuple(gpu_from_row(row) for row in _rows())


def gpu(name: str) -> Gpu:
    """The GPU of that name; case, '-', '_' and spaces do not matter.

    Raises BadInput that names the nearest known GPU.
    """
    try:
        return _by_key()[_key(name)]
    except KeyError:
        names = [g.name for g in catalogue()]
        hint = nearest(name.upper().replace("_", "-"), names) or f" (known: {', '.join(names)})"
        raise BadInput(f"unknown GPU {name!r}{hint}", where="hardware.gpu") from None


def gpu_from_row(row: Mapping[str, object]) -> Gpu:
    """A Gpu from a catalogue row (also one from a user's own file). Keys as in data/gpus.json."""
    known = {
        "name", "aliases", "compute_capability", "memory_bytes", "driver_memory_bytes",
        "bandwidth_bytes_per_s", "bf16_flops", "fp8_flops", "fp4_flops", "link",
        "link_bytes_per_s", "source", "confidence",
    }  # fmt: skip
    where = f"GPU {row.get('name', '?')}"
    for key in row:
        if key not in known:
            raise BadInput(f"unknown key {key!r}{nearest(key, known)}", where=where)
    for key in ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops"):
        if not _number(row, key, where):
            raise BadInput(f"{key} is missing or 0", where=where)
    driver = _number(row, "driver_memory_bytes", where)
    precisions = {p: _number(row, f"{p}_flops", where) for p in ("bf16", "fp8", "fp4")}
    return Gpu(
        name=str(row["name"]),
        compute_capability=str(row.get("compute_capability", "")),
        memory_bytes=int(_number(row, "memory_bytes", where) or 0),
        driver_memory_bytes=None if driver is None else int(driver),
        bandwidth_bytes_per_s=_number(row, "bandwidth_bytes_per_s", where) or 0.0,
        flops={name: value for name, value in precisions.items() if value is not None},
        link=None if row.get("link") is None else str(row["link"]),
        link_bytes_per_s=_number(row, "link_bytes_per_s", where),
        source=str(row.get("source", "given by the user")),
        confidence=str(row.get("confidence", "low")),
    )


def _number(row: Mapping[str, object], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise BadInput(f"{key} must be a number above 0, not {value!r}", where=where)
    return float(value)


@cache
def _rows() -> list[dict[str, object]]:
    text = files("ridgeline.domain").joinpath("data/gpus.json").read_text("utf-8")
    rows: list[dict[str, object]] = json.loads(text)["gpus"]
    return rows


@cache
def _by_key() -> dict[str, Gpu]:
    table: dict[str, Gpu] = {}
    for row, value in zip(_rows(), catalogue(), strict=True):
        aliases = row.get("aliases", [])
        assert isinstance(aliases, list)
        for name in (value.name, *map(str, aliases)):
            assert table.setdefault(_key(name), value) is value, f"two GPUs are called {name}"
    return table


def _key(name: str) -> str:
    return "".join(c for c in name.casefold() if c not in "-_ ").removeprefix("nvidia")
