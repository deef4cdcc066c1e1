"""Every problem of what was typed, at once, in our words.

Only after Hydra refused: Hydra stops at the first problem. Each override is parsed singly, groups
are chosen first, then each value override is tried alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig

from paceline import config as checker
from paceline.controller.problems import examine

CHOOSERS = ("mode", "name", "type", "option", "kind", "choice")
"""Keys that people use for choosing an option of a group."""


def print_problems(problems: list[str]) -> None:
    """One message on stderr, a line a problem."""
    problems = list(dict.fromkeys(problems))
    noun = "problem" if len(problems) == 1 else "problems"
    lines = [f"paceline: this config cannot run, {len(problems)} {noun}:"]
    print("\n".join([*lines, *(f"  - {p}" for p in problems)]), file=sys.stderr, flush=True)


def all_problems(
    error: Exception, overrides: list[str], config_dir: Path, user_dir: str | None
) -> list[str]:
    """What is wrong with the command, when Hydra said `error`; at least one sentence."""
    typed = get_args_parser().parse_args()
    problems = []
    if user_dir is not None and not Path(user_dir).is_dir():
        problems.append(
            f"--config-dir={user_dir}: there is no such directory; give one that exists"
        )
        user_dir = None
    if typed.config_path is not None:
        problems.append(
            f"--config-path={typed.config_path}: it would hide paceline's own groups; add yours to "
            f"them with --config-dir={typed.config_path}"
        )
    many = typed.multirun or "hydra.mode=MULTIRUN" in overrides
    with _hydra(config_dir, user_dir):
        problems += typed_problems(overrides, typed.config_name or "config", many)
    return list(dict.fromkeys(problems)) or [_reason(error)]


def typed_problems(
    overrides: list[str], config_name: str = "config", many: bool = True
) -> list[str]:
    """What is wrong with `overrides`, by the Hydra that is set up. `many`: they are a sweep's."""
    found = _Typed(config_name, many)
    found.read(overrides)
    return found.problems


@contextmanager
def _hydra(config_dir: Path, user_dir: str | None) -> Iterator[None]:
    """The search path that the command has."""
    GlobalHydra.instance().clear()
    search_path = create_config_search_path(str(config_dir))
    if user_dir is not None:
        place = f"file://{Path(user_dir).absolute()}"
        search_path.prepend("command-line", place, SearchPathQuery(provider="schema"))
    Hydra.create_main_hydra2("paceline", search_path)
    try:
        yield
    finally:
        GlobalHydra.instance().clear()


@dataclass(frozen=True)
class _Single:
    """One value of one override: `+model.layers=3` of `+model.layers=3,4`."""

    sign: str
    key: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.sign}{self.key}" + ("" if self.sign == "~" else f"={self.value}")

    @property
    def group(self) -> str:
        return self.key.partition("@")[0]

    @property
    def head(self) -> str:
        return self.key.partition(".")[0]


