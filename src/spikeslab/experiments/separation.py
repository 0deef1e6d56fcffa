"""The paper's Table 1: Amari indices of source separation, ours and our peers' beside the printed
ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .._arrays import Array
from ..baselines import fast_ica, jade, kernel_ica, least_squares_ica
from ..datasets import mix, orthogonal_mixing
from ..metrics import amari_index, orthogonality_deviation
from ..separation import orthogonality_threshold, separate
from .plan import Plan
from .protocol import em, paper_start
from .sources import N_SOURCES, SIZES, Benchmark, benchmarks, draw
from .trials import Finished, Outcome, Settings, Trial, cells, generator

COLUMNS = {
    "gsc": "GSC",
    "gsc_orthogonal": "GSC⊥",
    "separate": "separate()",
    "least_squares": "least-squares ICA",
    "kernel": "kernel ICA",
    "fast_ica": "FastICA",
    "jade": "JADE",
}

# Table 1 as printed: mean and standard deviation. The paper has the last four columns from Suzuki
# and Sugiyama (2011), whose least-squares ICA with the natural gradient it calls NG-LICA.
PRINTED_COLUMNS = ("gsc", "gsc_orthogonal", "least_squares", "kernel", "fast_ica", "jade")
_PRINTED = {
    ("10halo", 200): ".34 .05 .29 .03 .29 .02 .38 .03 .33 .07 .36 .00",
    ("10halo", 500): ".27 .01 .27 .01 .22 .02 .37 .03 .22 .03 .28 .00",
    ("Sergio7", 200): ".23 .06 .20 .06 .04 .01 .38 .04 .05 .02 .07 .00",
    ("Sergio7", 500): ".18 .05 .17 .03 .05 .02 .37 .03 .04 .01 .04 .00",
    ("Speech4", 200): ".25 .05 .17 .04 .18 .03 .29 .05 .20 .03 .22 .00",
    ("Speech4", 500): ".11 .04 .05 .01 .07 .00 .10 .04 .10 .04 .06 .00",
    ("c5signals", 200): ".39 .03 .44 .05 .12 .01 .25 .15 .10 .02 .12 .00",
    ("c5signals", 500): ".41 .05 .44 .04 .06 .04 .07 .06 .04 .02 .07 .00",
}

_UNMIX: dict[str, Callable[[Array, int], Array]] = {
    "separate": lambda X, seed: np.linalg.inv(separate(X, X.shape[1], random_state=seed).mixing),
    "least_squares": lambda X, seed: least_squares_ica(X, random_state=seed),
    "kernel": lambda X, seed: kernel_ica(X, random_state=seed),
    "fast_ica": lambda X, seed: fast_ica(X, random_state=seed),
    "jade": lambda X, seed: jade(X),
}
_SLOW = ("kernel", "least_squares")  # run once on every selection of samples


def named(cell: dict[str, Any]) -> str:
    """What a benchmark of the results is called: stand-ins are called so everywhere."""
    return f"{cell['name']}{'' if cell['origin'] == 'icalab' else ' (stand-in)'}"


def printed(name: str, n_samples: int) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation in the paper's table, by column."""
    numbers = [float(number) for number in _PRINTED[name, n_samples].split()]
    return dict(zip(PRINTED_COLUMNS, zip(numbers[::2], numbers[1::2], strict=True), strict=True))


