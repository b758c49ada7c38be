"""Pages for the tests of diagnosis, written by hand from the facts of a reported case."""

from collections.abc import Mapping, Sequence

from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.finding import Finding
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.telemetry.prometheus import parse_metrics

R, W = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV, PRE = "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"
STEPS, MADE = "vllm:iteration_tokens_total_count", "vllm:generation_tokens_total"
PROMPT = "vllm:prompt_tokens_total"


def page(values: Mapping[str, float | Sequence[float]], **labels: str) -> str:
    """One sample a name, or one an engine where several values are given."""
    lines = []
    for name, given in values.items():
        base, _, rest = name.partition("{")
        more = rest.rstrip("}")
        told = given if isinstance(given, Sequence) else [given]
        for engine, value in enumerate(told):
            inside = ",".join(filter(None, (f'engine="{engine}"', more)))
            lines.append(f"{base}{{{inside}}} {value}")
    return "\n".join(lines) + "\n"


def histogram(name: str, counts: Mapping[float, float], total: float) -> dict[str, float]:
    """Samples of a histogram: how many values are in the bucket that ends at each edge."""
    found, upto = {}, 0.0
    for edge, count in sorted(counts.items()):
        upto += count
        found[f'{name}_bucket{{le="{edge}"}}'] = upto
    found[f'{name}_bucket{{le="+Inf"}}'] = upto
    return {**found, f"{name}_count": upto, f"{name}_sum": total}


def evidence(
    *pages: str, apart_s: float = 30.0, known: Known | None = None, gpu: str | None = None,
    health: int | None = 200,
) -> Evidence:  # fmt: skip
    """Of pages that were read `apart_s` apart."""
    snapshots = [Snapshot(i * apart_s, parse_metrics(p), health) for i, p in enumerate(pages)]
    return gather(snapshots, known or Known(), [parse_metrics(gpu)] if gpu else [])


def findings(found: Evidence) -> dict[str, Finding]:
    """By id, in order of rank."""
    return {f.id: f for f in diagnose(found)}


def words(finding: Finding) -> str:
    """All that a person reads of it."""
    return "\n".join(
        [
            finding.title, finding.binds, *(f.words for f in finding.evidence),
            *(f"{t.knob} {t.value} {t.expect}" for t in finding.tries),
            *(f"{w.knob}: {w.why}" for w in finding.will_not_help),
        ]
    )  # fmt: skip
