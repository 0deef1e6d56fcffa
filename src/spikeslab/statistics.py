"""Sufficient statistics: a sum over data points, all that the M-step and the gradient see of the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import Array
from .blocks import ArrayRows, Rows, row_slices
from .missing import REFUSED, InferenceWithMissing, has_missing, informative
from .noise import NOISES
from .parameters import Parameters
from .posterior import NOTHING, LatentInference

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

    @property
    def variance(self) -> float:
        """Of the data, summed over the features."""
        squares = self.yy.trace() if self.yy.ndim == 2 else self.yy.sum()
        return float(squares - self.y @ self.y / self.n) / self.n

    def weighted(self, weight: float) -> Statistics:
        """Every point counted so many times."""
        return Statistics(*(weight * getattr(self, f.name) for f in fields(self)))


def block_points(n_features: int, n_states: float) -> int:
    """Rows that make a block."""
    points = min(_BLOCK_VISITS // n_states, _BLOCK_NUMBERS // n_features)
    return int(min(max(points, _LEAST_POINTS), _MOST_POINTS))


def block_slices(shape: tuple[int, ...], n_states: float) -> Iterator[slice]:
    """Rows of data (N, D) in blocks whose size depends on the shape and on the number of states
    alone.
    """
    return row_slices(shape[0], block_points(shape[1], n_states))


class Expectation:
    """The E-step: called with parameters, it returns the Statistics of the data.

    NaN is an entry that is missing: the likelihood is that of the observed ones, and expectations
    of the others are in the Statistics. Rows without any observed entry do not count.

    Blocks of rows are shifted and converted to float64 one at a time, so that memory does not grow
    with the data. Their borders and the order of summation depend on the data's shape and the
    number of states alone: the result is the same for any number of threads.

    Parameters
    ----------
    X : array of shape (N, D), or Rows that are read in blocks
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
        X: np.ndarray | Rows,
        noise_kind: str = "isotropic",
        shift: ArrayLike = 0.0,
        executor: Executor | None = None,
        infer: Callable[[Parameters], LatentInference] = InferenceWithMissing,
    ) -> None:
        self._shift: Array | None = np.asarray(shift, np.float64)
        rows: Rows = ArrayRows(X) if isinstance(X, np.ndarray) else X
        if isinstance(rows, ArrayRows) and len(rows.data) <= _MOST_POINTS:  # small, converted once
            kept = rows.visit(partial(_shifted, shift=self._shift), slice(None))
            rows, self._shift = ArrayRows(kept), None
        self._rows, self.executor, self._infer = rows, executor, infer
        fixed = self._rows.total(
            partial(_fixed, noise_kind, self._shift), block_points(rows.shape[1], 1), executor
        )
        self.y, self.yy = fixed.y, fixed.yy

    def __call__(self, parameters: Parameters) -> Statistics:
        step = EStep(parameters, self._shift, self._infer)
        total = self._rows.total(step.statistics, step.points, self.executor)
        return replace(total, y=self.y + total.y, yy=self.yy + total.yy)


def _shifted(block: np.ndarray, shift: Array | None) -> Array:
    return block if shift is None else np.subtract(block, shift, dtype=np.float64)


def _fixed(noise_kind: str, shift: Array | None, block: np.ndarray) -> Statistics:
    """What of the Statistics of a block does not depend on the parameters."""
    Y = _shifted(block, shift)
    if has_missing(Y):
        if noise_kind == "full":
            raise ValueError(REFUSED)
        Y = np.where(np.isnan(Y), 0.0, Y)
    none, yy = NOTHING, NOISES[noise_kind].product(Y.T, Y.T)
    return Statistics(len(Y), 0.0, none, none, none, none, none, none, Y.sum(axis=0), yy)


class EStep:
    """What fixed parameters say about a block of rows. It may travel to another process, which
    makes the posterior anew.

    Parameters
    ----------
    parameters : Parameters
    shift : array of shape (D,) or None
        Subtracted from the data; the parameters describe the shifted data.
    infer : callable
        What makes the posterior of given parameters.
    """

    def __init__(
        self,
        parameters: Parameters,
        shift: Array | None,
        infer: Callable[[Parameters], LatentInference],
    ) -> None:
        self._parameters, self._shift, self._infer = parameters, shift, infer

    @cached_property
    def _inference(self) -> LatentInference:
        return self._infer(self._parameters)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_inference"}

    @property
    def points(self) -> int:
        """The most rows that make a block."""
        return block_points(self._parameters.n_features, self._inference.n_states)

    def latents(self, block: np.ndarray) -> Array:
        """Posterior mean of the latents of each row."""
        return self._inference.moments(_shifted(block, self._shift), each=True).mean

    def log_evidence(self, block: np.ndarray) -> Array:
        """Log density of each row."""
        return self._inference.log_evidence(_shifted(block, self._shift))

    def statistics(self, block: np.ndarray) -> Statistics:
        """The Statistics of the rows, but for what does not depend on the parameters."""
        Y = _shifted(block, self._shift)
        if has_missing(Y):
            Y = Y[informative(Y)]
        moments = self._inference.moments(Y)
        return Statistics(
            len(Y),
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
