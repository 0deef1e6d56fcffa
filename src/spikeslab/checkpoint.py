"""Checkpoints: a file with which a fit that was killed goes on as if nothing had happened.

A fit is one run or several. What a run keeps are named arrays that say how to go on or, in the end,
what was found; nothing here knows their meaning.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from . import __version__
from ._files import lock
from .parameters import load_arrays, refusing, write_arrays

SECONDS = 10.0  # between writes, so that a kill costs little work
_SHARE = 0.05  # of the time that writes may take, however slow the disk

_HASHED_AT_ONCE = 1 << 20  # numbers


def digest(*arrays: np.ndarray) -> str:
    """A hash of types, shapes and values, whatever the layout in memory.

    Of all values, since that costs no more than an E-step, and a sample could miss the one that was
    mended between two calls.
    """
    found = hashlib.sha256()
    for array in map(np.atleast_1d, arrays):
        found.update(f"{array.dtype.str} {array.shape}".encode())
        rows = max(1, _HASHED_AT_ONCE // max(1, array[:1].size))
        for first in range(0, len(array), rows):
            found.update(np.ascontiguousarray(array[first : first + rows]).data)
    return found.hexdigest()


@dataclass(frozen=True)
class Digest:
    """A hash of data that are visited in blocks; the sum is that of both in this order."""

    value: str

    @classmethod
    def of(cls, block: np.ndarray) -> Digest:
        return cls(digest(block))

    def __add__(self, other: Digest) -> Digest:
        return Digest(hashlib.sha256((self.value + other.value).encode()).hexdigest())


class Checkpoint:
    """The runs of a fit in a file; a context manager.

    The file appears whole or not at all, and one fit at a time may use it. It stays when the fit
    has ended: the same fit then finds all its runs finished.

    Parameters
    ----------
    path : path
        Of a new file, or of one to go on from.
    settings : mapping
        All that the outcome depends on, as plain values. A file with others, or of another version
        of the library, is refused and stays as it is.
    drawn : mapping
        Plain values that were drawn at random. Those in the file take their place.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Any],
        drawn: Mapping[str, Any],
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"checkpoint must be the path of a file, got {path!r}")
        self._path = Path(path)
        self._part = self._path.with_name(f".{self._path.name}.part")
        settings = {"version of spikeslab": __version__, **settings}
        self._settings = json.loads(json.dumps(settings, default=np.generic.item))
        self.drawn = drawn
        self._kept: dict[str, dict[str, np.ndarray]] = {}
        self._unwritten = False
        self._lock = Lock()  # runs may be threads

    def __enter__(self) -> Self:
        try:
            with ExitStack() as stack:
                with suppress(FileNotFoundError):
                    stack.enter_context(_claim(self._path, os.O_RDONLY))
                    self._read()
                self._file = self._replace()  # that it can be written should not turn out later
        except BlockingIOError:
            raise ValueError(
                f"the checkpoint {self._path} is in use by another fit; "
                "wait for it, or give another file"
            ) from None
        except OSError as error:
            raise OSError(f"cannot use the checkpoint {self._path}: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._unwritten:
            self._write()
        elif not self._kept:  # the fit failed before it began
            self._path.unlink(missing_ok=True)
        self._file.close()

    def journal(self, run: str) -> Journal:
        """Where the run of this name, which has no "/", is kept."""
        return Journal(self, run)

    def saved(self, run: str) -> dict[str, np.ndarray] | None:
        return self._kept.get(run)

    def keep(self, run: str, arrays: dict[str, np.ndarray], *, due: bool) -> None:
        with self._lock:
            self._kept[run] = arrays
            self._unwritten = True
            if due or self.due(self._written):
                self._write()

    def due(self, since: float) -> bool:
        """Whether what was kept then should be kept anew."""
        return time.monotonic() >= since + self._pause

    def _write(self) -> None:
        """Write what is kept; where that fails, the fit is worth more than the file."""
        try:
            file = self._replace()
        except OSError as error:
            warnings.warn(
                f"cannot write the checkpoint {self._path}: {error.strerror}; the fit goes on",
                stacklevel=2,
            )
        else:
            self._file.close()
            self._file, self._unwritten = file, False

    def _read(self) -> None:
        arrays = load_arrays(self._path, "checkpoint")
        with refusing(self._path):
            settings, self.drawn = (json.loads(str(arrays.pop(n))) for n in ("settings", "drawn"))
            for name, values in arrays.items():
                run, part = name.split("/")
                self._kept.setdefault(run, {})[part] = values
        ours = self._settings
        names = [
            name
            for name in ours | settings
            if name not in ours or name not in settings or ours[name] != settings[name]
        ]
        if names:
            raise ValueError(
                f"the checkpoint {self._path} belongs to another fit (other {', '.join(names)}); "
                "give the same as then, or another file"
            )

    def _replace(self) -> BinaryIO:
        """Replace the file, and return it open and locked."""
        begun = self._written = time.monotonic()
        arrays = {
            "settings": np.array(json.dumps(self._settings)),
            "drawn": np.array(json.dumps(self.drawn)),
        }
        for run, kept in self._kept.items():
            arrays |= {f"{run}/{name}": values for name, values in kept.items()}
        file = _claim(self._part, os.O_RDWR | os.O_CREAT)
        try:
            file.truncate()
            write_arrays(file, "checkpoint", arrays)
            os.replace(self._part, self._path)
        except BaseException:
            self._part.unlink(missing_ok=True)
            file.close()
            raise
        self._written = time.monotonic()
        self._pause = max(SECONDS, (self._written - begun) / _SHARE)
        return file


class Journal:
    """The place of one run in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, run: str) -> None:
        self._checkpoint, self._run = checkpoint, run
        self._since = time.monotonic()

    @property
    def saved(self) -> dict[str, np.ndarray] | None:
        """What was kept last, perhaps by a process that is no more."""
        return self._checkpoint.saved(self._run)

    @property
    def due(self) -> bool:
        """Whether a run that goes on should keep its state now."""
        return self._checkpoint.due(self._since)

    def keep(self, arrays: dict[str, np.ndarray]) -> None:
        """Keep arrays in place of earlier ones: no later than now if it was due, else with the next
        that is.
        """
        due, self._since = self.due, time.monotonic()
        self._checkpoint.keep(self._run, arrays, due=due)


def _claim(path: Path, flags: int) -> BinaryIO:
    """Open a file for this fit alone; BlockingIOError if another one has it."""
    file = os.fdopen(os.open(path, flags, 0o666), "rb" if flags == os.O_RDONLY else "r+b")
    try:
        lock(file)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            raise BlockingIOError  # replaced in between, by another one
    except BaseException:
        file.close()
        raise
    return file
