#!/usr/bin/env python3
"""Write a model of Qwen3-4B's shape without weights, to be served with `--load-format dummy`.

usage: make_dummy_model.py DIR

Random weights cost a dense model exactly the time that trained ones do, so speed can be measured
without downloading anything; what it says is noise. The tokenizer has as many entries as the real
one, and all of them decode to ASCII: every sampled token is then a chunk with text, where a real
vocabulary full of half characters would make the client see fewer chunks than tokens.

The shape is that of the published config.json of Qwen/Qwen3-4B. Standard library only.
"""

import json
import re
import string
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

VOCABULARY = 151_936
END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN, END_OF_TURN)
ORDINARY = VOCABULARY - len(SPECIAL)
CONTEXT = 40_960

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 1_000_000,
    "rope_scaling": None,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 36,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": ORDINARY + SPECIAL.index(END_OF_TEXT),
    "eos_token_id": ORDINARY + SPECIAL.index(END_OF_TURN),
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN}{{{{ message.role }}}}\n{{{{ message.content }}}}{END_OF_TURN}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
)


def byte_letters() -> list[str]:
    """The letters that byte-level BPE writes for the 128 ASCII bytes, in byte order.

    Printable bytes stand for themselves; the n-th other byte is U+0100 + n (GPT-2's rule).
    """
    letters, others = [], 0
    for byte in range(128):
        printable = 33 <= byte <= 126
        letters.append(chr(byte if printable else 0x100 + others))
        others += not printable
    return letters


def english_words() -> list[str]:
    """The lower-case words of the text that every Python ships, the most frequent ones first."""
    found = Counter(re.findall(r"\b[a-z]+\b", " ".join(topics[key] for key in sorted(topics))))
    return sorted(found, key=lambda word: (-found[word], word))


def merges() -> Iterator[tuple[str, str]]:
    """Merges in order: English words after a blank, letter by letter; then all words of two
    letters, of three, and so on.

    The first kind makes a common word one token, as in a real vocabulary.
    """
    blank = byte_letters()[ord(" ")]
    alphabet = string.ascii_lowercase
    known = set()
    for word in [*alphabet, *english_words()]:
        start = blank
        for letter in word:
            if start + letter not in known:
                yield start, letter
                known.add(start + letter)
            start += letter
    words = list(alphabet)
    while True:
        longer = [(word, letter) for word in words for letter in alphabet]
        yield from longer
        words = [word + letter for word, letter in longer]


def tokenizer() -> dict[str, object]:
    """tokenizer.json of a byte-level BPE with VOCABULARY entries."""
    entries = byte_letters()
    joined = []
    for pair in merges():
        if len(entries) == ORDINARY:
            break
        entries.append("".join(pair))
        joined.append(list(pair))
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
    }  # fmt: skip
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ORDINARY + i, "content": text, "special": True, **flags}
            for i, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(entries)},
            "merges": joined,
        },
    }


def write(folder: Path) -> None:
    """Write the four files that an engine reads."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": SHAPE,
        "generation_config.json": {k: SHAPE[k] for k in ("bos_token_id", "eos_token_id")},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": CONTEXT,
        },
    }
    for name, body in files.items():
        (folder / name).write_text(json.dumps(body), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_dummy_model.py DIR")
    write(Path(sys.argv[1]))
