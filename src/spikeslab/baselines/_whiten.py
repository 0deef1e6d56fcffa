"""What all baselines do first: check, centre, whiten, reduce the dimension."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from .._arrays import Array
from .._checks import check_integer


def whiten(X: ArrayLike, n_sources: int | None = None) -> tuple[Array, Array]:
    """The leading principal components of X at unit variance, and how to compute them.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of components; None means D.

    Returns
    -------
    Z : array of shape (N, H)
        ``(X - X.mean(0)) @ whitener.T``, with ``Z.T @ Z / N`` the identity.
    whitener : array of shape (H, D)
    """
    X = np.asarray(check_array(X, dtype=np.float64, ensure_min_samples=2, input_name="X"))
    n_samples, n_features = X.shape
    wanted = n_features if n_sources is None else n_sources
    check_integer("n_sources", wanted, 1)
    if wanted > n_features:
        raise ValueError(
            f"n_sources={wanted} exceeds the {n_features} features of X; "
            "these methods find at most as many sources as features"
        )
    centred = X - X.mean(axis=0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    rounding = max(n_samples, n_features) * np.finfo(float).eps
    rank = int((lengths > rounding * max(lengths[0], np.abs(X).max())).sum())
    if wanted > rank:
        raise ValueError(
            f"X has rank {rank} after centring, which is too little for {wanted} sources; "
            f"{f'give n_sources <= {rank}' if rank else 'give data that varies'}"
        )
    whitener = np.sqrt(n_samples) / lengths[:wanted, None] * directions[:wanted]
    return centred @ whitener.T, whitener
