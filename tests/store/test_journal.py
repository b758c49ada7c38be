"""The journal outlives its process, its disk and its own last bytes."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import RequestRecord
from ridgeline.store import codec
from ridgeline.store import journal as journal_module
from ridgeline.store.journal import Journal, is_being_written, read_journal

from .conftest import failed_request, measured_request, rows_of

WRITER = """
import sys, time
import numpy as np
from pathlib import Path
from ridgeline.domain.records import RequestRecord
from ridgeline.store.journal import Journal

journal = Journal(Path(sys.argv[1]), {"run_id": "killed"})
index = 0
while True:
    journal.request(RequestRecord(
        index=index, user=None, intended_ns=time.monotonic_ns(), sent_ns=None, first_ns=None,
        last_ns=None, end_ns=None, planned_prompt_tokens=1, planned_output_tokens=1,
        chunk_ns=np.arange(index % 50, dtype=np.int64) + index,
    ))
    index += 1
    time.sleep(0.0005)
"""


def wait_for(condition, limit_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_no_more_than_the_last_flush(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    try:
        wait_for(lambda: path.exists() and path.stat().st_size > 10_000)
        time.sleep(random.Random(seed).uniform(0.05, 0.7))
        assert is_being_written(path)
        killed_ns = time.monotonic_ns()
        writer.send_signal(signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()
    assert not is_being_written(path)
    found = read_journal(path)
    assert found.head == {"run_id": "killed"}
    assert found.facts is None
    got = [r.index for r in found.requests]
    assert got == list(range(len(got)))
    for request in found.requests:
        assert request.chunk_ns is not None
        assert request.chunk_ns.tolist() == [request.index + k for k in range(request.index % 50)]
    # The promise is half a second; the other half is for this machine's scheduler.
    assert killed_ns - found.requests[-1].intended_ns < 1.0e9


def filled(path: Path, n: int = 6) -> bytes:
    rng = np.random.default_rng(0)
    with Journal(path, {"a": 1}) as journal:
        for i in range(n - 1):
            journal.request(measured_request(i, rng))
        journal.request(failed_request(n - 1))
        journal.facts({"done": True})
    return path.read_bytes()


def test_a_journal_cut_at_any_byte_reads_as_a_prefix(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole", n=3)
    cut = tmp_path / "cut"
    seen = set()
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        found = read_journal(cut)
        assert [r.index for r in found.requests] == list(range(len(found.requests)))
        assert found.facts is None
        seen.add(len(found.requests))
    assert seen == {0, 1, 2, 3}


def test_a_flipped_bit_ends_the_reading_before_it(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole")
    damaged = tmp_path / "damaged"
    rng = random.Random(4)
    for _ in range(200):
        at, bit = rng.randrange(8, len(whole)), 1 << rng.randrange(8)
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        found = read_journal(damaged)
        assert found.cut_bytes >= len(whole) - at
        assert [r.index for r in found.requests] == list(range(len(found.requests)))


def test_many_requests_at_once_come_back_as_they_went_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    given = [measured_request(i, rng) for i in range(40)] + [failed_request(40)]
    with Journal(tmp_path / "one", {}) as journal:
        for request in given:
            journal.request(request)
    with Journal(tmp_path / "many", {}) as journal:
        journal.rows(rows_of(given[:25]))
        journal.request(given[25])
        journal.rows(rows_of(given[26:]))
        journal.facts({"done": True})
    one, many = (read_journal(tmp_path / name) for name in ("one", "many"))
    assert many.facts == {"done": True}
    assert len(many.requests) == len(one.requests) == len(given)
    for left, right in zip(one.requests, many.requests, strict=True):
        for name in RequestRecord.__slots__:
            a, b = getattr(left, name), getattr(right, name)
            if name == "chunk_shared" and a is None:  # rows have a mark for every chunk
                a = np.zeros(len(b), np.bool_)
            assert a.tolist() == b.tolist() if isinstance(a, np.ndarray) else a == b, name


def test_rows_cut_at_any_byte_are_lost_as_a_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "journal"
    with Journal(path, {}) as journal:
        for first in (0, 3):
            journal.rows(rows_of([measured_request(first + i, rng) for i in range(3)]))
    whole = path.read_bytes()
    seen = set()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = read_journal(path)
        assert [r.index for r in found.requests] == list(range(len(found.requests)))
        seen.add(len(found.requests))
    assert seen == {0, 3}


def test_rows_of_another_version_keep_what_is_known() -> None:
    rng = np.random.default_rng(6)
    rows = rows_of([measured_request(i, rng) for i in range(3)])
    newer = replace(
        rows,
        numbers=np.column_stack([np.arange(3), rows.numbers]),
        names=["of_the_future", *rows.names],
    )
    found = codec.rows_from_bytes(codec.rows_to_bytes(newer))
    assert [r.index for r in found.records()] == [0, 1, 2]
    assert found.column("end_ns").tolist() == rows.column("end_ns").tolist()
    for bad in (
        replace(rows, chunks=rows.chunks + 1),
        replace(rows, said=rows.said + 9),
        replace(rows, said=rows.said - 1),
        replace(rows, chunk_shared=rows.chunk_shared[:-1]),
        replace(rows, texts=[("too", "few")]),
    ):
        with pytest.raises(ValueError):  # the journal's reader ends there
            codec.rows_from_bytes(codec.rows_to_bytes(bad))


def test_a_journal_of_the_version_before_is_read() -> None:
    """Written by the program as it was before it knew frames of many requests."""
    found = read_journal(Path(__file__).with_name("data") / "journal-2")
    assert found.head == {"run_id": "old"}
    assert found.facts == {"done": True}
    assert [e.text for e in found.events] == ["nothing came"]
    assert [r.index for r in found.requests] == [0, 1, 2, 3]
    assert [r.failure_detail for r in found.requests] == [None, None, None, "refused"]
    assert [r.finish_reason for r in found.requests] == ["length"] * 3 + [None]
    for i, request in enumerate(found.requests[:3]):
        assert request.end_ns == 1000 * i + 200
        assert request.chunk_ns is not None
        assert request.chunk_ns.tolist() == [1000 * i + 100 + k for k in range(i + 1)]
    assert found.cut_bytes == 0


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"PAR1 something else entirely")
    with pytest.raises(StoreError, match="not a journal"):
        read_journal(path)


def test_a_full_disk_is_one_line_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    rng = np.random.default_rng(0)
    journal = Journal(path, {"a": 1})
    journal.request(measured_request(0, rng))
    wait_for(lambda: len(read_journal(path).requests) == 1)
    real = os.write
    state: list[int] = []

    def half_then_full(fd: int, data: bytes) -> int:
        taken = 0 if state else real(fd, bytes(data)[:10])  # a torn frame, as a full disk leaves it
        state.append(taken)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return taken

    monkeypatch.setattr(journal_module.os, "write", half_then_full)
    journal.request(measured_request(1, rng))

    lines: list[str] = []

    def refused() -> bool:
        try:
            journal.request(measured_request(2, rng))
        except StoreError as error:
            lines.append(str(error))
        return bool(lines)

    wait_for(refused)
    assert lines[0].startswith(f"{path}: cannot write (no space left on device); free some space")
    assert f"what was measured is kept, see `ridgeline report {path.parent.parent}`" in lines[0]
    with pytest.raises(StoreError):
        journal.close()
    monkeypatch.undo()
    assert [r.index for r in read_journal(path).requests] == [0]


def test_a_file_size_limit_of_the_kernel_keeps_whole_records(tmp_path: Path) -> None:
    """The real thing: the kernel refuses bytes in the middle of a frame."""
    script = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
""" + WRITER.replace("while True:", "while index < 20000:")
    path = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "StoreError" in done.stderr.splitlines()[-1]
    assert path.stat().st_size == 3000
    found = read_journal(path)
    assert len(found.requests) > 3
    assert found.cut_bytes > 0


def test_where_no_folder_can_be_the_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file/journal.*--out"):
        Journal(tmp_path / "file" / "journal", {})


def test_one_writer_only(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", {}), pytest.raises(StoreError):
        Journal(tmp_path / "j", {})
