"""Memory that a soak left: figures of a real H200 run, each with its source."""

from dataclasses import replace
from pathlib import Path

from ridgeline.store.run_directory import StoredRun, read_run
from ridgeline.tuning.memorymargin import memory_lines

SOAK = Path(__file__).parents[2] / "results/h200/tune/h200-tune-32/soak"


def stored() -> StoredRun:
    (folder,) = [f for f in SOAK.iterdir() if f.is_dir()]
    return read_run(folder)


def told(run: StoredRun, **server: object) -> tuple[str, ...]:
    assert run.facts is not None
    facts = replace(run.facts, server={**run.facts.server, **server})
    return memory_lines(replace(run, facts=facts))


def test_the_engines_log_tells_the_cache_and_the_driver_the_peak() -> None:
    kv, gpu = memory_lines(stored())
    # 72 816 tokens by the log; the gauge was at 0.7998 at most
    assert kv == (
        "KV cache of 72\u2009816 tokens (the engine's log), at most 80% of it used (its gauge):"
        " 14\u2009579 tokens left"
    )
    assert "GiB in use (the driver, all processes)" in gpu
    assert gpu.endswith("KV cache of 10.0 GiB as it was set")


def test_without_a_driver_the_log_is_what_there_is() -> None:
    replicas = [{"kv_tokens": 1000, "model_bytes": 8 * 2**30, "kv_bytes": 4 * 2**30}]
    kv, gpu = told(stored(), telemetry={}, replicas=replicas)
    assert kv.endswith("how much was used is not known")
    assert gpu.startswith("weights 8.00 GiB, KV cache 4.00 GiB (the engine's log)")


def test_where_nothing_tells_nothing_is_said() -> None:
    assert told(stored(), telemetry={}, replicas=[]) == ()
