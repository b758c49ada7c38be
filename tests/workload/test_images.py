"""Synthetic images: files that a decoder takes, each another one."""

import json
import pickle
import struct
import zlib

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Images
from ridgeline.workload.images import ImageMaker


def decoded(png: bytes) -> tuple[int, int, bytes]:
    """(width, height, rows without filter bytes) by the PNG specification; checks the CRCs."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds, data, size = 8, [], b"", (0, 0)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + body)
        kinds.append(kind)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == bytes([8, 2, 0, 0, 0])  # 8 bits, RGB, not interlaced
        if kind == b"IDAT":
            data += body
        at += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    raw, row = zlib.decompress(data), 3 * size[0] + 1
    assert len(raw) == size[1] * row
    lines = [raw[i : i + row] for i in range(0, len(raw), row)]
    assert {line[0] for line in lines} == {0}
    return (*size, b"".join(line[1:] for line in lines))


@pytest.mark.parametrize(("width", "height"), [(512, 512), (1, 1), (640, 3), (3, 640)])
def test_a_png_is_one_and_no_two_are_alike(width: int, height: int) -> None:
    maker = ImageMaker(Images(2, width, height), "salt")
    found = [decoded(maker.image(i, n)) for i in range(20) for n in range(2)]
    assert {f[:2] for f in found} == {(width, height)}
    if width >= 6:  # fewer pixels cannot carry a request's number
        assert len({f[2] for f in found}) == 40
        other = ImageMaker(Images(2, width, height), "another")
        assert decoded(other.image(0))[2] not in {f[2] for f in found}
    assert pickle.loads(pickle.dumps(maker)).image(3) == maker.image(3)  # as a worker gets it
    assert maker.image(3) == ImageMaker(Images(2, width, height), "salt").image(3)


def test_parts_are_json_and_cheap() -> None:
    maker = ImageMaker(Images(3, 1024, 1024), "s")
    parts = json.loads(b"[0" + maker.parts(7) + b"]")[1:]
    assert [p["type"] for p in parts] == ["image_url"] * 3
    urls = {p["image_url"]["url"] for p in parts}
    assert len(urls) == 3
    assert all(u.startswith("data:image/png;base64,") for u in urls)
    assert len(maker.image(1)) < 100_000  # so that making and sending it costs little


def test_jpeg_needs_pillow_and_says_so() -> None:
    try:
        import PIL.Image  # noqa: PLC0415
    except ImportError:
        with pytest.raises(BadInput, match="need Pillow"):
            ImageMaker(Images(1, 64, 48, "jpeg"), "s")
        return
    import io  # noqa: PLC0415

    maker = ImageMaker(Images(1, 64, 48, "jpeg"), "s")
    files = {maker.image(i) for i in range(5)}
    assert len(files) == 5
    picture = PIL.Image.open(io.BytesIO(files.pop()))
    assert (picture.format, picture.size) == ("JPEG", (64, 48))
