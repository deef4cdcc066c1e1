"""Which steps stay out of the steady figure."""

from paceline.rank.ledger import COMPILED, PROFILED, SAVED, STEADY, WARMUP
from paceline.rank.tags import Tagger


def tags(tagger: Tagger, steps: list[str]) -> list[int]:
    """One letter a step: . nothing, c compiled, s saved, p profiled."""
    return [tagger.tag(step == "c", step == "s", step == "p") for step in steps]


def test_warm_up_comes_first() -> None:
    assert tags(Tagger(2, 0), list("....")) == [WARMUP, WARMUP, STEADY, STEADY]


def test_the_step_after_a_compilation_is_left_out_too() -> None:
    assert tags(Tagger(0, 0), list(".c..")) == [STEADY, COMPILED, WARMUP, STEADY]


def test_compiling_does_not_shorten_the_warm_up() -> None:
    assert tags(Tagger(2, 0), list("cc....")) == [COMPILED] * 2 + [WARMUP] * 2 + [STEADY] * 2


def test_a_pause_leaves_the_queue_of_the_workers_full() -> None:
    assert tags(Tagger(0, 2), list("s...")) == [SAVED, WARMUP, WARMUP, STEADY]
    assert tags(Tagger(0, 0), list("p.")) == [PROFILED, STEADY]
    assert tags(Tagger(0, 3), list("p.s...."))[2:] == [SAVED] + [WARMUP] * 3 + [STEADY]
