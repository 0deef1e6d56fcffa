"""The paper's experiments: runs them with a bar, and prints what they gave as short tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..experiments import Plan, TrialProgress, reproduce
from ..experiments.directions import PAPER
from ..experiments.separation import PRINTED_COLUMNS
from ..experiments.sources import recorded_prompts
from .progress import trials_bar

Results = dict[str, Any]

_TRIALS = "trials.jsonl"  # what makes a folder one of earlier runs


def run_experiments(names: Sequence[str], folder: Path, plan: Plan, jobs: int) -> Results:
    """Call `reproduce`, with a bar; after Ctrl-C say what is kept."""
    _check_folder(folder)
    n_jobs = (os.cpu_count() or 1) if jobs == -1 else jobs
    finished = 0

    def note(progress: TrialProgress) -> None:
        nonlocal finished
        finished = progress.finished
        show(progress)

    try:
        with trials_bar() as show:
            return reproduce(names, folder, plan, n_jobs=n_jobs, callback=note)
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


# ---- tables ----


def print_results(results: Results) -> None:
    """A short table for each experiment, the paper's numbers beside ours."""
    make: dict[str, Callable[[Results], tuple[str, Table]]] = {
        "prior": _prior,
        "verification": _verification,
        "directions": _directions,
        "separation": _separation,
    }
    console = Console(highlight=False)
    for name, of in make.items():
        if name in results:
            title, table = of(results[name])
            console.print(f"[bold]{title}[/]", soft_wrap=True)
            console.print(table)
            console.print()


def _table(first: str, *titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first)
    for title in titles:
        table.add_column(title, justify="right")
    return table


def _filled(table: Table, rows: Iterable[Sequence[str]]) -> Table:
    for row in rows:
        table.add_row(*row)
    return table


def _prior(results: Results) -> tuple[str, Table]:
    rows = [
        (
            f"π = {cell['activation']:g}",
            cell["look"],
            f"{cell['kurtosis']:z.2f}",
            f"{cell['kurtosis_expected']:.2f}",
        )
        for cell in results["cells"]
    ]
    return "Distributions of the model", _filled(
        _table("", "paper", "excess\nkurtosis", "expected"), rows
    )


def _verification(results: Results) -> tuple[str, Table]:
    rows = [
        (
            f"{cell['reading']}, {cell['noise']}",
            f"{cell['within_.01']:.0%}",
            f"{cell['errors']['W']['best']['median']:.3f}",
            f"{cell['errors']['W']['truth']['median']:.3f}",
            f"{cell['largest_fall']:.0e}",
            f"{cell['printed']['falling']:.0%}",
        )
        for cell in results["cells"]
    ]
    table = _table(
        "Reading of sigma, noise",
        "runs within\n.01 of best",
        "error of W,\nbest run",
        "from the\ntruth",
        "largest\nfall",
        "falls with\nprinted Λ",
    )
    return "Model verification (paper: all runs, “with high accuracy”)", _filled(table, rows)


def _directions(results: Results) -> tuple[str, Table]:
    rows = []
    for cell in results["cells"]:
        printed, runs = PAPER[cell["prior"], cell["latents"]]
        paper = "< .01" if printed == 0.01 else f"{printed:.2f}"
        ours = [cell["isotropic"], cell["ours"]["default"], cell["ours"]["separate"]]
        rows.append(
            (
                f"{cell['prior'].capitalize()}, H = {cell['latents']}, {cell['mixing']}",
                f"{paper}, {f'{runs}%' if runs else 'most':>4}",
                *map(_index_and_share, ours),
            )
        )
    table = _table(
        "Data and generating W", "paper", "paper's\nprotocol", "default\nestimator", "separate()"
    )
    return "Recovery of sparse directions: Amari index, share of high likelihoods", _filled(
        table, rows
    )


def _index_and_share(entry: Results) -> str:
    index = " none" if entry["amari"] is None else f"{entry['amari']:.3f}"
    return f"{index}, {entry['high']:4.0%}"


def _separation(results: Results) -> tuple[str, Table]:
    rows = []
    for cell in results["cells"]:
        columns = cell["columns"]
        variant = f", {cell['variant'].split('; ')[-1]}" if cell["name"] == "Speech4" else ""
        rows.append(
            (
                f"{cell['name']}{variant}",
                str(cell["n_samples"]),
                *(
                    f"{columns[name]['amari']:.2f} ({cell['printed'][name]['amari']:.2f})"
                    for name in PRINTED_COLUMNS[:2]
                ),
                f"{columns['separate']['amari']:.3f}",
                f"{min(columns[name]['amari'] for name in PRINTED_COLUMNS[2:]):.3f}",
            )
        )
    table = _table("", "N", "GSC\n(paper)", "GSC⊥\n(paper)", "separate()", "best of 4\npeers")
    real = results["cells"][0]["origin"] == "icalab"
    what = "" if real else " of stand-ins; the paper's numbers are for other data"
    return f"Source separation: Amari index{what}", _filled(table, rows)
