"""The models that `separate` tries on a mixture, and where each starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from ._arrays import Array
from ._estimator import SparseCodingEstimator
from .checkpoint import Checkpoint, Journal
from .estimator import GaussianSparseCoding
from .initialise import heavy_tailed, random_rotations
from .m_step import LEARNABLE, Model
from .maximise import Progress, Result, maximise
from .noise import IsotropicNoise
from .noise_free_estimator import NoiseFreeSparseCoding, in_data_coordinates
from .parameters import Parameters
from .posterior import Inference
from .prior import Prior, PriorFamily
from .statistics import Expectation, block_slices
from .subspace import Subspace

FittedModel = GaussianSparseCoding | NoiseFreeSparseCoding

LAPLACIAN, SHARED, SPIKE_AND_SLAB = "Laplacian prior", "shared prior", "spike and slab"

NOISE_FLOOR = 1e-4  # least noise variance, relative to the mean variance of the channels
_SEARCH_POINTS = 5000  # enough to tell good runs from bad ones
_MOST_STATES = 3**7  # of the latents with three components; beyond, they have two
_ITERATIONS, _TOLERANCE = 250, 1e-6


class Annealing(NamedTuple):
    """Of the least noise variance, from a share of the channels' variance."""

    share: float
    iterations: int


_FROM_ANYWHERE = Annealing(0.3, 100)
_FROM_NOISE_FREE = Annealing(0.01, 30)
_NONE = Annealing(0.0, 0)


class Start(NamedTuple):
    parameters: Parameters
    annealing: Annealing


class Told(NamedTuple):
    """What is told of a run while it goes on."""

    stage: str
    run: int
    n_runs: int
    iteration: int
    log_likelihood: float


class Attempt(NamedTuple):
    """A run from one start."""

    mixing: Array
    log_likelihood: float  # per sample
    history: Sequence[float]
    n_iter: int
    converged: bool
    reason: str
    noise_variance: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kind of model fitted to the mixture; `attempts` are its runs, `best` the number of the one
    that `model` was made of.
    """

    family: str
    model: FittedModel
    n_parameters: int
    noise_variance: float
    attempts: list[Attempt]
    best: int

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays: what a checkpoint holds."""
        plain = [
            {n: v for n, v in run._asdict().items() if n not in ("mixing", "history")}
            for run in self.attempts
        ]
        record = {"family": self.family, "n_parameters": self.n_parameters, "best": self.best}
        record |= {"noise_variance": self.noise_variance, "attempts": plain}
        arrays = {f"model_{name}": array for name, array in self.model.arrays().items()}
        for number, run in enumerate(self.attempts):
            arrays[f"mixing_{number}"], arrays[f"history_{number}"] = (
                run.mixing,
                np.array(run.history),
            )
        return arrays | {"candidate": np.array(json.dumps(record, default=np.generic.item))}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Candidate:
        record = json.loads(str(arrays["candidate"]))
        record["attempts"] = [
            Attempt(arrays[f"mixing_{i}"], history=arrays[f"history_{i}"].tolist(), **plain)
            for i, plain in enumerate(record["attempts"])
        ]
        of_model = {
            n.removeprefix("model_"): a for n, a in arrays.items() if n.startswith("model_")
        }
        return cls(model=SparseCodingEstimator.from_arrays(of_model), **record)

    @property
    def log_likelihood(self) -> float:
        return self.attempts[self.best].log_likelihood

    @property
    def parameters(self) -> Any:
        return self.model.parameters_

    @property
    def n_sources(self) -> int:
        return self.model.mixing_.shape[1]

    @property
    def noisy(self) -> bool:
        return isinstance(self.model, GaussianSparseCoding)


