"""What `ridgeline knee URL` sends, and its client: options that `bench` has too."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.cli.benchtraffic import (
    check_numbers,
    known_gpu,
    prompts_asked,
    request_options_of,
    sessions_asked,
)
from ridgeline.cli.clientoptions import client_of, routing_of
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.domain.knobs import Configuration
    from ridgeline.domain.workload import Workload
    from ridgeline.experiment.knee import Sweep
    from ridgeline.experiment.kneesearch import Asked

GRACE_S = 60.0  # the search sets its own
# Options that a study file has in its own words.
OF_URL = (
    "model", "endpoint", "process", "burstiness", "think_time", "think_time_law", "turns",
    "turn_think_time", "prompt_tokens", "output_tokens", "spread", "ignore_eos", "prompt_file",
    "prompt_format", "history", "unsalted", "images", "temperature", "top_p", "top_k",
    "sampling_seed", "stop", "extra_body", "header", "seed", "gpu", "gpus", "price_per_gpu_hour",
    "connect_timeout", "first_token_timeout", "chunk_timeout", "timeout", "workers", "more_urls",
    "routing",
)  # fmt: skip


def refuse_beside_a_file(given: Mapping[str, Any], verb: Callable[..., int]) -> None:
    """Raise BadInput for an option of a URL that was given with a study file."""
    defaults = {name: p.default for name, p in inspect.signature(verb).parameters.items()}
    for name in OF_URL:
        if given[name] != defaults[name]:
            option = "--url" if name == "more_urls" else "--" + name.replace("_", "-")
            raise BadInput(
                f"{option} belongs to a URL: a study file says its traffic and client itself",
                fix="put it into the file",
            )


def sweep_of_url(url: str, slo: str, given: Mapping[str, Any]) -> "Sweep":
    """The search at a server; `given` are the verb's options by name. Raises BadInput."""
    from ridgeline.domain.slo import parse_slo  # noqa: PLC0415  --help is quick
    from ridgeline.experiment.knee import Sweep  # noqa: PLC0415

    limits = parse_slo(slo)
    traffic = _traffic(given)
    configuration = _configuration(url, given)
    return Sweep(
        "knee", configuration, traffic, nothing_asked(), limits, endpoint=given["endpoint"]
    )


def nothing_asked() -> "Asked":
    """A place for what is asked for, which is known when the engine is."""
    from ridgeline.experiment.kneesearch import Asked  # noqa: PLC0415

    return Asked("users", 1.0, 1.0, 1.0)


def _traffic(given: Mapping[str, Any]) -> "Workload":
    from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Workload  # noqa: PLC0415

    spread, burstiness = given["spread"], given["burstiness"]
    times = {"--think-time": given["think_time"], "--turn-think-time": given["turn_think_time"],
             "--warmup-limit": None}  # fmt: skip
    check_numbers(times, spread=spread, burstiness=burstiness, price=given["price_per_gpu_hour"])
    prompts = prompts_asked(
        Lengths(given["prompt_tokens"], spread), given["images"], given["prompt_file"],
        given["prompt_format"], given["history"], salted=not given["unsalted"],
    )  # fmt: skip
    sampling = {
        "temperature": given["temperature"], "top_p": given["top_p"], "top_k": given["top_k"],
        "seed": given["sampling_seed"], "stop": given["stop"] or None,
    }  # fmt: skip
    client = client_of(
        given["workers"],
        connect=given["connect_timeout"],
        first_token=given["first_token_timeout"],
        chunk=given["chunk_timeout"],
        whole=given["timeout"],
        grace=GRACE_S,
    )
    return Workload(
        Arrivals(
            users=1,
            think_time_s=given["think_time"],
            think_time=given["think_time_law"],
            process=given["process"],
            burstiness=burstiness,
        ),
        prompts,
        Outputs(Lengths(given["output_tokens"], spread), given["ignore_eos"]),
        seed=given["seed"],
        sessions=sessions_asked(prompts, given["turns"], given["turn_think_time"], ()),
        client=client,
        options=request_options_of(sampling, given["extra_body"], given["header"] or []),
    )


def _configuration(url: str, given: Mapping[str, Any]) -> "Configuration":
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.engines.endpoint import HttpEndpoint  # noqa: PLC0415

    urls = (url, *(given["more_urls"] or ()))
    rule = routing_of(given["routing"], len(urls))
    gpu = known_gpu(given["gpu"])
    info = HttpEndpoint(urls, model=given["model"]).info()
    return Configuration(
        model=info.model,
        knobs=Knobs(max_model_len=info.max_model_len),
        engine="endpoint",
        engine_version=info.version,
        gpu=gpu,
        gpus=given["gpus"],
        price_per_gpu_hour=given["price_per_gpu_hour"],
        url=url,
        more_urls=urls[1:],
        routing=rule,
    )
