"""The M-step of classes in closed form, from ClassStatistics alone."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from ._arrays import Array, unchecked
from .class_statistics import ClassStatistics
from .classes import ClassParameters
from .m_step import solve_regression

BACKGROUNDS = ("none", "isotropic", "full")


@dataclass(frozen=True)
class Pull:
    """How strongly classes are pulled toward what is simple (MAP), in pseudo-points.

    Parameters
    ----------
    activation, slab_variance : float
        Toward the activation and slab variance that a latent has in all classes together.
    background : float
        Toward no background, for each feature of a full one (a Wishart prior).
    """

    activation: float = 2.0
    slab_variance: float = 0.4
    background: float = 1.0

    def scaled(self, factor: float) -> Pull:
        return Pull(*(factor * value for value in astuple(self)))


NO_PULL = Pull(0.0, 0.0, 0.0)

# Least activation of a latent, and least share of a class: what is never used could not come back.
_RAREST = 1e-4


def class_m_step(
    old: ClassParameters,
    s: ClassStatistics,
    *,
    background: str,
    noise_floor: float | None = None,
    pull: Pull = NO_PULL,
) -> ClassParameters:
    """Parameters with which the bound is no lower, the pull aside.

    W is updated with the backgrounds as further latents, the backgrounds then with that W. The
    slabs' common scale is learned with the slabs (parameter expansion), and stays there: what is
    remembered of earlier batches is in units of it. With a `noise_floor` the noise variance is
    learned too, for which there must be no background.
    """
    total = float(s.n.sum())
    mixing = _mixing(old, s)
    scatters = _scatters(mixing, s)
    backgrounds, noise_variance = old.backgrounds, old.noise_variance
    if background != "none":
        full = background == "full"
        known = pull.background * (old.n_features if full else 1)
        estimate = _full if full else _isotropic
        backgrounds = np.stack(
            [
                estimate(scatter, n, known, noise_variance) if n + known > 0 else before
                for scatter, n, before in zip(scatters, s.n, backgrounds, strict=True)
            ]
        )
    elif noise_floor is not None:
        mean_square = np.einsum("rdd->", scatters) / (total * old.n_features)
        noise_variance = max(float(mean_square), noise_floor)

    squares, counts = np.einsum("rhh->rh", s.xx), s.counts
    everywhere = counts.sum(axis=0)
    common = _ratio(squares.sum(axis=0), everywhere, 1.0)
    known = pull.activation
    activation = _ratio(counts + known * everywhere / total, s.n[:, None] + known, old.activation)
    known = pull.slab_variance
    slab_variances = _ratio(squares + known * common, counts + known, old.slab_variances)
    shares = np.maximum(s.n / total, _RAREST)
    return unchecked(
        ClassParameters,
        mixing=mixing,
        shares=shares / shares.sum(),
        activation=np.clip(activation, _RAREST, 1.0),
        slab_variances=slab_variances,
        backgrounds=backgrounds,
        noise_variance=noise_variance,
    )


def _mixing(old: ClassParameters, s: ClassStatistics) -> Array:
    """Minimiser of the expected sum |y - t - W x|^2."""
    targets = np.zeros_like(old.mixing)
    for number, (yx, xx) in enumerate(zip(s.yx, s.xx, strict=True)):
        if not old.backgrounds[number].any():
            targets += yx
            continue
        # E[y - t] is a part of the residual y - W x, and W x itself
        predicted = old.mixing @ xx
        noise = old.noise(number)
        targets += old.noise_variance * noise.solve(yx - predicted) + predicted
    return solve_regression(old.mixing, targets, s.xx.sum(axis=0))


def _scatters(mixing: Array, s: ClassStatistics) -> Array:
    """Expected sums of (y - W x)(y - W x)' in each class."""
    half = s.yx @ mixing.T - mixing @ s.xx @ mixing.T / 2
    return s.yy - half - half.transpose(0, 2, 1)


def _full(scatter: Array, n: float, known: float, noise_variance: float) -> Array:
    values, vectors = np.linalg.eigh(scatter)
    values = (values + known * noise_variance) / (n + known) - noise_variance
    background: Array = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return background


def _isotropic(scatter: Array, n: float, known: float, noise_variance: float) -> Array:
    mean = (scatter.trace() / len(scatter) + known * noise_variance) / (n + known)
    return max(mean - noise_variance, 0.0) * np.eye(len(scatter))


def _ratio(above: Array, below: Array, otherwise: Array | float) -> Array:
    """above / below, and `otherwise` where below is 0."""
    some = below > 0
    return np.where(some, above / np.where(some, below, 1.0), otherwise)
