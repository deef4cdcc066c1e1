"""The whole config: what a job needs, and that plain objects alone are built from it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from paceline import config
from paceline.__main__ import config_dir
from paceline.controller.problems import examine
from paceline.types import Context, Run, World


class Bag:
    def __init__(self, **values: Any) -> None:
        self.values = values


def composed(*overrides: str) -> dict[str, Any]:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        root = compose("config", list(overrides), return_hydra_config=True)
    return examine(root).config


def test_the_groups_are_the_folders() -> None:
    folders = {p.name for p in config_dir().iterdir() if p.is_dir()}
    assert set(config.GROUPS) == folders - {"hydra", "experiment"}


def test_every_node_is_needed() -> None:
    whole = composed()
    assert config.check(whole) == []
    for key in whole:
        if key != "experiment":
            (problem,) = config.check({k: v for k, v in whole.items() if k != key})
            assert problem.startswith(f"{key}: missing, every job needs it; ")


def test_no_other_node() -> None:
    assert config.check({**composed(), "modell": {"a": 1}, "lr": 3}) == [
        "modell: no such key; did you mean model?",
        f"lr=3: no such key; there are: {', '.join(sorted(k for k in composed()))}",
    ]


def test_nothing_of_ours() -> None:
    (problem,) = config.check({"run": {"steps": 3}})
    assert problem.endswith("missing; begin the defaults list of your config with `- config`")


@pytest.mark.parametrize("model", ["gpt", "mlp", "resnet"])
def test_no_config_type_is_reachable_from_what_is_built(model: str, tmp_path: Path) -> None:
    # P43: a config node kept in a model is slow in the hot path and breaks graphs
    whole = composed(f"model={model}", "optimizer=sgd", "scheduler=constant")
    world = World(0, 0, 0, 1, torch.device("cpu"))
    context = Context(world, config.settings(whole["run"], Run), tmp_path, config.build)
    built = config.build(whole["model"], context)
    optimizer = config.build(whole["optimizer"], params=list(built.parameters()))
    scheduler = config.build(whole["scheduler"], optimizer=optimizer)
    bag = config.build({"_target_": f"{__name__}.Bag", "a": {"b": [1, {"c": 2}]}})
    assert bag.values == {"a": {"b": [1, {"c": 2}]}}
    for thing in (whole, built, optimizer, scheduler, bag, context.run):
        assert config_types(thing) == []


def test_the_walk_sees_a_config_type() -> None:
    bag = Bag(a=[OmegaConf.create({})])
    assert config_types(bag) == ["DictConfig"]


def config_types(start: Any) -> list[str]:
    """OmegaConf objects reachable through the attributes and containers of `start`."""
    seen: set[int] = set()
    found, todo = [], [start]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        seen.add(id(thing))
        if type(thing).__module__.startswith("omegaconf"):
            found.append(type(thing).__name__)
            continue
        todo += [
            other
            for other in gc.get_referents(thing)
            if not callable(other) or isinstance(other, torch.nn.Module)
        ]
    return found
