"""Which host event ran inside which, a thread at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.diagnose.trace.columns import Ints, Trace


@dataclass(frozen=True)
class Nest:
    """`rows` of a trace and, for each, the place in `rows` of the one that it ran in; -1: none."""

    rows: Ints
    parent: Ints

    def own_ns(self, trace: Trace) -> Ints:
        """[rows] duration without what ran inside."""
        took = trace.end[self.rows] - trace.start[self.rows]
        own = took.copy()
        inner = np.flatnonzero(self.parent >= 0)
        outer = self.parent[inner]
        over = trace.end[self.rows[inner]] - trace.end[self.rows[outer]]
        np.subtract.at(own, outer, took[inner] - np.maximum(over, 0))
        held: Ints = np.maximum(own, 0)
        return held


def nest(trace: Trace, rows: Ints) -> Nest:
    """Of host rows, in the trace's order. Events that overlap without one holding the other, which
    no call stack makes, end up beside or inside of each other as they come."""
    parent = np.full(len(rows), -1, np.int64)
    for thread in np.unique(trace.thread[rows]):
        here = np.flatnonzero(trace.thread[rows] == thread)
        start, end = trace.start[rows[here]], trace.end[rows[here]]
        found = _parents(start, np.maximum(end, start + 1))
        parent[here] = np.where(found >= 0, here[found], -1)
    return Nest(rows, parent)


def _parents(start: Ints, end: Ints) -> Ints:
    """Depth = how many before it have not ended; parent = the last one before of a depth less."""
    number = np.arange(len(start))
    depth = number - np.searchsorted(np.sort(end), start, side="right")
    parent = np.full(len(start), -1, np.int64)
    above = number[depth == 0]
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = number[depth == level]
        if len(here) and len(above):
            at = np.searchsorted(above, here) - 1
            parent[here] = np.where(at >= 0, above[at], -1)
        above = here if len(here) else above
    return parent


def around(trace: Trace, inside: Nest, rows: Ints) -> Ints:
    """[rows] for each the place in the nest of the innermost one on its thread that was running
    when it began, itself not counted; -1: none."""
    found = np.full(len(rows), -1, np.int64)
    for thread in np.unique(trace.thread[rows]):
        mine = np.flatnonzero(trace.thread[rows] == thread)
        here = np.flatnonzero(trace.thread[inside.rows] == thread)
        if not len(here):
            continue
        moments = trace.start[rows[mine]]
        at = np.searchsorted(inside.rows[here], rows[mine], side="left") - 1
        place = np.where(at >= 0, here[at], -1)
        while True:
            over = (place >= 0) & (trace.end[inside.rows[place]] <= moments)
            if not over.any():
                break
            place = np.where(over, inside.parent[place], place)
        found[mine] = place
    return found
