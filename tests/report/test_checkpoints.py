"""`paceline checkpoint ls | verify | export`: what they say of real checkpoints, and write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.checkpoint.shelf import Shelf
from paceline.report import checkpoints
from tests import saved

COMPARE = """
import sys, torch
from safetensors.torch import load_file
meant, *files = sys.argv[1:]
meant = torch.load(meant, weights_only=True)
for file in files:
    got = load_file(file) if file.endswith("safetensors") else torch.load(file, weights_only=True)
    assert got.keys() == meant.keys(), got.keys() ^ meant.keys()
    assert all(torch.equal(got[name], meant[name]) for name in meant)
    assert all(got[name].dtype == meant[name].dtype for name in meant)
    assert len({value.untyped_storage().data_ptr() for value in got.values()}) == len(got)
assert "paceline" not in sys.modules
"""
"""What anybody does with an exported file."""

LIMITED = """
import resource, sys
from paceline.__main__ import main
import paceline.checkpoint.export
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
job, *files = sys.argv[1:]
sys.exit(min([main(["checkpoint", "export", job, "--force", "--to", file]) for file in files]))
"""
"""A disk that is full after 20 kB."""


@pytest.fixture(scope="module", params=saved.MODES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, Any]]:
    """A job with checkpoints of steps 3, 6 and 9; step -> its model then."""
    directory = tmp_path_factory.mktemp(request.param) / "job"
    return directory, saved.save(request.param, directory, 3, 6, 9)


@pytest.fixture
def job(made: tuple[Path, dict[int, Any]], tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made[0], tmp_path / "job"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what was printed before
        code = checkpoints.run([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def at(job: Path, step: int) -> Path:
    return job / "checkpoint" / f"step_{step:08d}"


def damage(job: Path, step: int) -> Path:
    """A bit of its largest file."""
    file = max(at(job, step).iterdir(), key=lambda path: path.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    return file


def mode_of(job: Path) -> str:
    return "sync" if (at(job, 3) / "state.pt").exists() else "dcp"


def test_ls_shows_every_state_and_what_a_resume_takes(job: Path, run: Any) -> None:
    file = damage(job, 9)
    assert saved.opened(mode_of(job), job).load(saved.state(1)) == 6  # quarantines step 9
    shelf = Shelf(job / "checkpoint")
    shelf.supersede(3)
    (shelf.stage(12) / "state.pt").write_bytes(b"half")
    code, out, _ = run("ls", job, "--json")
    found = json.loads(out)
    assert (code, found["resume"]) == (0, 3)
    states = {row["step"]: row["state"] for row in found["checkpoints"]}
    assert states == {3: "committed", 6: "superseded", 9: "quarantined", 12: "incomplete"}
    three, six, nine, twelve = found["checkpoints"]
    assert [row["resume"] for row in found["checkpoints"]] == [True, False, False, False]
    assert three["format"] == {"sync": "torch", "dcp": "dcp"}[mode_of(job)]
    files = [path for path in at(job, 3).iterdir() if path.name != "manifest.json"]
    assert three["bytes"] == sum(path.stat().st_size for path in files)
    assert (three["ranks"], three["why"], three["path"]) == (1, None, str(at(job, 3)))
    assert six["saved_at"].endswith("+00:00")
    assert f"{file} is damaged" in nine["why"]
    assert (twelve["bytes"], twelve["format"], twelve["saved_at"]) == (4, None, None)

    code, out, _ = run("ls", job)
    head, *lines = out.splitlines()
    assert head.split() == ["step", "state", "format", "size", "ranks", "saved"]
    assert [line.split()[:2] for line in lines[:4]] == [[str(s), states[s]] for s in (3, 6, 9, 12)]
    assert [line.rstrip().endswith("<- resume") for line in lines[:4]] == [True] + 3 * [False]
    assert any(line.startswith(f"quarantined step 9: {file} is damaged") for line in lines)
    assert lines[-1] == f"a resume takes step 3: {at(job, 3)}"


def test_ls_means_the_same_by_job_folder_and_single_checkpoint(job: Path, run: Any) -> None:
    by_job = json.loads(run("ls", job, "--json")[1])
    by_folder = json.loads(run("ls", job / "checkpoint", "--json")[1])
    alone = json.loads(run("ls", at(job, 6), "--json")[1])
    assert by_job == by_folder
    assert [row["step"] for row in by_job["checkpoints"]] == [3, 6, 9]
    assert alone["checkpoints"] == [by_job["checkpoints"][1] | {"resume": True}]


def test_ls_passes_over_what_a_resume_would(job: Path, run: Any) -> None:
    for step in (9, 6):
        file = max(at(job, step).iterdir(), key=lambda path: path.stat().st_size)
        file.write_bytes(file.read_bytes()[:-1])
    found = json.loads(run("ls", job, "--json")[1])
    assert [row["state"] for row in found["checkpoints"]] == ["committed", "damaged", "damaged"]
    assert found["resume"] == 3
    (at(job, 3) / "manifest.json").unlink()
    code, out, _ = run("ls", job)
    assert code == 0
    assert "NO GOOD CHECKPOINT: a resume fails" in out
    assert f"damaged step 3: {at(job, 3)}/manifest.json is missing" in out


def test_ls_says_loudly_that_there_is_nothing_to_resume(tmp_path: Path, run: Any) -> None:
    Shelf(tmp_path / "checkpoint").stage(3)
    code, out, _ = run("ls", tmp_path)
    assert code == 0
    assert out.splitlines()[-1] == "NO COMMITTED CHECKPOINT: nothing to resume from"
    assert json.loads(run("ls", tmp_path, "--json")[1])["resume"] is None


def test_verify_reads_every_byte(job: Path, run: Any) -> None:
    code, out, _ = run("verify", job)
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()] == [["ok", "step", s] for s in "369"]
    file = damage(job, 6)
    code, out, _ = run("verify", job)
    assert code == 1
    said = [line for line in out.splitlines() if not line.startswith("ok ")]
    assert said == [
        f"damaged  step 6  {file} is damaged: its bytes are not those that were written"
    ]
    code, out, _ = run("verify", job, "--json")
    assert code == 1
    assert {one["step"]: one["ok"] for one in json.loads(out)} == {3: True, 6: False, 9: True}
    assert run("verify", job, "--step", 9)[0] == 0
    assert run("verify", job, "--step", 6)[0] == 1
    assert run("verify", at(job, 6))[0] == 1


def test_verify_of_one_without_a_manifest(job: Path, run: Any) -> None:
    (at(job, 9) / "manifest.json").unlink()
    code, out, _ = run("verify", at(job, 9))
    assert (code, out) == (1, f"damaged  step 9  {at(job, 9)}/manifest.json is missing\n")


def test_an_exported_model_opens_without_paceline(
    made: tuple[Path, dict[int, Any]], tmp_path: Path, run: Any
) -> None:
    job, models = made
    meant = models[9]
    assert "third.weight" in meant  # it is second.weight: one tensor in the job, two in a file
    torch.save(meant, tmp_path / "meant.pt")
    files = [tmp_path / "model.safetensors", tmp_path / "model.pt"]
    for to in files:
        code, out, err = run("export", job, "--to", to, "--json")
        assert (code, err) == (0, "")
        said = json.loads(out)
        assert (said["step"], said["tensors"], said["bad"]) == (9, len(meant), [])
        assert said["elements"] == sum(value.numel() for value in meant.values())
        assert said["bytes"] == to.stat().st_size
    words = [sys.executable, "-c", COMPARE, tmp_path / "meant.pt", *files]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "meant.pt", *files])


def test_a_copy_by_another_name_is_known_by_its_manifest(job: Path, run: Any) -> None:
    best = Path(shutil.copytree(at(job, 6), job / "best"))
    assert json.loads(run("ls", best, "--json")[1])["resume"] == 6
    assert run("verify", best)[1].startswith("ok       step 6  ")
    (best / "manifest.json").write_text("{")
    code, out, _ = run("ls", best)
    assert code == 0
    assert f"damaged best: {best}/manifest.json can't be read" in out
    code, out, _ = run("verify", best)
    assert code == 1
    assert out.startswith(f"damaged  best  {best}/manifest.json can't be read")


def test_export_takes_the_newest_good_one_or_the_step_asked_for(
    job: Path, made: tuple[Path, dict[int, Any]], tmp_path: Path, run: Any
) -> None:
    file, to = damage(job, 9), tmp_path / "model.pt"
    code, out, err = run("export", job, "--to", to)
    assert code == 0
    assert err.startswith(f"WARNING {file} is damaged")
    assert out.startswith(f"{to}: the model of step 6, ")
    assert torch.equal(torch.load(to)["first.bias"], made[1][6]["first.bias"])
    assert run("export", job, "--to", to, "--step", 3, "--force")[0] == 0
    assert torch.equal(torch.load(to)["first.bias"], made[1][3]["first.bias"])

    code, _, err = run("export", job, "--to", tmp_path / "bad.pt", "--step", 9)
    assert code == 1
    assert f"{file} is damaged" in err
    assert not (tmp_path / "bad.pt").exists()


def test_nothing_is_exported_where_none_is_good(job: Path, tmp_path: Path, run: Any) -> None:
    files = [damage(job, step) for step in (3, 6, 9)]
    code, out, err = run("export", job, "--to", tmp_path / "model.pt")
    assert (code, out) == (1, "")
    assert all(str(file) in err for file in files)
    assert err.endswith("model.pt was not written: no checkpoint there is good\n")
    assert not list(tmp_path.glob("*.pt"))


def test_a_file_that_exists_is_replaced_only_by_force(job: Path, tmp_path: Path, run: Any) -> None:
    to = tmp_path / "model.safetensors"
    to.write_text("mine")
    code, _, err = run("export", job, "--to", to)
    assert (code, to.read_text()) == (2, "mine")
    assert err == f"--to {to}: exists; --force replaces it\n"
    assert run("export", job, "--to", to, "--force")[0] == 0
    assert to.stat().st_size > 30_000


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path) -> None:
    saved.save("sync", tmp_path / "job", 3)
    files = [tmp_path / "model.safetensors", tmp_path / "model.pt"]
    for to in files:
        to.write_text("mine")
    words = [sys.executable, "-c", LIMITED, tmp_path / "job", *files]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    for to, line in zip(files, done.stderr.splitlines(), strict=True):
        assert line.startswith(f"{to} was not written (")
        assert "File too large" in line
        assert to.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "job", *files])


def test_the_optimizer_is_exported_as_it_was_saved(job: Path, tmp_path: Path, run: Any) -> None:
    to = tmp_path / "optimizer.pt"
    assert run("export", job, "--to", to, "--what", "optimizer")[0] == 0
    found = torch.load(to, weights_only=True)
    assert found["param_groups"]["0"]["params"][0] == "first.weight"
    assert found["state"]["first.bias"]["exp_avg"].shape == (64,)
    code, _, err = run("export", job, "--to", tmp_path / "o.safetensors", "--what", "optimizer")
    assert code == 2
    assert err.endswith("optimizer holds more than tensors; give a name that ends in .pt\n")


def test_what_safetensors_cannot_hold_is_said(tmp_path: Path, run: Any) -> None:
    class Own(saved.Tied):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 3}

        def set_extra_state(self, state: dict[str, int]) -> None: ...

    state = saved.state(0)
    state.model = Own()
    state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)
    saved.opened("sync", tmp_path).save(state, 1, now=True)
    code, _, err = run("export", tmp_path, "--to", tmp_path / "m.safetensors")
    assert code == 2
    assert "_extra_state is no tensor" in err
    assert "ends in .pt" in err
    assert run("export", tmp_path, "--to", tmp_path / "m.pt")[0] == 0
    assert torch.load(tmp_path / "m.pt", weights_only=True)["_extra_state"] == {"version": 3}

    state.model.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    del Own.get_extra_state
    saved.opened("sync", tmp_path).save(state, 2, now=True)
    code, _, err = run("export", tmp_path, "--to", tmp_path / "m.safetensors")
    assert code == 2
    assert "safetensors has no dtype torch.complex128" in err
    assert not list(tmp_path.glob("*m.safetensors*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls", "{job}/no"], "{job}/no does not exist; give a job's directory, its checkpoint"),
        (["ls", "{job}/checkpoint/step_00000077"], "step_00000077 does not exist; give"),
        (["ls", "{empty}"], "{empty} holds no committed checkpoint; give a job's directory"),
        (["verify", "{empty}"], "{empty} holds no committed checkpoint; give a job's directory"),
        (["verify", "{job}", "--step", "7"], "--step 7: {job} has no committed one; there are 3,"),
        (["export", "{job}", "--to", "m.pt", "--step", "7"], "there are 3, 6, 9"),
        (["export", "{job}", "--to", "m.bin"], "end it in .safetensors or .pt"),
        (["export", "{job}", "--to", "{empty}/no/m.pt"], "{empty}/no is no directory; make it"),
        (["export", "{job}", "--to", "{folder}.pt"], "{folder}.pt: is a directory; give a file"),
    ],
)
def test_bad_input_is_one_sentence_with_the_way_out(
    words: list[str], said: str, job: Path, tmp_path: Path, run: Any
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.pt").mkdir()
    names = {"job": job, "empty": tmp_path / "empty", "folder": tmp_path / "folder"}
    code, out, err = run(*(word.format(**names) for word in words))
    assert (code, out) == (2, "")
    assert said.format(**names) in err
    assert len(err.splitlines()) == 1


def test_usage_names_all_four(command: Any) -> None:
    alone, asked = command("checkpoint"), command("checkpoint", "--help")
    assert (alone.code, asked.code) == (2, 0)
    assert alone.err == asked.out
    for name in ("ls", "verify", "drill", "export"):
        assert f"paceline checkpoint {name} " in asked.out
    refused = command("checkpoint", "export", "somewhere")
    assert refused.code == 2
    assert "--to" in refused.err


def test_of_a_job_that_ran(command: Any, tiny: list[str], run: Any) -> None:
    ran = command(*tiny, "checkpoint=dcp", "checkpoint.every_steps=10")
    assert ran.code == 0, ran.err
    record = ran.job()
    code, out, _ = run("ls", record["job"]["dir"], "--json")
    assert code == 0
    listed = {row["step"]: row["bytes"] for row in json.loads(out)["checkpoints"]}
    saves = {save["step"]: save["bytes"] for save in record["checkpoint"]["saves"]}
    assert listed == {step: saves[step] for step in (20, 30)}  # keep_last=2
    assert run("verify", record["job"]["dir"])[0] == 0
