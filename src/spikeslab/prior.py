"""The prior of the latents: for each an own small mixture of Gaussians whose component 0 is the
spike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.special import xlogy

from ._arrays import Array, as_array, frozen, unchecked


@dataclass(frozen=True, eq=False)
class Prior:
    """H independent latents, each distributed as ``sum_k weights[h, k] N(means[h, k], variances[h,
    k])``.

    Parameters
    ----------
    weights, means, variances : arrays of shape (H, K)
        Component 0 is the spike. With variance 0 it is *hard*: the latent is then exactly its mean,
        zero. All other components, the slabs, have positive variances.

    Examples
    --------
    >>> from spikeslab import Prior
    >>> prior = Prior.spike_and_slab([0.2, 0.5])
    >>> prior.activation
    array([0.2, 0.5])
    """

    weights: Array
    means: Array
    variances: Array

    def __post_init__(self) -> None:
        weights = as_array("weights", self.weights, (None, None))
        means = as_array("means", self.means, weights.shape)
        variances = as_array("variances", self.variances, weights.shape)
        if weights.size == 0:
            raise ValueError("a prior needs at least one latent and one component")
        if weights.min() < 0 or weights.max() > 1 + 1e-9:
            raise ValueError(
                f"weights must lie in [0, 1], got {weights.min():g} to {weights.max():g}"
            )
        total = weights.sum(axis=1, keepdims=True)
        if np.abs(total - 1).max() > 1e-6:
            raise ValueError("the weights of every latent must add up to 1")
        if variances.min() < 0 or (variances.shape[1] > 1 and variances[:, 1:].min() <= 0):
            raise ValueError("variances must be positive; only component 0, the spike, may have 0")
        if (
            np.abs(total - 1).max() > 1e-12
        ):  # not for rounding: a saved prior comes back bit for bit
            weights = weights / total
        frozen(self, weights=weights, means=means, variances=variances)

    @classmethod
    def spike_and_slab(cls, activation: Array, slab_mean: Array | float = 0.0) -> Prior:
        """The paper's prior: exactly zero, or with probability ``activation`` a unit Gaussian."""
        activation = as_array("activation", activation, (None,))
        if activation.min(initial=0) < 0 or activation.max(initial=1) > 1:
            raise ValueError(
                f"activation must lie in [0, 1], got {activation.min():g} to {activation.max():g}"
            )
        zeros, ones = np.zeros_like(activation), np.ones_like(activation)
        return cls(
            np.stack([1 - activation, activation], axis=1),
            np.stack([zeros, slab_mean * ones], axis=1),
            np.stack([zeros, ones], axis=1),
        )

    @classmethod
    def stacked(cls, priors: Sequence[Prior]) -> Prior:
        """The priors of all their latents, one after the other."""
        return cls(
            np.concatenate([prior.weights for prior in priors]),
            np.concatenate([prior.means for prior in priors]),
            np.concatenate([prior.variances for prior in priors]),
        )

    @property
    def n_latents(self) -> int:
        return self.weights.shape[0]

    @property
    def n_components(self) -> int:
        return self.weights.shape[1]

    @property
    def activation(self) -> Array:
        """Probability that a latent is not in its spike, shape (H,)."""
        return 1 - self.weights[:, 0]

    @property
    def slab_mean(self) -> Array:
        """Mean of a latent given that it is not in its spike (0 where it always is), shape (H,)."""
        slabs = self.weights[:, 1:]
        return (slabs * self.means[:, 1:]).sum(axis=1) / np.maximum(slabs.sum(axis=1), 1e-300)

    @property
    def mean(self) -> Array:
        return (self.weights * self.means).sum(axis=1)

    @property
    def variance(self) -> Array:
        spread = (self.means - self.mean[:, None]) ** 2
        return (self.weights * (self.variances + spread)).sum(axis=1)

    def scaled(self, factor: Array) -> Prior:
        """The prior of ``factor * x``."""
        factor = np.asarray(factor)[:, None]
        return Prior(self.weights, self.means * factor, self.variances * factor**2)

    def spike_first(self) -> tuple[Prior, Array]:
        """The prior of ``x - shift`` whose spike, now at zero, is the component with the highest
        peak, and the shift (H,). The narrowest may be a component of next to no weight.
        """
        with np.errstate(divide="ignore"):
            peak = self.weights / np.sqrt(self.variances)
        spike = peak.argmax(axis=1)[:, None] == np.arange(self.n_components)
        order = np.argsort(np.where(spike, -1.0, self.variances), axis=1, kind="stable")
        weights, means, variances = (
            np.take_along_axis(values, order, axis=1)
            for values in (self.weights, self.means, self.variances)
        )
        shift = means[:, 0].copy()
        return Prior(weights, means - shift[:, None], variances), shift

    def sample(self, n_samples: int, rng: Generator) -> tuple[Array, np.ndarray]:
        """Latents and their component numbers, both of shape (n_samples, H)."""
        edges = np.cumsum(self.weights, axis=1)[:, :-1]
        components = (rng.random((n_samples, self.n_latents, 1)) >= edges).sum(axis=2)
        latents = np.arange(self.n_latents)
        deviation = np.sqrt(self.variances[latents, components])
        noise = rng.standard_normal(components.shape)
        return self.means[latents, components] + deviation * noise, components


