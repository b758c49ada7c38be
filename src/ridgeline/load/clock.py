"""Receive times: the kernel's stamps, carried over to the monotonic clock.

Linux stamps an arriving segment with CLOCK_REALTIME (SO_TIMESTAMPNS, socket(7)); a reader that
comes late still learns when the bytes came. Records are monotonic, so each turn of the loop
samples the distance of the two clocks. Where that is not safe, the time of the read is used.
"""

import socket
import struct
import sys
import time

from ridgeline.load.digest import Digest

# Not named by Python's socket module. The value is that of all Linux architectures except
# alpha, mips, parisc and sparc; there the option is refused or no stamp comes: read times then.
SO_TIMESTAMPNS = 35
ANCILLARY_BYTES = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0
_keeper: list[socket.socket] = []
_TIMESPEC = struct.Struct("@ll")
_LEVEL = socket.SOL_SOCKET

AGREE_NS = 5_000  # two readings of the clocks one after the other differ by less than this
STEP_NS = 1_000_000  # the two clocks moved apart by more than this within a turn: a clock step
FUTURE_SLACK_NS = 200_000  # the sampling error; a stamp further ahead of its read is not believed
NEVER_NS = 1 << 62
SETTLE_NS = 100_000_000  # after a step, bytes stamped before it may still be queued


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on `sock`; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if not _keeper:
            # Linux switches stamping on and off with the first and last socket that asks for it,
            # a little later than asked: one that stays keeps it on between runs.
            _keeper.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            _keeper[0].setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def realtime_stamp(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The kernel's stamp (ns, CLOCK_REALTIME) in recvmsg's ancillary data, None without one."""
    for level, kind, data in ancillary:
        if kind == SO_TIMESTAMPNS and level == _LEVEL and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return seconds * 1_000_000_000 + nanoseconds  # type: ignore[no-any-return]
    return None


class KernelClock:
    """Turns CLOCK_REALTIME stamps into monotonic ones by an offset sampled each turn.

    `steps` counts the clock steps seen. A step makes stamps unusable for SETTLE_NS: what was
    stamped before it can still be waiting to be read. `backlog` collects, in ns, how long the last
    segment of each read had waited for it; `unstamped` counts the reads without a kernel stamp.
    `errors` collects, for every content chunk, how far its time may be too late (ns), `firsts` the
    same for each reply's first one.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.backlog = Digest()
        self.unstamped = 0
        self.errors = Digest()
        self.firsts = Digest()
        self._late_ns = 0
        self._kernel = False
        self._offset_ns = self._distance()
        self._distrust_until_ns = 0

    @staticmethod
    def _distance() -> int:
        """CLOCK_REALTIME minus the monotonic clock, the best of a few tries (ns)."""
        best, narrowest = 0, 1 << 62
        for _ in range(4):
            before = time.monotonic_ns()
            real = time.time_ns()
            width = time.monotonic_ns() - before
            if width < narrowest:
                best, narrowest = real - before - width // 2, width
            if width < 5_000:  # not interrupted between the readings
                break
        return best

    def sample(self, now_ns: int) -> None:
        """Renew the offset; once a turn of the loop, `now_ns` is the monotonic time just read.

        One look that agrees with what is known suffices; anything else is measured with care.
        """
        if -AGREE_NS < time.time_ns() - now_ns - self._offset_ns < AGREE_NS:
            return
        offset = self._distance()
        if abs(offset - self._offset_ns) > STEP_NS:
            self.steps += 1
            self._distrust_until_ns = now_ns + SETTLE_NS
        self._offset_ns = offset

    def note_read(
        self, backlog_ns: int, late_ns: int, kernel: bool, since_last_ns: int = NEVER_NS
    ) -> None:
        """Count one read of a reply; late_ns: how long the client had not looked before it.

        since_last_ns: from the last stamp of this connection (its request's, or that of a read
        which left nothing behind) to this one's. Whatever the read has came in that time.
        """
        self._kernel = kernel
        self._late_ns = min(max(late_ns, backlog_ns if kernel else 0), since_last_ns)
        if kernel:
            self.backlog.fresh.append(backlog_ns)
        else:
            self.unstamped += 1

    def note_chunks(
        self, count: int, first: bool = False, last: bool = False, upload_ns: int = 0
    ) -> int:
        """Count the content chunks of the read noted last; `first`: the reply's first is one.

        Returns by how much (ns) their time may be too late. upload_ns: for how long the client
        may have held up the request, which makes a first chunk late too.

        A read has one stamp, that of its last segment. That is a chunk's own time, however late the
        reader was, where it is the only one of its read and nothing came after it (`last`). What
        follows it in the read, be it another chunk, the reply's end or a comment, may have come
        while the reader was away: the chunk may be that much earlier.
        """
        error_ns = 0 if last and count == 1 and self._kernel else max(self._late_ns, 0)
        if count == 1:
            self.errors.fresh.append(error_ns)
        else:
            self.errors.add(error_ns, count)
        if first:
            self.firsts.fresh.append(error_ns + upload_ns)
        return error_ns

    def fold(self) -> None:
        """Put what was counted since the last time into its digests; now and then, in any turn."""
        self.backlog.fold()
        self.errors.fold()
        self.firsts.fold()

    def forget(self) -> None:
        """Begin to count anew."""
        self.backlog.clear()
        self.errors.clear()
        self.firsts.clear()
        self.unstamped = 0

    def receive(
        self, ancillary: list[tuple[int, int, bytes]], read_ns: int, not_before_ns: int
    ) -> tuple[int, bool]:
        """`receive_ns` of recvmsg's ancillary data, without more calls where all is well."""
        if len(ancillary) == 1 and read_ns >= self._distrust_until_ns:
            level, kind, data = ancillary[0]
            if kind == SO_TIMESTAMPNS and level == _LEVEL and len(data) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                stamp = seconds * 1_000_000_000 + nanoseconds - self._offset_ns
                if not_before_ns <= stamp <= read_ns:
                    return stamp, True
        return self.receive_ns(realtime_stamp(ancillary), read_ns, not_before_ns)

    def receive_ns(
        self, stamp_real_ns: int | None, read_ns: int, not_before_ns: int
    ) -> tuple[int, bool]:
        """Monotonic receive time of a read, and whether it is the kernel's.

        Falls back to `read_ns` without a stamp, after a clock step, and for a stamp that lies
        after the read or before `not_before_ns` (the send, or the connection's last read).
        """
        if stamp_real_ns is None or read_ns < self._distrust_until_ns:
            return read_ns, False
        stamp = stamp_real_ns - self._offset_ns
        if stamp > read_ns:
            return read_ns, stamp - read_ns <= FUTURE_SLACK_NS
        if stamp < not_before_ns:
            if not_before_ns - stamp > FUTURE_SLACK_NS:
                return read_ns, False
            return not_before_ns, True
        return stamp, True
