"""Sufficient statistics: a sum over data points, all that the M-step and the gradient see of the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import Array
from .missing import REFUSED, InferenceWithMissing, has_missing, informative
from .noise import NOISES
from .parameters import Parameters
from .posterior import Inference

# State visits and numbers of data that make a block: milliseconds of work, a few megabytes.
_BLOCK_VISITS, _BLOCK_NUMBERS = 1 << 22, 1 << 20
_LEAST_POINTS, _MOST_POINTS = 256, 1 << 14


@dataclass(frozen=True, eq=False, slots=True)
class Statistics:
    """Sums over `n` points y of posterior expectations of their latents x. Statistics of two data
    sets add.

    `counts`, `first` and `second` are, for each latent and component, the sums of its probability
    and of x and x^2 where it is on. `yy` is the part of sum yy' that the noise model depends on.
    """

    n: float
    log_likelihood: float
    counts: Array  # (H, K)
    first: Array  # (H, K)
    second: Array  # (H, K)
    x: Array  # (H,)
    xx: Array  # (H, H)
    yx: Array  # (D, H)
    y: Array  # (D,)
    yy: Array  # (), (D,) or (D, D)

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Statistics(*(a + b for a, b in pairs))


def block_slices(shape: tuple[int, ...], n_states: float) -> Iterator[slice]:
    """Rows of data (N, D) in blocks whose size depends on the shape and on the number of states
    alone.
    """
    total, n_features = shape
    points = min(_BLOCK_VISITS // n_states, _BLOCK_NUMBERS // n_features)
    points = int(min(max(points, _LEAST_POINTS), _MOST_POINTS))
    return (slice(start, min(start + points, total)) for start in range(0, total, points))


class Expectation:
    """The E-step on data in memory: called with parameters, it returns their Statistics.

    NaN is an entry that is missing: the likelihood is that of the observed ones, and expectations
    of the others are in the Statistics. Rows without any observed entry do not count.

    Blocks of rows are shifted and converted to float64 one at a time, so that memory does not grow
    with the data. Their borders depend on the data's shape and the number of states alone: the
    result is the same for any number of threads.

    Parameters
    ----------
    X : array of shape (N, D)
    noise_kind : "isotropic", "diagonal" or "full"
    shift : array of shape (D,), optional
        Subtracted from the data; the parameters describe the shifted data.
    executor : concurrent.futures.Executor, optional
        Where to compute blocks side by side.
    infer : callable, optional
        What makes the posterior of given parameters: exact inference, or anything with its methods.

    Attributes
    ----------
    y, yy : arrays
        The part of the Statistics that does not depend on the parameters: sums of what is
        observed.
    """

    def __init__(
        self,
        X: np.ndarray,
        noise_kind: str = "isotropic",
        shift: ArrayLike = 0.0,
        executor: Executor | None = None,
        infer: Callable[[Parameters], Inference] = InferenceWithMissing,
    ) -> None:
        self._data, self._shift, self._executor = X, np.asarray(shift, np.float64), executor
        self._infer = infer
        self._kept = self._rows(slice(None)) if len(X) <= _MOST_POINTS else None
        product = NOISES[noise_kind].product
        self.y, self.yy = np.zeros(X.shape[1]), np.zeros(())
        for rows in block_slices(X.shape, 1):
            block = self._rows(rows)
            if has_missing(block):
                if noise_kind == "full":
                    raise ValueError(REFUSED)
                block = np.where(np.isnan(block), 0.0, block)
            self.y = self.y + block.sum(axis=0)
            self.yy = self.yy + product(block.T, block.T)

    _kept: Array | None = None  # small data, shifted and converted once

    def _rows(self, rows: slice) -> Array:
        if self._kept is not None:
            return self._kept[rows]
        block = np.subtract(self._data[rows], self._shift, dtype=np.float64)
        return block[informative(block)] if has_missing(block) else block

    def __call__(self, parameters: Parameters) -> Statistics:
        inference = self._infer(parameters)

        def expect(rows: slice) -> Statistics:
            block = self._rows(rows)
            moments = inference.moments(block)
            return Statistics(
                len(block),
                float(moments.log_evidence.sum()),
                moments.counts,
                moments.first,
                moments.second,
                moments.first.sum(axis=1),
                moments.outer,
                moments.cross,
                moments.y,
                moments.yy,
            )

        slices = block_slices(self._data.shape, inference.n_states)
        total = _total(expect, slices, self._executor)
        return Statistics(
            total.n,
            total.log_likelihood,
            total.counts,
            total.first,
            total.second,
            total.x,
            total.xx,
            total.yx,
            self.y + total.y,
            self.yy + total.yy,
        )


def _total(
    expect: Callable[[slice], Statistics], slices: Iterator[slice], executor: Executor | None
) -> Statistics:
    """Sum in the order of the slices, whoever computes them."""
    results = map(expect, slices) if executor is None else executor.map(expect, slices)
    total = next(results)
    for more in results:
        total = total + more
    return total
