"""What a noise-free model has learned: sources are a linear function of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from ._arrays import Array, as_array, frozen
from .parameters import Mixing
from .prior import Prior


class SourcePosterior(NamedTuple):
    """What is known about the latents of N points: without noise, all but their component."""

    mean: Array  # (N, H), the latents themselves
    component_probabilities: Array  # (N, H, K)
    log_evidence: Array  # (N,)

    @property
    def activation(self) -> Array:
        """Probability that each latent is not in its spike, (N, H)."""
        return self.component_probabilities[:, :, 1:].sum(axis=2)


@dataclass(frozen=True, eq=False)
class NoiseFreeParameters(Mixing):
    """``y = offset + mixing @ x + r`` with ``x`` from `prior`.

    The residual r is Gaussian, orthogonal to the columns of `mixing`, and there is none where
    these span the whole space.

    Parameters
    ----------
    mixing : array of shape (D, H), H <= D
    offset : array of shape (D,)
    prior : Prior
        Its spikes are soft: a density.
    residual_variance : float
        Of r in each direction orthogonal to the mixing; 0 for H = D.
    """

    mixing: Array
    offset: Array
    prior: Prior
    residual_variance: float = 0.0

    def __post_init__(self) -> None:
        mixing = as_array("mixing", self.mixing, (None, self.prior.n_latents))
        offset = as_array("offset", self.offset, (len(mixing),))
        n_features, n_latents = mixing.shape
        if n_latents > n_features:
            raise ValueError(
                f"without noise there can be no more sources than signals, "
                f"got {n_latents} of {n_features}"
            )
        directions = mixing / np.maximum(np.linalg.norm(mixing, axis=0), 1e-300)
        if np.linalg.matrix_rank(directions) < n_latents:
            raise ValueError("the columns of mixing must be linearly independent")
        if not self.prior.variances.min() > 0:
            raise ValueError("without noise the spikes must be soft: variances must be positive")
        residual = float(self.residual_variance)
        if not 0 <= residual < np.inf or (residual > 0) != (n_features > n_latents):
            raise ValueError(
                f"residual_variance must be 0 for a square mixing and positive for a tall one, "
                f"got {residual:g}"
            )
        frozen(self, mixing=mixing, offset=offset, residual_variance=residual)

    @cached_property
    def unmixing(self) -> Array:
        """The (H, D) matrix B of ``x = B (y - offset)``."""
        return np.linalg.pinv(self.mixing)

    @property
    def mean(self) -> Array:
        """Mean of y."""
        return self.offset + self.mixing @ self.prior.mean

    @property
    def covariance(self) -> Array:
        """Covariance of y."""
        explained = (self.mixing * self.prior.variance) @ self.mixing.T
        outside = np.eye(self.n_features) - self.mixing @ self.unmixing
        return explained + self.residual_variance * outside

    def posterior(self, Y: Array) -> SourcePosterior:
        """Latents, component probabilities and log density of the rows of Y."""
        prior, centred = self.prior, Y - self.offset
        x = centred @ self.unmixing.T
        with np.errstate(divide="ignore"):
            logs = np.log(prior.weights) - np.log(2 * np.pi * prior.variances) / 2
        logs = logs - (x[:, :, None] - prior.means) ** 2 / (2 * prior.variances)
        each = logsumexp(logs, axis=2)
        # not from a determinant: channels may be on very different scales
        log_volume = np.log(np.linalg.svd(self.mixing, compute_uv=False)).sum()
        log_evidence = each.sum(axis=1) - log_volume
        outside = self.n_features - self.n_latents
        if outside:
            rest = centred - x @ self.mixing.T
            log_evidence -= (rest**2).sum(axis=1) / (2 * self.residual_variance)
            log_evidence -= outside / 2 * np.log(2 * np.pi * self.residual_variance)
        return SourcePosterior(x, np.exp(logs - each[:, :, None]), log_evidence)

    def sample(self, n_samples: int, rng: Generator) -> tuple[Array, Array]:
        """Data and the latents they came from, shapes (n_samples, D) and (n_samples, H)."""
        latents, _ = self.prior.sample(n_samples, rng)
        Y = self.offset + latents @ self.mixing.T
        if self.residual_variance:
            noise = np.sqrt(self.residual_variance) * rng.standard_normal(Y.shape)
            Y = Y + noise - noise @ self.unmixing.T @ self.mixing.T
        return Y, latents

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays: what a file holds."""
        return {
            "mixing": self.mixing,
            "offset": self.offset,
            "weights": self.prior.weights,
            "means": self.prior.means,
            "variances": self.prior.variances,
            "residual_variance": np.array(self.residual_variance),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> NoiseFreeParameters:
        prior = Prior(arrays["weights"], arrays["means"], arrays["variances"])
        return cls(arrays["mixing"], arrays["offset"], prior, float(arrays["residual_variance"]))
