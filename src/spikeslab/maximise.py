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

from ._arrays import Array, unchecked
from .checkpoint import Journal
from .coordinates import Coordinates
from .m_step import Model, m_step
from .parameters import Parameters
from .quasi_newton import Curvature, State, Tangent, quasi_newton_step
from .statistics import Statistics

Method = Literal["em", "px", "quasi-newton"]

DEFAULT_MODEL = Model()

_PATIENCE = 3  # consecutive small gains that count as convergence
_GRACE = 20  # iterations after the annealing in which noise may come back


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
        Log-likelihood per point after every iteration. A bound may fall a little where its states
        are chosen anew; a likelihood never does (with regularisation, the
        penalised log-likelihood never does).
    n_iter : int
    n_evaluations : int
        E-steps, including those of steps that were not taken.
    converged : bool
    reason : str
        "converged", "no noise", "max_iter", "callback" or "interrupted".
    """

    parameters: Parameters
    log_likelihood: float
    history: list[float] = field(default_factory=list)
    n_iter: int = 0
    n_evaluations: int = 0
    converged: bool = False
    reason: str = "max_iter"

    def after(self, earlier: Result) -> Result:
        """The same run with what it went on from as its beginning."""
        history = earlier.history + self.history[1:]
        evaluations = earlier.n_evaluations + self.n_evaluations
        return replace(self, history=history, n_iter=len(history) - 1, n_evaluations=evaluations)

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


class Visit(NamedTuple):
    """Parameters with the E-step there."""

    parameters: Parameters
    statistics: Statistics


At = State[Visit]


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

    def init(self, parameters: Parameters) -> At:
        return self._visit(parameters, 0)

    def step(self, state: At) -> At:
        """EM while the noise is annealed, then what the method says."""
        done, annealed = state.iteration, len(self._annealed)
        if self._method == "quasi-newton" and done > annealed:
            return quasi_newton_step(self, state)
        # also with quasi-Newton: one EM step cures a badly scaled start
        return self._em(state, self._annealed[done] if done < annealed else self._noise_floor)

    def arrays(self, state: At) -> dict[str, np.ndarray]:
        """What of a state cannot be computed from its iteration and parameters."""
        if state.tangent is None:
            return {}
        tangent = {"theta": state.tangent.theta, "falls": np.array(state.falls)}
        return tangent | state.tangent.curvature.arrays()

    def restore(self, result: Result, arrays: dict[str, np.ndarray]) -> At:
        """The state that had these arrays, by one E-step from the result so far."""
        # its constructor has changed the layout of the mixing, on which the last bits depend
        parameters = unchecked(Parameters, **vars(result.parameters) | {"mixing": arrays["mixing"]})
        state = self._visit(parameters, result.n_iter)
        self.n_evaluations = result.n_evaluations
        if "theta" not in arrays:
            return state
        state = self.tangent(arrays["theta"], Curvature.from_arrays(arrays), state)
        return state._replace(falls=int(arrays.get("falls", 0)))

    def _visit(self, parameters: Parameters, iteration: int, last: float = np.nan) -> At:
        """The E-step at given parameters."""
        statistics = self._statistics_of(parameters)
        self.n_evaluations += 1
        expand = self._method != "em" and self._model.expandable(parameters.prior)
        penalty = float(self._model.prior.penalties(parameters.prior, expand).sum())
        objective = statistics.log_likelihood + penalty
        if not np.isfinite(objective):
            objective = -np.inf
        return At(iteration, Visit(parameters, statistics), objective, objective - last)

    # ---- what a quasi-Newton step asks of the model ----

    def coordinates(self, state: At) -> Array:
        return self._coordinates.pack(state.at.parameters)

    def tangent(self, theta: Array, curvature: Curvature, state: At) -> At:
        slope = self._coordinates.gradient(theta, state.at.parameters, state.at.statistics)
        return state._replace(tangent=Tangent(theta, *slope, curvature))

    def attempt(self, theta: Array, state: At) -> At:
        hopeless = state._replace(objective=-np.inf)
        if not np.isfinite(theta).all():
            return hopeless
        try:
            return self._visit(self._coordinates.unpack(theta), state.iteration + 1)
        except ValueError:  # which a LinAlgError is, too
            return hopeless

    def certain(self, state: At) -> At:
        return self._em(state, self._noise_floor)

    def _em(self, state: At, floor: float) -> At:
        """EM, or PX-EM, with a floor under the noise."""
        parameters = m_step(
            self._model, state.at.parameters, state.at.statistics, floor, self._method != "em"
        )
        return self._visit(parameters, state.iteration + 1, state.objective)


def maximise(
    statistics_of: Callable[[Parameters], Statistics],
    start: Parameters,
    model: Model = DEFAULT_MODEL,
    *,
    method: Method = "quasi-newton",
    noise_floor: float = 1e-10,
    anneal_from: float = 0.0,
    anneal_iterations: int = 100,
    least_noise: float = 0.0,
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
    least_noise : float
        A run ends, with reason "no noise", when twenty iterations after the annealing none of the
        noise variances is larger: for models that are of no use then.
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
            n = state.at.statistics.n
            result.parameters = state.at.parameters
            result.log_likelihood = state.at.statistics.log_likelihood / n
            result.history.append(result.log_likelihood)
            result.n_iter = state.iteration
            result.n_evaluations = maximiser.n_evaluations
            if callback is not None:
                rate, begun = n / (perf_counter() - begun), perf_counter()
                found = model.canonical(state.at.parameters)
                if callback(Progress(run, state.iteration, result.log_likelihood, found, rate)):
                    result.reason = "callback"
                    break
            quiet = quiet + 1 if state.iteration > anneal and state.promise < tol * n else 0
            if quiet == _PATIENCE:
                result.converged, result.reason = True, "converged"
                break
            noise = state.at.parameters.noise.values
            if state.iteration >= anneal + _GRACE and noise.max() <= least_noise:
                result.reason = "no noise"
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
