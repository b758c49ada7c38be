"""A handful of own requests: how long they took here, and how long by the server's own clock."""

import http.client
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.diagnosis.distribution import between
from ridgeline.diagnosis.evidence import ProbeResult
from ridgeline.domain.errors import EndpointError, RidgelineError
from ridgeline.domain.secrets import mask
from ridgeline.engines.probe import probe as who
from ridgeline.load.address import Address
from ridgeline.load.openai import Event, read_event, reply_text
from ridgeline.load.sse import BadStream
from ridgeline.telemetry.dialects import in_vllm_words
from ridgeline.telemetry.prometheus import Scrape, fetch_metrics

REQUESTS, TOKENS = 5, 8
PATIENCE_S = 30.0  # for the answer of a request of a few tokens
SETTLE_S = 0.5  # a server counts a request a moment after its last byte
HEALTH_S = 5.0
E2E = "vllm:e2e_request_latency_seconds"
NO_SUCH_PATH = (404, 405)
_MOST_BYTES = 1 << 20


@dataclass(slots=True)
class _Asked:
    """One request, by the clock here. at: seconds after it was sent, of each content chunk."""

    took_s: float = 0.0
    at: list[float] = field(default_factory=list)
    tokens: int | None = None
    finished: bool = False
    status: int = 0
    trouble: str | None = None
    silent: bool = False

    @property
    def ok(self) -> bool:
        """An answer with content, and whole."""
        return self.trouble is None and self.finished and bool(self.at)


def probe(address: Address, headers: Mapping[str, str]) -> ProbeResult:
    """Send REQUESTS completions of TOKENS tokens, one after another; nothing it does raises."""
    key = headers.get("Authorization", "").removeprefix("Bearer ") or None
    try:
        model = who(address, None, key).model
    except RidgelineError as error:
        return ProbeResult(0, 0, trouble=mask(str(error)), health=_health(address, headers))
    before = _page(address, headers)
    asked: list[_Asked] = []
    path = "/v1/completions"
    for number in range(REQUESTS):
        one = _ask(address, headers, path, model, number)
        if one.status in NO_SUCH_PATH and path == "/v1/completions":
            path = "/v1/chat/completions"
            one = _ask(address, headers, path, model, number)
        asked.append(one)
        if one.silent:
            break
    if not asked[-1].silent:
        time.sleep(SETTLE_S)
    result = _result(asked, _health(address, headers))
    after = None if asked[-1].silent else _page(address, headers)
    if before is None or after is None or result.client_e2e_s is None:
        return result
    return _with_servers_clock(result, before, after)


def _result(asked: Sequence[_Asked], health: int | None) -> ProbeResult:
    good = [one for one in asked if one.ok]
    gaps = [b - a for one in good for a, b in itertools.pairwise(one.at)]
    tokens = [one.tokens for one in good if one.tokens is not None]
    last = asked[-1]
    return ProbeResult(
        len(asked), len(good), _mean([one.took_s for one in good]),
        silent_s=last.took_s if last.silent else None,
        ttft_s=_mean([one.at[0] for one in good]), itl_s=_mean(gaps),
        output_tokens=sum(tokens) if tokens else None, health=health,
        trouble=next((mask(one.trouble or "an answer without content or end")
                      for one in asked if not one.ok), None),
    )  # fmt: skip


def _with_servers_clock(result: ProbeResult, before: Scrape, after: Scrape) -> ProbeResult:
    seen = between(before, after, E2E)
    if seen is None or not seen.count:
        return result
    return replace(result, server_e2e_s=seen.mean, alone=seen.count == result.ok)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ask(
    address: Address, headers: Mapping[str, str], path: str, model: str, number: int
) -> _Asked:
    """One streamed request; what goes wrong is told in `trouble`."""
    body = {"model": model, "max_tokens": TOKENS, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    text = f"Say {number}."
    chat = path.endswith("chat/completions")
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    found, begun = _Asked(), time.monotonic()
    connection = address.connection(PATIENCE_S)
    try:
        connection.connect()
        begun = time.monotonic()  # a client keeps its connection: setting it up is no part of it
        connection.request("POST", address.path + path, json.dumps(body).encode(),
                           {**headers, "Content-Type": "application/json"})  # fmt: skip
        reply = connection.getresponse()
        found.status = reply.status
        if reply.status != 200:
            found.trouble = f"HTTP {reply.status}: {reply_text(reply.read(_MOST_BYTES))}"
        else:
            _read(reply, found, begun)
    except TimeoutError:
        found.trouble, found.silent = f"no answer within {PATIENCE_S:g} s", not found.at
    except (OSError, http.client.HTTPException, BadStream) as error:
        found.trouble = str(error) or type(error).__name__
    finally:
        connection.close()
    found.took_s = time.monotonic() - begun
    return found


def _read(reply: http.client.HTTPResponse, found: _Asked, begun: float) -> None:
    for event in _events(reply):
        now = time.monotonic()
        if now - begun > PATIENCE_S:
            raise TimeoutError
        if event.error is not None:
            found.trouble = event.error
        if event.content:
            found.at.append(now - begun)
        if event.usage is not None:
            found.tokens = event.usage.completion_tokens
        found.finished |= event.done or event.finish_reason is not None


def _events(reply: http.client.HTTPResponse) -> Iterator[Event]:
    read = 0
    while line := reply.readline(_MOST_BYTES):
        read += len(line)
        if read > _MOST_BYTES:
            raise BadStream("more than 1 MiB for a few tokens")
        if line.startswith(b"data:"):
            yield read_event(line[len(b"data:") :].strip())


def _health(address: Address, headers: Mapping[str, str]) -> int | None:
    try:
        return address.get("/health", headers, HEALTH_S)[0]
    except EndpointError:
        return None


def _page(address: Address, headers: Mapping[str, str]) -> Scrape | None:
    page = fetch_metrics(address.url, headers=headers)
    return None if page is None else in_vllm_words(page)
