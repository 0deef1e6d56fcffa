"""Where the rows of the data come from: an array in memory or mapped from a file, or blocks that
are read one after the other.

What is done with a block is told by the caller. A source of rows has only to call it, and to add
up what it returns, always in the same order.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, Protocol, TypeVar

import numpy as np
import scipy.sparse

from ._arrays import Array

T = TypeVar("T")

FAN_IN = 8  # sums that are added at a time
_READ_NUMBERS = 1 << 21  # of an array in a file, at a time: 16 MiB


class Rows(Protocol):
    """Data of shape (N, D) that are visited in blocks of rows."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def total(
        self, of: Callable[[np.ndarray], T], points: int, executor: Executor | None = None
    ) -> T:
        """The sum of `of(block)` over blocks of at most `points` rows, added up by `add_up`.

        Rows that are in memory are shared out over the executor's threads.
        """
        ...

    def each(
        self, of: Callable[[np.ndarray], np.ndarray], points: int, tail: tuple[int, ...], dtype
    ) -> Any:
        """An array of shape (N, *tail): `of(block)` for blocks of at most `points` rows.
        Infinity is refused.
        """
        ...

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """One pass over the data in batches of `size` rows, in an order that is as random as is
        cheap.
        """
        ...


def add_up(values: Iterable[T]) -> T:
    """Sum by a tree: neighbours are added eight at a time, then their sums, and so on.

    The order depends on the number of values alone, so that whoever adds up the same blocks, this
    process or a cluster, gets the same result to the last bit.
    """
    levels: list[list[T]] = []
    for value in values:
        for level in levels:
            level.append(value)
            if len(level) < FAN_IN:
                break
            value = reduce(add, level)
            level.clear()
        else:
            levels.append([value])
    rest: list[T] = []
    for level in levels:
        level += rest
        rest = [reduce(add, level)] if level else []
    return rest[0]


@dataclass(frozen=True)
class Survey:
    """What one look at the data tells: the number of rows, the sums and numbers of what is observed
    (that is, not NaN) of each feature, and the first row with infinity.
    """

    n: int
    y: Array
    observed: np.ndarray
    bad: int | None

    @classmethod
    def of(cls, block: np.ndarray) -> Survey:
        missing = np.isnan(block)
        y = np.asarray(np.sum(block, axis=0, dtype=np.float64, where=~missing))
        return cls(len(block), y, len(block) - missing.sum(axis=0), first_infinite(block))

    def __add__(self, other: Survey) -> Survey:
        bad = self.bad
        if bad is None and other.bad is not None:
            bad = self.n + other.bad
        observed = self.observed + other.observed
        return Survey(self.n + other.n, self.y + other.y, observed, bad)


def first_infinite(block: np.ndarray) -> int | None:
    """The first row with infinity."""
    infinite = np.isinf(block)
    return int(np.argmax(infinite.any(axis=1))) if infinite.any() else None


def refuse(row: int | None, first: int = 0) -> None:
    if row is not None:
        raise ValueError(f"X contains infinity in row {first + row}")


def row_slices(n_rows: int, points: int) -> Iterator[slice]:
    return (slice(start, min(start + points, n_rows)) for start in range(0, n_rows, points))


