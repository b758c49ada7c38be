"""What is known of a configuration beside its metrics: a study, a start-up log, a router's log.

The engine's own words (its log, its page) go before what a study file says, and that before the
defaults that vLLM would take.
"""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.diagnosis.account import DEFAULT_RELEASE
from ridgeline.diagnosis.evidence import Known, RouterSigns
from ridgeline.diagnosis.gathering import learn
from ridgeline.domain.defaults import ResolvedKnobs, resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.model import shape
from ridgeline.domain.secrets import without_secrets
from ridgeline.domain.workload import Workload
from ridgeline.engines.vllm_log import read_start_up

LOG = "the start-up log"
_FIELDS = {
    "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len", "eager": "eager", "capture": "max_capture_size",
    "block_size": "block_size", "kv_dtype": "kv_cache_dtype", "prefix_caching": "prefix_caching",
    "drafts": "drafts", "draft_method": "draft_method", "scheduling_policy": "scheduling_policy",
    "api_servers": "api_servers",
}  # fmt: skip
# fields of Known -> the knobs that set them
_KNOBS = {"eager": "enforce_eager", "capture": "max_cudagraph_capture_size",
          "kv_dtype": "kv_cache_dtype", "prefix_caching": "enable_prefix_caching",
          "drafts": "speculative_config", "draft_method": "speculative_config",
          "api_servers": "api_server_count"}  # fmt: skip


def with_configuration(
    known: Known,
    configuration: Configuration,
    workload: Workload | None,
    source: str,
    *,
    defaults: bool = True,
) -> Known:
    """Add a configuration: what it gives, and vLLM's defaults where model and GPU are known.

    Without `defaults` only what it gives: the rest of the command line is not known.
    """
    known = learn(known, {"configuration": configuration, "workload": workload}, source)
    given = configuration.knobs.given()
    resolved = _resolved(configuration)
    for field, name in _FIELDS.items():
        knob = _KNOBS.get(field, field)
        value = None if resolved is None else getattr(resolved, name)
        if knob in given:
            told = given[knob] if resolved is None and field in given else value
            known = learn(known, {field: told}, source)
        elif resolved is not None and defaults:
            known = learn(known, {field: value}, "vLLM's default here")
    priorities = None
    if workload is not None:
        priorities = any(kind.priority is not None for kind in workload.classes) or None
    more = {"priorities": priorities, "version": configuration.engine_version,
            "routing": configuration.routing}  # fmt: skip
    return learn(known, more, source)


def _resolved(configuration: Configuration) -> ResolvedKnobs | None:
    """None where model or GPU are not known or the twin does not know the combination."""
    try:
        device = configuration.device()
        if device is None:
            return None
        release = configuration.engine_version or DEFAULT_RELEASE
        return resolve(configuration.knobs, device, shape(configuration.model), release)
    except RidgelineError:
        return None


_LOG_FIELDS = {
    "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len", "enforce_eager": "eager", "block_size": "block_size",
    "kv_cache_dtype": "kv_dtype", "enable_prefix_caching": "prefix_caching",
    "scheduling_policy": "scheduling_policy", "api_server_count": "api_servers",
    "max_cudagraph_capture_size": "capture",
}  # fmt: skip


def with_log(known: Known, log: str) -> Known:
    """Add what an engine's start-up log tells (vLLM's; another one's tells nothing).

    Of several starts in one file the last one counts.
    """
    log = _last_start(log)
    told: dict[str, Any] = {
        field: value for name, field in _LOG_FIELDS.items()
        if (value := _argument(log, name)) is not None
    }  # fmt: skip
    start = read_start_up(log)
    told["kv_tokens"] = start.kv_tokens
    told.setdefault("max_num_batched_tokens", start.max_num_batched_tokens)
    version = re.search(r"(?:\bversion v?|LLM engine \(v)(\d+\.\d+\.\d+[^\s)]*)", log)
    longest = re.search(r"Initializing a V1 LLM engine.*?\bmax_seq_len=(\d+)", log)
    if longest is not None:  # what "auto" came to
        told["max_model_len"] = int(longest[1])
    told["version"] = None if version is None else version[1]
    if told.get("eager"):
        told["capture"] = 0
    elif "capture" not in told:
        told["capture"] = _captured(log)
    ranks = re.search(r"data_parallel_size['\"=: ]+(\d+)", log)
    if start.stats_off and told.get("api_servers") is None and ranks is not None:
        told["api_servers"] = int(ranks[1])
    known = replace(known, stats_off=known.stats_off or start.stats_off)
    return learn(known, told, LOG)


def _last_start(log: str) -> str:
    """From the last start on: its version is told in front of its arguments."""
    arguments = [m.start() for m in re.finditer(r"^.*non-default args:", log, re.MULTILINE)]
    if len(arguments) < 2:
        return log
    version = log.rfind("API server version", arguments[-2], arguments[-1])
    begin = log.rfind("\n", 0, version) + 1 if version >= 0 else arguments[-1]
    return log[begin:]


def _argument(log: str, name: str) -> Any:
    """An argument's value, from the line of non-default ones or from the engine's configuration."""
    arguments = re.search(r"non-default args: (\{.*\})", log)
    if arguments is not None:
        try:
            values = ast.literal_eval(arguments[1])
        except (ValueError, SyntaxError):
            values = {}
        if isinstance(values, Mapping) and name in values:
            return values[name]
    line = re.search(rf"Initializing a V1 LLM engine.*?\b{name}=([^,\s)]+)", log)
    if line is None:
        return None
    text = line[1].strip("'\"")
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text


def _captured(log: str) -> int | None:
    found = re.search(r"['\"]?max_cudagraph_capture_size['\"]?[=:] ?(\d+)", log)
    return None if found is None else int(found[1])


_POLICY = re.compile(
    r"(?<!scheduling[_ -])\bpolic(?:y|ies)\W{0,3}\s*[=:]?\s*['\"]?([A-Za-z_]+)", re.IGNORECASE
)
_ROUTER = re.compile(r"\brouter|\bgateway|load[ _-]?balanc", re.IGNORECASE)
# where routers ask engines for their load
_URL = (
    r"((?:https?://[^\s'\",;)\]/]+)?/(?:v1/)?(?:get_)?(?:server_)?loads?(?![\w/.-])[^\s'\",;)\]]*)"
)
_NOT_FOUND = re.compile(rf"{_URL}.*\b404\b")
_NOT_FOUND_FIRST = re.compile(rf"\b404\b.*?{_URL}")


def router_signs(log: str) -> RouterSigns | None:
    """What a router's log says of its load signal; None when it is no log of one that asks."""
    policy, failed = None, Counter[str]()
    for line in log.splitlines():
        named = _POLICY.search(line)
        if policy is None and named is not None:
            policy = named[1]
        url = _NOT_FOUND.search(line) or _NOT_FOUND_FIRST.search(line)
        if url is not None:
            failed[without_secrets(url[1].rstrip(":"))] += 1
    if policy is None and not (failed and _ROUTER.search(log)):
        return None
    return RouterSigns(policy, dict(failed))
