"""The bundled prompts of the quality gate, and the user's own from a file.

The short ones are texts of our own. The long ones are made of them and of drawn records, and end
with a repetition: what stood far above has to be found again, which a damaged KV cache cannot.
"""

import random
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from ridgeline.domain.errors import BadInput
from ridgeline.domain.readings import QualityPrompt
from ridgeline.workload.promptfiles import entries_of, open_prompts

LONG_ITEMS = 4
LONG_CHARACTERS = 20_000  # about 6,000 tokens of records, 5,000 of prose; servers' limits cut them
_REPEAT_EVERY = 3_000  # characters; so that a long item cut to 1,024 tokens still repeats
MOST_PROMPTS = 200
_NAMES = ("alder", "birch", "cedar", "hazel", "larch", "maple", "rowan", "spruce", "willow", "yew")
_STATES = ("open", "closed", "waiting", "sent", "lost")


@cache
def bundled_prompts() -> tuple[QualityPrompt, ...]:
    """The short ones, then the long ones; always the same."""
    text = files("ridgeline.tuning").joinpath("data/quality_prompts.txt").read_text("utf-8")
    short = []
    for part in text.split("=== ")[1:]:
        name, _, body = part.partition("\n")
        short.append(QualityPrompt(name.strip(), body.rstrip("\n")))
    texts = [p.text for p in short if not p.name.startswith(("code", "json", "sql", "html", "log"))]
    long = [
        QualityPrompt(
            f"long-{i}", _records(i) if i % 2 else _documents(i, texts), long=True
        )
        for i in range(LONG_ITEMS)
    ]  # fmt: skip
    return (*short, *long)


def prompts_from(path: Path) -> tuple[QualityPrompt, ...]:
    """The user's own prompts, in any form that a study's prompt file has; the first MOST_PROMPTS.

    Raises BadInput for a file that cannot be read or has no text.
    """
    entries = entries_of(open_prompts(path))
    found = []
    for row, entry in enumerate(entries[:MOST_PROMPTS], 1):
        text = "\n\n".join(text for _, text in entry.messages)
        if text.strip():
            found.append(QualityPrompt(f"row {row}", text))
    if not found:
        raise BadInput(
            "has no prompt with a text", where=str(path), fix="give prompts with their texts"
        )
    return tuple(found)


def _documents(seed: int, texts: Sequence[str]) -> str:
    """Texts in a drawn order, with an earlier one again after every _REPEAT_EVERY characters."""
    draw = random.Random(seed)
    order = list(texts)
    draw.shuffle(order)
    parts: list[str] = []
    since = size = number = 0
    while size < LONG_CHARACTERS:
        number += 1
        repeats = since >= _REPEAT_EVERY
        title = f"Document {number}" + (", once more the first one" if repeats else "")
        body = order[0] if repeats else order[(number - 1) % len(order)]
        parts.append(f"{title}\n\n{body}")
        size += len(parts[-1])
        since = 0 if repeats else since + len(parts[-1])
    return "\n\n".join(parts)


def _records(seed: int) -> str:
    """Lines of drawn parcels; after every so many the same ones are asked for and answered."""
    draw = random.Random(seed)
    lines = ["Register of parcels. Each line has number, owner, weight and state."]
    size, block = 0, []
    while size < LONG_CHARACTERS:
        number, kilos = draw.randrange(10_000, 100_000), draw.randrange(1, 400) / 10
        owner, state = draw.choice(_NAMES), draw.choice(_STATES)
        block.append((number, owner, kilos, state))
        lines.append(f"Parcel {number}: {owner}, {kilos:.1f} kg, {state}.")
        if len(block) == 20:
            lines.append("Questions about the parcels above:")
            for asked, whose, weight, how in draw.sample(block, 12):
                lines.append(
                    f"Whose is parcel {asked}? It belongs to {whose}, weighs {weight:.1f} kg"
                    f" and is {how}."
                )
            block = []
        size = sum(map(len, lines))
    return "\n".join(lines)
