"""The server: one thread, one poller, streams that are sent when the pacer says so."""

import contextlib
import errno
import gc
import itertools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ridgeline import __version__
from ridgeline.domain.errors import BadInput
from ridgeline.engines.twin_server import protocol
from ridgeline.engines.twin_server.connection import (
    Connection,
    HttpRequest,
    framed,
    response,
    stamp_arrivals,
    stream_head,
)
from ridgeline.engines.twin_server.metrics import ServerMetrics
from ridgeline.engines.twin_server.pacer import Pacer
from ridgeline.engines.twin_server.poller import READ, WRITE, make_poller
from ridgeline.engines.twin_server.protocol import ApiError, Ask, Reply, Served
from ridgeline.engines.twin_server.routes import (
    CHAT,
    COMPLETIONS,
    METHODS,
    check_route,
    counted_as,
)
from ridgeline.engines.twin_server.stream import Stream

BACKLOG = 4096
_LOG = logging.getLogger(__name__)
# Counting an ended stream costs tens of microseconds: it waits for such a gap between tokens, but
# not for ever.
_SETTLE_GAP_NS = 300_000
_UNSETTLED = 10_000
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Options:
    """Where to listen and what to tell. Port 0 takes a free one.

    engine_version: what /version says first, as vLLM does. cache_config: labels of
    vllm:cache_config_info, None without a KV cache. log_sends: a file that gets one JSON line per
    ended stream with the planned and true send times (monotonic ns) of its tokens.
    """

    served: Served
    host: str = "127.0.0.1"
    port: int = 0
    engine_version: str | None = None
    cache_config: Mapping[str, str] | None = None
    log_sends: Path | None = None


