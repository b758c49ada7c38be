"""A request on its way, and the row that it becomes."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from ridgeline.domain.rows import MISSING, ROW, RowsBuilder
from ridgeline.domain.secrets import MASK
from ridgeline.load.http import Connection
from ridgeline.load.reply import Reply
from ridgeline.load.traffic import Launch
from ridgeline.workload.schedule import Heard

LONGEST_DETAIL = 500
DONE_WAIT_NS = 1_000_000_000  # how long the stream may stay open after its end marker


class InFlight:
    """One request from its launch to its row. Implements `http.Exchange`. Times: monotonic ns.

    `ended(request, connection)` is called once, when its row can be made; `again(request)`
    instead when its kept-alive connection had been closed before a byte of it reached the server:
    that says nothing about the server's work, and such a request may be sent once more (RFC 9110,
    9.2.2). One that the server may have read is never sent twice.
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
        index: int,
        target: int,
        launch: Launch,
        parts: Sequence[bytes],
        *,
        ended: Callable[["InFlight", Connection | None], None],
        again: Callable[["InFlight"], None],
    ) -> None:
        self.index, self.launch = index, launch
        self.target = target  # index of its site
        self.parts = parts
        self.reply = Reply(keep_text=launch.planned.session is not None)
        self._ended, self._again = ended, again

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

    def on_end(self, connection: Connection, at_ns: int, problem: str | None) -> None:
        """The reply is complete, or nothing more will come."""
        if problem is not None and self.kept and connection.stale and not self.retries:
            self.connection = None
            self._again(self)
            return
        self.failure, self.detail = self.reply.judge(problem)
        self.end_ns = at_ns
        self._ended(self, connection)

    # -- ends that the client decides

    def give_up(self, at_ns: int, failure: str | None, detail: str | None) -> None:
        """End it from our side; its connection cannot be used again."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self.failure, self.detail, self.end_ns = failure, detail, at_ns
        self._ended(self, connection)

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

    def write(
        self, rows: RowsBuilder, hide: str | None, *, several: bool, name: str | None
    ) -> None:
        """Put it into the rows of ended requests.

        several: there is more than one site. `hide` is a secret to keep out of texts. `name`: of
        its class of traffic.
        """
        launch, reply = self.launch, self.reply
        planned, usage, stamps = launch.planned, reply.usage, reply.stamps
        said = self.failure, self.detail, reply.finish_reason, name
        place = rows.places.get(said)
        if place is None:
            place = rows.say(said, (self.failure, _shown(self.detail, hide),
                                    _shown(reply.finish_reason, hide), name))  # fmt: skip
        chunks, talks = len(stamps), planned.session is not None
        sent_ns, end_ns, answer_ns = self.sent_ns, self.end_ns, reply.first_answer_ns
        ready_ns, user, status = launch.ready_ns, launch.user, reply.status
        prompt, output, cached = _UNCOUNTED if usage is None else usage.numbers
        rows.numbers += ROW(  # in the order of ROW_NUMBERS
            self.index,
            MISSING if user is None else user,
            launch.intended_ns,
            MISSING if sent_ns is None else sent_ns,
            stamps[0] if chunks else MISSING,
            stamps[-1] if chunks else MISSING,
            MISSING if end_ns is None else end_ns,
            planned.prompt_tokens,
            planned.output_tokens,
            prompt,
            output,
            cached,
            MISSING if status is None else status,
            MISSING if self.connect_ns is None else self.connect_ns,
            MISSING if answer_ns is None else answer_ns,
            self.target if several else MISSING,
            self.retries,
            reply.read_timed,
            MISSING if ready_ns is None else ready_ns - launch.intended_ns,
            launch.number if talks else MISSING,
            planned.turn if talks else MISSING,
            reply.first_error_ns if chunks else MISSING,
            reply.chunk_error_ns if chunks else MISSING,
            place,
            chunks,
        )
        rows.stamps.extend(stamps)
        rows.shared += reply.shared


_UNCOUNTED = MISSING, MISSING, MISSING


def _shown(text: str | None, hide: str | None) -> str | None:
    """What is kept of a text: one line, without the secret."""
    if text is None:
        return None
    shown = printable(text)
    return shown.replace(hide, MASK) if hide else shown


@lru_cache(maxsize=256)  # a run has a few finish reasons, many times each
def printable(text: str) -> str:
    """A server's words as one line that a terminal cannot be steered by."""
    flat = " ".join(text.split())[:LONGEST_DETAIL]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
