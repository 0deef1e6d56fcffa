"""Images from noise or with holes: learned from nothing but the image itself.

All overlapping patches of the image are samples of `ClasswiseSparseCoding`; their posterior means
are averaged where they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._arrays import Array
from ._checks import check_bool, check_integer, check_real
from .class_estimator import ClassProgress, ClasswiseSparseCoding
from .patches import Average, Patches

PATCH = 8  # pixels a side
_LEARN_FROM = 1 << 23  # numbers at most, in randomly drawn patches of large images


@dataclass(frozen=True)
class Setting:
    """How an image is denoised.

    `passes` are what the noise variance is divided by, pass by pass: the first finds the clean
    patches of the noisy image; each further one those of the last result mixed with the noisy
    image, so that in the end the patches agree with each other where they overlap.
    """

    n_components: int
    n_classes: int
    background: str
    passes: tuple[float, ...]


ACCURATE = Setting(256, 8, "full", (1, 4, 8, 16))
FAST = Setting(64, 2, "isotropic", (1,))


class ImageProgress(NamedTuple):
    """Given to the callback after every piece of work."""

    stage: str
    done: int
    total: int  # of the stage


Callback = Callable[[ImageProgress], object]


def denoise(
    image: ArrayLike,
    sigma: float | str = "auto",
    *,
    fast: bool = False,
    n_components: int | None = None,
    random_state=0,
    callback: Callback | None = None,
) -> np.ndarray:
    image = np.asarray(image)
    pixels = image.astype(float).reshape(*image.shape[:2], -1) / sigma
    setting = FAST if fast else ACCURATE
    patches = Patches(pixels.shape, PATCH)
    model = ClasswiseSparseCoding(
        n_components or setting.n_components,
        setting.n_classes,
        background=setting.background,
        noise_variance=1.0,
        random_state=random_state,
        callback=callback,
    )
    rng = np.random.default_rng(random_state)
    D = pixels.shape[2] * (PATCH**2 - 1)
    model.fit(patches.sample(pixels, _LEARN_FROM // D, rng))
    current = pixels
    for sharpness in setting.passes:
        average = Average(patches)
        for strip in patches.strips():
            details, means = patches.split(current, strip)
            mean, variance = model.clean(details, 1 / sharpness)
            # variance of a pixel: of the details, and of the patch's mean
            n_pixels = pixels.shape[2] * PATCH**2
            weights = 1 / (variance / n_pixels + 1 / sharpness / PATCH**2)
            average.add(strip, patches.join(mean, means), weights)
        clean = average.image()
        current = (pixels + sharpness * clean) / (1 + sharpness)
    return (clean * sigma).reshape(image.shape)
