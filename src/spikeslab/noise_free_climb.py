"""Quasi-Newton steps of one run of the noise-free model: of its matrix and densities together."""

from __future__ import annotations

import numpy as np

from ._arrays import Array
from .coordinates import PriorCoordinates
from .quasi_newton import Curvature, State, Tangent, quasi_newton_step
from .unmixing import Densities, Unmixing

At = State[Unmixing]


class NoiseFreeClimb:
    """`init` makes a state, `step` the next one of a state.

    The coordinates are the entries of B, those of the densities behind them. Objectives are per
    point.
    """

    def __init__(self, densities: Densities, start: Unmixing) -> None:
        self._densities = densities
        self._prior = PriorCoordinates(densities.family, start.prior, True)
        self._borders = np.cumsum([start.matrix.size, *self._prior.sizes])[:-1]

    def init(self, start: Unmixing) -> At:
        return State(0, start, self._objective(start), np.nan)

    def step(self, state: At) -> At:
        """One EM step, which cures a badly scaled start, then quasi-Newton."""
        return quasi_newton_step(self, state) if state.iteration else self.certain(state)

    # ---- what a quasi-Newton step asks ----

    def coordinates(self, state: At) -> Array:
        return np.concatenate([state.at.matrix.ravel(), *self._prior.pack(state.at.prior)])

    def attempt(self, theta: Array, state: At) -> At:
        B, *prior = np.split(theta, self._borders)
        try:
            matrix = self._densities.allowed(B.reshape(state.at.matrix.shape))
            new = self._densities.visit(matrix, self._prior.unpack(*prior))
        except np.linalg.LinAlgError:
            return state._replace(objective=-np.inf)
        return self._next(state, new)

    def certain(self, state: At) -> At:
        return self._next(state, self._densities.step(state.at))

    def tangent(self, theta: Array, curvature: Curvature, state: At) -> At:
        at, n_points = state.at, self._densities.signals.shape[1]
        _, a, _, t = np.split(theta, self._borders)
        B = at.matrix[0]
        slope = self._densities.relative_slope(at)[0]
        if self._densities.orthogonal:
            slope_B = slope @ B
        else:  # rows keep their length
            slope_B = np.linalg.solve(B, slope.T).T
            slope_B -= np.einsum("ij,ij->i", slope_B, B)[:, None] * B
        slopes, widths = self._prior.gradient(a, t, at.prior, *(s[0] for s in at.sums))
        width, newton = n_points * np.concatenate(widths), self._densities.newton(at)

        def metric(g: Array) -> Array:
            relative = g[: B.size].reshape(B.shape) @ B.T
            return np.concatenate([(newton(relative)[0] @ B).ravel(), g[B.size :] * width])

        theta = np.concatenate([B.ravel(), theta[B.size :]])  # as it is allowed to be
        gradient = np.concatenate([slope_B.ravel(), np.concatenate(slopes) / n_points])
        return state._replace(tangent=Tangent(theta, gradient, metric, curvature))

    def _objective(self, at: Unmixing) -> float:
        objective = float(at.objective[0]) / self._densities.signals.shape[1]
        return objective if np.isfinite(objective) else -np.inf

    def _next(self, state: At, new: Unmixing) -> At:
        objective = self._objective(new)
        return State(state.iteration + 1, new, objective, objective - state.objective)
