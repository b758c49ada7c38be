"""The examples of docs/workloads.md are study files that load, for the twin and for an endpoint."""

import re
from pathlib import Path

import pytest

from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.studyfile import parse_study

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
HEADS = {
    "twin": "name: x\nmodel: Qwen/Qwen3-VL-4B-Instruct\nengine: twin\nhardware: {gpu: H100-SXM}\n",
    "endpoint": "name: x\nmodel: m\nengine: endpoint\nurl: http://127.0.0.1:1\n",
}
# Files that the examples name.
FILES = {
    "prompts.jsonl": '{"prompt": "What is 2 + 2?"}\n',
    "talks.jsonl": '{"session": 1, "input_length": 9, "output_length": 2}\n'
    '{"session": 1, "input_length": 15}\n',
    "mooncake.jsonl": "".join(
        f'{{"timestamp": {1000 * t}, "input_length": 9, "output_length": 1, "hash_ids": [1]}}\n'
        for t in range(0, 1500, 100)
    ),
}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("engine", HEADS)
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_loads_and_can_be_drawn(number: int, engine: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    study = parse_study(HEADS[engine] + EXAMPLES[number], PAGE.name, folder=tmp_path)
    assert len(draw_schedule(study.baseline.workload).prompt_tokens) > 0