class ArrayRows:
    """An array in memory, or mapped from a file: that is read as needed, and the process gives
    back what it has read.
    """

    def __init__(self, X: np.ndarray) -> None:
        self.data, self.shape, self.dtype = X, X.shape, X.dtype
        self._pages = _Pages.behind(X) if isinstance(X, np.memmap) else None

    def total(
        self, of: Callable[[np.ndarray], T], points: int, executor: Executor | None = None
    ) -> T:
        visit = partial(self.visit, of)
        slices = row_slices(len(self.data), points)
        return add_up(map(visit, slices) if executor is None else executor.map(visit, slices))

    def each(
        self, of: Callable[[np.ndarray], np.ndarray], points: int, tail: tuple[int, ...], dtype
    ) -> np.ndarray:
        out = np.empty((len(self.data), *tail), dtype)
        self.fill(out, of, points)
        return out

    def fill(
        self, out: np.ndarray, of: Callable[[np.ndarray], np.ndarray], points: int, first: int = 0
    ) -> None:
        """Set the rows of `out` to those of `of(block)`; here row 0 is row `first` of all data."""
        for rows in row_slices(len(out), points):
            refuse(first_infinite(self.data[rows]), first + rows.start)
            out[rows] = self.visit(of, rows)

    def visit(self, of: Callable[[np.ndarray], T], rows: slice) -> T:
        block = self.data[rows]
        result = of(block)
        if self._pages is not None:
            self._pages.give_back(block)
        return result

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Rows at random; of a file, neighbours, in random order."""
        n_rows = len(self.data)
        if isinstance(self.data, np.memmap):
            for number in rng.permutation(-(-n_rows // size)):
                yield ArrayRows(self.data[number * size : (number + 1) * size])
        else:
            order = rng.permutation(n_rows)
            for rows in row_slices(n_rows, size):
                yield ArrayRows(self.data[order[rows]])


class BlockRows:
    """Blocks that are read one after the other: anything that can be iterated over again and again
    and yields arrays of shape (any, D).
    """

    def __init__(self, blocks: Iterable[Any], shape: tuple[int, int], dtype: np.dtype) -> None:
        self._blocks, self.shape, self.dtype = blocks, shape, dtype

    @classmethod
    def of_unknown(cls, blocks: Iterable[Any]) -> BlockRows:
        """Look at all blocks once, to see how many rows there are and whether they fit together."""
        sizes, n_features, dtypes = [], 0, []
        for number, block in enumerate(_arrays(blocks)):
            n_features = n_features or block.shape[1]
            if block.shape[1] != n_features:
                raise ValueError(
                    f"block {number} of X has {block.shape[1]} features, but block 0 has "
                    f"{n_features}"
                )
            sizes.append(len(block))
            dtypes.append(block.dtype)
        return cls(blocks, (sum(sizes), n_features), np.result_type(*set(dtypes)))

    def total(
        self, of: Callable[[np.ndarray], T], points: int, executor: Executor | None = None
    ) -> T:
        return add_up(
            ArrayRows(block).total(of, points, executor) for block in _arrays(self._blocks)
        )

    def each(
        self, of: Callable[[np.ndarray], np.ndarray], points: int, tail: tuple[int, ...], dtype
    ) -> np.ndarray:
        out, start = np.empty((self.shape[0], *tail), dtype), 0
        for block in _arrays(self._blocks):
            ArrayRows(block).fill(out[start : start + len(block)], of, points, start)
            start += len(block)
        return out

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Neighbours; the blocks are in random order where any of them can be had."""
        blocks = self._blocks
        if isinstance(blocks, Sequence):
            blocks = map(blocks.__getitem__, rng.permutation(len(blocks)))
        waiting: list[np.ndarray] = []
        for block in _arrays(blocks):
            waiting.append(block)
            if sum(map(len, waiting)) >= size:
                rows = np.concatenate(waiting)
                whole = len(rows) // size * size
                yield from (ArrayRows(rows[piece]) for piece in row_slices(whole, size))
                waiting = [rows[whole:]] if whole < len(rows) else []
        if waiting:
            yield ArrayRows(np.concatenate(waiting))


def _arrays(blocks: Iterable[Any]) -> Iterator[np.ndarray]:
    for number, block in enumerate(blocks):
        array = np.asarray(block)
        if array.ndim != 2:
            raise ValueError(
                f"the blocks of X must have two dimensions, but block {number} has shape "
                f"{array.shape}"
            )
        if not len(array):
            raise ValueError(f"block {number} of X is empty; leave out blocks without rows")
        yield array


class _Chunks(Sequence):
    """The blocks of an array that is read by slicing: whole chunks, where it is stored in such."""

    def __init__(self, X: Any) -> None:
        self._data = X
        chunk = (getattr(X, "chunks", None) or (1,))[0]
        self._rows = max(_READ_NUMBERS // max(X.shape[1], 1) // chunk, 1) * chunk

    def __len__(self) -> int:
        return -(-self._data.shape[0] // self._rows)

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self):
            raise IndexError(number)
        return self._data[number * self._rows : (number + 1) * self._rows]


def open_rows(X: Any) -> Rows | None:
    """The rows of data that are no array in memory; None where they are, or may become one."""
    if isinstance(X, np.memmap):
        return ArrayRows(X)
    if isinstance(X, np.ndarray) or scipy.sparse.issparse(X):
        return None
    if type(X).__module__.startswith("dask."):
        from .cluster import DaskRows

        return DaskRows.of(X)
    if isinstance(getattr(X, "dtype", None), np.dtype) and len(getattr(X, "shape", ())) == 2:
        return BlockRows(_Chunks(X), X.shape, X.dtype)
    if hasattr(X, "shape") or hasattr(X, "__array__") or not hasattr(X, "__iter__"):
        return None
    if iter(X) is X:
        raise TypeError(
            "X is an iterator, which can be read only once; give a list of blocks or an object "
            "whose __iter__ starts anew, or call partial_fit with one block after the other"
        )
    first = next(iter(X), None)
    return BlockRows.of_unknown(X) if getattr(first, "ndim", 0) == 2 else None


class _Pages:
    """The part of a process's memory that a file is mapped to."""

    def __init__(self, file: mmap.mmap) -> None:
        self._file = file
        self._origin = _address(np.frombuffer(file, np.uint8))

    @classmethod
    def behind(cls, X: np.memmap) -> _Pages | None:
        """Those of an array, if they may be forgotten: not where changes are private."""
        if X.mode == "c" or not X.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
            return None
        base: Any = X
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "base", None)
        return None if base is None else cls(base)

    def give_back(self, block: np.ndarray) -> None:
        """Take the pages of a block out of the process; they stay in the system's cache."""
        start = _address(block) - self._origin
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._file.madvise(mmap.MADV_DONTNEED, first, start + block.nbytes - first)


def _address(X: np.ndarray) -> int:
    return X.__array_interface__["data"][0]
