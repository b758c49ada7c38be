"""Builds plausible reports from a seed: test data only, the package ships none of it.

The figures resemble a study of twelve configurations on H100s, but they come from a random
generator, not from a twin or a server.
"""

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo, slo_from_mapping
from ridgeline.domain.summary import (
    ClientFigures,
    Cost,
    Goodput,
    Interval,
    Percentiles,
    RequestCounts,
    Roofline,
    SloResult,
    Summary,
    Throughput,
    VerdictFigures,
)
from ridgeline.report.model import (
    COST,
    ITL_P95,
    TOKENS,
    TOKENS_PER_GPU,
    TTFT_P95,
    Badge,
    Difference,
    Distribution,
    ExperimentRow,
    FindingLine,
    Roof,
    RooflinePoint,
    RunLine,
    Series,
    StudyReport,
)

SLO = slo_from_mapping({"ttft_p95_ms": 2000, "itl_p95_ms": 20, "error_rate": 0.001})
ROOF = Roof("H100-SXM", 989e12, 3.35e12, "bf16")


@dataclass(frozen=True)
class Case:
    """name, change, p95 TTFT s, p95 ITL s, tokens/s, GPUs, users, failed, published."""

    name: str
    change: str
    ttft: float
    itl: float
    tokens: float
    gpus: int = 4
    users: int = 400
    failed: int = 0
    published: tuple[tuple[str, float], ...] = ()


CASES = (
    Case("graphs", "baseline: max_num_seqs 32", 3.03, 0.0065, 8700,
         published=(("ttft_p95_ms", 3029), ("itl_p95_ms", 6.5), ("chunks_per_s", 8700))),
    Case("eager", "enforce_eager", 5.2, 0.0242, 5010,
         published=(("itl_p95_ms", 24.2), ("chunks_per_s", 5000))),
    Case("seqs-64", "max_num_seqs 64", 1.78, 0.0073, 12100),
    Case("no-chunked-prefill", "enable_chunked_prefill off", 5.81, 0.0089, 7900, failed=112,
         published=(("ttft_p95_ms", 5807),)),
    Case("fp8", "quantization fp8", 2.84, 0.0056, 9050, published=(("itl_p95_ms", 5.6),)),
    Case("replicas-8", "data_parallel_size 8", 1.283, 0.0066, 14000, gpus=8,
         published=(("ttft_p95_ms", 1283), ("chunks_per_s", 14000))),
    Case("prefix-caching", "enable_prefix_caching on", 3.01, 0.0065, 8720),
    Case("users-1000", "1 000 users", 9.9, 0.0066, 8810, users=1000,
         published=(("ttft_p95_ms", 5700),)),
    Case("final", "max_num_seqs 64, max_num_batched_tokens 4096, prefix caching on",
         1.72, 0.0067, 12430,
         published=(("ttft_p95_ms", 1716), ("itl_p95_ms", 6.7), ("chunks_per_s", 12430),
                    ("error_rate", 0.0))),
    Case("single-gpu", "data_parallel_size 1, 100 users", 3.1, 0.0065, 2180, gpus=1, users=100),
    Case("fp8-seqs-64", "quantization fp8, max_num_seqs 64", 1.55, 0.0062, 13100),
    Case("h200", "4 H200-SXM", 2.6, 0.0059, 9600),
)  # fmt: skip


def percentiles(p95: float, spread: float, n: int) -> Percentiles:
    """A latency whose p95 is given; the rest by a lognormal of that spread."""
    at = {q: p95 * float(np.exp(spread * (z - 1.645))) for q, z in
          (("p50", 0.0), ("p90", 1.282), ("p95", 1.645), ("p99", 2.326))}  # fmt: skip
    return Percentiles(mean=at["p50"] * float(np.exp(spread**2 / 2)), n=n, **at)


def with_failures(found: Percentiles, rate: float) -> Percentiles:
    """The view in which every failure is infinitely slow, as far as the tests need it."""
    cut = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    values = {
        q: float("inf") if share > 1 - rate else getattr(found, q) for q, share in cut.items()
    }
    return Percentiles(mean=float("inf") if rate else found.mean, n=found.n, **values)


