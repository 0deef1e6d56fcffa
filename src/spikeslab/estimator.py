"""GaussianSparseCoding, the scikit-learn estimator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Event
from time import perf_counter
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from ._arrays import Array, as_array
from ._checks import check_bool, check_choice, check_integer, check_jobs, check_real
from ._estimator import Run, SparseCodingEstimator, pool, print_run, threads
from .blocks import ArrayRows, Rows, Survey, open_rows, refuse
from .checkpoint import Checkpoint, Digest, Journal, digest
from .initialise import STARTS, data_start, observed_covariance
from .m_step import LEARNABLE, Model
from .maximise import Progress, Result, maximise
from .metrics import orthogonality_deviation
from .missing import REFUSED, InferenceWithMissing, informative
from .noise import NOISES
from .online import Batch, Online, begin, maximise_online, step
from .parameters import Parameters
from .posterior import Posterior
from .prior import PriorFamily
from .statistics import EStep, Expectation, Statistics, block_points, block_slices
from .truncated import TruncatedInference, check_truncation

_DEFAULT_COMPONENTS = 8
_MOST_EXACT_STATES = 1 << 14  # for inference="auto"
_ANNEAL_FROM = 0.3  # of the mean variance
_ANNEAL_ITERATIONS = 100
_SAMPLE = 5000  # samples that are fitted in full before a pass in batches


class GaussianSparseCoding(SparseCodingEstimator):
    """Gaussian Sparse Coding: a spike-and-slab latent variable model fitted by exact maximum
    likelihood.

    Every sample is ``y = mean_ + mixing_ @ x + e`` with Gaussian noise ``e`` and sparse latents
    ``x``: each is exactly zero with probability ``1 - activation_[h]``, and Gaussian otherwise. The
    posterior over all combinations of active latents is computed in closed form, so the likelihood
    is exact and never falls during the fit. With many latents the sum is over the most plausible
    combinations, and the likelihood a lower bound.

    NaN in the data is an entry that was not observed. Everything is then about the observed
    entries, exactly, and `impute` predicts the others. Rows without any are ignored.

    Parameters
    ----------
    n_components : int, default=None
        Number of latents H. None means as many as features, at most 8. The cost of exact inference
        doubles with every latent, and 24 is its limit; truncated inference takes hundreds.
    noise : {"isotropic", "diagonal", "full"}, default="isotropic"
        Covariance of the noise.
    slab_mean : bool, default=False
        Learn the mean of each active latent instead of 0. For skewed sources.
    spike : {"hard", "soft"}, default="hard"
        A soft spike is a narrow Gaussian of learned width instead of exactly zero.
    n_slabs : int, default=1
        Gaussians that an active latent is a mixture of. More than one fits heavy tails.
    shared_prior : bool, default=False
        One prior for all latents: fewer parameters for few or very noisy data.
    inference : {"auto", "exact", "truncated"}, default="auto"
        Over which combinations of active latents posteriors are summed: all of them, or for each
        sample those in which all but `n_free` latents are as in a locally most probable one. Then
        likelihoods are lower bounds. "auto" is exact up to 16384 combinations (14 latents with one
        slab).
    n_free : int, default=None
        Latents that are free for each sample in truncated inference; the cost doubles with each.
        None means 8.
    max_active : int, default=None
        Most latents that are active at once in the combination that truncated inference starts
        from. None means 16.
    init : {"pca", "random", "data"}, array of shape (n_components, n_features) or Parameters, \
