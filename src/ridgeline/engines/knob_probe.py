"""What an installed vLLM's own argument parser takes, printed as JSON behind a mark.

Ridgeline gives this text to the interpreter of the engine (`knobs.py`), on its standard input: it
uses nothing of Ridgeline, and only what Python 3.9 knows. With `identify` only the installation is
told (version, place, age of what the parser is made from), which needs no import of vLLM.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
from typing import Any

MARK = "RIDGELINE-KNOBS "
# Where `make_arg_parser` was and is: up to 0.21 and later ones.
PLACES = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args")
PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")
PLAIN = {"int": "int", "float": "float", "str": "text"}


def identity() -> "dict[str, Any]":
    """The installation: version, folder, and a number that changes when its parser may have."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.origin:
        raise SystemExit("there is no vllm in " + sys.executable)
    folder = os.path.dirname(os.path.realpath(spec.origin))
    newest = 0
    for part in ("engine", "config", "entrypoints", "utils"):
        for place, _, names in os.walk(os.path.join(folder, part)):
            for name in names:
                if name.endswith(".py"):
                    newest = max(newest, os.stat(os.path.join(place, name)).st_mtime_ns)
    return {"folder": folder, "python": sys.executable, "changed": newest}


def first_of(places: "tuple[str, ...]", name: str) -> Any:
    """The first of the modules that has the name."""
    for place in places:
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit("vllm has no " + name + " in " + " or ".join(places))


def kind_of(action: Any) -> str:
    """switch, flag, int, float, text, size (a whole number with k, K, m ...), json or other."""
    if type(action).__name__ == "BooleanOptionalAction":
        return "switch"
    if action.nargs == 0:
        return "flag"
    made = action.type
    if getattr(made, "__name__", "") == "_optional_type":
        made = inspect.getclosurevars(made).nonlocals.get("return_type", made)
    name = "str" if made is None else getattr(made, "__name__", "")
    if name in PLAIN:
        return PLAIN[name]
    if name.startswith("human_readable_int"):
        return "size-or-auto" if name.endswith("auto") else "size"
    if name in ("loads", "parse_dataclass", "json_loads"):
        return "json"
    return "other"


def row(action: Any) -> "dict[str, Any]":
    """One option as it goes to Ridgeline."""
    choices = action.choices
    return {
        "flags": list(action.option_strings),
        "name": action.dest,
        "kind": kind_of(action),
        "default": action.default if plain(action.default) else str(action.default),
        "choices": None if choices is None else [c for c in choices if plain(c)],
        "nargs": action.nargs if action.nargs != 0 else None,
        "help": " ".join((action.help or "").split())[:200],
    }


def plain(value: object) -> bool:
    """True for what JSON can hold as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


def main() -> None:
    """Print the identity, and the options unless only that is asked for."""
    sys.path[:] = [p for p in sys.path if p not in ("", os.getcwd())]
    found = identity()
    if "identify" not in sys.argv[1:]:
        import vllm  # noqa: PLC0415  seconds

        parser = first_of(PLACES, "make_arg_parser")(first_of(PARSERS, "FlexibleArgumentParser")())
        found["version"] = vllm.__version__
        found["options"] = [row(a) for a in parser._actions if a.option_strings]
    print("\n" + MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
