"""What composes and can't run: types, ranges, targets, and choices that don't go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Refuse = Callable[..., list[str]]

TYPES = {
    "text for a number": ("run.steps=abc", "expected int, got str; give a whole number"),
    "list for a number": ("run.steps=[1,2]", "expected int, got array; give a whole number"),
    "float for an int": ("run.steps=1.5", "expected int, got float; give a whole number"),
    "bool for a number": ("run.steps=true", "expected int, got bool; give a whole number"),
    "number for a bool": ("strict=3", "expected bool, got int; give true or false"),
    "text for a bool": ("strict=yes", "expected bool, got str; give true or false"),
    "number for text": ("tag=3", "expected str | null, got int; give text or null, as tag='\"3\"'"),
    "null not allowed": ("run.steps=null", "expected int, got null; give a whole number"),
    "no value": ("run.steps=", "expected int, got str; give a whole number"),
    "no such word": ("run.device=gpu", "no such choice; give auto or cpu or cuda"),
    "number or word": ("launch.nproc=all", "no such choice; give a whole number or auto"),
    "bool or word": ("data.loader.pin_memory=2", "expected bool | str, got int; give true or fal"),
    "no number": ("optimizer.lr=nan", "this is no number; give one"),
    "beyond 64 bits": ("run.seed=99999999999999999999", "this does not fit 64 bits; give a smalle"),
    "short list": ("optimizer.betas=[0.9]", "expected array of length 2, got 1; give a list of 2"),
    "bool for a torch argument": ("optimizer.lr=true", "expected float, got bool; give a number"),
    "null for a torch argument": ("optimizer.lr=null", "expected float, got null; give a number"),
    "value for a node": ("run=3", "a value stands in the place of several keys; set them one by"),
    "value for a nested node": ("data.loader=null", "a value stands in the place of several keys"),
}

RANGES = {
    "steps": ("run.steps=0", "give 1 or more"),
    "seed": ("run.seed=-1", "give 0 or more"),
    "repeat": ("repeat=-1", "give 0 or more"),
    "nproc": ("launch.nproc=0", "give 1 or more"),
    "workers": ("data.loader.num_workers=-1", "give 0 or more"),
    "batch": ("data.global_batch_size=0", "give 1 or more"),
    "clipping": ("run.clip_grad_norm=-1.0", "give a positive norm, or null to leave gradients"),
    "heads": ("model.width=130", "not divisible by heads=4; give a multiple of 4"),
    "learning rate": (
        "optimizer.lr=-1",
        "AdamW refuses it (Invalid learning rate: -1); give another value, its own defau",
    ),
    "betas": (
        "optimizer.betas=[1.5,0.9]",
        "AdamW refuses it (Invalid beta parameter at index 0: 1.5); give another v",
    ),
}


@pytest.mark.parametrize(
    ("typed", "said"), [*TYPES.values(), *RANGES.values()], ids=[*TYPES, *RANGES]
)
def test_a_wrong_value(refuse: Refuse, typed: str, said: str) -> None:
    # run.steps is read by scheduler.total_steps too: told once, where it was set
    (problem,) = refuse(typed)
    assert problem.startswith(f"{typed}: {said}"), problem


TARGETS = {
    "no module": ("nope.Mine", "there is no module nope; give module.Class of something"),
    "no attribute": ("torch.optim.Adamw", "torch.optim has no Adamw; did you mean AdamW?"),
    "no class": ("torch.optim", "this is a module; give a class or function"),
    "no path": ("5", "this is no import path; give module.Class"),
    "raises at import": ("explodes.Mine", "its module raised RuntimeError (boom); make `import ex"),
    "exits at import": ("exits.Mine", "its module raised SystemExit (7); make `import exits` work"),
    "lacks an import": ("lacks.Mine", "its module raised ModuleNotFoundError (No module named 'no"),
    "takes no params": ("torch.nn.ReLU", "ReLU takes no params, which paceline passes; give anot"),
}
FILES = {
    "explodes.py": "raise RuntimeError('boom')",
    "exits.py": "import sys; sys.exit(7)",
    "lacks.py": "import not_there",
    "mine.py": "class Mine:\n    def __init__(self, wide, deep=2): ...\n",
}


@pytest.mark.parametrize(("target", "said"), TARGETS.values(), ids=TARGETS)
def test_no_such_target(refuse: Refuse, target: str, said: str) -> None:
    problem, *others = refuse(f"optimizer._target_={target}", files=FILES)
    assert problem.startswith(f"optimizer._target_={target}: {said}"), problem
    assert bool(others) == (target == "torch.nn.ReLU")  # which takes no lr either


def test_a_target_with_a_missing_argument(refuse: Refuse) -> None:
    dropped = ["~model.vocab_size", "~model.context_length", "~model.layers", "~model.heads"]
    problems = refuse("model._target_=mine.Mine", *dropped, "~model.width", files=FILES)
    assert problems == ["model.wide: missing, Mine needs it; give it a value: +model.wide=..."]


def test_a_target_with_unknown_arguments(refuse: Refuse) -> None:
    problems = refuse("model._target_=mine.Mine", "+model.wide=1", "+model.depp=3", files=FILES)
    assert "model.depp=3: Mine takes no such argument; did you mean deep?; remove: ~model.depp" in (
        problems
    )
    assert "model.layers=4: Mine takes no such argument; remove: ~model.layers" in problems


RULES = {
    "warm-up of the measurement": (
        ["run.steps=20", "measure.warmup_steps=20"],
        "measure.warmup_steps=20: this leaves nothing to measure in run.steps=20; raise run.steps",
    ),
    "warm-up of the scheduler": (
        ["run.steps=40", "scheduler.warmup_steps=50"],
        "scheduler.warmup_steps=50: longer than the training, run.steps=40; raise run.steps or low",
    ),
    "profiler": (
        ["run.steps=20", "profiler=schedule"],
        "profiler.wait=20: (wait + warmup=2 + active=3) x repeat=1 needs 25 steps, run.steps=20 ha",
    ),
    "batch over ranks": (
        ["strategy=ddp", "launch.nproc=2", "data.global_batch_size=7"],
        "data.global_batch_size=7: 2 ranks x run.accumulation_steps=1 can't share it equally; use",
    ),
    "batch over micro-batches": (
        ["run.accumulation_steps=3"],
        "data.global_batch_size=16: 1 ranks x run.accumulation_steps=3 can't share it equally; use",
    ),
    "one process": (
        ["strategy=single", "launch.nproc=2"],
        "strategy=single: it runs one process, launch.nproc=2 asks for 2; use strategy=ddp, or lau",
    ),
    "context": (
        ["data.sequence_length=256"],
        "data.sequence_length=256: longer than model.context_length=128; raise the second or lower",
    ),
    "profiled rank": (
        ["profiler=schedule", "profiler.ranks=[0,1]"],
        "profiler.ranks=[0,1]: the job has ranks 0 to 0; give some of those",
    ),
}


@pytest.mark.parametrize(("typed", "said"), RULES.values(), ids=RULES)
def test_choices_that_do_not_go_together(refuse: Refuse, typed: list[str], said: str) -> None:
    (problem,) = refuse(*typed)
    assert problem.startswith(said), problem


def test_no_cuda_device(refuse: Refuse) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    (problem,) = refuse("run.device=cuda")
    assert problem == "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"


def test_five_problems_of_five_kinds(refuse: Refuse) -> None:
    typed = ["compile=nope", "model.layerz=3", "run.seed=x", "optimizer.lr=-1"]
    problems = refuse(*typed, "measure.warmup_steps=500", "data.sequence_length=64")
    assert sorted(p.partition(": ")[0] for p in problems) == sorted(
        [*typed, "measure.warmup_steps=500"]
    )


def test_five_problems_that_hydra_composes(refuse: Refuse) -> None:
    typed = ["run.seed=x", "optimizer.lr=-1", "model._target_=nope.Mine", "tag=${nope}"]
    problems = refuse(*typed, "optimizer.eps=x", "run.eval_batches=-2", "launch.nproc=2")
    assert sorted(p.partition(": ")[0] for p in problems) == sorted(
        [*typed, "optimizer.eps=x", "run.eval_batches=-2", "strategy=single"]
    )


def test_every_wrong_value_of_one_group(refuse: Refuse) -> None:
    # a class stops at its first wrong value; we don't
    values = ["run.steps=0", "run.seed=-1", "run.eval_batches=-2", "run.clip_grad_norm=0.0"]
    problems = refuse(*values)
    assert sorted(p.partition(": ")[0] for p in problems) == sorted(values)
