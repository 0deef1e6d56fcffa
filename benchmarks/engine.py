"""Speed of the exact engine, as ratios measured in one run: `python benchmarks/engine.py [--quick] [--write]`.

Prints Markdown tables with the target beside each number; --write also puts them into RESULTS.md. One thread throughout,
except where two are compared with one. Competitors take turns and the best time of each counts.
"""

# ruff: noqa: E402
import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import batched_numpy
import convergence
import numpy as np
from bare_exponentials import bare_exponentials
from measure import Table, Target, best_times
from problems import LANGUAGES, SPEECH, Likelihood, data_sets, likelihood, mixture

import spikeslab._kernel
import spikeslab.posterior
from spikeslab import Expectation, Parameters, Prior, maximise
from spikeslab._kernel import Tree, available, chosen, use
from spikeslab.initialise import random_start
from spikeslab.m_step import Model

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Settings:
    quick: bool
    speech: Path

    @property
    def seconds(self) -> float:
        """For one comparison."""
        return 0.5 if self.quick else 3.0


def e_step(prior: Prior, points: Likelihood) -> tuple:
    """All of the E-step that depends on the parameters, given A and b."""
    tree = Tree(points.A, prior.weights, prior.means, prior.variances)
    mean, _, covariance = tree.reference()
    xhat = mean + (points.b - mean @ points.A) @ covariance
    return tree, xhat, tree.moments(points.b, xhat)


def e_step_of(parameters: Parameters, n_points: int) -> Callable[[], object]:
    points = likelihood(parameters, n_points)
    return lambda: e_step(parameters.prior, points)


def visits(parameters: Parameters, n_points: int) -> float:
    """(State, point) pairs."""
    return float(parameters.prior.n_components) ** parameters.n_latents * n_points


# ---- a ----


def disagreement(parameters: Parameters, points: Likelihood, found: batched_numpy.Moments) -> float:
    """Largest relative difference between the kernel's moments and NumPy's; the prior is the paper's."""
    tree, xhat, (log_ratio, mean, _, sums, outer) = e_step(parameters.prior, points)
    log_evidence = tree.log_constant + np.einsum("nh,nh->n", points.b, xhat) / 2 + log_ratio
    pairs = zip(found, (log_evidence, mean, sums[0][:, 1], outer), strict=True)
    return max(float(abs(ours - theirs).max() / abs(theirs).max()) for theirs, ours in pairs)


def against_numpy(settings: Settings) -> Table:
    n_latents, n_points = 10, 500
    table = Table(f"a. E-step, H = {n_latents}, N = {n_points}, one thread")
    parameters = mixture(n_latents)
    points = likelihood(parameters, n_points)
    supports = batched_numpy.Supports(n_latents)
    activation = parameters.prior.activation
    ways = {
        name: lambda way=way: way(supports, points.A, activation, points.b)
        for name, way in (
            ("one numpy.linalg call for all supports", batched_numpy.by_solving),
            ("numpy.linalg by size of support, blocks of points", batched_numpy.by_supports),
            ("matrix products with b_i b_j", batched_numpy.by_products),
        )
    }
    worst = max(disagreement(parameters, points, way()) for way in ways.values())
    if worst > 1e-10:
        raise AssertionError(f"the kernel and NumPy disagree by {worst:.1e}")

    n_states = 2**n_latents
    tree, xhat, _ = e_step(parameters.prior, points)

    def with_kernel(variant: str) -> Callable[[], object]:
        def call() -> None:
            use(variant)
            e_step(parameters.prior, points)

        return call

    variants = available()
    kernels = {f"kernel {v}": with_kernel(v) for v in variants}
    exps = {f"exps {v}": bare_exponentials(v, n_states, n_points) for v in variants}
    evidence = {"evidence": lambda: (use(""), tree.evidence(points.b, xhat))}
    best = best_times(kernels | exps | evidence, settings.seconds)
    with_numpy = best_times({"kernel": with_kernel("")} | ways, settings.seconds)
    use("")

    scale = 1e9 / visits(parameters, n_points)
    fastest = best[f"kernel {variants[0]}"]
    for variant in variants:
        target = Target(1.25, unit=" ns") if variant == "x86-64-v4" else None
        table.add(
            f"time per (state, point), {variant}", best[f"kernel {variant}"] * scale, target, " ns"
        )
    for variant in variants:
        ratio = best[f"kernel {variant}"] / best[f"exps {variant}"]
        own = best[f"exps {variant}"] * scale
        table.add(
            f"over as many bare exponentials of the same exp2, {variant}",
            ratio,
            Target(3.5, unit="x"),
            "x",
            f"{own:.3f} ns each",
        )
    table.add("log-likelihood alone (tree given) over the E-step", best["evidence"] / fastest)
    for name in ways:
        ratio = with_numpy[name] / with_numpy["kernel"]
        table.add(
            f"NumPy, {name}, over the kernel",
            ratio,
            Target(100, True, "x"),
            "x",
            f"{with_numpy[name] * 1e3:.3g} ms",
        )
    table.note(
        "The E-step is everything after A and b: building the tree, the reference posterior means, all moments. "
        f"The kernel and the three NumPy E-steps agree to {worst:.0e} (largest difference over largest value). "
        f"The exponentials run over {n_states} numbers in the L1 cache, {n_points} times."
    )
    return table