@dataclass
class _Typed:
    """`wrong`: keys that were meant by what can't be applied. `always`: where else to search."""

    config_name: str
    many: bool
    problems: list[str] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    always: list[str] = field(default_factory=list)

    def read(self, overrides: list[str]) -> None:
        self.always = [text for text in overrides if text.startswith("hydra.searchpath=")]
        base = self._compose([])
        if not isinstance(base, DictConfig):
            self.problems.append(self._no_config(base))
            return
        singles = [single for text in overrides for single in self._parse(text)]
        typed: dict[str, list[str]] = {}  # key -> its values, as overrides
        for s in singles:
            if self._options(s.group):
                problem = self._no_option(s)
                if problem is None:
                    typed.setdefault(s.key, []).append(s.text)
                else:
                    self.problems.append(problem)
                    self.wrong.add(s.group)
        groups = dict(typed)
        for s in singles:
            if not self._options(s.group) and self._fits(s, groups):
                typed.setdefault(s.key, []).append(s.text)
        self._examine(typed)

    def _fits(self, s: _Single, groups: dict[str, list[str]]) -> bool:
        """Can it be applied, with every option that was chosen for its group?"""
        others = [options[0] for key, options in groups.items() if key != s.head]
        for option in groups.get(s.head, [""]):
            chosen = [*others, *filter(None, [option])]
            composed = self._compose([*chosen, s.text])
            if not isinstance(composed, DictConfig):
                self.problems.append(self._no_key(self._compose(chosen), s, composed))
                self.wrong.add(s.key.rpartition(".")[0] or s.key)
                return False
        return True

    def _examine(self, typed: dict[str, list[str]]) -> None:
        """All that can be applied, together; then each further value of a sweep in its place."""
        first = {key: texts[0] for key, texts in typed.items()}
        cells = [first, *({**first, k: t} for k, texts in typed.items() for t in texts[1:])]
        for cell in cells:
            composed = self._compose(list(cell.values()))
            if isinstance(composed, DictConfig):
                found = examine(composed, self.wrong)
                # in a sweep, a cell that breaks a rule is skipped, not refused
                self.problems += found.problems + ([] if len(cells) > 1 else found.broken)

    def _no_option(self, s: _Single) -> str | None:
        options = self._options(s.group)
        if s.sign == "~" and s.key in checker.GROUPS:
            return f"~{s.key}: every group is needed; choose another option: {s.key}=OPTION"
        if s.sign in ("+", "++"):
            return f"{s.text}: {s.key} is chosen already; write {s.key}={s.value} without {s.sign}"
        if s.value.startswith("["):
            listed = s.value.strip("[]").replace(" ", "")
            return (
                f"{s.text}: {s.key} takes one option, not a list; for one job each, sweep: "
                f"-m {s.key}={listed}"
            )
        composed = self._compose([s.text])
        if isinstance(composed, DictConfig):
            return None
        if s.value not in options:
            said = checker.suggest(s.value, options)
            listed = f" (options: {', '.join(options)})" if "did you mean" in said else ""
            return f"{s.text}: no such option{said}{listed}"
        way = f"; write {s.group}={s.value}" if "@" in s.key else ""
        return f"{s.text}: {_reason(composed)}{way}"

    def _parse(self, text: str) -> list[_Single]:
        """Each value of an override."""
        try:
            override = OverridesParser.create().parse_override(text)
            assert override.key_or_group, "no key"
        except (HydraException, AssertionError):
            way = text.replace("==", "=", 1) if "==" in text else "key=value or group=option"
            self.problems.append(f"{text}: this is no override; write {way}")
            return []
        sign = text[: len(text) - len(text.lstrip("+~"))]
        if override.is_sweep_override() and not self.many:
            self.problems.append(f"{text}: several values need a sweep; add -m, or give one value")
        if override.is_sweep_override() and override.is_hydra_override():
            self.problems.append(f"{text}: Hydra's own settings can't be swept; give one value")
            return []
        key = override.get_key_element().lstrip("+~")
        try:
            return [_Single(sign, key, value) for value in _values(override, text)]
        except HydraException:
            self.problems.append(
                f"{text}: this sweep has no list of values; write {key}=A,B or range(START,STOP)"
            )
            return []

    def _options(self, group: str) -> list[str]:
        return GlobalHydra.instance().config_loader().get_group_options(group.lstrip("/"))

    def _compose(self, overrides: list[str]) -> DictConfig | Exception:
        try:
            return compose(self.config_name, [*self.always, *overrides], return_hydra_config=True)
        except Exception as error:  # Hydra's, OmegaConf's, YAML's and plain ValueErrors
            return error

    def _no_config(self, error: Any) -> str:
        if isinstance(error, MissingConfigException) and "primary config" in str(error):
            known = [name for name in self._options("") if not name.startswith("_")]
            said = checker.suggest(self.config_name, known)
            return f"--config-name={self.config_name}: there is no such config{said}"
        return f"--config-name={self.config_name}: {_reason(error)}"

    def _no_key(self, base: Any, s: _Single, error: Any) -> str:
        """Why a value override can't be applied, and what was probably meant."""
        words = s.key.split(".")
        node: Any = base
        path: list[str] = []
        while len(path) < len(words) and isinstance(node, DictConfig) and words[len(path)] in node:
            path.append(words[len(path)])
            node = node._get_node(path[-1])
        if len(path) == len(words):
            if s.sign == "+":
                return f"{s.text}: {s.key} is there already; write {s.key}={s.value} without +"
            return f"{s.text}: {_reason(error)}; give another value"
        where, last = ".".join(path) or "the config", words[-1]
        options = self._options(words[0])
        if options and s.value in options:
            return f"{s.text}: {where} has no key {last}; did you mean {words[0]}={s.value}?"
        if options and last in CHOOSERS:
            return (
                f"{s.text}: {where} has no key {last}; choose an option of the group: "
                f"{words[0]}=OPTION (options: {', '.join(options)})"
            )
        if not isinstance(node, DictConfig):
            return f"{s.text}: {where} is a value, it has no keys; write {where}=VALUE"
        known = [str(k) for k in node if not str(k).startswith("_")]
        if not path:
            known = [k for k in known if k != "hydra"]
            below = [f"{k}.{s.key}" for k in known if s.key in _keys(base, k)]
            if below and len(words) == 1:
                meant = " or ".join(f"{key}={s.value}" for key in below)
                return f"{s.text}: no such key at the top; did you mean {meant}?"
        option = base.hydra.runtime.choices.get(words[0])
        chosen = f" ({words[0]}={option})" if option and len(path) == 1 else ""
        return f"{s.text}: no such key in {where}{chosen}{checker.suggest(words[len(path)], known)}"


def _keys(base: Any, key: str) -> list[str]:
    node = base._get_node(key)
    return [str(k) for k in node] if isinstance(node, DictConfig) else []


def _values(override: Override, text: str) -> list[str]:
    """As they were typed."""
    if not override.is_sweep_override():
        return [text.partition("=")[2]]
    words = map(str, override.sweep_string_iterator())
    return [word.lower() if word in ("True", "False") else word for word in words]


def _reason(error: Any) -> str:
    """What Hydra, OmegaConf or YAML say, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}; repair the file"
    said = checker.first_line(error)
    if said.startswith(("Could not", "Error merging")) and error.__cause__ is not None:
        said = checker.first_line(error.__cause__)
    if said.startswith("Unsupported item value in defaults : bool"):
        said = 'a bare off in its defaults list, which YAML reads as false; write "off"'
    if isinstance(error, MissingConfigException) and error.options:
        said += f"; there are: {', '.join(error.options)}"
    return said
