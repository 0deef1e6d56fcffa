"""Classes of points that share their directions: the parameters.

A point belongs to class r with probability a_r. Given its class it follows a model of the usual
kind, whose noise is the sum of white noise and a dense Gaussian *background*:

    y = W x + t + e      x_h ~ N(0, v_rh) with probability pi_rh, else 0
    t ~ N(0, C_r)        e ~ N(0, s2 I)

W is the same in all classes. The sparse part is for what stands out, the background for texture,
which no few directions explain.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from ._arrays import Array, as_array, frozen
from ._checks import check_real
from .noise import FullNoise, IsotropicNoise, Noise
from .parameters import Mixing, Parameters
from .prior import Prior


@dataclass(frozen=True, eq=False)
class ClassParameters(Mixing):
    """Everything that is learned of R classes with H latents in D dimensions.

    Parameters
    ----------
    mixing : array of shape (D, H)
        W, shared by the classes.
    shares : array of shape (R,)
        Probabilities a of the classes.
    activation, slab_variances : arrays of shape (R, H)
        pi and v: probability that a latent is active, and its variance then.
    backgrounds : array of shape (R, D, D)
        Covariances C, which may be singular or zero.
    noise_variance : float
        s2.
    """

    mixing: Array
    shares: Array
    activation: Array
    slab_variances: Array
    backgrounds: Array
    noise_variance: float

    def __post_init__(self) -> None:
        mixing = as_array("mixing", self.mixing, (None, None))
        shares = as_array("shares", self.shares, (None,))
        shape = (len(shares), mixing.shape[1])
        activation = as_array("activation", self.activation, shape)
        slab_variances = as_array("slab_variances", self.slab_variances, shape)
        square = (len(shares), len(mixing), len(mixing))
        backgrounds = as_array("backgrounds", self.backgrounds, square)
        check_real("noise_variance", self.noise_variance, 0.0, above=True)
        if shares.min() < 0 or abs(shares.sum() - 1) > 1e-6:
            raise ValueError(f"shares must be at least 0 and add up to 1, got {shares}")
        frozen(
            self,
            mixing=mixing,
            shares=shares,
            activation=activation,
            slab_variances=slab_variances,
            backgrounds=backgrounds,
            noise_variance=float(self.noise_variance),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays: what a file holds."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> ClassParameters:
        given = {field.name: arrays[field.name] for field in fields(cls)}
        return cls(**given | {"noise_variance": float(given["noise_variance"])})

    @property
    def n_classes(self) -> int:
        return len(self.shares)

    def noise(self, number: int) -> Noise:
        """White noise and background of a class together."""
        background = self.backgrounds[number]
        if not background.any():
            return IsotropicNoise(self.noise_variance, self.n_features)
        return FullNoise(background + self.noise_variance * np.eye(self.n_features))

    def of_class(self, number: int) -> Parameters:
        """A class as a model of its own."""
        slab = self.activation[number]
        prior = Prior(
            np.stack([1 - slab, slab], axis=1),
            np.zeros((self.n_latents, 2)),
            np.stack([np.zeros_like(slab), self.slab_variances[number]], axis=1),
        )
        return Parameters(self.mixing, np.zeros(self.n_features), prior, self.noise(number))

    def canonical(self) -> ClassParameters:
        """The same density with latents whose variance is 1 where they are active in any class."""
        weights = self.shares[:, None] * self.activation
        scale = np.sqrt((weights * self.slab_variances).sum(axis=0) / weights.sum(axis=0))
        return replace(
            self, mixing=self.mixing * scale, slab_variances=self.slab_variances / scale**2
        )

    def with_noise(self, variance: float) -> ClassParameters:
        """The same signals in white noise of another variance."""
        return replace(self, noise_variance=variance)

    def sample(self, n_samples: int, rng: Generator) -> tuple[Array, np.ndarray]:
        """Points (n_samples, D) and the numbers of their classes."""
        classes = rng.choice(self.n_classes, n_samples, p=self.shares)
        points = np.empty((n_samples, self.n_features))
        for number in range(self.n_classes):
            rows = np.flatnonzero(classes == number)
            points[rows] = self.of_class(number).sample(len(rows), rng)[0]
        return points, classes
