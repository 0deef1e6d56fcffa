"""Dask arrays as a source of rows: blocks stay where they are, what is done with them travels
there, and sums come back.

An existing `dask.distributed` client is used, else Dask's default scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor
from functools import reduce
from operator import add
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed

from .blocks import FAN_IN, ArrayRows, Rows

T = TypeVar("T")


class DaskRows:
    """The rows of a Dask array whose chunks do not split the features.

    A block that is lost with its worker is made again by the cluster, from how it was made before;
    the sums are the same, since their order depends on the chunks alone.
    """

    def __init__(self, X: da.Array, client: Any = None) -> None:
        self._array, self._client = X, client
        self.shape, self.dtype = X.shape, X.dtype
        self._blocks: list[Delayed] = X.to_delayed().ravel().tolist()

    @classmethod
    def of(cls, X: Any) -> DaskRows:
        if not isinstance(X, da.Array):
            raise TypeError(
                f"X must be a Dask array, got {type(X).__name__}; a Dask data frame has "
                "to_dask_array(lengths=True)"
            )
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got shape {X.shape}")
        if np.isnan(X.shape).any():
            raise ValueError(
                "the chunks of X have unknown sizes; call X.compute_chunk_sizes() first"
            )
        if len(X.chunks[1]) > 1:
            raise ValueError(
                f"the chunks of X split its features, into {X.chunks[1]}; all features of a sample "
                "must be in one chunk: use X.rechunk({1: -1})"
            )
        if 0 in X.chunks[0]:
            raise ValueError(
                f"chunk {X.chunks[0].index(0)} of X is empty; leave out chunks without rows, or "
                "use X.rechunk()"
            )
        return cls(X, _client())

    def total(
        self, of: Callable[[np.ndarray], T], points: int, executor: Executor | None = None
    ) -> T:
        """The sum over the chunks; the cluster does what the executor would do."""
        travelling = delayed(of, traverse=False)
        sums = [_total(block, travelling, points) for block in self._blocks]
        while len(sums) > 1:
            sums = [_add(sums[i : i + FAN_IN]) for i in range(0, len(sums), FAN_IN)]
        return self._computed(sums[0])

    def _computed(self, value: Delayed) -> Any:
        try:
            return value.compute(scheduler=self._client)
        except Exception as error:
            gone = self._client is not None and self._client.status != "running"
            if not gone and not isinstance(error, CancelledError):
                raise
            raise ConnectionError(
                "the Dask cluster has disappeared, or lost data that it cannot make again "
                f"({type(error).__name__}: {error})"
            ) from error

    def each(
        self, of: Callable[[np.ndarray], np.ndarray], points: int, tail: tuple[int, ...], dtype
    ) -> da.Array:
        """A Dask array, computed when it is needed."""

        def fill(block: np.ndarray, block_info: Any = None) -> np.ndarray:
            out = np.empty((len(block), *tail), dtype)
            ArrayRows(block).fill(out, of, points, block_info[0]["array-location"][0][0])
            return out

        return da.map_blocks(
            fill,
            self._array,
            dtype=dtype,
            chunks=(self._array.chunks[0], *((size,) for size in tail)),
            drop_axis=[] if tail else 1,
            meta=np.empty((0,) * (1 + len(tail)), dtype),
        )

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Whole chunks in random order, as many as it takes to have `size` rows."""
        chosen: list[int] = []
        rows = 0
        for number in rng.permutation(len(self._blocks)).tolist():
            chosen.append(number)
            rows += self._array.chunks[0][number]
            if rows >= size:
                yield self._part(chosen)
                chosen, rows = [], 0
        if chosen:
            yield self._part(chosen)

    def _part(self, numbers: list[int]) -> DaskRows:
        return DaskRows(self._array.blocks[numbers], self._client)


@delayed
def _total(block: np.ndarray, of: Callable[[np.ndarray], T], points: int) -> T:
    return ArrayRows(block).total(of, points)


@delayed
def _add(sums: list[T]) -> T:
    return reduce(add, sums)


def _client() -> Any:
    """The client of the cluster in use, if there is one."""
    if dask.config.get("scheduler", None) != "dask.distributed":
        return None
    from distributed import default_client

    return default_client()
