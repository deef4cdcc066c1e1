"""hydra/sweeper=pairwise: few cells that hold every pair of values which can run together.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from typing import Any

from hydra_plugins.paceline_launchers._sweeper import CellSweeper


class PairwiseSweeper(CellSweeper):
    """A covering array of what is swept on the command line, every repeat of it in the same cells.
    Combinations that break a rule are never chosen; values that no cell can hold are named.
    `most`: combinations that may be looked at before the first cell runs."""

    def __init__(self, params: dict[str, str], most: int) -> None:
        super().__init__(params)
        self.most = most

    def sweep(self, arguments: list[str]) -> Any:
        """Run the cells in one launch. ConfigError before that if they make no sweep."""
        from paceline.controller import pairwise
        from paceline.report.terminal import screen

        plan = pairwise.plan(self.typed(arguments), self.compose, self.most)
        self.begin()
        console = screen()
        for note in plan.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        return [self.launch(plan.cells)]
