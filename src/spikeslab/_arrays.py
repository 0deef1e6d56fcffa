"""The array type of the library, and checks that name what is wrong."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating[Any]]
T = TypeVar("T")


def as_array(name: str, value: ArrayLike, shape: tuple[int | None, ...]) -> Array:
    """A copy of `value` as a contiguous float64 array of the given shape; None is any extent."""
    try:
        array = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of real numbers: {error}") from None
    if array.ndim != len(shape) or any(
        wanted is not None and wanted != extent
        for wanted, extent in zip(shape, array.shape, strict=True)
    ):
        wanted_shape = " x ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{name} must have shape {wanted_shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return array


def frozen(instance: object, **fields: Any) -> None:
    """Set fields of a frozen dataclass in its `__post_init__`; arrays become read-only."""
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(instance, name, value)


def unchecked(cls: type[T], **fields: Any) -> T:
    """An instance of a frozen dataclass whose fields are known to be right: the M-step's hot
    path.
    """
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance
