"""Everything that is wrong with one composed config, at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from paceline import config as checker
from paceline.controller.rules import broken_rules


@dataclass(frozen=True)
class Findings:
    """`config` is resolved and plain; what can't be resolved in it is `???`. `problems`: why it is
    not well-formed. `broken`: rules between its groups, as far as they can be judged."""

    config: dict[str, Any]
    choices: dict[str, Any]
    problems: list[str]
    broken: list[str]


def examine(root: DictConfig, wrong: Iterable[str] = ()) -> Findings:
    """Look at a composed config with Hydra's node in it. `wrong`: keys that are known to be wrong
    elsewhere, so that no rule is judged by them."""
    tree = _Tree()
    config = {str(key): tree.plain(str(key), root, key) for key in root if key != "hydra"}
    choices: Any = OmegaConf.to_container(root.hydra.runtime.choices)
    problems = _several_options(typed_in(root))
    problems += [p for p in checker.check(config) if not keys_of(p) & set(tree.unresolved)]
    problems += tree.unresolved.values()
    bad = {key for problem in problems for key in keys_of(problem)}
    problems = [p for p in problems if not tree.echoes(p, bad)]
    tried = _try_out(config, bad)
    bad |= {key for problem in tried for key in keys_of(problem)} | set(wrong)
    return Findings(config, choices, problems + tried, broken_rules(config, choices, wrong=bad))


def typed_in(root: DictConfig) -> list[str]:
    """The overrides as they were typed: an interpolation in one is none in the list of them."""
    typed: Any = OmegaConf.to_container(root.hydra.overrides.task, resolve=False)
    return list(map(str, typed))


def keys_of(problem: str) -> set[str]:
    """The keys that a sentence of the form `key=value: what` or `key, key: what` is about."""
    named = re.match(r"[+~]*([\w./]+(?:, [\w.]+)*)", problem)
    return set(named.group(1).split(", ")) if named else set()


class _Tree:
    """What the nodes of a composed config hold. `unresolved`: key -> why it has no value."""

    def __init__(self) -> None:
        self.unresolved: dict[str, str] = {}
        self._reads: dict[str, list[str]] = {}

    def plain(self, path: str, parent: DictConfig | ListConfig, key: Any) -> Any:
        """The value at `path`, with all below it."""
        written: Any = ""
        if OmegaConf.is_interpolation(parent, key):
            node: Any = parent._get_node(key)
            written = node._value()
            self._reads[path] = re.findall(r"\$\{([\w.]+)\}", written)
        try:
            value = parent[key]
        except OmegaConfBaseException as error:
            self.unresolved[path] = _why(path, written, error)
            return checker.MISSING
        if isinstance(value, DictConfig):
            names: list[Any] = list(value)
            return {name: self.plain(f"{path}.{name}", value, name) for name in names}
        if isinstance(value, ListConfig):
            return [self.plain(f"{path}.{i}", value, i) for i in range(len(value))]
        return value

    def echoes(self, problem: str, bad: set[str]) -> bool:
        """Is it about keys that only repeat what is wrong where it stands?"""
        reads = [read for key in keys_of(problem) for read in self._reads.get(key, ())]
        return any(read == key or read.startswith(f"{key}.") for read in reads for key in bad)


def _why(path: str, written: str, error: OmegaConfBaseException) -> str:
    if isinstance(error, MissingMandatoryValue):
        what = "the import path of a class" if path.endswith("._target_") else "a value"
        return f"{path}: missing; give it {what}: {path}=..."
    said = checker.first_line(error).rpartition("interpolation: ")[2].strip("\"'")
    said = said[:1].lower() + said[1:]
    return f"{path}={written}: {said}; give a value, or refer to something that exists"


def _several_options(overrides: Iterable[str]) -> list[str]:
    """A list in the place of an option: Hydra would merge the options into one."""
    problems = []
    for text in overrides:
        override = OverridesParser.create().parse_override(text)
        key, value = override.key_or_group, override.value()
        if key in checker.GROUPS and isinstance(value, list):
            options = ",".join(map(checker.shown, value))
            problems.append(
                f"{text}: {key} takes one option, not a list; for one job each, sweep: "
                f"-m {key}={options}"
            )
    return problems


def _try_out(config: dict[str, Any], bad: set[str]) -> list[str]:
    """Value checks that only the class itself knows, on a parameter of one element."""
    problems: list[str] = []
    for key in ("optimizer", "scheduler"):
        wrong = {b.partition(".")[2] for b in bad if b.partition(".")[0] == key}
        if {"", "_target_"} & wrong or checker.is_settings(checker.locate(config[key]["_target_"])):
            continue  # not there, or checked by its own __post_init__
        import torch

        parameter = torch.nn.Parameter(torch.zeros(1))
        given: dict[str, Any] = {"params": [parameter]}
        if key == "scheduler":
            given = {"optimizer": torch.optim.SGD([parameter], lr=0.1)}
        usable = {k: v for k, v in config[key].items() if k not in wrong}
        problems += _refused(key, usable, given)
    return problems


def _refused(key: str, node: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Which arguments a target refuses: each that it refuses with all others at their defaults."""
    target = checker.locate(node["_target_"])
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    empty = inspect.Parameter.empty
    defaults = {p.name: p.default for p in parameters if p.kind not in several}
    optional = [k for k in node if defaults.get(k, empty) is not empty]
    needed = {k: v for k, v in node.items() if k not in optional}
    if any(v is empty and k not in (*node, *given) for k, v in defaults.items()):
        return []  # told before
    whole = _said(node, given)
    if whole is None:
        return []
    problems = []
    for name in optional:
        said = _said({**needed, name: node[name]}, given)
        if said is not None:
            problems.append(
                f"{key}.{name}={checker.shown(node[name])}: {target.__name__} refuses it ({said}); "
                f"give another value, its own default is {checker.shown(defaults[name])}"
            )
    path = node["_target_"]
    return problems or [f"{key}._target_={path}: it refuses these values ({whole}); change them"]


def _said(node: dict[str, Any], given: dict[str, Any]) -> str | None:
    try:
        checker.build(node, **given)
    except Exception as error:
        return checker.first_line(error.__cause__ or error)
    return None
