"""Read a study file: YAML in, a frozen `Study` out, and one clear line when something is wrong.

Every error names the file, the line and the key, and says what was expected there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.baseurl import checked_url
from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.numerals import counted
from ridgeline.workload.study import Study

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

Path_ = tuple[str | int, ...]
MOST_BYTES = 10_000_000  # a study file is written by hand; more is another kind of file


def load_study(path: str | Path) -> Study:
    """Read and check a study file. Raises BadInput; the first problem is named with its line."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput("is too large for a study file", where=str(path))
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise BadInput("there is no such file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=str(path)) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    return parse_study(text, str(path), folder=path.parent)


def parse_study(
    text: str, name: str = "study file", folder: Path | None = None, *, stored: bool = False
) -> Study:
    """Build a Study from a file's text; `name` goes into errors.

    What is given relative (a model "./my-model", a trace) is taken relative to `folder`. stored:
    the text is a copy beside its results, and the files that it names need not be there any more.
    """
    from ridgeline.workload.studybuild import build_study  # noqa: PLC0415  pydantic is heavy

    source = Source(name, *_compose(text, name), folder or Path(), stored)
    if not isinstance(source.body, dict):
        raise BadInput("must be a mapping of keys, as in 'name: my-study'", where=name)
    return build_study(source, text, folder or Path())


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file: its values, and the nodes that know the lines.

    stored: a copy beside its results, which is read without the files that it names.
    """

    name: str
    body: Any
    node: "yaml.Node | None"
    folder: Path = Path()
    stored: bool = False

    def error(
        self, path: Path_, what: str, fix: str | None = None, *, key: bool = False
    ) -> BadInput:
        """An error at `path` (a key path), with its line. `key`: at the key, not at its value."""
        return BadInput(what, where=f"{self.name}:{self.line(path, key=key)}", fix=fix)

    def check_url(self, path: Path_, url: str) -> None:
        """Raises BadInput where the URL at `path` is none, or holds a password.

        A stored copy is only read: nothing is sent there.
        """
        if not self.stored:
            checked_url(url, f"{self.name}:{self.line(path)}")

    def line(self, path: Path_, *, key: bool = False) -> int:
        """Line (from 1) of the deepest node on the path that exists."""
        import yaml  # noqa: PLC0415

        node, line = self.node, 1
        for i, step in enumerate(path):
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step]
                line = node.start_mark.line + 1
                continue
            if not isinstance(node, yaml.MappingNode):
                break
            pair = next((p for p in node.value if p[0].value == str(step)), None)
            if pair is None:
                break
            last = i == len(path) - 1
            line = (pair[0] if last or key else pair[1]).start_mark.line + 1
            node = pair[1]
        return line


def _compose(text: str, name: str) -> "tuple[Any, yaml.Node | None]":
    """Values and nodes of a YAML text; refuses what YAML itself would accept: double keys."""
    import yaml  # noqa: PLC0415

    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise BadInput("is empty", where=name, fix="`ridgeline init` writes one to start from")
        for key in _doubles(node):
            raise BadInput(
                f"the key {key.value!r} is given twice",
                where=f"{name}:{key.start_mark.line + 1}",
                fix="keep one of them",
            )
        return loader.construct_document(node), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        what = " ".join(filter(None, (error.context, error.problem)))
        raise BadInput(f"is not valid YAML: {what}", where=f"{name}{line}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"is not valid YAML: {error}".splitlines()[0], where=name) from None
    except RecursionError:
        raise BadInput("is nested too deeply", where=name) from None
    finally:
        if loader is not None:
            loader.dispose()


def _doubles(node: "yaml.Node") -> "Iterator[yaml.Node]":
    """Keys that stand twice in one mapping."""
    import yaml  # noqa: PLC0415

    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key.value, str) and key.value in seen:
                yield key
            if isinstance(key.value, str):
                seen.add(key.value)
            yield from _doubles(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _doubles(item)


def key_text(path: Path_) -> str:
    """A key path as people write it: experiments[1].set.max_num_seqs."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def explain(
    error: "ErrorDetails", root: "type[BaseModel]", prefix: Path_
) -> tuple[Path_, str, bool]:
    """What is wrong in plain words: the path, the words, and whether the key itself is wrong.

    `root` describes what stands at `prefix`; the path that is returned is relative to it.
    """
    from ridgeline.workload.studymodel import part_at  # noqa: PLC0415

    path: Path_ = tuple(error["loc"])
    kind, key = error["type"], key_text(prefix + path)
    parent = part_at(root, path[:-1])
    known = {} if parent is None else {f.alias or n: f for n, f in parent.model_fields.items()}
    if kind == "extra_forbidden":
        hint = nearest(str(path[-1]), known)
        inside = key_text(prefix + path[:-1])
        place = f" in {inside}" if inside else ""
        if not hint:
            hint = f" (known here: {', '.join(known)})" if len(known) <= 20 else ""
        if inside == "baseline" or inside.endswith(".set"):
            flag = "--" + str(path[-1]).replace("_", "-")
            hint += (
                f"; what is an option of the engine and no knob: launch: {{arguments: [{flag}]}}"
            )
        return path, f"unknown key {str(path[-1])!r}{place}{hint}", True
    if kind == "missing":
        return path, f"the key {key!r} is missing", True
    field = known.get(str(path[-1]))
    unit = None
    if field is not None and isinstance(field.json_schema_extra, Mapping):
        unit = field.json_schema_extra.get("unit")
    limits = _limits(field.metadata) if field is not None else ""
    wanted = _wanted(kind, error.get("ctx", {}))
    value = error.get("input")
    shown = repr(value) if isinstance(value, str | int | float) else "something else"
    for type_, word in ((list, "a list"), (dict, "a mapping"), (type(None), "nothing")):
        shown = word if isinstance(value, type_) else shown
    of_unit = f" ({unit})" if unit else ""
    hint = ""
    if kind == "literal_error" and isinstance(value, str):
        hint = nearest(value, _choices(error.get("ctx", {})))
    return path, f"{key} must be {wanted}{limits}{of_unit}, not {shown}{hint}", False


