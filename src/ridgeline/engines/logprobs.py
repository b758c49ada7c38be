"""Asks a server what it thinks of prompts: vLLM's prompt_logprobs, and greedy answers.

Prompts go as token ids of the reference's /tokenize where the server has it, so that long ones can
be cut to its context. A server that does not serve prompt_logprobs is told apart from one that is
not well: one line says which.
"""

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.readings import (
    GreedyAnswer,
    Likelihoods,
    QualityPrompt,
    Reading,
    ServerReading,
)
from ridgeline.domain.secrets import mask
from ridgeline.engines.probe import api_key_from_environment, auth_headers, probe
from ridgeline.load.address import Address, parse_address
from ridgeline.load.openai import reply_text

_LARGEST_REPLY = 256 << 20  # 60 bytes for each of 20 alternatives of 100,000 tokens, and room
MOST_RESUMED = 6  # near ties of one answer; with 32 tokens other exact numerics have one or two
NEEDS = "the quality gate needs a vLLM server with prompt_logprobs"


@dataclass(frozen=True, slots=True)
class Asking:
    """How servers are asked. top: alternatives listed at each place (vLLM's limit is 20 by
    default). longest: tokens of a long prompt, at most; short: of another one. answer_tokens: of a
    greedy answer, 0 = none. concurrency: prompts read at once; answers are asked one by one.
    timeout_s: for one request. model: its name, None = the first served. context: the least
    max_model_len of the servers to be compared, so that all read the same.

    Prompts that are read at once share batches by the luck of the moment, and a batch may round
    otherwise by who else is in it: of two starts of one server exp(-KL) was 0.9995 with four at
    once, and 1 to the last digit with one (vLLM 0.32.0 on a CPU with AMX).
    """

    top: int = 20
    longest: int = 4096
    short: int = 1024
    answer_tokens: int = 32
    concurrency: int = 1
    timeout_s: float = 300.0
    model: str | None = None
    context: int | None = None


def least_context(asked: Sequence[tuple[str, str | None]]) -> int | None:
    """The least max_model_len of some servers (URL, model), None where none tells.

    Raises EndpointError when one cannot be asked, BadInput for a wrong URL, model or API key.
    """
    key = api_key_from_environment()
    told = [probe(parse_address(url), model, key).max_model_len for url, model in asked]
    return min((n for n in told if n is not None), default=None)


def follow_server(
    url: str, reading: ServerReading, reference: ServerReading, asking: Asking | None = None
) -> ServerReading:
    """`reading` with what its server, at `url`, says along the reference's answers, where its own
    part from them: it is asked to go on from the reference's tokens. Errors as of `read_server`.
    """
    asking = asking or Asking()
    address = parse_address(url)
    key = api_key_from_environment()
    server = _Server(address, auth_headers(key), reading.model, None, asking)
    both = zip(reference.readings, reading.readings, strict=False)
    followed = tuple(replace(own, followed=server.along(own, theirs)) for theirs, own in both)
    return replace(reading, readings=followed + reading.readings[len(followed) :])


