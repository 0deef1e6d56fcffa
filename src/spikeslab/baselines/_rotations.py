"""Minimisation over rotations, along geodesics: what the kernel methods share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.random import RandomState
from scipy.linalg import expm

from .._arrays import Array

Objective = Callable[[Array], tuple[float, Array]]

_MEMORY = 10
_LONGEST_STEP = 0.5  # largest angle in radians; pi / 2 exchanges two sources
_SHORTEST_STEP = 1e-6
_SUFFICIENT = 1e-4  # of the decrease that the slope promises


def random_rotation(size: int, rng: RandomState) -> Array:
    """A draw from the uniform distribution over orthogonal matrices."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def slope_of_rotation(gradient: Array, sources: Array) -> Array:
    """The skew-symmetric slope of turning sources (H, N), from the gradient in them."""
    slope = gradient @ sources.T
    return slope - slope.T


def least_dependent(
    contrast: Callable[[Array], tuple[float, Array]], Z: Array, starts: list[Array]
) -> Array:
    """The rotation of white data Z (N, H) whose sources (H, N) have the least contrast that is
    found from some starts; it is told with its gradient in the sources.
    """

    def objective(rotation: Array) -> tuple[float, Array]:
        sources = rotation @ Z.T
        value, gradient = contrast(sources)
        return value, slope_of_rotation(gradient, sources)

    runs = [minimise_over_rotations(objective, start) for start in starts]
    return min(runs, key=lambda run: run[0])[1]


def minimise_over_rotations(
    objective: Objective, start: Array, *, max_iter: int = 200, tol: float = 1e-7
) -> tuple[float, Array]:
    """The least value that L-BFGS finds from `start`, and the rotation it is at.

    Steps and slopes are skew-symmetric matrices T: the rotation becomes ``expm(T) @ rotation``.

    Parameters
    ----------
    objective : callable
        Of a rotation: the value, and the skew-symmetric slope S with which a small T changes it by
        ``(S * T).sum() / 2``.
    start : array of shape (H, H)
    max_iter : int
    tol : float
        Stop when an iteration gains less than this, relative to 1 + |value|.
    """
    value, slope = objective(start)
    rotation = start
    memory: deque[tuple[Array, Array]] = deque(maxlen=_MEMORY)
    for _ in range(max_iter):
        step = _quasi_newton_step(memory, slope)
        if (slope * step).sum() >= 0:
            memory.clear()
            step = -slope
        longest = np.abs(step).max()
        if longest == 0:
            break
        if not memory or longest > _LONGEST_STEP:
            step = step * (_LONGEST_STEP / longest)
        promised = (slope * step).sum() / 2
        length = 1.0
        while length > _SHORTEST_STEP:
            there = expm(length * step) @ rotation
            new_value, new_slope = objective(there)
            if new_value <= value + _SUFFICIENT * length * promised:
                break
            length /= 2 if memory else 4  # a first step has no scale
        else:
            break
        gain = value - new_value
        moved, change = length * step, new_slope - slope
        if (moved * change).sum() > 0:
            memory.append((moved, change))
        rotation, value, slope = there, new_value, new_slope
        if gain < tol * (1 + abs(value)):
            break
    return value, rotation


def _quasi_newton_step(memory: deque[tuple[Array, Array]], slope: Array) -> Array:
    """Minus the inverse Hessian of L-BFGS (two loops) times the slope."""
    step, factors = -slope, []
    for moved, change in reversed(memory):
        factors.append((moved * step).sum() / (moved * change).sum())
        step = step - factors[-1] * change
    if memory:
        moved, change = memory[-1]
        step = step * ((moved * change).sum() / (change**2).sum())
    for (moved, change), factor in zip(memory, reversed(factors), strict=True):
        step = step + (factor - (change * step).sum() / (moved * change).sum()) * moved
    return step
