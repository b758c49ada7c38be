"""A server that speaks what the quality gate asks of vLLM: /tokenize, prompt_logprobs, greedy
answers and cache metrics. Its model knows how often one character follows another in the bundled
prompts, with noise on its logits.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np

from ridgeline.tuning.quality_prompts import bundled_prompts

VOCABULARY = 256


@dataclass
class Behaviour:
    """How the server departs from a good one. `answers`: path -> (status, body) given instead."""

    noise: float = 0.0
    cache_dtype: str = "auto"
    model: str = "letters"
    max_model_len: int = 400
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    no_prompt_logprobs: bool = False
    delay_s: float = 0.0
    stuck_on: int | None = None  # answers are their first token, then this one for ever
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0


def letters(noise: float) -> np.ndarray:
    """Log-probabilities (previous character x next character)."""
    counts = np.full((VOCABULARY, VOCABULARY), 0.01)
    for prompt in bundled_prompts():
        data = np.frombuffer(prompt.text.encode(), dtype=np.uint8)
        np.add.at(counts, (data[:-1], data[1:]), 1)
    logits = np.log(counts) + np.random.default_rng(1).normal(0, noise, counts.shape)
    table: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return table


@contextmanager
def logprob_server(behaviour: Behaviour | None = None) -> Iterator[str]:
    """Its URL."""
    how = behaviour or Behaviour()
    table, lock = letters(how.noise), threading.Lock()
    orders = np.argsort(-table, axis=1, kind="stable")

    @cache
    def place(before: int, token: int, k: int) -> dict[str, Any]:
        row, order = table[before], orders[before]
        chosen = {token, *(int(i) for i in order[:k])}
        return {
            str(i): {
                "logprob": float(row[i]),
                "rank": int(np.flatnonzero(order == i)[0]) + 1,
                "decoded_token": chr(i),
            }
            for i in chosen
        }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply(200, json.dumps({"object": "list", "data": [
                    {"id": how.model, "max_model_len": how.max_model_len, "owned_by": "vllm"}
                ]}).encode())  # fmt: skip
            elif self.path == "/metrics":
                labels = f'cache_dtype="{how.cache_dtype}",num_gpu_blocks="77"'
                page = (
                    f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1\n"
                )
                self.reply(200, page.encode(), "text/plain")
            else:
                self.reply(404, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                how.asked.append((self.path, body))
                how.at_once += 1
                how.most_at_once = max(how.most_at_once, how.at_once)
            time.sleep(how.delay_s)
            status, answer = self.answer(body)
            with lock:  # before the client can know that it has its answer
                how.at_once -= 1
            with suppress(BrokenPipeError):  # it may have given up
                self.reply(status, answer)

        def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
            if self.path in how.answers:
                return how.answers[self.path]
            if self.path == "/tokenize":
                tokens = list(body["prompt"].encode())
                return 200, json.dumps({"count": len(tokens), "tokens": tokens}).encode()
            return 200, json.dumps({"choices": [self.choice(body)]}).encode()

        def choice(self, body: dict[str, Any]) -> dict[str, Any]:
            ids = body["prompt"]
            if "prompt_logprobs" in body:
                if how.no_prompt_logprobs:
                    return {"text": "", "prompt_logprobs": None}
                k = body["prompt_logprobs"]
                places = [place(a, b, k) for a, b in pairwise(ids)]
                return {"text": "", "prompt_logprobs": [None, *places]}
            tokens, tops, last = [], [], ids[-1]
            for _ in range(body["max_tokens"]):
                order = orders[last][: body["logprobs"]]
                tops.append({f"token_id:{i}": float(table[last, i]) for i in order})
                last = int(order[0])
                if how.stuck_on is not None and tokens:
                    last = how.stuck_on
                    tops[-1] = {f"token_id:{i}": -9.0 for i in order} | {f"token_id:{last}": -0.01}
                tokens.append(last)
            return {"text": bytes(tokens).decode("latin-1"), "token_ids": tokens,
                    "logprobs": {"top_logprobs": tops}}  # fmt: skip

        def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
