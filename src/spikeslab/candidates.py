"""The models that `separate` tries on a mixture, and where each starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
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
NOISE_FREE, ORTHOGONAL, NOISE_FREE_LAPLACIAN = "noise-free", "orthogonal", "noise-free, Laplacian"

NOISE_FLOOR = 1e-4  # least noise variance, relative to the mean variance of the channels
_SEARCH_POINTS = 5000  # enough to tell good runs from bad ones
_MOST_STATES = 3**7  # of the latents with three components; beyond, they have two
_ITERATIONS, _TOLERANCE = 250, 1e-6
_TIE = 1.0  # nats
_RACE = 20  # iterations after the annealing; then only the best run of a kind goes on


class Annealing(NamedTuple):
    """Of the least noise variance, from a share of the channels' variance."""

    share: float
    iterations: int


_FROM_ANYWHERE = Annealing(0.3, 40)
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


def fit_noise_free(mixture: Mixture, n_sources: int, family: str, n_init: int) -> Candidate:
    """Independent sources without noise, their densities learned or Laplacian."""
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
        unmixing="orthogonal" if family == ORTHOGONAL else "free",
        densities="laplacian" if family == NOISE_FREE_LAPLACIAN else "learned",
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


def most_likely(results: list[Result], tie: float = 0.0) -> int:
    """The number of the best run; one without noise only where all are.

    Of those that come within `tie` of the highest log-likelihood, that with the least noise: where
    the columns are orthogonal, noise and a soft spike can hardly be told apart, and an estimate
    that takes signal for noise is the worse mistake.
    """
    noisy = [i for i, result in enumerate(results) if result.reason != "no noise"]
    numbers = noisy or list(range(len(results)))
    least = max(results[i].log_likelihood for i in numbers) - tie
    tied = [i for i in numbers if results[i].log_likelihood >= least]
    return min(tied, key=lambda i: results[i].parameters.noise.values[0])


class NoiseFree(NamedTuple):
    """What models without noise have found."""

    learned: Candidate
    laplacian: Candidate


