"""The settings that all ways of saving share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.types import at_least


@dataclass(frozen=True)
class Cadence:
    """`every_steps`: save after each so many optimizer steps, after the last one, and when the job
    is told to stop. `keep_last`, and every step that `keep_every` divides, stay on disk. `verify`:
    read files back once they are written, and again before they are loaded; without, sizes only.
    `resume`: auto goes on from the job's newest checkpoint, or starts fresh; required insists on
    one; off starts fresh; a path (a job's directory, or one checkpoint) is where a job begins that
    has none of its own yet. `strict`: refuse to go on where something would be derived anew or
    reset. `on_failure` of a save: stop the job, or train on and try again at the next one.
    `mtbf_s`: mean time between failures, seconds, for the interval that is recommended."""

    every_steps: int
    keep_last: int
    keep_every: int | None
    verify: bool
    resume: Literal["auto", "required", "off"] | str
    strict: bool
    on_failure: Literal["stop", "continue"]
    mtbf_s: float

    def __post_init__(self) -> None:
        at_least(1, every_steps=self.every_steps, keep_last=self.keep_last)
        if self.keep_every is not None:
            at_least(1, keep_every=self.keep_every)
        if not self.resume:
            raise ValueError("resume='': give auto, required, off, or a path")
        if self.mtbf_s <= 0:
            raise ValueError(f"mtbf_s={self.mtbf_s}: give seconds above 0")
