"""A handful of own requests: how long they took here, and how long by the server's own clock."""

import json
import time
from collections.abc import Mapping

from ridgeline.diagnosis.distribution import between
from ridgeline.diagnosis.evidence import ProbeResult
from ridgeline.domain.errors import RidgelineError
from ridgeline.engines.probe import probe as who
from ridgeline.load.address import Address, Asker
from ridgeline.telemetry.dialects import in_vllm_words
from ridgeline.telemetry.prometheus import Scrape, fetch_metrics

REQUESTS, TOKENS = 5, 8
PATIENCE_S = 30.0  # for the answer of a request of a few tokens
SETTLE_S = 0.5  # a server counts a request a moment after its last byte
E2E = "vllm:e2e_request_latency_seconds"


def probe(address: Address, headers: Mapping[str, str]) -> ProbeResult:
    """Send REQUESTS completions of TOKENS tokens, one after another; nothing it does raises."""
    key = headers.get("Authorization", "").removeprefix("Bearer ") or None
    try:
        model = who(address, None, key).model
    except RidgelineError:
        return ProbeResult(0, 0)
    before = _page(address, headers)
    asker = Asker(address, headers, timeout_s=PATIENCE_S)
    taken = []
    for number in range(REQUESTS):
        body = {"model": model, "prompt": f"Say {number}.", "max_tokens": TOKENS}
        begun = time.monotonic()
        status, _ = asker.post("/v1/completions", json.dumps(body).encode())
        took = time.monotonic() - begun
        if status == 200:
            taken.append(took)
        elif status == 0 and took >= PATIENCE_S:
            asker.close()
            return ProbeResult(number + 1, len(taken), silent_s=took)
    asker.close()
    time.sleep(SETTLE_S)
    after = _page(address, headers)
    mine = sum(taken) / len(taken) if taken else None
    if before is None or after is None:
        return ProbeResult(REQUESTS, len(taken), mine)
    seen = between(before, after, E2E)
    if seen is None or not seen.count:
        return ProbeResult(REQUESTS, len(taken), mine)
    return ProbeResult(REQUESTS, len(taken), mine, seen.mean, seen.count == len(taken))


def _page(address: Address, headers: Mapping[str, str]) -> Scrape | None:
    page = fetch_metrics(address.url, headers=headers)
    return None if page is None else in_vllm_words(page)
