"""What a machine's figures mean for training on it: measured facts in, lines out. Pure.

A line is `slow` by a figure of the same run, or by what the docstring of its function names. Where
there is nothing to hold a figure to, the line is `ok` and says `n/a`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.diagnose.doctor import machine, software
from paceline.diagnose.doctor.line import MISSING, STATES, Line

__all__ = ["MISSING", "STATES", "TOPICS", "Line", "lines"]

TOPICS: dict[str, Callable[[Mapping[str, Any]], list[Line]]] = {
    "packages": software.packages,
    "cores": machine.cores,
    "limits": machine.limits,
    "slurm": software.slurm,
    "torch": software.torch,
    "collectives": machine.collectives,
    "compiler": software.compiler,
    "loader": machine.loader,
    "disk": machine.disk,
}


def lines(topic: str, facts: Mapping[str, Any]) -> list[Line]:
    """Of one topic, a key of TOPICS."""
    return TOPICS[topic](facts)
