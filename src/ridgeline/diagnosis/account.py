"""Where the time of the span went: idle, waiting, the step against its roofline, the host's part.

Everything here is derived from an Evidence and is None where that does not tell enough.
"""

from dataclasses import dataclass
from functools import cached_property

from ridgeline.diagnosis.evidence import EngineLevels, Evidence, Level
from ridgeline.domain import roofline
from ridgeline.domain.defaults import ResolvedKnobs, resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.model import ModelShape
from ridgeline.domain.model import shape as find_shape

DEFAULT_RELEASE = "0.21"
SLOTS_FULL = 0.9  # running requests over the slots
NEAR_SLOTS = 1 / 3  # of known slots: fewer that run by Little's law, on average, are no full batch
KV_FULL = 0.95  # of the blocks, at the peak: the next request or token finds none
SMALL_STEP = 200.0  # tokens: far below any budget that prompts could fill
WAITS = 0.5  # mean requests waiting: below it there is no queue to speak of
# What real steps reach of the roofline when nothing but the GPU sets their time (public operator
# tables: 0.56 to 0.80 by operation).
REACHED, REACHED_LOW, REACHED_HIGH = 0.70, 0.50, 0.90


@dataclass(frozen=True, slots=True)
class Floor:
    """The mean step on the roofline, seconds: reading weights and KV; computing; bytes of both."""

    memory_s: float
    compute_s: float
    kv_share: float

    @property
    def seconds(self) -> float:
        """No mean step can be shorter."""
        return max(self.memory_s, self.compute_s)