class Mixture:
    """Data (N, D) with what all candidates need of it."""

    def __init__(
        self,
        X: np.ndarray,
        rng: Generator,
        executor: Executor | None = None,
        watch: Callable[[Told], object] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.data, self.rng, self.watch = X, rng, watch
        self._checkpoint, self._n_fits = checkpoint, 0
        everything = Expectation(X, "full", X.mean(axis=0, dtype=np.float64))
        self.mean = X.mean(axis=0, dtype=np.float64)
        self.covariance = everything.yy / len(X)
        self.variance = float(self.covariance.trace()) / X.shape[1]
        self.expectation = Expectation(X, "isotropic", self.mean, executor)
        self.search = self.expectation
        self.n_search = min(len(X), _SEARCH_POINTS)
        if len(X) > _SEARCH_POINTS:
            rows = rng.choice(len(X), _SEARCH_POINTS, replace=False)
            self.search = Expectation(X[rows], "isotropic", self.mean, executor)

    def journal(self) -> Journal | None:
        """Where the next fit is kept: with the same seed they always come in the same order."""
        if self._checkpoint is None:
            return None
        self._n_fits += 1
        return self._checkpoint.journal(str(self._n_fits))

    def seed(self) -> int:
        return int(self.rng.integers(np.iinfo(np.int32).max))

    def white(self, n_sources: int) -> Subspace:
        return Subspace.of(self.mean, self.covariance, n_sources)

    def whitened(self, mixing: Array) -> Array:
        """Columns of a mixing matrix as they are after whitening in their number of dimensions."""
        return self.white(min(mixing.shape)).whitening @ mixing

    def posterior_deviation(self, parameters: Parameters) -> Array:
        """Root mean square of the posterior standard deviations of the sources, (H,)."""
        inference = Inference(parameters.shifted(-self.mean))
        total = np.zeros(parameters.n_latents)
        for rows in block_slices(self.data.shape, inference.n_states):
            block = np.subtract(self.data[rows], self.mean, dtype=np.float64)
            moments = inference.moments(block, each=True)
            total += moments.second.sum(axis=1) - (moments.mean**2).sum(axis=0)
        return np.sqrt(np.maximum(total, 0.0) / len(self.data))


def fit_noise_free(
    mixture: Mixture, n_sources: int, *, orthogonal: bool = False, n_init: int = 12
) -> Candidate:
    """Independent sources whose densities are learned, without noise."""
    family = "orthogonal" if orthogonal else "noise-free"
    seed, journal, n_runs = mixture.seed(), mixture.journal(), 0
    if journal is not None and journal.saved is not None:
        return Candidate.from_arrays(journal.saved)

    def tell(progress: Progress) -> object:
        assert mixture.watch is not None
        nonlocal n_runs
        n_runs = max(n_runs, progress.run + 1)
        return mixture.watch(
            Told(family, progress.run, n_runs, progress.iteration, progress.log_likelihood)
        )

    model = NoiseFreeSparseCoding(
        n_sources,
        unmixing="orthogonal" if orthogonal else "free",
        n_init=n_init,
        random_state=seed,
        callback=tell if mixture.watch else None,
    )
    runs = model.fit_runs(mixture.data)
    model.set_params(callback=None)
    attempts = [
        Attempt(
            in_data_coordinates(runs.subspace, run).mixing,
            run.log_likelihood + runs.subspace.log_constant,
            [value + runs.subspace.log_constant for value in run.history],
            run.n_iter,
            run.converged,
            run.reason,
            0.0,
        )
        for run in [*runs.refined, *runs.searched]
    ]
    candidate = Candidate(
        family,
        model,
        model.n_parameters,
        model.parameters_.residual_variance,
        attempts,
        runs.best,
    )
    if journal is not None:
        journal.keep(candidate.arrays())
    return candidate


def most_likely(results: list[Result]) -> int:
    return int(np.argmax([result.log_likelihood for result in results]))


class Noisy:
    """A kind of model with isotropic noise, fitted by exact inference."""

    def __init__(self, name: str, prior: PriorFamily, learn: Collection[str] = LEARNABLE) -> None:
        self.name, self.prior, self.learn = name, prior, frozenset(learn)

    def fit(
        self,
        mixture: Mixture,
        starts: Sequence[Start],
        choose: Callable[[list[Result]], int] = most_likely,
    ) -> Candidate:
        results = [
            self._run(mixture, mixture.search, start, number, len(starts))
            for number, start in enumerate(starts)
        ]
        best = choose(results)
        kept = results[best]
        if mixture.search is not mixture.expectation:
            last = Start(kept.parameters, _NONE)
            kept = self._run(mixture, mixture.expectation, last, len(starts), len(starts) + 1)
            results[best] = kept
        prior = self.prior
        model = GaussianSparseCoding(
            kept.parameters.n_latents,
            spike="soft" if prior.soft_spike else "hard",
            n_slabs=prior.n_slabs,
            slab_mean=prior.slab_means,
            shared_prior=prior.shared,
            inference="exact",
            n_init=len(starts),
            min_noise=NOISE_FLOOR,
            to_learn=sorted(self.learn),
        )
        model.keep(results, mixture.mean, kept)
        model.n_features_in_ = len(mixture.mean)
        attempts = [
            Attempt(
                result.parameters.mixing,
                result.log_likelihood,
                result.history,
                result.n_iter,
                result.converged,
                result.reason,
                float(result.parameters.noise.values[0]),
            )
            for result in results
        ]
        return Candidate(
            self.name, model, model.n_parameters, attempts[best].noise_variance, attempts, best
        )

    def _run(
        self, mixture: Mixture, data: Expectation, start: Start, number: int, n_runs: int
    ) -> Result:
        def tell(progress: Progress) -> object:
            assert mixture.watch is not None
            told = Told(self.name, number, n_runs, progress.iteration, progress.log_likelihood)
            return mixture.watch(told)

        result = maximise(
            data,
            start.parameters,
            Model(self.prior, learn=self.learn),
            noise_floor=NOISE_FLOOR * mixture.variance,
            anneal_from=start.annealing.share * mixture.variance,
            anneal_iterations=start.annealing.iterations,
            max_iter=_ITERATIONS,
            tol=_TOLERANCE,
            callback=tell if mixture.watch else None,
            journal=mixture.journal(),
        )
        if result.reason == "interrupted":
            raise KeyboardInterrupt
        return result


def fit_noisy(
    mixture: Mixture,
    n_sources: int,
    noise_free: Candidate | None = None,
    n_init: int | None = None,
) -> list[Candidate]:
    """All kinds of models with noise that can be afforded.

    Few parameters are what heavy noise asks for: a prior that is fixed, or one that all sources
    share. The paper's spike and slab has a prior for each source; priors of three Gaussians for
    each are for skewed sources and little noise.
    """
    overcomplete = n_sources > mixture.data.shape[1]
    start = overcomplete_start if overcomplete else rotated_start
    n_components = 3 if 3**n_sources <= _MOST_STATES else 2
    family = PriorFamily(n_components - 1, soft_spike=True, shared=True)
    prior = heavy_tailed(n_sources, n_components)
    candidates = []
    n_runs = n_init or (24 if overcomplete else 2)
    starts = [start(mixture, prior) for _ in range(n_runs)]
    if not overcomplete:
        second = unit_start(mixture, noise_free, prior) if noise_free else start(mixture, prior)
        fixed = Noisy(LAPLACIAN, family, learn=("components", "noise", "mean"))
        candidates.append(fixed.fit(mixture, [starts[0], second]))
        starts[-1] = Start(candidates[0].parameters.shifted(-mixture.mean), _NONE)
    shared = Noisy(SHARED, family).fit(mixture, starts)
    candidates.append(shared)
    n_runs = n_init or (24 if overcomplete else 3)
    candidates.append(fit_spike_and_slab(mixture, n_sources, n_runs))
    if noise_free is not None and n_components == 3:
        own = PriorFamily(2, soft_spike=True, slab_means=True, weight_count=1.0, variance_count=2.0)
        before = noise_free.parameters
        noise = IsotropicNoise(_FROM_NOISE_FREE.share * mixture.variance, len(before.offset))
        offset = before.offset - mixture.mean
        starts = [
            Start(Parameters(before.mixing, offset, before.prior, noise), _FROM_NOISE_FREE),
            Start(shared.parameters.shifted(-mixture.mean), _NONE),
        ]
        candidates.append(Noisy("own priors", own).fit(mixture, starts))
    return candidates


def fit_spike_and_slab(
    mixture: Mixture,
    n_sources: int,
    n_runs: int,
    choose: Callable[[list[Result]], int] = most_likely,
) -> Candidate:
    """The paper's model, with slab means."""
    start = overcomplete_start if n_sources > mixture.data.shape[1] else rotated_start
    family = Noisy(SPIKE_AND_SLAB, PriorFamily(slab_means=True, weight_count=2.0))
    priors = (family.prior.start(n_sources, mixture.rng) for _ in range(n_runs))
    return family.fit(mixture, [start(mixture, prior) for prior in priors], choose)


def rotated_start(mixture: Mixture, prior: Prior) -> Start:
    """The principal subspace, rotated at random."""
    subspace = mixture.white(prior.n_latents)
    mixing = subspace.unwhitening @ random_rotations(1, prior.n_latents, mixture.rng)[0]
    scale = np.sqrt(prior.variance + prior.mean**2)
    noise = IsotropicNoise(_FROM_ANYWHERE.share * mixture.variance, len(mixing))
    return Start(Parameters(mixing / scale, np.zeros(len(mixing)), prior, noise), _FROM_ANYWHERE)


def unit_start(mixture: Mixture, noise_free: Candidate, prior: Prior) -> Start:
    """The directions of a model without noise, with a prior of unit variance."""
    before = noise_free.parameters
    mixing = before.mixing * np.sqrt(before.prior.variance)
    noise = IsotropicNoise(_FROM_NOISE_FREE.share * mixture.variance, len(mixing))
    offset = before.mean - mixture.mean
    return Start(Parameters(mixing, offset, prior, noise), _FROM_NOISE_FREE)


def overcomplete_start(mixture: Mixture, prior: Prior) -> Start:
    """Directions at random, and noise that explains everything."""
    n_channels = len(mixture.mean)
    scale = np.sqrt(mixture.variance / prior.n_latents / (prior.variance + prior.mean**2))
    mixing = scale * mixture.rng.standard_normal((n_channels, prior.n_latents))
    noise = IsotropicNoise(mixture.variance, n_channels)
    return Start(Parameters(mixing, np.zeros(n_channels), prior, noise), _NONE)


def reordered(parameters: Any, order: np.ndarray, signs: Array) -> Any:
    """Parameters with the sources in another order, and with other signs."""
    prior = parameters.prior
    return replace(
        parameters,
        mixing=parameters.mixing[:, order] * signs,
        prior=Prior(
            prior.weights[order], prior.means[order] * signs[:, None], prior.variances[order]
        ),
    )
