"""Exact prompt lengths from a server that lets itself be asked: vLLM's POST /tokenize.

Tokenizers split a text at its blanks before anything else, so the tokens of our prompts are the sum
of those of their words. Each word is counted once; then a prompt of any length can be made to the
token. Whether that holds for this tokenizer is tried on whole prompts, and what does not hold is
not used.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.load.address import Address, Asker
from ridgeline.workload.prompts import WORDS, TokenFit

TRIED_WORDS = (5, 24, 80, 300)  # lengths of the prompts on which a count is tried
BASE = "the of and to"
MOST_MISS = 1  # tokens by which a tried prompt may be off


class TokenCounter:
    """Counts the tokens of whole prompts at a server; a context manager.

    endpoint: "chat" counts with the chat template. `count` gives None once the server does not
    answer as vLLM does.
    """

    def __init__(
        self, address: Address, headers: dict[str, str], model: str, endpoint: str
    ) -> None:
        self._asker = Asker(address, headers)
        self._model, self._chat = model, endpoint == "chat"
        self._works = True

    def __enter__(self) -> "TokenCounter":
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.close()

    def reply(self, text: str) -> dict[str, object] | None:
        """What the server says of a prompt, None when it does not count."""
        if not self._works:
            return None
        body: dict[str, object] = {"model": self._model}
        if self._chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        status, answer = self._asker.post("/tokenize", json.dumps(body).encode())
        try:
            found = json.loads(answer) if status == 200 else None
        except ValueError:
            found = None
        count = found.get("count") if isinstance(found, dict) else None
        self._works = isinstance(count, int) and not isinstance(count, bool) and count > 0
        return found if self._works else None

    def count(self, text: str) -> int | None:
        """Tokens of a prompt that is only this text."""
        found = self.reply(text)
        count = None if found is None else found["count"]
        return count if isinstance(count, int) else None

    def ids(self, text: str) -> list[int] | None:
        """The token ids of a text; None when the server does not tell them."""
        found = self.reply(text)
        tokens = None if found is None else found.get("tokens")
        if isinstance(tokens, list) and tokens and all(isinstance(t, int) for t in tokens):
            return tokens
        return None


def exact_fit(counter: TokenCounter, filler: Sequence[str]) -> TokenFit | None:
    """The tokens of every word and of the template; None when they do not add up here.

    filler: words of the coming prompts, for the trial.
    """
    base = counter.count(BASE)
    if base is None:
        return None
    costs = []
    for word in WORDS:
        with_it = counter.count(f"{BASE} {word}")
        if with_it is None or with_it <= base:
            return None
        costs.append(with_it - base)
    by_word = dict(zip(WORDS, costs, strict=True))
    overhead = base - sum(by_word[word] for word in BASE.split())
    worst = 0.0
    for words in TRIED_WORDS:
        text = filler[words : 2 * words]
        count = counter.count(" ".join(text))
        if count is None:
            return None
        worst = max(worst, abs(count - overhead - sum(by_word[word] for word in text)))
    if worst > MOST_MISS:
        return None
    mean = sum(costs) / len(costs)
    return replace(TokenFit(mean, float(overhead), worst), costs=tuple(costs))
