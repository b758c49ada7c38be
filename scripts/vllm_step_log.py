"""A scheduler for vLLM that writes down what it decided, one JSON line a step.

    PYTHONPATH=scripts RIDGELINE_STEP_LOG=steps.jsonl vllm serve MODEL \
        --scheduler-cls vllm_step_log.StepLogScheduler            (synchronous scheduling)
        --scheduler-cls vllm_step_log.AsyncStepLogScheduler       (asynchronous, as usual on GPUs)

`ridgeline twin FILE --replay steps.jsonl` gives the twin the same arrivals and names the first step
in which it decides otherwise. The lines are described in docs/twin.md. Only the standard library
and vLLM are needed; it was run with vLLM 0.21.0, 0.32.0 and 0.33.0. Logging costs a fraction of a
millisecond a step: not for measuring times.
"""

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

import vllm

PATH = "RIDGELINE_STEP_LOG"


class _StepLog:
    """Mixed into a scheduler class: looks at what goes in and comes out, changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls = 0
        self._arrived: list[dict[str, Any]] = []
        self._updated: list[int] = []
        self._finished: list[str] = []
        self._step_of: dict[int, int] = {}  # by id() of the output in flight
        self._file = Path(os.environ[PATH]).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._write(_header(self))

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        arrived = {
            "id": request.request_id,
            "prompt": request.num_prompt_tokens,
            "output": request.max_tokens,
            "priority": request.priority,
            "arrival": request.arrival_time,
        }
        if request.block_hashes:
            arrived["blocks"] = [bytes(h).hex()[:12] for h in request.block_hashes]
        self._arrived.append(arrived)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        out = super().schedule(*args, **kwargs)
        joined = {r.req_id for r in out.scheduled_new_reqs}
        cached = out.scheduled_cached_reqs
        joined |= set(getattr(cached, "resumed_req_ids", ()))
        tokens = out.num_scheduled_tokens
        self._write(
            {
                "step": self._calls,
                "updated": self._updated,
                "finished": sorted(self._finished),
                "arrived": self._arrived,
                "scheduled": tokens,
                # Computed counts stand after this step's tokens already.
                "hits": {r: self.requests[r].num_computed_tokens - tokens[r] for r in joined},
                "preempted": sorted(out.preempted_req_ids or ()),
                "running": len(self.running),
                "waiting": self.get_request_counts()[1],
                "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            }
        )
        self._step_of[id(out)] = self._calls
        self._calls += 1
        self._arrived, self._updated, self._finished = [], [], []
        return out

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        out = super().update_from_output(scheduler_output, *args, **kwargs)
        self._updated.append(self._step_of.pop(id(scheduler_output)))
        return out

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._finished.append(request.request_id)
        return super()._free_request(request, *args, **kwargs)


def _header(scheduler: Any) -> dict[str, Any]:
    """The settings that decide, under their own names."""
    config = scheduler.scheduler_config
    names = (
        "max_num_batched_tokens", "max_num_seqs", "max_num_scheduled_tokens", "max_num_active_seqs",
        "long_prefill_token_threshold", "enable_chunked_prefill", "prefill_schedule_interval",
        "scheduler_reserve_full_isl", "watermark",
    )  # fmt: skip
    spec = scheduler.vllm_config.speculative_config
    return {
        "step_log": 1,
        "engine": "vllm",
        "version": vllm.__version__,
        "async_scheduling": isinstance(scheduler, AsyncScheduler),
        "scheduling_policy": scheduler.policy.value,
        "max_model_len": scheduler.max_model_len,
        "block_size": scheduler.block_size,
        "num_gpu_blocks": scheduler.kv_cache_config.num_blocks,
        "enable_prefix_caching": bool(scheduler.cache_config.enable_prefix_caching),
        "num_speculative_tokens": 0 if spec is None else spec.num_speculative_tokens,
        **{n: getattr(config, n) for n in names if getattr(config, n, None) is not None},
    }


class StepLogScheduler(_StepLog, Scheduler):
    """vLLM's own scheduler, with a log."""


class AsyncStepLogScheduler(_StepLog, AsyncScheduler):
    """vLLM's own scheduler for steps in flight, with a log."""
