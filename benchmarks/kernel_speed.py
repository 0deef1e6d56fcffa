"""The compiled E-step against NumPy, bare exponentials, and itself at other sizes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

import batched_numpy
from bare_exponentials import bare_exponentials
from measure import Settings, Table, Target, best_times
from problems import Likelihood, likelihood, mixture
from spikeslab import Expectation, Parameters, Prior
from spikeslab._kernel import Tree, available, use

# The target is against the first; the others say what cleverness buys in NumPy.
NUMPY_WAYS = {
    "one numpy.linalg call for all supports": batched_numpy.by_solving,
    "numpy.linalg by size of support, points in blocks": batched_numpy.by_supports,
    "three matrix products with b_i b_j": batched_numpy.by_products,
}


def e_step(prior: Prior, points: Likelihood) -> tuple:
    """Do all of the E-step that depends on the parameters, given A and b."""
    tree = Tree(points.A, prior.weights, prior.means, prior.variances)
    mean, _, covariance = tree.reference()
    xhat = mean + (points.b - mean @ points.A) @ covariance
    return tree, xhat, tree.moments(points.b, xhat)


def e_step_of(parameters: Parameters, n_points: int) -> Callable[[], object]:
    return partial(e_step, parameters.prior, likelihood(parameters, n_points))


def compiled_part(prior: Prior, points: Likelihood) -> Callable[[], object]:
    """Return the E-step without NumPy's part: the tree and the moments, xhat given."""
    _, xhat, _ = e_step(prior, points)

    def call() -> tuple:
        tree = Tree(points.A, prior.weights, prior.means, prior.variances)
        return tree.moments(points.b, xhat)

    return call


def visits(parameters: Parameters, n_points: int) -> float:
    """Count (state, point) pairs."""
    return float(parameters.prior.n_components) ** parameters.n_latents * n_points


def disagreement(prior: Prior, points: Likelihood, found: batched_numpy.Moments) -> float:
    """Return the largest relative difference between the kernel's moments and NumPy's."""
    tree, xhat, (log_ratio, mean, _, sums, outer) = e_step(prior, points)
    log_reference = tree.log_constant + np.einsum("nh,nh->n", points.b, xhat) / 2
    pairs = zip(found, (log_reference + log_ratio, mean, sums[0][:, 1], outer), strict=True)
    return max(float(abs(ours - theirs).max() / abs(theirs).max()) for theirs, ours in pairs)


def against_numpy(settings: Settings) -> Table:
    n_latents, n_points = 10, 500
    table = Table(f"a. E-step, H = {n_latents}, N = {n_points}, one thread")
    parameters = mixture(n_latents)
    prior, points = parameters.prior, likelihood(parameters, n_points)
    supports = batched_numpy.Supports(n_latents)
    numpy_calls = {
        name: partial(way, supports, points.A, prior.activation, points.b)
        for name, way in NUMPY_WAYS.items()
    }
    worst = max(disagreement(prior, points, call()) for call in numpy_calls.values())
    if worst > 1e-10:
        raise AssertionError(f"the kernel and NumPy disagree by {worst:.1e}")

    def with_kernel(variant: str) -> None:
        use(variant)
        e_step(prior, points)

    tree, xhat, _ = e_step(prior, points)
    variants = available()
    kernels = {f"kernel {v}": partial(with_kernel, v) for v in variants}
    exps = {f"exps {v}": bare_exponentials(v, 2**n_latents, n_points) for v in variants}
    best = best_times(kernels | exps, settings.seconds)
    use("")
    fastest = bare_exponentials(variants[0], 2**n_latents, n_points)
    compiled = best_times(
        {"compiled": compiled_part(prior, points), "exps": fastest}, settings.seconds
    )
    kernel = {"kernel": partial(with_kernel, "")}
    numpy_best = best_times(kernel | numpy_calls, settings.seconds)
    evidence = {"evidence": partial(tree.evidence, points.b, xhat)}
    evidence_best = best_times(kernel | evidence, settings.seconds / 3)

    scale = 1e9 / visits(parameters, n_points)
    for variant in variants:
        target = Target(1.25, " ns") if variant == "x86-64-v4" else None
        each = best[f"kernel {variant}"] * scale
        table.add(f"time per (state, point), {variant}", each, target, " ns")
    for variant in variants:
        what = f"kernel over as many bare exponentials of the same exp2, {variant}"
        detail = f"{best[f'exps {variant}'] * scale:.3f} ns each"
        ratio = best[f"kernel {variant}"] / best[f"exps {variant}"]
        table.add(what, ratio, Target(3.5), detail=detail)
    ratio = compiled["compiled"] / compiled["exps"]
    detail = f"{compiled['compiled'] * scale:.3f} over {compiled['exps'] * scale:.3f} ns"
    what = f"the same without NumPy's part, which is xhat, {variants[0]}"
    table.add(what, ratio, Target(3.5), detail=detail)
    for name in numpy_calls:
        ratio = numpy_best[name] / numpy_best["kernel"]
        detail = f"{numpy_best[name] * 1e3:.3g} ms"
        target = Target(100, at_least=True) if name == next(iter(NUMPY_WAYS)) else None
        table.add(f"NumPy over kernel: {name}", ratio, target, detail=detail)
    ratio = evidence_best["evidence"] / evidence_best["kernel"]
    table.add("log-likelihood alone, the tree given, over the E-step", ratio)
    table.note(
        "The E-step is everything after A and b: building the tree (compiled), the posterior means "
        "under the reference state, xhat (NumPy), all moments (compiled). The kernel and the three "
        f"NumPy E-steps agree to {worst:.0e} (largest difference over largest value). The "
        f"exponentials run over {2**n_latents} numbers in the L1 cache, {n_points} times."
    )
    return table


