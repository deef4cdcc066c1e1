"""hydra/sweeper=ladder: cumulative rungs: the baseline, one lever, two levers, ... in one table.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from typing import Any

from hydra_plugins.paceline_launchers._sweeper import CellSweeper, product


class LadderSweeper(CellSweeper):
    """`rungs`: name -> list of overrides, in order; each stands on all before it. Every
    combination of what is swept on the command line climbs a ladder of its own."""

    def __init__(self, params: dict[str, str], rungs: Any) -> None:
        super().__init__(params)
        self.rungs = rungs

    def sweep(self, arguments: list[str]) -> Any:
        """Run all ladders in one launch. ConfigError with every bad rung before that."""
        from paceline.controller import ladder
        from paceline.report.terminal import screen

        climb = ladder.Climb(ladder.read(self.rungs), self.compose)
        cells: dict[frozenset[str], list[str]] = {}  # two ladders may meet
        for start in product(self.typed(arguments)):
            for cell in climb.up(start):
                cells.setdefault(frozenset(cell), cell)
        self.begin()
        console = screen()
        for note in dict.fromkeys(climb.notes):
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        return [self.launch(list(cells.values()))]
