"""The paper's protocol: its start, its EM, its formula for the second moments, its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from scipy.optimize import linear_sum_assignment

from .._arrays import Array
from ..m_step import Model
from ..maximise import Result, maximise
from ..noise import FullNoise, IsotropicNoise
from ..parameters import Parameters
from ..prior import Prior
from ..statistics import Expectation, Statistics

ITERATIONS = 300
HIGH = 0.2  # nats per point below the best run that still count as a high likelihood
_LEARNED = frozenset({"components", "prior", "noise"})  # the paper's model has no offset


def paper_start(Y: Array, n_latents: int, noise: str, rng: Generator) -> Parameters:
    """W ~ N(0, 1), activations in U(.05, 1) (the paper prints 10), and the data's covariance as
    that of the noise.
    """
    covariance = np.cov(Y, rowvar=False, bias=True)
    n_features = len(covariance)
    mixing = rng.standard_normal((n_features, n_latents))
    prior = Prior.spike_and_slab(rng.uniform(0.05, 1.0, n_latents))
    return Parameters(mixing, np.zeros(n_features), prior, noise_of(noise, covariance))


def noise_of(kind: str, covariance: Array) -> IsotropicNoise | FullNoise:
    """The noise of a kind that is closest to a covariance."""
    if kind == "full":
        return FullNoise(covariance)
    return IsotropicNoise(covariance.trace() / len(covariance), len(covariance))


def em(
    Y: Array,
    start: Parameters,
    *,
    printed: bool = False,
    iterations: int = ITERATIONS,
) -> Result:
    """Plain EM for a fixed number of iterations, with the exact or the printed second moments."""
    exact = Expectation(Y, start.noise.kind)
    return maximise(
        as_printed(exact) if printed else exact,
        start,
        Model(noise=start.noise.kind, learn=_LEARNED),
        method="em",
        max_iter=iterations,
        tol=-np.inf,
    )


def as_printed(
    expectation: Callable[[Parameters], Statistics],
) -> Callable[[Parameters], Statistics]:
    """The E-step with the paper's Lambda_s = (W_s' Sigma^-1 W_s + 1)^-1.

    In it the latents that are not in s have variance 1 instead of 0. Of the expectations only the
    diagonal of <(s z)(s z)'> changes: by the probability that a latent is off.
    """

    def statistics_of(parameters: Parameters) -> Statistics:
        s = expectation(parameters)
        return replace(s, xx=s.xx + np.diag(s.counts[:, 0]))

    return statistics_of


def largest_fall(history: Sequence[float]) -> float:
    """The most that a likelihood falls from one iteration to the next; 0 if it never does."""
    return float(max(0.0, -np.diff(history).min(initial=0.0)))


def recovery_errors(found: Parameters, truth: Parameters) -> dict[str, float]:
    """Relative error of W and of Sigma (Frobenius norms) and mean error of pi, after the
    permutation and the signs that make that of W smallest.
    """
    W, V = found.mixing.T, truth.mixing.T
    distances = np.stack([((V[:, None] - sign * W) ** 2).sum(axis=2) for sign in (1, -1)]).min(0)
    rows, columns = linear_sum_assignment(distances)
    scatter = found.noise.covariance - truth.noise.covariance
    pi = found.prior.activation[columns] - truth.prior.activation[rows]
    return {
        "W": float(np.sqrt(distances[rows, columns].sum() / (V**2).sum())),
        "pi": float(np.abs(pi).mean()),
        "Sigma": float(np.linalg.norm(scatter) / np.linalg.norm(truth.noise.covariance)),
    }
