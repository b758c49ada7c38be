"""What a fleet that runs in real time needs beside `submit`: a client may leave.

The events of a fleet are handled one after another, so a request can be taken out between any two.
"""

from ridgeline.twin.fleet import Fleet
from ridgeline.twin.request import Request


def abort(fleet: Fleet, request: Request) -> None:
    """The client has left. A request that waits is forgotten at once.

    One that runs gets the next step's token and leaves with that step; one whose prompt is under
    way leaves with its first token, because a step that was scheduled cannot be taken back.
    """
    replica = fleet.replicas[request.replica]
    scheduler = replica.scheduler
    if request in replica.inbox:
        replica.inbox.remove(request)
        fleet.forget(request)
    elif request in scheduler.waiting and not request.ending:
        scheduler.waiting.remove(request)
        fleet.forget(request)
    elif request.decoding:
        if request.finish_step > scheduler.step:
            request.finish_step = scheduler.step
            # Should the step pass it over, the rest of its stretch is counted from its output.
            request.output = request.base_produced + scheduler.step - request.base_step + 1
            scheduler._finish_at.setdefault(scheduler.step, []).append(request)
    elif not request.ending:
        request.output = min(request.output, request.produced + 1)
