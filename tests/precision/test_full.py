"""precision=fp32 and tf32: how a CUDA device is told to multiply float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from paceline.precision.full import Full
from paceline.types import Context, Run, World


@pytest.fixture
def settings() -> Iterator[None]:
    """What is set for the process is put back."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def found() -> tuple[str, str]:
    conv = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul.fp32_precision, conv.fp32_precision


def opened(how: Literal["ieee", "tf32"], device: str, directory: Path) -> None:
    run = Run(1, 1, 0, None, 0, "auto")
    world = World(0, 0, 0, 1, torch.device(device))
    Full(how).open(Context(world, run, directory, lambda node: node))


@pytest.mark.usefixtures("settings")
def test_it_is_set_for_products_and_convolutions(tmp_path: Path) -> None:
    assert found()[1] == "tf32", "torch's own default: not what fp32 means"
    opened("ieee", "cuda", tmp_path)
    assert found() == ("ieee", "none")  # none: at no level, so in full
    assert not torch.backends.cudnn.allow_tf32
    opened("tf32", "cuda", tmp_path)
    assert found() == ("tf32", "tf32")
    opened("ieee", "cuda", tmp_path)
    assert found() == ("ieee", "none")


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("how", ["ieee", "tf32"])
def test_the_older_names_can_still_be_read(how: Literal["ieee", "tf32"], tmp_path: Path) -> None:
    # Inductor's autotuning does; torch raises once only the newer ones were written
    opened(how, "cuda", tmp_path)
    assert torch.get_float32_matmul_precision() == {"ieee": "highest", "tf32": "high"}[how]
    assert torch.backends.cuda.matmul.allow_tf32 is (how == "tf32")
    assert torch.backends.cudnn.allow_tf32 is (how == "tf32")


@pytest.mark.usefixtures("settings")
def test_on_a_cpu_nothing_is_set(tmp_path: Path) -> None:
    before = found()
    opened("ieee", "cpu", tmp_path)
    assert found() == before
