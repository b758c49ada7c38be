"""The short runs behind bands and gains end where nothing that follows can change a figure."""

from dataclasses import replace

import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import twin_of
from ridgeline.engines.twin_bands import Serving, figures, simulated
from ridgeline.twin.fleet import Fleet

TWIN = twin_of(
    Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=8, max_model_len=4096), gpu="H100-SXM")
)
PILES_UP = Workload(
    Arrivals(rate_per_s=40.0), Prompts(Lengths(200)), Outputs(Lengths(100, 0.5)),
    duration_s=5.0, warmup_s=2.0,
)  # fmt: skip


@pytest.mark.parametrize(
    "limits",
    [{"grace_s": 0.0}, {"grace_s": 3.0}, {"grace_s": 3.0, "first_s": 4.0}, {"total_s": 3.0}],
)
def test_what_the_client_no_longer_waits_for_changes_no_figure(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    """More than the slots carry: held against the same run to its very end."""
    timeouts = replace(PILES_UP.client.timeouts, **{"grace_s": 3.0, **limits})
    load = replace(PILES_UP, client=replace(PILES_UP.client, timeouts=timeouts))
    found, ended = figures(TWIN, load), simulated(Serving((TWIN,)), load)[0]
    until = Fleet.run_until
    monkeypatch.setattr(Fleet, "run_until", lambda self, end: until(self, None))
    whole = simulated(Serving((TWIN,)), load)[0]
    assert ended.steps is not None
    assert whole.steps is not None
    assert len(ended.steps.start_ns) < 0.8 * len(whole.steps.start_ns)
    assert len(found) > 5, "with and without limits some requests end, or tokens come"
    assert figures(TWIN, load) == found
