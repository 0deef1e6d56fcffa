"""NoiseFreeSparseCoding, the scikit-learn estimator of models without noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.random import Generator
from sklearn.utils import check_random_state

from ._arrays import Array
from ._checks import check_choice, check_integer, check_real
from ._estimator import Run, SparseCodingEstimator, print_run
from .initialise import heavy_tailed, random_rotations
from .maximise import Progress
from .metrics import orthogonality_deviation
from .noise_free import NoiseFreeRun, climb_noise_free, maximise_noise_free
from .noise_free_parameters import NoiseFreeParameters, SourcePosterior
from .prior import Prior, PriorFamily
from .subspace import Subspace
from .unmixing import DENSITIES

_SEARCH_POINTS = 2000  # enough to tell good starts from bad ones
_SEARCH_VARIANCE = 1e-2  # narrower components are for later: they stick to single points
_HEAVY_TAILED_STARTS = 2
_ROUGH, _ROUGH_TOLERANCE = 50, 1e-6  # iterations of a start before the best go on
_REFINED = 2  # of the searched starts

Told = Callable[[int, int, float], object]  # run, iteration, log-likelihood per sample


@dataclass(frozen=True, eq=False)
class Runs:
    """All runs of a fit, in the coordinates of the white signals."""

    subspace: Subspace
    searched: list[NoiseFreeRun]
    refined: list[NoiseFreeRun]

    @property
    def best(self) -> int:
        """Which refined run is the most likely."""
        return int(np.argmax([run.log_likelihood for run in self.refined]))


class NoiseFreeSparseCoding(SparseCodingEstimator):
    """Sparse coding without noise: independent sources whose densities are learned, by exact
    maximum likelihood.

    Every sample is ``y = mean_ + mixing_ @ x``. Each source's density is a mixture of Gaussians, a
    narrow one (the spike) and broader ones (the slabs) with means of their own, so that sparse,
    skewed and flat sources are all told apart. The likelihood factorises over the sources: an
    iteration costs O(N H K), and there may be hundreds of sources.

    With more features than sources the rest is Gaussian, and the likelihood is still a density of
    the data, comparable with that of `GaussianSparseCoding`.

    Parameters
    ----------
    n_components : int, default=None
        Number of sources H, at most the number of features. None means as many.
    unmixing : {"free", "orthogonal"}, default="free"
        A free unmixing matrix, or a rotation of whitened data as in most ICA methods. Whitening a
        finite sample is itself an error, which the free matrix avoids.
    densities : {"learned", "laplacian"}, default="learned"
        Learn the density of each source, or take all to be Laplacian: the mixture of Gaussians that
        is nearest to it.
    n_slabs : int, default=2
        Gaussians of a source's density besides the spike.
    n_init : int, default=12
        Random rotations to start from. The best of them, and with a free matrix the best of two
        more with Laplacian densities, are refined, and the most likely is kept.
    max_iter : int, default=300
        Iterations of a refinement.
    tol : float, default=1e-7
        A run has converged when three iterations in a row gain less than this per sample.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results.
    callback : callable, default=None
        Called with a `Progress` after every iteration; returning True ends that run.
    verbose : int, default=0
        1 prints a line for every refined run.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The generating directions, one a row; ``mixing_`` is its transpose. An active source has a
        mean square of 1, or with one slab a variance of 1.
    unmixing_ : array of shape (n_components, n_features)
        Sources are ``(X - mean_) @ unmixing_.T``.
    activation_ : array of shape (n_components,)
        Probability that a source is not in its spike.
    slab_mean_ : array of shape (n_components,)
        Mean of a source when it is active.
    mean_ : array of shape (n_features,)
        The offset.
    noise_covariance_ : array of shape (n_features, n_features)
        Of the part outside of the sources' subspace; zero where there is none.
    parameters_ : NoiseFreeParameters
        All of these, with the full prior.
    log_likelihood_ : float
        Per sample, of the training data.
    history_ : list of float
        Log-likelihood per sample after every iteration of the best run. With its regularisation it
        never falls.
    n_iter_ : int
        Iterations of the best run.
    converged_ : bool
    runs_ : list of Run
        One record for every refined run.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab import NoiseFreeSparseCoding
    >>> rng = np.random.default_rng(0)
    >>> sources = rng.exponential(size=(500, 2))
    >>> X = sources @ [[1.0, 1.0], [1.0, -1.0]]
    >>> model = NoiseFreeSparseCoding(random_state=0).fit(X)
    >>> found = np.abs(np.corrcoef(model.transform(X).T, sources.T)[:2, 2:])
    >>> bool(found.max(axis=0).min() > 0.99)
    True
    """

    _learned = NoiseFreeParameters
    parameters_: NoiseFreeParameters

    def __init__(
        self,
        n_components: int | None = None,
        *,
        unmixing: str = "free",
        densities: str = "learned",
        n_slabs: int = 2,
        n_init: int = 12,
        max_iter: int = 300,
        tol: float = 1e-7,
        random_state=None,
        callback: Callable[[Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.unmixing = unmixing
        self.densities = densities
        self.n_slabs = n_slabs
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    # ---- fitting ----

    def fit(self, X, y=None) -> Self:
        """Fit the model to samples X of shape (n_samples, n_features); y is ignored.

        After Ctrl-C the best parameters so far are kept, and KeyboardInterrupt is raised on.
        """
        runs = self.fit_runs(X)
        self._warn_if_cut_short(runs.refined[runs.best].reason)
        return self

    def fit_runs(self, X) -> Runs:
        """Fit, and return all runs with their histories."""
        with self._unchanged_on_error():
            self._check_arguments()
            X = self._validate(X, reset=True)
            n_components = self.n_components or X.shape[1]
            if n_components > X.shape[1]:
                raise ValueError(
                    f"n_components={n_components}, but without noise there can be no more sources "
                    f"than features, and X has {X.shape[1]}; GaussianSparseCoding can have more"
                )
            runs = self._run_all(X, n_components)
        self._keep(runs)
        if _interrupted([*runs.searched, *runs.refined]):
            raise KeyboardInterrupt
        return runs

    def _check_arguments(self) -> None:
        check_choice("unmixing", self.unmixing, ("free", "orthogonal"))
        check_choice("densities", self.densities, ("learned", "laplacian"))
        if self.n_components is not None:
            check_integer("n_components", self.n_components, 1)
        for name in ("n_slabs", "n_init", "max_iter"):
            check_integer(name, getattr(self, name), 1)
        if self.n_slabs > 7:
            raise ValueError(f"n_slabs must be at most 7, got {self.n_slabs}")
        check_real("tol", self.tol, 0.0)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {self.callback!r}")

    def _run_all(self, X: np.ndarray, n_components: int) -> Runs:
        mean = X.mean(axis=0, dtype=np.float64)
        centred = np.subtract(X, mean, dtype=np.float64)
        subspace = Subspace.of(mean, centred.T @ centred / len(X), n_components)
        signals = np.ascontiguousarray((centred @ subspace.whitening.T).T)
        del centred
        rng = np.random.default_rng(
            check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        )
        few = signals
        if len(X) > _SEARCH_POINTS:
            few = np.ascontiguousarray(signals[:, rng.choice(len(X), _SEARCH_POINTS, False)])
        tell = partial(self._told, subspace.log_constant)
        searched, starts = self._search(few, rng, tell)
        refined = starts
        if not _interrupted(searched):
            tol = self.tol if few is signals else max(self.tol, _ROUGH_TOLERANCE)
            refined = self._refine(few, starts, self.max_iter, tol, tell(len(searched)))
        if few is not signals:
            interrupted = _interrupted([*searched, *refined])
            best = max(refined, key=lambda run: run.log_likelihood)
            searched = [*searched, *(run for run in refined if run is not best)]
            max_iter = 0 if interrupted else self.max_iter
            told = tell(len(searched) + 1)
            refined = self._refine(signals, [best], max_iter, self.tol, told)
            if interrupted:  # seen all data once, to know how likely they are
                refined[0].reason = "interrupted"
        return Runs(subspace, searched, refined)

    def _search(
        self, signals: Array, rng: Generator, tell: Callable[[int], Told | None]
    ) -> tuple[list[NoiseFreeRun], list[NoiseFreeRun]]:
        """Rough runs from many starts, and those of them that are worth refining."""
        if self.densities == "laplacian":
            rotations = random_rotations(self.n_init, len(signals), rng)
            found = self._laplacian(signals, rotations, _ROUGH, _ROUGH_TOLERANCE, tell(0))
            return found, _most_likely(found, 1)
        H, K = len(signals), 1 + self.n_slabs
        family = replace(DENSITIES, n_slabs=self.n_slabs, smallest_variance=_SEARCH_VARIANCE)
        found = maximise_noise_free(
            signals,
            random_rotations(self.n_init, H, rng),
            start_densities(self.n_init, H, K, rng),
            family,
            orthogonal=True,
            max_iter=_ROUGH,
            tol=_ROUGH_TOLERANCE,
            callback=tell(0),
        )
        if not _interrupted(found):
            found = self._prolonged(signals, found, family, tell(0))
        best = _most_likely(found, _REFINED)
        if self.unmixing == "orthogonal" or _interrupted(found):
            return found, best
        rotations = random_rotations(_HEAVY_TAILED_STARTS, H, rng)
        told = tell(self.n_init)
        heavy = self._laplacian(signals, rotations, _ROUGH, _ROUGH_TOLERANCE, told)
        return [*found, *heavy], [*best, *_most_likely(heavy, 1)]

    def _laplacian(
        self, signals: Array, matrices: Array, max_iter: int, tol: float, told: Told | None
    ) -> list[NoiseFreeRun]:
        """Runs with Laplacian densities."""
        return maximise_noise_free(
            signals,
            matrices,
            heavy_tailed(len(matrices) * len(signals), 1 + self.n_slabs),
            orthogonal=self.unmixing == "orthogonal",
            learn=False,
            max_iter=max_iter,
            tol=tol,
            callback=told,
        )

    def _prolonged(
        self, signals: Array, runs: list[NoiseFreeRun], family: PriorFamily, told: Told | None
    ) -> list[NoiseFreeRun]:
        """The runs, of which the best third has gone on for as long again."""
        order = sorted(range(len(runs)), key=lambda i: -runs[i].log_likelihood)
        order = order[: max(_REFINED, len(runs) // 3)]
        numbers = [i for i in order if runs[i].reason == "max_iter"]
        if not numbers:
            return runs
        best = [runs[i] for i in numbers]
        longer = maximise_noise_free(
            signals,
            np.stack([run.matrix for run in best]),
            Prior.stacked([run.prior for run in best]),
            family,
            orthogonal=True,
            max_iter=_ROUGH,
            tol=_ROUGH_TOLERANCE,
            callback=told and (lambda r, i, value: i > 0 and told(numbers[r], _ROUGH + i, value)),
        )
        for number, run in zip(numbers, longer, strict=True):
            runs[number] = run.after(runs[number])
        return runs

    def _refine(
        self,
        signals: Array,
        starts: list[NoiseFreeRun],
        max_iter: int,
        tol: float,
        told: Told | None,
    ) -> list[NoiseFreeRun]:
        if self.densities == "laplacian":
            return self._laplacian(signals, starts[0].matrix[None], max_iter, tol, told)
        runs = []
        for number, start in enumerate(starts):
            run = climb_noise_free(
                signals,
                start,
                replace(DENSITIES, n_slabs=self.n_slabs),
                orthogonal=self.unmixing == "orthogonal",
                max_iter=max_iter,
                tol=tol,
                callback=told and partial(told, number),
            )
            runs.append(run)
            if _interrupted(runs):
                break
        return runs

    def _told(self, constant: float, first: int) -> Told | None:
        """The user's callback for runs numbered from `first`, told of densities of the data."""
        if self.callback is None:
            return None
        callback = self.callback
        return lambda run, iteration, log_likelihood: callback(
            Progress(first + run, iteration, log_likelihood + constant, None)
        )

    def _keep(self, runs: Runs) -> None:
        """Set the fitted attributes."""
        subspace, best = runs.subspace, runs.refined[runs.best]
        constant = subspace.log_constant
        self.parameters_ = in_data_coordinates(subspace, best)
        self.runs_ = [
            Run(
                run.log_likelihood + constant,
                run.n_iter,
                run.converged,
                run.reason,
                orthogonality_deviation(in_data_coordinates(subspace, run).mixing),
            )
            for run in runs.refined
        ]
        self.history_ = [value + constant for value in best.history]
        self.log_likelihood_ = best.log_likelihood + constant
        self.n_iter_ = best.n_iter
        self.converged_ = best.converged
        if self.verbose:
            for number, run in enumerate(self.runs_):
                print_run(number, run.log_likelihood, run.n_iter, run.reason)

    # ---- what was found ----

    @property
    def unmixing_(self) -> Array:
        return self._fitted().unmixing

    @property
    def noise_covariance_(self) -> Array:
        parameters = self._fitted()
        outside = np.eye(parameters.n_features) - parameters.mixing @ parameters.unmixing
        return parameters.residual_variance * outside

    # ---- using it ----

    def transform(self, X) -> np.ndarray:
        """The sources, shape (n_samples, n_components)."""
        parameters = self._fitted()
        X = self._validate(X, reset=False)
        sources = (X - parameters.offset) @ parameters.unmixing.T
        return sources.astype(X.dtype, copy=False)

    def score_samples(self, X) -> Array:
        """Log density of each sample."""
        return self.posterior(X).log_evidence

    def posterior(self, X) -> SourcePosterior:
        """The sources with the probabilities of their components, and the log density."""
        parameters = self._fitted()
        return parameters.posterior(self._validate(X, reset=False).astype(np.float64, copy=False))

    @property
    def n_parameters(self) -> int:
        """Free numbers of the fitted model."""
        parameters = self._fitted()
        H, D, K = parameters.n_latents, parameters.n_features, parameters.prior.n_components
        outside = D - H
        each = 1 if self.densities == "laplacian" else 3 * K - 2  # its mean, or its density
        return D * H + each * H + outside + (outside > 0)


