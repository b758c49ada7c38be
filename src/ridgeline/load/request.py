"""A request on its way, and the record it becomes."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ridgeline.domain.records import RequestRecord
from ridgeline.domain.secrets import MASK
from ridgeline.load.http import Connection
from ridgeline.load.reply import Reply
from ridgeline.load.traffic import Launch
from ridgeline.workload.schedule import Heard

LONGEST_DETAIL = 500
DONE_WAIT_NS = 1_000_000_000  # how long the stream may stay open after its end marker


class InFlight:
    """One request from its launch to its record. Implements `http.Exchange`. Times: monotonic ns.

    `ended(request, connection)` is called once, when its record can be made; `again(request)`
    instead when its kept-alive connection had been closed before the request could reach the
    server: that says nothing about the server's work, and every HTTP client sends such a request
    once more. `arrived(chunks)` is called for each read that brings content chunks.
    """

    connection: Connection | None = None
    sent_ns: int | None = None
    connect_ns: int | None = None
    end_ns: int | None = None
    retries = 0
    failure: str | None = None
    detail: str | None = None
    kept = False  # its connection had been kept, not opened for it

    def __init__(
        self,
        *,
        index: int,
        target: int,
        launch: Launch,
        parts: list[bytes],
        ended: Callable[["InFlight", Connection | None], None],
        again: Callable[["InFlight"], None],
        arrived: Callable[[int], None],
    ) -> None:
        self.index, self.launch = index, launch
        self.target = target  # index of its site
        self.parts = parts
        self.reply = Reply(keep_text=launch.planned.session is not None)
        self._ended, self._again, self._arrived = ended, again, arrived

    @property
    def ready_ns(self) -> int:
        """When it might be sent: as intended, or when it got its slot under a cap."""
        launch = self.launch
        return launch.intended_ns if launch.ready_ns is None else launch.ready_ns

    def heard(self) -> Heard | None:
        """What the next turn of its session has to know; None when it failed."""
        if self.failure is not None:
            return None
        usage = self.reply.usage
        prompt = usage.prompt_tokens if usage else None
        output = usage.completion_tokens if usage else len(self.reply.stamps)
        return Heard(self.reply.text, prompt, output)

    # -- http.Exchange

    def on_head(self, status: int, content_type: str) -> None:
        """The reply's head has come."""
        self.parts = []  # a long prompt need not live as long as its reply
        self.reply.head(status, content_type)

    def on_body(self, block: bytes, stamp_ns: int, kernel: bool) -> bool:
        """Body bytes of one read."""
        stamps = self.reply.stamps
        before = len(stamps)
        good = self.reply.body(block, stamp_ns, kernel)
        if len(stamps) > before:
            self._arrived(len(stamps) - before)
        return good

    def on_end(self, connection: Connection, at_ns: int, problem: str | None) -> None:
        """The reply is complete, or nothing more will come."""
        if problem is not None and self.kept and connection.stale and not self.retries:
            self.connection = None
            self._again(self)
            return
        self.failure, self.detail = self.reply.judge(problem)
        self.end(at_ns, connection)

    # -- ends that the client decides

    def end(self, at_ns: int, connection: Connection | None) -> None:
        """Hand the request back."""
        self.end_ns = at_ns
        self._ended(self, connection)

    def give_up(self, at_ns: int, failure: str | None, detail: str | None) -> None:
        """End it from our side; its connection cannot be used again."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self.failure, self.detail = failure, detail
        self.end(at_ns, connection)

    def overdue(
        self, now_ns: int, first_ns: int | None, gap_ns: int | None, total_ns: int | None
    ) -> bool:
        """End it when it has outlived a limit (ns, None: no limit); True when it has."""
        sent, reply = self.sent_ns, self.reply
        assert sent is not None
        last = reply.event_ns
        if reply.done and last is not None and now_ns - last > DONE_WAIT_NS:
            # the stream said its end; a server that keeps the body open does not make it longer
            failure, detail = reply.judge(None)
            self.give_up(last, failure, detail)
        elif total_ns is not None and now_ns - sent > total_ns:
            self._time_out(now_ns, "timeout_total", total_ns)
        elif first_ns is not None and not reply.stamps and now_ns - sent > first_ns:
            self._time_out(now_ns, "timeout_first", first_ns)
        elif gap_ns is not None and reply.stamps and last is not None and now_ns - last > gap_ns:
            self._time_out(now_ns, "timeout_gap", gap_ns)
        else:
            return False
        return True

    def _time_out(self, now_ns: int, failure: str, limit_ns: int) -> None:
        chunks = len(self.reply.stamps)
        self.give_up(now_ns, failure, f"after {limit_ns / 1e9:g} s and {chunks} chunks")

    def record(
        self, zero_ns: int, *, several: bool, hide: str | None, name: str | None = None
    ) -> RequestRecord:
        """The record, with times from the run's zero.

        several: there is more than one site. `hide` is a secret to keep out of texts. `name`: of
        its class of traffic.
        """
        reply, usage = self.reply, self.reply.usage
        stamps = reply.stamps
        detail = None if self.detail is None else printable(self.detail)
        if detail is not None and hide:
            detail = detail.replace(hide, MASK)

        def since(ns: int | None) -> int | None:
            return None if ns is None else ns - zero_ns

        launch, planned = self.launch, self.launch.planned
        capped = launch.ready_ns is not None
        return RequestRecord(
            index=self.index,
            user=launch.user,
            intended_ns=launch.intended_ns - zero_ns,
            sent_ns=since(self.sent_ns),
            first_ns=stamps[0] - zero_ns if stamps else None,
            last_ns=stamps[-1] - zero_ns if stamps else None,
            end_ns=since(self.end_ns),
            planned_prompt_tokens=planned.prompt_tokens,
            planned_output_tokens=planned.output_tokens,
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            failure=self.failure,
            failure_detail=detail,
            finish_reason=None if reply.finish_reason is None else printable(reply.finish_reason),
            http_status=reply.status,
            connect_ns=self.connect_ns,
            first_answer_ns=since(reply.first_answer_ns),
            target=self.target if several else None,
            retries=self.retries,
            read_timed=reply.read_timed,
            traffic_class=name,
            cap_wait_ns=self.ready_ns - launch.intended_ns if capped else None,
            session=None if planned.session is None else launch.number,
            turn=None if planned.session is None else planned.turn,
            chunk_ns=np.frombuffer(stamps, dtype=np.int64) - zero_ns,
            chunk_shared=np.frombuffer(reply.shared, dtype=np.bool_),
        )


@lru_cache(maxsize=256)  # a run has a few finish reasons, many times each
def printable(text: str) -> str:
    """A server's words as one line that a terminal cannot be steered by."""
    flat = " ".join(text.split())[:LONGEST_DETAIL]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
