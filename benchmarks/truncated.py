"""Truncated inference beside exact inference, and its speed:
`python benchmarks/truncated.py > benchmarks/results/truncated.md`.

Prints Markdown tables with the target beside each number. Photographs are the two that scikit-learn
ships, grey, 256 x 256. One thread, except where two are compared with one.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from sklearn.datasets import load_sample_image

from machine import machine
from measure import Table, Target, best_times
from spikeslab import (
    Expectation,
    GaussianSparseCoding,
    IsotropicNoise,
    Model,
    Parameters,
    Prior,
    TruncatedInference,
    maximise,
)
from spikeslab.blocks import ArrayRows
from spikeslab.initialise import data_start
from spikeslab.posterior import Inference

CROPS = {"china": (100, 150), "flower": (100, 200)}
LEARNED = Model(learn=frozenset({"components", "prior", "noise"}))


def patches(name: str, sigma: float, rng: np.random.Generator, size: int = 8) -> np.ndarray:
    """All overlapping patches of a noisy photograph, each less its mean."""
    grey = load_sample_image(f"{name}.jpg") @ np.array([0.299, 0.587, 0.114])
    top, left = CROPS[name]
    image = grey[top : top + 256, left : left + 256]
    image = image + sigma * rng.standard_normal(image.shape)
    rows = np.lib.stride_tricks.sliding_window_view(image, (size, size)).reshape(-1, size**2)
    return rows - rows.mean(axis=1, keepdims=True)


def start_from(Y: np.ndarray, n_latents: int, rng: np.random.Generator) -> Parameters:
    return data_start(LEARNED, ArrayRows(Y), np.zeros(Y.shape[1]), Y.T @ Y / len(Y), n_latents, rng)


def dictionary(Y: np.ndarray, n_latents: int, steps: int, rng: np.random.Generator) -> Parameters:
    """A few EM steps on some of the points, from samples."""
    some = Y[rng.permutation(len(Y))[:8192]]
    data = Expectation(some, infer=TruncatedInference)
    start = start_from(some, n_latents, rng)
    return maximise(data, start, LEARNED, method="px", max_iter=steps).parameters


def single_causes(p: Parameters, Y: np.ndarray, n_free: int) -> np.ndarray:
    """Log evidence of all states of the latents that alone explain each point best: candidate
    selection as in Expectation Truncation, with the same number of states.
    """
    variance, activation = p.noise.variance, p.prior.activation
    b, a = Y @ p.mixing / variance, (p.mixing**2).sum(axis=0) / variance
    gain = np.log(activation / (1 - activation)) - np.log1p(a) / 2 + b**2 / (2 * (1 + a))
    best = np.argsort(-gain, axis=1)[:, :n_free]
    evidence = np.empty(len(Y))
    for i, chosen in enumerate(best):
        part = Prior.spike_and_slab(activation[chosen])
        few = Parameters(p.mixing[:, chosen], p.offset, part, p.noise)
        off = np.delete(activation, chosen)
        evidence[i] = Inference(few).log_evidence(Y[i : i + 1])[0] + np.log1p(-off).sum()
    return evidence


def accuracy(quick: bool) -> Table:
    table = Table("Posteriors against exact ones, 8x8 patches, 8 free latents")
    n_points = 500 if quick else 2000
    for name, sigma in (("china", 25.0), ("flower", 25.0), ("china", 10.0)):
        for n_latents in (10, 12, 14, 16):
            rng = np.random.default_rng(0)
            every = patches(name, sigma, rng)
            p = dictionary(every, n_latents, 10 if quick else 40, rng)
            Y = np.ascontiguousarray(every[rng.choice(len(every), n_points, replace=False)])
            exact = Inference(p).moments(Y, each=True)
            bound = TruncatedInference(p).moments(Y, each=True)
            gap = exact.log_evidence - bound.log_evidence
            error = np.linalg.norm(bound.mean - exact.mean) / np.linalg.norm(exact.mean)
            on = np.abs(bound.probabilities - exact.probabilities)[:, :, 1]
            what = f"{name}, sigma {sigma:g}, H = {n_latents}"
            table.add(
                f"{what}: mean gap",
                gap.mean(),
                unit=" nats",
                detail=f"largest {gap.max():.1f}, smallest {gap.min():.0e}; "
                f"active {p.prior.activation.sum():.1f}",
            )
            table.add(f"{what}: error of the mean, relative", error, unit="")
            table.add(f"{what}: error of activations, mean", on.mean(), unit="")
            if n_latents == 14:
                alone = exact.log_evidence - single_causes(p, Y, 8)
                ratio = gap.mean() / alone.mean()
                detail = f"{alone.mean():.3f} nats there"
                table.add(
                    f"{what}: gap over that of single-cause selection",
                    ratio,
                    Target(1 / 3),
                    detail=detail,
                )
    return table


def em(quick: bool) -> Table:
    """The same start, exact and truncated."""
    table = Table("EM from the same start: what truncated EM misses of what exact EM gains")
    for n_latents in (10, 12) if quick else (10, 12, 14, 16):
        missed: dict[str, list[float]] = {"generated": [], "patches": []}
        for seed in range(3 if quick else 7):
            rng = np.random.default_rng(seed)
            prior = Prior.spike_and_slab(np.full(n_latents, 2 / n_latents))
            mixing = rng.standard_normal((n_latents, n_latents))
            noise = IsotropicNoise(0.1, n_latents)
            truth = Parameters(mixing, np.zeros(n_latents), prior, noise)
            photograph = patches("china", 10.0, rng, 4)
            problems = {
                "generated": truth.sample(1000, rng)[0],
                "patches": photograph[rng.choice(len(photograph), 1000, replace=False)],
            }
            for kind, Y in problems.items():
                begin = start_from(Y, n_latents, rng)
                floor = 1e-4 * float(Y.var())
                run = partial(maximise, start=begin, model=LEARNED, noise_floor=floor, tol=1e-6)
                data = Expectation(Y)
                exact = run(data)
                found = run(Expectation(Y, infer=TruncatedInference)).parameters
                reached = data(found).log_likelihood / len(Y)
                gained = exact.log_likelihood - exact.history[0]
                missed[kind].append(100 * (exact.log_likelihood - reached) / gained)
        for kind, values in missed.items():
            table.add(
                f"{kind}, H = {n_latents}: median",
                float(np.median(values)),
                Target(1, " %"),
                unit=" %",
                detail=f"{len(values)} problems, worst {max(values):.2f} %",
            )
    return table


def bars(quick: bool) -> Table:
    """Images of bars that appear with probability 1 / size, amplitude N(0, 9), in unit noise."""
    table = Table("Bars: all found, |cos| > .9, five runs from data")
    for size in (5, 8):
        shapes = np.zeros((2, size, size, size))
        places = np.arange(size)
        shapes[0, places, places] = shapes[1, places, :, places] = 1
        shapes = shapes.reshape(2 * size, size**2)
        successes = []
        for seed in range(4 if quick else 20):
            rng = np.random.default_rng(seed)
            x = (
                3
                * rng.standard_normal((2000, 2 * size))
                * (rng.random((2000, 2 * size)) < 1 / size)
            )
            X = x @ shapes + rng.standard_normal((2000, size**2))
            model = GaussianSparseCoding(
                2 * size, inference="truncated", init="data", tol=1e-5, random_state=seed
            ).fit(X)
            unit = [
                a / np.linalg.norm(a, axis=1, keepdims=True) for a in (shapes, model.components_)
            ]
            successes.append((np.abs(unit[0] @ unit[1].T).max(axis=1) > 0.9).all())
        table.add(
            f"{size}x{size}, {2 * size} bars: successes",
            100 * float(np.mean(successes)),
            Target(90, " %", at_least=True),
            unit=" %",
            detail=f"of {len(successes)}",
        )
    return table


def _each(call: Callable[[np.ndarray], object], blocks: list[np.ndarray]) -> None:
    for block in blocks:
        call(block)


def speed(quick: bool) -> Table:
    table = Table("Microseconds per point and E-step, 62001 8x8 patches, sigma 25, 8 free latents")
    seconds = 1.0 if quick else 8.0
    for name in CROPS:
        for n_latents, bound in ((100, 4.0), (256, 6.0), (1000, None)):
            rng = np.random.default_rng(0)
            Y = np.ascontiguousarray(patches(name, 25.0, rng))
            p = dictionary(Y, n_latents, 5 if quick else 40, rng)
            inference, narrow = TruncatedInference(p), TruncatedInference(p, n_free=1)
            blocks = [Y[i : i + 8192] for i in range(0, len(Y), 8192)]
            with ThreadPoolExecutor(2) as pool:
                stages: dict[str, Callable[[], object]] = {
                    "search": partial(_each, narrow.log_evidence, blocks),
                    "evidence": partial(_each, inference.log_evidence, blocks),
                    "all": partial(Expectation(Y, infer=TruncatedInference), p),
                    "two": partial(Expectation(Y, executor=pool, infer=TruncatedInference), p),
                }
                best = best_times(stages, seconds)
            each = {stage: 1e6 * taken / len(Y) for stage, taken in best.items()}
            table.add(
                f"{name}, H = {n_latents}: E-step with statistics",
                each["all"],
                None if bound is None else Target(bound, " us"),
                unit=" us",
                detail=f"search {each['search']:.2f}, search and evidence {each['evidence']:.2f}; "
                f"active {p.prior.activation.sum():.1f}",
            )
            table.add(
                f"{name}, H = {n_latents}: two threads",
                each["all"] / each["two"],
                Target(1.7, at_least=True),
            )
    table.note(
        "Stages are whole calls: projection of the data and search (with one free latent), these "
        "and the evidence of the cube, and all of it with moments and their sums."
    )
    return table


SECTIONS: dict[str, Callable[[bool], Table]] = {"a": accuracy, "b": em, "c": bars, "d": speed}


def main() -> None:
    every = "".join(SECTIONS)
    parser = argparse.ArgumentParser(description="Truncated inference beside exact inference.")
    parser.add_argument("--quick", action="store_true", help="fewer points, seeds and steps")
    parser.add_argument("--only", default=every, metavar="LETTERS", help="sections, such as ac")
    arguments = parser.parse_args()
    if not set(arguments.only) <= set(every):
        parser.error(f"--only takes letters out of {every}, got {arguments.only}")
    print("# Results of benchmarks/truncated.py" + (" --quick" if arguments.quick else "") + "\n")
    print(machine() + "\n")
    for name in arguments.only:
        print(SECTIONS[name](arguments.quick).markdown(), flush=True)


if __name__ == "__main__":
    main()
