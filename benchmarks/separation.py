"""Quality and speed of `separate` beside ICA:
`python benchmarks/separation.py > benchmarks/results/separation.md`.

Prints Markdown tables. Every method sees the same mixtures. Finished draws are kept in a file and
not run again.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import machine
from measure import Settings
from problems import SPEECH
from separation_cells import Cell, number_cells, overcomplete_cells, square_cells
from separation_speed import speed
from separation_tables import number_table, overcomplete_table, quality_tables
from spikeslab import baselines, separate
from spikeslab.experiments.trials import Store, Trial, generator
from spikeslab.metrics import amari_index, column_angles, sdr

Array = NDArray[np.float64]

HERE = Path(__file__).parent
ICA: dict[str, Callable[[Array, int, int], Array]] = {
    "FastICA logcosh": lambda X, H, seed: baselines.fast_ica(X, H, random_state=seed),
    "FastICA exp": lambda X, H, seed: baselines.fast_ica(X, H, fun="exp", random_state=seed),
    "FastICA cube": lambda X, H, seed: baselines.fast_ica(X, H, fun="cube", random_state=seed),
    "Picard": lambda X, H, seed: baselines.picard(X, H, random_state=seed),
    "Picard extended": lambda X, H, seed: baselines.picard(X, H, extended=True, random_state=seed),
    "Picard-O": lambda X, H, seed: baselines.picard(
        X, H, extended=True, ortho=True, random_state=seed
    ),
    "JADE": lambda X, H, seed: baselines.jade(X, H),
    "kernel ICA": lambda X, H, seed: baselines.kernel_ica(X, H, random_state=seed),
    "least-squares ICA": lambda X, H, seed: baselines.least_squares_ica(X, H, random_state=seed),
}
OURS = "separate"
_SLOW = {"kernel ICA": 2000, "least-squares ICA": 500}  # samples that they are run on at most


def mean_sdr(found: Array, sources: Array) -> float:
    return float(np.clip(sdr(found, sources), -100, 100).mean())


def linear(X: Array, unmixing: Array, mixing: Array, sources: Array) -> dict[str, Any]:
    """Scores of an unmixing matrix, its sources scaled to unit variance."""
    found = (X - X.mean(axis=0)) @ unmixing.T
    unit = unmixing / np.maximum(found.std(axis=0), 1e-300)[:, None]
    return {"amari": amari_index(unit, mixing), "sdr": mean_sdr(found, sources)}


def score(method: str, cell: Cell, seed: int, draw: int) -> dict[str, Any]:
    """What a method makes of a draw."""
    X, mixing, sources = cell.draw(generator(seed, cell.name, draw))
    n_sources = sources.shape[1]
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: what matters is the result
        if method != OURS:
            return linear(X, ICA[method](X, n_sources, draw), mixing, sources)
        wanted = "auto" if cell.group == "number" else n_sources
        found = separate(X, wanted, random_state=draw)
    outcome: dict[str, Any] = {
        "family": next(run.family for run in found.runs if run.chosen),
        "seconds": time.perf_counter() - begin,
        "number": found.sources.shape[1],
    }
    if cell.group == "number":
        return outcome
    if cell.group == "overcomplete":
        return outcome | {"angle": float(column_angles(found.mixing, mixing).max())}
    by_pinv = linear(X, np.linalg.pinv(found.mixing), mixing, sources)
    outcome |= {"amari": by_pinv["amari"], "linear_sdr": by_pinv["sdr"]}
    return outcome | {"sdr": mean_sdr(found.sources, sources)}


def methods(cell: Cell) -> list[str]:
    if cell.group in ("number", "overcomplete"):
        return [OURS]
    n_samples = len(cell.draw_sources(np.random.default_rng(0)))
    return [OURS, *(name for name in ICA if n_samples <= _SLOW.get(name, np.inf))]


def trials(cells: Iterable[Cell], seed: int, draws: int) -> Iterator[tuple[Cell, Trial]]:
    for cell in cells:
        for method in methods(cell):
            for draw in range(draws):
                settings = {"seed": seed, "cell": cell.name, "method": method, "draw": draw}
                yield cell, Trial("benchmark", settings, 1.0, method)


def main() -> None:
    parser = argparse.ArgumentParser(description="Separation beside ICA, on the same mixtures.")
    parser.add_argument("--draws", type=int, default=20, help="of each setting (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells with TEXT in their name")
    parser.add_argument("--ours", action="store_true", help="only separate, no ICA")
    parser.add_argument("--no-speed", action="store_true", help="leave out the times")
    parser.add_argument("--speech", type=Path, default=SPEECH, metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--keep",
        type=Path,
        default=HERE.parent / "build" / "separation.jsonl",
        metavar="FILE",
        help="where finished draws are (default: build/separation.jsonl)",
    )
    arguments = parser.parse_args()
    groups = {
        "square": list(square_cells(arguments.speech)),
        "overcomplete": list(overcomplete_cells()),
        "number": list(number_cells(arguments.speech)),
    }
    groups = {name: [c for c in some if arguments.only in c.name] for name, some in groups.items()}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    arguments.keep.parent.mkdir(parents=True, exist_ok=True)
    with Store(arguments.keep) as store:
        cells = [cell for some in groups.values() for cell in some]
        for cell, trial in trials(cells, arguments.seed, arguments.draws):
            method, draw = trial.settings["method"], trial.settings["draw"]
            if arguments.ours and method != OURS:
                continue
            if trial not in store:
                store.add(trial, json.dumps(score(method, cell, arguments.seed, draw)))
            found.setdefault(cell.name, {}).setdefault(method, []).append(store[trial])
    parts = ["# Results of benchmarks/separation.py\n", machine() + "\n"]
    parts.append(
        f"{arguments.draws} fresh draws in every cell: `generator({arguments.seed}, cell's name, "
        f"draw)` for draws 0 to {arguments.draws - 1}, and the number of the draw as every "
        "method's random state. All methods see the same mixtures.\n"
    )
    parts += quality_tables(groups["square"], found, OURS)
    parts.append(overcomplete_table(groups["overcomplete"], found, OURS))
    parts.append(number_table(groups["number"], found, OURS))
    if not arguments.no_speed:
        parts.append(speed(Settings(False, arguments.speech)).markdown())
    print("\n".join(parts).rstrip())


if __name__ == "__main__":
    main()
