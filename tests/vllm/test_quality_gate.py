"""The quality gate on real weights: what passes every check of speed and answers garbage."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from real_vllm import RealVllm
from smollm2 import ASKING, PROMPTS, real_weights, script_says, served

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.readings import ServerReading
from ridgeline.engines.logprobs import follow_server, read_server
from ridgeline.tuning.quality import Limits, QualityVerdict, change_of, judge_readings

pytestmark = pytest.mark.vllm

KNOBS: dict[str, Mapping[str, Any]] = {
    "float32": {"dtype": "float32"},
    "kv-int8": {"kv_cache_dtype": "int8_per_token_head"},
    "kv-fp8": {"kv_cache_dtype": "fp8"},
    "no-op": {"quantization": "int8_per_channel_weight_only"},
    "w8a8": {"quantization": "compressed-tensors"},
}
REFERENCE, ROUNDED, AGAIN = "bf16", "int4", "again"
STAY = (REFERENCE, ROUNDED)
WEIGHTS = (*STAY, "w8a8")  # folders; the others serve the reference's
TASK = "common_knowledge"
OWN = 6  # prompts of the user's; the bundled long ones come on top


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quality")


@dataclass
class Gate:
    """Servers and what they say. The reference and its weights rounded to 4 bits stay up."""

    python: Path
    folder: Path
    stack: ExitStack
    urls: dict[str, str] = field(default_factory=dict)
    readings: dict[str, Future[ServerReading]] = field(default_factory=dict)

    def read(self, name: str) -> ServerReading:
        """What a server says of PROMPTS and along the reference's answers."""
        if name == AGAIN:
            return read_server(self.url(REFERENCE), PROMPTS, ASKING)
        stays = name in STAY
        with ExitStack() as ends:
            self.urls[name] = (self.stack if stays else ends).enter_context(self.served(name)).url
            own = read_server(self.urls[name], PROMPTS, ASKING)
            if name == REFERENCE:
                return own
            reference = self.readings[REFERENCE].result()
            return follow_server(self.urls[name], own, reference, ASKING)

    def url(self, name: str) -> str:
        """Of one that stays up, once it was read."""
        self.readings[name].result()
        return self.urls[name]

    def served(self, name: str) -> AbstractContextManager[RealVllm]:
        weights = name if name in WEIGHTS else REFERENCE
        flags = [] if name in WEIGHTS else [
            f"--{k.replace('_', '-')}={v}" for k, v in KNOBS[name].items()
        ]  # fmt: skip
        log = self.folder / f"{name}.log"
        return served(self.python, real_weights() / weights, log, flags)


@pytest.fixture(scope="module")
def gate(vllm_python: Path, folder: Path) -> Iterator[Gate]:
    """Two servers at a time are started and read: neither waits for the other's end."""
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        asked = Gate(vllm_python, folder, stack)
        for name in (*STAY, *KNOBS, AGAIN):
            asked.readings[name] = pool.submit(asked.read, name)
        yield asked


@pytest.fixture(scope="module")
def readings(gate: Gate) -> dict[str, ServerReading]:
    return {name: reading.result() for name, reading in gate.readings.items()}


def judged(readings: dict[str, ServerReading], name: str, recovery: float = 0.99) -> QualityVerdict:
    found = judge_readings(
        readings[REFERENCE], readings[name], repeat=readings[AGAIN],
        floor=None if name == "float32" else readings["float32"],
        change=change_of(KNOBS.get(name, {"quantization": "4 bits"})), limits=Limits(recovery),
    )  # fmt: skip
    assert found.candidate is not None
    print(f"\n{name} at {recovery}: {found.sentence()}\n  {found.candidate}\n  long {found.long}")
    return found


def test_the_reference_repeats_itself(readings: dict[str, ServerReading]) -> None:
    found = judge_readings(readings[REFERENCE], readings[AGAIN])
    assert found.candidate is not None
    assert found.candidate.identical
    assert 1.0 < found.candidate.nll_reference < 3.5, "real weights predict language"
    assert found.candidate.reference_hits > 0.4


def test_other_exact_numerics_pass(readings: dict[str, ServerReading]) -> None:
    found = judged(readings, "float32")
    assert found.outcome == "pass", found.reasons
    assert found.candidate is not None
    assert 0 < found.candidate.kl.value < 0.003
    assert 0.95 < found.candidate.top1.value < 1.0, "bf16 itself turns some places"


def test_a_kv_type_that_answers_garbage_at_full_speed_is_refused(
    readings: dict[str, ServerReading],
) -> None:
    """C-DI-09: accepted by the engine, no error in its log, and every answer is nonsense."""
    found = judged(readings, "kv-int8", 0.5)
    assert found.outcome == "fail"
    assert found.candidate is not None
    assert found.candidate.recovery.value < 0.01
    assert found.candidate.top1.value < 0.1
    assert found.candidate.kl.value > 4.0
    assert found.long is not None
    assert found.long.recovery.value < 0.01
    assert "kv_cache_dtype" in json.dumps(found.to_json()["evidence"])