def _most_likely(runs: list[NoiseFreeRun], number: int) -> list[NoiseFreeRun]:
    return sorted(runs, key=lambda run: -run.log_likelihood)[:number]


def _interrupted(runs: list[NoiseFreeRun]) -> bool:
    return any(run.reason == "interrupted" for run in runs)


def start_densities(n_runs: int, n_sources: int, n_components: int, rng: Generator) -> Prior:
    """Densities of three kinds in turn: skewed, bimodal, heavy-tailed; for n_runs x n_sources."""
    K = n_components
    shape = (n_runs, n_sources, K)
    signs = rng.choice([-1.0, 1.0], (n_runs, n_sources, 1))
    kind = np.arange(n_runs)[:, None, None] % 3
    heavy = heavy_tailed(1, K)
    spread = np.select([kind == 0, kind == 1], [0.5, 1.0], 0.0)
    means = signs * spread * np.linspace(-1, 1, K)
    variances = np.select(
        [kind == 0, kind == 1],
        [np.broadcast_to(np.geomspace(0.3, 1.5, K), shape), np.full(shape, 0.5)],
        np.broadcast_to(heavy.variances[0], shape),
    )
    return Prior(
        np.full((n_runs * n_sources, K), 1 / K), means.reshape(-1, K), variances.reshape(-1, K)
    )


def in_data_coordinates(subspace: Subspace, run: NoiseFreeRun) -> NoiseFreeParameters:
    """Parameters of the data: the spike has mean 0, the slabs have a mean square of 1 (one slab: a
    variance of 1).
    """
    prior, shift = run.prior.spike_first()
    mixing = subspace.unwhitening @ np.linalg.inv(run.matrix)
    offset = subspace.mean + mixing @ shift
    factor = 1 / replace(DENSITIES, n_slabs=prior.n_components - 1).canonical_scale(prior)
    return NoiseFreeParameters(
        mixing / factor, offset, prior.scaled(factor), subspace.residual_variance
    )
