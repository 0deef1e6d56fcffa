"""How many E-steps a method takes to come within 1e-6 nats per point of its own limit."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spikeslab import Expectation, Model, Parameters, Statistics, maximise
from spikeslab.initialise import random_start

NEAR = 1e-6
METHODS = ("quasi-newton", "em", "px")


class Run(NamedTuple):
    evaluations: float  # to within NEAR of the limit; infinite if the run ended before
    limit: float  # nats per point


class Recorder:
    """An E-step that notes the log-likelihood per point of every evaluation."""

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation
        self.history: list[float] = []

    def __call__(self, parameters: Parameters) -> Statistics:
        statistics = self._expectation(parameters)
        self.history.append(statistics.log_likelihood / statistics.n)
        return statistics


def run(method: str, X: NDArray[np.float64], seed: int, most: int) -> Run:
    """One run from the paper's start, of at most so many iterations, and its limit.

    The limit is the best of the run and of a long quasi-Newton run from its end.
    """
    X = X - X.mean(axis=0)
    covariance = np.cov(X.T, bias=True)
    model, floor = Model(), 1e-4 * covariance.trace() / len(covariance)
    start = random_start(model, covariance, X.shape[1], np.random.default_rng(seed))
    expectation = Expectation(X)
    recorder = Recorder(expectation)
    tol = 1e-13 if method == "quasi-newton" else -np.inf
    result = maximise(
        recorder, start, model, method=method, noise_floor=floor, max_iter=most, tol=tol
    )
    onward = maximise(
        expectation, result.parameters, model, noise_floor=floor, max_iter=3000, tol=1e-13
    )
    history = np.array(recorder.history)
    limit = max(np.nanmax(history), onward.log_likelihood)
    near = np.flatnonzero(history >= limit - NEAR)
    return Run(near[0] + 1.0 if len(near) else np.inf, limit)
