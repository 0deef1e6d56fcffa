"""Gaussian noise: isotropic, diagonal or full covariance, with one interface.

A noise model knows which part of a scatter matrix it depends on: the trace, the diagonal, or all of
it. `product(A, B)` is that part of the symmetrised A B', so that statistics carry no more than is
needed and the M-step is the same line for all three.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from ._arrays import Array, as_array, frozen, unchecked


class Noise(Protocol):
    """What inference and the M-step ask of a noise model of D features."""

    kind: ClassVar[str]

    @property
    def n_features(self) -> int: ...
    @property
    def log_det(self) -> float: ...
    @property
    def covariance(self) -> Array: ...
    @property
    def n_parameters(self) -> int: ...
    @property
    def values(self) -> Array: ...
    def solve(self, M: Array) -> Array:
        """Covariance^-1 M, for M of shape (D, k)."""
        ...

    def apply(self, M: Array) -> Array:
        """Covariance M, for M of shape (D, k)."""
        ...

    @property
    def root(self) -> Array | None:
        """Cholesky factor of the covariance, or None where the features are independent."""
        ...

    @property
    def precision(self) -> Array:
        """1 / variance of each feature, after whitening by `root` where there is one."""
        ...

    def at_least(self, floor: float) -> Self:
        """The same noise where it is above `floor`, and the floor elsewhere."""
        ...

    @staticmethod
    def product(A: Array, B: Array) -> Array:
        """The part of (A B' + B A') / 2 that this noise model depends on, for A and B of shape (D,
        k).
        """
        ...

    @classmethod
    def from_scatter(cls, scatter: Array, n_features: int, floor: float) -> Self:
        """The most likely noise for a mean scatter (as made by `product`) among those of at least
        `floor`.
        """
        ...


def _check_positive(name: str, values: Array) -> None:
    if not (values > 0).all():
        raise ValueError(f"{name} must be positive, got a smallest value of {values.min():g}")


@dataclass(frozen=True, eq=False)
class IsotropicNoise:
    """Covariance ``variance * identity``."""

    variance: float
    n_features: int
    kind: ClassVar[str] = "isotropic"
    n_parameters: ClassVar[int] = 1

    def __post_init__(self) -> None:
        variance = float(self.variance)
        if not 0 < variance < np.inf:
            raise ValueError(f"variance must be positive and finite, got {variance:g}")
        frozen(self, variance=variance)

    @property
    def values(self) -> Array:
        return np.array([self.variance])

    @property
    def covariance(self) -> Array:
        return self.variance * np.eye(self.n_features)

    @property
    def log_det(self) -> float:
        return self.n_features * float(np.log(self.variance))

    def solve(self, M: Array) -> Array:
        return M / self.variance

    def apply(self, M: Array) -> Array:
        return M * self.variance

    root: ClassVar[None] = None

    @property
    def precision(self) -> Array:
        return np.full(self.n_features, 1 / self.variance)

    def at_least(self, floor: float) -> IsotropicNoise:
        return self.from_scatter(self.values * self.n_features, self.n_features, floor)

    @staticmethod
    def product(A: Array, B: Array) -> Array:
        return np.array([np.vdot(A, B)])

    @classmethod
    def from_scatter(cls, scatter: Array, n_features: int, floor: float) -> IsotropicNoise:
        return cls(max(float(scatter[0]) / n_features, floor), n_features)


@dataclass(frozen=True, eq=False)
class DiagonalNoise:
    """Independent noise of its own variance in every feature."""

    variances: Array
    kind: ClassVar[str] = "diagonal"

    def __post_init__(self) -> None:
        variances = as_array("variances", self.variances, (None,))
        _check_positive("variances", variances)
        frozen(self, variances=variances)

    @property
    def n_features(self) -> int:
        return len(self.variances)

    @property
    def n_parameters(self) -> int:
        return self.n_features

    @property
    def values(self) -> Array:
        return self.variances

    @property
    def covariance(self) -> Array:
        return np.diag(self.variances)

    @cached_property
    def log_det(self) -> float:
        return float(np.log(self.variances).sum())

    def solve(self, M: Array) -> Array:
        return M / self.variances[:, None]

    def apply(self, M: Array) -> Array:
        return M * self.variances[:, None]

    root: ClassVar[None] = None

    @property
    def precision(self) -> Array:
        return 1 / self.variances

    def at_least(self, floor: float) -> DiagonalNoise:
        return self.from_scatter(self.variances, self.n_features, floor)

    @staticmethod
    def product(A: Array, B: Array) -> Array:
        return np.einsum("dk,dk->d", A, B)

    @classmethod
    def from_scatter(cls, scatter: Array, n_features: int, floor: float) -> DiagonalNoise:
        return cls(np.maximum(scatter, floor))


def _cholesky(matrix: Array) -> Array | None:
    """The lower factor of a positive definite matrix, or None of another."""
    factor, failed = dpotrf(matrix, lower=1, clean=1)
    return None if failed else factor


@dataclass(frozen=True, eq=False)
class FullNoise:
    """Noise of any covariance."""

    covariance: Array
    kind: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        covariance = as_array("covariance", self.covariance, (None, None))
        if covariance.shape[0] != covariance.shape[1] or not np.allclose(
            covariance, covariance.T, rtol=1e-8, atol=1e-12 * np.abs(covariance).max(initial=0)
        ):
            raise ValueError("covariance must be square and symmetric")
        covariance = (covariance + covariance.T) / 2
        root = _cholesky(covariance)
        if root is None:
            smallest = np.linalg.eigvalsh(covariance)[0]
            raise ValueError(
                f"covariance must be positive definite, but its smallest eigenvalue is {smallest:g}"
            )
        frozen(self, covariance=covariance, root=root)

    root: Array = field(init=False, repr=False)  # lower Cholesky factor

    @property
    def n_features(self) -> int:
        return len(self.covariance)

    @property
    def n_parameters(self) -> int:
        return self.n_features * (self.n_features + 1) // 2

    @property
    def values(self) -> Array:
        return self.covariance

    @cached_property
    def log_det(self) -> float:
        return 2 * float(np.log(self.root.diagonal()).sum())

    def solve(self, M: Array) -> Array:
        return np.asarray(dpotrs(self.root, M, lower=1)[0])

    def apply(self, M: Array) -> Array:
        return self.covariance @ M

    @property
    def precision(self) -> Array:
        return np.ones(self.n_features)

    def at_least(self, floor: float) -> FullNoise:
        return self.from_scatter(self.covariance, self.n_features, floor)

    @staticmethod
    def product(A: Array, B: Array) -> Array:
        half = A @ B.T
        return (half + half.T) / 2

    @classmethod
    def from_scatter(cls, scatter: Array, n_features: int, floor: float) -> FullNoise:
        root = _cholesky(scatter)
        if root is None or _cholesky(scatter - floor * np.eye(n_features)) is None:
            values, vectors = np.linalg.eigh(scatter)
            return cls((vectors * np.maximum(values, floor)) @ vectors.T)
        return unchecked(cls, covariance=scatter, root=root)


NOISES: dict[str, type[IsotropicNoise] | type[DiagonalNoise] | type[FullNoise]] = {
    noise.kind: noise for noise in (IsotropicNoise, DiagonalNoise, FullNoise)
}


def make_noise(kind: str, values: Array, n_features: int) -> Noise:
    """The noise of a kind from its `values`: the inverse of (kind, noise.values)."""
    if kind not in NOISES:
        raise ValueError(f"there is no noise of kind {kind!r}")
    if kind == "isotropic":
        return IsotropicNoise(float(as_array("noise", values, (1,))[0]), n_features)
    return DiagonalNoise(values) if kind == "diagonal" else FullNoise(values)
