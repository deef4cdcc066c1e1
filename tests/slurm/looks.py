"""Small jobs, and looks at them until they are as they should be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from paceline.controller.slurm.state import JobState, look
from tests.slurm.cluster import Cluster


def quick(cluster: Cluster, line: str, *words: str) -> str:
    return cluster.submit("-o", "/dev/null", *words, "--wrap", line)


def seen(ids: Iterable[str], when: Callable[[JobState], bool]) -> dict[str, JobState]:
    """A look at them in which it holds for each."""
    asked, deadline = list(ids), time.monotonic() + 60
    while True:
        states = look(asked)
        if all(map(when, states.values())):
            return states
        assert time.monotonic() < deadline, states
        time.sleep(0.1)


def over(state: JobState) -> bool:
    return state.over