def read_server(
    url: str, prompts: Sequence[QualityPrompt], asking: Asking | None = None
) -> ServerReading:
    """Read all prompts with one server, at most `concurrency` at once.

    Raises EndpointError when it cannot be asked, BadInput for a wrong URL, model or API key.
    """
    asking = asking or Asking()
    address = parse_address(url)
    key = api_key_from_environment()
    info = probe(address, asking.model, key)
    server = _Server(address, auth_headers(key), info.model, info.max_model_len, asking)
    dtype, blocks = server.kv_cache()
    with ThreadPoolExecutor(max_workers=max(1, asking.concurrency)) as pool:
        waiting = [pool.submit(server.read, prompt) for prompt in prompts]
        try:
            read = [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    readings = [reading for reading in read if reading is not None]
    if not readings:
        raise EndpointError("no prompt has two tokens", where=address.url, fix="give longer ones")
    short = [p.name for p, reading in zip(prompts, read, strict=True) if reading is None]
    notes = (f"left out, as they have a single token: {', '.join(short)}",) if short else ()
    # One after another: in a batch the numbers of a token depend on what else is in it.
    answered = tuple(replace(r, answer=server.answer(r.likelihoods.ids)) for r in readings)
    return ServerReading(address.url, info.model, answered, info.version, dtype, blocks, notes)


@dataclass(frozen=True, slots=True)
class _Server:
    address: Address
    headers: dict[str, str]
    model: str
    max_model_len: int | None
    asking: Asking

    def read(self, prompt: QualityPrompt) -> Reading | None:
        """Likelihoods of one prompt, None when a single token leaves nothing to compare."""
        ids = self._ids(prompt)
        if len(ids) < 2:
            return None
        body = {
            "prompt": ids, "max_tokens": 1, "temperature": 0.0,
            "prompt_logprobs": self.asking.top,
        }  # fmt: skip
        choice = self._completion(body)
        told = choice.get("prompt_logprobs")
        if told is None:
            raise EndpointError("tells no prompt_logprobs", where=self.address.url, fix=NEEDS)
        try:
            likelihoods = read_likelihoods(ids, told, self.asking.top)
        except (ValueError, KeyError, TypeError) as error:
            raise EndpointError(
                f"its prompt_logprobs cannot be read ({error})", where=self.address.url, fix=NEEDS
            ) from None
        return Reading(prompt, likelihoods)

    def kv_cache(self) -> tuple[str | None, int | None]:
        """Type and blocks of the KV cache from vLLM's metrics, None where it does not tell."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

        try:
            status, _, page = self.address.get("/metrics", self.headers, self.asking.timeout_s)
            families = list(text_string_to_metric_families(page.decode())) if status == 200 else []
        except (EndpointError, ValueError):
            return None, None
        for family in families:
            for sample in family.samples:
                if sample.name.startswith("vllm:cache_config"):
                    blocks = sample.labels.get("num_gpu_blocks", "")
                    dtype = sample.labels.get("cache_dtype")
                    return dtype, int(blocks) if blocks.isdigit() else None
        return None, None

    def _ids(self, prompt: QualityPrompt) -> list[int]:
        """The prompt's tokens, cut to what the server and the settings allow."""
        reply = self._post("/tokenize", {"model": self.model, "prompt": prompt.text})
        tokens = reply.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise EndpointError("/tokenize tells no tokens", where=self.address.url, fix=NEEDS)
        most = self.asking.longest if prompt.long else self.asking.short
        limits = [n for n in (self.max_model_len, self.asking.context) if n is not None]
        if limits:
            most = min(most, min(limits) - max(1, self.asking.answer_tokens))
        if most < 2:
            raise EndpointError(
                f"max_model_len {min(limits, default=0)} has no room for a prompt and its answer",
                where=self.address.url, fix="serve with a larger one",
            )  # fmt: skip
        return tokens[:most]

    def answer(self, ids: Sequence[int]) -> GreedyAnswer | None:
        """How the server goes on after a prompt; None when no tokens are to be asked for."""
        return self._goes_on(ids, self.asking.answer_tokens) if self.asking.answer_tokens else None

    def along(self, own: Reading, reference: Reading) -> GreedyAnswer | None:
        """What the server says after each token of the reference's answer; None where its own
        answer is the same, or is one to other tokens. From where it says another token it is asked
        again, MOST_RESUMED times; after one that the reference does not even list there is no need.
        """
        theirs, answer = reference.answer, own.answer
        if (
            theirs is None or answer is None or theirs.ids == answer.ids
            or own.likelihoods.ids != reference.likelihoods.ids
        ):  # fmt: skip
            return None
        ids, tops, resumed, place = list(answer.ids), list(answer.top), 0, -1
        while (place := _parting(ids, theirs.ids, place + 1)) >= 0:
            del ids[place + 1 :], tops[place + 1 :]
            left = len(theirs.ids) - len(ids)
            listed = place < len(theirs.top) and ids[place] in theirs.top[place]
            if left == 0 or not listed or resumed == MOST_RESUMED:
                break
            more = self._goes_on([*own.likelihoods.ids, *theirs.ids[: place + 1]], left)
            ids, tops, resumed = ids + list(more.ids), tops + list(more.top), resumed + 1
        return GreedyAnswer(tuple(ids), answer.text, tuple(tops), followed=True)

    def _goes_on(self, ids: Sequence[int], tokens: int) -> GreedyAnswer:
        """Up to `tokens` of an answer to token ids."""
        choice = self._completion({
            "prompt": list(ids), "max_tokens": tokens, "temperature": 0.0,
            "logprobs": self.asking.top, "return_tokens_as_token_ids": True,
            "return_token_ids": True,
        })  # fmt: skip
        answered, told = choice.get("token_ids"), choice.get("logprobs")
        if not isinstance(answered, list):
            raise EndpointError("tells no token_ids", where=self.address.url, fix=NEEDS)
        tops = told.get("top_logprobs") if isinstance(told, dict) else None
        return GreedyAnswer(
            tuple(int(t) for t in answered),
            str(choice.get("text", "")),
            tuple(_by_id(top) for top in tops or ()),
        )

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = self._post("/v1/completions", {"model": self.model, **body})
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise EndpointError("its answer has no choices", where=self.address.url, fix=NEEDS)
        return choices[0]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request and its JSON object; raises EndpointError."""
        status, answer = self._exchange(path, json.dumps(body).encode())
        if status != 200:
            said = mask(reply_text(answer)) if answer else ""
            raise EndpointError(
                f"POST {path} gives HTTP {status}{f' ({said})' if said else ''}",
                where=self.address.url,
                fix="look into the server's log" if status >= 500 else NEEDS,
            )
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EndpointError(
                f"POST {path} gives no JSON object", where=self.address.url, fix=NEEDS
            )
        return value

    def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        place, limit = self.address, self.asking.timeout_s
        connection = place.connection(limit)
        headers = {**self.headers, "Content-Type": "application/json"}
        try:
            connection.request("POST", place.path + path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read(_LARGEST_REPLY)
        except TimeoutError:
            what = f"POST {path} got no answer within {limit:g} s"
        except (OSError, http.client.HTTPException) as error:
            what = f"POST {path} failed ({str(error) or type(error).__name__})"
        finally:
            connection.close()
        raise EndpointError(what, where=place.url, fix="is the server running and well?")


def read_likelihoods(ids: Sequence[int], told: Sequence[Any], top: int) -> Likelihoods:
    """Read vLLM's list: null for the first token, then id -> {logprob, rank} of the `top` likeliest
    and of the token that stands there. Raises ValueError, KeyError or TypeError for another one.
    """
    if len(told) != len(ids):
        raise ValueError(f"{len(told)} places for {len(ids)} tokens")
    own, top_ids, top_logprobs = [], [], []
    for token, place in zip(ids[1:], told[1:], strict=True):
        own.append(float(place[str(token)]["logprob"]))
        ranked = sorted((int(e["rank"]), int(i), float(e["logprob"])) for i, e in place.items())
        ranked = ranked[:top]
        if len(ranked) < top:
            raise ValueError(f"{len(ranked)} alternatives, {top} were asked for")
        top_ids.append([i for _, i, _ in ranked])
        top_logprobs.append([logprob for _, _, logprob in ranked])
    likeliest = np.array(top_logprobs, dtype=np.float64)
    if not np.isfinite(likeliest).all() or not np.isfinite(own).all():
        raise ValueError("probabilities that are no numbers")
    return Likelihoods(
        tuple(ids), np.array(own, dtype=np.float64), np.array(top_ids, dtype=np.int64), likeliest
    )


def _parting(ids: Sequence[int], others: Sequence[int], start: int) -> int:
    """The first place from `start` on where two answers differ, -1 for none."""
    both = zip(ids[start:], others[start:], strict=False)
    return next((start + i for i, (a, b) in enumerate(both) if a != b), -1)


def _by_id(top: Any) -> dict[int, float]:
    """Alternatives of one place: "token_id:17" -> log-probability."""
    if not isinstance(top, dict):
        return {}
    return {
        int(key.removeprefix("token_id:")): float(value)
        for key, value in top.items()
        if key.startswith("token_id:")
    }
