"""The files that a separation leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._arrays import Array
from ..signals import Signals

if TYPE_CHECKING:
    from ..separation import Separation

PEAK = 0.9  # of full scale, in every source that is written as audio


def default_folder(source: Path) -> Path:
    """Where results go unless told otherwise: here, called like the input."""
    return Path(f"{source.stem}-sources")


def write_separation(
    folder: Path, separation: Separation, signals: Signals, title: str, *, report: bool
) -> list[str]:
    """Write sources, model and report; returns their names."""
    files = write_sources(folder, separation.sources, signals)
    separation.model.save(folder / "model.npz")
    files.append("model.npz")
    if report:
        separation.to_report(folder / "report.html", rate=signals.rate, title=title)
        files.append("report.html")
    return files


def write_sources(folder: Path, sources: Array, signals: Signals) -> list[str]:
    """Write each source to a file like the one that `signals` came from; returns their names."""
    if signals.rate is not None:
        sources = peak_normalised(sources)
    n_sources = sources.shape[1]
    width = len(str(n_sources))
    files = []
    for number in range(1, n_sources + 1):
        name = f"source-{number:0{width}}"
        files.append(name + signals.suffix)
        signals.write(folder / files[-1], sources[:, [number - 1]], [name])
    return files


def peak_normalised(sources: Array) -> Array:
    """All at the same peak, which does not clip; silence stays silent."""
    peaks = np.abs(sources).max(axis=0)
    return sources * (PEAK / np.where(peaks > 0, peaks, 1.0))
