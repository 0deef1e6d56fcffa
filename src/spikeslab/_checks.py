"""Checks of arguments, with messages that name the argument, its value and what would be right."""

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_bool(name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


def check_jobs(n_jobs: Any) -> None:
    """A number of threads, or -1, or None."""
    if n_jobs is not None and n_jobs != -1:
        check_integer("n_jobs", n_jobs, 1)


def check_real(name: str, value: Any, least: float, *, above: bool = False) -> None:
    """A finite number of at least `least`, or above it."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    value = float(value)
    if not np.isfinite(value) or value < least or (above and value == least):
        raise ValueError(
            f"{name} must be {'above' if above else 'at least'} {least:g}, got {value!r}"
        )