# ---- b ----


def three_components(settings: Settings) -> Table:
    table = Table("b. Three components against two, N = 500, per (state, point)")
    n_points = 500
    two = {f"K = 2, H = {h}": mixture(h) for h in (9, 10)}
    three = {
        "hard spike": mixture(6, 3),
        "hard spike, means": mixture(6, 3, means=True),
        "soft spike": mixture(6, 3, soft=True),
        "soft spike, means": mixture(6, 3, soft=True, means=True),
    }
    both = two | three
    best = best_times({name: e_step_of(p, n_points) for name, p in both.items()}, settings.seconds)
    each = {name: best[name] / visits(p, n_points) * 1e9 for name, p in both.items()}
    least = min(each[name] for name in two)
    for name in three:
        detail = f"{each[name]:.3f} over {least:.3f} ns"
        table.add(f"K = 3, H = 6, {name}", each[name] / least, Target(2, unit="x"), "x", detail)
    table.note(
        "Against the faster of H = 9 and H = 10 with the paper's prior (K = 2, hard spike, no means)."
    )
    return table


# ---- c ----


def sizes(settings: Settings) -> Table:
    table = Table("c. Other sizes, and two threads")
    small = {h: mixture(h) for h in (8, 9, 10)}
    calls: dict[str, Callable[[], object]] = {f"{h}": e_step_of(p, 500) for h, p in small.items()}
    large = 100_000
    best = best_times(calls | {"large": e_step_of(small[8], large)}, settings.seconds)
    ours = best["large"] / visits(small[8], large) * 1e9
    for h, parameters in small.items():
        theirs = best[f"{h}"] / visits(parameters, 500) * 1e9
        detail = f"{ours:.3f} over {theirs:.3f} ns"
        what = f"H = 8, N = {large} over H = {h}, N = 500, per (state, point)"
        table.add(what, ours / theirs, Target(1.15, unit="x"), "x", detail)

    with ThreadPoolExecutor(2) as pool:
        for n_latents, n_points in ((8, large), (20, 500)):
            parameters = mixture(n_latents)
            X, _ = parameters.sample(n_points, np.random.default_rng(0))
            alone, shared = Expectation(X), Expectation(X, executor=pool)
            best = best_times(
                {
                    "kernel": e_step_of(parameters, n_points),
                    "one": partial(alone, parameters),
                    "two": partial(shared, parameters),
                },
                2 * settings.seconds,
            )
            size = f"H = {n_latents}, N = {n_points}"
            each = best["one"] / visits(parameters, n_points) * 1e9
            table.add(
                f"{size}: `Expectation`, one thread",
                best["one"],
                None,
                " s",
                f"{each:.3f} ns per (state, point)",
            )
            table.add(
                f"{size}: `Expectation` over the bare E-step on all points",
                best["one"] / best["kernel"],
                None,
                "x",
            )
            table.add(
                f"{size}: two threads, speed-up",
                best["one"] / best["two"],
                Target(1.7, True, "x"),
                "x",
            )
    table.note(
        f"Two threads share {os.cpu_count()} cores with whatever else runs: the target is meant for an idle machine."
    )
    return table


# ---- d ----


class Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable) -> Callable:
        def call(*arguments):
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return call


