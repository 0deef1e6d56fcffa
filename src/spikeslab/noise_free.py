"""Maximum likelihood without noise: as many signals as sources, ``u = B z`` with ``z`` white.

The likelihood ``log|det B| + sum_h log p_h(u_h)`` factorises over the sources, so an iteration
costs O(N H K) for densities ``p_h`` of K Gaussians. B is free or orthogonal; the rows of a free B
have norm 1, so every source has unit variance and the densities carry no scale.

Runs from different starts are advanced side by side: the arrays of a state have a leading axis R.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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

_PATIENCE = 3  # consecutive small gains that count as convergence
_LENGTHS = (1.0, 0.3, 0.1, 0.01, 0.0)  # of a step; the last one moves the densities alone
_LONGEST = 0.5  # entry of a step
_LEAST_CURVATURE = 0.1  # eigenvalue of a 2x2 block


class Unmixing(NamedTuple):
    """Unmixing matrices of R runs with the sums over the points that belong to them."""

    matrix: Array  # (R, H, H), rows of norm 1
    prior: Prior  # of R x H latents
    log_likelihood: Array  # (R,), of all points together
    objective: Array  # (R,), with the regularisation
    sums: Array  # (3, R, H, K)
    product: Array  # (R, H, H), of psi_i u_j
    curvature: Array  # (R, H)


@dataclass
class NoiseFreeRun:
    """The outcome of one run, in the coordinates of the white signals.

    Attributes
    ----------
    matrix : array of shape (H, H)
    prior : Prior
    log_likelihood : float
        Per point.
    history : list of float
        Log-likelihood per point after every iteration. The penalised one never falls.
    n_iter : int
    converged : bool
    reason : str
        "converged", "max_iter", "callback" or "interrupted".
    """

    matrix: Array
    prior: Prior
    log_likelihood: float = -np.inf
    history: list[float] = field(default_factory=list)
    n_iter: int = 0
    converged: bool = False
    reason: str = "max_iter"


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
            new = _replaced(new, worse, self.visit(shorter, _rows(prior, worse)))
        return _replaced(new, ~(new.objective >= state.objective), state, whole=True)

    def _direction(self, state: Unmixing) -> Array:
        """Quasi-Newton step of the relative change E, B becoming (I + E) B; (R, H, H).

        The Hessian is taken where sources are independent: blocks of the two entries of a pair, or
        one number a pair for rotations.
        """
        n_points = self.signals.shape[1]
        G = state.product / n_points
        bend = state.curvature / n_points
        swapped = G.transpose(0, 2, 1)
        a = np.broadcast_to(bend[:, :, None], G.shape)
        b = a.transpose(0, 2, 1)
        if self.orthogonal:
            own = np.diagonal(G, axis1=1, axis2=2)
            stiffness = np.abs(a + b - own[:, :, None] - own[:, None, :])
            step = (swapped - G) / np.maximum(stiffness, _LEAST_CURVATURE / 2)
        else:
            least = (a + b - np.sqrt((a - b) ** 2 + 4)) / 2
            lift = np.maximum(_LEAST_CURVATURE - least, 0.0)
            a, b = a + lift, b + lift
            step = (swapped - b * G) / (a * b - 1)
        step = np.clip(step, -_LONGEST, _LONGEST)
        H = G.shape[1]
        step[:, range(H), range(H)] = 0.0
        return step

    def _moved(self, matrix: Array, step: Array) -> Array:
        eye = np.eye(matrix.shape[1])
        if self.orthogonal:  # Cayley's rotation
            return np.linalg.solve(eye - step / 2, (eye + step / 2) @ matrix)
        moved = (eye + step) @ matrix
        return moved / np.linalg.norm(moved, axis=2, keepdims=True)


def _rows(prior: Prior, runs: np.ndarray) -> Prior:
    """The priors of some of the runs."""
    keep = np.repeat(runs, prior.n_latents // len(runs))
    return unchecked(
        Prior,
        weights=prior.weights[keep],
        means=prior.means[keep],
        variances=prior.variances[keep],
    )


def _picked(state: Unmixing, runs: np.ndarray) -> Unmixing:
    return Unmixing(
        state.matrix[runs],
        _rows(state.prior, runs),
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
        new = _picked(new, runs)
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


def maximise_noise_free(
    signals: Array,
    matrix: Array,
    prior: Prior,
    family: PriorFamily = DENSITIES,
    *,
    orthogonal: bool = False,
    learn: bool = True,
    max_iter: int = 300,
    tol: float = 1e-7,
    callback: Callable[[int, int, float], object] | None = None,
) -> list[NoiseFreeRun]:
    """Maximise the likelihood from R starts; none of them ever falls.

    Parameters
    ----------
    signals : array of shape (H, N)
        White: zero mean, unit covariance.
    matrix : array of shape (R, H, H)
        Unmixing matrices to start from, rows of norm 1; orthogonal ones for `orthogonal`.
    prior : Prior of R x H latents
        Densities to start from, those of the first run first.
    family : PriorFamily
        The densities that are allowed.
    orthogonal : bool
        Keep B orthogonal.
    learn : bool
        Learn the densities; else B alone.
    max_iter, tol :
        A run ends when three iterations in a row gain less than `tol` per point.
    callback : callable, optional
        Called with (run, iteration, log-likelihood per point); returning True ends that run.

    Returns
    -------
    list of NoiseFreeRun
        Also after Ctrl-C: where the runs were, with reason "interrupted".
    """
    n_points = signals.shape[1]
    densities = Densities(signals, family, learn=learn, orthogonal=orthogonal)
    state = densities.visit(matrix, prior)
    runs = [NoiseFreeRun(matrix[r], prior) for r in range(len(matrix))]
    alive = np.arange(len(matrix))
    quiet = np.zeros(len(matrix), np.int64)

    def settle(i: int) -> None:
        """Let the run at place i of the state end here."""
        run = runs[alive[i]]
        run.log_likelihood = float(state.log_likelihood[i]) / n_points
        run.matrix = state.matrix[i]
        run.prior = _rows(state.prior, np.arange(len(alive)) == i)

    try:
        for iteration in range(max_iter + 1):
            if iteration > 0:
                before = state.objective
                state = densities.step(state)
                small = state.objective - before < tol * n_points
                quiet = np.where(small, quiet + 1, 0)
            values = (state.log_likelihood / n_points).tolist()
            for r, value in zip(alive.tolist(), values, strict=True):
                runs[r].history.append(value)
                runs[r].n_iter = iteration
            done = np.full(len(alive), iteration == max_iter)
            for i, r in enumerate(alive.tolist()):
                if callback is not None and callback(r, iteration, values[i]):
                    runs[r].reason, done[i] = "callback", True
                elif quiet[i] >= _PATIENCE:
                    runs[r].converged, runs[r].reason, done[i] = True, "converged", True
            if done.any():
                for i in np.flatnonzero(done).tolist():
                    settle(i)
                state, alive, quiet = _picked(state, ~done), alive[~done], quiet[~done]
            if len(alive) == 0:
                break
    except KeyboardInterrupt:
        for i, r in enumerate(alive.tolist()):
            settle(i)
            runs[r].converged, runs[r].reason = False, "interrupted"
    return runs
