"""Write a tiny model that vLLM serves with random weights. usage: make_tiny_model.py DIR

A Llama of two layers (hidden 256, 2048 tokens) without weights, for `--load-format dummy`, and a
byte-level BPE tokenizer trained on the English text that every Python ships (the language
reference behind `help()`). Runs inside the vLLM environment, which has the tokenizers library.
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
BEGIN, END, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
SPECIAL = [BEGIN, END, USER, ASSISTANT]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Train the tokenizer; the special tokens get the first ids, in the order of SPECIAL."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([topics[key] for key in sorted(topics)], trainer)
    if made.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the text gave {made.get_vocab_size()} tokens, not {VOCABULARY}")
    return made


def config() -> dict[str, object]:
    """Shape of the model, in the keys of a Hugging Face config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": SPECIAL.index(BEGIN),
        "eos_token_id": SPECIAL.index(END),
    }


def main(folder: Path) -> None:
    """Write the four files that vLLM reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    shape = config()
    files = {
        "config.json": shape,
        "generation_config.json": {k: shape[k] for k in ("bos_token_id", "eos_token_id")},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": shape["max_position_embeddings"],
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
