"""The paper's first figure: what the prior looks like, and data made of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..noise import IsotropicNoise
from ..parameters import Parameters
from ..prior import Prior
from .plan import Plan
from .trials import Finished, Outcome, Settings, Trial, cells, generator

ACTIVATIONS = (1.0, 0.5, 0.25)
LOOKS = {1.0: "p-PCA cloud", 0.5: "slight star", 0.25: "salient star"}

# Ours: the paper does not print the W and Sigma of its figure.
MIXING = np.array([[1.6, 0.5], [0.4, 1.4]])
NOISE_VARIANCE = 0.02

_SHOWN, _POINTS = 500, 100_000  # drawn; and counted, for the numbers


def trials(plan: Plan) -> list[Trial]:
    return [
        Trial("prior", {"seed": plan.seed, "activation": activation}, 0.05, "prior")
        for activation in ACTIVATIONS
    ]


def run(settings: Settings) -> Outcome:
    """Samples, and how far from Gaussian they are."""
    activation = settings["activation"]
    parameters = Parameters(
        MIXING,
        np.zeros(2),
        Prior.spike_and_slab(np.full(2, activation)),
        IsotropicNoise(NOISE_VARIANCE, 2),
    )
    Y, latents = parameters.sample(_POINTS, generator(settings["seed"], "prior", activation))
    sources = Y @ np.linalg.inv(MIXING).T
    return {
        "prior": latents[:_SHOWN].round(4).tolist(),
        "observations": Y[:_SHOWN].round(4).tolist(),
        "zeros": float((latents == 0).mean()),
        "kurtosis": _kurtosis(latents),
        "kurtosis_observed": _kurtosis(sources),
    }


def _kurtosis(values: np.ndarray) -> float:
    """Excess kurtosis, mean over the columns."""
    squares = (values - values.mean(axis=0)) ** 2
    return float(((squares**2).mean(axis=0) / squares.mean(axis=0) ** 2 - 3).mean())


def summarise(finished: Finished) -> dict[str, Any]:
    """One entry for each activation, with the kurtosis that theory gives it."""
    return {
        "cells": [
            {
                "activation": activation,
                "look": LOOKS[activation],
                "kurtosis_expected": 3 / activation - 3,
                **outcome,
            }
            for (activation,), [(_, outcome)] in cells(finished, "activation")
        ]
    }
