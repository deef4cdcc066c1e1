"""Events: from JSON to typed structs, strictly where it goes and tolerantly where it must."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

import msgspec

from paceline.diagnose.trace.columns import KINDS, Detail

Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Args(msgspec.Struct, gc=False):
    """The few arguments that the analysis reads."""

    correlation: Whole = 0
    external: Whole = msgspec.field(default=0, name="External id")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: Whole | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: Whole | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group_size: Whole | None = msgspec.field(default=None, name="Group size")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"[]"), name="Input type")


class Event(msgspec.Struct, gc=False):
    """One event. `ts` and `dur` in us; None where missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


_strict = msgspec.json.Decoder(list[Event])
_pieces = msgspec.json.Decoder(list[msgspec.Raw])
_one = msgspec.json.Decoder(Event)

BOUNDARY = re.compile(rb"\}\s*,\s*\{")
BROKEN = (ValueError, RecursionError, msgspec.DecodeError, UnicodeDecodeError)
LONGEST = 1 << 20
"""Bytes of one event at most, before what can't be parsed is taken for broken."""


def decode(array: bytes) -> list[Event] | None:
    """The events of a JSON array; None where it is no JSON. An event with odd types costs only
    itself the strict path."""
    try:
        return _strict.decode(array)
    except msgspec.ValidationError:
        pass
    except BROKEN:
        return None
    try:
        return [_event(bytes(piece), None) for piece in _pieces.decode(array)]
    except BROKEN:
        return None


def scan(data: bytes, final: bool) -> tuple[list[Event], int, int, bool]:
    """Event by event, over what is broken.

    Returns the events, how many bytes were used, how many pieces were no event, and whether the
    array's end was met. With `final` false the last, perhaps incomplete event is left for later.
    """
    text = data.decode("latin-1")  # a character a byte, so that positions agree
    decoder = json.JSONDecoder()
    events: list[Event] = []
    at, bad = 0, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            return events, at, bad, False
        if text[at] == "]":
            return events, at + 1, bad, True
        try:
            value, end = decoder.raw_decode(text, at)
        except BROKEN:
            if not final and len(text) - at < LONGEST:
                return events, at, bad, False
            found = BOUNDARY.search(data, at)
            if found is None and final:
                return events, at, bad, False
            bad += 1
            at = len(text) if found is None else found.end() - 1
            continue
        if isinstance(value, dict):
            events.append(_event(data[at:end], value))
        else:
            bad += 1
        at = end


def detail(event: Event) -> Detail:
    """Of a collective: its own metadata, else the shapes of what it was called with."""
    args = event.args or Args()
    elements, dtype = args.in_elements, args.dtype
    if elements is None:
        elements = _elements(args.dims)
        dtype = dtype or _first_type(args.types)
    name = args.collective or re.sub(r"^(nccl|gloo|rccl|ucc|mpi):", "", event.name)
    return Detail(name, elements, args.out_elements, dtype, args.group_size)


def _event(piece: bytes, parsed: dict[str, Any] | None) -> Event:
    """The strict way, else the tolerant one; `parsed` where its bytes are no UTF-8."""
    try:
        return _one.decode(piece)
    except BROKEN:
        pass
    try:
        value = json.loads(piece)
    except BROKEN:
        value = parsed
    return _loose(value) if isinstance(value, dict) else Event()


def _loose(value: dict[str, Any]) -> Event:
    args = value.get("args")
    ph, cat, name = (value.get(key) for key in ("ph", "cat", "name"))
    return Event(
        ph=ph if isinstance(ph, str) else "",
        cat=cat if isinstance(cat, str) and cat in KINDS else "",
        name=name if isinstance(name, str) else "" if name is None else str(name)[:200],
        pid=_key(value.get("pid", 0)),
        tid=_key(value.get("tid", 0)),
        ts=_number(value.get("ts")),
        dur=_number(value.get("dur")),
        args=_loose_args(args) if isinstance(args, dict) else None,
    )


def _loose_args(args: dict[str, Any]) -> Args:
    texts = {key: args.get(key) for key in ("Collective name", "dtype")}
    collective, dtype = (v if isinstance(v, str) else None for v in texts.values())
    return Args(
        correlation=_whole(args.get("correlation")) or 0,
        external=_whole(args.get("External id")) or 0,
        collective=collective,
        in_elements=_whole(args.get("In msg nelems")),
        out_elements=_whole(args.get("Out msg nelems")),
        dtype=dtype,
        group_size=_whole(args.get("Group size")),
        dims=_raw(args.get("Input Dims")),
        types=_raw(args.get("Input type")),
    )


def _raw(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except BROKEN:
        return msgspec.Raw(b"[]")


def _key(value: object) -> int | str:
    return value if isinstance(value, int | str) else str(value)[:200]


def _number(value: object) -> float | None:
    """A number, or text that is one; NaN for what is there and is none."""
    if value is None:
        return None
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _whole(value: object) -> int | None:
    number = _number(value)
    if number is None or not abs(number) < 2**63:
        return None
    return value if isinstance(value, int) else int(number)


def _elements(dims: msgspec.Raw) -> int | None:
    """Of the first input that is a tensor or a list of them."""
    try:
        shapes = msgspec.json.decode(dims)
    except BROKEN:
        return None
    counted = [_count(shape) for shape in shapes] if isinstance(shapes, list) else []
    return next((n for n in counted if n), None)


def _count(shape: object) -> int:
    if not isinstance(shape, list) or not shape:
        return 0
    if all(isinstance(n, int) and n >= 0 for n in shape):
        return math.prod(shape)
    return sum(_count(inner) for inner in shape)


def _first_type(types: msgspec.Raw) -> str | None:
    try:
        named = msgspec.json.decode(types)
    except BROKEN:
        return None
    named = named if isinstance(named, list) else []
    return next((t for t in named if isinstance(t, str) and t), None)
