"""Hydra launchers of paceline; Hydra finds them by this package's place."""
