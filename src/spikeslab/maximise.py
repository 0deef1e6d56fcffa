"""Maximum likelihood from an E-step and Statistics: EM, PX-EM and quasi-Newton EM.

Nothing here sees the data: `statistics_of(parameters)` may be local, blocked, threaded or spread
over a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtrs

from ._arrays import Array, unchecked
from .checkpoint import Journal
from .coordinates import Coordinates
from .m_step import Model, m_step
from .parameters import Parameters
from .statistics import Statistics

Method = Literal["em", "px", "quasi-newton"]

DEFAULT_MODEL = Model()

_PATIENCE = 3  # consecutive small gains that count as convergence
_TRIES = 2  # step lengths before the curvature is forgotten


@dataclass(frozen=True)
class Progress:
    """What a callback is told after every iteration. A callback that returns True ends the run."""

    run: int
    iteration: int
    log_likelihood: float  # per point
    parameters: Parameters | None  # None from models without noise
    points_per_second: float = np.nan  # of the data over the time of this iteration


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

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays: what a checkpoint holds."""
        return self.parameters.arrays() | {
            "history": np.array(self.history),
            "n_evaluations": np.array(self.n_evaluations),
            "reason": np.array(self.reason),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Result:
        history, reason = arrays["history"].tolist(), str(arrays["reason"])
        return cls(
            Parameters.from_arrays(arrays),
            history[-1],
            history,
            len(history) - 1,
            int(arrays["n_evaluations"]),
            reason == "converged",
            reason,
        )


class State(NamedTuple):
    """Where the optimisation stands, after an E-step: all that the next step depends on."""

    iteration: int
    parameters: Parameters
    statistics: Statistics
    objective: float  # log-likelihood and regularisation, all points together
    promise: float  # gain of the objective that this step made, or that the next one promises
    tangent: Tangent | None = None  # once there has been a quasi-Newton step


class Tangent(NamedTuple):
    """The model's free coordinates at a state, the slope there, and what steps have taught."""

    theta: Array
    gradient: Array
    metric: Callable[[Array], Array]
    curvature: Curvature  # updated in place: a state is good for one step


class Maximiser:
    """The steps of one run: `init` makes a state, `step` the next one of a state.

    `arrays` writes a state down and `restore` reads it, bit for bit.
    """

    def __init__(
        self,
        statistics_of: Callable[[Parameters], Statistics],
        start: Parameters,
        model: Model,
        method: Method,
        noise_floor: float,
        annealed: Array,
    ) -> None:
        self._statistics_of, self._model, self._method = statistics_of, model, method
        self._noise_floor, self._annealed = noise_floor, annealed
        self._coordinates = Coordinates(model, start, noise_floor)
        self.n_evaluations = 0

    def init(self, parameters: Parameters) -> State:
        return self._visit(parameters, 0)

    def step(self, state: State) -> State:
        """EM while the noise is annealed, then what the method says."""
        done, annealed = state.iteration, len(self._annealed)
        if self._method == "quasi-newton" and done > annealed:
            return self._quasi_newton(state)
        # also with quasi-Newton: one EM step cures a badly scaled start
        return self._em(state, self._annealed[done] if done < annealed else self._noise_floor)

    def arrays(self, state: State) -> dict[str, np.ndarray]:
        """What of a state cannot be computed from its iteration and parameters."""
        if state.tangent is None:
            return {}
        return {"theta": state.tangent.theta, **state.tangent.curvature.arrays()}

    def restore(self, result: Result, arrays: dict[str, np.ndarray]) -> State:
        """The state that had these arrays, by one E-step from the result so far."""
        # its constructor has changed the layout of the mixing, on which the last bits depend
        parameters = unchecked(Parameters, **vars(result.parameters) | {"mixing": arrays["mixing"]})
        state = self._visit(parameters, result.n_iter)
        self.n_evaluations = result.n_evaluations
        if "theta" not in arrays:
            return state
        return self._at(arrays["theta"], Curvature.from_arrays(arrays), state)

    def _visit(self, parameters: Parameters, iteration: int, last: float = np.nan) -> State:
        """The E-step at given parameters."""
        statistics = self._statistics_of(parameters)
        self.n_evaluations += 1
        expand = self._method != "em" and self._model.expandable(parameters.prior)
        penalty = float(self._model.prior.penalties(parameters.prior, expand).sum())
        objective = statistics.log_likelihood + penalty
        if not np.isfinite(objective):
            objective = -np.inf
        return State(iteration, parameters, statistics, objective, objective - last)

    def _at(self, theta: Array, curvature: Curvature, state: State) -> State:
        """A state with its tangent."""
        slope = self._coordinates.gradient(theta, state.parameters, state.statistics)
        return state._replace(tangent=Tangent(theta, *slope, curvature))

    def _attempt(self, theta: Array, state: State) -> State:
        """The E-step at trial coordinates; where they are too extreme to compute with, no gain."""
        hopeless = state._replace(objective=-np.inf)
        if not np.isfinite(theta).all():
            return hopeless
        try:
            return self._visit(self._coordinates.unpack(theta), state.iteration + 1)
        except ValueError:  # which a LinAlgError is, too
            return hopeless

    def _em(self, state: State, floor: float) -> State:
        """EM, or PX-EM, with a floor under the noise."""
        parameters = m_step(
            self._model, state.parameters, state.statistics, floor, self._method != "em"
        )
        return self._visit(parameters, state.iteration + 1, state.objective)

    def _quasi_newton(self, state: State) -> State:
        """L-BFGS whose first guess of the curvature is EM's: its first step is EM's to first order.

        No accepted step lowers the objective. Where neither of two step lengths gains, the
        curvature is forgotten and a PX-EM step taken, which cannot fail.
        """
        if state.tangent is None:
            theta = self._coordinates.pack(state.parameters)
            state = self._at(theta, Curvature(len(theta)), state)
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
            new = self._attempt(new_theta, state)
            gain = new.objective - state.objective
            if gain >= max(1e-4 * length * slope, 0.0):
                promise = slope / 2
                break
            shrink = length * slope / (2 * (length * slope - gain))
            length *= min(max(shrink, 0.1), 0.5) if np.isfinite(shrink) else 0.1
        else:
            curvature.clear()
            new = self._em(state, self._noise_floor)
            gain = promise = new.promise
            if gain < 0:  # rounding: there is nothing left to gain
                return state._replace(iteration=state.iteration + 1, promise=0.0)
            new_theta = self._coordinates.pack(new.parameters)
        new = self._at(new_theta, curvature, new)._replace(promise=max(promise, gain))
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
    journal: Journal | None = None,
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
    journal : Journal, optional
        Where the run is kept while it goes on. What is found there is gone on with, bit for bit; a
        finished run is returned at once.

    Returns
    -------
    Result
        Also after Ctrl-C: the best parameters so far, with reason "interrupted".
    """
    saved = None if journal is None else journal.saved
    if saved is not None and "quiet" not in saved:  # finished
        return Result.from_arrays(saved)
    anneal = anneal_iterations if anneal_from > noise_floor and "noise" in model.learn else 0
    floors = noise_floor * (max(anneal_from, noise_floor) / noise_floor) ** (
        1 - np.arange(1, anneal + 1) / max(anneal, 1)
    )
    if "noise" in model.learn:
        floor = floors[0] if anneal else noise_floor
        start = replace(start, noise=start.noise.at_least(floor))
    maximiser = Maximiser(statistics_of, start, model, method, noise_floor, floors)
    result, state, quiet = Result(start, -np.inf), None, 0
    begun = perf_counter()
    try:
        if saved is not None:
            result, quiet = Result.from_arrays(saved), int(saved["quiet"])
            state = maximiser.restore(result, saved)
        while True:
            state = maximiser.init(start) if state is None else maximiser.step(state)
            n = state.statistics.n
            result.parameters = state.parameters
            result.log_likelihood = state.statistics.log_likelihood / n
            result.history.append(result.log_likelihood)
            result.n_iter = state.iteration
            result.n_evaluations = maximiser.n_evaluations
            if callback is not None:
                rate, begun = n / (perf_counter() - begun), perf_counter()
                found = model.canonical(state.parameters)
                if callback(Progress(run, state.iteration, result.log_likelihood, found, rate)):
                    result.reason = "callback"
                    break
            quiet = quiet + 1 if state.iteration > anneal and state.promise < tol * n else 0
            if quiet == _PATIENCE:
                result.converged, result.reason = True, "converged"
                break
            if state.iteration >= max_iter:
                break
            if journal is not None and journal.due:
                journal.keep(result.arrays() | maximiser.arrays(state) | {"quiet": np.array(quiet)})
    except KeyboardInterrupt:
        result.reason = "interrupted"
    result.parameters = model.canonical(result.parameters).as_read()
    result.n_evaluations = maximiser.n_evaluations
    if journal is not None and result.reason != "interrupted":
        journal.keep(result.arrays())
    return result
