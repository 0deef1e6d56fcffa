"""Model verification: are the generating parameters found, and does the likelihood ever fall?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import Array
from ..noise import IsotropicNoise
from ..parameters import Parameters
from ..prior import Prior
from ..statistics import Expectation
from .plan import Plan
from .protocol import em, largest_fall, noise_of, paper_start, recovery_errors
from .trials import Finished, Outcome, Settings, Trial, cells, generator

READINGS = {
    "variance": "sigma in U(.05, 10) is the noise variance",
    "deviation": "sigma in U(.05, 10) is the noise standard deviation",
    "low noise": "noise variance in U(.05, 1)",
}
NOISES = ("isotropic", "full")

_POINTS, _LATENTS = 500, 2
_PRINTED = 10  # runs that are repeated with the printed formula
_SHOWN = 8  # runs whose likelihoods are kept for the figure
_ROUNDING = 1e-10  # nats per point; a fall beyond it is no rounding
_SECONDS = {"isotropic": 0.022, "full": 0.056}  # a run


def trials(plan: Plan) -> list[Trial]:
    runs = plan.trials or (25 if plan.quick else 250)
    return [
        Trial(
            "verification",
            {
                "seed": plan.seed,
                "reading": reading,
                "noise": noise,
                "data_set": data_set,
                "runs": runs,
            },
            runs * _SECONDS[noise],
            f"verification {noise} {runs}",
        )
        for reading in READINGS
        for noise in NOISES
        for data_set in range(6 if plan.quick else 40)
    ]


def draw(seed: int, reading: str, data_set: int) -> tuple[Parameters, Array]:
    """Generating parameters as in the paper's footnote, and data."""
    rng = generator(seed, "verification", reading, data_set)
    mixing = 3 * rng.standard_normal((_LATENTS, _LATENTS))
    prior = Prior.spike_and_slab(rng.uniform(0.05, 1.0, _LATENTS))
    sigma = rng.uniform(0.05, 1.0 if reading == "low noise" else 10.0)
    noise = IsotropicNoise(sigma**2 if reading == "deviation" else sigma, _LATENTS)
    truth = Parameters(mixing, np.zeros(_LATENTS), prior, noise)
    return truth, truth.sample(_POINTS, rng)[0]


def run(settings: Settings) -> Outcome:
    """All runs on one data set, one from the truth, and some with the printed Lambda_s."""
    reading, noise, data_set = settings["reading"], settings["noise"], settings["data_set"]
    truth, Y = draw(settings["seed"], reading, data_set)
    rng = generator(settings["seed"], "verification starts", reading, data_set)
    starts = [paper_start(Y, _LATENTS, noise, rng) for _ in range(settings["runs"])]
    found = [em(Y, start) for start in starts]
    printed = [em(Y, start, printed=True) for start in starts[:_PRINTED]]
    known = noise_of(noise, truth.noise.covariance)
    at_truth = em(Y, Parameters(truth.mixing, truth.offset, truth.prior, known))
    shown = _SHOWN if data_set == 0 else 0
    return {
        "log_likelihood": [result.log_likelihood for result in found],
        "errors": [recovery_errors(result.parameters, truth) for result in found],
        "fall": max(largest_fall(result.history) for result in found),
        "histories": [result.history for result in found[:shown]],
        "truth": {
            "log_likelihood": at_truth.log_likelihood,
            "errors": recovery_errors(at_truth.parameters, truth),
        },
        "printed": {
            "log_likelihood": [result.log_likelihood for result in printed],
            "falls": [largest_fall(result.history) for result in printed],
            "histories": [result.history for result in printed[:shown]],
        },
        "asymmetry": {
            "old W": sigma_asymmetry(Y, starts[0], new_mixing=False),
            "new W": sigma_asymmetry(Y, starts[0], new_mixing=True),
        },
    }


def sigma_asymmetry(Y: Array, parameters: Parameters, *, new_mixing: bool) -> float:
    """Relative size of the antisymmetric part of the printed update of Sigma, with the W of before
    or after the M-step (the paper does not say which).
    """
    s = Expectation(Y, "full")(parameters)
    W = np.linalg.solve(s.xx, s.yx.T).T if new_mixing else parameters.mixing
    update = (s.yy - 2 * W @ s.yx.T + W @ s.xx @ W.T) / s.n
    return float(np.linalg.norm(update - update.T) / np.linalg.norm(update))


def summarise(finished: Finished) -> dict[str, Any]:
    """One entry for each reading of sigma^gen and each model of the noise."""
    return {
        "cells": [
            {"reading": reading, "noise": noise, **_cell([outcome for _, outcome in some])}
            for (reading, noise), some in cells(finished, "reading", "noise")
        ]
    }


def _cell(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    likelihoods = np.array([outcome["log_likelihood"] for outcome in outcomes])
    at_truth = np.array([outcome["truth"]["log_likelihood"] for outcome in outcomes])
    top = np.maximum(likelihoods.max(axis=1), at_truth)
    below = top[:, None] - likelihoods
    printed = [outcome["printed"] for outcome in outcomes]
    falls = np.concatenate([entry["falls"] for entry in printed])
    loss = np.concatenate(
        [
            np.subtract(outcome["log_likelihood"][: len(entry["falls"])], entry["log_likelihood"])
            for outcome, entry in zip(outcomes, printed, strict=True)
        ]
    )
    return {
        "data_sets": len(outcomes),
        "runs": likelihoods.shape[1],
        "within_.01": float((below <= 0.01).mean()),
        "within_.001": float((below <= 0.001).mean()),
        "truth_within_.01": float((top - at_truth <= 0.01).mean()),
        "errors": {
            name: _errors(outcomes, likelihoods.argmax(axis=1), name)
            for name in ("W", "pi", "Sigma")
        },
        "largest_fall": float(max(outcome["fall"] for outcome in outcomes)),
        "histories": outcomes[0]["histories"],
        "printed": {
            "runs": len(falls),
            "falling": float((falls > _ROUNDING).mean()),
            "largest_fall": float(falls.max()),
            "lower_final": float((loss > _ROUNDING).mean()),
            "mean_loss": float(loss.mean()),
            "histories": printed[0]["histories"],
        },
        "asymmetry": {
            which: float(np.mean([outcome["asymmetry"][which] for outcome in outcomes]))
            for which in ("old W", "new W")
        },
    }


def _errors(outcomes: Sequence[Outcome], best: Array, name: str) -> dict[str, dict[str, float]]:
    """Of all runs, of the most likely one, and of the one that began at the truth: mean and median
    over the data sets.
    """
    values = {
        "all": [np.mean([e[name] for e in outcome["errors"]]) for outcome in outcomes],
        "best": [outcome["errors"][run][name] for outcome, run in zip(outcomes, best, strict=True)],
        "truth": [outcome["truth"]["errors"][name] for outcome in outcomes],
    }
    return {
        which: {"mean": float(np.mean(some)), "median": float(np.median(some))}
        for which, some in values.items()
    }