class TwinServer:
    """Serves until it is told to stop. Usable once: `open`, `run`, and `stop` from anywhere."""

    def __init__(self, options: Options, pacer: Pacer) -> None:
        self._options = options
        self._served = options.served
        self._pacer = pacer
        self._poller = make_poller()
        self._listener: socket.socket | None = None
        self._accepting = False
        self._connections: dict[int, Connection] = {}
        self._created_s = time.time()
        self._ids = itertools.count(1)
        self._due_ns: int | None = None
        self._stopping = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._log: IO[str] | None = None
        self._ended: list[tuple[Stream, str]] = []
        self.metrics = ServerMetrics(
            self._served.model,
            self._served.max_model_len,
            len(pacer.state()),
            self._created_s,
        )

    # -- life ------------------------------------------------------------------------------------

    def open(self) -> str:
        """Listen; returns the URL. Raises BadInput when the address cannot be had."""
        where = f"{self._options.host}:{self._options.port}"
        family = socket.AF_INET6 if ":" in self._options.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamp_arrivals(listener)
            listener.bind((self._options.host, self._options.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            fix = "choose another --port, or 0 for a free one"
            if error.errno != errno.EADDRINUSE:
                fix = "check --host and --port"
            what = f"cannot listen: {error.strerror or error}"
            raise BadInput(what, where=where, fix=fix) from None
        listener.setblocking(False)
        self._listener = listener
        if self._options.log_sends is not None:
            try:
                self._log = self._options.log_sends.open("w", encoding="utf-8")
            except OSError as error:
                raise BadInput(
                    f"cannot write: {error.strerror}", where=str(self._options.log_sends)
                ) from None
        host = f"[{self._options.host}]" if family == socket.AF_INET6 else self._options.host
        return f"http://{host}:{listener.getsockname()[1]}"

    def stop(self) -> None:
        """Ask `run` to return; safe from other threads and signal handlers."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    def run(self) -> None:
        """Serve until `stop`; open streams are cut then."""
        assert self._listener is not None, "open() comes first"
        self._poller.watch(self._wake_r, READ)
        self._accept_on(True)
        # A collection of old objects would hold all streams up; what exists now never dies, and
        # connections break their own cycles when they close.
        gc.collect()
        gc.freeze()
        thresholds = gc.get_threshold()
        gc.set_threshold(100_000, 50, 1000)
        try:
            while not self._stopping:
                self._turn()
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            self._close()

    def _turn(self) -> None:
        if self._ended:
            self._settle()
        for fd, flags in self._poller.wait(self._due_ns):
            if fd == self._listener_fd:
                self._accept()
            elif fd == self._wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
            else:
                connection = self._connections.get(fd)
                if connection is not None:
                    self._serve(connection, flags)
            # Tokens that fell due meanwhile go first: reading can wait, they cannot.
            if self._due_ns is not None and self._due_ns <= time.monotonic_ns():
                self._deliver()
        if self._due_ns is not None and self._due_ns <= time.monotonic_ns():
            self._deliver()

    def _settle(self, *, all_of_it: bool = False) -> None:
        """Count and log the streams that have ended, when no token is due soon."""
        while self._ended:
            gap_ns = _SETTLE_GAP_NS
            if self._due_ns is not None:
                gap_ns = self._due_ns - time.monotonic_ns()
            if gap_ns < _SETTLE_GAP_NS and not all_of_it and len(self._ended) < _UNSETTLED:
                return
            stream, reason = self._ended.pop()
            if stream.admitted:
                stream.observe_end(self.metrics.engines[stream.engine], reason)
            self._count_http(stream.request, 200)
            if self._log is not None:
                self._log.write(stream.log_line(reason))
        if self._log is not None:
            self._log.flush()

    def _deliver(self) -> None:
        self._due_ns = self._pacer.deliver(time.monotonic_ns(), self._send)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._accept_on(False)
        assert self._listener is not None
        self._listener.close()
        self._poller.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        if self._log is not None:
            self._settle(all_of_it=True)
            self._log.close()

    # -- connections -----------------------------------------------------------------------------

    @property
    def _listener_fd(self) -> int:
        return self._listener.fileno() if self._listener is not None else -1

    def _accept_on(self, on: bool) -> None:
        self._accepting = on
        self._poller.watch(self._listener_fd, READ if on else 0)

    def _accept(self) -> None:
        assert self._listener is not None
        # A few at a time, so that a rush of connections does not hold up the streams.
        for _ in range(16):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._accept_on(False)  # goes on when a connection has closed
                    return
                raise
            sock.setblocking(False)
            connection = Connection(sock, self._wants_write)
            self._connections[connection.fd] = connection
            self._poller.watch(connection.fd, READ)

    def _wants_write(self, fd: int, on: bool) -> None:
        self._poller.watch(fd, READ | WRITE if on else READ)

    def _serve(self, connection: Connection, flags: int) -> None:
        alive = connection.read() if flags & READ else True
        if alive and flags & WRITE:
            alive = connection.flush()
        if not alive:
            self._drop(connection)
            return
        self._take_requests(connection)

    def _take_requests(self, connection: Connection) -> None:
        while connection.requests and not connection.busy and not connection.closed:
            if connection.close_when_sent or not connection.takes_more:
                break
            self._answer(connection, connection.requests.popleft())
        if connection.close_when_sent and connection.drained and not connection.closed:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close; a stream that is still going on is aborted and its place freed."""
        if connection.closed:
            return
        self._poller.watch(connection.fd, 0)
        del self._connections[connection.fd]
        stream = connection.stream
        connection.close()
        if isinstance(stream, Stream):
            self._end(stream, "abort")
        if not self._accepting and not self._stopping:
            self._accept_on(True)

    # -- requests --------------------------------------------------------------------------------

    def _answer(self, connection: Connection, request: HttpRequest) -> None:
        try:
            status, body, kind = self._reply_to(connection, request)
            allow = None
        except ApiError as error:
            status, body, kind = error.status, error.body(), "application/json"
            allow = METHODS.get(request.path) if status == 405 else None
        except Exception:  # one bad request must not cut the streams of all others
            _LOG.exception("a request to %s failed", request.path)
            fault = ApiError(500, "the twin's server has a fault; its log has the details")
            status, body, kind, allow = 500, fault.body(), "application/json", None
        if status == 0:  # a generation was started
            return
        self._count_http(request, status)
        keep_alive = request.keep_alive
        head_only = request.method == "HEAD"
        data = response(
            status, body, kind=kind, keep_alive=keep_alive, head_only=head_only, allow=allow
        )
        self._finish_reply(connection, data, keep_alive=keep_alive)

    def _finish_reply(self, connection: Connection, data: bytes, *, keep_alive: bool) -> None:
        if not keep_alive:
            connection.close_when_sent = True
        if not connection.write(data) or (connection.close_when_sent and connection.drained):
            self._drop(connection)

    def _reply_to(self, connection: Connection, request: HttpRequest) -> tuple[int, bytes, str]:
        """Status, body and content type; status 0 when a generation was started instead."""
        check_route(request)
        json_type = "application/json"
        if request.path in (CHAT, COMPLETIONS):
            ask = protocol.parse_ask(request.body, self._served, chat=request.path == CHAT)
            self._start(connection, request, ask)
            return 0, b"", json_type
        if request.path == "/v1/models":
            return 200, protocol.models(self._served, int(self._created_s)), json_type
        if request.path == "/tokenize":
            return 200, protocol.tokenize(request.body, self._served), json_type
        if request.path == "/version":
            version = {
                "version": self._options.engine_version or __version__,
                "twin": f"ridgeline {__version__}",
            }
            return 200, json.dumps(version).encode(), json_type
        if request.path == "/metrics":
            self._settle(all_of_it=True)
            page = self.metrics.render(self._pacer.state(), self._options.cache_config)
            return 200, page.encode(), _METRICS_TYPE
        return 200, b"", json_type  # /health and /ping

    def _count_http(self, request: HttpRequest, status: int) -> None:
        handler = counted_as(request.path)
        if handler is not None:
            self.metrics.http_done(handler, request.method, status)

    def _start(self, connection: Connection, request: HttpRequest, ask: Ask) -> None:
        """Take a generation in; its tokens go out when the pacer says so."""
        # A pipelined request begins when the reply before it has ended, not when it came.
        arrival = max(request.arrival_ns, connection.free_since_ns)
        wanted = request.headers.get("x-request-id", "")
        number = wanted if re.fullmatch(r"[\w.-]{1,128}", wanted) else f"{next(self._ids):012x}"
        reply_id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{number}"
        reply = Reply(ask, self._served, reply_id, int(time.time()))
        stream = Stream(
            connection, request, ask=ask, reply=reply, reply_id=reply_id, arrival_ns=arrival
        )
        if self._log is not None:
            stream.planned_ns, stream.sent_ns = [], []
        connection.busy = True
        connection.stream = stream
        if ask.stream:
            # As uvicorn does: the head goes out at once, long before the first token.
            head = stream_head(http_11=request.http_11, keep_alive=request.keep_alive)
            if not connection.write(head):
                self._drop(connection)
                return
        stream.engine = self._pacer.add(
            stream, ask.prompt, ask.output_tokens, arrival, ask.priority
        )
        stream.admitted = True
        self._due_ns = 0  # the pacer is asked before the next wait

    # -- tokens ----------------------------------------------------------------------------------

    def _send(self, key: object, planned_ns: int, count: int) -> None:
        """Send the next `count` tokens of a stream: what the pacer calls."""
        assert isinstance(key, Stream)
        stream = key
        ask, done = stream.ask, stream.done
        last = done + count >= ask.output_tokens
        if last:
            stream.times = self._pacer.cancel(stream)
        if ask.stream:
            data = self._events(stream, done, count, last=last)
        elif last:
            body = stream.reply.whole(stream.times.cached_tokens)
            data = response(200, body, keep_alive=stream.request.keep_alive)
        else:
            data = b""
        now = time.monotonic_ns()
        alive = stream.connection.write(data) if data else True
        self._note(stream, planned_ns, now, count)
        if last:
            self._end(stream, ask.finish_reason)
            self._after_reply(stream)
        elif not alive:
            self._drop(stream.connection)

    def _events(self, stream: Stream, done: int, count: int, *, last: bool) -> bytes:
        reply, frame = stream.reply, framed if stream.request.http_11 else bytes
        data = frame(reply.tokens(done, count, last=last))
        if not done and stream.ask.chat:
            data = frame(reply.role()) + data
        if last:
            data += frame(reply.closing(done + count, stream.times.cached_tokens))
            if stream.request.http_11:
                data += b"0\r\n\r\n"
        return data

    def _note(self, stream: Stream, planned_ns: int, now: int, count: int) -> None:
        metrics = self.metrics.engines[stream.engine]
        self.metrics.send_lateness.observe(max(0, now - planned_ns) / 1e9)
        metrics.generation_tokens += count
        if stream.done:
            gap = (now - stream.last_ns) / 1e9
            metrics.histograms["inter_token_latency_seconds"].observe(gap)
        else:
            stream.first_ns = now
            metrics.prompt_tokens += len(stream.ask.prompt)
            ttft = (now - stream.arrival_ns) / 1e9
            metrics.histograms["time_to_first_token_seconds"].observe(ttft)
        stream.last_ns = now
        stream.done += count
        if stream.sent_ns is not None and stream.planned_ns is not None:
            stream.planned_ns.append(planned_ns)
            stream.sent_ns.append(now)

    def _end(self, stream: Stream, reason: str) -> None:
        """Forget a stream; `_settle` counts it."""
        stream.connection.stream = None
        if stream.admitted and reason == "abort":
            stream.times = self._pacer.cancel(stream)
        self._ended.append((stream, reason))

    def _after_reply(self, stream: Stream) -> None:
        connection = stream.connection
        connection.busy = False
        connection.free_since_ns = time.monotonic_ns()
        if not stream.request.keep_alive or (stream.ask.stream and not stream.request.http_11):
            connection.close_when_sent = True
        self._take_requests(connection)
