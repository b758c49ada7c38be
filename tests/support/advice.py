"""Whether findings contradict each other: read from their words, not by the code that mends it."""

import re
from collections.abc import Iterable

from ridgeline.diagnosis.finding import Finding

_NAME = re.compile(r"[a-z]+(?:_[a-z0-9]+)+|quantization|watermark")


def contradictions(findings: Iterable[Finding]) -> list[str]:
    """Names of knobs that are tried somewhere and useless elsewhere."""
    found = tuple(findings)
    tried = {name for f in found for t in f.tries for name in _NAME.findall(t.knob)}
    useless = {name for f in found for w in f.will_not_help for name in _NAME.findall(w.knob)}
    return sorted(tried & useless)
