"""What vLLM's knobs are called by other engines; the findings say them so."""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.diagnosis.finding import Finding, Try, Wont

NAMES: Mapping[str, Mapping[str, str]] = {
    "sglang": {
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "gpu_memory_utilization": "--mem-fraction-static", "kv_cache_dtype": "--kv-cache-dtype",
        "long_prefill_token_threshold": "--chunked-prefill-size", "max_model_len":
        "--context-length", "data_parallel_size": "--dp-size", "enforce_eager":
        "--disable-cuda-graph",
    },
    "trtllm": {
        "max_num_seqs": "--max_batch_size", "max_num_batched_tokens": "--max_num_tokens",
        "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
    },
    "llamacpp": {
        "max_num_seqs": "-np (slots; the context may be divided among them)",
        "max_num_batched_tokens": "-b, -ub", "kv_cache_dtype": "-ctk, -ctv", "max_model_len": "-c",
        "data_parallel_size": "another server",
    },
    "tgi": {
        "max_num_seqs": "--max-concurrent-requests",
        "max_num_batched_tokens": "--max-batch-prefill-tokens",
        "max_model_len": "--max-total-tokens", "data_parallel_size": "another server",
    },
}  # fmt: skip


def in_words_of(server: str | None, finding: Finding) -> Finding:
    """The finding with the knobs' names of the engine that it is about."""
    names = NAMES.get(server or "")
    if names is None:
        return finding
    tries = {t.knob: t for t in reversed([_try(t, names) for t in finding.tries])}  # one a flag
    return replace(
        finding,
        tries=tuple(reversed(tries.values())),
        will_not_help=tuple(_wont(w, names) for w in finding.will_not_help),
    )


def _try(change: Try, names: Mapping[str, str]) -> Try:
    why = change.why_no_gain or "the twin is one of vLLM"
    return replace(change, knob=names.get(change.knob, change.knob), change=None, why_no_gain=why)


def _wont(wont: Wont, names: Mapping[str, str]) -> Wont:
    said = [_named(word, names) for word in wont.knob.split(", ")]
    return replace(wont, knob=", ".join(dict.fromkeys(said)))


def _named(word: str, names: Mapping[str, str]) -> str:
    base, equals, value = word.partition("=")
    knob, space, way = base.partition(" ")
    return f"{names.get(knob, knob)}{space}{way}{equals}{value}"
