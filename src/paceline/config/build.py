"""From a checked node to its live object."""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Mapping
from typing import Any

from paceline.config.hints import converted, hints_of
from paceline.config.words import first_line, near


def build(node: Mapping[str, Any], context: Any = None, **given: Any) -> Any:
    """The live object of a checked node: `open(context)` of a dataclass, else the target's call.

    No OmegaConf type reaches the object (a config node in a hot path is slow and breaks graphs).
    """
    target = locate(node["_target_"])
    if is_settings(target):
        chosen = settings(node, target)
        return chosen.open(context, **given) if hasattr(chosen, "open") else chosen
    from hydra.utils import instantiate

    return instantiate(dict(node), _convert_="all", **given)


def settings(node: Mapping[str, Any], cls: Any = None) -> Any:
    """The frozen dataclass of a checked node; nested settings become dataclasses too."""
    cls = cls or locate(node["_target_"])
    hints = hints_of(cls)
    fields = {k: v for k, v in node.items() if not str(k).startswith("_")}
    return cls(**{name: _field(value, hints.get(name, Any)) for name, value in fields.items()})


def is_settings(target: Any) -> bool:
    """Is this the class of a choice: a dataclass?"""
    return dataclasses.is_dataclass(target) and isinstance(target, type)


def locate(path: Any) -> Any:
    """The object at an import path; ImportError with a sentence when there is none."""
    words = path.split(".") if isinstance(path, str) else []
    if len(words) < 2 or not all(word.isidentifier() for word in words):
        raise ImportError("this is no import path; give module.Class")
    found: Any = _import(words[0])
    for n, word in enumerate(words[1:], 1):
        try:
            found = getattr(found, word)
        except AttributeError:
            where = ".".join(words[:n])
            if not isinstance(found, types.ModuleType):
                raise _none_there(where, word, found) from None
            found = _import(f"{where}.{word}", found)
    if not callable(found):
        raise ImportError(f"this is a {type(found).__name__}; give a class or function")
    return found


def _field(value: Any, hint: Any) -> Any:
    return settings(value, hint) if is_settings(hint) else converted(value, hint)


def _import(name: str, parent: Any = None) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        known = f"{parent.__name__}.{name.rpartition('.')[2]}" if parent else name
        if not isinstance(error, ModuleNotFoundError) or error.name not in (name, known):
            raise ImportError(
                f"its module raised {type(error).__name__} ({first_line(error)}); make "
                f"`import {name}` work"
            ) from error
    if parent is None:
        raise ImportError(
            f"there is no module {name}; give module.Class of something importable from where "
            "you started paceline, or set PYTHONPATH"
        )
    where, _, word = name.rpartition(".")
    raise _none_there(where, word, parent)


def _none_there(where: str, word: str, parent: Any) -> ImportError:
    public = [n for n in dir(parent) if n[0] != "_" and callable(getattr(parent, n, None))]
    way = near(word, public) or "; give module.Class"
    return ImportError(f"{where} has no {word}{way}")
