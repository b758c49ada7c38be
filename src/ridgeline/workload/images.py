"""Synthetic images for multimodal models, each another one, as data URLs.

A picture is a smooth gradient whose last rows say which request it is for, so that no cache of a
server knows it. All rows but those are compressed once, which makes an image cheap.
"""

import base64
import importlib
import io
import struct
import zlib
from typing import Any

import numpy as np

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Images

MARK_ROWS = 4
BAND_ROWS = 32  # rows alike: a picture then is some kilobytes, whatever its size
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


class ImageMaker:
    """Makes the images of a run; `salt` keeps those of two runs apart. Raises BadInput for JPEG
    where Pillow is not installed."""

    def __init__(self, images: Images, salt: str) -> None:
        self.images = images
        self._made_of = images, salt
        self._salt = zlib.crc32(salt.encode())
        self._marked = min(MARK_ROWS, images.height)
        width = images.width
        x = np.arange(width)[:, None] * 255 // width
        slope = np.array([5, 11, 17])
        rows = [
            ((x + y // BAND_ROWS * slope) & 0xFF).astype(np.uint8).tobytes()
            for y in range(images.height - self._marked)
        ]
        self._rows = rows
        if images.format == "jpeg":
            try:
                self._pillow: Any = importlib.import_module("PIL.Image")  # an extra
            except ImportError:
                raise BadInput(
                    "JPEG images need Pillow", where="prompts.images",
                    fix="install pillow, or use format: png",
                ) from None  # fmt: skip
            return
        self._head = _SIGNATURE + _chunk(
            b"IHDR", struct.pack(">IIBBBBB", width, images.height, 8, 2, 0, 0, 0)
        )
        self._compressor = zlib.compressobj(6)
        self._begun = self._compressor.compress(b"".join(b"\0" + row for row in rows))
        self._begun += self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def __reduce__(self) -> tuple[type["ImageMaker"], tuple[Images, str]]:
        """A worker makes its own: what is half compressed cannot be sent to it."""
        return ImageMaker, self._made_of

    def _mark(self, identity: int, number: int) -> list[bytes]:
        """The rows that make an image its own."""
        seed = struct.pack(">IQI", self._salt, identity & ((1 << 64) - 1), number)
        line = (seed * (3 * self.images.width // len(seed) + 1))[: 3 * self.images.width]
        return [line] * self._marked

    def image(self, identity: int, number: int = 0) -> bytes:
        """The file of one image."""
        mark = self._mark(identity, number)
        if self.images.format == "jpeg":
            data = b"".join([*self._rows, *mark])
            picture = self._pillow.frombytes("RGB", (self.images.width, self.images.height), data)
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=90)
            return buffer.getvalue()
        compressor = self._compressor.copy()
        body = self._begun + compressor.compress(b"".join(b"\0" + row for row in mark))
        body += compressor.flush()
        return self._head + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")

    def parts(self, identity: int) -> bytes:
        """The images of one request as parts of a message's content, each after a comma."""
        kind = self.images.format.encode()
        found = []
        for number in range(self.images.count):
            data = base64.b64encode(self.image(identity, number))
            url = b"data:image/%b;base64,%b" % (kind, data)
            found.append(b', {"type": "image_url", "image_url": {"url": "%b"}}' % url)
        return b"".join(found)
