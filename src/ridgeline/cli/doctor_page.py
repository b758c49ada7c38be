"""What `ridgeline doctor` prints: the finding that binds first, then the others, in plain words."""

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ridgeline.diagnosis.evidence import Evidence, ProbeResult
from ridgeline.diagnosis.finding import Finding, Gain, Try
from ridgeline.domain.numerals import counted

_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "llamacpp": "llama.cpp",
            "tgi": "TGI"}  # fmt: skip
_KINDS = {"fault": ("FAULT", "bold red"), "limit": ("LIMIT", "bold yellow"),
          "fine": ("FINE", "bold green"), "note": ("note", "dim")}  # fmt: skip
_MORE_IS_BETTER = ("output_tokens_per_s", "rate_carried")
_METRICS = {
    "output_tokens_per_s": "output tokens/s", "rate_carried": "requests/s that can be carried",
    "itl_mean_s": "mean time between tokens",
    "ttft_p95_s[urgent]": "p95 TTFT of the short requests",
    "ttft_p95_s[all]": "p95 TTFT of all requests",
    "e2e_mean_s[batch]": "mean time of the long requests",
    "itl_p99_s": "p99 time between tokens", "ttft_p50_s": "median TTFT", "ttft_p95_s": "p95 TTFT",
}  # fmt: skip


def page(
    evidence: Evidence, findings: Sequence[Finding], of: Sequence[str]
) -> list[Text | Padding]:
    """Renderables, top to bottom."""
    shown: list[Text | Padding] = [Text(line) for line in _head(evidence, of)]
    for number, finding in enumerate(findings, 1):
        shown.append(Text(""))
        shown += _one(finding, number)
    shown.append(Text(""))
    if sum(f.share for f in findings if f.kind == "limit") > 1:
        shown.append(Text("The shares of a request's time overlap: two limits may hold back the"
                          " same part of it.", "dim"))  # fmt: skip
    if any(t.gain for f in findings for t in f.tries):
        shown.append(Text("Gains are predictions of the digital twin, not measurements; in brackets"
                          " where they are expected nine times of ten.", "dim"))  # fmt: skip
    if evidence.known.workload is None and any(
        g.metric == "output_tokens_per_s" for f in findings for t in f.tries for g in t.gain
    ):
        shown.append(Text("Of tokens/s: with as many requests in flight as now. Where arrivals come"
                          " at a fixed rate no more tokens come out: the gain is in latency, or in"
                          " the rate that can be carried.", "dim"))  # fmt: skip
    return shown


def _head(e: Evidence, of: Sequence[str]) -> Iterable[str]:
    engine = _ENGINES.get(e.server or "", "unknown engine")
    version = "" if e.known.version is None else f" {e.known.version}"
    span = f"{e.scrapes} readings over {e.span_s:.0f} s" if e.rates_known else (
        f"{e.scrapes} reading{'s' if e.scrapes != 1 else ''}, no rates known")  # fmt: skip
    where = of[0] if len(of) == 1 else f"{of[0]} and {len(of) - 1} more"
    engines = "" if e.replicas == 1 else f", {e.replicas} engine cores"
    what = f"TWIN: a digital twin (`ridgeline twin`) that answers as {engine}" if e.twin else engine
    yield f"{where}: {what}{version}{engines}; {span}"
    rate, made = e.per_s(e.requests), e.per_s(e.generation_tokens)
    if rate is not None and made is not None:
        yield f"{rate:.3g} requests/s and {counted(made)} output tokens/s"
    for probe in e.probes or ((e.probe,) if e.probe is not None else ()):
        yield _probe(probe)
    if e.known.configuration is None and e.server == "vllm":
        yield "model and GPU are not known: give --study FILE, or --model and --gpu, for gains"


def _probe(p: ProbeResult) -> str:
    """What the probe's own requests saw, in one line."""
    times = [
        f"{name} {value * 1e3:.3g} ms" for name, value in
        (("mean TTFT", p.ttft_s), ("time between chunks", p.itl_s), ("whole answer",
                                                                     p.client_e2e_s))
        if value is not None
    ]  # fmt: skip
    told = [f"{p.ok} of {p.sent} small requests answered", *times]
    if p.output_tokens is not None:
        told.append(f"{p.output_tokens} tokens")
    told.append("/health does not answer" if p.health is None else f"/health says {p.health}")
    if p.trouble is not None:
        told.append(p.trouble)
    whom = "" if p.target is None else f" of {p.server}"
    return f"probe{whom}: {', '.join(told)}"


def _one(finding: Finding, number: int) -> list[Text | Padding]:
    word, style = _KINDS[finding.kind]
    title = Text(f"{number}. ")
    title.append(word, style)
    title.append(f"  {finding.title}", "bold" if finding.kind != "note" else "")
    lines = [Text(fact.words) for fact in finding.evidence]
    for change in finding.tries:
        lines.append(Text.from_markup(f"[bold]try[/bold] {escape(_change(change))}"))
        lines += [Text(f"    {words}") for words in _expected(change)]
    lines += [Text(f"will not help: {w.knob} ({w.why})") for w in finding.will_not_help]
    how = f"confidence {finding.confidence}; {finding.docs}"
    if finding.kind == "limit" and finding.share:
        how = f"accounts for {finding.share:.0%} of a request's time; {how}"
    lines.append(Text(how, "dim"))
    return [title, *(Padding(line, (0, 0, 0, 3)) for line in lines)]


def _change(change: Try) -> str:
    return f"{change.knob} -> {change.value}"


def _expected(change: Try) -> Iterable[str]:
    for gain in change.gain:
        yield _gain(gain)
    if change.expect:
        yield f"by arithmetic: {change.expect}"
    if not change.gain and change.why_no_gain:
        yield change.why_no_gain


def _gain(gain: Gain) -> str:
    name = _METRICS.get(gain.metric, gain.metric)
    worse = gain.high < 1 if gain.metric in _MORE_IS_BETTER else gain.low > 1
    what = "better" if gain.better else "worse" if worse else "no better"
    return f"twin: {name} x {gain.ratio:.2f} ({gain.low:.2f} to {gain.high:.2f}): {what}"