class Noisy:
    """A kind of model with isotropic noise, fitted by exact inference."""

    def __init__(self, name: str, prior: PriorFamily, learn: Collection[str] = LEARNABLE) -> None:
        self.name, self.prior, self.learn = name, prior, frozenset(learn)

    def fit(
        self,
        mixture: Mixture,
        starts: Sequence[Start],
        choose: Callable[[list[Result]], int] | None = None,
        needed: bool = True,
    ) -> Candidate:
        """The model from the best of some starts.

        All runs go to their end if `choose` is given, to choose among them; else the most likely of
        them soon after the annealing goes on alone. Unless `needed`, a run ends when no noise is
        left: then a model without noise stands for it.
        """
        race = None if choose else _RACE
        results = [
            self._run(mixture, mixture.search, start, number, len(starts), needed, race)
            for number, start in enumerate(starts)
        ]
        choose = choose or partial(most_likely, tie=_TIE / mixture.n_search)
        best = choose(results)
        kept = results[best]
        if race is not None and kept.reason == "max_iter":
            last = Start(kept.parameters, _NONE)
            more = self._run(
                mixture, mixture.search, last, best, len(starts), needed, done=kept.n_iter
            )
            kept = results[best] = more.after(kept)
        if mixture.search is not mixture.expectation:
            last = Start(kept.parameters, _NONE)
            number = len(starts)
            kept = self._run(mixture, mixture.expectation, last, number, number + 1, needed)
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
        self,
        mixture: Mixture,
        data: Expectation,
        start: Start,
        number: int,
        n_runs: int,
        needed: bool,
        race: int | None = None,
        done: int = 0,
    ) -> Result:
        def tell(progress: Progress) -> object:
            assert mixture.watch is not None
            iteration = done + progress.iteration
            told = Told(self.name, number, n_runs, iteration, progress.log_likelihood)
            return (progress.iteration > 0 or done == 0) and mixture.watch(told)

        floor, annealed = NOISE_FLOOR * mixture.variance, start.annealing.iterations
        result = maximise(
            data,
            start.parameters,
            Model(self.prior, learn=self.learn),
            noise_floor=floor,
            anneal_from=start.annealing.share * mixture.variance,
            anneal_iterations=annealed,
            least_noise=0.0 if needed else 2 * floor,
            max_iter=_ITERATIONS if race is None else annealed + race,
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
    noise_free: NoiseFree | None = None,
    n_init: int | None = None,
) -> list[Candidate]:
    """All kinds of models with noise that can be afforded.

    Few parameters are what heavy noise asks for: a prior that is fixed, or one that all sources
    share. The paper's spike and slab has a prior for each source; priors of three Gaussians for
    each are for skewed sources and little noise.

    Without noise, sources are found fast: most starts are at what was found so. In much noise that
    is far from right, and starts at random are better.
    """
    needed = noise_free is None
    n_components = 3 if 3**n_sources <= _MOST_STATES else 2
    prior = heavy_tailed(n_sources, n_components)
    family = PriorFamily(n_components - 1, soft_spike=True, shared=True)
    shared = Noisy(SHARED, family)
    if n_sources > mixture.data.shape[1]:
        starts = [overcomplete_start(mixture, prior) for _ in range(n_init or 24)]
        sparse = fit_spike_and_slab(mixture, n_sources, n_init or 24, choose=most_likely)
        return [shared.fit(mixture, starts, most_likely), sparse]

    fixed = Noisy(LAPLACIAN, family, learn=("components", "noise", "mean"))
    starts = [rotated_start(mixture, prior) for _ in range(n_init or 1)]
    near = [unit_start(mixture, noise_free.laplacian, prior)] if noise_free else []
    candidates = [fixed.fit(mixture, [*near, *starts], needed=needed)]
    starts.append(going_on(mixture, candidates[0]))
    candidates.append(shared.fit(mixture, starts, needed=needed))
    learned = noise_free and noise_free.learned
    candidates.append(fit_spike_and_slab(mixture, n_sources, n_init or 2, learned))
    if learned and n_components == 3:
        own = PriorFamily(2, soft_spike=True, slab_means=True, weight_count=1.0, variance_count=2.0)
        before = learned.parameters
        noise = IsotropicNoise(_FROM_NOISE_FREE.share * mixture.variance, len(before.offset))
        offset = before.offset - mixture.mean
        starts = [
            Start(Parameters(before.mixing, offset, before.prior, noise), _FROM_NOISE_FREE),
            going_on(mixture, candidates[1]),
        ]
        candidates.append(Noisy("own priors", own).fit(mixture, starts, needed=needed))
    return candidates


def fit_spike_and_slab(
    mixture: Mixture,
    n_sources: int,
    n_runs: int,
    noise_free: Candidate | None = None,
    choose: Callable[[list[Result]], int] | None = None,
) -> Candidate:
    """The paper's model, with slab means: from starts at random, and at a model without noise."""
    start = overcomplete_start if n_sources > mixture.data.shape[1] else rotated_start
    family = PriorFamily(slab_means=True, weight_count=2.0)
    priors = [family.start(n_sources, mixture.rng) for _ in range(n_runs + bool(noise_free))]
    starts = [start(mixture, prior) for prior in priors[:n_runs]]
    if noise_free:
        starts.append(unit_start(mixture, noise_free, priors[-1]))
    return Noisy(SPIKE_AND_SLAB, family).fit(mixture, starts, choose, needed=noise_free is None)


def going_on(mixture: Mixture, candidate: Candidate) -> Start:
    """Where another kind of model has ended."""
    return Start(candidate.parameters.shifted(-mixture.mean), _NONE)


def rotated_start(mixture: Mixture, prior: Prior) -> Start:
    """The principal subspace, rotated at random."""
    subspace = mixture.white(prior.n_latents)
    mixing = subspace.unwhitening @ random_rotations(1, prior.n_latents, mixture.rng)[0]
    scale = np.sqrt(prior.variance + prior.mean**2)
    noise = IsotropicNoise(_FROM_ANYWHERE.share * mixture.variance, len(mixing))
    return Start(Parameters(mixing / scale, np.zeros(len(mixing)), prior, noise), _FROM_ANYWHERE)


def unit_start(mixture: Mixture, noise_free: Candidate, prior: Prior) -> Start:
    """The directions of a model without noise, with a prior of about unit variance."""
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