def summary(case: Case, slo: Slo = SLO, source: str = "twin", n: int = 11000) -> Summary:
    """A whole summary for a case."""
    price = 3.95 if case.name != "h200" else 4.98
    cost = case.gpus * price / (case.tokens * 3600) * 1e6
    error_rate = case.failed / n
    values = {
        "ttft_p95_ms": case.ttft * 1e3,
        "itl_p95_ms": case.itl * 1e3,
        "error_rate": error_rate,
    }
    if error_rate > 0.05:
        values["ttft_p95_ms"] = float("inf")  # fmt: skip
    ttft, itl = percentiles(case.ttft, 0.5, n), percentiles(case.itl, 0.35, n * 80)
    decode = 85 * case.itl * 0.62
    queue = ttft.mean * 0.85 if ttft.mean else 0.0
    e2e = (ttft.mean or 0.0) + decode
    figures = {TTFT_P95: case.ttft, ITL_P95: case.itl, TOKENS: case.tokens,
               TOKENS_PER_GPU: case.tokens / case.gpus, COST: cost}  # fmt: skip
    return Summary(
        source=source,  # type: ignore[arg-type]
        window_s=90.0,
        requests=RequestCounts(n, n - case.failed, case.failed, error_rate,
                               {"timeout_first": case.failed} if case.failed else {}),
        ttft_s=ttft,
        ttft_intent_s=ttft,
        itl_s=itl,
        tpot_s=percentiles(case.itl * 0.8, 0.1, n),
        e2e_s=Percentiles(mean=e2e, p50=e2e * 0.97, p90=e2e * 1.3, p95=e2e * 1.5, p99=e2e * 2, n=n),
        worst_stall_s=percentiles(case.itl * 3, 0.3, n),
        throughput=Throughput(case.tokens, case.tokens * 0.5, case.tokens, case.tokens / 80,
                              case.tokens / case.gpus),
        cost=Cost(cost, cost * 0.08),
        roofline=Roofline(28.0, 310.0, 0.019, 0.41, 0.43),
        goodput=Goodput(0.93, case.tokens / 85),
        slo=tuple(SloResult(str(limit), values[limit.key], values[limit.key] <= limit.value)
                  for limit in slo.limits),
        intervals={k: Interval(v * 0.975, v * 1.027, n) for k, v in figures.items()},
        failures_as_infinite={
            "ttft_s": with_failures(ttft, error_rate),
            "ttft_intent_s": with_failures(ttft, error_rate),
        },
        client=ClientFigures(0.0004, 0.0007, 0.31, "simulated"),
        verdict=VerdictFigures(True),
        accounting={"queue": queue, "prefill": (ttft.mean or 0) - queue, "decode": decode * 0.9,
                    "front end": decode * 0.1},
        steps={"mean_step_s": case.itl * 0.6},
        binding_limit="slots: running = max_num_seqs 32, 68 requests wait for each replica",
    )  # fmt: skip


def distribution(p95: float, spread: float, rng: np.random.Generator, n: int) -> Distribution:
    """300 quantile points of a lognormal sample."""
    sample = np.sort(p95 * np.exp(spread * (rng.standard_normal(4000) - 1.645)))
    shares = np.linspace(0, 1, 300)
    worst = np.sort(sample[-12:] * 2.5)[::-1]
    return Distribution(
        tuple(shares.tolist()),
        tuple(np.quantile(sample, shares).tolist()),
        n,
        tuple(worst.tolist()),
    )


def series(case: Case, rng: np.random.Generator) -> Series:
    """100 seconds, the first 10 of them warm-up."""
    t = np.arange(100.0)
    ramp = np.minimum(1.0, (t + 1) / 6)
    return Series(
        run_id=f"{case.name}-1",
        t_s=tuple(t.tolist()),
        values={
            "output_tokens_per_s": tuple((case.tokens * ramp * rng.normal(1, 0.03, 100)).tolist()),
            "running": tuple((128 * ramp).tolist()),
            "waiting": tuple((case.users - 128 * ramp).tolist()),
            "kv_used_share": tuple((0.22 * ramp).tolist()),
            "ttft_p95_s": (None, None, *(case.ttft * rng.normal(1, 0.1, 98)).tolist()),
        },
        window_s=(10.0, 100.0),
        events=((3.0, "graph capture"),),
    )


def row(case: Case, base: Case | None, rng: np.random.Generator) -> ExperimentRow:
    """One experiment with three repeats, one of them void for `h200`."""
    own = summary(case)
    against = {}
    if base is not None and base is not case:
        their = summary(base)
        for path in (TTFT_P95, ITL_P95, TOKENS, TOKENS_PER_GPU, COST):
            group, name = path.split(".")
            a, b = getattr(getattr(own, group), name), getattr(getattr(their, group), name)
            delta = a / b - 1
            low, high = delta - 0.035, delta + 0.04
            lower_better = not path.startswith("throughput")
            clear = low > 0 or high < 0
            better = (delta < 0) == lower_better
            verdict = ("clearly better" if better else "clearly worse") if clear else (
                "no clear difference")  # fmt: skip
            against[path] = Difference(delta, low, high, verdict, pairs=3)  # type: ignore[arg-type]
    runs = tuple(
        RunLine(f"{case.name}-{k}", case.name, k, k, "valid", seed=7 + k) for k in (1, 2, 3)
    )
    if case.name == "h200":
        runs = (*runs[:2], replace(runs[2], state="void",
                reasons=("the window is not steady: throughput rose by 6 % over it",)))  # fmt: skip
    decode = min(32.0 * case.gpus / case.gpus, 64.0) * (2 if "64" in case.change else 1)
    return ExperimentRow(
        name=case.name,
        change=case.change,
        summary=own,
        configuration=Configuration("Qwen/Qwen3-VL-4B-Instruct", Knobs(max_num_seqs=32),
                                    gpu="H200-SXM" if case.name == "h200" else "H100-SXM",
                                    gpus=case.gpus, price_per_gpu_hour=3.95),
        load=f"{case.users} users",
        against_baseline=against,
        published=dict(case.published),
        runs=runs,
        ttft=distribution(case.ttft, 0.5, rng, 11000),
        itl=distribution(case.itl, 0.35, rng, 900000),
        roof=replace(ROOF, name="H200-SXM", bandwidth_bytes_per_s=4.8e12)
        if case.name == "h200" else ROOF,
        roofline=(
            RooflinePoint("decode", decode, ROOF.attainable(decode) * rng.uniform(0.35, 0.6)),
            RooflinePoint("prefill", 420.0 * rng.uniform(0.8, 1.3), 989e12 * rng.uniform(0.4, 0.6)),
        ),
        step_parts={"weights": 0.55, "attention_decode": 0.2, "launch": 0.15, "cpu": 0.1},
        series=series(case, rng),
    )  # fmt: skip


