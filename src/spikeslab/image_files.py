"""Reading and writing pictures: PNG, JPEG and TIFF files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._arrays import Array
from ._files import whole_file
from .parameters import refusing

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}
_OF_16_BITS = ("I;16", "I;16B", "I;16L")
_JPEG_QUALITY = 95


@dataclass(frozen=True, eq=False)
class Picture:
    """What a file held, and how to write another picture in the same manner.

    Attributes
    ----------
    pixels : array of shape (height, width) or (height, width, 3)
        Grey or red, green and blue. What was a palette is colours.
    depth : numpy.dtype
        Of the numbers in the file: uint8, uint16 or float32.
    alpha : array of shape (height, width) or None
        Opacity, which is written as it was read.
    """

    pixels: Array
    depth: np.dtype[Any]
    alpha: np.ndarray | None
    _profile: bytes | None

    @property
    def peak(self) -> float:
        """The largest value that a pixel can have: white; of floats, the largest there is."""
        if self.depth == np.float32:
            return float(self.pixels.max())
        return float(np.iinfo(self.depth).max)

    def check_target(self, path: str | os.PathLike[str]) -> None:
        """Refuse to write where it would fail or lose what the picture has."""
        format_ = _format_of(Path(path))
        lacking = {
            "JPEG": self.depth != np.uint8 or self.alpha is not None,
            "PNG": self.depth == np.float32,
            "TIFF": False,
        }[format_]
        if lacking:
            kind = f"{8 * self.depth.itemsize} bits" if self.alpha is None else "transparency"
            other = ".tif" if format_ == "PNG" else ".png"
            raise ValueError(
                f"cannot write {path}: {format_} has no {kind} a pixel; "
                f"give a name that ends in {other}"
            )
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: there is no folder {Path(path).parent}")

    def write(self, path: str | os.PathLike[str], pixels: Array) -> None:
        """Write pixels in the depth of the file that was read, in the format that the path's suffix
        says. The file appears whole or not at all.
        """
        self.check_target(path)
        if self.depth != np.float32:
            pixels = np.clip(np.rint(pixels), 0, self.peak)
        values = pixels.astype(self.depth)
        if self.alpha is not None:
            values = np.concatenate(
                [np.atleast_3d(values), self.alpha.astype(self.depth)[:, :, None]], axis=2
            )
        options: dict[str, Any] = {"icc_profile": self._profile} if self._profile else {}
        format_ = _format_of(Path(path))
        if format_ == "JPEG":
            options["quality"] = _JPEG_QUALITY
        with whole_file(path) as file:
            _pillow().fromarray(values).save(file, format_, **options)


def read_picture(path: str | os.PathLike[str]) -> Picture:
    """Read a picture, turned as its EXIF orientation says; needs Pillow (``pip install
    'spikeslab[app]'``).

    Grey of 8 or 16 bits or floats, colour of 8 bits, either with transparency, and palettes. What
    could only be read with loss is refused.
    """
    image = _opened(Path(path))
    mode, alpha = image.mode, None
    with refusing(path):
        if mode in ("P", "PA"):
            see_through = mode == "PA" or "transparency" in image.info
            image = image.convert("RGBA" if see_through else "RGB")
        elif mode not in ("L", "LA", "RGB", "RGBA", "F", *_OF_16_BITS):
            raise ValueError(
                f"its pixels are of the kind {mode!r}; "
                "save it as grey (8 or 16 bits) or as RGB (8 bits) first"
            )
        elif mode in ("L", "LA", "RGB", "RGBA") and _bits(image) > 8:
            raise ValueError(
                f"its channels have {_bits(image)} bits each, which only grey pictures without "
                "transparency may have; save it with 8 bits, or its channels one by one"
            )
        values = np.asarray(image)
        if image.mode in ("LA", "RGBA"):
            values, alpha = values[:, :, :-1], values[:, :, -1]
            values = values[:, :, 0] if image.mode == "LA" else values
        depth = values.dtype.newbyteorder("=")
        if not np.isfinite(values).all():
            raise ValueError("it contains NaN or infinity")
    return Picture(values.astype(np.float64), depth, alpha, image.info.get("icc_profile"))


def read_mask(path: str | os.PathLike[str]) -> np.ndarray:
    """Read which pixels are missing, bool of shape (height, width): those nearer to white than to
    black.
    """
    image = _opened(Path(path))
    with refusing(path):
        if image.mode in _OF_16_BITS:
            missing: np.ndarray = np.asarray(image) > 0x7FFF
            return missing
        return np.asarray(image.convert("L")) > 0x7F


def _opened(path: Path) -> Any:
    """The only image of a file, loaded and upright."""
    Image = _pillow()
    from PIL import ImageOps

    _format_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a picture")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with refusing(path):
        try:
            image = Image.open(path, formats=("PNG", "JPEG", "TIFF"))
        except Image.UnidentifiedImageError:
            raise ValueError("it is no PNG, JPEG or TIFF picture, or is damaged") from None
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError(f"it holds {image.n_frames} pictures; give a file with one")
        tile = image.tile
        image.load()
        upright = ImageOps.exif_transpose(image)
        upright.info["bits"] = _bits_in_file(image, tile)
    return upright


def _bits_in_file(image: Any, tile: Any) -> int:
    """Bits of a channel in the file, of which Pillow keeps 8 where there are several channels."""
    if image.format == "TIFF":
        return max(image.tag_v2.get(258, (8,)))
    return 16 if image.format == "PNG" and any("16" in str(part[-1]) for part in tile) else 8


def _bits(image: Any) -> int:
    return int(image.info["bits"])


def _format_of(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"the name of a picture must end in {', '.join(_FORMATS)}, got {path}")
    return _FORMATS[suffix]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "reading and writing pictures needs Pillow: pip install 'spikeslab[app]'"
        ) from None
    return Image
