"""What paceline's sweepers share: the launcher, and the cells that were typed."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class CellSweeper(Sweeper):
    """Gives lists of cells to the configured launcher; a cell is a list of overrides.

    `params`: overrides that stand before the typed ones, and so are the outermost loops.
    """

    def __init__(self, params: dict[str, str]) -> None:
        self.params = params
        self.config: DictConfig
        self.hydra_context: HydraContext
        self.launcher: Any
        self.launched = 0

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra.core.plugins import Plugins

        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def typed(self, arguments: Sequence[str]) -> dict[str, list[str]]:
        """Key -> its overrides, one a value, `params` first; of what is typed twice the last.

        Raises HydraException for what is no override, and for a sweep without a list of values.
        """
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        params = [f"{key}={value}" for key, value in self.params.items()]
        found: dict[str, list[str]] = {}
        for override in parser.parse_overrides([*params, *arguments]):
            key = override.get_key_element()
            if not override.is_sweep_override():
                found[key] = [str(override.input_line)]
            elif override.is_discrete_sweep():
                found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                raise HydraException(f"{override.input_line}: this sweep has no list of values")
        return found

    def compose(self, cell: Sequence[str]) -> DictConfig:
        """The whole config of one cell, with Hydra's node in it."""
        loader = self.hydra_context.config_loader
        root: DictConfig = loader.load_sweep_config(self.config, list(cell))
        return root

    def begin(self) -> Path:
        """Make the sweep's directory, with Hydra's `multirun.yaml` in it."""
        sweep_dir = Path(str(self.config.hydra.sweep.dir)).absolute()
        sweep_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, sweep_dir / "multirun.yaml")
        return sweep_dir

    def launch(self, cells: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Run them in order; what each returned."""
        done = self.launcher.launch(cells, initial_job_idx=self.launched)
        self.launched += len(cells)
        return list(done)


def product(typed: dict[str, list[str]]) -> list[list[str]]:
    """Every combination, the first key outermost."""
    return [list(cell) for cell in itertools.product(*typed.values())]
