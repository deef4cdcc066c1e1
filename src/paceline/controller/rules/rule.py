"""What a rule is: the keys that it reads, and what it says of a config that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]

Rule = Callable[[Config, Config, int], str | None]
"""(config, choices, ranks) -> a sentence that names the keys and the way out, or None."""

Rules = tuple[tuple[tuple[str, ...], Rule], ...]
"""(the keys that a rule reads, the rule)"""

DEVICE = ("run.device", "launch.scheduler", "launch.slurm")
"""What the device is known from."""

WORLD = ("launch.nproc", "launch.nnodes", "strategy", *DEVICE)
"""What the number of ranks comes from."""
