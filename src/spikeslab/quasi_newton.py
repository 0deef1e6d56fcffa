"""Quasi-Newton EM: L-BFGS whose first guess of the curvature is EM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg.lapack import dtrtrs

from ._arrays import Array

_TRIES = 2  # step lengths before the curvature is forgotten
_ROUNDING = 1e-6  # relative
_FALLS = 20  # of a bound, before there is nothing left to gain


class Tangent(NamedTuple):
    """The model's free coordinates at a state, the slope there, and what steps have taught."""

    theta: Array
    gradient: Array
    metric: Callable[[Array], Array]  # turns a gradient into an EM step, to first order
    curvature: Curvature  # updated in place: a state is good for one step


P = TypeVar("P")


class State(NamedTuple, Generic[P]):
    """Where an optimisation stands: all that the next step depends on."""

    iteration: int
    at: P  # the parameters, with what the data say of them
    objective: float  # log-likelihood and regularisation, all points together
    promise: float  # gain of the objective that this step made, or that the next one promises
    tangent: Tangent | None = None  # once there has been a quasi-Newton step
    falls: int = 0  # of the objective: a bound may


class Climb(Protocol[P]):
    """What a step asks of what is maximised."""

    def coordinates(self, state: State[P]) -> Array:
        """The free coordinates of a state."""
        ...

    def tangent(self, theta: Array, curvature: Curvature, state: State[P]) -> State[P]:
        """The state with its tangent."""
        ...

    def attempt(self, theta: Array, state: State[P]) -> State[P]:
        """The state at trial coordinates, after the given one; without any gain where they are too
        extreme to compute with.
        """
        ...

    def certain(self, state: State[P]) -> State[P]:
        """The state after a step that cannot fail."""
        ...


def quasi_newton_step(climb: Climb[P], state: State[P]) -> State[P]:
    """One step: the first is EM's, to first order.

    No accepted step lowers a likelihood. Where neither of two step lengths gains, the curvature is
    forgotten and a step taken that cannot fail: with a bound whose states are chosen anew for every
    point, it may still fall a little, and the steps after it gain.
    """
    if state.tangent is None:
        theta = climb.coordinates(state)
        state = climb.tangent(theta, Curvature(len(theta)), state)
        assert state.tangent is not None
    theta, gradient, metric, curvature = state.tangent
    step = curvature.step(gradient, metric)
    slope = float(gradient @ step)
    if not slope > 0:  # rounding has spoilt the curvature
        curvature.clear()
        step = metric(gradient)
        slope = float(gradient @ step)
    length = 1.0
    for _ in range(_TRIES):
        new_theta = theta + length * step
        new = climb.attempt(new_theta, state)
        gain = new.objective - state.objective
        if gain >= max(1e-4 * length * slope, 0.0):
            promise = slope / 2
            break
        shrink = length * slope / (2 * (length * slope - gain))
        length *= min(max(shrink, 0.1), 0.5) if np.isfinite(shrink) else 0.1
    else:
        curvature.clear()
        new = climb.certain(state)
        gain = promise = new.promise
        rounding = gain >= -_ROUNDING * (1 + abs(state.objective))
        over = rounding or state.falls == _FALLS or not np.isfinite(gain)
        if gain < 0 and over:  # there is nothing left to gain
            return state._replace(iteration=state.iteration + 1, promise=0.0)
        new_theta = climb.coordinates(new)
    falls = state.falls + (gain < 0)
    new = climb.tangent(new_theta, curvature, new)
    new = new._replace(promise=max(promise, gain), falls=falls)
    assert new.tangent is not None
    curvature.add(new_theta - theta, gradient - new.tangent.gradient)
    return new


class Curvature:
    """Pairs of a displacement and the fall of the gradient along it, for L-BFGS.

    Its two loops are two triangular systems: with S and Y the pairs as rows and R the upper
    triangle of S Y', the step is ``r + S'c`` where ``R a = S g``, ``r = gamma metric(g - Y'a)`` and
    ``R'c = diag(R) a - Y r``.
    """

    def __init__(self, size: int, memory: int = 100) -> None:
        self._moved, self._bent = np.empty((memory, size)), np.empty((memory, size))
        self._products = np.zeros((memory, memory))  # R, as far as there are pairs
        self._n, self._memory = 0, memory

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the pairs and their products."""
        n = self._n
        parts = {"moved": self._moved, "bent": self._bent, "products": self._products[:, :n]}
        return {name: part[:n].copy() for name, part in parts.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Curvature:
        n, size = arrays["moved"].shape
        self = cls(size)
        self._moved[:n], self._bent[:n] = arrays["moved"], arrays["bent"]
        self._products[:n, :n] = arrays["products"]
        self._n = n
        return self

    def clear(self) -> None:
        self._n = 0

    def add(self, moved: Array, bent: Array) -> None:
        """Take note of a pair, unless the curvature along it is not positive."""
        if not moved @ bent > 1e-10 * np.sqrt((moved @ moved) * (bent @ bent)):
            return
        if self._n == self._memory:
            self._moved[:-1], self._bent[:-1] = self._moved[1:], self._bent[1:]
            self._products[:-1, :-1] = self._products[1:, 1:]
            self._n -= 1
        n = self._n
        self._moved[n], self._bent[n] = moved, bent
        self._n = n + 1
        self._products[: n + 1, n] = self._moved[: n + 1] @ bent

    def step(self, gradient: Array, metric: Callable[[Array], Array]) -> Array:
        n = self._n
        if n == 0:
            return metric(gradient)
        S, Y = self._moved[:n], self._bent[:n]
        R = self._products[:n, :n]
        amounts = dtrtrs(R, S @ gradient)[0]
        scaled = metric(Y[-1])
        step = (R[-1, -1] / (Y[-1] @ scaled)) * metric(gradient - amounts @ Y)
        return step + dtrtrs(R, R.diagonal() * amounts - Y @ step, trans=1)[0] @ S
