"""Images in a request: how large each is, and how many tokens of the prompt it becomes."""

import base64
import binascii
import struct
import zlib
from typing import Any

from ridgeline.domain.vision import MARKERS, ImageGrid

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the markers that tell a JPEG's size
_BARE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
MOST_SIDE = 65_535


class PictureError(ValueError):
    """An image that cannot be read."""


def picture_tokens(image_url: Any, grid: ImageGrid) -> list[str]:
    """The tokens of an `image_url` part: alike for the same image, other for another.

    Raises PictureError for what is no PNG or JPEG in a data URL.
    """
    url = image_url.get("url") if isinstance(image_url, dict) else None
    if not isinstance(url, str) or not url.startswith("data:image/"):
        raise PictureError("an image must be a data URL: the twin fetches nothing")
    head, _, text = url.partition(",")
    if not head.endswith(";base64"):
        raise PictureError("an image must be a data URL in base64")
    try:
        data = base64.b64decode(text, validate=True)
        width, height = _size(data)
    except (binascii.Error, struct.error, ValueError, IndexError):
        raise PictureError("an image is neither a PNG nor a JPEG that can be read") from None
    if not (0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE):
        raise PictureError(f"an image of {width} x {height} pixels is none")
    return [f"image {zlib.crc32(data):08x}"] * (grid.tokens(width, height) + MARKERS)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels, by the file's head."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if not data.startswith(_JPEG):
        raise ValueError("no image")
    at = len(_JPEG)
    while data[at] == 0xFF:
        kind = data[at + 1]
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 if kind in _BARE else 2 + struct.unpack_from(">H", data, at + 2)[0]
    raise ValueError("no image")
