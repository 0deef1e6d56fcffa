"""Missing values: `python benchmarks/missing.py > benchmarks/results/missing.md`.

Prints Markdown tables: errors of parameters and of imputed values on data from the model, beside
scikit-learn's imputers on real tables, and the speed of the E-step. Entries are missing at random.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from machine import machine
from measure import Table, Target, best_times
from spikeslab import Expectation, GaussianSparseCoding, IsotropicNoise, Parameters, Prior
from spikeslab.missing import InferenceWithMissing

Array = NDArray[np.float64]
Imputer = Callable[[Array, int], Array]

N, D, H = 2000, 16, 6
SHARES = (0.2, 0.5, 0.8)
TABLES = {"diabetes": load_diabetes, "wine": load_wine, "breast cancer": load_breast_cancer}
TABLE_SHARES = (0.1, 0.3, 0.5)
LATENTS = (2, 4, 6, 8, 10)


def truth(rng: Generator) -> Parameters:
    prior = Prior.spike_and_slab(rng.uniform(0.1, 0.4, H))
    return Parameters(rng.normal(size=(D, H)), rng.normal(size=D), prior, IsotropicNoise(0.1, D))


def with_holes(X: Array, share: float, rng: Generator) -> Array:
    return np.where(rng.random(X.shape) < share, np.nan, X)


def mixing_error(found: Array, true: Array) -> float:
    """Relative distance of the mixing matrices, columns and their signs matched."""
    distances = [[min(((t - f) @ (t - f), (t + f) @ (t + f))) for f in found.T] for t in true.T]
    rows, columns = linear_sum_assignment(distances)
    return float(np.sqrt(np.array(distances)[rows, columns].sum() / (true**2).sum()))


def rms(error: Array) -> float:
    return float(np.sqrt(np.mean(error**2)))


def from_the_model(seeds: int) -> Table:
    table = Table(f"Data from the model: N = {N}, D = {D}, H = {H}, {seeds} seeds, medians")
    worst_fall = 0.0
    for share in SHARES:
        ratios, holed, full, imputed = [], [], [], []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            p = truth(rng)
            whole = p.sample(N, rng)[0]
            X = with_holes(whole, share, rng)
            missing = np.isnan(X)
            model = GaussianSparseCoding(H, random_state=seed).fit(X)
            peer = GaussianSparseCoding(H, random_state=seed).fit(whole[: (~missing).sum() // D])
            holed.append(mixing_error(model.mixing_, p.mixing))
            full.append(mixing_error(peer.mixing_, p.mixing))
            ratios.append(holed[-1] / full[-1])
            oracle = InferenceWithMissing(p).predict(X)[0]
            error = rms((model.impute(X) - whole)[missing])
            imputed.append(error / rms((oracle - whole)[missing]))
            worst_fall = min(worst_fall, float(np.diff(model.history_).min()))
        name = f"{100 * share:.0f} % missing"
        detail = f"{100 * np.median(holed):.1f} % over {100 * np.median(full):.1f} %"
        table.add(
            f"{name}: error of the mixing matrix over that from as many entries in complete rows",
            float(np.median(ratios)),
            Target(1.2),
            detail=detail,
        )
        table.add(
            f"{name}: error of imputed values over that of the true parameters' posterior mean",
            float(np.median(imputed)),
            Target(1.1),
            detail=f"worst {max(imputed):.3f}",
        )
    table.note(
        f"The log-likelihood of no iteration fell by more than {-worst_fall:.1g} nats per point."
    )
    return table


def ours(X: Array, seed: int) -> Array:
    """With as many latents as BIC asks for."""
    models = [
        GaussianSparseCoding(n, noise="diagonal", n_init=2, random_state=seed, max_iter=300).fit(X)
        for n in LATENTS
        if n < X.shape[1]
    ]
    return min(models, key=lambda model: model.bic(X)).impute(X)


IMPUTERS: dict[str, Imputer] = {
    "GaussianSparseCoding": ours,
    "IterativeImputer": lambda X, seed: IterativeImputer(random_state=seed).fit_transform(X),
    "KNNImputer": lambda X, seed: KNNImputer().fit_transform(X),
    "mean": lambda X, seed: SimpleImputer().fit_transform(X),
}


def real_tables(seeds: int) -> str:
    lines = [
        f"## Real tables, standardised: rms error of imputed values, means of {seeds} seeds",
        "",
        f"| | {' | '.join(IMPUTERS)} | |",
        f"|---|{'---|' * len(IMPUTERS)}---|",
    ]
    seconds = dict.fromkeys(IMPUTERS, 0.0)
    for name, load in TABLES.items():
        whole: Any = load().data
        whole = (whole - whole.mean(axis=0)) / whole.std(axis=0)
        for share in TABLE_SHARES:
            errors: dict[str, list[float]] = {method: [] for method in IMPUTERS}
            for seed in range(seeds):
                X = with_holes(whole, share, np.random.default_rng(seed))
                for method, impute in IMPUTERS.items():
                    begin = time.process_time()
                    filled = impute(X, seed)
                    seconds[method] += time.process_time() - begin
                    errors[method].append(rms((filled - whole)[np.isnan(X)]))
            means = {method: float(np.mean(values)) for method, values in errors.items()}
            least = min(means.values())
            shown = [f"**{m:.3f}**" if m == least else f"{m:.3f}" for m in means.values()]
            better = [
                f"{np.less(errors['GaussianSparseCoding'], errors[peer]).sum()}"
                for peer in ("IterativeImputer", "KNNImputer")
            ]
            rows, columns = whole.shape
            lines.append(
                f"| {name} ({rows} x {columns}), {100 * share:.0f} % missing | "
                f"{' | '.join(shown)} | better than either in {' and '.join(better)} of {seeds} |"
            )
    taken = ", ".join(f"{method} {value:.1f}" for method, value in seconds.items())
    lines += [
        "",
        f"GaussianSparseCoding has diagonal noise, and of {LATENTS} latents those that BIC of the "
        "observed entries asks for (the search is part of its time); the others have "
        "scikit-learn's defaults. "
        f"Seconds of processor time for all of it: {taken}.",
        "",
    ]
    return "\n".join(lines)


def speed(seconds: float) -> Table:
    table = Table(f"An E-step with all patterns different: N = {N}, D = {D}, H = {H}")
    rng = np.random.default_rng(0)
    p = truth(rng)
    whole = p.sample(N, rng)[0]
    calls = {0.0: Expectation(whole)} | {
        share: Expectation(with_holes(whole, share, rng)) for share in SHARES
    }
    times = best_times({str(share): lambda e=e: e(p) for share, e in calls.items()}, seconds)
    complete = times["0.0"]
    table.add("complete: points per second", N / complete / 1e6, unit=" million")
    for share in SHARES:
        each = times[str(share)]
        table.add(
            f"{100 * share:.0f} % missing: time over that of complete data",
            each / complete,
            detail=f"{N / each / 1e6:.2g} million points per second",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Missing values: errors and speed.")
    parser.add_argument("--seeds", type=int, default=10, help="(%(default)s)")
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")  # of convergence: what matters is the result
    print("# Results of benchmarks/missing.py\n")
    print(machine() + "\n")
    print(speed(3.0).markdown(), flush=True)
    print(from_the_model(seeds).markdown(), flush=True)
    print(real_tables(seeds).rstrip())


if __name__ == "__main__":
    main()
