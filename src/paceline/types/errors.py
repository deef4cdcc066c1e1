"""What can go wrong, typed; and what a sweep gets from a job without a rate."""

from __future__ import annotations


class ConfigError(Exception):
    """The config cannot run. Holds every problem found, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


class Nonfinite(Exception):
    """A loss or a gradient norm is not a number; `step` is the first such step."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class NotTraining(Exception):
    """The optimizer doesn't train the model; says what it leaves out."""


class DataError(Exception):
    """The data source cannot give what was asked for; says which rank and step."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; names the file."""


class Failed:
    """What a sweep gets from a job that has no valid rate: typed, printable, and not a number."""

    def __init__(self, state: str, kind: str | None, message: str) -> None:
        self.state, self.kind, self.message = state, kind, message

    def __float__(self) -> float:
        raise ValueError(f"this job has no rate: {self}")

    def __repr__(self) -> str:
        return f"Failed({self.state}, {self.kind}: {self.message})"
