"""Times per token as other tools define them, from what one request has: named, never mixed up.

All in seconds. `n` is the number of output tokens.
"""


def time_per_token(e2e_s: float, ttft_s: float, n: int) -> float | None:
    """Ridgeline's TPOT, also that of vllm bench serve, inference-perf and AIPerf's ITL:
    (E2E - TTFT) / (n - 1). None for fewer than two tokens.
    """
    return (e2e_s - ttft_s) / (n - 1) if n > 1 else None


def total_over_tokens(e2e_s: float, n: int) -> float | None:
    """E2E / n, which contains TTFT: GuideLLM's time per output token. None without a token."""
    return e2e_s / n if n > 0 else None
