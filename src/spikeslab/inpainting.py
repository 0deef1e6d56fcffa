"""Missing pixels of an image, from the observed pixels of all patches that they are in.

Patches are points of `GaussianClasses` with missing entries. Learning starts from what patches of
all images have in common, edges and smooth shades, so that nothing has to be filled in before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.fft import dct

from ._arrays import Array
from .gaussian_classes import GaussianClasses
from .patches import Average, Patches

# Where learning starts: covariances of ideal edges in so many directions, and of shades whose waves
# are the weaker the shorter they are. Their energies are relative to that of the image's patches.
_DIRECTIONS, _EDGES, _WITHIN = 16, (32.0, 4.0, 0.5), 0.02
_SHADES, _FALL = np.geomspace(0.003, 1.0, 6), 3.0
_BLUR = 0.4  # pixels: half the width of an edge
_ROUGHNESS = 1e-5  # energy of what nothing else explains

_NOISE = 1e-5  # variance of the noise, the range of values being 1
_STEPS, _SAMPLE = 12, 1 << 14  # of learning, and the patches that one looks at
_PULL = 16.0  # pseudo-points that a class keeps of what it was


def completed(
    image: Array,
    patches: Patches,
    rng: np.random.Generator,
    tell: Callable[[int, int], None],
) -> Array:
    """The image (height, width, channels), NaN being missing pixels, with these filled in.

    Those that no patch sees together with an observed pixel stay NaN. `tell` is called with what is
    done and all that there is to do.
    """
    colours, back = _independent(image)
    strips = list(patches.strips())
    total = _STEPS + len(strips)
    numbers = np.arange(len(patches))

    def some() -> Array:
        drawn = numbers
        if len(patches) > _SAMPLE:
            drawn = np.sort(rng.choice(len(patches), _SAMPLE, replace=False))
        return patches.pixels(colours, drawn)

    classes = _start(some(), patches.size)
    for step in range(1, _STEPS + 1):
        classes = classes.learned(classes.statistics(some()), _PULL)
        tell(step, total)

    average = Average(patches)
    for done, strip in enumerate(strips, start=_STEPS + 1):
        rows = numbers.reshape(patches.n_rows, -1)[strip].ravel()
        Y = patches.pixels(colours, rows)
        missing = np.isnan(Y[:, 0])
        asked = missing.any(axis=1) & ~missing.all(axis=1)
        found = classes.complete(Y[asked])
        mean, weight = np.zeros((2, *Y.shape))
        # by standard deviations: the errors of patches that overlap are much alike, and weights by
        # variances would trust the surest one alone
        mean[asked], weight[asked] = found.mean, 1 / np.sqrt(found.variance + _NOISE)
        shape = (len(Y), Y.shape[1], patches.size, patches.size)
        average.add(strip, mean.reshape(shape), weight.reshape(shape))
        tell(done, total)
    return back(average.image())


def _independent(image: Array) -> tuple[Array, Callable[[Array], Array]]:
    """The image with uncorrelated channels of mean 0 and range about 1, and the way back."""
    known = image[~np.isnan(image[:, :, 0])]
    mean, scale = known.mean(axis=0), np.ptp(known)
    axes = np.linalg.eigh(np.cov(known.T, bias=True).reshape(2 * image.shape[2:]))[1][:, ::-1]
    return (image - mean) @ axes / scale, lambda found: found @ axes.T * scale + mean


def _start(Y: Array, size: int) -> GaussianClasses:
    """Classes of ideal edges and shades, in strength like the patches Y."""
    known = ~np.isnan(Y)
    counts = known.sum(axis=2)
    sums = np.where(known, Y, 0.0).sum(axis=2)
    squares = np.where(known, Y**2, 0.0).sum(axis=2)
    within = squares - sums**2 / np.maximum(counts, 1)
    freedom = np.maximum(counts - 1, 0).sum(axis=0)
    brightness = squares.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)
    energy = np.where(freedom > 0, within.sum(axis=0) / np.maximum(freedom, 1), brightness)
    shapes = _shapes(size)
    covariances = (
        energy[:, None, None] * shapes[:, None]
        + brightness[:, None, None]
        + _ROUGHNESS * np.eye(size**2)
    )
    return GaussianClasses(np.full(len(shapes), 1 / len(shapes)), covariances, _NOISE)


def _shapes(size: int) -> Array:
    """Covariances (R, size^2, size^2) of patches of mean 0 and of mean energy 1 where the class's
    is 1.
    """
    side = np.arange(size)
    wave = side[:, None] ** 2 + side**2
    strength = np.where(wave > 0, np.maximum(wave, 1.0) ** (-_FALL / 2), 0.0).ravel()
    cosines = dct(np.eye(size), norm="ortho", axis=0)
    waves = np.kron(cosines, cosines)
    shade = (waves.T * (strength * size**2 / strength.sum())) @ waves

    y, x = (side - (size - 1) / 2 for _ in range(2))
    offsets = np.linspace(-0.6, 0.6, 96) * size
    spread = (np.arange(24) + 0.5) / 24 - 0.5  # of directions within a class
    found = []
    for direction in range(_DIRECTIONS):
        angles = np.pi * (direction + spread) / _DIRECTIONS
        along = (
            np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y[:, None]
        ).reshape(len(angles), 1, -1)
        edges = np.tanh((along - offsets[:, None]) / _BLUR).reshape(-1, size**2)
        edges -= edges.mean(axis=1, keepdims=True)
        edge = edges.T @ edges
        edge *= size**2 / edge.trace()
        found += [strength * (edge + _WITHIN * shade) for strength in _EDGES]
    return np.stack(found + [strength * shade for strength in _SHADES])