FINDINGS = (
    FindingLine("CUDA graphs cut inter-token latency at least threefold", "reproduced",
                "p95 ITL 24.2 → 6.5 ms", "median ITL 3.72 times lower (95 % interval 3.60 to 3.85)",
                "kernel launches are 71 % of an eager step (21.4 of 30.1 ms), 3 % of a graph step",
                "reproduced", "a launch-bound step is what graphs remove"),
    FindingLine("Chunked prefill off is the worst single change", "not reproduced",
                "p95 TTFT 3 029 → 5 807 ms", "p95 TTFT +4.1 % (−1.0 to 9.3 %)",
                "prompts of tens of tokens fit one step: there is nothing to chunk",
                "not reproduced", "short prompts never exceed the token budget"),
    FindingLine("The final configuration costs less per token than eight replicas", "reproduced",
                "12 430 chunks/s on 4 GPUs against 14 000 on 8",
                "$/Mtok −44.0 % (−46.1 to −41.8 %)", "half the GPUs at 89 % of the throughput",
                "reversed", "a deliberate mismatch in the test data"),
)  # fmt: skip


def study(seed: int = 7, cases: tuple[Case, ...] = CASES) -> StudyReport:
    """The whole twelve-row report."""
    rng = np.random.default_rng(seed)
    return StudyReport(
        name="h100-twelve",
        model="Qwen/Qwen3-VL-4B-Instruct",
        badge=Badge("twin", "prior", "vLLM", "0.21.0", "H100-SXM", "2026-11-30"),
        rows=tuple(row(case, cases[0], rng) for case in cases),
        baseline=cases[0].name,
        gpus="4 H100-SXM",
        load="400 users",
        slo=SLO,
        findings=FINDINGS,
        findings_source="two public articles",
        how=(
            (
                "Workload",
                "400 users in a closed loop, prompts of 20 to 60 tokens, 96 output tokens",
            ),
            ("Window", "90 s after 10 s of warm-up with the same traffic, not drained"),
            ("Repeats", "3 each, in the order A B B A; a pair shares arrivals and lengths"),
            ("Client", "simulated clock: no client limit"),
            ("Versions", "ridgeline 0.1.0"),
        ),
        study_yaml="name: h100-twelve\nmodel: Qwen/Qwen3-VL-4B-Instruct\nrepeats: 3\n",
        reproduce="ridgeline study studies/h100-twelve.yaml",
        ridgeline_version="0.1.0",
    )


BENCH_CASE = Case("run", "", 0.42, 0.011, 1450.0, gpus=1, users=16)


def bench(failed: int = 0, n: int = 100, slo: Slo = SLO) -> StudyReport:
    """A single measured endpoint: one row, no baseline."""
    rng = np.random.default_rng(3)
    case = replace(BENCH_CASE, failed=failed)
    own = replace(
        summary(case, slo, "measured", n),
        throughput=Throughput(1450.0, 3100.0, 1449.0, 17.0, None),
        cost=Cost(),
        roofline=Roofline(),
        accounting={},
        steps={},
        binding_limit=None,
    )
    runs = (RunLine("run-1", "run", 1, 1, "valid", seed=1),)
    return StudyReport(
        name="bench",
        model="tiny",
        badge=Badge("measured", None, "vLLM", "0.32.0", None, "2026-11-30"),
        rows=(ExperimentRow("run", "", own, load="16 users", runs=runs,
                            ttft=distribution(0.42, 0.5, rng, n),
                            itl=distribution(0.011, 0.3, rng, n)),),
        gpus="127.0.0.1:8000",
        load="16 users",
        slo=slo,
        how=(("Workload", "16 users, 30 s"),),
        ridgeline_version="0.1.0",
    )  # fmt: skip
