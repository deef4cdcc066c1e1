"""Every problem of what was typed, at once, in our words.

Only after Hydra refused: Hydra stops at the first problem. Each override is parsed singly, groups
are chosen first, then each value override is tried alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paceline import config as checker
from paceline.controller.plan import plain
from paceline.types import ConfigError

CHOOSERS = ("mode", "name", "type", "option", "kind", "choice")
"""Keys that people use for choosing an option of a group."""


def print_problems(problems: list[str]) -> None:
    """One message on stderr, a line a problem."""
    noun = "problem" if len(problems) == 1 else "problems"
    lines = [f"paceline: this config cannot run, {len(problems)} {noun}:"]
    print("\n".join([*lines, *(f"  - {p}" for p in problems)]), file=sys.stderr, flush=True)


def all_problems(
    error: Exception, overrides: list[str], config_dir: Path, user_dir: str | None
) -> list[str]:
    """What is wrong with `overrides`, when Hydra said `error`; at least one sentence."""
    GlobalHydra.instance().clear()
    extra = [f"hydra.searchpath=[file://{Path(user_dir).absolute()}]"] if user_dir else []
    with initialize_config_dir(str(config_dir), version_base="1.3", job_name="paceline"):
        try:
            found = _Refusal(extra)
            found.read(overrides)
        except (HydraException, OmegaConfBaseException) as broken:  # not even the defaults compose
            return [_first_line(broken)]
    return list(dict.fromkeys(found.problems)) or [_first_line(error)]


@dataclass
class _Refusal:
    extra: list[str]
    problems: list[str] = field(default_factory=list)

    def read(self, overrides: list[str]) -> None:
        singles = [s for text in overrides for s in self._parse(text)]
        groups = {g: self._options(g) for g, _, _ in singles}
        chosen: dict[str, str] = {}
        for group, value, text in singles:
            if not groups[group]:
                continue
            if text[0] in "+~":
                self.problems += self._changed_group(group, value, text)
            elif value not in groups[group]:
                self.problems.append(_no_option(group, value, groups[group]))
            else:
                chosen.setdefault(group, f"{group}={value}")
        base = self._compose(list(chosen.values()))
        assert base is not None
        good = list(chosen.values())
        values = [(key, value, text) for key, value, text in singles if not groups[key]]
        for key, value, text in values:
            composed = self._compose([*chosen.values(), text])
            if composed is None:
                self.problems.append(_no_key(base, key, value, text, self._options(key.split(".")[0])))
            else:
                self._check(composed)
                good.append(text)
        whole = self._compose(list({t.partition("=")[0]: t for t in good}.values()))
        if whole is not None:
            self._check(whole)

    def _parse(self, text: str) -> list[tuple[str, str, str]]:
        """(key, value, single override) for each value of an override."""
        try:
            override = OverridesParser.create().parse_override(text)
        except OverrideParseException:
            self.problems.append(
                f"{text}: can't be read as an override; write key=value, group=option, or "
                "+key=value for a new key"
            )
            return []
        key = override.get_key_element().lstrip("+~")
        if override.is_sweep_override():
            values = [str(v) for v in override.sweep_string_iterator()]
        else:
            values = [str(override.get_value_element_as_str())]
        prefix = text[: len(text) - len(text.lstrip("+~"))]
        return [(key.partition("@")[0], v, f"{prefix}{key}={v}") for v in values]

    def _options(self, group: str) -> list[str]:
        loader = GlobalHydra.instance().config_loader()
        return loader.get_group_options(group.lstrip("/")) if group else []

    def _changed_group(self, group: str, value: str, text: str) -> list[str]:
        if text[0] == "~":
            return [f"~{group}: every group is needed; choose another option: {group}=..."]
        return [f"{text}: {group} is chosen already; write {group}={value} without +"]

    def _compose(self, overrides: list[str]) -> DictConfig | None:
        try:
            return compose("config", [*self.extra, *overrides])
        except (HydraException, OmegaConfBaseException):
            return None

    def _check(self, composed: DictConfig) -> None:
        try:
            self.problems += checker.check(plain(composed))
        except ConfigError as error:
            self.problems += error.problems


def _no_option(group: str, value: str, options: list[str]) -> str:
    return f"{group}={value}: no such option{checker.suggest(value, options)} (options: {', '.join(options)})"


def _no_key(base: DictConfig, key: str, value: str, text: str, options: list[str]) -> str:
    """Why one value override can't be applied, and what was probably meant."""
    if text.startswith("+") and OmegaConf.select(base, key, default=None) is not None:
        return f"{text}: {key} exists already; write {key}={value} without +"
    node: Any = base
    path: list[str] = []
    for word in key.split("."):
        if not isinstance(node, DictConfig) or word not in node:
            break
        path.append(word)
        node = node._get_node(word)
    known = [str(k) for k in node if not str(k).startswith("_")] if isinstance(node, DictConfig) else []
    wrong = ".".join(key.split(".")[: len(path) + 1])
    where = ".".join(path) or "the config"
    last = key.split(".")[-1]
    if options and value in options:
        return f"{key}={value}: {where} has no key {last}; did you mean {path[0]}={value}?"
    if options and last in CHOOSERS:
        return (
            f"{key}={value}: {where} has no key {last}; choose an option of the group with "
            f"{path[0]}=OPTION (options: {', '.join(options)})"
        )
    if not isinstance(node, DictConfig):
        return f"{key}={value}: {where} is a value, not a group of keys; write {where}=..."
    if not known:
        return f"{key}={value}: {where} takes no keys in the option that is chosen"
    return f"{wrong}: no such key in {where}{checker.suggest(last, known)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
