"""The paper's experiments: runs them with a bar, and prints what they gave as short tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .._estimator import threads
from ..experiments import Plan, TrialProgress, reproduce
from ..experiments.sources import recorded_prompts
from ..experiments.tables import short_tables
from .progress import trials_bar

Results = dict[str, Any]

_TRIALS = "trials.jsonl"  # what makes a folder one of earlier runs


def run_experiments(names: Sequence[str], folder: Path, plan: Plan, jobs: int) -> Results:
    """Call `reproduce`, with a bar; after Ctrl-C say what is kept."""
    _check_folder(folder)
    finished = 0

    def note(progress: TrialProgress) -> None:
        nonlocal finished
        finished = progress.finished
        show(progress)

    try:
        with trials_bar() as show:
            return reproduce(names, folder, plan, n_jobs=threads(jobs), callback=note)
    except KeyboardInterrupt:
        print(
            f"Interrupted. {finished} finished trials are kept in {folder}; the same command goes "
            "on from there.",
            file=sys.stderr,
        )
        raise


def _check_folder(folder: Path) -> None:
    """Refuse what is no folder, or one with other things in it."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        where = "it" if folder.exists() else "what it should be in"
        raise ValueError(f"cannot write to the folder {folder}: {where} is a file") from None
    if names and _TRIALS not in names:
        raise FileExistsError(
            f"the output folder {folder} has other things in it ({min(names)}) and no trials of "
            "an earlier run; give another with -o"
        )


def prompts(speech: Path | None) -> Path | None:
    """The folder of prompts for the stand-ins: as asked for, or Debian's, if it has them."""
    return Path(os.path.abspath(speech)) if speech is not None else recorded_prompts()


def print_results(results: Results) -> None:
    """A short table for each experiment, the paper's numbers beside ours."""
    console = Console(highlight=False)
    for title, head, rows in short_tables(results).values():
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for place, name in enumerate(head):
            table.add_column(name, justify="right" if place else "left")
        for row in rows:
            table.add_row(*row)
        console.print(f"[bold]{title}[/]", soft_wrap=True)
        console.print(table)
        console.print()
