"""hydra/launcher=local: every cell of a sweep in fresh processes on this machine, one at a time.

Hydra imports this module in every Hydra app: nothing heavy at the top.
"""

from typing import Any

from hydra_plugins.paceline_launchers._launcher import CellLauncher


class LocalLauncher(CellLauncher):
    """Ends one cell before the next one starts: they would share the machine."""

    def way(self) -> Any:
        from paceline.controller.here import Here

        return Here(self.config.sweep.on_failure, self.leave_trace)
