"""Outcomes of the experiments' trials made up in no time, for tests of what is made of them."""

import json
from importlib import import_module

import numpy as np

from spikeslab.experiments import EXPERIMENTS
from spikeslab.experiments.prior import ACTIVATIONS
from spikeslab.experiments.reproduce import rounded
from spikeslab.experiments.sources import N_SOURCES


def made_up_results(plan, names=EXPERIMENTS):
    """The content of results.json as it would be had all trials had made-up outcomes."""
    results = {
        "spikeslab": "0.0",
        "seed": plan.seed,
        "trials": plan.trials,
        "quick": plan.quick,
    }
    for name in names:
        module = import_module(f"spikeslab.experiments.{name}")
        finished = [
            (trial.settings, json.loads(json.dumps(_OUTCOMES[name](trial.settings))))
            for trial in module.trials(plan)
        ]
        results[name] = module.summarise(finished)
    return rounded(results)


def _rng(settings):
    return np.random.default_rng(list(json.dumps(settings).encode()))


def _prior(settings):
    assert settings["activation"] in ACTIVATIONS
    points = _rng(settings).standard_normal((2, 50, 2))
    return {
        "prior": points[0].tolist(),
        "observations": points[1].tolist(),
        "zeros": 1 - settings["activation"],
        "kurtosis": 3 / settings["activation"] - 3,
        "kurtosis_observed": 2.0,
    }


def _verification(settings):
    rng, runs = _rng(settings), settings["runs"]
    histories = (-4 - 1 / np.arange(1, 301) - rng.random((2, 1))).tolist()
    few = min(runs, 2)
    return {
        "log_likelihood": (-4 - rng.random(runs)).tolist(),
        "errors": [_errors(rng) for _ in range(runs)],
        "fall": 1e-14,
        "histories": histories[: 2 * (settings["data_set"] == 0)],
        "truth": {"log_likelihood": -4.0, "errors": _errors(rng)},
        "printed": {
            "log_likelihood": (-5.5 * np.ones(few)).tolist(),
            "falls": rng.random(few).tolist(),
            "histories": histories[: 2 * (settings["data_set"] == 0)],
        },
        "asymmetry": {"old W": 0.1, "new W": 1e-17},
    }


def _errors(rng):
    return dict(zip(("W", "pi", "Sigma"), rng.random(3).tolist(), strict=True))


def _directions(settings):
    rng = _rng(settings)
    outcome = {
        "paper": [[-4 - x, x / 10] for x in rng.random(settings["runs"])],
        "truth": [-4.0, 0.01],
    }
    if settings["noise"] == "isotropic":
        outcome["ours"] = {
            name: [-4.0, rng.random() / 10] for name in ("default", "heavy", "separate")
        }
        if settings["data_set"] == 0 and settings["latents"] == 2:
            outcome["picture"] = {
                "data": (5 * rng.standard_normal((50, 2))).tolist(),
                "generating": np.eye(2).tolist(),
                "learned": [[1.0, 0.1], [-0.1, 1.0]],
                "activation": [0.3, 0.4],
                "noise_variance": 0.1,
            }
    return outcome


def _separation(settings):
    rng = _rng(settings)
    if settings["method"] != "gsc":
        return {"amari": rng.random()}
    assert settings["name"] in N_SOURCES
    runs = settings["runs"]
    return {
        "amari": rng.random(runs).tolist(),
        "log_likelihood": rng.random(runs).tolist(),
        "deviation": (90 * rng.random(runs)).tolist(),
    }


_OUTCOMES = {
    "prior": _prior,
    "verification": _verification,
    "directions": _directions,
    "separation": _separation,
}
