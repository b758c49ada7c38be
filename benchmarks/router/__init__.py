"""What vllm-router adds to the latencies of what is behind it: `python -m benchmarks.router`."""
