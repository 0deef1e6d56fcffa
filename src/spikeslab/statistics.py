"""Sufficient statistics: a sum over data points, all that the M-step and the gradient see of the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import Array
from .noise import NOISES
from .parameters import Parameters
from .posterior import Inference

# State visits and numbers of data that make a block: milliseconds of work, a few megabytes.
_BLOCK_VISITS, _BLOCK_NUMBERS = 1 << 22, 1 << 20
_LEAST_POINTS, _MOST_POINTS = 128, 1 << 14


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

    Attributes
    ----------
    y, yy : arrays
        The part of the Statistics that does not depend on the parameters.
    """

    def __init__(
        self,
        X: np.ndarray,
        noise_kind: str = "isotropic",
        shift: ArrayLike = 0.0,
        executor: Executor | None = None,
    ) -> None:
        self._data, self._shift, self._executor = X, np.asarray(shift, np.float64), executor
        self._kept: Array | None = None
        product = NOISES[noise_kind].product
        blocks = [(block.sum(axis=0), product(block.T, block.T)) for block in self._blocks(1)]
        self.y = np.sum([y for y, _ in blocks], axis=0)
        self.yy = np.sum([yy for _, yy in blocks], axis=0)

    def _rows(self, rows: slice) -> Array:
        return np.subtract(self._data[rows], self._shift, dtype=np.float64)

    def _blocks(self, n_states: float) -> Iterator[Array]:
        """Rows of shifted data; those of a small data set are kept."""
        rows = block_slices(self._data.shape, n_states)
        if len(self._data) > _MOST_POINTS:
            return map(self._rows, rows)
        if self._kept is None:
            self._kept = self._rows(slice(None))
        return map(self._kept.__getitem__, rows)

    def __call__(self, parameters: Parameters) -> Statistics:
        inference = Inference(parameters)

        def expect(block: Array) -> Statistics:
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
                0.0,  # type: ignore[arg-type]  # y and yy do not change with the parameters
                0.0,  # type: ignore[arg-type]
            )

        total = _total(expect, self._blocks(inference.n_states), self._executor)
        return Statistics(
            total.n,
            total.log_likelihood,
            total.counts,
            total.first,
            total.second,
            total.x,
            total.xx,
            total.yx,
            self.y,
            self.yy,
        )


def _total(
    expect: Callable[[Array], Statistics], blocks: Iterable[Array], executor: Executor | None
) -> Statistics:
    results = map(expect, blocks) if executor is None else _ahead(executor, expect, blocks)
    total = next(results)
    for more in results:
        total = total + more
    return total


def _ahead(executor: Executor, function, items, waiting: int = 16) -> Iterator:
    """Results in order, like Executor.map, with only a few items taken ahead: blocks are made when
    they are needed.
    """
    pending = []
    for item in items:
        pending.append(executor.submit(function, item))
        if len(pending) >= waiting:
            yield pending.pop(0).result()
    for future in pending:
        yield future.result()
