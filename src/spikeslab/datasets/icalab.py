"""The ICALAB benchmark files, which their authors do not allow to be passed on."""

from __future__ import annotations

import os
from pathlib import Path

from .._arrays import Array
from ..signals import read


def load_icalab(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """The sources of every .mat file in a folder, by the files' names without ".mat".

    The ICALAB toolbox comes with them (10halo.mat, Sergio7.mat, Speech4.mat, c5signals.mat and
    others). Each holds one matrix with a source in every row; here sources are columns: arrays of
    shape (n_samples, n_sources).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"the ICALAB folder {folder} does not exist")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".mat")
    if not paths:
        raise FileNotFoundError(f"there are no .mat files in the ICALAB folder {folder}")
    return {path.stem: read(path).data for path in paths}
