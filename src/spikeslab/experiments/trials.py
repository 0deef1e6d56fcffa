"""Trials: pure functions of a few settings, and the file that finished ones are kept in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.random import Generator

from .. import __version__
from .._files import lock

Settings = Mapping[str, Any]
Outcome = dict[str, Any]
Finished = Sequence[tuple[Settings, Outcome]]


@dataclass(frozen=True)
class Trial:
    """One unit of work: what it is called with, and roughly how many seconds it takes.

    Attributes
    ----------
    experiment : str
    settings : mapping
        Everything that the outcome depends on, as plain values.
    seconds : float
        A guess, used for the time left until trials like it have been timed.
    kind : str
        Trials of one kind take about as long as each other.
    """

    experiment: str
    settings: Settings
    seconds: float
    kind: str

    @property
    def key(self) -> str:
        """Version and settings as text: trials with the same key have the same outcome."""
        return json.dumps(
            {"spikeslab": __version__, "experiment": self.experiment, **self.settings},
            sort_keys=True,
        )


def generator(seed: int, *names: object) -> Generator:
    """Random numbers that belong to a seed and to what they are for, and to nothing else."""
    return np.random.default_rng([seed, *"/".join(map(str, names)).encode()])


def cells(finished: Finished, *names: str) -> list[tuple[tuple[Any, ...], Finished]]:
    """Finished trials grouped by some of their settings, in the order in which these come up."""
    groups: dict[tuple[Any, ...], list[tuple[Settings, Outcome]]] = {}
    for settings, outcome in finished:
        groups.setdefault(tuple(settings[name] for name in names), []).append((settings, outcome))
    return list(groups.items())


class Store:
    """Outcomes of finished trials in a file, one a line; a context manager.

    A line is on the disk before `add` returns. What a crash leaves of a line that was being written
    is dropped when the file is next opened. Only one process may have a store open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}

    def __enter__(self) -> Self:
        self._file = open(self._path, "a+b")
        try:
            lock(self._file)
        except BlockingIOError:
            self._file.close()
            raise ValueError(
                f"{self._path.parent} is in use: another run writes its trials there; "
                "wait for it, or give another folder"
            ) from None
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                entry = json.loads(line)
                self._outcomes[entry["key"]] = entry["outcome"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"line {number} of {self._path} is damaged; delete the line (its trial is run "
                    "again) or give another folder"
                ) from None
        if whole < len(content):
            self._file.truncate(whole)

    def __contains__(self, trial: Trial) -> bool:
        return trial.key in self._outcomes

    def __getitem__(self, trial: Trial) -> Outcome:
        return self._outcomes[trial.key]

    def add(self, trial: Trial, outcome: str) -> None:
        """Keep an outcome, given as JSON."""
        self._file.write(f'{{"key": {json.dumps(trial.key)}, "outcome": {outcome}}}\n'.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._outcomes[trial.key] = json.loads(outcome)
