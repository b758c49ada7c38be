"""A prompt that does not fit into the socket's buffer: whose time is it while it waits?"""

import socket
import threading
import time

from support.driving import RecordingWatch, closed, drive
from support.mock_server import plain_stream

REPLY = b"".join(data for _, data in plain_stream(1).parts)
LATE_S = 0.25  # after the connection is there, the server begins to read


def slow_reader(listener: socket.socket) -> None:
    """Takes one request after LATE_S, and answers at once when it has all of it."""
    sock, _ = listener.accept()
    time.sleep(LATE_S)
    data = bytearray()
    while b"\r\n\r\n" not in data:
        data += sock.recv(1 << 20)
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    missing = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) - len(body)
    while missing > 0:
        missing -= len(sock.recv(1 << 20))
    sock.sendall(REPLY)
    sock.recv(1)
    sock.close()


class Away(RecordingWatch):
    """The loop stands still from about 100 ms to `until_s`."""

    def __init__(self, for_s: float) -> None:
        super().__init__()
        self.for_s = for_s

    def stop_asked(self) -> bool:
        if self.asked == 2:
            time.sleep(self.for_s)
        return super().stop_asked()


def upload(for_s: float) -> tuple[float, float]:
    """(TTFT, bound of the first chunk's error) of a large prompt, in s."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = threading.Thread(target=slow_reader, args=(listener,))
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    outcome = drive(url, closed(requests=1, prompt_tokens=1_500_000), watch=Away(for_s))
    server.join()
    listener.close()
    (record,) = outcome.records
    assert record.failure is None
    assert record.first_ns is not None
    assert record.sent_ns is not None
    found = outcome.result.client.first_error_max_s
    assert found is not None
    assert record.first_error_ns == round(found * 1e9)
    return (record.first_ns - record.sent_ns) / 1e9, found


def test_a_client_that_goes_on_late_with_sending_knows_that_the_ttft_is_its_own() -> None:
    ttft_s, error_s = upload(1.0)
    assert ttft_s > 0.9, "else the prompt fitted into the buffers, and nothing was tested"
    assert ttft_s - error_s < 0.6


def test_waiting_for_a_slow_server_is_the_servers_time() -> None:
    ttft_s, error_s = upload(0.0)
    assert ttft_s > LATE_S - 0.15
    assert error_s < 0.15
