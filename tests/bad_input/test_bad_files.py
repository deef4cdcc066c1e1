"""Users' own config files and folders, with what goes wrong in them."""

from __future__ import annotations

from collections.abc import Callable

from tests.bad_input.conftest import options

Refuse = Callable[..., list[str]]

HEAD = "# @package _global_\n"


def experiment(refuse: Refuse, text: str, *others: str) -> list[str]:
    typed = ["--config-dir", "mine", "experiment=e", *others]
    return refuse(*typed, files={"mine/experiment/e.yaml": text})


def test_a_bare_off_in_the_place_of_a_group(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, HEAD + "compile: off\n")
    assert problem.startswith(
        "compile=false: a value stands in the place of a whole group (YAML reads a bare off as "
        'false: write "off"); choose with compile=OPTION, in a file with `- override /compile: '
    )


def test_a_bare_off_in_a_defaults_list(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, HEAD + "defaults:\n  - override /compile: off\n")
    assert problem == (
        'experiment=e: a bare off in its defaults list, which YAML reads as false; write "off"'
    )


def test_a_bare_off_as_a_value(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, HEAD + "checkpoint:\n  resume: off\n", "checkpoint=sync")
    assert problem == (
        "checkpoint.resume=false: expected str, got bool; give auto or required or off or text "
        '(YAML reads a bare off as false: write "off")'
    )


def test_a_group_replaced_by_a_value(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, HEAD + "model: gpt\n")
    assert problem == (
        "model=gpt: a value stands in the place of a whole group; choose with model=OPTION, in a "
        "file with `- override /model: OPTION` in its defaults list"
    )


def test_unknown_keys(refuse: Refuse) -> None:
    problems = experiment(refuse, HEAD + "run:\n  stepz: 3\ncolour: red\nmodel:\n  deep: {er: 1}\n")
    assert sorted(p.partition(": ")[0] for p in problems) == [
        "colour=red",
        "model.deep={er:1}",
        "run.stepz=3",
    ]


def test_an_unknown_option_in_a_defaults_list(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, HEAD + "defaults:\n  - override /compile: nope\n")
    assert problem.startswith("experiment=e: ")
    assert problem.endswith(f"Could not find 'compile/nope'; there are: {options('compile')}")


def test_no_package_line(refuse: Refuse) -> None:
    (problem,) = experiment(refuse, "run:\n  steps: 20\n")
    assert problem.startswith("experiment: its file sets no keys of a job; begin it with the line")


def test_a_file_that_is_no_yaml(refuse: Refuse) -> None:
    problems = experiment(refuse, HEAD + "run: {steps: 3\n", "run.stepz=3")
    assert len(problems) == 2
    assert problems[0].startswith("experiment=e: ")
    assert "mine/experiment/e.yaml, line 3: expected ',' or '}'" in problems[0]


def test_an_option_without_a_target(refuse: Refuse) -> None:
    typed = ["--config-dir", "mine", "model=own"]
    (problem,) = refuse(*typed, files={"mine/model/own.yaml": "layers: 3\n"})
    assert problem == "model: has no _target_; choose an option of the group: model=OPTION"


def test_their_options_are_known_beside_ours(refuse: Refuse) -> None:
    typed = ["--config-dir", "mine", "model=own", "run.stepz=3", "compile=nope"]
    text = "_target_: torch.nn.Linear\nin_features: 3\nout_features: 4\n"
    problems = refuse(*typed, files={"mine/model/own.yaml": text})
    assert [p.partition(": ")[0] for p in problems] == ["compile=nope", "run.stepz=3"]


def test_no_such_config_dir(refuse: Refuse) -> None:
    problems = refuse("--config-dir", "mine", "run.seed=-1")
    assert problems == [
        "--config-dir=mine: there is no such directory; give one that exists",
        "run.seed=-1: give 0 or more",
    ]


def test_a_config_path_would_hide_ours(refuse: Refuse) -> None:
    (problem,) = refuse("--config-path", "mine")
    assert problem.startswith("--config-path=mine: it would hide paceline's own groups; add yours")


def test_no_such_config(refuse: Refuse) -> None:
    (problem,) = refuse("--config-name", "confg")
    assert problem == "--config-name=confg: there is no such config; did you mean config?"


def test_values_of_another_primary_config(refuse: Refuse) -> None:
    typed = ["--config-dir", "mine", "--config-name", "small", "run.stepz=3"]
    files = {"mine/small.yaml": "defaults:\n  - config\n  - _self_\nrun:\n  steps: 0\n"}
    problems = refuse(*typed, files=files)
    assert problems == [
        "run.stepz=3: no such key in run; did you mean steps?",
        "run.steps=0: give 1 or more",
    ]
