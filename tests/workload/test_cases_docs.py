"""docs/cases.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "cases.md").read_text("utf-8"))


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 40
    missing = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (ROOT / "tests" / file).exists()
        or f"def {name}(" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
    assert missing == []
