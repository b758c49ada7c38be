"""How fast the twin is: 400 users on four replicas, mixed lengths, 100 simulated seconds.

    python -m benchmarks.twin.speed

Prints processor seconds of the simulation (records handed over, nothing stored), best of three.
"""

import time

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.schedule import draw_schedule

LOAD = Workload(
    Arrivals(users=400),
    Prompts(Lengths(256, 0.5)),
    Outputs(Lengths(96, 0.5)),
    duration_s=90.0,
    warmup_s=10.0,
    seed=7,
)


def once(seqs: int) -> tuple[float, MemorySink]:
    """Processor seconds of one run, with full KV accounting and prefix caching on."""
    knobs = Knobs(max_num_seqs=seqs, max_model_len=4096, data_parallel_size=4)
    configuration = Configuration("Qwen3-4B", knobs, gpu="H100-SXM", gpus=4)
    plan, sink = DrivePlan(draw_schedule(LOAD), "speed"), MemorySink()
    begin = time.process_time()
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(plan, sink, SilentWatch())
    return time.process_time() - begin, sink


def main() -> None:
    for seqs in (32, 64):
        seconds, sink = min((once(seqs) for _ in range(3)), key=lambda run: run[0])
        assert sink.step_table is not None
        tokens = sum(r.output_tokens or 0 for r in sink.requests)
        print(
            f"max_num_seqs {seqs}: {seconds:.2f} s, {100 / seconds:.0f} x real time,"
            f" {len(sink.step_table)} steps, {len(sink.requests)} requests, {tokens} tokens,"
            f" {tokens / seconds / 1e6:.2f} M tokens/s"
        )


if __name__ == "__main__":
    main()
