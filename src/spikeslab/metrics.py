"""Measures of what was found."""

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import as_array


def orthogonality_deviation(mixing: ArrayLike) -> float:
    """Largest deviation from 90 degrees between two columns, in degrees.

    Examples
    --------
    >>> from spikeslab.metrics import orthogonality_deviation
    >>> orthogonality_deviation([[1.0, 1.0], [0.0, 1.0]])
    45.0
    """
    mixing = as_array("mixing", mixing, (None, None))
    norms = np.linalg.norm(mixing, axis=0)
    columns = mixing / np.where(norms > 0, norms, 1.0)
    cosines = np.abs(columns.T @ columns)
    np.fill_diagonal(cosines, 0.0)
    return float(np.round(np.degrees(np.arcsin(min(cosines.max(), 1.0))), 10))
