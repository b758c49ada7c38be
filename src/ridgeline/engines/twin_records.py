"""What a simulated run hands to its sink: requests as they end, steps and stalls at the end."""

from dataclasses import replace

from ridgeline.domain.records import RecordSink, RunEvent
from ridgeline.domain.run import Watch
from ridgeline.engines.base import Timeouts
from ridgeline.twin.offer import Item, Offer
from ridgeline.twin.pools import AnyFleet
from ridgeline.twin.request import Request
from ridgeline.twin.results import ClientLimits, Tally, request_record, stall, step_table

LEFT = ("timeout_first", "timeout_gap", "timeout_total", "cancelled")  # by the client


def client_limits(timeouts: Timeouts, window_end_ns: int | None = None) -> ClientLimits:
    """The limits in the simulation's unit, those on what is still open after the window too where
    its end is known.
    """

    def ns(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1e9)

    last = None if window_end_ns is None else window_end_ns + round(timeouts.grace_s * 1e9)
    return ClientLimits(ns(timeouts.first_s), ns(timeouts.gap_s), ns(timeouts.total_s), last)


class HandIn:
    """Passes the records of a run to its sink and keeps none, however long the run is.

    `tally` adds up what was passed. grace_ns: how long the client follows requests after its
    window.
    """

    def __init__(self, fleet: AnyFleet, offer: Offer, timeouts: Timeouts, sink: RecordSink) -> None:
        self.tally = Tally()
        self.grace_ns = round(timeouts.grace_s * 1e9)
        self._fleet, self._offer, self._sink = fleet, offer, sink
        self._limits = client_limits(timeouts)
        self._late = 0
        self._kept: list[tuple[Request, Item]] = []

    def ended(self) -> list[Request]:
        """Pass on what the client has whole by now; returns what ended since the last call.

        The client's last deadline may still move, but not to before now.
        """
        now, closes = self._fleet.now, self._offer.window_end
        limits = self._final_limits() if closes <= now else self._limits  # a count may close it
        new = self._offer.take_ended()
        due, self._kept = [*self._kept, *new], []
        for request, item in due:
            if request.last_ns is not None and request.last_ns <= now:
                self._pass_on(request, item, limits)
            else:
                self._kept.append((request, item))
        return [request for request, _ in new]

    def finish(self, watch: Watch) -> tuple[str, ...]:
        """Pass on the rest and the steps; returns notes on stalls and the client's limits."""
        limits = self._final_limits()
        for request, item in (*self._kept, *self._offer.take_ended(), *self._offer.take_open()):
            self._pass_on(request, item, limits)
        fleet, late = self._fleet, self._late
        stalls = tuple(text for text in map(stall, fleet.replicas) if text is not None)
        for text in stalls:
            event = RunEvent(fleet.now, "stalled", text)
            self._sink.event(event)
            watch.event(event)
        self._sink.steps(step_table(fleet))
        if not late:
            return stalls
        passed = (
            f"{late} requests passed a client limit; the simulated client did not hang up on them"
        )
        return (*stalls, passed)

    def _final_limits(self) -> ClientLimits:
        return replace(self._limits, cancel_ns=self._offer.window_end + self.grace_ns)

    def _pass_on(self, request: Request, item: Item, limits: ClientLimits) -> None:
        record = request_record(request, self._fleet.replicas[request.replica], limits)
        planned, classes = item.planned, self._offer.schedule.workload.classes
        if planned.traffic_class is not None or planned.session is not None:
            talk = planned.session is not None
            record = replace(
                record,
                traffic_class=None if not classes else classes[planned.traffic_class or 0].name,
                session=item.number if talk else None,
                turn=planned.turn if talk else None,
            )
        self._late += record.failure in LEFT
        self.tally.add(request)
        self._sink.request(record)
