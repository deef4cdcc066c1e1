"""Type hints: the part of one that a value from YAML can meet, and values converted to it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

PLAIN = (int, float, str, bool, type(None), Path, list, dict, tuple)

SPOKEN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Path: "a path",
    list: "a list",
    tuple: "a list",
    dict: "keys and values",
}


def hints_of(target: Any) -> dict[str, Any]:
    """Hints by name; none where they name things that don't exist at run time."""
    try:
        return typing.get_type_hints(target)
    except Exception:
        return {}


def checkable(hint: Any) -> Any:
    """The part of a hint that can be checked; Any where nothing can be told (a callable)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN or origin is typing.Literal or dataclasses.is_dataclass(hint):
        return hint
    if origin is typing.Annotated:
        return checkable(arguments[0])
    if origin in (typing.Union, types.UnionType):
        # of float | Tensor, YAML can hold the float alone; an object of one's own stays open
        parts = [checkable(a) for a in arguments]
        known = tuple(p for p in parts if p is not Any)
        return typing.Union[known] if known else Any  # noqa: UP007
    inner = tuple(a if a is ... else checkable(a) for a in arguments)
    if origin is tuple and inner:
        return types.GenericAlias(tuple, inner)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(inner) == 2:
        return types.GenericAlias(dict, inner)
    if isinstance(origin, type) and issubclass(origin, Iterable) and len(inner) == 1:
        return types.GenericAlias(list, inner)
    return Any


def converted(value: Any, hint: Any) -> Any:
    """`value` strictly as its hint wants it, or as it is where the hint can't be checked.

    Raises msgspec.ValidationError.
    """
    try:
        return msgspec.convert(value, checkable(hint), strict=True, dec_hook=_path)
    except TypeError:  # a union that msgspec can't read, as of two lists
        return value


def spoken(hint: Any) -> str:
    """What to give: `a whole number or auto`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(spoken, arguments))
    if origin is tuple and ... not in arguments:
        return f"a list of {len(arguments)}: {', '.join(map(spoken, arguments))}"
    if origin in (list, tuple):
        return "a list" if arguments[0] is Any else f"a list, each {spoken(arguments[0])}"
    return SPOKEN.get(origin or hint, getattr(hint, "__name__", str(hint)))


def _path(hint: type, value: Any) -> Any:
    if hint is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{hint.__name__}`, got `{type(value).__name__}`")
