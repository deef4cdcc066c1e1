"""The words of messages: values, names and errors as a user would type or read them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` or the list of what there is."""
    known = sorted(known)
    listed = f"; there are: {', '.join(known)}" if known else "; it takes none"
    return near(word, known) or listed


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` or nothing."""
    by_sound = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_sound, n=1)
    return f"; did you mean {by_sound[close[0]]}?" if close else ""


def leaves(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each value in a config; an empty mapping is one."""
    if not isinstance(node, Mapping) or not node:
        yield place, node
        return
    for key, value in node.items():
        yield from leaves(value, f"{place}.{key}" if place else str(key))


def shown(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{k}:{shown(v)}' for k, v in value.items())}}}"
    return str(value)


def bare_off(value: Any) -> str:
    """What a user must know who wrote `off` or `on` in a YAML file."""
    if not isinstance(value, bool):
        return ""
    word = "on" if value else "off"
    return f' (YAML reads a bare {word} as {shown(value)}: write "{word}")'


def first_line(error: BaseException) -> str:
    """What an exception says, or else its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
