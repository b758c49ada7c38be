"""Read the command line of a running vLLM server: which model, which options.

Accepts `vllm serve MODEL ...`, the module form (`python -m vllm.entrypoints.openai.api_server`) and
a container of the `vllm-openai` image, with what stands before them (environment, docker options).
Secrets are never kept: what follows --api-key and the like is dropped at once.
"""

import difflib
import json
import re
import shlex
import types
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any, Union, get_args, get_origin, get_type_hints

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.knobs import KNOB_NAMES, Knobs

WHERE = "--from"
MISSPELT = 0.9  # so alike is a mistake; other options of vLLM are less alike to a knob
_SECRET = re.compile(r"key|token$|secret|password", re.IGNORECASE)
_SHELL = {"&&", "||", "|", ";", "&", ">", ">>", "2>&1", "2>", "<"}
_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
              "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # fmt: skip
# Options whose numbers may carry a suffix: lower case decimal, upper case binary.
_SUFFIXED = ("max_model_len", "max_num_batched_tokens", "max_num_scheduled_tokens",
             "kv_cache_memory_bytes")  # fmt: skip
_SHORT = {
    "tp": "tensor_parallel_size",
    "dp": "data_parallel_size",
    "pp": "pipeline_parallel_size",
    "O": "optimization_level",
    "asc": "api_server_count",
    "ep": "enable_expert_parallel",
    "q": "quantization",
    "sc": "speculative_config",
}
_SPECULATIVE = {"spec_method": "method", "spec_model": "model",
                "spec_tokens": "num_speculative_tokens"}  # fmt: skip

