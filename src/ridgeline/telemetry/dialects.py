"""Pages of other engines under vLLM's names, so that whoever reads one page can read all.

Only what means the same is renamed (their documentation, checked in the code of SGLang 0.5.23); a
metric without a counterpart keeps its name, and one that an engine lacks stays absent.
"""

from collections.abc import Mapping

from ridgeline.telemetry.prometheus import OLD_NAMES, Scrape, Series

# prefix of every metric -> the engine's name
PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "trtllm",
            "llamacpp:": "llamacpp", "tgi_": "tgi", "ray_vllm_": "vllm"}  # fmt: skip
_RAY = "ray_vllm_"  # vLLM under Ray Serve, whose exporter allows no colon

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_TTFT, _ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
_TPOT = "vllm:request_time_per_output_token_seconds"
_E2E, _QUEUE = "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"
_PROMPT, _GENERATED = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
_DONE, _PREEMPTED = "vllm:request_success_total", "vllm:num_preemptions_total"
_STEPS = "vllm:iteration_tokens_total_count"

# their name (of a histogram without its ending) -> vLLM's
_PLAIN: Mapping[str, Mapping[str, str]] = {
    "sglang": {
        "sglang:num_running_reqs": _RUNNING, "sglang:num_queue_reqs": _WAITING,
        "sglang:token_usage": _KV, "sglang:num_retracted_requests_total": _PREEMPTED,
        "sglang:prompt_tokens_total": _PROMPT, "sglang:generation_tokens_total": _GENERATED,
        "sglang:num_requests_total": _DONE,
    },
    "trtllm": {
        "trtllm_num_requests_running": _RUNNING, "trtllm_num_requests_waiting": _WAITING,
        "trtllm_kv_cache_utilization": _KV, "trtllm_request_success_total": _DONE,
    },
    "llamacpp": {
        "llamacpp:requests_processing": _RUNNING, "llamacpp:requests_deferred": _WAITING,
        "llamacpp:prompt_tokens_total": _PROMPT, "llamacpp:tokens_predicted_total": _GENERATED,
        "llamacpp:n_decode_total": _STEPS,
    },
    "tgi": {
        "tgi_batch_current_size": _RUNNING, "tgi_queue_size": _WAITING,
        "tgi_request_success": _DONE, "tgi_request_success_total": _DONE,
    },
}  # fmt: skip
_HISTOGRAMS: Mapping[str, Mapping[str, str]] = {
    "sglang": {
        "sglang:time_to_first_token_seconds": _TTFT, "sglang:inter_token_latency_seconds": _ITL,
        "sglang:request_time_per_output_token_seconds": _TPOT,
        "sglang:e2e_request_latency_seconds": _E2E, "sglang:queue_time_seconds": _QUEUE,
    },
    "trtllm": {
        "trtllm_time_to_first_token_seconds": _TTFT,
        "trtllm_time_per_output_token_seconds": _TPOT,
        "trtllm_e2e_request_latency_seconds": _E2E,
        "trtllm_request_queue_time_seconds": _QUEUE,
    },
    "tgi": {
        "tgi_request_queue_duration": _QUEUE,
        "tgi_request_mean_time_per_token_duration": _TPOT, "tgi_request_duration": _E2E,
        "tgi_request_input_length": "vllm:request_prompt_tokens",
        "tgi_request_generated_tokens": "vllm:request_generation_tokens",
    },
}  # fmt: skip
_ENDINGS = ("_bucket", "_sum", "_count")
# vLLM's own older names of whole histograms
_OLD_HISTOGRAMS = {
    "vllm:time_per_output_token_seconds": _ITL, "vllm:time_in_queue_requests": _QUEUE,
}  # fmt: skip


def engine_of(scrape: Scrape) -> str | None:
    """Whose page it is: vllm, sglang, trtllm, llamacpp or tgi; None for another one."""
    for prefix, name in PREFIXES.items():
        if any(metric.startswith(prefix) for metric in scrape.samples):
            return name
    return None


def in_vllm_words(scrape: Scrape) -> Scrape:
    """The page with vLLM's present names in place of older ones and those of other engines."""
    engine = engine_of(scrape)
    if engine is None:
        return scrape
    if any(name.startswith(_RAY) for name in scrape.samples):
        scrape = Scrape({
            "vllm:" + name.removeprefix(_RAY) if name.startswith(_RAY) else name: series
            for name, series in scrape.samples.items()
        })  # fmt: skip
    names = dict(_PLAIN.get(engine, {}))
    histograms = _OLD_HISTOGRAMS if engine == "vllm" else _HISTOGRAMS.get(engine, {})
    names |= {f"{a}{end}": f"{b}{end}" for a, b in histograms.items() for end in _ENDINGS}
    if engine == "vllm":
        names |= {old: new for new, olds in OLD_NAMES.items() for old in olds}
    found: dict[str, tuple[Series, ...]] = {}
    for name, series in scrape.samples.items():
        if name not in names:
            found[name] = series
    for name, series in scrape.samples.items():
        new = names.get(name)
        if new is not None:
            found.setdefault(new, series)
    return Scrape(found)


def renamed(scrape: Scrape) -> dict[str, str]:
    """Which of vLLM's present names were found under an older one: present -> older."""
    return {
        new: old for new, olds in OLD_NAMES.items() for old in olds
        if old in scrape.samples and new not in scrape.samples
    }  # fmt: skip
