"""Arithmetic on sets of time: sorted, disjoint, half-open spans in whole nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.diagnose.trace.columns import Ints, Mask


class Spans(NamedTuple):
    """Span i is [start[i], end[i]), end[i] < start[i + 1]."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())


def nothing() -> Spans:
    return Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def window(start: int, end: int) -> Spans:
    """The one span [start, end)."""
    return (
        Spans(np.array([start], np.int64), np.array([end], np.int64)) if end > start else nothing()
    )


def union(start: Ints, end: Ints) -> Spans:
    """Of any spans, in any order; those of no length are nothing."""
    held = end > start
    start, end = start[held], end[held]
    if not len(start):
        return nothing()
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.append(first[1:] - 1, len(start) - 1)
    return Spans(start[first], reach[last])


def intersect(a: Spans, b: Spans) -> Spans:
    return _where(a, b, inside_b=True)


def subtract(a: Spans, b: Spans) -> Spans:
    """What is in a and not in b."""
    return _where(a, b, inside_b=False)


def gaps(spans: Spans) -> Spans:
    """Between the first start and the last end."""
    return Spans(spans.end[:-1], spans.start[1:])


def clip(spans: Spans, windows: Spans) -> Spans:
    """Those that touch the time from the windows' first start to their last end."""
    if not len(windows.start):
        return nothing()
    first = np.searchsorted(spans.end, windows.start[0], side="right")
    last = np.searchsorted(spans.start, windows.end[-1], side="left")
    return Spans(spans.start[first:last], spans.end[first:last])


def contains(spans: Spans, points: Ints) -> Mask:
    """[points] bool."""
    if not len(spans.start):
        return np.zeros(len(points), bool)
    at = np.searchsorted(spans.start, points, side="right") - 1
    inside: Mask = (at >= 0) & (points < spans.end[np.maximum(at, 0)])
    return inside


def _where(a: Spans, b: Spans, inside_b: bool) -> Spans:
    """Every bound of a or b begins an elementary piece, wholly in or out of each."""
    if not len(a.start) or not len(b.start):
        return nothing() if inside_b else a
    bounds = np.sort(np.concatenate((a.start, a.end, b.start, b.end)))
    held = contains(a, bounds[:-1]) & (contains(b, bounds[:-1]) == inside_b)
    return union(bounds[:-1][held], bounds[1:][held])