# Options that say who may ask and what is logged, not how fast tokens come. Values they take.
_SWITCH_NAMES = """
    trust_remote_code enable_auto_tool_choice disable_log_requests disable_log_stats
    enable_log_requests enable_log_outputs disable_uvicorn_access_log allow_credentials
    enable_request_id_headers enable_server_load_tracking enable_force_include_usage
    disable_fastapi_docs enable_tokenizer_info_endpoint enable_ssl_refresh headless
    return_tokens_as_token_ids
"""
_VALUE_NAMES = """
    port host uds uvicorn_log_level root_path ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs
    download_dir revision code_revision tokenizer_revision tokenizer chat_template
    chat_template_content_format response_role tool_call_parser reasoning_parser tool_parser_plugin
    seed max_log_len hf_config_path generation_config data_parallel_address data_parallel_rpc_port
    master_addr master_port nnodes node_rank shutdown_timeout otlp_traces_endpoint log_config_file
"""
_HARMLESS_SWITCHES = frozenset(_SWITCH_NAMES.split())
_HARMLESS_VALUES = frozenset(_VALUE_NAMES.split())
_HARMLESS_LISTS = frozenset({"served_model_name", "api_key", "middleware", "allowed_origins",
                             "allowed_methods", "allowed_headers"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What a serve command says.

    `knobs` by name. `harmless`: options (as written, without secrets) that do not change the
    speed. `unknown`: options that Ridgeline does not know, as written, with a hint.
    """

    model: str
    knobs: dict[str, Any] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def parse_serve_command(text: str) -> ServeCommand:
    """Read a command. Raises BadInput for text that is no serve command and for bad values."""
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError as error:
        raise BadInput(f"cannot be split into words: {error}", where=WHERE) from None
    before, rest = _cut(words)
    reader = _Reader(rest)
    reader.read()
    if reader.model is None:
        raise BadInput("names no model", where=WHERE, fix="as in 'vllm serve MODEL --flag ...'")
    environment = tuple(_environment(word) for word in before if re.match(r"[A-Z_0-9]+=", word))
    return ServeCommand(
        reader.model, reader.knobs, (*environment, *reader.harmless), tuple(reader.unknown)
    )


def _cut(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the serve command, and its own arguments up to the next shell word."""
    start = None
    for i, word in enumerate(words):
        name = PurePath(word).name
        if name == "vllm" and words[i + 1 : i + 2] == ["serve"]:
            start = i + 2
        elif word.startswith("vllm.entrypoints.openai.api_server") or "vllm-openai" in name:
            start = i + 1
        if start is not None:
            break
    if start is None:
        raise BadInput(
            "is no vLLM serve command", where=WHERE, fix="give it as 'vllm serve MODEL --flag ...'"
        )
    end = next((i for i in range(start, len(words)) if words[i] in _SHELL), len(words))
    return words[: start - 1], words[start:end]


def _environment(word: str) -> str:
    """An environment setting; the value stays only for vLLM's own, harmless ones."""
    name, _, value = word.partition("=")
    shown = name.startswith("VLLM_") and not _SECRET.search(name)
    return f"{name}={value}" if shown else f"{name}=(not kept)"


class _Reader:
    """Goes through the arguments once, left to right."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.model: str | None = None
        self.knobs: dict[str, Any] = {}
        self.harmless: list[str] = []
        self.unknown: list[str] = []
        self._kinds = _knob_kinds()

    def read(self) -> None:
        """Sort every argument into model, knobs, harmless and unknown."""
        while self.words:
            word = self.words.pop(0)
            if _is_flag(word):
                self._flag(word)
            elif self.model is None:
                self.model = word
            else:
                # It might be anything, a key as well: it is counted, not shown.
                self.unknown.append("(a word that belongs to no option)")

    def _flag(self, word: str) -> None:
        flag, equals, given = word.partition("=")
        value = given if equals else None
        short = re.fullmatch(r"-(O)(\d)", flag)
        if short:
            flag, value = "-O", short[2]
        name, _, inner = flag.lstrip("-").partition(".")
        name = name.replace("-", "_")
        if not flag.startswith("--"):
            name = _SHORT.get(name, name)
        positive = name.removeprefix("no_")
        if name == "model":
            self.model = self._value(flag, value)
        elif inner and self._kinds.get(name) is dict:
            self._into_mapping(name, inner, self._value(flag, value))
        elif name in _SPECULATIVE:
            self._into_mapping("speculative_config", _SPECULATIVE[name], self._value(flag, value))
        elif inner or positive not in self._kinds:
            self._other(flag, positive, value)
        elif self._kinds[positive] is bool:
            self.knobs[positive] = self._switch(flag, name, positive, value)
        elif name != positive:
            self._other(flag, name, value)
        else:
            found = self._knob(flag, name, value)
            if found is not None:
                self.knobs[name] = found

    def _value(self, flag: str, value: str | None) -> str:
        if value is None:
            if not self.words or _is_flag(self.words[0]):
                raise BadInput(f"{flag} needs a value", where=WHERE)
            value = self.words.pop(0)
        return value

    def _values(self, first: str | None) -> list[str]:
        found = [] if first is None else [first]
        while self.words and not _is_flag(self.words[0]):
            found.append(self.words.pop(0))
        return found

    def _switch(self, flag: str, name: str, positive: str, value: str | None) -> bool:
        if value is None and self.words and self.words[0].lower() in ("true", "false"):
            value = self.words.pop(0)
        on = name == positive
        if value is None or value.lower() == "true":
            return on
        if value.lower() == "false":
            return not on
        raise BadInput(f"{flag} is a switch and takes no {value!r}", where=WHERE)

    def _knob(self, flag: str, name: str, value: str | None) -> Any:
        kind = self._kinds[name]
        if kind is tuple:
            return tuple(_whole(flag, name, part) for v in self._values(value)
                         for part in v.split(",") if part)  # fmt: skip
        text = self._value(flag, value)
        if kind is int:
            if name == "max_model_len" and text in ("auto", "-1"):
                self.unknown.append(f"{flag} {text} (give the length as a number)")
                return None
            return _whole(flag, name, text)
        if kind is float:
            try:
                return float(text)
            except ValueError:
                raise BadInput(f"{flag} needs a number, not {text!r}", where=WHERE) from None
        return _mapping(flag, text) if kind is dict else text

    def _into_mapping(self, name: str, key: str, text: str) -> None:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        place = self.knobs.setdefault(name, {})
        *parents, last = key.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value

    def _other(self, flag: str, name: str, value: str | None) -> None:
        """An option that is no knob: harmless or not known. Secrets are dropped here."""
        if name in _HARMLESS_SWITCHES:
            self.harmless.append(flag)
            return
        # As the engine's own parser does, a list takes all words up to the next option.
        takes_all = name in _HARMLESS_LISTS or _SECRET.search(name)
        values = self._values(value) if takes_all else [self._one(value)]
        shown = " ".join(shlex.quote(v) for v in values if v)
        if _SECRET.search(name):
            shown = "(not kept)"
        text = f"{flag} {shown}".strip()
        if name in _HARMLESS_VALUES | _HARMLESS_LISTS or _SECRET.search(name):
            self.harmless.append(text)
        else:
            if name == "config":
                text += " (the options in it are not read)"
            _refuse_misspelt(flag, name)
            hint = nearest(name, KNOB_NAMES).replace("_", "-").replace("'", "")
            self.unknown.append(text + hint)

    def _one(self, value: str | None) -> str:
        """At most one value of an option whose form is not known."""
        if value is None and self.words and not _is_flag(self.words[0]):
            return self.words.pop(0)
        return value or ""


def _refuse_misspelt(flag: str, name: str) -> None:
    """Raise BadInput for a knob that is cut short or misspelt: without it the study would be
    another one than what runs.
    """
    meant = [knob for knob in KNOB_NAMES if knob.startswith(name)]
    meant = meant or difflib.get_close_matches(name, KNOB_NAMES, n=1, cutoff=MISSPELT)
    if meant:
        best = min(meant, key=len).replace("_", "-")
        raise BadInput(
            f"{flag} is no option (did you mean --{best}?)", where=WHERE, fix="write it in full"
        )


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def _knob_kinds() -> dict[str, type]:
    """Knob name -> bool, int, float, str, tuple or dict."""
    hints = get_type_hints(Knobs)
    kinds: dict[str, type] = {}
    for knob in fields(Knobs):
        kind = hints[knob.name]
        if get_origin(kind) in (Union, types.UnionType):
            (kind,) = (a for a in get_args(kind) if a is not type(None))
        origin = get_origin(kind)
        kinds[knob.name] = kind if origin is None else tuple if origin is tuple else dict
    return kinds


def _whole(flag: str, name: str, text: str) -> int:
    """A whole number; 1k is 1000 and 1K is 1024 where vLLM reads it so."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text)
    if match and name in _SUFFIXED:
        number, unit = float(match[1]), _MULTIPLES[match[2]]
        if "." in match[1] and match[2].isupper():
            raise BadInput(f"{flag}: {text!r} is no whole number of bytes", where=WHERE)
        return round(number * unit)
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{flag} needs a whole number, not {text!r}", where=WHERE) from None


def _mapping(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{flag} needs JSON: {error}", where=WHERE) from None
    if not isinstance(value, dict):
        raise BadInput(f"{flag} needs a JSON object, not {text!r}", where=WHERE)
    return value
