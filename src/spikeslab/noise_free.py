"""Runs of the noise-free model: a rough search side by side, and the way to an optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ._arrays import Array
from .noise_free_climb import NoiseFreeClimb
from .prior import Prior, PriorFamily
from .unmixing import DENSITIES, Densities, picked, rows_of

_PATIENCE = 3  # consecutive small gains that count as convergence


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

    def after(self, earlier: NoiseFreeRun) -> NoiseFreeRun:
        """The same run with what it went on from as its beginning."""
        history = earlier.history + self.history[1:]
        return replace(self, history=history, n_iter=len(history) - 1)


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
        Unmixing matrices to start from; orthogonal ones for `orthogonal`.
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
        run.prior = rows_of(state.prior, np.arange(len(alive)) == i)

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
                state, alive, quiet = picked(state, ~done), alive[~done], quiet[~done]
            if len(alive) == 0:
                break
    except KeyboardInterrupt:
        for i, r in enumerate(alive.tolist()):
            settle(i)
            runs[r].converged, runs[r].reason = False, "interrupted"
    return runs


def climb_noise_free(
    signals: Array,
    start: NoiseFreeRun,
    family: PriorFamily = DENSITIES,
    *,
    orthogonal: bool = False,
    max_iter: int = 300,
    tol: float = 1e-7,
    callback: Callable[[int, float], object] | None = None,
) -> NoiseFreeRun:
    """Maximise the likelihood by quasi-Newton steps from where another run ended; it never falls.

    Parameters and result are those of `maximise_noise_free` for one run; to count as small, a step
    must not promise more than `tol` either.
    """
    n_points = signals.shape[1]
    densities = Densities(signals, family, learn=True, orthogonal=orthogonal)
    run = NoiseFreeRun(start.matrix, start.prior)
    first = densities.visit(densities.allowed(start.matrix[None]), start.prior)
    climb, quiet = NoiseFreeClimb(densities, first), 0
    try:
        state = climb.init(first)
        while True:
            run.matrix, run.prior = state.at.matrix[0], state.at.prior
            run.log_likelihood = float(state.at.log_likelihood[0]) / n_points
            run.history.append(run.log_likelihood)
            run.n_iter = state.iteration
            quiet = quiet + 1 if state.promise < tol else 0
            if callback is not None and callback(state.iteration, run.log_likelihood):
                run.reason = "callback"
            elif quiet == _PATIENCE:
                run.converged, run.reason = True, "converged"
            elif state.iteration < max_iter:
                state = climb.step(state)
                continue
            break
    except KeyboardInterrupt:
        run.reason = "interrupted"
    return run
