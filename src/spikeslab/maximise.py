"""Maximum likelihood from an E-step and Statistics: EM, PX-EM and quasi-Newton EM.

Nothing here sees the data: `statistics_of(parameters)` may be local, blocked, threaded or spread
over a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtrs

from ._arrays import Array
from .coordinates import Coordinates
from .m_step import Model, m_step
from .parameters import Parameters
from .statistics import Statistics

Method = Literal["em", "px", "quasi-newton"]

DEFAULT_MODEL = Model()

_PATIENCE = 3  # consecutive small gains that count as convergence
_TRIES = 2  # step lengths before the curvature is forgotten


class State(NamedTuple):
    """Where the optimisation stands, after an E-step."""

    parameters: Parameters
    statistics: Statistics
    objective: float  # log-likelihood and regularisation, all points together
    promise: float  # gain of the objective that this step made, or that the next one promises


@dataclass(frozen=True)
class Progress:
    """What a callback is told after every iteration. A callback that returns True ends the run."""

    run: int
    iteration: int
    log_likelihood: float  # per point
    parameters: Parameters | None  # None from models without noise


@dataclass
class Result:
    """The outcome of one run.

    Attributes
    ----------
    parameters : Parameters
    log_likelihood : float
        Per point.
    history : list of float
        Log-likelihood per point after every iteration. It never falls (with regularisation, the
        penalised log-likelihood never does).
    n_iter : int
    n_evaluations : int
        E-steps, including those of steps that were not taken.
    converged : bool
    reason : str
        "converged", "max_iter", "callback" or "interrupted".
    """

    parameters: Parameters
    log_likelihood: float
    history: list[float] = field(default_factory=list)
    n_iter: int = 0
    n_evaluations: int = 0
    converged: bool = False
    reason: str = "max_iter"


class Maximiser:
    """The steps of one run: a model, an E-step, and a floor under the noise."""

    def __init__(self, model: Model, statistics_of: Callable[[Parameters], Statistics]) -> None:
        self.model = model
        self._statistics_of = statistics_of
        self.n_evaluations = 0

    def visit(self, parameters: Parameters, expand: bool, last: float = np.nan) -> State:
        """The E-step at given parameters."""
        statistics = self._statistics_of(parameters)
        self.n_evaluations += 1
        expand = expand and self.model.expandable(parameters.prior)
        penalty = float(self.model.prior.penalties(parameters.prior, expand).sum())
        objective = statistics.log_likelihood + penalty
        if not np.isfinite(objective):
            objective = -np.inf
        return State(parameters, statistics, objective, objective - last)

    def _attempt(self, coordinates: Coordinates, theta: Array, state: State) -> State:
        """The E-step at trial coordinates; where they are too extreme to compute with, no gain."""
        hopeless = state._replace(objective=-np.inf)
        if not np.isfinite(theta).all():
            return hopeless
        try:
            return self.visit(coordinates.unpack(theta), True)
        except ValueError:  # which a LinAlgError is, too
            return hopeless

    def em(
        self, state: State, floors: Iterator[float], expand: bool
    ) -> Generator[State, None, State]:
        """EM, or PX-EM with `expand`: one state per noise floor; returns the last."""
        for floor in floors:
            parameters = m_step(self.model, state.parameters, state.statistics, floor, expand)
            state = self.visit(parameters, expand, state.objective)
            yield state
        return state

    def quasi_newton(self, state: State, floor: float) -> Iterator[State]:
        """L-BFGS whose first guess of the curvature is EM's: its first step is EM's to first order.

        No accepted step lowers the objective. Where neither of two step lengths gains, the
        curvature is forgotten and a PX-EM step taken, which cannot fail.
        """
        coordinates = Coordinates(self.model, state.parameters, floor)
        theta = coordinates.pack(state.parameters)
        gradient, metric = coordinates.gradient(theta, state.parameters, state.statistics)
        curvature = Curvature(len(theta))
        while True:
            step = curvature.step(gradient, metric)
            slope = float(gradient @ step)
            if not slope > 0:  # rounding has spoilt the curvature
                curvature.clear()
                step = metric(gradient)
                slope = float(gradient @ step)
            new_theta, new = theta, state
            length, taken = 1.0, False
            for _ in range(_TRIES):
                new_theta = theta + length * step
                new = self._attempt(coordinates, new_theta, state)
                gain = new.objective - state.objective
                if gain >= max(1e-4 * length * slope, 0.0):
                    taken = True
                    break
                shrink = length * slope / (2 * (length * slope - gain))
                length *= min(max(shrink, 0.1), 0.5) if np.isfinite(shrink) else 0.1
            if not taken:
                curvature.clear()
                new = next(self.em(state, iter([floor]), True))
                if new.objective < state.objective:  # rounding: there is nothing left to gain
                    yield state._replace(promise=0.0)
                    continue
                new_theta = coordinates.pack(new.parameters)
            old_gradient = gradient
            gradient, metric = coordinates.gradient(new_theta, new.parameters, new.statistics)
            curvature.add(new_theta - theta, old_gradient - gradient)
            promise = slope / 2 if taken else new.promise
            theta, state = (
                new_theta,
                new._replace(promise=max(promise, new.objective - state.objective)),
            )
            yield state


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


def maximise(
    statistics_of: Callable[[Parameters], Statistics],
    start: Parameters,
    model: Model = DEFAULT_MODEL,
    *,
    method: Method = "quasi-newton",
    noise_floor: float = 1e-10,
    anneal_from: float = 0.0,
    anneal_iterations: int = 100,
    max_iter: int = 1000,
    tol: float = 1e-7,
    callback: Callable[[Progress], object] | None = None,
    run: int = 0,
) -> Result:
    """Maximise the likelihood from a starting point; it never falls.

    Parameters
    ----------
    statistics_of : callable
        The E-step, for example an `Expectation`.
    start : Parameters
    model : Model
        What is learned.
    method : {"quasi-newton", "em", "px"}
        Quasi-Newton EM needs a small fraction of the iterations; "em" is the paper's, "px" learns
        the slabs' scale too.
    noise_floor : float
        Least noise variance (or eigenvalue of the noise covariance).
    anneal_from : float
        Where larger, the floor falls geometrically from here to `noise_floor` over the first
        `anneal_iterations` iterations, which are EM steps.
    max_iter : int
        Iterations, each of one accepted E-step.
    tol : float
        Stop when three iterations in a row gain less than this per point (quasi-Newton: nor promise
        more).
    callback : callable, optional
        Called with a Progress after every iteration; returning True ends the run.
    run : int
        Number of this run, for the callback.

    Returns
    -------
    Result
        Also after Ctrl-C: the best parameters so far, with reason "interrupted".
    """
    anneal = anneal_iterations if anneal_from > noise_floor and "noise" in model.learn else 0
    floors = noise_floor * (max(anneal_from, noise_floor) / noise_floor) ** (
        1 - np.arange(1, anneal + 1) / max(anneal, 1)
    )
    if "noise" in model.learn:
        floor = floors[0] if anneal else noise_floor
        start = replace(start, noise=start.noise.at_least(floor))
    expand = method != "em"
    maximiser = Maximiser(model, statistics_of)
    result = Result(start, -np.inf)

    def steps() -> Generator[State, None, None]:
        state = maximiser.visit(start, expand)
        yield state
        state = yield from maximiser.em(state, iter(floors), expand)
        if method == "quasi-newton":
            # one EM step cures a badly scaled start
            state = yield from maximiser.em(state, iter([noise_floor]), True)
            yield from maximiser.quasi_newton(state, noise_floor)
        else:
            yield from maximiser.em(state, iter(lambda: noise_floor, None), expand)

    quiet = 0
    try:
        for iteration, state in enumerate(steps()):
            n = state.statistics.n
            result.parameters = state.parameters
            result.log_likelihood = state.statistics.log_likelihood / n
            result.history.append(result.log_likelihood)
            result.n_iter = iteration
            if callback is not None and callback(
                Progress(run, iteration, result.log_likelihood, model.canonical(state.parameters))
            ):
                result.reason = "callback"
                break
            quiet = quiet + 1 if iteration > anneal and state.promise < tol * n else 0
            if quiet == _PATIENCE:
                result.converged, result.reason = True, "converged"
                break
            if iteration >= max_iter:
                break
    except KeyboardInterrupt:
        result.reason = "interrupted"
    result.parameters = model.canonical(result.parameters)
    result.n_evaluations = maximiser.n_evaluations
    return result
