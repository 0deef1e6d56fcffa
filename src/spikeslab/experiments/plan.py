"""What is asked of the experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._checks import check_bool, check_integer


@dataclass(frozen=True)
class Plan:
    """How much is run, and on what.

    Attributes
    ----------
    seed : int
    trials : int or None
        Runs per data set in `verification`, data sets per setting in `directions`, runs per cell in
        `separation`; None means the paper's 250, 100 and 100, or a tenth or less with `quick`.
    quick : bool
        Fewer data sets and runs, for minutes instead of an hour or two.
    icalab : Path or None
        Folder with ICALAB's .mat files; None means stand-ins.
    speech : Path or None
        Folder of recorded prompts for the stand-ins; None means the embedded voices.
    """

    seed: int = 0
    trials: int | None = None
    quick: bool = False
    icalab: Path | None = None
    speech: Path | None = None

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, 0)
        check_bool("quick", self.quick)
        if self.trials is not None:
            check_integer("trials", self.trials, 2)