@dataclass(frozen=True)
class PriorFamily:
    """Which priors are allowed, and the M-step among them.

    Parameters
    ----------
    n_slabs : int
        Components besides the spike.
    soft_spike : bool
        The spike has a variance, which is learned; a hard spike is exactly zero.
    slab_means : bool
        The slabs' means are learned; else they stay where they are.
    spike_means : bool
        So is the spike's: for models without an offset.
    shared : bool
        One prior for all latents instead of each its own.
    weight_count, variance_count, variance_at : float
        Light regularisation (MAP): every component counts as seen `weight_count` more times, and
        every learned variance as estimated from `variance_count` more values of variance
        `variance_at`.
    smallest_variance : float
        Where learned variances end; below the default a soft spike would be a second hard one.
    """

    n_slabs: int = 1
    soft_spike: bool = False
    slab_means: bool = False
    spike_means: bool = False
    shared: bool = False
    weight_count: float = 0.0
    variance_count: float = 0.0
    variance_at: float = 0.1
    smallest_variance: float = 1e-8

    @property
    def n_components(self) -> int:
        return 1 + self.n_slabs

    def learned_means(self, n_latents: int) -> np.ndarray:
        learned = np.zeros((n_latents, self.n_components), bool)
        learned[:, 0] = self.spike_means
        learned[:, 1:] = self.slab_means
        return learned

    def learned_variances(self, n_latents: int, expand: bool) -> np.ndarray:
        """Which variances are free. With one slab its variance is 1, W carrying the scale, unless
        the model is expanded by it; with more slabs their ratios are part of the model.
        """
        learned = np.zeros((n_latents, self.n_components), bool)
        learned[:, 0] = self.soft_spike
        learned[:, 1:] = expand or self.n_slabs > 1
        return learned

    def start(self, n_latents: int, rng: Generator, activation: Array | None = None) -> Prior:
        """A prior to start from: equal weights (or the given activation), slabs of different
        widths.
        """
        shape = (n_latents, self.n_components)
        weights = np.full(shape, 1 / self.n_components)
        if activation is not None:
            weights[:, 0] = 1 - activation
            weights[:, 1:] = activation[:, None] / self.n_slabs
        variances = np.zeros(shape)
        variances[:, 0] = 0.05 if self.soft_spike else 0.0
        variances[:, 1:] = 1.0 if self.n_slabs == 1 else np.geomspace(0.3, 1.5, self.n_slabs)
        means = np.zeros(shape)
        if self.slab_means:
            means[:, 1:] = 0.3 * rng.standard_normal((n_latents, self.n_slabs))
        if self.shared:
            weights[:], means[:] = weights[:1], means[:1]
        return Prior(weights, means, variances)

    def pool(self, sums: Array) -> Array:
        """Sums over the points that a prior is estimated from: of all latents where they share
        it.
        """
        if not self.shared:
            return sums
        return np.broadcast_to(sums.sum(axis=0, keepdims=True), sums.shape)

    def update(
        self, prior: Prior, counts: Array, first: Array, second: Array, expand: bool
    ) -> Prior:
        """The M-step from the (H, K) sums of responsibilities, of x and of x^2."""
        counts, first, second = (self.pool(sums) for sums in (counts, first, second))
        weights = counts + self.weight_count
        weights = weights / weights.sum(axis=1, keepdims=True)
        means, variances = prior.means, prior.variances
        if self.slab_means or self.soft_spike or self.n_slabs > 1 or expand:
            free_means = self.learned_means(prior.n_latents)
            free_variances = self.learned_variances(prior.n_latents, expand)
            seen = counts > 0
            safe = np.where(seen, counts, 1.0)
            means = np.where(free_means & seen, first / safe, means)
            scatter = second - 2 * means * first + means**2 * counts
            scatter = scatter + self.variance_count * self.variance_at
            estimate = np.maximum(scatter / (safe + self.variance_count), self.smallest_variance)
            variances = np.where(free_variances & seen, estimate, variances)
        return unchecked(Prior, weights=weights, means=means, variances=variances)

    def penalties(self, prior: Prior, expand: bool) -> Array:
        """Log prior density of the regularisation, up to a constant, for each prior that is
        learned.
        """
        rows = slice(0, 1) if self.shared else slice(None)
        weights, variances = prior.weights[rows], prior.variances[rows]
        if self.weight_count == 0 and self.variance_count == 0:
            return np.zeros(len(weights))
        total = xlogy(self.weight_count, weights).sum(axis=1)
        learned = self.learned_variances(prior.n_latents, expand)[rows]
        safe = np.where(learned, variances, 1.0)
        cost = np.where(learned, np.log(safe) + self.variance_at / safe, 0.0)
        return total - self.variance_count / 2 * cost.sum(axis=1)

    def canonical_scale(self, prior: Prior) -> Array:
        """Factor (H,) by which the latents are to be divided: one slab has variance 1, several a
        mean square of 1.
        """
        weights = prior.weights[:, 1:]
        total = weights.sum(axis=1)
        square = prior.variances[:, 1:] + (prior.means[:, 1:] ** 2 if self.n_slabs > 1 else 0.0)
        mean_square = (weights * square).sum(axis=1) / np.where(total > 0, total, 1.0)
        return np.sqrt(np.where(total > 0, mean_square, 1.0))

    def n_parameters(self, n_latents: int) -> int:
        """Free numbers, the scale of the slabs belonging to W."""
        one = self.n_components - 1
        one += self.n_slabs * self.slab_means
        one += self.n_slabs - 1 + self.soft_spike
        return one if self.shared else one * n_latents
