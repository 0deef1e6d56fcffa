"""Maximum likelihood without noise: as many signals as sources, ``u = B z`` with ``z`` white.

The likelihood ``log|det B| + sum_h log p_h(u_h)`` factorises over the sources, so an iteration
costs O(N H K) for densities ``p_h`` of K Gaussians. B is free or orthogonal; where densities are
learned the rows of a free B have norm 1, so every source has unit variance.

Runs from different starts are visited side by side: arrays have a leading axis R.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import _kernel
from ._arrays import Array, unchecked
from .prior import Prior, PriorFamily

# Every component counts as seen once more and every variance as estimated from two more values of
# a tenth: without it a component settles on a few points of small data sets.
DENSITIES = PriorFamily(
    n_slabs=2,
    soft_spike=True,
    slab_means=True,
    spike_means=True,
    weight_count=1.0,
    variance_count=2.0,
    smallest_variance=1e-3,
)

_LENGTHS = (1.0, 0.3, 0.1, 0.01, 0.0)  # of a step; the last one moves the densities alone
_LONGEST = 0.5  # entry of a step
_LEAST_CURVATURE = 0.1  # eigenvalue of a 2x2 block


class Unmixing(NamedTuple):
    """Unmixing matrices of R runs with the sums over the points that belong to them."""

    matrix: Array  # (R, H, H)
    prior: Prior  # of R x H latents
    log_likelihood: Array  # (R,), of all points together
    objective: Array  # (R,), with the regularisation
    sums: Array  # (3, R, H, K)
    product: Array  # (R, H, H), of psi_i u_j
    curvature: Array  # (R, H)


class Densities:
    """Evaluates unmixing matrices and source densities on white signals of shape (H, N)."""

    def __init__(self, signals: Array, family: PriorFamily, *, learn: bool, orthogonal: bool):
        self.signals, self.family = signals, family
        self.learn, self.orthogonal = learn, orthogonal

    def visit(self, matrix: Array, prior: Prior) -> Unmixing:
        """All sums at given unmixing matrices and densities."""
        shape = (*matrix.shape[:2], prior.n_components)
        log_density, sums, product, curvature = _kernel.sum_densities(
            self.signals,
            matrix,
            prior.weights.reshape(shape),
            prior.means.reshape(shape),
            prior.variances.reshape(shape),
        )
        volume = np.linalg.slogdet(matrix)[1] * self.signals.shape[1]
        log_likelihood = log_density + volume
        objective = log_likelihood
        if self.learn:
            objective = objective + self.family.penalties(prior, True).reshape(shape[:2]).sum(
                axis=1
            )
        return Unmixing(matrix, prior, log_likelihood, objective, sums, product, curvature)

    def step(self, state: Unmixing) -> Unmixing:
        """One EM update of the densities and one quasi-Newton step of the matrices.

        Both from the sums at `state`. Where the two together gain nothing the step is shortened,
        down to the EM update alone, which cannot fail.
        """
        prior = state.prior
        if self.learn:
            counts, first, second = (s.reshape(prior.weights.shape) for s in state.sums)
            prior = self.family.update(prior, counts, first, second, True)
        direction = self._direction(state)
        new = self.visit(self._moved(state.matrix, direction), prior)
        for length in _LENGTHS[1:]:
            worse = ~(new.objective >= state.objective)
            if not worse.any():
                break
            shorter = self._moved(state.matrix[worse], length * direction[worse])
            new = _replaced(new, worse, self.visit(shorter, rows_of(prior, worse)))
        return _replaced(new, ~(new.objective >= state.objective), state, whole=True)

    def relative_slope(self, state: Unmixing) -> Array:
        """Of the log-likelihood per point, in the relative change E: B becomes (I + E) B."""
        slope = np.eye(state.matrix.shape[1]) - state.product / self.signals.shape[1]
        if self.orthogonal:
            slope = (slope - slope.transpose(0, 2, 1)) / 2
        return slope

    def newton(self, state: Unmixing) -> Callable[[Array], Array]:
        """What turns a relative slope into a quasi-Newton step E. Densities that are learned have
        the scale of their own: then E leaves it alone.

        The Hessian is taken where sources are independent: blocks of the two entries of a pair, or
        one number a pair for rotations.
        """
        n_points = self.signals.shape[1]
        bend = state.curvature / n_points
        n_runs, H = bend.shape
        a = np.broadcast_to(bend[:, :, None], (n_runs, H, H))
        b = a.transpose(0, 2, 1)
        between = 1.0 - np.eye(H)
        if self.orthogonal:
            own = np.diagonal(state.product, axis1=1, axis2=2) / n_points
            stiffness = np.abs(a + b - own[:, :, None] - own[:, None, :])
            width = 2 * between / np.maximum(stiffness, _LEAST_CURVATURE / 2)
            return lambda slope: slope * width
        least = (a + b - np.sqrt((a - b) ** 2 + 4)) / 2
        lift = np.maximum(_LEAST_CURVATURE - least, 0.0)
        a, b = a + lift, b + lift
        width = between / (a * b - 1)
        scale = np.eye(H) * (not self.learn) / (1 + np.maximum(bend, _LEAST_CURVATURE))[:, :, None]
        return lambda slope: (b * slope - np.swapaxes(slope, -1, -2)) * width + slope * scale

    def _direction(self, state: Unmixing) -> Array:
        """A step of the relative change, not too long; (R, H, H)."""
        step = self.newton(state)(self.relative_slope(state))
        return np.clip(step, -_LONGEST, _LONGEST)

    def _moved(self, matrix: Array, step: Array) -> Array:
        eye = np.eye(matrix.shape[1])
        if self.orthogonal:  # Cayley's rotation
            return np.linalg.solve(eye - step / 2, (eye + step / 2) @ matrix)
        moved = (eye + step) @ matrix
        return self.allowed(moved) if self.learn else moved

    def allowed(self, matrix: Array) -> Array:
        """The matrix with what densities that are learned ask of it."""
        if self.orthogonal:  # the nearest rotation
            left, _, right = np.linalg.svd(matrix)
            return left @ right
        return matrix / np.linalg.norm(matrix, axis=2, keepdims=True)


def rows_of(prior: Prior, runs: np.ndarray) -> Prior:
    """The priors of some of the runs."""
    keep = np.repeat(runs, prior.n_latents // len(runs))
    return unchecked(
        Prior,
        weights=prior.weights[keep],
        means=prior.means[keep],
        variances=prior.variances[keep],
    )


def picked(state: Unmixing, runs: np.ndarray) -> Unmixing:
    return Unmixing(
        state.matrix[runs],
        rows_of(state.prior, runs),
        state.log_likelihood[runs],
        state.objective[runs],
        state.sums[:, runs],
        state.product[runs],
        state.curvature[runs],
    )


def _replaced(state: Unmixing, runs: np.ndarray, new: Unmixing, *, whole: bool = False) -> Unmixing:
    """The state with some runs taken from another: which holds these alone, or all with `whole`."""
    if not runs.any():
        return state
    if whole:
        new = picked(new, runs)
    keep = np.repeat(runs, state.matrix.shape[1])

    def put(old: Array, chosen: np.ndarray, values: Array) -> Array:
        old = old.copy()
        old[chosen] = values
        return old

    prior = unchecked(
        Prior,
        weights=put(state.prior.weights, keep, new.prior.weights),
        means=put(state.prior.means, keep, new.prior.means),
        variances=put(state.prior.variances, keep, new.prior.variances),
    )
    sums = state.sums.copy()
    sums[:, runs] = new.sums
    return Unmixing(
        put(state.matrix, runs, new.matrix),
        prior,
        put(state.log_likelihood, runs, new.log_likelihood),
        put(state.objective, runs, new.objective),
        sums,
        put(state.product, runs, new.product),
        put(state.curvature, runs, new.curvature),
    )