def trials(plan: Plan) -> list[Trial]:
    """In every cell a fifth as many selections of samples as trials. The paper's protocol makes all
    its runs on each of them; the other methods share the trials among the selections, each trial
    having its own mixing matrix.
    """
    runs = plan.trials or (20 if plan.quick else 100)
    selections = max(runs // 5, 2)
    few = 2 if plan.quick else selections
    counts = {
        "separate": selections if plan.quick else runs,
        "kernel": few,
        "least_squares": few,
        "fast_ica": runs,
        "jade": runs,
    }
    made = []
    for benchmark in benchmarks(plan):
        for n_samples in SIZES:
            common = {"seed": plan.seed, **benchmark.settings, "n_samples": n_samples}
            size = f"{N_SOURCES[benchmark.name]} {n_samples}"
            made += [
                Trial(
                    "separation",
                    {**common, "method": "gsc", "trial": selection, "runs": runs, "of": selections},
                    runs * _seconds("gsc", benchmark, n_samples),
                    f"gsc {size} {runs}",
                )
                for selection in range(selections)
            ]
            made += [
                Trial(
                    "separation",
                    {**common, "method": method, "trial": trial, "of": selections},
                    _seconds(method, benchmark, n_samples),
                    f"{method} {size}",
                )
                for method, count in counts.items()
                for trial in range(count)
            ]
    return made


def _seconds(method: str, benchmark: Benchmark, n_samples: int) -> float:
    """A guess; grows with the sources and the samples."""
    H, share = N_SOURCES[benchmark.name], n_samples / 500
    return {
        "gsc": 0.025 + 0.3 * share * 2 ** (H - 10),
        "separate": 0.05 * H**2 * share,
        "kernel": 0.1 * H**2 * share,
        "least_squares": 0.1 * H**2 * share,
        "fast_ica": 0.03,
        "jade": 0.01 * H**2 / 4,
    }[method]


def run(settings: Settings) -> Outcome:
    """The Amari index of one mixture, or of all runs of the paper's protocol on one selection."""
    benchmark = Benchmark(
        *(settings[name] for name in ("name", "origin", "variant", "sampling", "folder"))
    )
    seed, trial = settings["seed"], settings["trial"]
    cell = (benchmark.name, benchmark.sampling, settings["n_samples"])
    selection = trial % settings["of"]
    sources = draw(
        benchmark, settings["n_samples"], generator(seed, "separation", *cell, selection)
    )
    H = sources.shape[1]
    if settings["method"] != "gsc":
        rng = generator(seed, "separation mixing", *cell, trial)
        mixing = orthogonal_mixing(H, rng)
        X = mix(sources, mixing)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence: what matters is the result
            unmixing = _UNMIX[settings["method"]](X, trial)
        return {"amari": index(unmixing, X, mixing)}
    rng = generator(seed, "separation runs", *cell, selection)
    outcome: Outcome = {"amari": [], "log_likelihood": [], "deviation": []}
    for _ in range(settings["runs"]):
        mixing = orthogonal_mixing(H, rng)
        X = mix(sources, mixing)
        result = em(X, paper_start(X, H, "isotropic", rng))
        W = result.parameters.mixing
        outcome["amari"].append(index(np.linalg.pinv(W), X, mixing))
        outcome["log_likelihood"].append(result.log_likelihood)
        outcome["deviation"].append(orthogonality_deviation(W))
    return outcome


def index(unmixing: Array, X: Array, mixing: Array) -> float:
    """Amari index with the estimated sources at unit variance, as the true ones are: it depends on
    their scales, and methods have different ones.
    """
    deviations = np.std(X @ unmixing.T, axis=0)
    return amari_index(unmixing / np.maximum(deviations, 1e-300)[:, None], mixing)


def summarise(finished: Finished) -> dict[str, Any]:
    """One entry for each benchmark and number of samples: ours and the printed numbers."""
    entries = []
    for (name, origin, variant, n_samples), some in cells(
        finished, "name", "origin", "variant", "n_samples"
    ):
        by_method = {method: finished for (method,), finished in cells(some, "method")}
        gsc = [outcome for _, outcome in by_method.pop("gsc")]
        columns, histogram = _gsc(gsc)
        for method, of_method in by_method.items():
            columns[method] = _mean_and_spread([[o["amari"]] for _, o in of_method])
        entries.append(
            {
                "name": name,
                "origin": origin,
                "variant": variant,
                "n_samples": n_samples,
                "selections": len(gsc),
                "columns": columns,
                "printed": {
                    column: {"amari": mean, "deviation": spread}
                    for column, (mean, spread) in printed(name, n_samples).items()
                },
                "histogram": histogram,
            }
        )
    return {"cells": entries}


def _gsc(selections: list[Outcome]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paper's two columns and the choice by likelihood; the first selection's histogram."""
    everything, orthogonal, likely, thresholds = [], [], [], []
    for outcome in selections:
        amari, deviation = np.array(outcome["amari"]), np.array(outcome["deviation"])
        thresholds.append(orthogonality_threshold(outcome["deviation"]))
        everything.append(amari)
        orthogonal.append(amari[deviation <= thresholds[-1]])
        likely.append(amari[[int(np.argmax(outcome["log_likelihood"]))]])
    columns = {
        "gsc": _mean_and_spread(everything),
        "gsc_orthogonal": _mean_and_spread(orthogonal),
        "gsc_likelihood": _mean_and_spread(likely),
    }
    histogram = {
        "deviation": selections[0]["deviation"],
        "amari": selections[0]["amari"],
        "threshold": thresholds[0],
    }
    return columns, histogram


def _mean_and_spread(groups: list[Any]) -> dict[str, Any]:
    """Mean and standard deviation over all runs, and how many there are."""
    values = np.concatenate(groups)
    return {"amari": float(values.mean()), "deviation": float(values.std()), "runs": len(values)}
