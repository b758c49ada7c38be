"""Every finding that a rule can make has its section in the documentation."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _ids() -> set[str]:
    found = {"gpu-bandwidth", "gpu-compute"}  # made of two words
    for file in (ROOT / "src/ridgeline/diagnosis").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def test_every_finding_has_a_section_and_every_section_a_finding() -> None:
    text = (ROOT / "docs/doctor.md").read_text()
    sections = set(re.findall(r"^### (\S+)$", text, re.MULTILINE))
    assert sections == _ids()
    assert len(sections) > 25
