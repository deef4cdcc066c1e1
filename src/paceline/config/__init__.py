"""Check a composed config, and build the objects it names. The only caller of Hydra's instantiate.

A choice is a frozen dataclass (its fields are its YAML in full, with no second default) or any
importable class, checked against its signature.
"""

from paceline.config.build import build, is_settings, locate, settings
from paceline.config.check import GIVEN, GROUPS, MISSING, check, check_target
from paceline.config.words import first_line, leaves, near, shown, suggest

__all__ = [
    "GIVEN",
    "GROUPS",
    "MISSING",
    "build",
    "check",
    "check_target",
    "first_line",
    "is_settings",
    "leaves",
    "locate",
    "near",
    "settings",
    "shown",
    "suggest",
]
