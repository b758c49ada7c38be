"""TLS between the socket and the parser, through memory BIOs.

The socket stays a plain one, so the kernel's receive time is known for encrypted bytes too.
"""

import ssl


class Tls:
    """One TLS client session. Every call returns what must be sent; none touches a socket.

    `data_last`: the last bytes given to `decrypt` ended a record with data, so that no part of
    another record, and none of TLS itself, came after it.
    """

    data_last = False

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, received: bytes) -> tuple[bool, bytes]:
        """Go on with the handshake; (done, bytes to send). Raises ssl.SSLError."""
        if received:
            self._incoming.write(received)
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def encrypt(self, plain: bytes) -> bytes:
        """The records of `plain`."""
        self._session.write(plain)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> tuple[bytes, bytes]:
        """(plain bytes, bytes to send) of what was received. Raises ssl.SSLError."""
        self._incoming.write(received)
        pieces, self.data_last = [], False
        try:
            while piece := self._session.read(1 << 16):
                pieces.append(piece)
                self.data_last = not self._incoming.pending
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # the end follows on the socket
            pass
        return b"".join(pieces), self._outgoing.read()
