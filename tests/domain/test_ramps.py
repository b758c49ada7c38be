"""What a run does outside its steady part, against loads whose plateau is known."""

import numpy as np
import pytest

from ridgeline.domain.ramps import plateau_of, warmup_ttft
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.run import Window

S = 1_000_000_000


def ramped(
    up_s: float, held_s: float, down_s: float, rate: float, noise: float = 0.0
) -> RunRecords:
    """Tokens at 0 to `rate` per second (linear), held, and down to 0; one chunk each."""
    grid = np.arange(0.0, up_s + held_s + down_s, 0.001)
    level = np.interp(grid, [0, up_s, up_s + held_s, up_s + held_s + down_s], [0, rate, rate, 0])
    if noise:
        level = (
            level
            * np.repeat(
                1 + noise * np.random.default_rng(3).standard_normal(-(-len(grid) // 200)), 200
            )[: len(grid)]
        )
    came = np.cumsum(level) * 0.001
    at = np.interp(np.arange(1, int(came[-1]) + 1), came, grid) * 1e9
    stamps = np.rint(at).astype(np.int64)
    first, last = int(stamps[0]), int(stamps[-1])
    one = RequestRecord(0, None, 0, 0, first, last, last, 10, len(stamps), 10, len(stamps),
                        chunk_ns=stamps)  # fmt: skip
    return records_from_requests([one])


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_ramp_up_and_down_leaves_the_rate_of_the_plateau(noise: float) -> None:
    """0 to 1000 tokens/s in 10 s, held for 20 s, down in 10 s: 1000, where the whole gives 750."""
    records = ramped(10, 20, 10, 1000, noise)
    assert len(records.chunk_ns) / 40 == pytest.approx(750, rel=0.01)
    found = plateau_of(records, Window(0, 40 * S))
    assert found is not None
    assert found.output_tokens_per_s == pytest.approx(1000, rel=0.01)
    assert 9 <= found.from_s <= 12
    assert 28 <= found.to_s <= 31


@pytest.mark.parametrize(
    ("up_s", "held_s", "down_s", "rate"),
    [(5, 30, 0, 400), (0, 30, 8, 2000), (2, 12, 2, 300), (20, 60, 20, 5000)],
)
def test_any_ramp_is_left_out(up_s: float, held_s: float, down_s: float, rate: float) -> None:
    end_s = up_s + held_s + down_s
    found = plateau_of(ramped(up_s, held_s, down_s, rate), Window(0, round(end_s * S)))
    assert found is not None
    assert found.output_tokens_per_s == pytest.approx(rate, rel=0.01)
    assert up_s - 1 <= found.from_s <= up_s + 2
    assert up_s + held_s - 2 <= found.to_s <= up_s + held_s + 1


def test_a_window_that_is_one_plateau_has_nothing_to_tell() -> None:
    assert plateau_of(ramped(0, 40, 0, 800, noise=0.05), Window(0, 40 * S)) is None
    # a window that leaves the ramps out is one already
    assert plateau_of(ramped(10, 20, 10, 1000), Window(11 * S, 29 * S)) is None


def test_what_rises_to_its_end_has_no_plateau() -> None:
    assert plateau_of(ramped(40, 0, 0, 1000), Window(0, 40 * S)) is None
    assert plateau_of(ramped(0, 2, 0, 1000), Window(0, 2 * S)) is None
    # a server that goes silent half-way holds still at nothing: that is no rate that it carries
    assert plateau_of(ramped(0, 10, 0, 1000), Window(0, 30 * S)) is None


def test_the_first_wave_has_a_figure_apart() -> None:
    """64 streams whose first replies begin after 0.05 .. 3.2 s, all later ones after 0.2 s."""
    requests = []
    for wave in range(20):
        for stream in range(64):
            sent = wave * 4 * S
            first = sent + (round(0.05 * (stream + 1) * S) if wave == 0 else S // 5)
            requests.append(
                RequestRecord(len(requests), stream, sent, sent, first, first, first, 1, 1,
                              chunk_ns=np.array([first]))
            )  # fmt: skip
    records = records_from_requests(requests)
    begun = warmup_ttft(records, Window(4 * S, 80 * S))
    assert begun is not None
    assert begun.n == 64
    assert begun.mean == pytest.approx(1.625)
    assert begun.p90 == pytest.approx(2.9)  # the 58th of 64
    assert warmup_ttft(records, Window(0, 80 * S)) is None
