"""The command: a sub-command, or Hydra. Imports no torch before a config is composed."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUBCOMMANDS = ("run", "compare", "report", "status", "checkpoint", "diagnose", "doctor")


def main(argv: list[str] | None = None) -> int:
    """Run what was typed; the exit code (docs/design.md, section 6)."""
    argv = sys.argv[1:] if argv is None else argv
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script doesn't: a user's own class must be found
    if argv and argv[0] in SUBCOMMANDS:
        return _subcommand(argv[0], argv[1:])
    from paceline.controller.adopt import adopted, dismiss, follow, leave, open_store

    if not adopted():
        return _hydra(argv)
    if os.environ["RANK"] != "0":
        leave(follow())
    from paceline.controller.session import SESSION

    SESSION.store = open_store()
    code = _hydra(argv)
    dismiss(SESSION.store, code)
    leave(code)
    return code


def _subcommand(word: str, argv: list[str]) -> int:
    """Each imports only what it needs: those that read finished work import no torch."""
    if word == "run":
        from paceline.controller.planned import run

        return run(argv)
    if word == "status":
        from paceline.controller.slurm.follow import Queue
        from paceline.report.commands import status

        return status(argv, Queue())
    if word == "checkpoint" and argv and argv[0] == "drill":
        from paceline.controller.drill import run as drill

        return drill(argv[1:])
    if word == "checkpoint":
        from paceline.report import checkpoints

        return checkpoints.run(argv)
    if word == "diagnose":
        from paceline.report import diagnosis

        return diagnosis.run(argv)
    if word == "doctor":
        from paceline.controller.doctor import run as doctor

        return doctor(argv)
    from paceline.report import commands

    return commands.compare(argv) if word == "compare" else commands.report(argv)


def config_dir() -> Path:
    """The conf folder: packaged, or the checkout's."""
    here = Path(__file__).resolve().parent
    packaged = here / "conf"
    return packaged if packaged.is_dir() else here.parents[1] / "conf"


def _hydra(argv: list[str]) -> int:
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from paceline.controller.adopt import adopted
    from paceline.controller.session import EXIT_CONFIG, SESSION, Interrupted
    from paceline.types import ConfigError

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to Hydra's printer
    parser = get_args_parser()
    args = parser.parse_intermixed_args(argv)
    overrides = list(args.overrides)
    # options first: Hydra's own parser takes no options after an override
    sys.argv = [sys.argv[0], *_options(argv, overrides), *overrides]
    SESSION.command = shlex.join(["paceline", *argv])
    refused = _refuse(args, argv, adopted())
    if refused:
        return _refusal([refused])
    OmegaConf.register_new_resolver("paceline.cell", _cell_directory, replace=True)
    try:
        with _stoppable():
            _entry()()
    except ConfigError as error:
        return _refusal(error.problems)
    except Exception as error:
        # before a config is composed, Hydra lets plain ValueErrors and YAML's errors through too
        composed = SESSION.job is not None or SESSION.sweep_dir is not None
        if composed and not isinstance(error, HydraException | OmegaConfBaseException):
            raise
        from paceline.controller.refusal import all_problems

        return _refusal(all_problems(error, overrides, config_dir(), args.config_dir))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_CONFIG if end.code else 0
    except Interrupted:
        pass
    finally:
        _close()
    return SESSION.exit_code()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM between the jobs of a sweep end it with its table. Not by a plain
    KeyboardInterrupt: once one has passed through an exec(), as dataclasses do it, Python ends
    itself by SIGINT in the end, whatever the exit code."""
    from paceline.controller.session import SESSION, Interrupted
    from paceline.types import STOPS

    def stop(number: int, frame: object) -> None:
        SESSION.heard = number
        SESSION.states.append("interrupted")
        raise Interrupted("interrupted")

    for number in STOPS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)  # the table takes a moment, then we end anyway


def _entry() -> Callable[[], None]:
    """The function that Hydra calls with a composed config: in a single run, and in every cell
    of a sweep under a launcher that isn't ours."""
    import hydra
    from omegaconf import DictConfig, open_dict, read_write

    from paceline.controller.session import SESSION

    typed = SESSION.command

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def entry(config: DictConfig) -> object:
        from hydra.core.hydra_config import HydraConfig

        from paceline.controller.job import run_job
        from paceline.controller.plan import make_job
        from paceline.controller.rules import elsewhere
        from paceline.controller.session import SESSION
        from paceline.report.terminal import screen
        from paceline.types import ConfigError

        job = SESSION.job
        if job is None:  # in a launcher's process, with a session of its own
            hydra_config = HydraConfig.get()
            root: Any = config.copy()
            with read_write(root), open_dict(root):
                root.hydra = hydra_config  # Hydra gives a job's config without it
            directory = Path(hydra_config.runtime.output_dir)
            job = make_job(root, directory, sweep="stock", command=typed)
        try:
            if elsewhere(job.config):
                from paceline.controller.slurm.way import run_single

                return run_single(job, config.detach, screen())
            return run_job(job, screen())
        except ConfigError as error:
            if SESSION.job is None:
                raise
            # as an error, Hydra would announce it in a line of its own above ours
            raise SystemExit(_refusal(error.problems)) from error

    called: Callable[[], None] = entry
    return called


def _close() -> None:
    """Whatever happened: the table of a sweep, and no process left behind."""
    from paceline.controller.session import SESSION

    try:
        if SESSION.sweep_dir is not None and SESSION.sweep_dir.exists():
            from paceline.controller.sweep import make_table
            from paceline.report.terminal import screen

            table = make_table(SESSION.sweep_dir, screen())
            if table is not None:
                SESSION.states += [row["state"] for row in table["rows"]]
    finally:
        SESSION.held.close()
        if "paceline.controller.launch" in sys.modules:
            sys.modules["paceline.controller.launch"].stop_forkserver()


def _refuse(args: object, argv: list[str], adopted: bool) -> str | None:
    multirun = getattr(args, "multirun", False)
    if multirun and getattr(args, "cfg", None):
        return "-m together with --cfg: a sweep has many configs; leave out one of the two"
    if multirun and adopted:
        size = os.environ["WORLD_SIZE"]
        words = shlex.join(["paceline", *argv, f"launch.nproc={size}"])
        return f"-m under a launcher: paceline starts the ranks of every cell itself; type {words}"
    return None


def _refusal(problems: list[str]) -> int:
    from paceline.controller.refusal import print_problems
    from paceline.controller.session import EXIT_CONFIG

    print_problems(problems)
    return EXIT_CONFIG


def _options(argv: list[str], overrides: list[str]) -> list[str]:
    """What is no override, in order."""
    left = list(overrides)
    options = []
    for word in argv:
        if word in left:
            left.remove(word)
        else:
            options.append(word)
    return options


def _cell_directory(*, _root_: object) -> str:
    from paceline.controller.plan import cell_directory

    return cell_directory(_root_=_root_)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
