"""From a file to columns, block by block: never the whole text in memory at once."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.diagnose.trace.columns import KINDS, Detail, Ints, Notes, Trace, communicates
from paceline.diagnose.trace.events import BOUNDARY, BROKEN, Event, decode, detail, scan

BLOCK = 1 << 20
"""Bytes of text decoded at once."""

HEAD = 16 << 20
"""Bytes looked through for the list of events."""

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
TALK = ("nccl:", "rccl:", "gloo:", "ucc:", "mpi:", "c10d::", "record_param_comms")
"""How host events begin that tell of a collective."""

LARGEST_TS_US = 2.0**52
LARGEST_DUR_US = 2.0**41  # 25 days: sums stay exact, in whole ns in 64 bits
FILE_RANK = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)


class NotATraceError(Exception):
    """The file holds no list of trace events; the message says what it holds."""


def read(path: Path) -> Trace:
    """The trace in a file: JSON, plain or gzip (by its first bytes). OSError where the file can't
    be read, NotATraceError where it is no trace. A damaged one is read as far as it goes, and
    `notes` says so."""
    notes = Notes()
    document = _Document(_blocks(path, notes), notes)
    table = _Table()
    for events in document.events():
        table.add(events, notes)
    return table.finish(path, document.facts, notes)


def _blocks(path: Path, notes: Notes) -> Iterator[bytes]:
    with path.open("rb") as file:
        first = file.read(2)
        file.seek(0)
        if first != b"\x1f\x8b":
            while block := file.read(BLOCK):
                yield block
            return
        unzip, data = zlib.decompressobj(31), b""
        while True:
            data = data or file.read(BLOCK // 4)
            if not data:
                notes.cut = None if unzip.eof else "its gzip stream ends early"
                return
            try:
                if unzip.eof:  # files joined by `cat`; zeros at the end are padding
                    data = data.lstrip(b"\0")
                    if not data:
                        continue
                    unzip = zlib.decompressobj(31)
                block = unzip.decompress(data, BLOCK)
            except zlib.error as error:
                notes.cut = f"its gzip stream is damaged: {error}"
                return
            data = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
            if block:
                yield block


class _Document:
    """The events in order; `facts`: what stands beside the list of events, once read."""

    def __init__(self, blocks: Iterator[bytes], notes: Notes) -> None:
        self._blocks, self._notes = blocks, notes
        self.facts: dict[str, Any] = {}

    def events(self) -> Iterator[list[Event]]:
        rest, bare = self._open()
        ended = False
        for block in self._blocks:
            events, rest, ended = self._take(rest, block)
            yield events
            if ended:
                break
        if not ended:
            events, rest, ended = self._finish(rest)
            yield events
        if ended and not bare:
            rest = b"".join([rest, *self._blocks])
            self.facts |= _object(b"{" + rest.lstrip().removeprefix(b","))
        if not ended and self._notes.cut is None:
            self._notes.cut = "its list of events has no end"

    def _open(self) -> tuple[bytes, bool]:
        """Behind the `[` of the events, and whether the whole document is a bare list."""
        head = b""
        for block in self._blocks:
            head = (head + block).removeprefix(b"\xef\xbb\xbf").lstrip()
            if head[:1] == b"[":
                return head[1:], True
            if head[:1] not in (b"{", b""):
                break
            found = EVENTS.search(head)
            if found is not None:
                self.facts = _object(head[: found.start()].rstrip().rstrip(b",") + b"}")
                return head[found.end() :], False
            if len(head) > HEAD:
                break
        if not head:
            raise NotATraceError(
                "it is empty" + (f" ({self._notes.cut})" if self._notes.cut else "")
            )
        kind = "has no traceEvents" if head[:1] == b"{" else "is no JSON"
        cut = f", as far as it can be read ({self._notes.cut})" if self._notes.cut else ""
        raise NotATraceError(f"it {kind}{cut}")

    def _take(self, rest: bytes, block: bytes) -> tuple[list[Event], bytes, bool]:
        """Whole events from the front, the rest, and whether the list ended."""
        start = max(0, len(block) - (1 << 16))
        for found in list(BOUNDARY.finditer(block, start))[:-4:-1]:
            # a prefix that ends inside of an event is no valid array: no cut can be a wrong one
            whole = memoryview(block)[: found.start() + 1]
            events = decode(b"".join((b"[", rest, whole, b"]")))
            if events is not None:
                return events, block[found.end() - 1 :], False
        return self._scan(rest + block, final=False)

    def _finish(self, data: bytes) -> tuple[list[Event], bytes, bool]:
        end = len(data)
        for _ in range(16):
            end = data.rfind(b"]", 0, end)
            if end < 0:
                break
            events = decode(b"[" + data[: end + 1])
            if events is not None:
                return events, data[end + 1 :], True
        return self._scan(data, final=True)

    def _scan(self, data: bytes, final: bool) -> tuple[list[Event], bytes, bool]:
        events, used, bad, ended = scan(data, final)
        self._notes.unreadable += bad
        return events, data[used:], ended


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except BROKEN:
        return {}
    return value if isinstance(value, dict) else {}


class _Numbers(dict[Any, int]):
    """A key's number, in order of first sight."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Table:
    """Columns that grow by a block of events at a time."""

    def __init__(self) -> None:
        self._names, self._threads = _Numbers(), _Numbers()
        self._blocks: list[list[Any]] = []
        self._details: dict[int, Detail] = {}
        self._talks: list[bool] = []
        self._rows = 0

    def add(self, events: list[Event], notes: Notes) -> None:
        notes.leave_out("begin and end events, which Kineto doesn't write", _open_ended(events))
        taken = [e for e in events if e.ph == "X" and e.cat in KINDS]
        ts = np.array([e.ts for e in taken], np.float64)  # None becomes NaN
        dur = np.array([e.dur for e in taken], np.float64)
        held = self._held(ts, dur, notes)
        if not held.all():
            taken = [e for e, good in zip(taken, held.tolist(), strict=True) if good]
            ts, dur = ts[held], dur[held]
        if not taken:
            return
        names, threads = self._names, self._threads
        name = np.array([names[e.name] for e in taken], np.int32)
        thread = np.array([threads[e.pid, e.tid] for e in taken], np.int32)
        kind = np.array([KINDS[e.cat] for e in taken], np.int8)
        correlation = np.array([e.args.correlation if e.args else 0 for e in taken], np.int64)
        external = np.array([e.args.external if e.args else 0 for e in taken], np.int64)
        self._note_talk(taken, name)
        self._blocks.append([kind, name, thread, ts, dur, correlation, external])
        self._rows += len(taken)

    @staticmethod
    def _held(ts: Any, dur: Any, notes: Notes) -> Any:
        timed = (np.abs(ts) <= LARGEST_TS_US) & (np.abs(dur) <= LARGEST_DUR_US)
        notes.leave_out("their time or duration is missing or no usable number", (~timed).sum())
        notes.leave_out("their duration is negative", (timed & (dur < 0)).sum())
        return timed & (dur >= 0)

    def _note_talk(self, taken: list[Event], name: Any) -> None:
        known = list(self._names)[len(self._talks) :]
        self._talks += [text.startswith(TALK) or communicates(text) for text in known]
        for i in np.flatnonzero(np.array(self._talks, bool)[name]).tolist():
            self._details[self._rows + i] = detail(taken[i])

    def finish(self, path: Path, facts: dict[str, Any], notes: Notes) -> Trace:
        kinds = (np.int8, np.int32, np.int32, np.float64, np.float64, np.int64, np.int64)
        joined = [
            np.concatenate([b[i] for b in self._blocks]) if self._blocks else np.empty(0, t)
            for i, t in enumerate(kinds)
        ]
        self._blocks.clear()
        kind, name, thread, ts, dur, correlation, external = joined
        start, end = _in_ns(ts, dur)
        names = list(self._names)
        order = _order(start, end, external, name, names)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rank, rank_from = _whose(path, facts)
        world_size, group_size = _sizes(facts)
        return Trace(
            path=str(path),
            rank=rank,
            rank_from=rank_from,
            world_size=world_size,
            group_size=group_size,
            kind=kind[order],
            name=name[order],
            thread=thread[order],
            start=start[order],
            end=end[order],
            correlation=correlation[order],
            names=names,
            threads=list(self._threads),
            details={int(place[row]): found for row, found in self._details.items()},
            notes=notes.sentences(),
        )


