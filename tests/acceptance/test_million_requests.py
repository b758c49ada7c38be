"""A trace of a million requests on the twin: every request recorded once, memory bounded."""

import pytest

from benchmarks.twin.memory import measure

pytestmark = pytest.mark.acceptance


def test_a_million_requests_stay_below_500_mb() -> None:
    found = measure(1_000_000)
    print(f"\na trace of a million requests on the twin: {found}")
    assert found["requests"] == found["recorded_once"] == found["ended"] == 1_000_000
    # What grows is a row for each of half a million steps; a kept request took 1.6 KB.
    assert found["peak_mb"] < 500