def test_weights_rounded_to_four_bits_are_refused(readings: dict[str, ServerReading]) -> None:
    found = judged(readings, "int4")
    assert found.outcome == "fail"
    assert found.candidate is not None
    high = found.candidate.recovery.high
    assert high is not None
    assert 0.6 < found.candidate.recovery.value < high < 0.95


@pytest.mark.parametrize("name", ["kv-fp8", "w8a8"])
def test_eight_bits_are_judged_by_the_users_threshold(
    readings: dict[str, ServerReading], name: str
) -> None:
    mild, strict = judged(readings, name, 0.90), judged(readings, name, 0.999)
    assert (mild.outcome, strict.outcome) == ("pass", "fail"), (mild.reasons, strict.reasons)
    assert mild.acted
    assert mild.candidate is not None
    assert mild.floor is not None
    assert mild.candidate.kl.value > 3 * mild.floor.kl.value, "more than other rounding"


def test_a_flag_that_does_nothing_is_named(readings: dict[str, ServerReading]) -> None:
    found = judged(readings, "no-op")
    assert found.outcome == "no-op"
    assert "quantization=int8_per_channel_weight_only did nothing" in found.sentence()


def test_the_command_refuses_and_asks_tasks(
    gate: Gate, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the user's own prompts and lm-evaluation-harness on a small task of our own."""
    reference, rounded = (gate.url(name) for name in STAY)
    own, out = folder / "own.txt", folder / "verdict.json"
    short = [p.text.split()[:60] for p in PROMPTS if not p.long][:OWN]
    own.write_text("".join(f"{' '.join(words)}\n" for words in short))
    code = ridgeline([
        "quality", reference, rounded, "--prompts", str(own), "--longest", "128",
        "--answer-tokens", "4", "--tasks", TASK, "--tasks-folder", str(task_folder(folder)),
        "--tokenizer", str(real_weights() / "bf16"), "--json", str(out),
        "--lm-eval", script_says("lm_eval_env.sh", "--where"),
    ])  # fmt: skip
    told = capfd.readouterr()
    assert code == 1, told
    body = json.loads(out.read_text())
    assert body["outcome"] == "fail"
    (task,) = body["tasks"]
    print(task)
    assert (task["task"], task["metric"], task["documents"]) == (TASK, "acc", len(QUESTIONS))
    assert task["reference"] > 0.5, "it knows more than chance (0.25)"
    assert 0 < task["recovery"]["value"] < 1.5
    assert f"task {TASK}: acc" in told.err


def task_folder(folder: Path) -> Path:
    """A task file and its documents: common knowledge, four choices."""
    place = folder / "tasks"
    place.mkdir()
    documents = place / "documents.jsonl"
    documents.write_text("".join(
        json.dumps({"text": text, "choices": choices, "answer": 0}) + "\n"
        for text, *choices in QUESTIONS
    ))  # fmt: skip
    (place / "task.yaml").write_text(
        f"task: {TASK}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {documents}\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{text}}"\ndoc_to_target: answer\ndoc_to_choice: choices\n'
        "metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
    )
    return place


QUESTIONS = (
    ("The capital of France is", "Paris", "Rome", "Cairo", "Tokyo"),
    ("The capital of Japan is", "Tokyo", "Lima", "Oslo", "Paris"),
    ("The capital of Germany is", "Berlin", "Madrid", "Lisbon", "Beijing"),
    ("Water freezes at zero degrees", "Celsius", "bananas", "kilograms", "metres"),
    ("The Earth moves around the", "Sun", "Moon", "table", "river"),
    ("A week has seven", "days", "wheels", "months", "colours"),
    ("Bees make", "honey", "steel", "paper", "glass"),
    ("The opposite of hot is", "cold", "green", "fast", "round"),
    ("The opposite of up is", "down", "blue", "seven", "loud"),
    ("A spider has eight", "legs", "wings", "doors", "tails"),
    ("Cows eat", "grass", "stones", "cars", "windows"),
    ("At night the sky is", "dark", "salty", "wooden", "purple"),
    ("The largest ocean is the", "Pacific", "Sahara", "Danube", "Alps"),
    ("People read books in a", "library", "volcano", "bottle", "cloud"),
    ("A doctor works in a", "hospital", "mine", "nest", "drawer"),
    ("Two plus two is", "four", "nine", "eleven", "zero"),
    ("In winter it often", "snows", "sings", "reads", "types"),
    ("The heart pumps", "blood", "sand", "gold", "smoke"),
    ("Fish live in", "water", "trees", "shoes", "lamps"),
    ("The colour of grass is", "green", "purple", "silver", "pink"),
    ("A carpenter works with", "wood", "clouds", "verbs", "soup"),
    ("Romeo and", "Juliet", "Einstein", "Napoleon", "Oxygen"),
    ("You cut paper with", "scissors", "spoons", "pillows", "soap"),
    ("Plants need light and", "water", "shoes", "music", "money"),
)
