"""Images with noise or holes: restored by what is learned from themselves.

All overlapping patches of the image are samples of a model with classes; their posterior means are
averaged where they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike
from scipy.fft import dct
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.stats import chi2
from sklearn.utils import check_random_state

from ._arrays import Array
from ._checks import check_bool, check_choice, check_integer, check_real
from .class_estimator import ClassProgress, ClasswiseSparseCoding
from .inpainting import completed
from .patches import Average, Patches

PATCH, LEAST_SIDE = 8, 16  # pixels
_OVERLAP = 15  # so many overlapping patches are worth one that does not
_LEARN_FROM = 1 << 23  # numbers: as many patches of a large image, drawn at random

# The noise level is seen in the finest waves of the quietest patches.
_NOISE_PATCH, _FINEST, _QUIETEST = 16, 6, 0.1
_NO_NOISE = 1e-6  # of the range of values


@dataclass(frozen=True)
class Setting:
    """How an image is denoised.

    `passes` are what the noise variance is divided by, pass by pass: the first finds the clean
    patches of the noisy image, each further one those of the last result mixed with the noisy
    image. So patches come to agree where they overlap.
    """

    n_components: int
    n_classes: int
    background: str
    passes: tuple[float, ...]


ACCURATE = Setting(256, 8, "full", (1, 4, 8, 16))
FAST = Setting(64, 2, "isotropic", (1,))


class ImageProgress(NamedTuple):
    """Given to the callback now and then."""

    stage: str
    done: int
    total: int


Callback = Callable[[ImageProgress], object]


def denoise(
    image: ArrayLike,
    sigma: float | str = "auto",
    *,
    fast: bool = False,
    n_components: int | None = None,
    random_state: Any = 0,
    callback: Callback | None = None,
) -> np.ndarray:
    """Remove white Gaussian noise from an image.

    Parameters
    ----------
    image : array of shape (height, width) or (height, width, channels)
        At least 16 pixels a side. All channels have the same noise.
    sigma : float or "auto", default="auto"
        Standard deviation of the noise, in the image's units. "auto" estimates it by `noise_level`.
        Less than a millionth of the range of the image's values is no noise.
    fast : bool, default=False
        A small model and one pass: several times faster, a little less accurate.
    n_components : int, default=None
        Directions that are learned, fewer for tiny images. None means 256, and 64 if `fast`.
    random_state : int, RandomState instance or None, default=0
    callback : callable, default=None
        Called with an `ImageProgress` now and then.

    Returns
    -------
    array
        Of the image's shape and type; whole numbers are rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.images import denoise
    >>> clean = np.add.outer(np.sin(np.arange(48) / 9), np.arange(48) > 20)
    >>> noisy = clean + 0.1 * np.random.default_rng(0).standard_normal(clean.shape)
    >>> found = denoise(noisy, 0.1, fast=True)
    >>> bool(np.mean((found - clean) ** 2) < 0.1 * np.mean((noisy - clean) ** 2))
    True
    """
    pixels = _pixels(image)
    if isinstance(sigma, str):
        check_choice("sigma", sigma, ("auto",))
        sigma = _noise_level(pixels)
    else:
        check_real("sigma", sigma, 0.0, above=True)
    check_bool("fast", fast)
    setting = FAST if fast else ACCURATE
    if n_components is None:
        n_components = setting.n_components
    check_integer("n_components", n_components, 1)

    if sigma <= _NO_NOISE * np.ptp(pixels):
        return np.array(image)
    noisy = pixels / sigma
    patches = Patches(noisy.shape, PATCH)
    seeds = check_random_state(random_state)
    model = ClasswiseSparseCoding(
        min(n_components, len(patches) // _OVERLAP),  # else it learns noise by heart
        setting.n_classes,
        background=setting.background,
        noise_variance=1.0,
        pull=_OVERLAP,
        random_state=seeds,
        callback=_told("learning", callback),
    )
    rng = np.random.default_rng(seeds.randint(np.iinfo(np.int32).max))
    model.fit(patches.sample(noisy, _LEARN_FROM // patches.n_details, rng))

    strips = list(patches.strips())
    mixed = noisy
    for number, sharpness in enumerate(setting.passes):
        average = Average(patches)
        for done, strip in enumerate(strips, start=1 + number * len(strips)):
            _add_clean(average, patches, strip, mixed, model, 1 / sharpness)
            if callback is not None:
                callback(ImageProgress("cleaning", done, len(setting.passes) * len(strips)))
        clean = average.image()
        mixed = (noisy + sharpness * clean) / (1 + sharpness)
    return _like(clean * sigma, image)


def _add_clean(
    average: Average,
    patches: Patches,
    strip: slice,
    image: Array,
    model: ClasswiseSparseCoding,
    noise_variance: float,
) -> None:
    """Add the clean patches of a strip, each with the precision of its pixels as its weight."""
    details, means = patches.split(image, strip)
    mean, variance = model.clean(details, noise_variance)
    n_pixels = patches.size**2
    # of a pixel: from the details, and from the patch's mean
    variance = variance / (n_pixels * means.shape[1]) + noise_variance / n_pixels
    average.add(strip, patches.join(mean, means), 1 / variance)


def inpaint(
    image: ArrayLike,
    mask: ArrayLike,
    *,
    random_state: Any = 0,
    callback: Callback | None = None,
) -> np.ndarray:
    """Fill in missing pixels of an image.

    Patches belong to classes of edges and shades, whose shapes are learned by EM from the observed
    pixels alone. Every missing pixel is its mean given the observed ones of a patch, averaged
    over the patches that it is in. What is further from any observed pixel than a patch is wide is
    interpolated.

    Parameters
    ----------
    image : array of shape (height, width) or (height, width, channels)
        At least 16 pixels a side. What it has where pixels are missing does not matter.
    mask : bool array of shape (height, width)
        True where the pixel is missing, in all channels.
    random_state : int, RandomState instance or None, default=0
    callback : callable, default=None
        Called with an `ImageProgress` now and then.

    Returns
    -------
    array
        Of the image's shape and type, and equal to it where pixels are observed.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.images import inpaint
    >>> image = np.add.outer(np.sin(np.arange(32) / 9), np.arange(32) > 20)
    >>> mask = np.random.default_rng(0).random(image.shape) < 0.3
    >>> found = inpaint(np.where(mask, np.nan, image), mask)
    >>> bool(np.abs(found - image).mean() < 0.03)
    True
    """
    image = np.asarray(image)
    _check_numbers(image)
    missing = _mask(mask, image.shape[:2])
    known = _pixels(np.where(missing.reshape(*missing.shape, *[1] * (image.ndim - 2)), 0, image))
    if not np.ptp(known[~missing], axis=0).any() or not missing.any():
        return _filled(image, missing, np.broadcast_to(known[~missing][:1], known.shape))
    rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))

    def tell(done: int, total: int) -> None:
        if callback is not None:
            callback(ImageProgress("filling in", done, total))

    holed = np.where(missing[:, :, None], np.nan, known)
    pixels = np.where(
        missing[:, :, None], completed(holed, Patches(known.shape, PATCH), rng, tell), known
    )
    far = np.isnan(pixels[:, :, 0])
    if far.any():
        pixels = _interpolated(pixels, far)
    return _filled(image, missing, pixels)


def _mask(mask: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    missing = np.asarray(mask)
    if missing.dtype != bool:
        raise TypeError(f"mask must be an array of bool, got type {missing.dtype}")
    if missing.shape != shape:
        raise ValueError(f"mask must have the image's shape {shape}, got {missing.shape}")
    if missing.all():
        raise ValueError("all pixels are missing: there is nothing to learn from")
    return missing


def _interpolated(pixels: Array, missing: np.ndarray) -> Array:
    """Linear interpolation of the missing pixels, the nearest one outside of what that covers."""
    known, wanted = np.argwhere(~missing), np.argwhere(missing)
    filled = pixels.copy()
    filled[missing] = NearestNDInterpolator(known, pixels[~missing])(wanted)
    if len(np.unique(known[:, 0])) > 1 and len(np.unique(known[:, 1])) > 1 and len(known) > 3:
        found = LinearNDInterpolator(known, pixels[~missing])(wanted)
        filled[missing] = np.where(np.isfinite(found), found, filled[missing])
    return filled


def _filled(image: ArrayLike, missing: np.ndarray, pixels: Array) -> np.ndarray:
    """The image with the missing ones of its pixels from `pixels`."""
    result = np.array(image)
    result[missing] = _like(pixels, image)[missing]
    return result


def noise_level(image: ArrayLike) -> float:
    """Estimate the standard deviation of white noise in an image of at least 16 pixels a side.

    From the energy of the finest waves in the quietest tenth of the patches. What is textured
    everywhere gives too large a value.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.images import noise_level
    >>> image = np.add.outer(np.arange(128), np.arange(128) > 20)
    >>> noise = 0.1 * np.random.default_rng(0).standard_normal(image.shape)
    >>> 0.09 < noise_level(image + noise) < 0.11
    True
    """
    return _noise_level(_pixels(image))


def _noise_level(pixels: Array) -> float:
    pixels = pixels - pixels.mean(axis=(0, 1))
    waves = dct(np.eye(_NOISE_PATCH), norm="ortho", axis=0)[-_FINEST:]
    # one side after the other, so that patches need not be made
    columns = sliding_window_view(pixels, _NOISE_PATCH, axis=0) @ waves.T
    both = sliding_window_view(columns, _NOISE_PATCH, axis=1)
    energy = np.zeros(both.shape[:3])
    for wave in waves:
        energy += ((both @ wave) ** 2).sum(axis=3)
    quiet = np.quantile(energy.reshape(-1, pixels.shape[2]), _QUIETEST, axis=0)
    return float(np.sqrt(np.mean(quiet) / chi2.ppf(_QUIETEST, _FINEST**2)))


def _check_numbers(image: np.ndarray) -> None:
    if image.dtype == bool or not np.issubdtype(image.dtype, np.number):
        raise TypeError(f"image must be an array of numbers, got type {image.dtype}")
    if np.iscomplexobj(image):
        raise TypeError(f"image must be an array of real numbers, got type {image.dtype}")


def _pixels(image: ArrayLike) -> Array:
    """The image as float64 of shape (height, width, channels), checked."""
    image = np.asarray(image)
    _check_numbers(image)
    if image.ndim not in (2, 3):
        raise ValueError(
            f"image must have shape (height, width) or (height, width, channels), got {image.shape}"
        )
    if min(image.shape[:2]) < LEAST_SIDE or image.size == 0:
        raise ValueError(
            f"image must be at least {LEAST_SIDE} pixels a side, got shape {image.shape}"
        )
    pixels = image.astype(np.float64).reshape(*image.shape[:2], -1)
    if not np.isfinite(pixels).all():
        raise ValueError("image contains NaN or infinity")
    return pixels


def _like(pixels: Array, image: ArrayLike) -> np.ndarray:
    """The pixels as an image of the shape and type of another."""
    image = np.asarray(image)
    if np.issubdtype(image.dtype, np.integer):
        limits = np.iinfo(image.dtype)
        pixels = np.clip(np.rint(pixels), limits.min, limits.max)
    return pixels.reshape(image.shape).astype(image.dtype)


def _told(stage: str, callback: Callback | None) -> Callable[[ClassProgress], None] | None:
    """The callback as the estimator calls it."""
    if callback is None:
        return None

    def tell(progress: ClassProgress) -> None:
        callback(ImageProgress(stage, progress.step, progress.n_steps))

    return tell
