"""The small parts of serving: keys, hosts, a driver that gives memory back late, a full disk."""

from pathlib import Path

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.serving import events
from ridgeline.serving.events import EventLog
from ridgeline.serving.keys import check_host, is_loopback, key_of, without_key
from ridgeline.serving.memory import Memory
from ridgeline.serving.running import contact
from ridgeline.telemetry.gpu import GpuSample

GIB = 2**30


class Driver:
    """Two GPUs; after `late` readings GPU 1 is free again. GPU 0 is somebody else's."""

    def __init__(self, late: int) -> None:
        self._left = late
        self.readings = 0

    def sample(self) -> list[GpuSample]:
        self.readings += 1
        self._left -= 1
        held = 60 * GIB if self._left >= 0 else GIB
        return [sample(0, self.readings * GIB), sample(1, GIB if self.readings == 1 else held)]

    def close(self) -> None:
        pass


def sample(index: int, used: int) -> GpuSample:
    blank = dict.fromkeys(GpuSample.__dataclass_fields__)
    known = {"index": index, "memory_used_bytes": used, "processes": ()}
    return GpuSample(**{**blank, **known})  # type: ignore[arg-type]


def test_the_next_start_waits_until_the_memory_is_back() -> None:
    driver = Driver(late=4)
    assert Memory(["1"], lambda: driver).wait_for_it(5.0) == []
    assert driver.readings >= 4


def test_memory_that_does_not_come_back_is_told() -> None:
    (line,) = Memory(["1"], lambda: Driver(late=1000)).wait_for_it(0.3)
    assert line.startswith("GPU 1 holds 59.0 GiB more than before")


def test_a_driver_that_fails_stands_in_nobodys_way() -> None:
    def broken() -> Driver:
        raise RuntimeError("NVML: unknown error")

    assert Memory(["1"], broken).wait_for_it(5.0) == []
    assert Memory(["GPU-6f1c"], lambda: Driver(1000)).wait_for_it(5.0) == []
    assert Memory([], broken).wait_for_it(5.0) == []


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("10.0.0.4", False), ("::", False), ("gpu-host", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host: str, here: bool) -> None:
    assert is_loopback(host) is here
    if here:
        check_host(host, None, allow_no_key=False)
        return
    with pytest.raises(BadInput, match="there is no API key"):
        check_host(host, None, allow_no_key=False)
    check_host(host, "swordfish", allow_no_key=False)
    check_host(host, None, allow_no_key=True)


def test_where_a_server_is_asked_that_listens_somewhere() -> None:
    asked = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "127.0.0.2": "127.0.0.2", "::1": "[::1]"}
    assert {host: contact(host) for host in asked} == asked


def test_where_a_key_is_from(tmp_path: Path) -> None:
    environment = {
        "VLLM_API_KEY": "of-vllm",
        "MINE": " of-mine\n",
        "SHORT": "abc",
        "ODD": "a\x01bc",
    }
    assert key_of(None, None, {}) is None
    assert key_of(None, None, environment) == "of-vllm"
    assert key_of("MINE", None, environment) == "of-mine"
    for name, words in (("SHORT", "no key of 4"), ("ODD", "characters"), ("NONE", "no variable")):
        with pytest.raises(BadInput, match=words) as found:
            key_of(name, None, environment)
        assert "abc" not in str(found.value)
    with pytest.raises(BadInput, match="cannot be read"):
        key_of(None, tmp_path / "none", environment)
    with pytest.raises(BadInput, match="one of"):
        key_of("MINE", tmp_path / "none", environment)


def test_a_key_is_hidden_however_it_is_quoted() -> None:
    key = 'sword"fish/+'
    told = without_key(f'{key} sword\\"fish/+ sword%22fish%2F%2B', key)
    assert told == "*** *** ***"


def test_a_full_disk_stops_no_service_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    log = EventLog(tmp_path / "state", said.append)
    (tmp_path / "state" / events.EVENTS).mkdir()
    log.tell("up", "in rotation", pool="all", replica=0)
    log.tell("lost", "it ended", pool="all", replica=0)
    assert [line.split(" ", 1)[1] for line in said if line.startswith("20")] == [
        "all replica 0: up: in rotation", "all replica 0: lost: it ended",
    ]  # fmt: skip
    assert sum("no longer kept" in line for line in said) == 1