def _limits(metadata: list[Any]) -> str:
    """The range of a field in words."""
    words = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [
        f"{sign} {limit:g}" if abs(limit) < 1e6 else f"{sign} {counted(limit)}"
        for item in metadata
        for name, sign in words.items()
        if (limit := getattr(item, name, None)) is not None
    ]
    return f" {' and '.join(found)}" if found else ""


_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "a name of letters, digits, '.', '_' and '-' (64 at most)",
    "string_too_short": "a text that is not empty",
}


def _wanted(kind: str, context: Mapping[str, Any]) -> str:
    """The expected kind of value in words."""
    if kind == "literal_error":
        choices = _choices(context)
        return f"one of {', '.join(choices)}" if len(choices) <= 12 else "a known name"
    if kind == "too_short":
        return f"a list of at least {context.get('min_length')}"
    if kind == "too_long":
        return f"a list of at most {context.get('max_length')}"
    if kind.startswith(("greater_than", "less_than")):
        return "a number"
    return _KINDS.get(kind, "valid")


def _choices(context: Mapping[str, Any]) -> list[str]:
    """The accepted words of a choice, from pydantic's "'a', 'b' or 'c'"."""
    text = str(context.get("expected", "")).replace(" or ", ", ")
    return [part.strip("'") for part in text.split(", ")]


def difference_text(before: Any, after: Any) -> str:
    """What changed between two frozen values, as "users 400 -> 1000, seed 1 -> 2"."""
    flat_before, flat_after = dict(_flat(asdict(before))), dict(_flat(asdict(after)))
    names = [*flat_before, *(n for n in flat_after if n not in flat_before)]
    changes = []
    for name in names:
        old, new = flat_before.get(name), flat_after.get(name)
        if old != new:
            changes.append(f"{name} {_shown(old)} -> {_shown(new)}")
    return ", ".join(changes)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and prefix.count(".") < 3:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: object) -> str:
    """A value as it stands in a study file."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " + ".join(_part_shown(part) for part in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _part_shown(part: object) -> str:
    """One of several parts; of a class of requests its name and share, not all its fields."""
    if isinstance(part, Mapping) and "name" in part and "share" in part:
        return f"{part['name']} {part['share']:.0%}"
    return _shown(part)
