"""Changes of a configuration under `ridgeline serve` lose no request: two replicas of the real vLLM
on the CPU behind the real vllm-router, 32 users, 2 000 requests and more while it changes.

Most users ask for short replies, which the router sends again where a replica is gone; four have
streams, which only a replica that was drained brings to their end.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from support.cpuserving import PLAIN, STREAM, router_program, study_text
from support.served import Served, Users, serving_of

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm")]
from real_vllm import ENVIRONMENT, environment_folder, make_model  # noqa: E402

pytestmark = pytest.mark.acceptance

SHORT, LONG = 28, 4  # users
TOKENS = 512  # of a stream
REQUESTS = 2000
MOST_CHANGES = 6
READY_S = 400.0


def event_s(served: Served, name: str, number: int = -1) -> float:
    """When it was told, in UTC seconds."""
    return datetime.fromisoformat(served.events(name)[number]["at"]).timestamp()


def sent_between(crowd: Users, begin_s: float, end_s: float, offset_s: float) -> int:
    """Requests that were sent in between; offset_s: UTC less the users' clock."""
    return sum(begin_s <= sent + offset_s <= end_s for sent, _, _, _ in list(crowd.answers))


def test_no_request_is_lost_while_the_configuration_changes(tmp_path: Path) -> None:
    python, router = environment_folder() / "bin" / "python", router_program()
    model = make_model(python, tmp_path / "model")
    file, seqs = tmp_path / "study.yaml", [64, 48]

    def write(number: int) -> None:
        file.write_text(study_text(python, ENVIRONMENT, model, router, seqs[number % 2], READY_S))

    write(0)
    with serving_of(file, tmp_path / "state", ready_s=READY_S) as served:
        served.forget()
        crowd = Users(served.port, SHORT, model=str(model), extra=PLAIN, pause_s=0.1)
        streams = Users(
            served.port, LONG, model=str(model), extra={**STREAM, "max_tokens": TOKENS}, pause_s=0.1
        )
        during, changes = change_until_enough(served, crowd, streams, write)
        for each, tokens in ((crowd, PLAIN["max_tokens"]), (streams, TOKENS)):
            assert each.statuses() == {200: len(each.answers)}
            assert {a["usage"]["completion_tokens"] for _, _, _, a in each.answers} == {tokens}
        told = Counter(event["event"] for event in served.events())
        print(f"{during[0]} requests and {during[1]} streams were sent during {changes} changes,"
              f" {len(crowd.answers)} and {len(streams.answers)} in all; none was lost;"
              f" events: {dict(told)}")  # fmt: skip
        assert told["changed"] == changes
        assert told["drained"] == 2 * changes  # both old replicas of each, and none was cut off
        assert told.keys().isdisjoint({"cut", "lost", "rolled-back", "given-up", "router-given-up"})
        words = " ".join(served.command_lines).replace("\0", " ")
        assert all(f"--max-num-seqs {n}" in words for n in seqs)
        assert sum(during) >= REQUESTS
        assert served.stop() == 0
        served.wait_gone()


def change_until_enough(
    served: Served, crowd: Users, streams: Users, write: Callable[[int], None]
) -> tuple[list[int], int]:
    """Go over to the other configuration and back until enough requests were sent meanwhile.

    Returns how many requests and streams were sent between the begin and the end of changes, and
    how many changes there were.
    """
    during, changes = [0, 0], 0
    with crowd, streams:
        streams.wait_for(2 * LONG, 120.0)  # the load stands
        while sum(during) < REQUESTS and changes < MOST_CHANGES:
            changes += 1
            write(changes)
            served.change()
            served.wait_for("changed", changes, limit_s=2 * READY_S)
            begin_s, end_s = event_s(served, "changing"), event_s(served, "changed")
            offset_s = time.time() - time.monotonic()
            for place, each in enumerate((crowd, streams)):
                during[place] += sent_between(each, begin_s, end_s, offset_s)
        streams.wait_for(len(streams.answers) + 2 * LONG, 120.0)  # and it goes on afterwards
    return during, changes