@contextmanager
def timed_kernel(stopwatch: Stopwatch) -> Iterator[None]:
    """Everything that is called in the compiled module while this lasts is timed."""
    with ExitStack() as stack:

        def replace(owner: object, name: str) -> None:
            stack.enter_context(patch.object(owner, name, stopwatch.timed(getattr(owner, name))))

        for name, kind in vars(spikeslab._kernel).items():
            if isinstance(kind, type):
                for method, function in vars(kind).items():
                    if callable(function) and not method.startswith("_"):
                        replace(kind, method)
                if hasattr(spikeslab.posterior, name):  # its constructor
                    replace(spikeslab.posterior, name)
        yield


def fit_times(n_latents: int, method: str, iterations: int, repeats: int) -> dict[str, float]:
    """Microseconds per E-step of a fit, of the fastest of the repeats: in all, in `statistics_of`, in the compiled kernel."""
    parameters = mixture(n_latents)
    X, _ = parameters.sample(500, np.random.default_rng(0))
    expectation, model = Expectation(X), Model()
    start = random_start(model, np.cov(X.T, bias=True), n_latents, np.random.default_rng(0))
    fits = []
    for _ in range(repeats):
        kernel, e_steps = Stopwatch(), Stopwatch()

        with timed_kernel(kernel):
            begun = time.perf_counter()
            result = maximise(
                e_steps.timed(expectation),
                start,
                model,
                method=method,
                tol=-np.inf,
                max_iter=iterations,
            )
            total = time.perf_counter() - begun
        scale = 1e6 / result.n_evaluations
        fits.append((total * scale, e_steps.seconds * scale, kernel.seconds * scale))
    total, e_step, kernel = min(fits)
    return {"total": total, "e_step": e_step, "kernel": kernel}


def whole_fit(settings: Settings) -> Table:
    table = Table("d. Whole fits, N = 500, 300 iterations of plain EM")
    repeats = 3 if settings.quick else 15
    big = fit_times(10, "em", 300, repeats)
    detail = f"{big['e_step']:.0f} of {big['total']:.0f} us per iteration, the kernel {big['kernel']:.0f}"
    table.add(
        "H = D = 10: share of the E-step",
        100 * big["e_step"] / big["total"],
        Target(80, True, " %"),
        " %",
        detail,
    )
    table.add(
        "H = D = 10: share of the compiled kernel", 100 * big["kernel"] / big["total"], None, " %"
    )
    small = fit_times(4, "em", 300, repeats)
    limit = Target(60, unit=" us")
    table.add(
        "H = D = 4: outside the E-step, per iteration",
        small["total"] - small["e_step"],
        limit,
        " us",
    )
    detail = f"of {small['total']:.0f} us in all"
    table.add(
        "H = D = 4: outside the compiled kernel, per iteration",
        small["total"] - small["kernel"],
        limit,
        " us",
        detail,
    )
    quasi = fit_times(4, "quasi-newton", 40, repeats)
    detail = f"of {quasi['total']:.0f} us in all"
    outside = quasi["total"] - quasi["kernel"]
    table.add(
        "H = D = 4: the same of 40 iterations of quasi-Newton EM, per E-step",
        outside,
        None,
        " us",
        detail,
    )
    table.add(
        "H = D = 4: quasi-Newton over plain EM, time per E-step",
        quasi["total"] / small["total"],
        None,
        "x",
    )
    return table


# ---- e ----


