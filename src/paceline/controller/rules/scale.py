"""Rules of scale: strategies, communication hooks, and what they need."""

from __future__ import annotations

from paceline.controller.rules.rule import Rules

RULES: Rules = ()
