"""Mixtures with known sources: the cells of the separation benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from problems import LANGUAGES
from spikeslab.datasets import (
    Speech,
    c5,
    exponential,
    laplace,
    load_speech,
    mix,
    orthogonal_mixing,
    sergio7,
    spike_and_slab,
    uniform,
)

Array = NDArray[np.float64]

NOISE_FREE, NOISY, UNSEEN = "noise-free", "noisy", "not tuned on"
_DECIBELS = (5, 10, 15, 20, 30)
_LEAST_ANGLE = 20.0  # degrees between two columns of an overcomplete mixing matrix


@dataclass(frozen=True)
class Cell:
    """One setting. The mixing matrix is a random one with orthonormal columns; or, with `gaussian`,
    of independent Gaussian entries; or, with fewer channels than sources, of spread unit columns.
    """

    name: str
    group: str
    draw_sources: Callable[[Generator], Array]
    n_channels: int
    snr_db: float | None = None
    scales_db: float = 0.0  # that the sources' powers span
    gaussian: bool = False

    def draw(self, rng: Generator) -> tuple[Array, Array, Array]:
        """Mixture (N, D), mixing matrix (D, H) and sources (N, H)."""
        sources = self.draw_sources(rng)
        n_sources = sources.shape[1]
        if self.n_channels < n_sources:
            mixing = spread_columns(self.n_channels, n_sources, rng)
        elif self.gaussian:
            mixing = rng.standard_normal((self.n_channels, n_sources))
        else:
            mixing = orthogonal_mixing(self.n_channels, rng)[:, :n_sources]
        mixing = mixing * 10 ** (-np.linspace(0, self.scales_db, n_sources) / 20)
        return mix(sources, mixing, snr_db=self.snr_db, rng=rng), mixing, sources


def spread_columns(n_channels: int, n_sources: int, rng: Generator) -> Array:
    """Unit columns that can be told apart: no two of them within 20 degrees."""
    while True:
        columns = rng.standard_normal((n_channels, n_sources))
        columns /= np.linalg.norm(columns, axis=0)
        cosines = np.abs(np.triu(columns.T @ columns, 1))
        if cosines.max() < np.cos(np.radians(_LEAST_ANGLE)):
            return columns


@cache
def recordings(folder: Path, speakers: tuple[str, ...]) -> Speech:
    return load_speech(folder, speakers)


def square_cells(speech: Path) -> Iterator[Cell]:
    """As many or more channels than sources: where ICA can be compared with."""

    def spoken(n: int, sampling: str = "iid") -> Callable[[Generator], Array]:
        return lambda rng: recordings(speech, LANGUAGES).draw(n, rng, sampling)

    def halo(n: int) -> Callable[[Generator], Array]:
        return lambda rng: recordings(speech, ("en", "es", "fr", "it", "ru")).draw_halo(n, rng)

    def made(generate: Callable[..., Array], *shape: int) -> Callable[[Generator], Array]:
        return lambda rng: generate(*shape, rng)

    def sparse(n: int, n_sources: int) -> Callable[[Generator], Array]:
        return lambda rng: spike_and_slab(n, n_sources, rng, rng.uniform(0.2, 0.4, n_sources))

    for n in (200, 500):
        for sampling in ("iid", "no pauses", "contiguous"):
            yield Cell(f"speech4 {sampling} N={n}", NOISE_FREE, spoken(n, sampling), 4)
        yield Cell(f"halo10 N={n}", NOISE_FREE, halo(n), 10)
        yield Cell(f"sergio7 N={n}", NOISE_FREE, made(sergio7, n), 7)
        yield Cell(f"c5 N={n}", NOISE_FREE, made(c5, n), 5)

    sources = {
        "spike-slab": sparse(500, 4),
        "speech4": spoken(500),
        "laplace": made(laplace, 500, 4),
    }
    for kind, draw in sources.items():
        for n_channels in (4, 8):
            for snr in _DECIBELS:
                yield Cell(f"{kind} D={n_channels} {snr} dB", NOISY, draw, n_channels, snr)

    for kind, draw in sources.items():
        for n_channels in (4, 8):
            name = f"{kind} D={n_channels} 15 dB, Gaussian mixing"
            yield Cell(name, UNSEEN, draw, n_channels, 15, gaussian=True)
    for n_channels in (4, 8):
        for snr in (10, 20):
            for kind, generate in (("exponential", exponential), ("uniform", uniform)):
                draw = made(generate, 500, 4)
                yield Cell(f"{kind} D={n_channels} {snr} dB", UNSEEN, draw, n_channels, snr)
    for n in (2000, 10000):
        yield Cell(f"spike-slab N={n} D=4 15 dB", UNSEEN, sparse(n, 4), 4, 15)
        yield Cell(f"laplace N={n} D=4 15 dB", UNSEEN, made(laplace, n, 4), 4, 15)
        yield Cell(f"sergio7 N={n}", UNSEEN, made(sergio7, n), 7)
    for n_sources in (2, 6):
        for snr in (15, None):
            noise = f"{snr} dB" if snr else "no noise"
            for kind, draw in (
                ("spike-slab", sparse(500, n_sources)),
                ("laplace", made(laplace, 500, n_sources)),
            ):
                name = f"{kind} H=D={n_sources} {noise}"
                yield Cell(name, UNSEEN, draw, n_sources, snr)
    for kind, draw in (("spike-slab", sparse(500, 4)), ("speech4", spoken(500))):
        for snr in (30, None):
            noise = f"{snr} dB" if snr else "no noise"
            name = f"{kind} scales over 40 dB, {noise}"
            yield Cell(name, UNSEEN, draw, 4, snr, scales_db=40)


def overcomplete_cells() -> Iterator[Cell]:
    """More sources than channels."""
    for n_channels, n_sources in ((2, 3), (3, 4)):
        for snr in (20, 30):

            def draw(rng: Generator, n_sources: int = n_sources) -> Array:
                return spike_and_slab(1000, n_sources, rng, 0.2)

            name = f"{n_channels} x {n_sources}, {snr} dB"
            yield Cell(name, "overcomplete", draw, n_channels, snr)


def number_cells(speech: Path) -> Iterator[Cell]:
    """The number of sources is to be found."""

    def spoken(n_sources: int) -> Callable[[Generator], Array]:
        return lambda rng: recordings(speech, LANGUAGES).draw(500, rng)[:, :n_sources]

    def sparse(n_sources: int) -> Callable[[Generator], Array]:
        return lambda rng: spike_and_slab(500, n_sources, rng, rng.uniform(0.2, 0.4, n_sources))

    def heavy(n_sources: int) -> Callable[[Generator], Array]:
        return lambda rng: laplace(500, n_sources, rng)

    for kind, make in (("spike-slab", sparse), ("speech", spoken), ("laplace", heavy)):
        for n_sources, n_channels in ((2, 4), (3, 5), (4, 6), (4, 4)):
            for snr in (10, 20):
                name = f"{kind} {n_sources} in {n_channels}, {snr} dB"
                yield Cell(name, "number", make(n_sources), n_channels, snr)
