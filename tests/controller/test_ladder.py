"""hydra/sweeper=ladder: a cell a rung, each on top of those before; rungs are checked first."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from paceline.controller import ladder
from paceline.types import ConfigError
from tests.conftest import TINY, Command, Done

LADDER = ["-m", "hydra/sweeper=ladder"]
OWN_RUNGS = [  # in the place of the default ones
    *(f"~hydra.sweeper.rungs.{name}" for name in ("inductor", "bf16", "fused", "loader")),
    '+hydra.sweeper.rungs.bf16=["precision=bf16"]',
    '+hydra.sweeper.rungs.free=["run.clip_grad_norm=null","optimizer.momentum=0.5"]',
]


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Done:
    words = [*TINY, "run.steps=10", "precision=fp32,bf16", "repeat=range(2)"]
    return module_command(*LADDER, *words, *OWN_RUNGS)


@pytest.mark.slow
class TestTwoLadders:
    """From fp32 and from bf16, where the rung bf16 changes nothing and all cells are known."""

    def test_it_succeeds(self, swept: Done) -> None:
        assert swept.code == 0, swept.err

    def test_cells_run_rung_by_rung_repeats_outermost(self, swept: Done) -> None:
        jobs = sorted(
            (r["job"] for r in swept.jobs("outputs/sweeps/*")), key=lambda j: str(j["started_at"])
        )
        levers = ("precision", "run.clip_grad_norm", "optimizer.momentum")
        ladder = [
            ["precision=fp32"],
            ["precision=bf16"],
            ["precision=bf16", "run.clip_grad_norm=null", "optimizer.momentum=0.5"],
        ]
        assert [
            (j["repeat"], [o for o in j["overrides"] if o.startswith(levers)]) for j in jobs
        ] == [(repeat, cell) for repeat in (0, 1) for cell in ladder]

    def test_one_table_with_the_baseline_first(self, swept: Done) -> None:
        table = swept.table()
        assert table["swept"] == ["precision", "run.clip_grad_norm", "optimizer.momentum"]
        assert [list(r["overrides"].values()) for r in table["rows"]] == [
            ["fp32", "default", "default"],
            ["bf16", "default", "default"],
            ["bf16", "null", "0.5"],
        ]
        assert table["rows"][0]["verdict"] == "baseline"
        assert [r["repeats"] for r in table["rows"]] == [2, 2, 2]

    def test_a_rung_without_effect_is_left_out_and_named_once(self, swept: Done) -> None:
        assert swept.out.count("rung bf16: left out where it changes nothing") == 1


def test_the_default_rungs_can_be_planned(command: Command) -> None:
    done = command(*LADDER, "plan=true", "hydra.sweeper.rungs.bf16=['run.seed=7']")
    assert done.code == 0, done.err
    assert not list(done.cwd.iterdir())
    assert done.out.count("to run \n") + done.out.count("skipped \n") == 5
    assert done.out.count("compile=inductor") == 4
    assert done.out.count("run.seed=7") == 3
    assert done.out.count("optimizer.fused=true") == 2
    assert done.out.count("data.loader.num_workers=auto") == 1


def test_no_rungs() -> None:
    with pytest.raises(ConfigError, match=r"rungs=\{\}: it holds no rungs; give a mapping"):
        ladder.read(OmegaConf.create({}))


@pytest.mark.parametrize(
    ("cell", "rung", "higher"),
    [
        (["a=1"], ["b=2"], ["a=1", "b=2"]),
        (["a=1", "b=2"], ["a=3"], ["a=3", "b=2"]),
        (["a=1"], ["++a=2"], ["a=2"]),
        (["+a=1"], ["a=2"], ["+a=2"]),
        (["a=1"], ["~a"], ["~a"]),
        (["~a"], ["+a=2"], ["a=2"]),
        ([], ["++a=2", "a=3"], ["++a=3"]),
    ],
)
def test_a_rung_on_a_cell(cell: list[str], rung: list[str], higher: list[str]) -> None:
    assert ladder.with_rung(cell, rung) == higher


def test_overrides_in_a_rung_may_refer_to_the_config(tmp_path: Path) -> None:
    path = tmp_path / "rungs.yaml"
    path.write_text("wide: ['model.width=${data.sequence_length}']\n")
    read = ladder.read(OmegaConf.load(path))
    assert read == {"wide": ["model.width=${data.sequence_length}"]}
