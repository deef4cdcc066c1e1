"""The cells of a ladder: what was typed, then one rung more each time; rungs are checked first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from paceline.config import first_line, shown
from paceline.controller.identity import config_hash, unhashed
from paceline.controller.problems import examine
from paceline.controller.refusal import typed_problems
from paceline.types import ConfigError

KEY = "hydra.sweeper.rungs"


def read(rungs: Any) -> dict[str, list[str]]:
    """Name -> overrides, in order; ConfigError with everything that is wrong with their form."""
    plain = OmegaConf.to_container(rungs, resolve=False) if OmegaConf.is_config(rungs) else rungs
    if not isinstance(plain, Mapping) or not plain:
        raise ConfigError(
            [f"{KEY}={shown(plain)}: it holds no rungs; give a mapping of names to overrides"]
        )
    problems = [problem for name, rung in plain.items() for problem in _misshapen(name, rung)]
    if problems:
        raise ConfigError(problems)
    return {str(name): list(rung) for name, rung in plain.items()}


def _misshapen(name: Any, rung: Any) -> list[str]:
    where = f"{KEY}.{name}"
    if not isinstance(rung, list) or not rung or not all(isinstance(o, str) for o in rung):
        example = f'["{rung}"]' if isinstance(rung, str) and rung else '["compile=inductor"]'
        return [f"{where}={shown(rung)}: a rung is a list of overrides; write {where}={example}"]
    problems = []
    for text in rung:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            problems.append(f"{where}: {text} is no override; write key=value or group=option")
            continue
        key = override.key_or_group
        if override.is_sweep_override():
            problems.append(f"{where}: {text} has several values; give it one, or make two rungs")
        elif key == "repeat" or unhashed(key):
            problems.append(
                f"{where}: {key} is no part of a cell's identity, no rung can set it; "
                f"leave it out, and give {key} on the command line"
            )
    return problems


@dataclass
class Climb:
    """`compose`: a cell's overrides -> its config, with Hydra's node. `notes`: for the reader."""

    rungs: dict[str, list[str]]
    compose: Callable[[Sequence[str]], DictConfig]
    notes: list[str] = field(default_factory=list)
    _known: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def up(self, start: list[str]) -> list[list[str]]:
        """`start`, then one cell for each rung that changes something, on top of those before.

        Raises ConfigError with all problems of `start`, else with all of the rungs.
        """
        same = tuple(o for o in start if not o.startswith("repeat="))
        if same not in self._known:
            self._known[same] = self._usable(start)
        cells = [start]
        for name in self._known[same]:
            cells.append(with_rung(cells[-1], self.rungs[name]))
        return cells

    def _usable(self, start: list[str]) -> list[str]:
        found = examine(self.compose(start))
        if found.problems:
            raise ConfigError(found.problems)
        cell, identity = start, config_hash(found.config)
        problems, usable = [], []
        for name, rung in self.rungs.items():
            higher = with_rung(cell, rung)
            try:
                found = examine(self.compose(higher))
                wrong = found.problems
            except Exception as error:  # Hydra's, OmegaConf's, YAML's and plain ValueErrors
                wrong = typed_problems(higher) or [first_line(error)]
            if wrong:
                problems += [f"{KEY}.{name}: {problem}" for problem in wrong]
            elif config_hash(found.config) == identity:
                holds = " ".join(rung)
                self.notes.append(f"rung {name}: left out where it changes nothing ({holds})")
            else:
                usable.append(name)
                cell, identity = higher, config_hash(found.config)
        if problems:
            raise ConfigError(problems)
        return usable


def with_rung(cell: Sequence[str], rung: Sequence[str]) -> list[str]:
    """`cell` with a rung's overrides. One of the same key takes its place, but not its sign: the
    sign that is there is known to be right."""
    found = {_key(override): override for override in cell}
    for override in rung:
        key = _key(override)
        if key in found and not override.startswith("~"):
            there = found[key]
            sign = there[: len(there) - len(there.lstrip("+"))]
            override = sign + override.lstrip("+")
        found[key] = override
    return list(found.values())


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
