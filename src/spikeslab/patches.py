"""The overlapping patches of an image, and the way back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.fft import dct

from ._arrays import Array

_STRIP = 1 << 14  # patches of a strip, about


class Patches:
    """All overlapping square patches of images of one shape, a strip of rows at a time.

    A patch comes apart into the *means* of its channels and its *details*, what is left of it, in
    the orthonormal coordinates of the discrete cosine transform: white noise in the image is white
    noise in the details.

    Parameters
    ----------
    shape : tuple
        Height, width and channels.
    size : int
        Pixels a side of a patch.
    """

    def __init__(self, shape: tuple[int, int, int], size: int) -> None:
        self.shape, self.size = shape, size
        self.n_rows, self.n_columns = shape[0] - size + 1, shape[1] - size + 1
        cosines = dct(np.eye(size), norm="ortho", axis=0)
        self._waves = np.kron(cosines, cosines)[1:]  # without the constant one

    def __len__(self) -> int:
        return self.n_rows * self.n_columns

    @property
    def n_details(self) -> int:
        return self.shape[2] * (self.size**2 - 1)

    def strips(self) -> Iterator[slice]:
        """Rows of patches that are worked on together."""
        step = max(1, _STRIP // self.n_columns)
        starts = range(0, self.n_rows, step)
        return (slice(start, min(start + step, self.n_rows)) for start in starts)

    def split(self, image: Array, strip: slice) -> tuple[Array, Array]:
        """Details (N, channels (size^2 - 1)) and means (N, channels) of the patches of a strip."""
        return self._split(self._view(image)[strip].reshape(-1, self.shape[2], self.size**2))

    def sample(self, image: Array, most: int, rng: np.random.Generator) -> Array:
        """Details of all patches, or of as many of them as allowed."""
        numbers = np.arange(len(self))
        if len(self) > most:
            numbers = np.sort(rng.choice(len(self), most, replace=False))
        return self._split(self.pixels(image, numbers))[0]

    def pixels(self, image: Array, numbers: np.ndarray) -> Array:
        """Pixels (N, channels, size^2) of some of the patches, which are numbered row by row."""
        drawn = self._view(image)[np.divmod(numbers, self.n_columns)]
        return drawn.reshape(-1, self.shape[2], self.size**2)

    def join(self, details: Array, means: Array) -> Array:
        """The inverse of `split`: pixels (N, channels, size, size)."""
        shape = (len(details), self.shape[2], self.size**2 - 1)
        pixels = details.reshape(shape) @ self._waves + means[:, :, None]
        return pixels.reshape(*shape[:2], self.size, self.size)

    def _view(self, image: Array) -> Array:
        """Shape (rows, columns, channels, size, size)."""
        return sliding_window_view(image, (self.size, self.size), axis=(0, 1))

    def _split(self, pixels: Array) -> tuple[Array, Array]:
        return (pixels @ self._waves.T).reshape(len(pixels), -1), pixels.mean(axis=2)


class Average:
    """The image that patches make, each counting as much as its weight where they overlap."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._sum, self._weight = np.zeros((2, *patches.shape))

    def add(self, strip: slice, pixels: Array, weights: Array) -> None:
        """Put the patches of a strip, pixels (N, channels, size, size), where they belong; weights
        are those of the patches, (N,), or of the pixels.
        """
        size, columns = self._patches.size, self._patches.n_columns
        weights = weights.reshape(*weights.shape, *[1] * (pixels.ndim - weights.ndim))
        weights = np.broadcast_to(weights, pixels.shape)
        shape = (-1, columns, *pixels.shape[1:])
        pixels, weights = (pixels * weights).reshape(shape), weights.reshape(shape)
        for i in range(size):
            for j in range(size):
                place = (slice(strip.start + i, strip.stop + i), slice(j, j + columns))
                self._sum[place] += pixels[..., i, j]
                self._weight[place] += weights[..., i, j]

    def image(self) -> Array:
        """NaN where nothing was put."""
        nothing = np.full_like(self._sum, np.nan)
        found: Array = np.divide(self._sum, self._weight, out=nothing, where=self._weight > 0)
        return found
