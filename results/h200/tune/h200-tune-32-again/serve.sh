#!/bin/sh
exec vllm serve models/qwen3-4b-shape --max-num-seqs 64 --max-num-batched-tokens 16384 --max-model-len 4096 --no-enable-prefix-caching --gpu-memory-utilization 0.2 --kv-cache-memory-bytes 10737418240 --max-cudagraph-capture-size 2048 --api-server-count 2 --port 8000 --load-format dummy
