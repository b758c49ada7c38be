"""Steps that real vLLM releases took, recorded, and the twin's for the same arrivals."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import knobs, request

from ridgeline.domain.errors import BadInput
from ridgeline.twin.scheduler import Scheduler
from ridgeline.twin.trace import Recorder, difference, header, read_step_logs, replay

DATA = Path(__file__).with_name("data")
RELEASES = ("0.21.0", "0.32.0", "0.33.0")


def recorded(release):
    path = DATA / f"steps-vllm-{release}.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return read_step_logs((f"{path.name}:{n}", json.loads(x)) for n, x in enumerate(lines, 1))


@pytest.mark.parametrize("release", RELEASES)
def test_the_twin_takes_every_step_of_the_real_engine(release):
    logs = recorded(release)
    assert len(logs) >= 30
    assert {log.settings["version"] for log in logs} == {release}
    partings = {}
    for log in logs:
        for engine, twin in zip(log.lines, replay(log), strict=True):
            if (words := difference(engine, twin)) is not None:
                partings[log.settings["load"]] = words
                break
    assert partings == {}
    lines = [line for log in logs for line in log.lines]
    assert sum(len(line.preempted) for line in lines) > 50
    assert sum(n > 0 for line in lines for n in line.hits.values()) > 50
    assert {log.settings["async_scheduling"] for log in logs} == {True, False}
    assert {log.settings["scheduling_policy"] for log in logs} == {"fcfs", "priority"}


@pytest.mark.parametrize(
    ("release", "taken_for"), [("0.21.0", "0.33.0"), ("0.33.0", "0.21.0"), ("0.33.0", "0.32.0")]
)
def test_a_log_taken_for_another_release_parts(release, taken_for):
    """The comparison can fail, and the releases do differ."""
    parted = 0
    for log in recorded(release):
        other = replace(log, settings={**log.settings, "version": taken_for})
        parted += any(difference(e, t) for e, t in zip(log.lines, replay(other), strict=True))
    assert parted >= 1


def test_a_changed_line_is_told_with_its_step():
    log = next(x for x in recorded("0.32.0") if x.settings["load"] == "prefix hits")
    line = log.lines[3]
    (name, tokens), *_ = line.scheduled.items()
    changed = replace(line, scheduled={**line.scheduled, name: tokens + 1})
    (twin,) = [t for t in replay(log) if t.step == 3]
    words = difference(changed, twin)
    assert words == f"step 3: scheduled: {name} {tokens + 1} / {tokens} (engine / twin)"
    assert difference(line, twin) is None
    less = replace(line, free_blocks=line.free_blocks - 1)
    assert difference(less, twin) == (
        f"step 3: free_blocks: engine {line.free_blocks - 1}, twin {line.free_blocks}"
    )


def test_the_twins_own_log_replays_to_itself():
    """Two steps in flight, few blocks, shared prefixes, by hand through the recorder."""
    settings = knobs(
        "0.33", max_num_seqs=4, max_num_batched_tokens=64, enable_prefix_caching=True, block_size=16
    )
    lines = []
    engine = Recorder(Scheduler(settings, 12, trace=True), lines.append)
    for number in range(8):
        engine.add(request(number, 40 + number, 30, group=0, shared_tokens=32, sent_ns=number))
    flights = []
    while engine.has_work or flights:
        step = engine.schedule() if engine.has_work else None
        if step is not None:
            flights.append(step)
        if flights and (step is None or len(flights) == 2):
            engine.update(flights.pop(0))
    texts = [json.loads(json.dumps(line.to_json())) for line in lines]
    (log,) = read_step_logs([("header", header(settings, 12)), *(("line", t) for t in texts)])
    assert [difference(e, t) for e, t in zip(log.lines, replay(log), strict=True)] == [None] * len(
        lines
    )
    assert sum(len(line.preempted) for line in lines) > 0
    assert sum(sum(line.hits.values()) for line in lines) > 0
    assert len({a.id for line in log.lines for a in line.arrived}) == 8


HEADER = {"step_log": 1, "version": "0.21.0"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([[]], "line 0: is no JSON object"),
        ([{"step": 0}], "line 0: has no header"),
        ([{"step_log": 2}], "line 0: is of form 2, not 1"),
        ([HEADER, {"step": 0}], r"line 1: is no step: KeyError\('updated'\)"),
    ],
)
def test_what_is_no_step_log_is_refused_with_its_place(lines, message):
    with pytest.raises(BadInput, match=message):
        read_step_logs((f"line {n}", line) for n, line in enumerate(lines))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (HEADER, "the header lacks a setting"),
        ({**HEADER, "num_speculative_tokens": 3}, "speculative decoding cannot be replayed"),
        ({**HEADER, "version": "0.12.1"}, "knows the engine's releases 0.21, 0.32, 0.33"),
    ],
)
def test_settings_that_cannot_be_replayed_are_refused(settings, message):
    (log,) = read_step_logs([("header", settings)])
    with pytest.raises(BadInput, match=message):
        list(replay(log))
