"""What a vLLM start-up log says: resolved numbers, phases, and why a start failed.

Both log dialects are read (0.21 splits the KV size over two lines, later versions use one). A
failed start is classed by the earliest line that names a cause; the closing "Engine core
initialization failed" never is one.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartUp:
    """Numbers from the log; None = the log does not say. Seconds, bytes, tokens."""

    kv_tokens: int | None = None
    kv_bytes: int | None = None
    max_concurrency: float | None = None
    max_num_batched_tokens: int | None = None
    async_scheduling: bool | None = None
    weights_load_s: float | None = None
    model_bytes: int | None = None
    compile_s: float | None = None
    capture_s: float | None = None
    init_s: float | None = None
    stats_off: bool = False


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why an engine did not start (or died): class, the engine's own words, what to try."""

    kind: str
    line: str
    advice: str


_GIB = 2**30
_NUMBER = r"([\d,]+(?:\.\d+)?)"


def _find(pattern: str, log: str) -> float | None:
    match = re.search(pattern, log)
    return float(match[1].replace(",", "")) if match else None


def read_start_up(log: str) -> StartUp:
    """Read every number that the log tells."""
    kv_gib = _find(rf"Available KV cache memory: {_NUMBER} GiB", log)
    model_gib = _find(rf"Model loading took {_NUMBER} GiB", log)
    tokens = _find(rf"KV cache size: {_NUMBER} tokens", log)
    batched = _find(rf"max_num_batched_tokens={_NUMBER}", log)
    asynchronous = re.search(r"Asynchronous scheduling is (enabled|disabled)", log, re.I)
    return StartUp(
        kv_tokens=None if tokens is None else int(tokens),
        kv_bytes=None if kv_gib is None else int(kv_gib * _GIB),
        max_concurrency=_find(
            rf"[Mm]aximum concurrency for [\d,]+ tokens per request: {_NUMBER}x", log
        ),
        max_num_batched_tokens=None if batched is None else int(batched),
        async_scheduling=None if asynchronous is None else asynchronous[1].lower() == "enabled",
        weights_load_s=_find(rf"Loading weights took {_NUMBER} s", log),
        model_bytes=None if model_gib is None else int(model_gib * _GIB),
        compile_s=_find(rf"torch\.compile (?:and initial profiling[^\n]*? )?took {_NUMBER} s", log),
        capture_s=_find(rf"Graph capturing finished in {_NUMBER} secs", log),
        init_s=_find(rf"init engine \([^)]*\) took {_NUMBER} s", log),
        stats_off="disabling stats logging" in log.lower(),
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    words: tuple[str, ...]  # all of them in one line
    advice: str


_RULES = (
    _Rule(
        "gpu_busy",
        ("Free memory on device", "less than desired GPU memory utilization"),
        "another process holds GPU memory: end it or lower gpu_memory_utilization",
    ),
    _Rule(
        "oom_weights",
        ("Failed to load model", "not enough GPU memory"),
        "the weights do not fit: more tensor parallelism or quantised weights",
    ),
    _Rule(
        "kv_none",
        ("No available memory for the cache blocks",),
        "weights, activations and graphs leave no room: raise gpu_memory_utilization, "
        "or lower max_num_seqs or max_num_batched_tokens",
    ),
    _Rule(
        "kv_too_small",
        ("To serve at least one request", "KV cache is needed"),
        "lower max_model_len to the estimate in the message, use an fp8 KV cache, or more GPUs",
    ),
    _Rule(
        "oom_sampler",
        ("out of memory occurred when warming up sampler",),
        "lower max_num_seqs or gpu_memory_utilization",
    ),
    _Rule(
        "len_over_model",
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN",),
        "max_model_len is larger than the model's own limit: lower it",
    ),
    _Rule(
        "batch_config",
        ("must be greater than or equal to max_num_seqs",),
        "raise max_num_batched_tokens or lower max_num_seqs",
    ),
    _Rule(
        "batch_config",
        ("is smaller than max_model_len",),
        "without chunked prefill max_num_batched_tokens must cover max_model_len",
    ),
    _Rule(
        "quant_unknown", ("Unknown quantization method",), "no such quantization: check the name"
    ),
    _Rule(
        "quant_mismatch",
        ("Quantization method specified in the model config", "does not match"),
        "the model is quantised otherwise: drop the quantization knob",
    ),
    _Rule(
        "quant_gpu",
        ("is not supported for the current GPU", "Minimum capability"),
        "this GPU is too old for that quantisation",
    ),
    _Rule(
        "quant_dtype",
        ("is not supported for quantization method",),
        "use a dtype that the quantisation supports",
    ),
    _Rule("dtype_gpu", ("Bfloat16 is only supported on GPUs",), "use dtype float16"),
    _Rule(
        "tp_heads",
        ("must be divisible by tensor parallel size",),
        "choose a tensor_parallel_size that divides the attention heads",
    ),
    _Rule(
        "unsupported_feature",
        ("Concurrent Partial Prefill",),
        "remove max_num_partial_prefills: this version refuses any value but 1",
    ),
    _Rule("bad_flag", ("error: unrecognized arguments",), "a flag of another vLLM version"),
    _Rule("bad_flag", ("error: argument",), "vLLM refuses this value"),
    _Rule("port", ("Address already in use",), "another server has this port"),
    _Rule("host", ("ssh: ",), "the host cannot be reached: try `ssh HOST true`"),
    _Rule(
        "host",
        ("Permission denied (",),
        "the host takes no key of ours: `ssh HOST true` must work without a password",
    ),
    _Rule("host", ("Host key verification failed",), "connect once by hand, and look at its key"),
    _Rule("host", ("setsid", "not found"), "the host needs setsid (util-linux) to end the engine"),
    _Rule("image", ("docker: ",), "docker does not start it: see the line above"),
    _Rule(
        "not_installed",
        ("No module named", "vllm"),
        "vLLM is not installed in this Python: name one that has it",
    ),
    _Rule(
        "hung",
        ("No available shared memory broadcast block",),
        "the engine or a worker is stuck: see the log",
    ),
    _Rule("hung", ("RPC call to", "timed out"), "the engine or a worker is stuck: see the log"),
)
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory")
_SUMMARY_ONLY = ("Engine core initialization failed", "Failed core proc(s)")


def classify_failure(log: str, exit_code: int | None) -> StartFailure:
    """Class a failed start or a death under load. Never guesses: "unknown" has the last error."""
    for number, line in enumerate(log.splitlines()):
        rule = next((r for r in _RULES if all(w in line for w in r.words)), None)
        if rule is not None:
            return StartFailure(rule.kind, line.strip(), rule.advice)
        if _OUT_OF_MEMORY.search(line):
            return _out_of_memory(log.splitlines()[:number], line.strip())
    if exit_code in (137, -9):
        return StartFailure(
            "killed", "killed by signal 9", "the kernel or a container limit ended it: more memory"
        )
    errors = [
        line.strip()
        for line in log.splitlines()
        if re.search(r"\b(\w*Error|\w*Exception|ERROR)\b", line)
        and not any(s in line for s in _SUMMARY_ONLY)
    ]
    last = errors[-1] if errors else (log.strip().splitlines() or ["(the log is empty)"])[-1]
    return StartFailure("unknown", last, "see the log")


def _out_of_memory(before: list[str], line: str) -> StartFailure:
    """An out-of-memory error is told apart by how far the start had come."""
    seen = "\n".join(before)
    if "Application startup complete" in seen:
        return StartFailure(
            "oom_load",
            line,
            "it starts but dies under load: lower gpu_memory_utilization or set "
            "kv_cache_memory_bytes, and prove it with the longest prompts at full batch",
        )
    if "Available KV cache memory" in seen and "Graph capturing finished" not in seen:
        return StartFailure(
            "oom_graph",
            line,
            "out of memory while capturing graphs: lower kv_cache_memory_bytes or "
            "gpu_memory_utilization by the shortage and a margin, or capture fewer sizes",
        )
    if "Model loading took" not in seen:
        return StartFailure(
            "oom_weights",
            line,
            "the weights do not fit: more tensor parallelism or quantised weights",
        )
    return StartFailure(
        "oom_profile",
        line,
        "lower max_num_batched_tokens or max_num_seqs, or gpu_memory_utilization",
    )
