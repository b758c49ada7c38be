"""Runs made of literal times, for verdicts and findings."""

from collections.abc import Sequence

import numpy as np

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.run import ClientCheck, RunFacts, ServerCounters, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.experiment.verdict import Evidence

SECOND = 1_000_000_000


def request(
    index: int,
    sent_s: float,
    *,
    ttft_s: float = 0.1,
    late_s: float = 0.0,
    gap_s: float = 0.01,
    tokens: int = 10,
    prompt: int = 100,
    cached: int | None = None,
    failure: str | None = None,
    ended_s: float | None = None,
    planned: int | None = None,
    detail: str | None = None,
) -> RequestRecord:
    """`ended_s`: when a failed request ended; `planned`: output tokens asked for, not `tokens`."""
    sent = round(sent_s * SECOND)
    chunks = sent + round(ttft_s * SECOND) + np.arange(tokens) * round(gap_s * SECOND)
    gone = failure is not None
    return RequestRecord(
        index=index,
        user=None,
        intended_ns=sent - round(late_s * SECOND),
        sent_ns=sent,
        first_ns=None if gone else int(chunks[0]),
        last_ns=None if gone else int(chunks[-1]),
        end_ns=int(chunks[-1]) if ended_s is None else round(ended_s * SECOND),
        planned_prompt_tokens=100,
        planned_output_tokens=tokens if planned is None else planned,
        prompt_tokens=None if gone else prompt,
        output_tokens=None if gone else tokens,
        cached_tokens=cached,
        failure=failure,
        failure_detail=detail,
        chunk_ns=np.empty(0, np.int64) if gone else chunks.astype(np.int64),
    )


def evidence(
    requests: Sequence[RequestRecord],
    *,
    seconds: float = 30.0,
    arrivals: Arrivals | None = None,
    client: ClientCheck | None = None,
    counters: ServerCounters | None = None,
    slo: str = "",
    prompts: Prompts | None = None,
    outputs: Outputs | None = None,
    server: dict[str, object] | None = None,
    faults: tuple[str, ...] = (),
    requests_asked: int | None = None,
    interrupted: bool = False,
    extra: int = 0,
) -> Evidence:
    records: RunRecords = records_from_requests(requests)
    workload = Workload(
        arrivals or Arrivals(users=4),
        prompts or Prompts(Lengths(100)),
        outputs or Outputs(Lengths(10)),
        duration_s=seconds,
        warmup_s=0.0,
        requests=requests_asked,
    )
    facts = RunFacts(
        source="measured",
        window=Window(0, round(seconds * SECOND)),
        client=client or ClientCheck("kernel"),
        counters=counters,
        server=server or {},
        interrupted=interrupted,
        extra_requests=extra,
        server_faults=faults,
    )
    limits = parse_slo(slo)
    summary = summarise(
        records,
        facts.window,
        facts=facts,
        configuration=Configuration("m", Knobs()),
        slo=limits,
        open_loop=not workload.arrivals.closed_loop,
    )
    return Evidence(records, facts, summary, workload, limits)
