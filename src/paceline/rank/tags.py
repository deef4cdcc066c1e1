"""Which steps are the steady state: everything that disturbs a step leaves a tag on it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.rank.ledger import COMPILED, PROFILED, SAVED, STEADY, WARMUP


@dataclass
class Tagger:
    """`unsettled`: steps still to leave out. `refill`: after any pause the loader's queue is full,
    and as many steps wait too little for it."""

    unsettled: int
    refill: int

    def tag(self, compiled: bool, saved: bool, disturbed: bool) -> int:
        """The tag of the step that just ended."""
        if compiled:
            self.unsettled = max(self.unsettled, 1)  # the next one is the first with the new code
            return COMPILED
        tag = PROFILED if disturbed else SAVED if saved else WARMUP if self.unsettled else STEADY
        self.unsettled = max(self.unsettled - 1, self.refill if saved or disturbed else 0)
        return tag
