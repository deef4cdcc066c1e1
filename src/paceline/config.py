"""Check a composed config, and build the objects it names. The only caller of Hydra's instantiate.

A choice is a frozen dataclass (its fields are its YAML in full, with no second default) or any
importable class, checked against its signature. `check` returns every problem, not the first.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from paceline.hints import checkable, spoken
from paceline.types import Run, Sweep
