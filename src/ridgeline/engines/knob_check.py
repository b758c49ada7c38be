"""Options held against an installation's catalogue, as its own argparse would take them."""

import difflib
import functools
import json
import re
from collections.abc import Mapping, Sequence

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.engines.knobs import Catalogue, NotAsked, Option, Questions, catalogue, questions_for
from ridgeline.engines.launching import asking_elsewhere
from ridgeline.engines.vllm_args import serve_arguments

_SIZE = r"\d+(\.\d+)?[kKmMgGtT]?"
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "size": "a whole number (64M is 64 times 1024 times 1024, 64m is 64 million)",
    "size-or-auto": "a whole number or auto",
    "json": "JSON",
}


def check_against_engine(configuration: Configuration, command: Sequence[str]) -> str | None:
    """Hold a configuration's options against the vLLM that `command` starts.

    Raises BadInput, whose `where` is a knob or a key of the study file, for an option or a value
    that this version does not take. Returns the reason where the engine could not be asked.
    """
    launch = configuration.launch or Launch()
    if launch.host is not None or launch.image is not None:
        ask, identify = asking_elsewhere(launch, command, gpu=configuration.gpu is not None)
        asked: Questions | NotAsked = Questions(identify, ask, f"{launch.host} {launch.image}")
        environment: Mapping[str, str] = {}
    else:
        environment = {n: v for n, v in launch.environment.items() if v is not None}
        asked = questions_for(command, environment)
    known = asked if isinstance(asked, NotAsked) else _once(asked, tuple(environment.items()))
    if isinstance(known, NotAsked):
        return known.why
    wanted = configuration.engine_version
    if wanted is not None and wanted.split("+")[0] != known.version.split("+")[0]:
        raise BadInput(
            f"this is vLLM {known.version} ({known.folder}), not {wanted}",
            where="engine_version",
            fix="give the version that is installed, or the command of the other installation",
        )
    for name, value in configuration.knobs.given().items():
        _refuse(check_words(serve_arguments(Knobs(**{name: value})), known), name)
    own = _own_words(command)
    _refuse(check_words(own, known), "launch.command")
    words = [*own, *launch.arguments]
    _refuse(check_words(words, known), "launch.arguments")
    return None


@functools.cache
def _once(asked: Questions, environment: tuple[tuple[str, str], ...]) -> Catalogue | NotAsked:
    """The catalogue, looked up once however many experiments a study has."""
    return catalogue(asked, dict(environment))


def _refuse(problem: str | None, where: str) -> None:
    if problem is not None:
        raise BadInput(problem, where=where, fix="`ridgeline knobs` shows what this engine takes")


def _own_words(command: Sequence[str]) -> Sequence[str]:
    """What follows `vllm serve` or `python -m vllm...` in a launch command."""
    for i, word in enumerate(command):
        if word == "serve" or (i and command[i - 1] == "-m"):
            return command[i + 1 :]
    return ()


def check_words(words: Sequence[str], known: Catalogue) -> str | None:
    """What is wrong with command-line words, in one line, or None."""
    rest, model, before = list(words), None, None
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            if model is not None:
                return f"vLLM {known.version}: {_too_many(word, model, before)}"
            model, before = word, None
            continue
        before = None
        flag, has_value, value = _split(word)
        option = _option(flag, known)
        if option is None:
            return f"vLLM {known.version} has no option {flag}{_near(flag, known)}"
        if "." in flag:  # a key inside a JSON option; any value
            if option.kind not in ("json", "other"):
                whole = flag.split(".", maxsplit=1)[0]
                return f"vLLM {known.version}: {whole} is no JSON option and has no key {flag}"
            if not has_value and rest:
                rest.pop(0)
            continue
        values = [value] if has_value else []
        if not has_value:
            values = _take(option, rest)
        problem = _wrong_count(option, values, explicit=has_value) or next(
            filter(None, (_wrong_value(option, text) for text in values)), None
        )
        if problem is not None:
            return f"vLLM {known.version}: {flag} {problem}"
        before = flag if option.kind in ("switch", "flag") else None
    return None


def _too_many(word: str, model: str, switch: str | None) -> str:
    """About a word that would be a second model; `switch`: the option just before it, if any."""
    if switch is not None:
        return f"{switch} is a switch and takes no value ({word!r} follows it)"
    return f"one model is served, and beside {model!r} there is {word!r}"


def _split(word: str) -> tuple[str, bool, str]:
    """Flag, whether a value is written with it, and that value; vLLM also knows -O3."""
    if word.startswith("-O") and len(word) > 2:
        return "-O", True, word[2:].removeprefix("=")
    flag, sign, value = word.partition("=")
    return flag, bool(sign), value


def _option(flag: str, known: Catalogue) -> Option | None:
    """The option of a flag, as argparse finds it: exact, or the beginning of only one."""
    flags = known.flags
    if not flag.startswith("--"):
        if (whole := flag.split(".", maxsplit=1)[0]) in flags:  # -cc.mode
            return flags[whole]
        if flag == "-O":
            return flags.get("--optimization-level")
        return next((o for f, o in flags.items() if len(f) == 2 and flag.startswith(f)), None)
    name = flag.split(".", maxsplit=1)[0].removesuffix("+").replace("_", "-")
    if name in flags:
        return flags[name]
    begun = {o.name: o for f, o in flags.items() if f.startswith(name)}
    return next(iter(begun.values())) if len(begun) == 1 else None


def _take(option: Option, rest: list[str]) -> list[str]:
    """The values that follow a flag; they are taken off `rest`."""
    if option.kind in ("switch", "flag"):
        return []
    many = option.nargs in ("+", "*")
    taken: list[str] = []
    while rest and not _is_flag(rest[0]) and (many or not taken):
        taken.append(rest.pop(0))
    return taken


def _wrong_count(option: Option, values: Sequence[str], *, explicit: bool) -> str | None:
    if option.kind in ("switch", "flag"):
        return "is a switch and takes no value" if explicit else None
    if not values and option.nargs not in ("?", "*"):
        return "needs a value"
    return None


def _wrong_value(option: Option, text: str) -> str | None:
    if text in ("", "None") and option.default is None:
        return None
    if not _fits(option.kind, text):
        return f"takes {_WORDS[option.kind]}, not {text!r}"
    if option.choices is not None and text not in map(str, option.choices):
        listed = [str(c) for c in option.choices if c is not None]
        near = difflib.get_close_matches(text, listed, n=3, cutoff=0.5)
        shown = ", ".join(near or listed[:8]) + ("" if near or len(listed) <= 8 else ", ...")
        return f"does not know {text!r} ({'nearest: ' if near else 'one of '}{shown})"
    return None


def _fits(kind: str, text: str) -> bool:
    try:
        if kind == "int":
            int(text)
        elif kind == "float":
            float(text)
        elif kind == "json":
            json.loads(text)
        elif kind.startswith("size"):
            auto = kind == "size-or-auto" and text in ("auto", "-1")
            return auto or re.fullmatch(_SIZE, text) is not None
    except ValueError:
        return False
    return True


def _near(flag: str, known: Catalogue) -> str:
    """Up to three flags that are spelled like it."""
    long = [f for f in known.flags if f.startswith("--") and not f.startswith("--no-")]
    near = difflib.get_close_matches(flag.replace("_", "-"), long, n=3, cutoff=0.6)
    return f" (nearest: {', '.join(near)})" if near else ""


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None
