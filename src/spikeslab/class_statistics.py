"""The E-step of classes: each point's classes, and sums over the points that add up.

Given its class a point follows a model of the usual kind, so all that is new here is how likely the
classes are. Few points are torn between more than two: classes are scored with few free latents,
and the improbable ones left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from ._arrays import Array
from .classes import ClassParameters
from .parameters import Parameters
from .truncated import TruncatedInference

Infer = Callable[[Parameters], TruncatedInference]

# A class less probable than this for a point is taken to be impossible for it.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class ClassStatistics:
    """Sums over points y of posterior expectations, for each class weighted by its probability
    given y. They add, and may be weighted.

    `bound` is a lower bound on the log-likelihood: it counts what is lost by not summing over all
    states and by classes that were left out.
    """

    bound: float
    n: Array  # (R,)
    counts: Array  # (R, H), of active latents
    xx: Array  # (R, H, H)
    yx: Array  # (R, D, H)
    yy: Array  # (R, D, D)

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return ClassStatistics(*(a + b for a, b in pairs))

    def __rmul__(self, weight: float) -> ClassStatistics:
        return ClassStatistics(*(weight * getattr(self, f.name) for f in fields(self)))


class Clean(NamedTuple):
    """The posterior of N points without their noise, W x + t."""

    mean: Array  # (N, D)
    variance: Array  # (N,), summed over the features


class ClassInference:
    """Inference with fixed parameters, the rows of Y being points.

    Parameters
    ----------
    parameters : ClassParameters
    infer : callable
        Makes the inference of one class, a model of the usual kind.
    score : callable
        The same for deciding about classes, where it may be cheaper and less exact.
    """

    def __init__(self, parameters: ClassParameters, infer: Infer, score: Infer) -> None:
        self.parameters = parameters
        self._models = [parameters.of_class(number) for number in range(parameters.n_classes)]
        self._infer, self._score = infer, score
        with np.errstate(divide="ignore"):
            self._log_shares = np.log(parameters.shares)

    @cached_property
    def _inferences(self) -> list[TruncatedInference]:
        return [self._infer(model) for model in self._models]

    @cached_property
    def _scorers(self) -> list[TruncatedInference]:
        return [self._score(model) for model in self._models]

    def responsibilities(self, Y: Array) -> Array:
        """Probabilities of the classes of each point, (N, R); the negligible ones are 0."""
        if len(self._models) == 1:
            return np.ones((len(Y), 1))
        scores = [scorer.log_evidence(Y) for scorer in self._scorers]
        q: Array = softmax(np.stack(scores, axis=1) + self._log_shares, axis=1)
        q[q < NEGLIGIBLE] = 0
        q /= q.sum(axis=1, keepdims=True)
        return q

    def _members(self, q: Array):
        """For each class that has any, its number and inference, the rows that may belong to it,
        and with what probabilities.
        """
        for number, inference in enumerate(self._inferences):
            rows = np.flatnonzero(q[:, number])
            if len(rows):
                yield number, inference, rows, q[rows, number]

    def _evidence(self, number: int, log_evidence: Array, q: Array) -> Array:
        """What a class adds to the bound of its points."""
        return q * (log_evidence + self._log_shares[number] - np.log(q))

    def bound(self, Y: Array) -> Array:
        """Lower bound on the log density of each point, (N,)."""
        total = np.zeros(len(Y))
        for number, inference, rows, q in self._members(self.responsibilities(Y)):
            total[rows] += self._evidence(number, inference.log_evidence(Y[rows]), q)
        return total

    def latents(self, Y: Array) -> Array:
        """Posterior mean of the latents of each point, (N, H)."""
        mean = np.zeros((len(Y), self.parameters.n_latents))
        for _, inference, rows, q in self._members(self.responsibilities(Y)):
            mean[rows] += q[:, None] * inference.moments(Y[rows], each=True).mean
        return mean

    def statistics(self, Y: Array, q: Array | None = None) -> ClassStatistics:
        """Sums over the points; `q` are responsibilities to use instead of the inferred ones."""
        R, H, D = self.parameters.n_classes, self.parameters.n_latents, self.parameters.n_features
        bound, n, counts = 0.0, np.zeros(R), np.zeros((R, H))
        xx, yx, yy = np.zeros((R, H, H)), np.zeros((R, D, H)), np.zeros((R, D, D))
        for r, inference, rows, weights in self._members(
            self.responsibilities(Y) if q is None else q
        ):
            y = Y[rows]
            moments = inference.moments(y, weights=weights)
            bound += float(self._evidence(r, moments.log_evidence, weights).sum())
            n[r], counts[r] = weights.sum(), moments.counts[:, 1]
            xx[r], yx[r], yy[r] = moments.outer, moments.cross, (y.T * weights) @ y
        return ClassStatistics(bound, n, counts, xx, yx, yy)

    def clean(self, Y: Array) -> Clean:
        """Means of the points without their noise, and how sure they are.

        Given class and x, what is left of the point is background and white noise: ``E[W x + t] =
        W x + C Sigma^-1 (y - W x)`` with ``Sigma = C + s2 I``.
        """
        mean, square, within = np.zeros_like(Y), np.zeros(len(Y)), np.zeros(len(Y))
        s2, W = self.parameters.noise_variance, self.parameters.mixing
        for number, inference, rows, q in self._members(self.responsibilities(Y)):
            y, noise = Y[rows], self.parameters.noise(number)
            sparse = s2 * noise.solve(W)
            _, x, spread = inference.mean_and_spread(y, sparse.T @ sparse)
            background = s2 * noise.solve(self.parameters.backgrounds[number])
            # C Sigma^-1 = I - s2 Sigma^-1, whose small part is computed without cancellation
            z = x @ sparse.T + y @ background / s2
            mean[rows] += q[:, None] * z
            square[rows] += q * np.einsum("nd,nd->n", z, z)
            within[rows] += q * (spread + background.trace())
        between = np.maximum(square - np.einsum("nd,nd->n", mean, mean), 0.0)
        return Clean(mean, within + between)
