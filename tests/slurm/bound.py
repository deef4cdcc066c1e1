"""What tests may start on clusters, and for how long."""

from __future__ import annotations

import threading
import time

from tests.slurm.cluster import Cluster

MOST_PROCESSES = 120
"""Of a cluster's jobs together, and of the commands that were given to it."""


class Bound:
    """Ends all jobs of clusters that are more than `most` processes, or that run past `deadline`
    (of time.monotonic; None: no limit). Then `broken` says which it was. A launcher that starts
    itself again has eaten machines."""

    def __init__(self, clusters: list[Cluster], most: int = MOST_PROCESSES) -> None:
        self.clusters, self.most = clusters, most
        self.deadline: float | None = None
        self.broken: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bound", daemon=True)

    def __enter__(self) -> Bound:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            late = self.deadline is not None and time.monotonic() > self.deadline
            for cluster in list(self.clusters):
                number = len(cluster.guests())
                if number > self.most or (late and number):
                    why = "over time" if late else f"more than {self.most}"
                    self.broken = f"{number} processes on the cluster: {why}"
                    cluster.end_all()
