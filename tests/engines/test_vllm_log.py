# ruff: noqa: E501  log lines are as long as vLLM writes them
"""Start-up logs as vLLM writes them, and the causes hidden in failed ones."""

import random

from ridgeline.engines.vllm_log import classify_failure, read_start_up

LOG_021 = """\
INFO 11-30 14:00:01 [scheduler.py:231] Chunked prefill is enabled with max_num_batched_tokens=8192.
INFO 11-30 14:00:01 [vllm.py:700] Asynchronous scheduling is enabled.
(EngineCore pid=88) INFO 11-30 14:00:20 [default_loader.py:291] Loading weights took 3.21 seconds
(EngineCore pid=88) INFO 11-30 14:00:21 [gpu_model_runner.py:4000] Model loading took 7.55 GiB memory and 4.01 seconds
(EngineCore pid=88) INFO 11-30 14:00:41 [backends.py:900] torch.compile took 25.32 s in total
(EngineCore pid=88) INFO 11-30 14:00:43 [gpu_worker.py:300] Available KV cache memory: 118.22 GiB
(EngineCore pid=88) INFO 11-30 14:00:43 [kv_cache_utils.py:1087] GPU KV cache size: 860,816 tokens
(EngineCore pid=88) INFO 11-30 14:00:43 [kv_cache_utils.py:1091] Maximum concurrency for 4,096 tokens per request: 210.16x
(EngineCore pid=88) INFO 11-30 14:00:47 [gpu_model_runner.py:4800] Graph capturing finished in 4 secs, took 0.61 GiB
(EngineCore pid=88) INFO 11-30 14:00:47 [core.py:210] init engine (profile, create kv cache, warmup model) took 26.4 seconds
INFO:     Application startup complete.
"""


def test_every_number_of_a_start_up_log_is_read() -> None:
    start = read_start_up(LOG_021)
    assert start.kv_tokens == 860_816
    assert start.max_concurrency == 210.16
    assert start.max_num_batched_tokens == 8192
    assert start.async_scheduling is True
    assert start.weights_load_s == 3.21
    assert start.compile_s == 25.32
    assert start.capture_s == 4
    assert start.init_s == 26.4
    assert start.kv_bytes == int(118.22 * 2**30)


def test_an_absent_line_is_none_and_never_zero() -> None:
    start = read_start_up("INFO: Application startup complete.")
    assert start.kv_tokens is None
    assert start.compile_s is None


def test_one_line_dialect_of_the_kv_size() -> None:
    line = (
        "INFO GPU KV cache size: 41,408 tokens, "
        "maximum concurrency for 2,048 tokens per request: 20.22x"
    )
    start = read_start_up(line)
    assert (start.kv_tokens, start.max_concurrency) == (41_408, 20.22)


def test_out_of_memory_in_capture_is_not_a_kv_shortage() -> None:
    # A start that passed the KV check and was short by 136 MiB while capturing graphs.
    log = (
        "INFO Model loading took 7.55 GiB memory and 4.01 seconds\n"
        "INFO Available KV cache memory: 20.1 GiB\n"
        "INFO GPU KV cache size: 400,000 tokens\n"
        "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB.\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)\n"
    )
    failure = classify_failure(log, 1)
    assert failure.kind == "oom_graph"
    assert "136.00 MiB" in failure.line
    assert "kv_cache_memory_bytes" in failure.advice
    assert "eager" not in failure.advice


def test_the_cause_in_the_middle_is_quoted_not_the_summary_at_the_end() -> None:
    lines = [f"(Worker pid=7) INFO line {i}" for i in range(200)]
    lines[120] = (
        "(Worker pid=7) ValueError: To serve at least one request with the models's max seq len "
        "(32768), (4.50 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (2.80 GiB). Based on the available memory, the estimated maximum model length is "
        "20000."
    )
    lines.append("RuntimeError: Engine core initialization failed. Failed core proc(s): {}")
    failure = classify_failure("\n".join(lines), 1)
    assert failure.kind == "kv_too_small"
    assert "20000" in failure.line


def test_out_of_memory_is_told_apart_by_how_far_the_start_had_come() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory."
    loaded = "Model loading took 7.55 GiB memory and 4.01 seconds\n"
    assert classify_failure(oom, 1).kind == "oom_weights"
    assert classify_failure(loaded + oom, 1).kind == "oom_profile"
    assert classify_failure(LOG_021 + oom, 1).kind == "oom_load"


def test_an_unknown_end_quotes_the_last_error_and_guesses_nothing() -> None:
    failure = classify_failure("INFO all well\nKeyError: 'rope_scaling'\nINFO bye", 1)
    assert (failure.kind, failure.line) == ("unknown", "KeyError: 'rope_scaling'")
    assert classify_failure("", 1).kind == "unknown"
    assert classify_failure("INFO fine", 137).kind == "killed"


def test_stat_lines_that_are_off_are_a_fact_not_a_throughput_of_zero() -> None:
    """C-ST-07: with eight API servers vLLM logs no periodic lines."""
    notice = "WARNING AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats."
    start = read_start_up(LOG_021 + notice)
    assert start.stats_off is True
    assert read_start_up(LOG_021).stats_off is False
    assert not any("throughput" in name for name in start.__dataclass_fields__)


def test_lines_that_nobody_expects_break_nothing() -> None:
    rng = random.Random(7)
    for _ in range(300):
        words = LOG_021.split(" ")
        for _ in range(rng.randrange(1, 40)):
            at = rng.randrange(len(words))
            words[at] = rng.choice(["", "\n", "\x1b[31m", "�" * 9, "1,2,3.", "took s", "x" * 5000])
        text = " ".join(words)
        start = read_start_up(text)
        assert start.kv_tokens is None or start.kv_tokens >= 0
        assert classify_failure(text, 1).line
