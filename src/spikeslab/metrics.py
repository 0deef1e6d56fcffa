"""Measures of what was found."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from ._arrays import Array, as_array

_ROUNDING = 1e-30  # an energy this much below another is rounding: a ratio of 300 dB and more


def amari_index(unmixing: ArrayLike, mixing: ArrayLike) -> float:
    """How far ``unmixing @ mixing`` is from a permutation of scaled sources: 0 is perfect, 1 the
    worst.

    With the gains ``G = unmixing @ mixing`` of shape (H, H) this is

        sum_hk (|G_hk| / max_j |G_hj| + |G_hk| / max_j |G_jk|) / (2 H (H - 1)) - 1 / (H - 1)

    as Lücke and Sheikh (2012) write it, after Amari, Cichocki and Yang (1996). A row or column of
    zeros counts as one of equal numbers. The second term depends on the scales of the rows: compare
    methods whose sources have the same ones, such as unit variance.

    Parameters
    ----------
    unmixing : array of shape (H, D)
        Such that the sources are ``(X - X.mean(0)) @ unmixing.T``.
    mixing : array of shape (D, H)
        The true one. With H > D no unmixing matrix exists; see `column_angles`.

    Examples
    --------
    >>> from spikeslab.metrics import amari_index
    >>> amari_index([[0, 1], [3, 0]], [[1, 0], [0, -1]])
    0.0
    >>> amari_index([[1, 1], [1, -1]], [[1, 0], [0, 1]])
    1.0
    """
    mixing = as_array("mixing", mixing, (None, None))
    n_features, n_sources = mixing.shape
    unmixing = as_array("unmixing", unmixing, (n_sources, n_features))
    if not 1 <= n_sources <= n_features:
        raise ValueError(
            f"mixing has {n_sources} columns and {n_features} rows; the Amari index needs at least "
            "one column and at least as many rows, else use column_angles"
        )
    if n_sources == 1:
        return 0.0
    gains = np.abs(unmixing @ mixing)
    total = _relative_to_largest(gains).sum() + _relative_to_largest(gains.T).sum()
    return float(total / (2 * n_sources * (n_sources - 1)) - 1 / (n_sources - 1))


def _relative_to_largest(rows: Array) -> Array:
    """Every entry as a fraction of the largest in its row, or 1 where that is zero."""
    largest = rows.max(axis=1, keepdims=True)
    return np.divide(rows, largest, out=np.ones_like(rows), where=largest > 0)


def amari_index_of_mixing(estimated: ArrayLike, mixing: ArrayLike) -> float:
    """`amari_index` of the pseudo-inverse of an estimated mixing matrix of shape (D, H).

    Examples
    --------
    >>> from spikeslab.metrics import amari_index_of_mixing
    >>> amari_index_of_mixing([[0, 2], [1, 0], [0, 0]], [[1, 0], [0, 1], [0, 0]])
    0.0
    """
    mixing = as_array("mixing", mixing, (None, None))
    estimated = as_array("estimated", estimated, mixing.shape)
    return amari_index(np.linalg.pinv(estimated), mixing)


def column_angles(estimated: ArrayLike, mixing: ArrayLike) -> Array:
    """Angle between each true direction and the estimated one that is matched with it, in degrees.

    The matching makes the sum of the angles smallest; signs do not matter. This also measures
    mixtures with more sources than sensors, where the Amari index has no meaning.

    Parameters
    ----------
    estimated : array of shape (D, H')
    mixing : array of shape (D, H)

    Returns
    -------
    array of shape (H,)
        90 for zero columns, and where there is no estimated column left.

    Examples
    --------
    >>> from spikeslab.metrics import column_angles
    >>> column_angles([[0, 1, 1], [-2, 1, 0]], [[1, 0], [0, 1]])
    array([0., 0.])
    """
    mixing = as_array("mixing", mixing, (None, None))
    estimated = as_array("estimated", estimated, (len(mixing), None))
    u, v = _unit_columns(mixing), _unit_columns(estimated)
    differences = u[:, :, None] - v[:, None, :]
    sums = u[:, :, None] + v[:, None, :]
    # as accurate for small angles as for large ones, unlike the arc cosine
    halves = np.linalg.norm(differences, axis=0), np.linalg.norm(sums, axis=0)
    angles = np.degrees(2 * np.arctan2(np.minimum(*halves), np.maximum(*halves)))
    rows, columns = linear_sum_assignment(angles)
    result = np.full(mixing.shape[1], 90.0)
    result[rows] = angles[rows, columns]
    return result


def match_sources(estimated: ArrayLike, true: ArrayLike) -> tuple[NDArray[np.intp], Array]:
    """Which estimated source belongs to each true one, and its sign.

    The matching makes the sum of the absolute correlations largest; constant columns correlate
    with nothing. ``estimated[:, permutation] * signs`` are the estimates in the order of the true
    sources.

    Parameters
    ----------
    estimated : array of shape (N, H')
    true : array of shape (N, H)

    Returns
    -------
    permutation : array of int, shape (H,)
        The column of `estimated`, or -1 where there is none left.
    signs : array of shape (H,)
        1 or -1; 0 where there is none left.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.metrics import match_sources
    >>> true = np.random.default_rng(0).laplace(size=(100, 2))
    >>> permutation, signs = match_sources(true[:, ::-1] * [1, -2], true)
    >>> permutation, signs
    (array([1, 0]), array([-1.,  1.]))
    """
    return _match(*_centred_sources(estimated, true))


def sdr(estimated: ArrayLike, true: ArrayLike) -> Array:
    """Signal-to-distortion ratio of each true source in decibels, free of order, sign and scale.

    With both centred, e the estimate matched with the true source s (see `match_sources`) and
    ``t = s <e, s> / <s, s>`` its part along s, this is ``10 log10(|t|^2 / |e - t|^2)``.

    Parameters
    ----------
    estimated : array of shape (N, H')
    true : array of shape (N, H)
        Its columns must vary.

    Returns
    -------
    array of shape (H,)
        inf for a perfect estimate (to rounding: above 300 dB), -inf for one that is missing,
        constant or has nothing of the source.

    Examples
    --------
    >>> from spikeslab.metrics import sdr
    >>> sdr([[11], [9], [-9], [-11]], [[1], [1], [-1], [-1]]).round(6)
    array([20.])
    """
    e, s = _matched(estimated, true)
    target = _along(e, s)
    return _decibels(target, e - target, e)


def sir(estimated: ArrayLike, true: ArrayLike) -> Array:
    """Signal-to-interference ratio of each true source in decibels: other sources in the estimate
    count, noise does not.

    With both centred, e the estimate matched with the true source s (see `match_sources`),
    ``t = s <e, s> / <s, s>`` and P e the projection of e on the span of all true sources, this is
    ``10 log10(|t|^2 / |P e - t|^2)``.

    Parameters
    ----------
    estimated : array of shape (N, H')
    true : array of shape (N, H)
        Its columns must vary.

    Returns
    -------
    array of shape (H,)
        inf without interference (to rounding: above 300 dB), -inf for an estimate that is missing,
        constant or has nothing of the source.

    Examples
    --------
    >>> from spikeslab.metrics import sir
    >>> true = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    >>> sir([[11], [9], [-9], [-11]], true).round(6)
    array([ 20., -inf])
    """
    e, s = _matched(estimated, true)
    target = _along(e, s)
    projection = s @ np.linalg.lstsq(s, e, rcond=None)[0]
    return _decibels(target, projection - target, e)


def psnr(found: ArrayLike, true: ArrayLike, peak: float = 255.0) -> float:
    """Peak signal-to-noise ratio of an image in decibels; `peak` is the value of white.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.metrics import psnr
    >>> round(psnr(np.full((4, 4), 25.5), np.zeros((4, 4))), 1)
    20.0
    """
    found, true = np.asarray(found, np.float64), np.asarray(true, np.float64)
    if found.shape != true.shape:
        raise ValueError(f"found has shape {found.shape}, but true has {true.shape}")
    error = float(np.mean((found - true) ** 2))
    return float(10 * np.log10(peak**2 / error)) if error > 0 else float("inf")


def orthogonality_deviation(mixing: ArrayLike) -> float:
    """Largest deviation from 90 degrees between two columns, in degrees.

    Examples
    --------
    >>> from spikeslab.metrics import orthogonality_deviation
    >>> orthogonality_deviation([[1.0, 1.0], [0.0, 1.0]])
    45.0
    """
    mixing = as_array("mixing", mixing, (None, None))
    columns = _unit_columns(mixing)
    cosines = np.abs(columns.T @ columns)
    np.fill_diagonal(cosines, 0.0)
    return float(np.round(np.degrees(np.arcsin(min(cosines.max(initial=0.0), 1.0))), 10))


def _unit_columns(matrix: Array) -> Array:
    """The columns at length 1; zero columns stay zero."""
    largest = np.abs(matrix).max(axis=0, initial=0.0)
    matrix = matrix / np.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
    norms = np.linalg.norm(matrix, axis=0)
    return matrix / np.where(norms > 0, norms, 1.0)


def _centred_sources(estimated: ArrayLike, true: ArrayLike) -> tuple[Array, Array]:
    """Both centred and at length 1; columns that do not vary beyond rounding are zero."""
    true = as_array("true", true, (None, None))
    estimated = as_array("estimated", estimated, (len(true), None))
    if true.size == 0:
        raise ValueError(f"true needs at least one sample and one source, got shape {true.shape}")
    return _centred(estimated), _centred(true)


def _centred(sources: Array) -> Array:
    largest = np.abs(sources).max(axis=0, initial=0.0)
    sources = sources / np.where(largest > 0, largest, 1.0)
    centred = sources - sources.mean(axis=0)
    varies = np.abs(centred).max(axis=0, initial=0.0) > 8 * np.finfo(float).eps
    return _unit_columns(np.where(varies, centred, 0.0))


def _match(estimated: Array, true: Array) -> tuple[NDArray[np.intp], Array]:
    """`match_sources` of sources that are centred and of length 1."""
    correlations = true.T @ estimated
    rows, columns = linear_sum_assignment(np.abs(correlations), maximize=True)
    permutation = np.full(true.shape[1], -1)
    permutation[rows] = columns
    signs = np.zeros(true.shape[1])
    signs[rows] = np.where(correlations[rows, columns] < 0, -1.0, 1.0)
    return permutation, signs


def _matched(estimated: ArrayLike, true: ArrayLike) -> tuple[Array, Array]:
    """Estimates in the order of the true sources, and these; both centred and of length 1."""
    e, s = _centred_sources(estimated, true)
    constant = np.flatnonzero(~s.any(axis=0))
    if constant.size:
        raise ValueError(
            f"true source {constant[0]} is constant; give sources that vary, or leave it out"
        )
    permutation, signs = _match(e, s)
    if e.shape[1] == 0:
        return np.zeros_like(s), s
    return e[:, permutation] * signs, s


def _along(e: Array, s: Array) -> Array:
    """The part of every column of e along that of s, which has length 1."""
    return s * (e * s).sum(axis=0)


def _decibels(signal: Array, distortion: Array, whole: Array) -> Array:
    """Ratio of the energies of columns; what rounding leaves of the whole is nothing."""
    floor = _ROUNDING * (whole**2).sum(axis=0)
    energies = ((part**2).sum(axis=0) for part in (signal, distortion))
    wanted, unwanted = (np.where(energy > floor, energy, 0.0) for energy in energies)
    with np.errstate(divide="ignore"):
        ratio = np.divide(wanted, unwanted, out=np.full_like(wanted, np.inf), where=unwanted > 0)
        return np.where(wanted > 0, 10 * np.log10(ratio), -np.inf)
