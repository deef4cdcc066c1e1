"""The conf tree: every YAML is the whole of its dataclass, every option composes and passes."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import re
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from paceline import config
from paceline.__main__ import config_dir
from paceline.controller.plan import CannotRun, make_job

CONF = config_dir()
GROUPS = sorted(
    p.name for p in CONF.iterdir() if p.is_dir() and p.name not in ("hydra", "experiment")
)
OPTIONS = sorted(p for g in GROUPS for p in (CONF / g).glob("*.yaml"))
NEEDS = {
    "map_style": ["data.dataset._target_=torch.utils.data.TensorDataset", "+data.dataset.x=1"],
    "ddp": ["launch.nproc=2"],
    **{hook: ["strategy=ddp", "launch.nproc=2"] for hook in ("fp16", "bf16", "powersgd")},
    "hsdp": ["launch.nproc=2"],
    "tokens": ["data.path=train.bin"],
    "image_folder": ["data.root=images"],
}
ONLY_ON_CUDA = {"tf32", "cudagraphs", "reduce_overhead", "memory_snapshot"}


def name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


def is_variant(path: Path) -> bool:
    """Is it another option with a few values changed?"""
    return "defaults" in yaml.safe_load(path.read_text())


WHOLE = [p for p in OPTIONS if not is_variant(p)]


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_keys_are_the_fields(path: Path) -> None:
    node = yaml.safe_load(path.read_text())
    target = config.locate(node.pop("_target_"))
    if dataclasses.is_dataclass(target):
        assert list(node) == [f.name for f in dataclasses.fields(target)]
    else:
        assert set(node) <= set(inspect.signature(target).parameters)


@pytest.mark.parametrize("path", set(OPTIONS) - set(WHOLE), ids=name)
def test_a_variant_changes_what_its_origin_has(path: Path) -> None:
    node = yaml.safe_load(path.read_text())
    origin, itself = node.pop("defaults")
    assert itself == "_self_"
    before = yaml.safe_load(path.with_name(f"{origin}.yaml").read_text())
    assert all(before[key] != value for key, value in node.items())


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_every_default_stands_once(path: Path) -> None:
    target = config.locate(yaml.safe_load(path.read_text())["_target_"])
    if dataclasses.is_dataclass(target):
        for field in dataclasses.fields(target):
            assert field.default is dataclasses.MISSING, f"{target.__name__}.{field.name}"
            assert field.default_factory is dataclasses.MISSING


@pytest.mark.parametrize("path", [p for p in OPTIONS if p.stem != "map_style"], ids=name)
def test_every_option_passes_the_check(path: Path, tmp_path: Path) -> None:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="paceline"):
        overrides = [name(path), *NEEDS.get(path.stem, [])]
        root = compose("config", overrides, return_hydra_config=True)
        if path.stem in ONLY_ON_CUDA and not torch.cuda.is_available():
            with pytest.raises(CannotRun, match="CUDA device"):
                make_job(root, tmp_path)
            return
        job = make_job(root, tmp_path)
    assert job.config[path.parent.name]["_target_"]


def test_a_bare_off_is_quoted_everywhere() -> None:
    for path in CONF.rglob("*.yaml"):
        for line in path.read_text().splitlines():
            assert not re.search(r":\s*(off|on|yes|no)\s*(#.*)?$", line), f"{path}: {line}"


def test_the_files_mirror_the_options() -> None:
    # one word names a choice in conf, src and on the command line; values over one file are YAMLs
    source = Path(config.__file__).parents[1]
    for group in ("model", "data", "loss", "strategy", "comm_hook", "checkpoint", "profiler"):
        for path in (CONF / group).glob("*.yaml"):
            module = config.locate(yaml.safe_load(path.read_text())["_target_"]).__module__
            # `async` is a word of the language: no module can be imported by it
            name = f"{path.stem}_" if keyword.iskeyword(path.stem) else path.stem
            assert module == f"paceline.{group}.{name}"
            assert (source / group / f"{name}.py").is_file()
