"""The two hashes: which keys change which; and names of cells, safe for any choice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from paceline.__main__ import config_dir
from paceline.controller.identity import cell_name, config_hash, unhashed, work_hash
from paceline.controller.problems import examine

BASE = ["checkpoint=sync"]

BOTH = [
    "model=mlp",
    "model.layers=2",
    "data=synthetic",
    "data.global_batch_size=32",
    "data.sequence_length=64",
    "loss.label_smoothing=0.1",
    "optimizer=sgd",
    "optimizer.lr=0.01",
    "scheduler=constant",
    "scheduler.warmup_steps=20",
    "run.seed=1",
    "run.clip_grad_norm=null",
]
CELL_ONLY = [
    "data.loader.num_workers=2",
    "data.loader.pin_memory=true",
    "optimizer.fused=true",
    "optimizer.foreach=false",
    "precision=bf16",
    "compile=inductor",
    "strategy=ddp",
    "launch.nproc=2",
    "launch.threads_per_rank=1",
    "launch.host_memory=system",
    "launch.nnodes=2",
    "launch.timeout_s=5",
    "launch.max_restarts=1",
    "profiler=schedule",
    "measure=quick",
    "checkpoint=off",
    "checkpoint.every_steps=7",
    "diagnose=off",
    "run.accumulation_steps=2",
    "run.eval_batches=0",
    "run.device=cpu",
    "activation_checkpointing=blocks",
    "scaling.mode=weak",  # on one rank
    "tag=again",
]
NEITHER = [
    "repeat=3",
    "plan=true",
    "strict=true",
    "sweep.on_failure=stop",
    "checkpoint.resume=off",
    "launch.stop_grace_s=5",
    "launch.meet_timeout_s=5",
    "launch.node_rank=1",
    "launch.rdzv_endpoint=node0:29500",
    "hydra.run.dir=elsewhere",
    "hydra.job.num=7",
]


def hashes(*overrides: str) -> tuple[str, str]:
    config = composed(*overrides)
    return config_hash(config), work_hash(config)


def composed(*overrides: str) -> dict[str, Any]:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        root = compose("config", [*BASE, *overrides], return_hydra_config=True)
    return examine(root).config


@pytest.fixture(scope="module")
def base() -> tuple[str, str]:
    return hashes()


@pytest.mark.parametrize("override", BOTH)
def test_another_training_is_another_cell(override: str, base: tuple[str, str]) -> None:
    cell, work = hashes(override)
    assert cell != base[0]
    assert work != base[1]


@pytest.mark.parametrize("override", CELL_ONLY)
def test_a_lever_is_another_cell_of_the_same_training(override: str, base: Any) -> None:
    cell, work = hashes(override)
    assert cell != base[0]
    assert work == base[1]


@pytest.mark.parametrize("override", NEITHER)
def test_what_is_no_part_of_the_identity(override: str, base: tuple[str, str]) -> None:
    assert hashes(override) == base


def test_steps_change_the_training_by_its_scheduler(base: tuple[str, str]) -> None:
    cell, work = hashes("run.steps=100")
    assert cell != base[0] and work != base[1]
    constant = [hashes("scheduler=constant", f"run.steps={n}") for n in (100, 200)]
    assert constant[0][0] != constant[1][0]
    assert constant[0][1] == constant[1][1]  # the same losses, as far as both go


def test_what_is_swept_changes_the_directory() -> None:
    for override in [*BOTH, *CELL_ONLY, "repeat=1"]:
        assert not unhashed(override.lstrip("+").partition("=")[0]), override
    for override in [*NEITHER[1:], "hydra/launcher=basic", "sweep=x"]:
        assert unhashed(override.partition("=")[0]), override


def test_one_value_in_two_forms_is_one_cell() -> None:
    for work in (config_hash, work_hash):
        node = {"model": {"a": 1, "b": [2.0, {"c": 3}]}, "run": {"seed": 0}}
        other = {"run": {"seed": 0.0}, "model": {"b": [2, {"c": 3.0}], "a": 1.0}}
        assert work(node) == work(other)
        assert work(node) != work({**node, "run": {"seed": False}})
        assert work(node) != work({**node, "run": {"seed": "0"}})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=9,
)
KEYS = st.text(max_size=4) | st.sampled_from(["model", "data", "run", "repeat", "checkpoint"])


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.randoms())
def test_hashes_do_not_know_the_order_of_keys(config: dict[str, Any], random: Any) -> None:
    keys = list(config)
    random.shuffle(keys)
    shuffled = {key: config[key] for key in keys}
    assert config_hash(shuffled) == config_hash(config)
    assert re.fullmatch("[0-9a-f]{16}", config_hash(config))


GROUPS = st.sampled_from(["model", "strategy", "precision", "compile", "data"])


@given(st.dictionaries(GROUPS, st.text() | st.none()), st.dictionaries(KEYS, VALUES, max_size=3))
def test_a_name_is_a_safe_file_name(choices: dict[str, Any], config: dict[str, Any]) -> None:
    name = cell_name(choices, config)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name)
    assert len(name) <= 80
    assert Path(name).name == name
    assert name.endswith(f"-{config_hash(config)[:8]}")
    assert cell_name(dict(reversed(choices.items())), config) == name


def test_a_name_says_what_one_looks_for() -> None:
    choices = {"model": "gpt", "strategy": "ddp", "precision": "bf16", "compile": "inductor"}
    assert re.fullmatch("gpt-ddp-bf16-inductor-[0-9a-f]{8}", cell_name(choices, {}))
    assert cell_name({**choices, "model": None}, {}).startswith("own-ddp-")
