"""What Hydra can't compose: groups, keys and overrides that are not there or can't be read."""

from __future__ import annotations

import pytest

from tests.bad_input.conftest import options

CASES = {
    "unknown option": (
        "compile=nope",
        f"compile=nope: no such option; there are: {options('compile')}",
    ),
    "misspelt option": ("compile=inducto", "compile=inducto: no such option; did you mean induct"),
    "option as false": (
        "compile=false",
        f"compile=false: no such option; there are: {options('compile')}",
    ),
    "option as null": (
        "compile=null",
        f"compile=null: no such option; there are: {options('compile')}",
    ),
    "option as a number": ("model=3", f"model=3: no such option; there are: {options('model')}"),
    "list of options": (
        "compile=[off,inductor]",
        "compile=[off,inductor]: compile takes one option, not a list; for one job each, sweep: "
        "-m compile=off,inductor",
    ),
    "option for another package": ("compile@model=off", "compile@model=off: Could not override"),
    "unknown experiment": (
        "experiment=unknown",
        "experiment=unknown: no such option; there are: digits",
    ),
    "experiment with plus": ("+experiment=digits", "write experiment=digits without +"),
    "unknown launcher": ("hydra/launcher=nope", "hydra/launcher=nope: no such option; there are:"),
    "misspelt key": ("run.stepz=3", "run.stepz=3: no such key in run; did you mean steps?"),
    "misspelt nested key": (
        "data.loader.num_worker=3",
        "data.loader.num_worker=3: no such key in data.loader; did you mean num_workers?",
    ),
    "misspelt group": ("modle=gpt", "modle=gpt: no such key in the config; did you mean model?"),
    "key of another option": (
        "model.hidden=[3]",
        "model.hidden=[3]: no such key in model (model=gpt); there are: context_length, heads",
    ),
    "key of an option without keys": (
        "compile.mode=default",
        "compile.mode=default: compile has no key mode; choose an option of the group: "
        f"compile=OPTION (options: {options('compile')})",
    ),
    "unknown top-level key": ("colour=red", "colour=red: no such key in the config; there are:"),
    "added top-level key": (
        "+colour=red",
        "colour=red: no such key; there are: activation_checkpointing,",
    ),
    "key without its group": ("seed=3", "seed=3: no such key at the top; did you mean run.seed=3?"),
    "key below a value": ("run.steps.x=3", "run.steps.x=3: run.steps is a value, it has no keys"),
    "misspelt Hydra key": ("hydra.runn.dir=x", "hydra.runn.dir=x: no such key in hydra; did you"),
    "value for a Hydra key": ("hydra.job.name=[1]", "hydra.job.name=[1]: "),
    "option by a key": (
        "strategy.mode=ddp",
        "strategy.mode=ddp: strategy has no key mode; did you mean strategy=ddp?",
    ),
    "option by its name": (
        "model.name=gpt",
        "model.name=gpt: model has no key name; did you mean ",
    ),
    "unknown option by a key": (
        "model.name=big",
        "model.name=big: model has no key name; choose an option of the group: model=OPTION "
        f"(options: {options('model')})",
    ),
    "plus before a key": ("+run.steps=3", "+run.steps=3: run.steps is there already; write run."),
    "plus before a group": ("+model=gpt", "+model=gpt: model is chosen already; write model=gpt w"),
    "added key": ("+model.extra=3", "model.extra=3: no such key; there are: context_length,"),
    "group deleted": ("~strategy", "strategy: missing, every job needs it; choose an option: str"),
    "key deleted": ("~run.steps", "run.steps: missing, Run needs it; give it a value: +run.steps="),
    "node deleted": ("~data.loader", "data.loader: missing, PythonSource needs it; give it a valu"),
    "unknown key deleted": ("~nope", "~nope: no such key in the config; there are:"),
    "two equals signs": ("run.steps==3", "run.steps==3: this is no override; write run.steps=3"),
    "no equals sign": ("a", "a: this is no override; write key=value or group=option"),
    "no key": ("=3", "=3: this is no override; write key=value or group=option"),
    "no end": (
        "run.steps=[1",
        "run.steps=[1: this is no override; write key=value or group=option",
    ),
    "two values": ("model=gpt,mlp", "model=gpt,mlp: several values need a sweep; add -m, or give"),
    "broken interpolation": (
        "run.steps=${nope}",
        "run.steps=${nope}: interpolation key 'nope' not found; give a value, or refer to",
    ),
    "unset variable": (
        "optimizer.weight_decay=${oc.env:PACELINE_NOT_SET}",
        "optimizer.weight_decay=${oc.env:PACELINE_NOT_SET}: environment variable "
        "'PACELINE_NOT_SET' not found; give a value",
    ),
    "unknown resolver": ("run.steps=${times:2}", "run.steps=${times:2}: unsupported interpolation"),
    "mandatory value": (
        "data=map_style",
        "data.dataset._target_: missing; give it the import path of a class: "
        "data.dataset._target_=...",
    ),
}


@pytest.mark.parametrize(("typed", "said"), CASES.values(), ids=CASES)
def test_one_problem(refuse, typed: str, said: str) -> None:
    (problem,) = refuse(typed)
    assert problem.startswith(said) or (said in problem and typed in problem)


def test_hydra_lists_all_at_once(refuse) -> None:
    typed = ["compile=nope", "run.stepz=3", "modle=gpt", "strategy.mode=ddp", "a", "run.seed=-1"]
    problems = refuse(*typed)
    assert len(problems) == len(typed)
    for word in typed:
        assert [p for p in problems if p.startswith(f"{word}: ")], word


def test_no_rule_is_judged_by_what_was_not_understood(refuse) -> None:
    # ddp is meant: that strategy=single can't run two processes is no problem of this command
    (problem,) = refuse("strategy=dpp", "launch.nproc=2")
    assert (
        problem
        == "strategy=dpp: no such option; did you mean ddp? (options: ddp, fsdp, hsdp, single)"
    )


def test_a_value_is_looked_at_beside_the_others(refuse) -> None:
    # each alone would miss the dataset
    dataset = "data.dataset._target_=torch.utils.data.TensorDataset"
    problems = refuse("data=map_style", dataset, "run.stepz=3", "run.seed=-1")
    assert sorted(p.partition(":")[0] for p in problems) == ["run.seed=-1", "run.stepz=3"]
