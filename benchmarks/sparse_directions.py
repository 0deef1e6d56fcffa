"""What keeps the recovery of sparse directions from being better: samples, model, or optimum?

On the data sets of `spikeslab reproduce directions`, mean Amari index and its standard error of

- maximum likelihood from the generating directions with the *generating* prior (as a mixture of
  Gaussians) and noise, so that nothing but the sample is to blame for what is missing;
- our models, with the 500 samples of the paper and with ten times as many.
"""

from __future__ import annotations

import argparse
import os
import warnings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from spikeslab import GaussianSparseCoding, IsotropicNoise, Parameters, Prior
from spikeslab.experiments.directions import draw
from spikeslab.experiments.trials import generator
from spikeslab.m_step import Model
from spikeslab.maximise import maximise
from spikeslab.metrics import amari_index_of_mixing
from spikeslab.prior import PriorFamily
from spikeslab.separation import separate
from spikeslab.statistics import Expectation

NOISE = 0.1  # standard deviation, as in the experiment
MORE = 5000
# Shares of the components of the Laplacian's mixture, by increasing variance.
SHARES = {2: [0.01, 0.03, 0.08, 0.18, 0.25, 0.25, 0.15, 0.05], 4: [0.03, 0.12, 0.3, 0.35, 0.2]}
MODELS = {
    "default": {},
    "no noise floor": {"min_noise": 1e-9},
    "soft spike, two slabs": {"spike": "soft", "n_slabs": 2, "min_noise": 1e-9},
}


def laplacian(n_latents: int) -> Prior:
    """Unit variance: normal with a variance ~ Exp(1), of which every share takes its mean."""
    shares = np.array(SHARES[n_latents])
    edges = -np.log(np.append(1 - np.concatenate([[0], shares.cumsum()[:-1]]), 1e-300))
    integrals = np.diff(-(edges + 1) * np.exp(-edges))  # of v exp(-v)
    variances = integrals / shares
    return Prior(*(np.tile(row, (n_latents, 1)) for row in (shares, 0 * shares, variances)))


def with_generating_prior(Y: np.ndarray, mixing: np.ndarray) -> np.ndarray:
    prior = laplacian(mixing.shape[1])
    start = Parameters(mixing, np.zeros(len(mixing)), prior, IsotropicNoise(NOISE**2, len(mixing)))
    family = PriorFamily(n_slabs=prior.weights.shape[1] - 1, soft_spike=True)
    model = Model(family, learn=frozenset({"components"}))
    return maximise(Expectation(Y, "isotropic"), start, model).parameters.mixing


def more_data(prior: str, mixing: np.ndarray, data_set: int) -> np.ndarray:
    rng = generator(0, "more data", prior, data_set)
    shape = (MORE, mixing.shape[1])
    sources = {
        "cauchy": lambda: rng.standard_cauchy(shape),
        "laplace": lambda: rng.laplace(size=shape) / np.sqrt(2),
    }[prior]()
    return sources @ mixing.T + NOISE * rng.standard_normal(shape)


def measure(settings: dict, columns: dict[str, list[float]]) -> None:
    def note(name: str, mixing_found: np.ndarray) -> None:
        columns.setdefault(name, []).append(amari_index_of_mixing(mixing_found, mixing))

    mixing, Y = draw(settings)
    H, seed = settings["latents"], settings["data_set"]
    if settings["prior"] == "laplace":
        note("generating prior", with_generating_prior(Y, mixing))
    for size, data in (("", Y), (f", N = {MORE}", more_data(settings["prior"], mixing, seed))):
        for name, options in MODELS.items():
            model = GaussianSparseCoding(H, random_state=seed, **options).fit(data)
            note(name + size, model.parameters_.mixing)
            columns.setdefault(f"log-likelihood of {name + size}", []).append(model.log_likelihood_)
        note("separate" + size, separate(data, H, random_state=seed).mixing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-sets", type=int, default=30)
    n_data_sets = parser.parse_args().data_sets
    warnings.simplefilter("ignore", ConvergenceWarning)
    for prior, latents, mixing in (
        ("laplace", 2, "normal"),
        ("laplace", 4, "normal"),
        ("cauchy", 2, "normal"),
    ):
        columns: dict[str, list[float]] = {}
        for data_set in range(n_data_sets):
            settings = {"seed": 0, "prior": prior, "latents": latents, "mixing": mixing}
            measure(settings | {"data_set": data_set}, columns)
        print(f"\n{prior.capitalize()}, H = {latents}, {mixing} W, {n_data_sets} data sets")
        for name, values in columns.items():
            if not name.startswith("log"):
                error = np.std(values, ddof=1) / np.sqrt(n_data_sets)
                print(f"  {name:36} {np.mean(values):.3f} ± {error:.3f}")
        below = np.subtract(
            columns["log-likelihood of no noise floor"], columns["log-likelihood of default"]
        )
        print(f"  default more than .2 nats below no floor: {np.mean(below > 0.2):.0%}", flush=True)


if __name__ == "__main__":
    main()