def _open_ended(events: list[Event]) -> int:
    return [e.ph for e in events].count("B")


def _in_ns(ts: Any, dur: Any) -> tuple[Ints, Ints]:
    """Whole ns since the first event. Subtracted first: us since 1970 have no digits left."""
    since = ts - (ts.min() if len(ts) else 0.0)
    start = np.rint(since * 1000).astype(np.int64)
    return start, start + np.rint(dur * 1000).astype(np.int64)


def _order(start: Ints, end: Ints, external: Any, name: Any, names: list[str]) -> Ints:
    """By start, the longer first; equal ones as they were opened, so that a file whose events are
    in another order gives the same answer."""
    alphabet = np.empty(len(names), np.int64)
    alphabet[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    order: Ints = np.lexsort((alphabet[name], external, -end, start))
    return order


def _whose(path: Path, facts: dict[str, Any]) -> tuple[int | None, str]:
    """Rank, and where it is from."""
    rank = _told(facts).get("rank")
    if type(rank) is int and rank >= 0:
        return rank, "distributedInfo"
    named = FILE_RANK.search(path.name)
    if named:
        return int(named[1]), "the file's name"
    return None, "neither distributedInfo nor the file's name has one"


def _sizes(facts: dict[str, Any]) -> tuple[int | None, int | None]:
    """Of the world, and of every process group if all have the same."""
    told = _told(facts)
    world_size, groups = told.get("world_size"), told.get("pg_config")
    groups = groups if isinstance(groups, list) else []
    sizes = [g.get("pg_size") if isinstance(g, dict) else None for g in groups]
    alike = sizes[0] if sizes and all(s == sizes[0] for s in sizes) else None
    return _positive(world_size), _positive(alike)


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    told = facts.get("distributedInfo")
    return told if isinstance(told, dict) else {}


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
