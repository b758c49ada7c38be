"""The client's calibration as the verbs use it: once before the runs, or alone and at length."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ridgeline.cli.output import say, show, write_json

if TYPE_CHECKING:
    from ridgeline.domain.calibration import ClientCalibration
    from ridgeline.domain.workload import Workload


class Calibrated:
    """Calibrates the client in short form, once for each number of workers and of streams.

    One with at least as many streams as a load would be tried with holds for it, too.

    An `experiment.protocol.Calibrate`. `known`: a calibration that was made already.
    `shown_later`: the whole of it comes with the figures, so that only its end is told now.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        known: "ClientCalibration | None" = None,
        *,
        shown_later: bool = False,
    ) -> None:
        self._tell = tell
        self._shown_later = shown_later
        self._known = [] if known is None else [known]

    def __call__(self, workload: "Workload") -> "ClientCalibration":
        """What the client can do under such a load; tells it the first time."""
        from ridgeline.load.crew import workers_for  # noqa: PLC0415  --help is quick
        from ridgeline.load.selftest import calibrate_client, tried_streams  # noqa: PLC0415
        from ridgeline.report.selftest import calibration_words  # noqa: PLC0415

        arrivals = workload.arrivals
        workers = workers_for(
            workload.client.workers, arrivals.peak_users, arrivals.max_concurrency
        )
        streams = tried_streams(arrivals.peak)
        for known in self._known:
            if known.workers == workers and known.streams >= streams:
                return known
        found = calibrate_client(arrivals.peak, workers)
        self._known.append(found)
        words = calibration_words(found)
        if self._shown_later and found.problem is None:
            words = f"done in {found.seconds:.1f} s"
        self._tell(f"client calibration: {words}")
        return found


def calibrate_at_length(
    streams: float, workers: int | str, json: str | None, *, quiet: bool
) -> "ClientCalibration":
    """Calibrate and show every level; the JSON goes to `json`."""
    from ridgeline.load.crew import workers_for  # noqa: PLC0415
    from ridgeline.load.selftest import calibrate_client  # noqa: PLC0415
    from ridgeline.report.selftest import (  # noqa: PLC0415
        calibration_json,
        calibration_table,
        calibration_words,
        level_words,
    )

    say("client calibration: against null servers on this host; about 15 s, 30 s at most")
    found = calibrate_client(
        streams, workers_for(workers), long=True, tell=lambda level: say(level_words(level))
    )
    write_json(json, calibration_json(found))
    if not quiet:
        show(calibration_table(found), to_stderr=json == "-")
    say(f"client calibration: {calibration_words(found)}")
    return found
