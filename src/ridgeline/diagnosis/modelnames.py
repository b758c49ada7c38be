"""Which models a page of engine metrics is of."""

from ridgeline.telemetry.dialects import PREFIXES
from ridgeline.telemetry.prometheus import Scrape


def models_on(page: Scrape) -> tuple[str, ...]:
    """The names in its engine's series, sorted; () where it tells none."""
    own = tuple(PREFIXES)
    rows = (s for n, found in page.samples.items() if n.startswith(own) for s in found)
    return tuple(sorted({s.labels["model_name"] for s in rows if s.labels.get("model_name")}))


def said(models: tuple[str, ...]) -> str | None:
    """As one label: a page of several models cannot be told apart. None where it tells none."""
    return " + ".join(models) or None
