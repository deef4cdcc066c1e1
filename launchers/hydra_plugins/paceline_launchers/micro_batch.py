"""hydra/sweeper=micro_batch: which share of a fixed global batch fits, or runs fastest.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from typing import Any

from hydra_plugins.paceline_launchers._sweeper import CellSweeper, product


class MicroBatchSweeper(CellSweeper):
    """`goal`: largest (stops where it is found) or fastest (tries all). A try is a cell for each
    repeat; one that runs out of memory is an answer, as any other."""

    def __init__(self, params: dict[str, str], goal: str) -> None:
        super().__init__(params)
        self.goal = goal

    def sweep(self, arguments: list[str]) -> Any:
        """Run the search; its answer is printed after the table. ConfigError before anything runs
        if there is nothing to search, or too much."""
        from paceline.controller import micro_batch
        from paceline.controller.session import SESSION

        typed = self.typed(arguments)
        config = self.config
        micro_batch.check(self.goal, config.sweep.on_failure, typed, config.detach)
        starts = product(typed)
        search = micro_batch.Search(
            micro_batch.candidates(self.compose([*starts[0], micro_batch.override(1)])),
            lambda tried: self.launch([[*start, *t.overrides] for start in starts for t in tried]),
        )
        sweep_dir = self.begin()
        if self.goal == "fastest" or self.config.plan:
            search.all()
        else:
            search.largest()
        micro_batch.move_baseline(sweep_dir)
        SESSION.held.callback(search.conclude, self.goal, sweep_dir)  # after the table
        return search.returned
