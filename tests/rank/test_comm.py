"""What is counted of a step's communication, and where its time goes: arithmetic, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.rank.comm import Sent, mismatch, with_comm

PHASES = {"forward": 1.0, "backward": 4.0, "optimizer": 0.5}


def reductions(*per_micro_batch: int) -> list[Sent]:
    return [
        Sent("all_reduce", 100, micro, True)
        for micro, number in enumerate(per_micro_batch)
        for _ in range(number)
    ]


@pytest.mark.parametrize(
    ("sent", "expected", "said"),
    [
        ((0, 0, 3), 3, []),
        ((3,), 3, []),
        ((0, 5), None, []),
        ((3, 3, 3), 3, ["6 reductions of gradients before the last of 3 micro-batches"]),
        (
            (0, 0, 0),
            3,
            ["0 reductions of gradients in the last micro-batch"],
        ),
        ((6,), 3, ["6 reductions of gradients in the last micro-batch of a step, 3 are right"]),
    ],
)
def test_the_counts_are_named(sent: tuple[int, ...], expected: Any, said: list[str]) -> None:
    found = mismatch(reductions(*sent), expected, len(sent))
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))


@pytest.mark.parametrize(("exposed", "comm"), [(1.5, 1.5), (0.0, 0.0), (9.0, 4.0)])
def test_comm_comes_out_of_backward(exposed: float, comm: float) -> None:
    found = with_comm(PHASES, exposed)
    assert list(found) == ["forward", "backward", "comm", "optimizer"]
    assert found["comm"] == comm
    assert sum(found.values()) == sum(PHASES.values())
    assert min(found.values()) >= 0


def test_what_is_not_known_stays_in_backward() -> None:
    assert with_comm(PHASES, None) == PHASES
