"""The table of a search for the knee: what a figure that is not there is called, and why once."""

import io

import pytest
from rich.console import Console

from ridgeline.domain.knee import Estimate, KneeLevel, KneeResult
from ridgeline.report.kneetext import HEAD, capacity_sentence, knee_console, level_cells

LATE = "client limit: the times of chunks are up to 46.4 ms too late at p95"


def level(requests: int, ttft_p95_s: float | None, state: str = "valid") -> KneeLevel:
    return KneeLevel(
        "users-4-r1", 4.0, state, requests, 100, (LATE,) if state == "void" else (),  # type: ignore[arg-type]
        tokens_per_s=1880.0, requests_per_s=58.7, ttft_p95_s=ttft_p95_s, itl_p95_s=0.0054,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("requests", "ttft_p95_s", "said"),
    [(100, 0.0263, "26.3 ms"), (99, None, "n too small"), (100, None, "not resolvable")],
)
def test_a_percentile_that_is_not_there(requests: int, ttft_p95_s: float | None, said: str) -> None:
    """Enough requests and no p95: the client read late. Too few: that is why."""
    cells = dict(zip(HEAD, level_cells(level(requests, ttft_p95_s)), strict=True))
    assert cells["p95 TTFT"] == said
    assert cells["p95 ITL"] == "5.40 ms"


def test_why_there_is_no_knee_is_said_once() -> None:
    reason = f"the level at 4 is void: {LATE}"
    found = KneeResult(
        name="knee", load="users", measured=True, levels=(level(100, None, "void"),),
        knee=Estimate(None, reason=reason), capacity=None, plateau_tokens_per_s=None,
        notes=(f"users-4 is void: {LATE}", "the budget of 4 minutes was used up"),
    )  # fmt: skip
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(knee_console(found, wide=False))
    text = " ".join(shown.export_text().split())
    assert text.count(LATE) == 1
    assert "the budget of 4 minutes was used up" in text


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("ridgeline-twin", "MEASURED at the client; the server is a digital twin (ridgeline-twin)"),
        ("vllm", "MEASURED by HTTP"),
        (None, "MEASURED by HTTP"),
    ],
)
def test_a_twin_behind_http_is_told(engine: str | None, said: str) -> None:
    found = KneeResult(
        name="m at a URL", load="users", measured=True, levels=(level(100, 0.02),),
        knee=Estimate(4.0), plateau_tokens_per_s=1880.0, engine=engine,
    )  # fmt: skip
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(knee_console(found, wide=False))
    assert shown.export_text().startswith(f"{said}: m at a URL\n")


def test_a_capacity_that_is_a_lower_bound_says_at_least() -> None:
    def said(reason: str | None) -> str | None:
        return capacity_sentence(
            KneeResult(
                name="k",
                load="rate",
                measured=True,
                levels=(),
                plateau_tokens_per_s=None,
                knee=Estimate(None),
                capacity=Estimate(11.0, 11.0, 20.0, reason),
                target=0.95,
                slo=("p95 TTFT <= 500 ms",),
            )
        )

    open_end = said("the level at 14 is void: client limit: busy")
    assert (open_end or "").startswith("The capacity is at least 11.0 requests/s (below 20.0): ")
    assert (open_end or "").endswith(" Note: the level at 14 is void: client limit: busy.")
    assert (said(None) or "").startswith("The capacity is 11.0 requests/s (below 20.0): ")