def e_steps_needed(settings: Settings) -> Table:
    seeds, most = (3, 3000) if settings.quick else (12, 10_000)
    near = f"{convergence.NEAR:g}"
    table = Table(
        f"e. E-steps to within {near} nats per point of the run's own limit, N = 500, {seeds} seeds"
    )
    sets = data_sets(settings.speech)
    ratios, capped, worse, better = [], [], 0, 0
    for name, draw in sets.items():
        runs = {
            method: [
                convergence.run(method, draw(np.random.default_rng(1000 + seed), 500), seed, most)
                for seed in range(seeds)
            ]
            for method in convergence.METHODS
        }
        # A run cut off before it was near needed more than `most`: counted as that, in favour of the slower method.
        needed = {m: np.array([min(r.evaluations, most) for r in rs]) for m, rs in runs.items()}
        for method, rs in runs.items():
            missed = sum(r.evaluations > most for r in rs)
            if missed:
                capped.append(f"{missed} of {method} on {name}")
        gap = np.array(
            [q.limit - e.limit for q, e in zip(runs["quasi-newton"], runs["em"], strict=True)]
        )
        worse, better = worse + (gap < -1e-3).sum(), better + (gap > 1e-3).sum()
        medians = {m: float(np.median(v)) for m, v in needed.items()}
        ours = medians["quasi-newton"]
        ratios.append(needed["quasi-newton"] / needed["em"])
        for rival, label in (("em", "EM"), ("px", "PX-EM")):
            target = Target(0.2, unit="x") if rival == "em" else None
            what, detail = (
                f"{name}: median of quasi-Newton over that of {label}",
                f"{ours:.0f} over {medians[rival]:.0f}",
            )
            table.add(what, ours / medians[rival], target, "x", detail)
    overall = float(np.median(np.concatenate(ratios)))
    table.add(
        "all runs: median over the pairs of quasi-Newton over EM",
        overall,
        Target(0.2, unit="x"),
        "x",
    )
    table.note(
        "The limit is the best of the run and of a long quasi-Newton run from its end. "
        f"Runs that were not near after {most} iterations, counted as {most}: {', '.join(capped) or 'none'}. "
        f"Of {seeds * len(sets)} pairs from the same start, quasi-Newton ended in a better optimum than EM {better} times, "
        f"in a worse one {worse} times (by more than 1e-3 nats per point)."
    )
    if "speech4" not in sets:
        table.note(
            f"speech4 was skipped: there are no WAV files of all of {', '.join(LANGUAGES)} under {settings.speech} "
            "(Debian packages asterisk-core-sounds-*-wav)."
        )
    return table


# ---- f ----


def memory(settings: Settings) -> Table:
    n_points, n_features = (200_000 if settings.quick else 1_000_000), 8
    table = Table(f"f. Memory of a fit, H = D = {n_features}, N = {n_points}, float64")
    if not Path("/proc/self/status").exists():
        table.note("Skipped: it is read from Linux's /proc.")
        return table
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(HERE / "peak_memory.py"),
        str(n_points),
        str(n_features),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    raised, what = out.strip().split("\t")
    table.add(
        f"`{what}` raises the peak by, in sizes of the data",
        float(raised),
        Target(1.5, unit="x"),
        "x",
    )
    return table


# ---- all ----

SECTIONS = {
    "a": against_numpy,
    "b": three_components,
    "c": sizes,
    "d": whole_fit,
    "e": e_steps_needed,
    "f": memory,
}


def machine() -> str:
    info = Path("/proc/cpuinfo")
    facts = {}
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines() if ":" in line)
        for key, _, value in lines:
            facts.setdefault(key.strip(), value.strip())
    cpu = facts.get("model name", platform.processor() or platform.machine())
    if "cpu family" in facts:
        cpu += f" (family {facts['cpu family']}, model {facts['model']})"
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = (
        subprocess.run(git, capture_output=True, text=True).stdout.strip() or "not in a repository"
    )
    compiler = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True
    ).stdout.strip()
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}; kernel {chosen()} (of {', '.join(available())}); "
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {version('scipy')}, GCC {compiler}; "
        f"spikeslab {version('spikeslab')}, commit {commit}; load average at the start {load}."
    )


def report(settings: Settings, chosen_sections: str) -> Iterator[str]:
    yield "# Results of benchmarks/engine.py" + (" --quick" if settings.quick else "") + "\n"
    yield machine() + "\n"
    yield "Ratios and times are of one run, competitors taking turns, best of the repeats, BLAS on one thread.\n"
    for name in chosen_sections:
        yield SECTIONS[name](settings).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="about a minute instead of ten: fewer repeats and seeds",
    )
    parser.add_argument("--write", action="store_true", help="also write RESULTS.md")
    parser.add_argument(
        "--only", default="".join(SECTIONS), metavar="LETTERS", help="sections to run, such as ac"
    )
    parser.add_argument(
        "--speech",
        type=Path,
        default=SPEECH,
        metavar="DIR",
        help="recordings for speech4 (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if not set(arguments.only) <= set(SECTIONS):
        parser.error(f"--only takes letters out of {''.join(SECTIONS)}, got {arguments.only}")
    parts = []
    for part in report(Settings(arguments.quick, arguments.speech), arguments.only):
        print(part, flush=True)
        parts.append(part)
    if arguments.write:
        (HERE / "RESULTS.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
