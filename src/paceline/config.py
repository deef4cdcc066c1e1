"""Check a composed config, and build the objects it names. The only caller of Hydra's instantiate.

A choice is a frozen dataclass (its fields are its YAML in full, with no second default) or any
importable class, checked against its signature. `check` returns every problem, not the first.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.types import Run, Sweep

PLAIN = {"run": Run, "sweep": Sweep}
"""Top-level nodes that are settings without a `_target_`."""

SCALARS = {"repeat": int, "tag": str | None, "strict": bool, "plan": bool}

GIVEN = {"optimizer": ("params",), "scheduler": ("optimizer",)}
"""Arguments that paceline itself passes to a target that is no dataclass."""

MISSING = "???"


def check(config: Mapping[str, Any]) -> list[str]:
    """Every problem of a resolved config (plain containers), as sentences; empty if it can run."""
    problems: list[str] = []
    for key, node in config.items():
        if key == "hydra":
            continue
        if key in SCALARS:
            problems += _check_value(key, node, SCALARS[key])
        elif key in PLAIN:
            problems += _check_fields(key, node, PLAIN[key])
        elif isinstance(node, Mapping) and "_target_" in node:
            problems += check_target(key, node, GIVEN.get(key, ()))
        elif isinstance(node, Mapping):
            problems.append(f"{key}: has no _target_; choose an option of the group: {key}=...")
        else:
            problems.append(
                f"{key}={node!r}: this replaced the whole group by a value; write {key}=OPTION"
            )
    return problems


def check_target(key: str, node: Mapping[str, Any], given: tuple[str, ...] = ()) -> list[str]:
    """Check one node with a `_target_`, and the nodes nested in it."""
    path = node["_target_"]
    if path == MISSING:
        return [f"{key}._target_: missing; give the import path of a class or function"]
    try:
        target = locate(path)
    except ImportError as error:
        return [f"{key}._target_={path}: {error}"]
    fields = {k: v for k, v in node.items() if not k.startswith("_")}
    if dataclasses.is_dataclass(target) and isinstance(target, type):
        return _check_fields(key, fields, target)
    return _check_call(key, fields, target, given)


def locate(path: Any) -> Any:
    """The object at an import path; ImportError with a sentence when there is none."""
    if not isinstance(path, str) or not path:
        raise ImportError("is no import path")
    from hydra.utils import get_object

    try:
        found = get_object(path)
    except Exception as error:
        raise ImportError(_why_not_found(path, error)) from error
    if not callable(found):
        raise ImportError(f"is a {type(found).__name__}, not a class or function")
    return found


def settings(node: Mapping[str, Any], cls: type | None = None) -> Any:
    """The frozen dataclass of a checked node; nested settings become dataclasses too."""
    cls = cls or locate(node["_target_"])
    return msgspec.convert({k: v for k, v in node.items() if not k.startswith("_")}, cls)


def build(node: Mapping[str, Any], context: Any = None, **given: Any) -> Any:
    """The live object of a checked node: `open(context)` of a dataclass, else the target's call.

    No OmegaConf type reaches the object (a config node in a hot path is slow and breaks graphs).
    """
    target = locate(node["_target_"])
    if dataclasses.is_dataclass(target) and isinstance(target, type):
        chosen = settings(node, target)
        return chosen.open(context, **given) if hasattr(chosen, "open") else chosen
    from hydra.utils import instantiate

    return instantiate(dict(node), _convert_="all", **given)


def suggest(word: str, known: list[str] | tuple[str, ...]) -> str:
    """`; did you mean x?` or the list of what there is."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(known))}"


