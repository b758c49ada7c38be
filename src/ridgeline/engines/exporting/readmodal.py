"""A Modal application's file, read without running it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import secret_name


@dataclass(frozen=True, slots=True)
class ModalFile:
    """What stands in it as literals. gpu: the name, gpus: how many a server has."""

    gpu: str | None
    gpus: int
    servers: int
    images: tuple[str, ...]
    command: tuple[str, ...]
    starts_command: bool
    startup_s: float | None
    variables: dict[str, Any] = field(default_factory=dict)
    leaks: tuple[str, ...] = ()


def read(text: str) -> ModalFile:
    """Read the file; raises BadInput when it is not Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise BadInput(f"not Python: {error.msg}", where=f"line {error.lineno}") from None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    given = {k.arg: _literal(k.value) for c in calls for k in c.keywords if k.arg}
    name, _, count = str(given.get("gpu") or "").partition(":")
    allowed = given.get("startup_timeout")
    return ModalFile(
        gpu=name or None,
        gpus=int(count or 1) if name else 0,
        servers=int(given.get("min_containers") or 1),
        images=tuple(str(_literal(c.args[0])) for c in calls
                     if _called(c) == "from_registry" and c.args),
        command=tuple(map(str, _assigned(tree, "COMMAND") or ())),
        starts_command=any(_called(c) in ("Popen", "run") and _has_command(c) for c in calls),
        startup_s=None if allowed is None else float(allowed),
        variables=_mappings(tree),
        leaks=tuple(_leaks(tree, calls)),
    )  # fmt: skip


def _leaks(tree: ast.Module, calls: list[ast.Call]) -> Iterator[str]:
    if any(_called(c) == "from_dict" for c in calls):
        yield "Secret.from_dict; use Secret.from_name"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key, value = _literal(node.targets[0].slice), _literal(node.value)
            if isinstance(key, str) and secret_name(key) and value:
                yield f"{key}, line {node.lineno}; refer to it by name"


def _mappings(tree: ast.Module) -> dict[str, Any]:
    """Everything in literal mappings with words for keys: variables stand in one of them."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        value = _literal(node) if isinstance(node, ast.Dict) else None
        if isinstance(value, dict):
            found |= {k: v for k, v in value.items() if isinstance(k, str)}
    return found


def _assigned(tree: ast.Module, name: str) -> Any:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return _literal(node.value)
    return None


def _has_command(call: ast.Call) -> bool:
    return bool(call.args) and any(
        isinstance(n, ast.Name) and n.id == "COMMAND" for n in ast.walk(call.args[0])
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
