"""What a run holds: a million chunks, from the first request to the stored figures."""

import pytest

from benchmarks.client.memory import peak_mb
from benchmarks.client.null_server import NullServer
from benchmarks.client.replies import prebuilt

pytestmark = pytest.mark.acceptance


def test_a_million_chunks_stay_below_200_mb() -> None:
    with NullServer(prebuilt(200)) as server:
        peak = peak_mb(server.url, 5000, 200)
    print(f"a million chunks: {peak:.0f} MB at most")
    assert peak < 200
