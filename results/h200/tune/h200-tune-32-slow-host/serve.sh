#!/bin/sh
exec vllm serve models/qwen3-4b-shape --max-num-seqs 32 --max-num-batched-tokens 4096 --max-model-len 4096 --no-enable-prefix-caching --gpu-memory-utilization 0.2 --kv-cache-memory-bytes 10737418240 --port 8000 --load-format dummy
