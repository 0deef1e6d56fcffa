"""FastICA and Picard as others implement them, behind the interface of the baselines."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from .._arrays import Array
from .._checks import check_bool, check_choice
from ._whiten import whiten


def fast_ica(
    X: ArrayLike,
    n_sources: int | None = None,
    *,
    fun: str = "logcosh",
    random_state: int | RandomState | None = None,
) -> Array:
    """Unmixing matrix (H, D) by scikit-learn's FastICA, all sources at once.

    The sources are ``(X - X.mean(0)) @ unmixing.T``, of unit variance.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of sources, at most D; the data is reduced to as many principal components. None
        means D.
    fun : {"logcosh", "exp", "cube"}, default="logcosh"
    random_state : int, RandomState instance or None, default=None
        Draws the rotation to start from.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.baselines import fast_ica
    >>> X = np.random.default_rng(0).laplace(size=(500, 2)) @ [[1, 1], [1, -2]]
    >>> fast_ica(X, random_state=0).shape
    (2, 2)
    """
    check_choice("fun", fun, ("logcosh", "exp", "cube"))
    Z, whitener = whiten(X, n_sources)
    peer = FastICA(whiten=False, fun=fun, max_iter=500, tol=1e-6, random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return peer.fit(Z).components_ @ whitener


def picard(
    X: ArrayLike,
    n_sources: int | None = None,
    *,
    extended: bool = False,
    ortho: bool = False,
    random_state: int | RandomState | None = None,
) -> Array:
    """Unmixing matrix (H, D) by Picard: maximum likelihood with fixed source densities.

    The sources are ``(X - X.mean(0)) @ unmixing.T``. Needs the extra ``spikeslab[picard]``.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of sources, at most D; the data is reduced to as many principal components. None
        means D.
    extended : bool, default=False
        Find out which sources are sub-Gaussian; else all are taken to be heavy-tailed.
    ortho : bool, default=False
        Keep the sources exactly uncorrelated (Picard-O).
    random_state : int, RandomState instance or None, default=None
        Draws the rotation to start from.
    """
    check_bool("extended", extended)
    check_bool("ortho", ortho)
    try:
        from picard import picard as peer
    except ImportError:
        raise ImportError(
            "picard needs the package python-picard: pip install 'spikeslab[picard]'"
        ) from None
    Z, whitener = whiten(X, n_sources)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, rotation, _ = peer(
            Z.T,
            whiten=False,
            centering=False,
            extended=extended,
            ortho=ortho,
            random_state=random_state,
        )
    return np.asarray(rotation) @ whitener