def _why_not_found(path: str, error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    if isinstance(cause, ModuleNotFoundError | AttributeError) or "Error loading" in said:
        return (
            f"cannot be imported ({said}); give module.Class of something importable "
            "from where you started paceline"
        )
    return f"its module raised {type(cause).__name__}: {said}"


def _check_fields(key: str, node: Any, cls: type) -> list[str]:
    """Each field converted strictly to its hint; then, if all fit, the class's own value checks."""
    if not isinstance(node, Mapping):
        return [f"{key}={node!r}: this replaced the whole node by a value; set its keys instead"]
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    problems = []
    for name in node:
        if name not in names:
            problems.append(f"{key}.{name}: no such key{suggest(name, names)}")
    for name in names:
        if name not in node:
            problems.append(f"{key}.{name}: missing; every key of {cls.__name__} must be set")
        elif dataclasses.is_dataclass(hints[name]):
            problems += _check_fields(f"{key}.{name}", node[name], hints[name])
        else:
            problems += _check_value(f"{key}.{name}", node[name], hints[name])
            problems += _check_nested(f"{key}.{name}", node[name])
    if not problems:
        try:
            msgspec.convert(dict(node), cls)
        except (ValueError, msgspec.ValidationError) as error:
            problems.append(f"{key}.{_first_line(error)}")
    return problems


def _check_value(key: str, value: Any, hint: Any) -> list[str]:
    if value == MISSING:
        return [f"{key}: missing; give it a value: {key}=..."]
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        off = " (YAML reads a bare off as false: quote it)" if value is False else ""
        return [f"{key}={_shown(value)}: {_plain(error)}; give {_hint_name(hint)}{off}"]
    except TypeError:
        return []  # a hint that msgspec can't check (a tensor, a callable): the target itself does
    return []


def _check_nested(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return check_target(key, value)
        return [p for k, v in value.items() for p in _check_nested(f"{key}.{k}", v)]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in _check_nested(f"{key}.{i}", v)]
    return []


def _check_call(
    key: str, fields: dict[str, Any], target: Any, given: tuple[str, ...]
) -> list[str]:
    """A target that is no dataclass: names against its signature, values against its hints."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return []  # a builtin without a signature
    parameters = {k: p for k, p in signature.parameters.items() if k != "self"}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {k: p for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    name = getattr(target, "__name__", str(target))
    problems = []
    for field, value in fields.items():
        if field in given:
            problems.append(f"{key}.{field}: paceline passes this itself; leave it out")
        elif field in named:
            problems += _check_argument(f"{key}.{field}", value, named[field], target)
            problems += _check_nested(f"{key}.{field}", value)
        elif not open_ended:
            known = [k for k in named if k not in given]
            problems.append(f"{key}.{field}: {name} takes no such argument{suggest(field, known)}")
    for field, parameter in named.items():
        needed = parameter.default is parameter.empty and field not in fields
        if needed and field not in given:
            problems.append(f"{key}.{field}: missing; {name} needs it: +{key}.{field}=...")
    return problems


def _check_argument(key: str, value: Any, parameter: inspect.Parameter, target: Any) -> list[str]:
    try:
        owner = target.__init__ if isinstance(target, type) else target
        hint = typing.get_type_hints(owner).get(parameter.name, Any)
    except Exception:  # hints that name things which don't exist at run time
        hint = Any
    try:
        problems = _check_value(key, value, hint)
    except Exception:  # a hint that msgspec refuses to look at
        problems = []
    default = parameter.default
    if not problems and isinstance(default, float | int) and isinstance(value, str | list | dict):
        kind = type(default).__name__
        problems.append(f"{key}={_shown(value)}: give a {kind}, as in {key}={default}")
    if not problems and value == MISSING:
        problems.append(f"{key}: missing; give it a value: {key}=...")
    return problems


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(error: Exception) -> str:
    return _first_line(error).replace("`", "").lower()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _hint_name(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(str(a) for a in typing.get_args(hint))
    if origin is typing.Union or type(hint).__name__ == "UnionType":
        return " or ".join(_hint_name(a) for a in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if origin in (list, tuple):
        inner = typing.get_args(hint)
        return f"a list of {_hint_name(inner[0])}" if inner else "a list"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