class Account:
    """Derived figures of one Evidence, each worked out when asked for."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    # -- what is served

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU, where the configuration is known."""
        found = self.evidence.known.configuration
        try:
            return None if found is None else found.device()
        except RidgelineError:
            return None

    @cached_property
    def shape(self) -> ModelShape | None:
        """The model's shape, where it is known."""
        found = self.evidence.known.configuration
        try:
            return None if found is None else find_shape(found.model)
        except RidgelineError:
            return None

    @cached_property
    def knobs(self) -> ResolvedKnobs | None:
        """What the engine would run with, where model and GPU are known."""
        found = self.evidence.known.configuration
        if found is None or self.gpu is None or self.shape is None:
            return None
        try:
            release = found.engine_version or DEFAULT_RELEASE
            return resolve(found.knobs, self.gpu, self.shape, release)
        except RidgelineError:
            return None

    # -- time

    @cached_property
    def queue_share(self) -> float:
        """Share of the requests' time that they wait; 0 where nothing waits or is told."""
        e = self.evidence
        if e.waiting is None or e.waiting.mean < WAITS:
            return 0.0
        return e.queue_share or 0.0

    @cached_property
    def busy(self) -> float | None:
        """Share of the time in which the engines work: steps times their mean time.

        The gauge of running requests is not asked first: a page is rendered when the API server has
        time for it, which is when a batch has just ended: of short requests it may always say 0.
        Without the counter of steps: the share of scrapes with requests running, roughly.
        """
        e = self.evidence
        if not e.rates_known or e.running is None:
            return None
        steps, step = self._counted_steps, e.histograms.itl
        if steps is not None and step is not None and step.mean:
            return min(1.0, steps * step.mean / (e.span_s * e.replicas))
        if e.running.high == 0 and not e.generation_tokens:
            return 0.0
        return None if e.running.low == 0 else 1.0

    @cached_property
    def _counted_steps(self) -> float | None:
        """The counter of steps, where each is counted once: one API server."""
        e = self.evidence
        return e.steps if e.api_servers == 1 else None

    @cached_property
    def steps(self) -> float | None:
        """Steps of all engines in the span, counted or worked out from their time."""
        e = self.evidence
        if self._counted_steps:
            return self._counted_steps
        if not e.step_s or not e.rates_known:
            return None
        return (self.busy or 1.0) * e.span_s * e.replicas / e.step_s

    @cached_property
    def mean_prompt(self) -> float | None:
        """Mean prompt, tokens, of the requests that ended."""
        lengths = self.evidence.histograms.prompt_lengths
        return None if lengths is None else lengths.mean

    @cached_property
    def mean_output(self) -> float | None:
        """Mean answer, tokens, of the requests that ended."""
        lengths = self.evidence.histograms.output_lengths
        return None if lengths is None else lengths.mean

    @cached_property
    def computed_prompt_tokens(self) -> float | None:
        """Prompt tokens that were computed: without those that the prefix cache had."""
        e = self.evidence
        if e.prompt_tokens is None:
            return None
        return max(0.0, e.prompt_tokens - (e.cache_hits or 0.0))

    @cached_property
    def tokens_per_step(self) -> float | None:
        """Tokens that an engine computes in a mean step, prompts and answers."""
        made, prompt = self.evidence.generation_tokens, self.computed_prompt_tokens
        if not self.steps or made is None or prompt is None:
            return None
        return (made + prompt) / self.steps

    @cached_property
    def made_per_step(self) -> float | None:
        """Tokens of answers that an engine makes in a mean step: of its budget the first part."""
        made = self.evidence.generation_tokens
        return None if not self.steps or made is None else made / self.steps

    @cached_property
    def prompt_tokens_per_step(self) -> float | None:
        """Prompt tokens that an engine computes in a mean step."""
        prompt = self.computed_prompt_tokens
        return None if not self.steps or prompt is None else prompt / self.steps

    @cached_property
    def recomputed_share(self) -> float:
        """Share of the prompt work that is done again after preemption, at most.

        A preempted request computes its prompt and what it had generated (half of it, on average).
        """
        e = self.evidence
        if not e.preemptions or not self.computed_prompt_tokens or self.mean_prompt is None:
            return 0.0
        again = e.preemptions * (self.mean_prompt + (self.mean_output or 0.0) / 2)
        return again / (self.computed_prompt_tokens + again)

    # -- the step

    @cached_property
    def floor(self) -> Floor | None:
        """The mean step on the roofline."""
        e, gpu, shape, knobs = self.evidence, self.gpu, self.shape, self.knobs
        if gpu is None or shape is None or knobs is None or e.running is None:
            return None
        tokens, prompt = self.tokens_per_step, self.mean_prompt
        if tokens is None or prompt is None:
            return None
        ranks = knobs.tensor_parallel
        batch = max(1.0, e.running.mean / e.replicas / max(self.busy or 1.0, 0.05))
        context = prompt + (self.mean_output or 0.0) / 2
        kv = batch * roofline.attended(shape, context) * roofline.kv_bytes_per_token(
            shape, knobs.kv_element_bytes)  # fmt: skip
        weights = roofline.weights_read_bytes(shape, tokens, knobs.weight_bytes)
        flops = tokens * roofline.linear_flops_per_token(shape) + batch * roofline.head_flops(shape)
        flops += tokens * roofline.attention_flops_per_pair(shape) * context / 2
        precision = knobs.weights if knobs.weights in gpu.flops else "bf16"
        return Floor(
            (weights + kv) / ranks / gpu.bandwidth_bytes_per_s,
            flops / ranks / gpu.peak_flops(precision),
            kv / (weights + kv),
        )

    @cached_property
    def share_of_bound(self) -> float | None:
        """The mean step's time on the roofline over its true one."""
        step = self.evidence.step_s
        return None if self.floor is None or not step else min(1.0, self.floor.seconds / step)

    @cached_property
    def gpu_waits(self) -> tuple[float, float, float, str] | None:
        """Share of a step in which the GPU waits for its host: value, low, high, how it is known.

        From the hardware's counter of active SMs, over the time at work; else from the roofline,
        because a step that the GPU alone sets reaches REACHED of it.
        """
        active = self.evidence.gpu_mean("sm_active")
        if active is not None and not self.gpu_page_broken:
            waits = max(0.0, 1 - active / max(self.busy or 1.0, 0.05))
            return waits, waits, waits, f"SMs are active {active:.0%} of the time"
        step, floor = self.evidence.step_s, self.floor
        if floor is None or not step:
            return None
        # Some steps are bound by bytes and others by FLOPs: of their mean the sum is the most.
        share = min(1.0, (floor.memory_s + floor.compute_s) / step)
        value, low, high = (max(0.0, 1 - share / r) for r in (REACHED, REACHED_LOW, REACHED_HIGH))
        return value, low, high, f"on the roofline the mean step would take {share:.0%} of its time"

    @cached_property
    def gpu_page_broken(self) -> bool:
        """The GPU's profiling fields are all 0 although it works."""
        e = self.evidence
        fields = [e.gpu_mean(n) for n in ("sm_active", "tensor_active", "dram_active")]
        told = [f for f in fields if f is not None]
        working = (e.gpu_mean("utilisation") or 0.0) > 0.2 or (e.gpu_mean("power_w") or 0.0) > 250
        return bool(told) and not any(told) and working

    # -- why requests wait

    def waits_for(self, engine: EngineLevels) -> str | None:
        """What an engine's queue waits for: slots, kv, budget, either (slots or budget),
        lora (slots for adapters), or deferred (something else than room)."""
        if engine.waiting is None or engine.waiting.mean < WAITS or engine.running is None:
            return None
        if self.evidence.lora is not None and self.evidence.lora.full:
            return "lora"
        deferred = 0.0 if engine.deferred is None else engine.deferred.mean
        if engine.waiting.mean - deferred < WAITS:
            return "deferred"
        full = engine.kv_use is not None and engine.kv_use.high >= KV_FULL
        if engine.lagged is not None:
            return self._cause_without_gauges(engine, full=full)
        if self.slots_full(engine) and not engine.preemptions:
            return "slots"
        if full or engine.preemptions:
            return "kv"
        return self._slots_or_budget(engine.running)

    def _slots_or_budget(self, running: Level) -> str:
        """Which of the two is full, where memory is free: by the prompt tokens of a mean step.

        Known slots must all have been taken in some reading. Not in each: a page is rendered when
        the API server has time for it, which is when some of a batch of short requests have ended.
        "either" where neither is known and prompts are no small part of a step.
        """
        prompt, known = self.prompt_tokens_per_step, self.evidence.known
        slots, budget = known.max_num_seqs, known.max_num_batched_tokens
        room = None if budget is None else max(1.0, budget - (self.made_per_step or 0.0))
        small = prompt is not None and prompt < SMALL_STEP  # no budget is so small
        free = prompt is not None and (small if room is None else prompt < room / 2)
        if slots is not None:
            return "slots" if small and free and running.high >= slots else "budget"
        if free:
            return "slots"
        return "either" if budget is None or prompt is None else "budget"

    def _cause_without_gauges(self, engine: EngineLevels, *, full: bool) -> str | None:
        """By elimination, from what does not lag: preemptions, the pool's size, tokens a step."""
        if full or engine.preemptions or self.pool_too_small:
            return "kv"
        prompt, known = self.prompt_tokens_per_step, self.evidence.known
        budget = known.max_num_batched_tokens
        if known.max_num_seqs is not None and engine.running is not None and (
            engine.running.high < NEAR_SLOTS * known.max_num_seqs):  # fmt: skip
            return "budget" if prompt is not None and budget and prompt > budget / 2 else None
        if prompt is None:
            return "either"
        if prompt < (SMALL_STEP if budget is None else min(SMALL_STEP, budget / 2)):
            return "slots"
        return "either" if budget is None or known.max_num_seqs is None else "budget"

    @cached_property
    def pool_too_small(self) -> bool:
        """Whether the KV pool cannot hold what the engines' slots take in, or what is in flight."""
        known, flight = self.evidence.known, self.evidence.in_flight
        length = (self.mean_prompt or 0.0) + (self.mean_output or 0.0)
        if known.kv_tokens is None or not length or flight is None:
            return False
        most = flight / self.evidence.replicas
        wanted = most if known.max_num_seqs is None else min(most, known.max_num_seqs)
        return known.kv_tokens < wanted * length

    def slots_full(self, engine: EngineLevels) -> bool:
        """Whether all slots are taken: known ones, or a number that stays where it is."""
        slots = self.evidence.known.max_num_seqs
        running = engine.running_queued or engine.running
        if running is None or running.mean < 1:
            return False
        if slots is not None:
            return running.mean >= SLOTS_FULL * slots
        if engine.kv_use is not None and engine.kv_use.high >= KV_FULL:
            return False
        return running.steady or (running.n < 3 and running.low == running.high
                                  and _usual(running.last))  # fmt: skip

    def waiting_by_cause(self) -> dict[str, float]:
        """Mean waiting requests by what they wait for."""
        found: dict[str, float] = {}
        for engine in self.evidence.engines:
            cause = self.waits_for(engine)
            if cause is not None and engine.waiting is not None:
                found[cause] = found.get(cause, 0.0) + engine.waiting.mean
        return found

    def queue_share_of(self, cause: str) -> float:
        """Share of the requests' time that they wait for this."""
        flight = self.evidence.in_flight
        return self.waiting_by_cause().get(cause, 0.0) / flight if flight else 0.0

    @cached_property
    def imbalance(self) -> tuple[float, list[str]] | None:
        """(most over mean requests in flight, names of the loaded engines) of an uneven load.

        Uneven: one engine has half as much again as the mean, while one with room has no queue.
        """
        engines = [e for e in self.evidence.engines if e.running is not None]
        if len(engines) < 2:
            return None
        loads = [_load(e) for e in engines]
        mean = sum(loads) / len(loads)
        if max(loads) < 8 or max(loads) < 1.5 * mean:
            return None
        most_running = max(e.running.mean for e in engines if e.running is not None)
        free = [e for e in engines if _has_room(e, most_running)]
        if not free:
            return None
        hot = [e.name for e, load in zip(engines, loads, strict=True) if load >= 1.25 * mean]
        return max(loads) / mean, hot


def _load(engine: EngineLevels) -> float:
    waiting = 0.0 if engine.waiting is None else engine.waiting.mean
    return waiting + (0.0 if engine.running is None else engine.running.mean)


def _has_room(engine: EngineLevels, most_running: float) -> bool:
    waiting = 0.0 if engine.waiting is None else engine.waiting.mean
    kv = 0.0 if engine.kv_use is None else engine.kv_use.mean
    running = 0.0 if engine.running is None else engine.running.mean
    return waiting < WAITS and kv < 0.8 and running <= 0.75 * max(most_running, 1.0)


def _usual(value: float) -> bool:
    """A number that people set a ceiling to: a power of two from 4, or a multiple of 100."""
    whole = int(value)
    return whole == value and whole >= 4 and (whole & (whole - 1) == 0 or whole % 100 == 0)
