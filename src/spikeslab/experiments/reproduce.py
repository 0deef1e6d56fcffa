"""From a plan to results: runs what is missing, and writes what was found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .. import __version__
from .._checks import check_choice, check_integer
from .._files import write_whole
from .plan import Plan
from .runner import TrialProgress, run_trials
from .trials import Store

EXPERIMENTS = ("prior", "verification", "directions", "separation")

_DIGITS = 6


def reproduce(
    names: Sequence[str],
    folder: str | os.PathLike[str],
    plan: Plan,
    *,
    n_jobs: int = 1,
    callback: Callable[[TrialProgress], object] | None = None,
) -> dict[str, Any]:
    """Run experiments of the paper, and write what was found into a folder.

    The folder gets ``results.json``, which depends on the names, the plan and the version of the
    library alone, not on the number of jobs or on interruptions; figures as .png and .svg; and
    ``report.html``. Finished trials are kept in its ``trials.jsonl`` and are not run again.

    Parameters
    ----------
    names : subset of {"prior", "verification", "directions", "separation"}
    folder : path
        Made if it does not exist.
    plan : Plan
    n_jobs : int, default=1
        Processes. They import the main module, which therefore needs the usual
        ``if __name__ == "__main__"``.
    callback : callable, optional
        Called with a `TrialProgress` before the first trial and after each.

    Returns
    -------
    dict
        The content of ``results.json``.
    """
    for name in names:
        check_choice("names", name, EXPERIMENTS)
    check_integer("n_jobs", n_jobs, 1)
    from .report import write_report  # the extra `app`: missing, it is missed before the work

    modules = {name: _module(name) for name in EXPERIMENTS if name in names}
    trials = {name: module.trials(plan) for name, module in modules.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with Store(folder / "trials.jsonl") as store:
        wanted = [trial for some in trials.values() for trial in some]
        run_trials(wanted, store, n_jobs=n_jobs, callback=callback)
        results = {
            "spikeslab": __version__,
            "seed": plan.seed,
            "trials": plan.trials,
            "quick": plan.quick,
        } | {
            name: module.summarise([(trial.settings, store[trial]) for trial in trials[name]])
            for name, module in modules.items()
        }
    results = rounded(results)
    write_whole(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    write_report(results, folder)
    return results


def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)


def rounded(value: Any) -> Any:
    """Plain values with floats of six digits."""
    if isinstance(value, dict):
        return {str(name): rounded(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.{_DIGITS}g}")
    return value
