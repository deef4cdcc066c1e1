"""Sets of time, against sets of whole moments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.diagnose.trace.intervals import (
    Spans,
    contains,
    gaps,
    intersect,
    subtract,
    union,
    window,
)

pairs = st.lists(st.tuples(st.integers(-20, 20), st.integers(-3, 9)), max_size=12)


def spans(drawn: list[tuple[int, int]]) -> Spans:
    start = np.array([s for s, _ in drawn], np.int64)
    return union(start, start + np.array([d for _, d in drawn], np.int64))


def moments(drawn: list[tuple[int, int]]) -> set[int]:
    return {moment for start, length in drawn for moment in range(start, start + length)}


def held(of: Spans) -> set[int]:
    pieces = zip(of.start.tolist(), of.end.tolist(), strict=True)
    return {moment for start, end in pieces for moment in range(start, end)}


def assert_canonical(of: Spans) -> None:
    assert (of.end > of.start).all()
    assert (of.start[1:] > of.end[:-1]).all()


@given(pairs)
def test_union(drawn: list[tuple[int, int]]) -> None:
    made = spans(drawn)
    assert_canonical(made)
    assert held(made) == moments(drawn)
    assert made.total == len(moments(drawn))


@given(pairs, pairs)
def test_intersect_and_subtract_share_a_set_out(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    a, b = spans(first), spans(second)
    both, alone = intersect(a, b), subtract(a, b)
    for made in (both, alone):
        assert_canonical(made)
    assert held(both) == moments(first) & moments(second)
    assert held(alone) == moments(first) - moments(second)
    assert both.total + alone.total == a.total


@given(pairs)
def test_gaps_fill_what_is_between(drawn: list[tuple[int, int]]) -> None:
    busy = moments(drawn)
    whole = set(range(min(busy), max(busy) + 1)) if busy else set()
    assert held(gaps(spans(drawn))) == whole - busy


@given(pairs, st.lists(st.integers(-30, 30), max_size=20))
def test_contains(drawn: list[tuple[int, int]], points: list[int]) -> None:
    found = contains(spans(drawn), np.array(points, np.int64))
    assert found.tolist() == [point in moments(drawn) for point in points]


def test_a_window_that_ends_before_it_starts_is_nothing() -> None:
    assert window(3, 7).total == 4
    assert window(7, 3).total == 0
    assert len(window(3, 3).start) == 0
