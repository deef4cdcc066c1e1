"""What is wrong with a composed config: every problem, as sentences, not the first."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from paceline.config.build import is_settings, locate, settings
from paceline.config.hints import checkable, converted, hints_of, spoken
from paceline.config.words import bare_off, first_line, shown, suggest
from paceline.types import Run, Scaling, Sweep

GROUPS = (
    *("model", "data", "loss", "optimizer", "scheduler", "precision", "compile", "strategy"),
    *("activation_checkpointing", "comm_hook", "checkpoint", "profiler", "launch", "measure"),
    "diagnose",
)
"""Top-level nodes with a `_target_`: what a job is made of."""

PLAIN = {"run": Run, "scaling": Scaling, "sweep": Sweep}
"""Top-level nodes that are settings without a `_target_`."""

SCALARS = {"repeat": int, "tag": str | None, "strict": bool, "plan": bool, "detach": bool}

GIVEN = {"optimizer": ("params",), "scheduler": ("optimizer",)}
"""Arguments that paceline itself passes to a target that is no dataclass."""

MISSING = "???"

TRIED = (1, 0.5, 0, 8, 1_000_000, [1], "x")
"""Put in the place of a refused value, to see what else is refused."""


def check(config: Mapping[str, Any]) -> list[str]:
    """Every problem of a resolved config (plain containers), as sentences; empty if it can run."""
    known = [*GROUPS, *PLAIN, *SCALARS]
    missing = [key for key in known if key not in config]
    if len(missing) > len(GROUPS):  # a primary config that is not built on ours
        listed = ", ".join(missing)
        return [f"{listed}: missing; begin the defaults list of your config with `- config`"]
    problems = [
        f"{key}: missing, every job needs it; choose an option: {key}=OPTION"
        if key in GROUPS
        else f"{key}: missing, every job needs it; don't remove it"
        for key in missing
    ]
    for key, node in config.items():
        if key in SCALARS:
            problems += _check_value(key, node, SCALARS[key])
            if key == "repeat" and type(node) is int and node < 0:
                problems.append(f"repeat={node}: give 0 or more")
        elif key in PLAIN:
            problems += _check_fields(key, node, PLAIN[key])
        elif key in GROUPS:
            problems += _check_group(key, node)
        elif key == "experiment" and node is not None:
            problems.append(
                "experiment: its file sets no keys of a job; begin it with the line "
                "`# @package _global_`"
            )
        elif key not in ("hydra", "experiment"):
            value = "" if isinstance(node, Mapping) else f"={shown(node)}"
            problems.append(f"{key}{value}: no such key{suggest(str(key), known)}")
    return problems


def check_target(key: str, node: Mapping[str, Any], given: tuple[str, ...] = ()) -> list[str]:
    """Check one node with a `_target_`, and the nodes nested in it."""
    path = node["_target_"]
    if path == MISSING:
        return [f"{key}._target_: missing; give the import path of a class: {key}._target_=..."]
    try:
        target = locate(path)
    except ImportError as error:
        return [f"{key}._target_={shown(path)}: {error}"]
    fields = {k: v for k, v in node.items() if not str(k).startswith("_")}
    if is_settings(target):
        return _not_installed(key, node["_target_"], target) + _check_fields(key, fields, target)
    return _check_call(key, node, fields, target, given)


def _check_group(key: str, node: Any) -> list[str]:
    if not isinstance(node, Mapping):
        return [
            f"{key}={shown(node)}: a value stands in the place of a whole group{bare_off(node)}; "
            f"choose with {key}=OPTION, in a file with `- override /{key}: OPTION` in its "
            "defaults list"
        ]
    if "_target_" not in node:
        return [f"{key}: has no _target_; choose an option of the group: {key}=OPTION"]
    return check_target(key, node, GIVEN.get(key, ()))


def _not_installed(key: str, path: str, cls: Any) -> list[str]:
    """What `requires` of a choice's class names and is not there, without importing it.

    `requires: ClassVar[dict[str, str]]`: importable module -> the extra of paceline that brings it;
    for a class of your own, which has no such extra: what to give pip.
    """
    problems = []
    requires = getattr(cls, "requires", None)
    for module, source in requires.items() if isinstance(requires, Mapping) else ():
        if not _is_there(module):
            ours = cls.__module__.partition(".")[0] == __package__.partition(".")[0]
            install = f"pip install 'paceline[{source}]'" if ours else f"pip install {source}"
            problems.append(
                f"{key}._target_={path}: needs {module}, which is not installed; {install}, or "
                f"choose another {key}"
            )
    return problems


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a.b, when there is no a
        return False


def _check_fields(key: str, node: Any, cls: Any) -> list[str]:
    """Each field converted strictly to its hint; then, if all fit, the class's own value checks."""
    if not isinstance(node, Mapping):
        return [
            f"{key}={shown(node)}: a value stands in the place of several keys{bare_off(node)}; "
            f"set them one by one: {key}.KEY=..."
        ]
    hints = hints_of(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    found: dict[str, list[str]] = {}
    for name, value in node.items():
        where, hint = f"{key}.{name}", hints.get(name, Any)
        if name not in fields:
            found[name] = [f"{where}={shown(value)}: no such key{suggest(str(name), fields)}"]
        elif is_settings(hint):
            found[name] = _check_fields(where, value, hint)
        else:
            found[name] = _check_value(where, value, hint) or _check_nested(where, value)
    for name, field in fields.items():
        default = (field.default, field.default_factory)
        if name not in node and default == (dataclasses.MISSING, dataclasses.MISSING):
            way = f"give it a value: +{key}.{name}=..."
            found[name] = [f"{key}.{name}: missing, {cls.__name__} needs it; {way}"]
    usable = {name: node[name] for name, said in found.items() if not said}
    others = {name: hints.get(name, Any) for name in found if name in fields and name not in usable}
    return [p for said in found.values() for p in said] + [
        f"{key}{said}" for said in _refused_beside(usable, others, cls)
    ]


def _refused_beside(
    usable: Mapping[str, Any], others: Mapping[str, Any], cls: Any
) -> Iterable[str]:
    """What the class's own checks say of the usable values, whatever the others will be: these are
    given by their hints, and stood in for."""
    if not others:
        return _refused(usable, cls) or []
    best: list[str] | None = None
    for value in TRIED:
        stand_ins = {name: _stand_in(value, hint) for name, hint in others.items()}
        said = _refused({**usable, **stand_ins}, cls, tuple(others))
        if said is not None and (best is None or len(said) < len(best)):
            best = said
    return best or []


def _stand_in(value: Any, hint: Any) -> Any:
    """`value`, or else anything that the hint allows."""
    for other in (value, *TRIED, *typing.get_args(hint), False, {}):
        if not is_settings(hint) and not _check_value("", other, hint):
            return other
    return None


def _refused(node: Mapping[str, Any], cls: Any, healed: tuple[str, ...] = ()) -> list[str] | None:
    """What the class's own checks say of values. They stop at the first wrong one: others are
    tried in its place, and the best shows what is wrong beside it. None: this one is no better."""
    try:
        settings(node, cls)
        return []
    except Exception as error:
        said = first_line(error)
        if not isinstance(error, ValueError):
            said = f"{type(error).__name__}: {said}"
    named = re.match(r"\w+(?=\W)", said)
    name = named.group() if named else ""
    if name not in node or name in healed:
        return None if healed else [f": {cls.__name__} refuses its values ({said}); change them"]
    trials = (_refused({**node, name: value}, cls, (*healed, name)) for value in TRIED)
    return [f".{said}", *min((t for t in trials if t is not None), key=len, default=[])]


def _check_value(key: str, value: Any, hint: Any) -> list[str]:
    if value == MISSING:
        return [f"{key}: missing; give it a value: {key}=..."]
    if isinstance(value, float) and value != value:
        return [f"{key}=nan: this is no number; give one"]
    if type(value) is int and not -(2**63) <= value < 2**63:
        return [f"{key}={value}: this does not fit 64 bits; give a smaller number"]
    try:
        converted(value, hint)
    except msgspec.ValidationError as error:
        said = first_line(error).replace("`", "").replace(" - at $", " at ").lower()
        said = re.sub(r"^invalid enum value.*", "no such choice", said)
        way = spoken(checkable(hint))
        if way.startswith("text") and isinstance(value, int | float):
            way += f", as {key}='\"{value}\"'"
        off = bare_off(value) if "str" in said else ""
        return [f"{key}={shown(value)}: {said}; give {way}{off}"]
    return []


def _check_nested(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return check_target(key, value)
        return [p for k, v in value.items() for p in _check_nested(f"{key}.{k}", v)]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in _check_nested(f"{key}.{i}", v)]
    return [f"{key}: missing; give it a value: {key}=..."] if value == MISSING else []


def _check_call(
    key: str,
    node: Mapping[str, Any],
    fields: Mapping[str, Any],
    target: Any,
    given: tuple[str, ...],
) -> list[str]:
    """A target that is no dataclass: names against its signature, values against its hints."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return []  # a builtin without a signature
    called = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {k: p for k, p in parameters.items() if p.kind in called}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    name = getattr(target, "__name__", str(target))
    hints = hints_of(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    problems = [
        f"{key}._target_={node['_target_']}: {name} takes no {word}, which paceline passes; give "
        f"another {key}._target_"
        for word in given
        if word not in named and not open_ended
    ]
    for field, value in fields.items():
        where = f"{key}.{field}"
        if field in given:
            problems.append(f"{where}={shown(value)}: paceline passes this itself; leave it out")
        elif field not in named and not open_ended:
            known = [k for k in named if k not in given]
            way = suggest(str(field), known)
            way = "" if way in "".join(problems) else way  # the list of all, once
            problems.append(
                f"{where}={shown(value)}: {name} takes no such argument{way}; remove: ~{where}"
            )
        elif isinstance(value, Mapping) and "_target_" in value:
            problems += check_target(where, value)  # of any type: an object will be in its place
        else:
            hint = hints.get(field, _by_default(named.get(field)))
            problems += _check_value(where, value, hint) or _check_nested(where, value)
    if not {"_args_", "_partial_"} & set(node):
        problems += [
            f"{key}.{field}: missing, {name} needs it; give it a value: +{key}.{field}=..."
            for field, parameter in named.items()
            if parameter.default is parameter.empty and field not in (*fields, *given)
        ]
    return problems


def _by_default(parameter: inspect.Parameter | None) -> Any:
    """A hint for an argument that has none."""
    default = parameter.default if parameter else None
    return float | None if type(default) in (int, float) else Any
