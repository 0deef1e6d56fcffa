"""All parameters of a model, and their file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.random import Generator

from ._arrays import Array, as_array, frozen
from ._files import whole_file
from .noise import Noise, make_noise
from .prior import Prior

FORMAT = 1


class Mixing:
    """What has a mixing matrix of shape (D, H) has its shape."""

    mixing: Array

    @property
    def n_features(self) -> int:
        return self.mixing.shape[0]

    @property
    def n_latents(self) -> int:
        return self.mixing.shape[1]


@dataclass(frozen=True, eq=False)
class Parameters(Mixing):
    """``y = offset + mixing @ x + e`` with ``x`` from `prior` and ``e`` from `noise`.

    Parameters
    ----------
    mixing : array of shape (D, H)
    offset : array of shape (D,)
    prior : Prior
    noise : IsotropicNoise, DiagonalNoise or FullNoise

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab import IsotropicNoise, Parameters, Prior
    >>> prior, noise = Prior.spike_and_slab([0.2, 0.3]), IsotropicNoise(0.01, 2)
    >>> truth = Parameters(np.eye(2), np.zeros(2), prior, noise)
    >>> Y, X = truth.sample(100, np.random.default_rng(0))
    >>> Y.shape, X.shape
    ((100, 2), (100, 2))
    """

    mixing: Array
    offset: Array
    prior: Prior
    noise: Noise

    def __post_init__(self) -> None:
        mixing = as_array("mixing", self.mixing, (None, self.prior.n_latents))
        offset = as_array("offset", self.offset, (len(mixing),))
        if self.noise.n_features != len(mixing):
            raise ValueError(
                f"the noise has {self.noise.n_features} features, the mixing {len(mixing)}"
            )
        frozen(self, mixing=mixing, offset=offset)

    @property
    def mean(self) -> Array:
        """Mean of y."""
        return self.offset + self.mixing @ self.prior.mean

    @property
    def covariance(self) -> Array:
        """Covariance of y."""
        return (self.mixing * self.prior.variance) @ self.mixing.T + self.noise.covariance

    def sample(self, n_samples: int, rng: Generator) -> tuple[Array, Array]:
        """Data and the latents they came from, shapes (n_samples, D) and (n_samples, H)."""
        latents, _ = self.prior.sample(n_samples, rng)
        noise = rng.standard_normal((n_samples, self.n_features))
        if self.noise.kind == "full":
            noise = noise @ np.linalg.cholesky(self.noise.covariance).T
        else:
            noise = noise * np.sqrt(self.noise.values)
        return self.offset + latents @ self.mixing.T + noise, latents

    def shifted(self, shift: Array) -> Parameters:
        """The parameters of ``y + shift``."""
        return replace(self, offset=self.offset + shift)

    def scaled_latents(self, factor: Array) -> Parameters:
        """The same density of y with latents ``factor * x``."""
        return replace(self, mixing=self.mixing / factor, prior=self.prior.scaled(factor))

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays: what a file holds."""
        return {
            "mixing": self.mixing,
            "offset": self.offset,
            "weights": self.prior.weights,
            "means": self.prior.means,
            "variances": self.prior.variances,
            "noise": self.noise.values,
            "noise_kind": np.array(self.noise.kind),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Parameters:
        prior = Prior(arrays["weights"], arrays["means"], arrays["variances"])
        noise = make_noise(str(arrays["noise_kind"]), arrays["noise"], len(arrays["offset"]))
        return cls(arrays["mixing"], arrays["offset"], prior, noise)

    def as_read(self) -> Parameters:
        """With the layout in memory of parameters from a file: the last bits of what is computed
        from them depend on it.
        """
        return Parameters.from_arrays(self.arrays())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an .npz file; it appears whole or not at all."""
        save_arrays(path, "parameters", self.arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Parameters:
        """Read what `save` wrote."""
        arrays = load_arrays(path, "parameters")
        with refusing(path):
            return cls.from_arrays(arrays)


def save_arrays(path: str | os.PathLike[str], content: str, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to a file that appears whole or not at all."""
    with whole_file(path) as file:
        write_arrays(file, content, arrays)


def write_arrays(file: BinaryIO, content: str, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays with a mark of what they are; they are on the disk before this returns."""
    mark: dict[str, Any] = {"spikeslab_format": FORMAT, "spikeslab_content": content}
    np.savez_compressed(file, **(mark | arrays))
    file.flush()
    os.fsync(file.fileno())


def load_arrays(path: str | os.PathLike[str], content: str) -> dict[str, np.ndarray]:
    """Read what `save_arrays` wrote, refusing anything else with a sentence."""
    with refusing(path), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no .npz file, or was cut off")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if "spikeslab_format" not in arrays:
            raise ValueError("it was not written by spikeslab")
        version = int(arrays.pop("spikeslab_format"))
        if version != FORMAT:
            raise ValueError(
                f"it has format {version}, and this version of spikeslab reads {FORMAT}"
            )
        found = str(arrays.pop("spikeslab_content"))
        if found != content:
            raise ValueError(f"it holds {found}, not {content}")
    return arrays


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever a damaged file leads to into a ValueError that names the file."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except KeyError as error:
        raise ValueError(f"cannot read {path}: it lacks {error}") from None
    except Exception as error:
        raise ValueError(f"cannot read {path}: {error}") from None
