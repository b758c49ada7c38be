"""llama.cpp's server as an engine: the model is a GGUF file.

`llama-server` where it is on the PATH; otherwise the server inside the wheel `xllamacpp`, which
this module starts when it is run: `python -m ridgeline.engines.llamacpp --model FILE --port N`.
"""

import argparse
import importlib.util
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.engines.launching import HOST
from ridgeline.engines.started import ServerEngine, ServerLaunch

# Knobs that llama.cpp has too, with its own flag. max_model_len is of one request here as there,
# while llama.cpp divides its context among the slots.
_FLAGS = {"max_num_seqs": "--parallel", "max_num_batched_tokens": "--batch-size"}
_OTHERS = ("max_model_len", "enable_prefix_caching", "data_parallel_size")
SLOTS = 4  # unless max_num_seqs says otherwise: llama.cpp's own default changed over time


class LlamaCppDialect:
    """See Dialect."""

    name = "llamacpp"
    install = (
        "put llama-server on the PATH, or `pip install xllamacpp`, or name the command that starts"
        " it (launch.command)"
    )
    environment: Mapping[str, str] = MappingProxyType({})

    def command(self) -> tuple[str, ...]:
        """llama-server, else the one inside xllamacpp."""
        inside = shutil.which("llama-server") is None and importlib.util.find_spec("xllamacpp")
        if inside:
            return (sys.executable, "-P", "-m", "ridgeline.engines.llamacpp", "--model", "{model}")
        return ("llama-server", "--model", "{model}")

    def arguments(self, configuration: Configuration, port: int, host: str = HOST) -> list[str]:
        """llama-server's flags; raises BadInput for a knob that it does not have."""
        return [
            *llama_arguments(configuration.knobs),
            "--metrics", "--host", host, "--port", str(port), "--alias", configuration.model,
        ]  # fmt: skip

    def check(self, configuration: Configuration, command: Sequence[str]) -> str | None:
        """Its knobs are few and known (`arguments`); what else is given goes to it as it is."""
        launch = configuration.launch or Launch()
        if launch.command is None and (launch.image is not None or launch.host is not None):
            what = "where llama.cpp's server lies there is not known"
            raise BadInput(what, where="launch", fix="name it: launch.command")
        return "llama.cpp cannot be asked what it takes" if launch.arguments else None

    def read_start(self, log: str) -> dict[str, Any]:
        """The context of one slot, where the log tells it."""
        found = re.search(r"n_ctx_(?:seq|per_seq|slot)\s*=\s*(\d+)", log)
        return {} if found is None else {"slot_tokens": int(found[1])}


def llama_arguments(knobs: Knobs) -> list[str]:
    """Arguments of llama-server; raises BadInput for what it does not have."""
    given = knobs.given()
    for name in given:
        if name not in (*_FLAGS, *_OTHERS):
            raise BadInput(
                f"llama.cpp has no such knob ({', '.join((*_FLAGS, *_OTHERS))})", where=name
            )
    slots = knobs.max_num_seqs or SLOTS
    arguments = ["--parallel", str(slots)]
    if knobs.max_num_batched_tokens is not None:
        arguments += [_FLAGS["max_num_batched_tokens"], str(knobs.max_num_batched_tokens)]
    if knobs.max_model_len is not None:
        arguments += ["--ctx-size", str(knobs.max_model_len * slots)]
    if knobs.enable_prefix_caching is False:
        arguments.append("--no-cache-prompt")
    return arguments


class LlamaCppEngine(ServerEngine):
    """Starts llama.cpp's server for a configuration; see the Engine port."""

    def __init__(self, launch: ServerLaunch | None = None) -> None:
        super().__init__(LlamaCppDialect(), launch)


def main() -> None:
    """Serve as llama-server does, with the flags that the dialect gives, until killed."""
    import xllamacpp  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m ridgeline.engines.llamacpp")
    for flag in ("--model", "--host", "--alias"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=SLOTS)
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-cache-prompt", action="store_true")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = given.model, {given.alias}
    params.hostnames, params.port = [given.host], given.port
    params.n_parallel, params.n_ctx, params.n_batch = (
        given.parallel, given.ctx_size, given.batch_size,
    )  # fmt: skip
    params.endpoint_metrics = params.endpoint_slots = given.metrics
    params.cache_prompt = not given.no_cache_prompt
    if given.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    server = xllamacpp.Server(params)
    while server is not None:
        time.sleep(3600)


if __name__ == "__main__":
    main()
