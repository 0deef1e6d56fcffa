"""What truncated inference does about missing values beside the kernel: points of which nothing is
observed, and soft bases, whose covariance is another for every pattern of observed entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from ._arrays import Array
from .missing import by_pattern, joined
from .noise import NOISES
from .parameters import Parameters
from .posterior import Moments, Supports

if TYPE_CHECKING:
    from .truncated import TruncatedInference

_LOG_2_PI = float(np.log(2 * np.pi))


def unobserved_density(parameters: Parameters, missing: np.ndarray) -> Array:
    """Log density of the noise at 0 in the missing entries, (N,) of a mask (N, D)."""
    each = (np.log(parameters.noise.precision) - _LOG_2_PI) / 2
    return np.asarray(missing @ each)


def prior_moments(parameters: Parameters, weights: Array, each: bool) -> Moments:
    """Moments of points of which nothing is observed."""
    prior, n = parameters.prior, float(weights.sum())
    shown = len(weights) if each else 0
    moments = Moments(
        np.zeros(len(weights)),
        np.tile(prior.mean, (shown, 1)),
        np.tile(prior.weights, (shown, 1, 1)),
        n * prior.weights,
        n * prior.weights * prior.means,
        n * prior.weights * (prior.variances + prior.means**2),
        n * (np.diag(prior.variance) + np.outer(prior.mean, prior.mean)),
        np.zeros_like(parameters.mixing),
    )
    return _completed(parameters, np.ones(parameters.n_features, bool), n, moments)


def _completed(parameters: Parameters, missing: np.ndarray, n: float, moments: Moments) -> Moments:
    """Moments with the expectations of the features (D,) that all of the n points miss."""
    W = np.where(missing[:, None], parameters.mixing, 0.0)
    c = np.where(missing, parameters.offset, 0.0)
    x = moments.first.sum(axis=1)
    predicted, pulled = W @ x, W @ moments.outer
    cross = np.where(missing[:, None], np.outer(c, x) + pulled, moments.cross)
    factors = np.column_stack([W, c, missing])
    squares = np.column_stack([pulled, 2 * predicted + n * c, n / parameters.noise.precision])
    yy = NOISES[parameters.noise.kind].product(factors, squares)
    return moments._replace(cross=cross, y=predicted + n * c, yy=yy)


class PatternwiseInference:
    """The methods of `TruncatedInference` for points that are grouped by what they miss. The cost
    grows with the number of patterns.
    """

    def __init__(
        self, parameters: Parameters, infer: Callable[[Parameters], TruncatedInference]
    ) -> None:
        self._parameters, self._infer = parameters, infer

    def _groups(
        self, Y: Array
    ) -> Iterator[tuple[np.ndarray, np.ndarray, TruncatedInference, Array]]:
        """For each pattern its rows, the missing features, inference in which x has no part in
        these, and the points with anything in their place.
        """
        for rows, known, filled in by_pattern(self._parameters, Y):
            yield rows, np.isnan(Y[rows[0]]), self._infer(known), filled

    def log_evidence(self, Y: Array) -> Array:
        found = -unobserved_density(self._parameters, np.isnan(Y))
        for rows, _, inference, filled in self._groups(Y):
            found[rows] += inference.log_evidence(filled)
        return found

    def moments(self, Y: Array, each: bool, weights: Array | None) -> Moments:
        parts = []
        for rows, missing, inference, filled in self._groups(Y):
            some = np.ones(len(rows)) if weights is None else weights[rows]
            moments = inference.moments(filled, each, some)
            moments = _completed(self._parameters, missing, float(some.sum()), moments)
            density = unobserved_density(self._parameters, missing)
            parts.append((rows, moments._replace(log_evidence=moments.log_evidence - density)))
        return joined(parts)

    def states(self, Y: Array) -> tuple[np.ndarray, np.ndarray]:
        return self._placed(Y, lambda inference, filled: inference.states(filled))

    def mean_and_spread(self, Y: Array, form: Array) -> tuple[Array, Array, Array]:
        log_evidence, mean, spread = self._placed(
            Y, lambda inference, filled: inference.mean_and_spread(filled, form)
        )
        return log_evidence - unobserved_density(self._parameters, np.isnan(Y)), mean, spread

    def supports(self, Y: Array, k: int) -> Supports:
        return Supports(*self._placed(Y, lambda inference, filled: inference.supports(filled, k)))

    def sample(self, Y: Array, n_samples: int, rng: Generator) -> Array:
        drawn = np.empty((n_samples, len(Y), self._parameters.n_latents))
        for rows, _, inference, filled in self._groups(Y):
            drawn[:, rows] = inference.sample(filled, n_samples, rng)
        return drawn

    def _placed(self, Y: Array, answer: Callable[[TruncatedInference, Array], tuple]) -> tuple:
        """Arrays over the points, in their order."""
        rows, found = zip(
            *((rows, answer(inference, filled)) for rows, _, inference, filled in self._groups(Y)),
            strict=True,
        )
        order = np.argsort(np.concatenate(rows))
        return tuple(np.concatenate(values)[order] for values in zip(*found, strict=True))
