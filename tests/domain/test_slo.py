import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.slo import SLO_KEYS, Limit, parse_slo, slo_from_mapping


def test_the_command_line_form() -> None:
    slo = parse_slo("ttft_p95_ms=2000, itl_p95_ms=20,error_rate=0.001")
    assert slo.limits == (
        Limit("ttft_p95_ms", 2000.0), Limit("itl_p95_ms", 20.0), Limit("error_rate", 0.001),
    )  # fmt: skip
    assert slo.get("itl_p95_ms") == 20
    assert slo.get("e2e_p95_ms") is None
    assert parse_slo("").limits == ()


@pytest.mark.parametrize("key", SLO_KEYS)
def test_every_key_names_its_metric_and_statistic(key: str) -> None:
    limit = Limit(key, 0.5)
    if key in ("error_rate", "attainment"):
        assert (limit.metric, limit.statistic) == (key, None)
    else:
        assert f"{limit.metric}_{limit.statistic}_ms" == key
    assert str(limit) == f"{key}=0.5"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p95=2000", "did you mean 'ttft_p95_ms'"),
        ("ttft_p95_ms", "is not KEY=NUMBER"),
        ("ttft_p95_ms=fast", "'fast' is not a number"),
        ("ttft_p95_ms=-1", "must be a number >= 0"),
        ("ttft_p95_ms=nan", "must be a number >= 0"),
        ("error_rate=2", "a share between 0 and 1"),
        ("ttft_p95_ms=1e400", "finite"),
        ("itl_p95_ms=20,itl_p95_ms=30", "given twice"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_slo(text)


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(BadInput, match="must be a number"):
        slo_from_mapping({"error_rate": True})
