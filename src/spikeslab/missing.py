"""Missing values: exact inference from what was observed of each point.

A missing entry is integrated out like a latent: the posterior of x follows from the observed
entries alone, and given x a missing entry is Gaussian, ``y_d ~ N(c_d + W_d x, sigma_d^2)``. So the
complete data of EM are x and the missing entries. Their expectations enter the sums where the
entries themselves would, and neither the M-step nor the gradient can tell the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from ._arrays import Array
from .noise import NOISES
from .parameters import Parameters
from .posterior import Inference, Moments, Supports

REFUSED = (
    "X has missing values (NaN), which noise='full' cannot take; "
    "use noise='isotropic' or 'diagonal'"
)


def has_missing(Y: np.ndarray) -> bool:
    """Whether there is a NaN, in one fast pass; infinities are for others to refuse."""
    return bool(np.isnan(np.vdot(Y, Y)))


def informative(Y: np.ndarray) -> np.ndarray:
    """Which rows have something observed, (N,)."""
    return ~np.isnan(Y).all(axis=1)


def patterns(Y: Array) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each pattern of observed entries (D,), with the numbers of the rows that have it."""
    unique, of_row = np.unique(~np.isnan(Y), axis=0, return_inverse=True)
    by_pattern = np.argsort(of_row.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(of_row.ravel(), minlength=len(unique)))
    yield from zip(unique, np.split(by_pattern, ends[:-1]), strict=True)


def by_pattern(parameters: Parameters, Y: Array) -> Iterator[tuple[np.ndarray, Parameters, Array]]:
    """For each pattern: the numbers of its rows, parameters with which x has no part in the missing
    features, and the rows with anything, here the offset, in place of these.
    """
    for observed, rows in patterns(Y):
        known = replace(parameters, mixing=np.where(observed[:, None], parameters.mixing, 0.0))
        yield rows, known, np.where(observed, Y[rows], parameters.offset)


def joined(parts: Iterable[tuple[np.ndarray, Moments]]) -> Moments:
    """Moments of all rows from those of disjoint sets of them."""
    numbers, moments = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(numbers))
    each = [np.concatenate(values) for values in zip(*(m[:3] for m in moments), strict=True)]
    sums = [sum(values[1:], values[0]) for values in zip(*(m[3:] for m in moments), strict=True)]
    return Moments(*(values[order] if len(values) else values for values in each), *sums)


class InferenceWithMissing(Inference):
    """Exact inference in which NaN is an entry that was not observed.

    Blocks without NaN are what they are in `Inference`. For the others the kernel gives every point
    the precision of its own observed entries, so that patterns of missingness need not be grouped.
    """

    def log_evidence(self, Y: Array) -> Array:
        """Log density of what is observed of each row of Y, (N,); 0 where nothing is."""
        if not has_missing(Y):
            return super().log_evidence(Y)
        return self._observed.incomplete_evidence(self._separable(Y))

    def moments(self, Y: Array, each: bool = False) -> Moments:
        if not has_missing(Y):
            return super().moments(Y, each)
        Y = self._separable(Y)
        holed = np.isnan(Y).any(axis=1)
        if each or holed.all():
            return self._completed(Y, each)
        complete, completed = np.flatnonzero(~holed), np.flatnonzero(holed)
        return joined(
            [
                (complete, super().moments(Y[complete])),
                (completed, self._completed(Y[completed], False)),
            ]
        )

    def _completed(self, Y: Array, each: bool) -> Moments:
        """Moments by the kernel that is slower, but takes missing entries."""
        log_density, mean, probabilities, _, sums, outer, cross, missing_x, missing_xx = (
            self._observed.incomplete_moments(Y, each)
        )
        # sums over the points that miss a feature, by feature: their number, <x> and <xx'>
        W, c = self.parameters.mixing, self.parameters.offset
        missing = np.isnan(Y).sum(axis=0)
        predicted = np.einsum("dh,dh->d", W, missing_x)
        pulled = np.einsum("dh,dhk->dk", W, missing_xx)
        cross += c[:, None] * missing_x + pulled
        variance = missing / self.parameters.noise.precision
        factors = np.column_stack([W, c, np.ones_like(c)])
        squares = np.column_stack([pulled, 2 * predicted + missing * c, variance])
        return Moments(
            log_density,
            mean,
            probabilities,
            sums[0],
            sums[1],
            sums[2],
            outer,
            cross,
            missing * c + predicted,
            NOISES[self.parameters.noise.kind].product(factors, squares),
        )

    def covariance(self, Y: Array) -> Array:
        return self._mean_and_covariance(Y)[1] if has_missing(Y) else super().covariance(Y)

    def predict(self, Y: Array) -> tuple[Array, Array]:
        """Mean and variance of every entry, (N, D) each, were it to be drawn anew from the
        posterior of its row.
        """
        W, c = self.parameters.mixing, self.parameters.offset
        mean, covariance = self._mean_and_covariance(Y)
        spread = np.maximum(((W @ covariance) * W).sum(axis=2), 0.0)
        return mean @ W.T + c, spread + 1 / self.parameters.noise.precision

    def _mean_and_covariance(self, Y: Array) -> tuple[Array, Array]:
        _, x, _, xx, *_ = self._observed.incomplete_moments(self._separable(Y), True)
        return x, xx - x[:, :, None] * x[:, None, :]

    def supports(self, Y: Array, k: int) -> Supports:
        if not has_missing(Y):
            return super().supports(Y, k)
        found = [(rows, known.supports(filled, k)) for rows, known, filled in self._known(Y)]
        order = np.argsort(np.concatenate([rows for rows, _ in found]))
        active, probability = zip(*(supports for _, supports in found), strict=True)
        return Supports(np.concatenate(active)[order], np.concatenate(probability)[order])

    def sample(self, Y: Array, n_samples: int, rng: Generator) -> Array:
        if not has_missing(Y):
            return super().sample(Y, n_samples, rng)
        drawn = np.empty((n_samples, len(Y), self.parameters.n_latents))
        for rows, known, filled in self._known(Y):
            drawn[:, rows] = known.sample(filled, n_samples, rng)
        return drawn

    def _separable(self, Y: Array) -> Array:
        if self._root is not None:
            raise ValueError(REFUSED)
        return np.ascontiguousarray(Y, dtype=np.float64)

    def _known(self, Y: Array) -> Iterator[tuple[np.ndarray, Inference, Array]]:
        for rows, known, filled in by_pattern(self.parameters, self._separable(Y)):
            yield rows, Inference(known), filled
