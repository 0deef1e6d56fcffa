"""The principal subspace of data, where it is white."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._arrays import Array

# Of the largest eigenvalue of the covariance: what is below is rounding.
_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Subspace:
    """The H principal directions of data.

    Attributes
    ----------
    mean : array of shape (D,)
    whitening : array of shape (H, D)
    unwhitening : array of shape (D, H)
        The inverse of `whitening` within the subspace.
    residual_variance : float
        Variance of each direction outside of the subspace, at least what rounding leaves; 0 where
        there is no such direction.
    log_constant : float
        What makes a log density of the white signals, per sample, one of the data.
    """

    mean: Array
    whitening: Array
    unwhitening: Array
    residual_variance: float
    log_constant: float

    @classmethod
    def of(cls, mean: Array, covariance: Array, n_sources: int) -> Subspace:
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int((values > _NOTHING * values[0]).sum())
        if rank < n_sources:
            raise ValueError(
                f"the data has {len(mean)} features but only rank {rank}: without noise there can "
                f"be no more sources than that, and {n_sources} are asked for"
            )
        roots = np.sqrt(values[:n_sources])
        outside = len(mean) - n_sources
        residual = 0.0
        constant = -float(np.log(roots).sum())
        if outside:
            left = max(float(values[n_sources:].mean()), 0.0)
            residual = max(left, _NOTHING * float(values[0]))
            constant -= outside / 2 * (np.log(2 * np.pi * residual) + left / residual)
        kept = vectors[:, :n_sources]
        return cls(mean, (kept / roots).T, kept * roots, residual, constant)

    def signals(self, X: np.ndarray) -> Array:
        """The white signals of data, (H, N)."""
        centred = np.subtract(X, self.mean, dtype=np.float64)
        return np.ascontiguousarray((centred @ self.whitening.T).T)