def three_components(settings: Settings) -> Table:
    table = Table("b. Three components against two, N = 500, per (state, point)")
    two = {f"H = {h}": mixture(h) for h in (9, 10)}
    three = {
        "hard spike": mixture(6, 3),
        "hard spike, means": mixture(6, 3, means=True),
        "soft spike": mixture(6, 3, soft=True),
        "soft spike, means": mixture(6, 3, soft=True, means=True),
    }
    both = two | three
    best = best_times({name: e_step_of(p, 500) for name, p in both.items()}, settings.seconds)
    each = {name: best[name] / visits(p, 500) * 1e9 for name, p in both.items()}
    least = min(each[name] for name in two)
    for name in three:
        detail = f"{each[name]:.3f} over {least:.3f} ns"
        table.add(f"K = 3, H = 6, {name}", each[name] / least, Target(2), detail=detail)
    table.note(
        "Against the faster of H = 9 and H = 10 with the paper's prior "
        "(K = 2, hard spike, no means)."
    )
    return table


def sizes(settings: Settings) -> Table:
    table = Table("c. Other sizes, and two threads")
    large = 100_000
    small = {h: mixture(h) for h in (8, 9, 10)}
    calls = {f"{h}": compiled_part(p.prior, likelihood(p, 500)) for h, p in small.items()}
    calls["large"] = compiled_part(small[8].prior, likelihood(small[8], large))
    best = best_times(calls, settings.seconds)
    ours = best["large"] / visits(small[8], large) * 1e9
    for h, parameters in small.items():
        theirs = best[f"{h}"] / visits(parameters, 500) * 1e9
        what = f"H = 8, N = {large} over H = {h}, N = 500, per (state, point), xhat given"
        table.add(what, ours / theirs, Target(1.15), detail=f"{ours:.3f} over {theirs:.3f} ns")

    for n_latents, n_points in ((8, large), (20, 500)):
        parameters = mixture(n_latents)
        X, _ = parameters.sample(n_points, np.random.default_rng(0))
        with ThreadPoolExecutor(2) as pool:
            rivals = {
                "kernel": e_step_of(parameters, n_points),
                "one": partial(Expectation(X), parameters),
                "two": partial(Expectation(X, executor=pool), parameters),
            }
            best = best_times(rivals, 2 * settings.seconds)
        size = f"H = {n_latents}, N = {n_points}"
        detail = f"{best['one'] / visits(parameters, n_points) * 1e9:.3f} ns per (state, point)"
        table.add(f"{size}: `Expectation`, one thread", best["one"], unit=" s", detail=detail)
        ratio = best["one"] / best["kernel"]
        table.add(f"{size}: `Expectation` over the E-step of (a) on all points at once", ratio)
        gain = best["one"] / best["two"]
        table.add(f"{size}: two threads, speed-up", gain, Target(1.7, at_least=True))
    table.note(
        f"Two threads share {os.cpu_count()} cores with whatever else runs: "
        "the target is meant for an idle machine."
    )
    return table