default="pca"
        Where to start: a random rotation of the principal subspace, the paper's random draw,
        samples of high energy as components (for dictionaries of many components), the given
        components, or the given parameters. All but given parameters are drawn anew in each of the
        `n_init` runs.
    n_init : int, default=5
        Number of runs; the one with the highest likelihood is kept.
    max_iter : int, default=1000
        Iterations of a run.
    tol : float, default=1e-7
        A run has converged when three iterations in a row gain less than this per sample.
    accelerate : bool, default=True
        Quasi-Newton EM, which needs a small fraction of the iterations; False is the paper's plain
        EM.
    batch_size : int, default=None
        Samples in a batch of online EM, for very many samples: a fit of a few thousand samples is
        refined in passes over all data, whose statistics forget what they learned from earlier
        parameters. `max_iter` and `tol` then are about passes. None means every iteration looks at
        all data, which is exact.
    min_noise : float, default=1e-4
        Least noise variance, relative to the mean variance of the features.
    anneal : "auto", bool or int, default="auto"
        Let the least noise variance fall to `min_noise` over the first 100 (or the given number of)
        iterations, which avoids poor optima at low noise. "auto" does so when starting from "pca"
        with at most as many latents as features.
    to_learn : collection of {"components", "prior", "noise", "mean"}, default=None
        Parameters to learn, the others keeping their initial values; that of the mean is the mean
        of the data. None means all.
    warm_start : bool, default=False
        Start from the result of the previous fit.
    n_jobs : int, default=None
        Threads: for the runs, or with a single run for blocks of samples. None means 1, -1 all
        processors.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results.
    callback : callable, default=None
        Called with a `Progress` after every iteration; returning True ends that run.
    verbose : int, default=0
        1 prints a line for every run, 2 also one for every tenth iteration.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The generating directions, one a row; ``mixing_`` is its transpose. An active latent has
        unit variance (several slabs: unit mean square).
    activation_ : array of shape (n_components,)
        Probability that a latent is active.
    slab_mean_ : array of shape (n_components,)
        Mean of a latent when it is active.
    mean_ : array of shape (n_features,)
        The offset.
    noise_covariance_ : array of shape (n_features, n_features)
    parameters_ : Parameters
        All of these, with the full prior.
    log_likelihood_ : float
        Per sample, of the training data.
    bound_ : bool
        Whether inference is truncated, so that this and all other likelihoods are lower bounds.
    history_ : list of float
        Log-likelihood per sample after every iteration of the best run.
    n_iter_ : int
        Iterations of the best run.
    converged_ : bool
    runs_ : list of Run
        One record for every run.
    n_samples_seen_ : int
        Samples that the parameters were learned from.

    References
    ----------
    J. Lücke and A.-S. Sheikh, "Closed-form EM for sparse coding and its application to source
    separation", LVA/ICA 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab import GaussianSparseCoding
    >>> rng = np.random.default_rng(0)
    >>> sources = rng.standard_normal((500, 2)) * (rng.random((500, 2)) < 0.3)
    >>> X = sources @ [[1.0, 1.0], [1.0, -1.0]] + 0.1 * rng.standard_normal((500, 2))
    >>> model = GaussianSparseCoding(n_components=2, random_state=0).fit(X)
    >>> model.activation_.round(1)
    array([0.3, 0.3])
    >>> model.transform(X).shape
    (500, 2)
    """

    _learned = Parameters
    _takes_missing = True
    parameters_: Parameters
    n_samples_seen_: int = 0
    _online: tuple[Array, Online] | None = None  # the shift of the data, and what was learned

    def __init__(
        self,
        n_components: int | None = None,
        *,
        noise: str = "isotropic",
        slab_mean: bool = False,
        spike: str = "hard",
        n_slabs: int = 1,
        shared_prior: bool = False,
        inference: str = "auto",
        n_free: int | None = None,
        max_active: int | None = None,
        init: str | ArrayLike | Parameters = "pca",
        n_init: int = 5,
        max_iter: int = 1000,
        tol: float = 1e-7,
        accelerate: bool = True,
        batch_size: int | None = None,
        min_noise: float = 1e-4,
        anneal: str | bool | int = "auto",
        to_learn=None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state=None,
        callback: Callable[[Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.noise = noise
        self.slab_mean = slab_mean
        self.spike = spike
        self.n_slabs = n_slabs
        self.shared_prior = shared_prior
        self.inference = inference
        self.n_free = n_free
        self.max_active = max_active
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.accelerate = accelerate
        self.batch_size = batch_size
        self.min_noise = min_noise
        self.anneal = anneal
        self.to_learn = to_learn
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    # ---- fitting ----

    def fit(self, X, y=None, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Fit the model to samples X of shape (n_samples, n_features); y is ignored.

        X may be larger than memory: a memory map, a zarr or HDF5 array or anything else of two
        dimensions that is read by slicing, a list of blocks or an object that yields them whenever
        it is iterated over, or a Dask array, whose blocks are worked on where they are.

        After Ctrl-C the best parameters so far are kept, and KeyboardInterrupt is raised on.

        With `checkpoint`, the path of a file, all runs are kept there every ten seconds. After a
        crash, a kill or Ctrl-C the same call goes on from the file and ends, on the same machine,
        at the same parameters, bit for bit, as if nothing had happened. The file stays: once the
        fit has ended, the same call returns its result at once; delete it to fit anew. A file of
        other data, arguments (but for `n_jobs`, `callback` and `verbose`), starting parameters or
        version of the library is refused.
        """
        with self._unchanged_on_error():
            model = self._model()
            rows = self._rows(X, reset=True)
            survey = _survey(rows)
            mean, covariance = self._moments(rows, survey)
            variance = covariance.trace() / len(mean)
            if not variance > 0:
                raise ValueError(
                    "X is constant: there is nothing to explain; give data that varies"
                )
            seeds = self._seeds()
            with (
                self._checkpoint(checkpoint, rows, model, seeds)
                if checkpoint is not None
                else nullcontext()
            ) as kept:
                if kept is not None:
                    seeds = kept.drawn["seeds"]
                starts = self._starts(model, rows, mean, covariance, seeds)
                results = self._run_all(model, rows, mean, starts, seeds, variance, kept)
            if not any(result.history for result in results):
                raise KeyboardInterrupt
            best = max(results, key=lambda result: result.log_likelihood)
        self.keep(results, mean, best)
        self.n_samples_seen_, self._online = survey.n, None
        if any(result.reason == "interrupted" for result in results):
            raise KeyboardInterrupt
        self._warn_if_cut_short(best.reason)
        return self

    def _moments(self, rows: Rows, survey: Survey) -> tuple[Array, Array]:
        """Mean and covariance of the data, as far as they are observed."""
        if (survey.observed == survey.n).all():
            mean = survey.y / survey.n
            return mean, Expectation(rows, "full", mean).yy / survey.n
        if self.noise == "full":
            raise ValueError(REFUSED)
        if not survey.observed.all():
            column = int(np.argmin(survey.observed))
            names = getattr(self, "feature_names_in_", None)
            named = "" if names is None else f" ({names[column]!r})"
            raise ValueError(
                f"column {column}{named} of X has no observed value; leave it out: nothing can be "
                "learned about it"
            )
        mean = survey.y / survey.observed
        return mean, observed_covariance(rows, mean)

    def partial_fit(self, X, y=None) -> Self:
        """Learn from one more batch of samples; y is ignored.

        The first batch is fitted like any other data, and should have some hundred samples. Each
        further one is a step of online EM: it enters running statistics, with a weight that falls
        with the number of samples seen. `log_likelihood_` and `history_` then are of the batches,
        each before it was learned from.
        """
        if not hasattr(self, "parameters_"):
            return self.fit(X)
        with self._unchanged_on_error():
            model = self._model()
            rows = self._rows(X, reset=False)
            _survey(rows)
            old = self.parameters_
            _check_start(old, model, self.n_components, old.n_features)
            shift, state = self._online or (
                old.offset,
                begin(old.shifted(-old.offset), self.n_samples_seen_),
            )
            floor = self.min_noise * state.statistics.variance / old.n_features
            begun = perf_counter()
            with pool(threads(self.n_jobs)) as executor:
                batch = Expectation(rows, model.noise, shift, executor, self._infer)
                state, total = step(model, state, batch, floor, expand=bool(self.accelerate))
            self.parameters_ = model.canonical(state.parameters).shifted(shift)
            self._online = shift, state
            n_rows = rows.shape[0]
            self.n_samples_seen_ = self.n_samples_seen_ + n_rows
            self.n_iter_ = self.n_iter_ + 1
            self.log_likelihood_ = total / n_rows
            self.history_ = [*self.history_, self.log_likelihood_]
            if self.callback is not None:
                rate = n_rows / (perf_counter() - begun)
                told = self.log_likelihood_, self.parameters_
                self.callback(Progress(0, self.n_iter_, *told, points_per_second=rate))
        return self

    def keep(self, results: list[Result], mean: Array, best: Result) -> None:
        """Set the fitted attributes from the best of the runs on data less its mean."""
        self.parameters_ = best.parameters.shifted(mean)
        self.history_ = best.history
        self.runs_ = [
            Run(
                result.log_likelihood,
                result.n_iter,
                result.converged,
                result.reason,
                orthogonality_deviation(result.parameters.mixing),
            )
            for result in results
        ]
        self.log_likelihood_ = best.log_likelihood
        self.n_iter_ = best.n_iter
        self.converged_ = best.converged

    def _model(self) -> Model:
        """Check all constructor arguments that do not depend on the data."""
        check_choice("noise", self.noise, NOISES)
        check_choice("spike", self.spike, ("hard", "soft"))
        check_choice("inference", self.inference, ("auto", "exact", "truncated"))
        for name in ("n_free", "max_active"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        for name in ("slab_mean", "shared_prior", "accelerate", "warm_start"):
            check_bool(name, getattr(self, name))
        if self.n_components is not None:
            check_integer("n_components", self.n_components, 1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        for name in ("n_slabs", "n_init", "max_iter"):
            check_integer(name, getattr(self, name), 1)
        check_real("tol", self.tol, 0.0)
        check_real("min_noise", self.min_noise, 0.0, above=True)
        if isinstance(self.anneal, str) or not isinstance(self.anneal, (bool, np.bool_)):
            if isinstance(self.anneal, str):
                check_choice("anneal", self.anneal, ("auto",))
            else:
                check_integer("anneal", self.anneal, 0)
        if isinstance(self.init, str):
            check_choice("init", self.init, (*STARTS, "data"))
        check_jobs(self.n_jobs)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {self.callback!r}")
        learn = LEARNABLE
        if self.to_learn is not None:
            if isinstance(self.to_learn, str):
                raise TypeError(f"to_learn must be a collection of names, got {self.to_learn!r}")
            learn = tuple(self.to_learn)
            for name in learn:
                check_choice("to_learn", name, LEARNABLE)
        family = PriorFamily(
            n_slabs=self.n_slabs,
            soft_spike=self.spike == "soft",
            slab_means=bool(self.slab_mean),
            shared=bool(self.shared_prior),
        )
        return Model(family, self.noise, frozenset(learn))

    def _given(self) -> str | ArrayLike | Parameters:
        """What the fit starts from."""
        previous = getattr(self, "parameters_", None) if self.warm_start else None
        return self.init if previous is None else previous

    def _seeds(self) -> list[int]:
        """Of the runs; one from given parameters needs none, unless it draws batches."""
        given = isinstance(self._given(), Parameters)
        n_seeds = int(self.batch_size is not None) if given else self.n_init
        random = check_random_state(self.random_state)
        return random.randint(np.iinfo(np.int32).max, size=n_seeds).tolist()

    def _checkpoint(
        self, path: str | os.PathLike[str], rows: Rows, model: Model, seeds: list[int]
    ) -> Checkpoint:
        """The file of a fit, with all that its outcome depends on."""
        settings = self.get_params()
        for name in ("callback", "init", "n_jobs", "verbose", "warm_start"):
            del settings[name]
        settings["to_learn"] = sorted(model.learn)
        settings["random_state"] = None if self.random_state is None else seeds
        settings["data"] = rows.total(Digest.of, block_points(rows.shape[1], 1)).value
        given = self._given()
        if isinstance(given, Parameters):
            given = digest(*given.arrays().values())
        elif not isinstance(given, str):
            given = digest(as_array("init", given, (None, None)))
        settings["start"] = given
        return Checkpoint(path, settings, {"seeds": seeds})

    def _starts(
        self, model: Model, rows: Rows, mean: Array, covariance: Array, seeds: list[int]
    ) -> list[Callable[[], Parameters]]:
        """One start for each run, made when it is its turn."""
        n_features = len(mean)
        n_components = self.n_components or min(n_features, _DEFAULT_COMPONENTS)
        given = self._given()
        if isinstance(given, Parameters):
            _check_start(given, model, n_components if self.n_components else None, n_features)
            self._check_truncation(given.prior.weights.shape)
            return [lambda: given.shifted(-mean)]
        components = None
        if not isinstance(given, str):
            components = as_array("init", given, (self.n_components, n_features))
            n_components = len(components)
        self._check_truncation((n_components, model.prior.n_components))

        def make(seed: int) -> Parameters:
            rng = np.random.default_rng(seed)
            if isinstance(given, str) and given == "data":
                return data_start(model, rows, mean, covariance, n_components, rng)
            start = STARTS[given if isinstance(given, str) else "pca"]
            drawn = start(model, covariance, n_components, rng)
            if components is None:
                return drawn
            return Parameters(components.T.copy(), drawn.offset, drawn.prior, drawn.noise)

        return [partial(make, seed) for seed in seeds]

    def _run_all(
        self,
        model: Model,
        rows: Rows,
        mean: Array,
        starts: list[Callable[[], Parameters]],
        seeds: list[int],
        variance: float,
        checkpoint: Checkpoint | None,
    ) -> list[Result]:
        n_jobs = threads(self.n_jobs)
        side_by_side = n_jobs > 1 and len(starts) > 1
        submitted, stop = Event(), Event()

        def report(progress: Progress) -> bool:
            if stop.is_set():
                raise KeyboardInterrupt
            if self.verbose > 1 and progress.iteration % 10 == 0:
                print(_line(progress))
            return self.callback is not None and bool(self.callback(progress))

        floor = self.min_noise * variance

        def journal(run: int | str) -> Journal | None:
            return None if checkpoint is None else checkpoint.journal(str(run))

        def maximum(number: int, data: Expectation, callback, journal) -> Result:
            start = starts[number]()
            anneal = self._anneal_iterations(start)
            return maximise(
                data,
                start,
                model,
                method="quasi-newton" if self.accelerate else "em",
                noise_floor=floor,
                anneal_from=_ANNEAL_FROM * variance if anneal else 0.0,
                anneal_iterations=anneal,
                max_iter=self.max_iter,
                tol=self.tol,
                callback=callback,
                run=number,
                journal=journal,
            )

        def in_batches(number: int, data: Expectation, size: int) -> Result:
            """A sample's maximum, refined in passes over all data."""

            def of(batch: Rows) -> Expectation:
                return Expectation(batch, model.noise, mean, data.executor, self._infer)

            def statistics_of(batch: Rows, parameters: Parameters) -> Statistics:
                return of(batch)(parameters)

            def batches(iteration: int) -> Iterator[Batch]:
                rng = np.random.default_rng((seeds[number], iteration))
                for batch in rows.batches(size, rng):
                    yield partial(
                        statistics_of, batch
                    )  # nothing is done for those that are skipped
                    if stop.is_set():
                        raise KeyboardInterrupt

            def unless_stopped(progress: Progress) -> None:
                if stop.is_set():
                    raise KeyboardInterrupt

            n_sample = min(max(size, _SAMPLE), rows.shape[0])
            sample = next(rows.batches(n_sample, np.random.default_rng((seeds[number], 0))))
            found = maximum(number, of(sample), unless_stopped, journal(f"sample of {number}"))
            if found.reason == "interrupted":
                return found
            refined = maximise_online(
                batches,
                data,
                found.parameters,
                model,
                noise_floor=floor,
                n_points=rows.shape[0],
                n_seen=n_sample,
                expand=bool(self.accelerate),
                max_iter=self.max_iter,
                tol=self.tol,
                callback=report,
                run=number,
                journal=journal(number),
            )
            if not refined.history:  # interrupted in the first pass
                refined = replace(found, reason="interrupted")
            return refined

        def run(number: int, data: Expectation) -> Result:
            submitted.wait()  # Ctrl-C before would lose the run that was just being submitted
            size = self.batch_size
            if size is None:
                result = maximum(number, data, report, journal(number))
            else:
                result = in_batches(number, data, size)
            if self.verbose:
                print_run(number, result.log_likelihood, result.n_iter, result.reason)
            return result

        with pool(n_jobs) as executor:
            blocks_on = None if side_by_side else executor
            data = Expectation(rows, model.noise, mean, blocks_on, self._infer)
            if side_by_side and executor is not None:
                futures: list[Future[Result]] = []
                try:
                    futures += (executor.submit(run, i, data) for i in range(len(starts)))
                    submitted.set()
                    return [future.result() for future in futures]
                except BaseException as error:
                    stop.set()
                    submitted.set()
                    if not isinstance(error, KeyboardInterrupt):
                        raise
                    results = [future.result() for future in futures if not future.cancel()]
                    for result in results:
                        result.reason = "interrupted"
                    return results
            submitted.set()
            results = []
            for i in range(len(starts)):
                results.append(run(i, data))
                if results[-1].reason == "interrupted":
                    break
            return results

    def _anneal_iterations(self, start: Parameters) -> int:
        anneal = self.anneal
        if isinstance(anneal, str):
            drawn = isinstance(self.init, str) and self.init == "pca"
            warm = self.warm_start and hasattr(self, "parameters_")
            anneal = drawn and not warm and start.n_latents <= start.n_features
        if isinstance(anneal, (bool, np.bool_)):
            return _ANNEAL_ITERATIONS if anneal else 0
        return int(anneal)

    # ---- what was found ----

    @property
    def noise_covariance_(self) -> Array:
        return self._fitted().noise.covariance

    # ---- using it ----

    def transform(self, X) -> np.ndarray:
        """Posterior mean of the latents, shape (n_samples, n_components)."""
        step, rows = self._e_step(), self._rows(X, reset=False)
        dtype = np.float32 if rows.dtype == np.float32 else np.float64
        return rows.each(step.latents, step.points, (self.parameters_.n_latents,), dtype)

    def impute(self, X, *, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """X with its missing entries (NaN) filled in.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        return_std : bool, default=False
            Return also how sure.

        Returns
        -------
        filled : array of shape (n_samples, n_features)
            Observed entries as they are, the others by their mean given the observed ones of their
            row; in rows without any that is the mean of the model.
        std : array of shape (n_samples, n_features)
            Standard deviations of the missing entries, their noise included; 0 for observed ones.
        """
        parameters = self._fitted()
        X = self._validate(X, reset=False)
        check_bool("return_std", return_std)
        inference = self._infer(parameters.shifted(-parameters.offset))
        filled, std = X.copy(), np.zeros_like(X)
        for rows in block_slices(X.shape, inference.n_states):
            block = np.subtract(X[rows], parameters.offset, dtype=np.float64)
            missing = np.isnan(block)
            some = missing.any(axis=1)
            mean, variance = inference.predict(block[some])
            where = missing[some]
            at = np.nonzero(missing)
            filled[rows][at] = (mean + parameters.offset)[where]
            std[rows][at] = np.sqrt(variance[where])
        return (filled, std) if return_std else filled

    def score_samples(self, X) -> Array:
        """Log density of what is observed of each sample; a lower bound, where inference is
        truncated (`bound_`).
        """
        step, rows = self._e_step(), self._rows(X, reset=False)
        return rows.each(step.log_evidence, step.points, (), np.float64)

    def _scores(self, X) -> Array:
        step, rows = self._e_step(), self._rows(X, reset=False)
        count = np.asarray(rows.each(informative, step.points, (), bool))
        if not count.any():
            raise ValueError("X has no observed value: there is nothing to score")
        return np.asarray(rows.each(step.log_evidence, step.points, (), np.float64))[count]

    def posterior(self, X) -> Posterior:
        """The posterior of the latents of X: activation probabilities, covariance, supports,
        samples.
        """
        parameters = self._fitted()
        X = self._validate(X, reset=False)
        centred = np.subtract(X, parameters.offset, dtype=np.float64)
        return Posterior(parameters.shifted(-parameters.offset), centred, self._infer)

    @property
    def n_parameters(self) -> int:
        """Free numbers of the fitted model."""
        return self._model().n_parameters(self._fitted())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.noise != "full"
        return tags

    @property
    def bound_(self) -> bool:
        shape = self._fitted().prior.weights.shape
        return _truncates(self.inference, shape) and self._check_truncation(shape)[0] < shape[0]

    def _check_truncation(self, shape: tuple[int, int]) -> tuple[int, int]:
        if not _truncates(self.inference, shape):
            return shape[0], shape[0]
        return check_truncation(self.n_free, self.max_active, shape[0])

    @property
    def _infer(self) -> Callable[[Parameters], InferenceWithMissing | TruncatedInference]:
        """What makes the posterior of given parameters; it may travel to other processes."""
        return partial(_infer, self.inference, self.n_free, self.max_active)

    def _e_step(self) -> EStep:
        parameters = self._fitted()
        return EStep(parameters.shifted(-parameters.offset), parameters.offset, self._infer)

    def _rows(self, X, *, reset: bool) -> Rows:
        """The rows of X, which may be more than fits in memory."""
        rows = open_rows(X)
        if rows is None:
            return ArrayRows(self._validate(X, reset=reset))
        n_rows, n_features = rows.shape
        if n_rows < 1 + reset or not n_features:
            raise ValueError(
                f"X has {n_rows} rows and {n_features} columns, but at least {1 + reset} and 1 "
                "are needed"
            )
        if rows.dtype.kind not in "biuf":
            raise ValueError(f"X must hold real numbers, got {rows.dtype}")
        if reset:
            self.n_features_in_ = n_features
            self.__dict__.pop("feature_names_in_", None)
        elif n_features != self.n_features_in_:
            raise ValueError(
                f"X has {n_features} features, but the model was fitted to {self.n_features_in_}"
            )
        return rows


def _check_start(
    start: Parameters, model: Model, n_components: int | None, n_features: int
) -> None:
    expected = {
        "features": (start.n_features, n_features),
        "components": (start.n_latents, n_components or start.n_latents),
        "slabs": (start.prior.n_components - 1, model.prior.n_slabs),
        "noise": (start.noise.kind, model.noise),
    }
    for what, (got, wanted) in expected.items():
        if got != wanted:
            raise ValueError(
                f"the starting parameters have {what} {got!r}, but {wanted!r} is wanted"
            )


def _truncates(inference: str, shape: tuple[int, int]) -> bool:
    """Whether inference is truncated for a prior of shape (H, K)."""
    n_latents, n_components = shape
    few = n_latents * np.log2(n_components) <= np.log2(_MOST_EXACT_STATES)
    return inference == "truncated" or (inference == "auto" and not few)


def _infer(
    inference: str, n_free: int | None, max_active: int | None, parameters: Parameters
) -> InferenceWithMissing | TruncatedInference:
    if _truncates(inference, parameters.prior.weights.shape):
        return TruncatedInference(parameters, n_free, max_active)
    return InferenceWithMissing(parameters)


def _survey(rows: Rows) -> Survey:
    """One look at all data, refusing what is not finite."""
    survey = rows.total(Survey.of, block_points(rows.shape[1], 1))
    refuse(survey.bad)
    return survey


def _line(progress: Progress) -> str:
    return f"run {progress.run}, iteration {progress.iteration}: {progress.log_likelihood:.6f}"
