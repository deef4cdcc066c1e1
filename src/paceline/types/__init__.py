"""The words of the house: errors, settings, facts, protocols. Imports no torch by itself."""

from paceline.types.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Failed,
    Nonfinite,
    NotTraining,
)
from paceline.types.facts import STOPS, CompileReport, Context, TrainState, World
from paceline.types.protocols import (
    ActivationCheckpointing,
    Batch,
    Checkpoint,
    CommHook,
    Compile,
    Data,
    Diagnose,
    Loss,
    Precision,
    Profiler,
    Strategy,
)
from paceline.types.settings import Launch, Measure, Run, Scaling, Slurm, Sweep, at_least

__all__ = [
    "STOPS",
    "ActivationCheckpointing",
    "Batch",
    "Checkpoint",
    "CheckpointError",
    "CommHook",
    "Compile",
    "CompileReport",
    "ConfigError",
    "Context",
    "Data",
    "DataError",
    "Diagnose",
    "Failed",
    "Launch",
    "Loss",
    "Measure",
    "Nonfinite",
    "NotTraining",
    "Precision",
    "Profiler",
    "Run",
    "Scaling",
    "Slurm",
    "Strategy",
    "Sweep",
    "TrainState",
    "World",
    "at_least",
]
