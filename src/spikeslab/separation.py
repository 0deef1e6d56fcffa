"""Source separation: from a mixture to its sources, and how far to trust them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array

from ._arrays import Array
from ._checks import check_choice, check_integer, check_jobs
from ._estimator import SparseCodingEstimator, pool, threads
from .candidates import (
    NOISE_FLOOR,
    NOISE_FREE,
    NOISE_FREE_LAPLACIAN,
    ORTHOGONAL,
    Candidate,
    FittedModel,
    Mixture,
    NoiseFree,
    fit_noise_free,
    fit_noisy,
    fit_spike_and_slab,
    reordered,
)
from .checkpoint import Checkpoint, digest
from .maximise import Result
from .metrics import orthogonality_deviation
from .parameters import Parameters
from .prior import Prior

METHODS = ("auto", "noise_free", "orthogonal", "noisy")
SELECTIONS = ("likelihood", "orthogonality")

_MOST_NOISY = 24  # sources that exact inference serves
_AFFORDABLE = 3e7  # state visits an E-step of the search may take where nobody asked for them
_MANY_RUNS = 40  # what a histogram of orthogonality needs
_BIN = 5.0  # degrees, of that histogram
_NEARLY_AS_LIKELY = 0.05  # nats per sample; runs that were stopped early lag behind by less
_SMALLEST = 3e-6  # channel, relative to the largest


@dataclass(frozen=True)
class SeparationProgress:
    """What a callback of `separate` is told. A callback that returns True ends the run."""

    stage: str
    run: int
    n_runs: int
    iteration: int
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class SeparationRun:
    """One fit that took part in the choice.

    Attributes
    ----------
    family : str
        Which kind of model, such as "noise-free" or "shared prior".
    n_sources : int
    log_likelihood : float
        Per sample, as a density of the data: comparable between all families. Of long data most
        runs see a part only, and this is of that part; the best run of each family has seen all.
    criterion : float
        Log-likelihood of all samples less the number of parameters (half of AIC, negative): the
        highest among the best runs of each family is chosen, of those with so many sources. Numbers
        of sources are compared by BIC.
    n_iter : int
    converged : bool
    reason : str
        Why it stopped: "converged", "max_iter", "callback"; "no noise" where the noise of a model
        with noise has vanished. All but the best run of a family may be stopped early.
    noise_variance : float
    orthogonality_deviation : float
        Largest deviation from 90 degrees between two columns of the mixing matrix, with whitened
        channels.
    history : sequence of float
        Log-likelihood per sample after every iteration.
    mixing : array of shape (D, H)
    admissible : bool
        False where a model with noise found none, or one without noise leaves some over: it does
        not compete.
    best : bool
        It stands for its family.
    chosen : bool
    """

    family: str
    n_sources: int
    log_likelihood: float
    criterion: float
    n_iter: int
    converged: bool
    reason: str
    noise_variance: float
    orthogonality_deviation: float
    history: Sequence[float]
    mixing: Array
    admissible: bool = True
    best: bool = False
    chosen: bool = False


@dataclass(frozen=True, eq=False)
class Reliability:
    """How far to trust each source; arrays of shape (H,).

    Attributes
    ----------
    agreement : array
        How similar the source's direction is in the other restarts of the chosen model that are
        nearly as likely (in all of them, where none is): mean absolute cosine of whitened columns,
        0 to 1. NaN where there was one run.
    activation : array
        Probability that the source is active: neither in its spike nor in a component that the
        noise drowns, so that it might as well be one.
    posterior_std : array
        Root mean square of the posterior standard deviation, relative to the source's own.
    """

    agreement: Array
    activation: Array
    posterior_std: Array


@dataclass(frozen=True, eq=False)
class Separation:
    """What `separate` found.

    Attributes
    ----------
    sources : array of shape (N, H)
        Posterior means of the sources, ordered by their share of the mixture's variance.
    mixing : array of shape (D, H)
        The mixture is ``model.mean_ + sources @ mixing.T`` and noise. Of each column the entry of
        the largest size is positive.
    model : GaussianSparseCoding or NoiseFreeSparseCoding
        Fitted: `model.transform` separates new data in the same way.
    method : str
        "noise_free", "orthogonal" or "noisy".
    noise_variance : float
        Of each channel.
    prior : Prior
        Densities of the sources.
    reliability : Reliability
    runs : tuple of SeparationRun
        All fits that took part, of all kinds of models.
    data : array of shape (N, D)
        The mixture.
    settings : dict
        Arguments that give this result again.
    seconds : float
    """

    sources: Array
    mixing: Array
    model: FittedModel
    method: str
    noise_variance: float
    prior: Prior
    reliability: Reliability
    runs: tuple[SeparationRun, ...]
    data: np.ndarray
    settings: dict[str, Any]
    seconds: float

    def to_report(
        self, path: str | os.PathLike[str], *, rate: int | None = None, title: str | None = None
    ) -> None:
        """Write a self-contained HTML report; with the sampling `rate` of audio, with players.

        Needs the extra ``spikeslab[app]``.
        """
        from .report import write_report

        write_report(self, path, rate=rate, title=title)

    def __repr__(self) -> str:
        n_samples, n_channels = self.data.shape
        trust = self.reliability
        noise = f"noise variance {self.noise_variance:.3g}" if self.noise_variance else "no noise"
        chosen = next(run for run in self.runs if run.chosen)
        lines = [
            f"Separation of {self.sources.shape[1]} sources from {n_channels} channels of "
            f"{n_samples} samples",
            f"  model: {chosen.family} ({self.method}), {noise}, log-likelihood "
            f"{chosen.log_likelihood:.4f} per sample",
            "  source  share of variance  active  agreement  posterior std",
        ]
        power = (self.mixing**2).sum(axis=0) * self.sources.var(axis=0)
        shares = power / self.data.var(axis=0, dtype=np.float64).sum()
        rows = zip(shares, trust.activation, trust.agreement, trust.posterior_std, strict=True)
        for number, (share, active, agreement, deviation) in enumerate(rows, start=1):
            lines.append(
                f"  {number:6d}  {share:17.1%}  {active:6.2f}  {agreement:9.2f}  {deviation:13.2f}"
            )
        return "\n".join(lines)


def separate(
    X: ArrayLike,
    n_sources: int | str = "auto",
    method: str = "auto",
    *,
    select: str = "likelihood",
    n_init: int | None = None,
    n_jobs: int | None = None,
    random_state=None,
    callback: Callable[[SeparationProgress], object] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Separation:
    """Find the sources of a linear mixture, with or without noise.

    Several kinds of models are fitted by exact maximum likelihood, from several starts each, as
    densities of the same data; the highest log-likelihood less the number of parameters decides.

    Parameters
    ----------
    X : array of shape (N, D)
        The mixture: samples (time) by channels.
    n_sources : int or "auto"
        Number of sources; more than channels needs noise in the model. "auto" chooses it by BIC,
        among the best models of 1 source to as many as channels; with noise, of as many as exact
        inference affords (12 for long data, some more for short).
    method : {"auto", "noise_free", "orthogonal", "noisy"}
        "auto" compares models with and without noise. "orthogonal" is without noise too, a rotation
        of the whitened channels.
    select : {"likelihood", "orthogonality"}
        How to choose among the restarts. "orthogonality" is the rule of the paper's GSC-perp: of
        many runs of the spike-and-slab model those with the most orthogonal columns are kept, up to
        the minimum behind the first cluster of the histogram of their deviations; the most likely
        of these is returned.
    n_init : int, optional
        Restarts of each kind of model.
    n_jobs : int, optional
        Threads for long data, -1 for all processors.
    random_state : int, RandomState instance or None
        Pass an int for reproducible results.
    callback : callable, optional
        Called with a `SeparationProgress` after every iteration; returning True ends that run.
    checkpoint : path, optional
        File in which what was found so far is kept every ten seconds: fits with noise after every
        iteration, those without when they have ended. After a crash, a kill or Ctrl-C the same call
        goes on from the file and ends, on the same machine, with the same result, bit for bit. The
        file stays; delete it to start anew. A file of other data, arguments (but for `n_jobs` and
        `callback`) or version of the library is refused.

    Returns
    -------
    Separation

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab import separate
    >>> rng = np.random.default_rng(0)
    >>> sources = rng.laplace(size=(1000, 2))
    >>> X = sources @ [[1.0, 0.5], [0.3, 1.0]] + 0.1 * rng.standard_normal((1000, 2))
    >>> found = separate(X, 2, random_state=0)
    >>> similarity = np.abs(np.corrcoef(found.sources.T, sources.T)[:2, 2:])
    >>> bool(similarity.max(axis=0).min() > 0.98)
    True
    """
    begun = time.perf_counter()
    X = check_mixture(X)
    n_channels = X.shape[1]
    check_choice("method", method, METHODS)
    check_choice("select", select, SELECTIONS)
    if n_init is not None:
        check_integer("n_init", n_init, 1)
        n_init = int(n_init)
    check_jobs(n_jobs)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if isinstance(n_sources, str):
        check_choice("n_sources", n_sources, ("auto",))
    else:
        check_integer("n_sources", n_sources, 1)
        n_sources = int(n_sources)
        _check_number(n_sources, n_channels, method, select)
    if select == "orthogonality" and method in ("noise_free", "orthogonal"):
        raise ValueError(
            f"select='orthogonality' chooses among runs with noise, got method={method!r}; "
            "give method='noisy' or 'auto'"
        )
    again = random_state is not None
    if not isinstance(random_state, Integral):  # a number of its own, to get this result again
        random_state = _draw(random_state)
    settings = {
        "n_sources": n_sources,
        "method": method,
        "select": select,
        "n_init": n_init,
        "random_state": int(random_state),
    }
    kept: AbstractContextManager[Checkpoint | None] = nullcontext()
    if checkpoint is not None:
        depends_on = settings | {"random_state": settings["random_state"] if again else None}
        kept = Checkpoint(checkpoint, depends_on | {"data": digest(X)}, settings)

    def tell(told) -> object:
        assert callback is not None
        return callback(SeparationProgress(*told))

    with pool(threads(n_jobs)) as executor, kept as runs:
        if runs is not None:
            settings = dict(runs.drawn)
        rng = np.random.default_rng(_draw(settings["random_state"]))
        mixture = Mixture(X, rng, executor, tell if callback is not None else None, runs)
        search = _Search(mixture, method, select, n_init)
        best = search.number() if isinstance(n_sources, str) else search.fit(n_sources)
    model, attempt = best.model, best.attempts[best.best]
    order, signs = _arrangement(best.parameters.mixing, best.parameters.prior)
    model.parameters_ = reordered(best.parameters, order, signs)
    return Separation(
        sources=model.transform(X),
        mixing=model.mixing_,
        model=model,
        method=_method(best),
        noise_variance=attempt.noise_variance or best.noise_variance,
        prior=model.parameters_.prior,
        reliability=_reliability(mixture, best, model),
        runs=search.runs(best),
        data=X,
        settings=settings,
        seconds=time.perf_counter() - begun,
    )


def _draw(random_state) -> int:
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


load_model = SparseCodingEstimator.load


def orthogonality_threshold(deviations: Sequence[float]) -> float:
    """Where the first cluster of the histogram of deviations from orthogonality ends, in degrees.

    The paper shows this rule for "the most orthogonal runs" by an arrow. Here: with bins of 5
    degrees, climb from the first run to the first peak and go down behind it for as long as the
    counts fall; the threshold is the lower edge of the last bin reached if that is empty, else its
    upper edge.

    Examples
    --------
    >>> from spikeslab.separation import orthogonality_threshold
    >>> orthogonality_threshold([3, 4, 6, 7, 8, 12, 33, 41, 44])
    15.0
    """
    counts, edges = np.histogram(deviations, bins=np.arange(0.0, 90.0 + _BIN, _BIN))
    at = int(np.argmax(counts > 0))
    while at + 1 < len(counts) and counts[at + 1] >= counts[at]:
        at += 1
    while at + 1 < len(counts) and counts[at + 1] < counts[at]:
        at += 1
    return float(edges[at] if counts[at] == 0 else edges[at + 1])


def check_mixture(X: ArrayLike) -> np.ndarray:
    """The mixture as a float array; refuses what cannot be separated with a sentence."""
    if np.ndim(X) == 1:
        raise ValueError(
            f"X has shape {np.shape(X)}, which is one channel: separation needs samples by "
            "channels, and at least two of these"
        )
    X = np.asarray(
        check_array(X, dtype=[np.float64, np.float32], ensure_min_samples=2, input_name="X")
    )
    n_samples, n_channels = X.shape
    if n_channels == 1:
        raise ValueError("X has one channel: separation needs at least two")
    if n_samples <= n_channels:
        raise ValueError(
            f"X has {n_samples} samples of {n_channels} channels: separation needs more "
            "samples than channels; transpose X if its rows are channels"
        )
    spread = np.ptp(X, axis=0)
    silent = np.flatnonzero(spread == 0)
    if len(silent):
        raise ValueError(f"channel {silent[0] + 1} is silent: all its values are the same")
    centred = X - X.mean(axis=0, dtype=np.float64)
    deviation = centred.std(axis=0)
    if deviation.min() < _SMALLEST * deviation.max():
        small, large = int(deviation.argmin()) + 1, int(deviation.argmax()) + 1
        raise ValueError(
            f"channel {small} is {deviation.max() / deviation.min():.0e} times smaller than "
            f"channel {large}: bring the channels to comparable scales first"
        )
    correlation = centred / np.linalg.norm(centred, axis=0)
    correlation = correlation.T @ correlation
    similarity = np.abs(np.triu(correlation, 1))
    a, b = np.unravel_index(np.argmax(similarity), similarity.shape)
    if similarity[a, b] > 1 - 1e-12:
        raise ValueError(f"channels {a + 1} and {b + 1} are identical but for scale: drop one")
    rank = int((np.linalg.eigvalsh(correlation) > 1e-12).sum())
    if rank < n_channels:
        raise ValueError(
            f"the {n_channels} channels of {n_samples} samples have only rank {rank}: reduce them "
            f"to {rank} first, for example by sklearn.decomposition.PCA"
        )
    return X


def _check_number(n_sources: int, n_channels: int, method: str, select: str) -> None:
    if n_sources > n_channels:
        if method in ("noise_free", "orthogonal"):
            raise ValueError(
                f"n_sources={n_sources}, but without noise there can be no more sources than "
                f"channels, and X has {n_channels}; give method='noisy'"
            )
        if select == "orthogonality":
            raise ValueError(
                f"n_sources={n_sources}: more columns than the {n_channels} channels cannot be "
                "orthogonal; give select='likelihood'"
            )
    needs_noise = method == "noisy" or select == "orthogonality" or n_sources > n_channels
    if n_sources > _MOST_NOISY and needs_noise:
        raise ValueError(
            f"n_sources={n_sources}: exact inference with noise visits 2^{n_sources} combinations "
            f"of sources and serves at most {_MOST_NOISY}; give method='noise_free'"
        )


class _Search:
    """The candidates fitted so far, and the choice among them."""

    def __init__(self, mixture: Mixture, method: str, select: str, n_init: int | None) -> None:
        self.mixture, self.method, self.select, self.n_init = mixture, method, select, n_init
        self._noisy: list[Candidate] = []
        self._noise_free: dict[int, list[Candidate]] = {}  # by number of sources

    def fit(self, n_sources: int) -> Candidate:
        """The best candidate with a given number of sources."""
        mixture, method = self.mixture, self.method
        n_channels = mixture.data.shape[1]
        if self.select == "orthogonality":
            return self._most_orthogonal(n_sources)
        tried: list[Candidate] = []
        if method != "noisy" and n_sources <= n_channels:
            tried += self.noise_free(n_sources)
        if (
            method == "noisy"
            or n_sources > n_channels
            or (method == "auto" and self._affordable(n_sources))
        ):
            noise_free = NoiseFree(*tried) if tried else None
            noisy = fit_noisy(mixture, n_sources, noise_free, self.n_init)
            self._noisy += noisy
            tried = [*tried, *noisy]
        admissible = [candidate for candidate in tried if self.admissible(candidate)] or tried
        return max(admissible, key=self.criterion)

    def noise_free(self, n_sources: int) -> list[Candidate]:
        """The candidates without noise."""
        if n_sources not in self._noise_free:
            kinds = {NOISE_FREE: 12, NOISE_FREE_LAPLACIAN: 3}
            if self.method == "orthogonal":
                kinds = {ORTHOGONAL: 12}
            self._noise_free[n_sources] = [
                fit_noise_free(self.mixture, n_sources, kind, self.n_init or n_init)
                for kind, n_init in kinds.items()
            ]
        return self._noise_free[n_sources]

    def _most_orthogonal(self, n_sources: int) -> Candidate:
        """The most likely of the most orthogonal runs of the paper's model."""

        def choose(results: list[Result]) -> int:
            deviations = [self._deviation(result.parameters.mixing) for result in results]
            most = orthogonality_threshold(deviations)
            kept = [i for i, deviation in enumerate(deviations) if deviation <= most]
            return max(kept, key=lambda i: results[i].log_likelihood)

        n_runs = self.n_init or _MANY_RUNS
        candidate = fit_spike_and_slab(self.mixture, n_sources, n_runs, choose=choose)
        self._noisy.append(candidate)
        return candidate

    def number(self) -> Candidate:
        """The best candidate of any number of sources up to that of the channels.

        Models without noise are fitted for all of them; from the best of these the number goes up,
        or else down, for as long as that is better. So the models with noise, whose cost doubles
        with every source, are fitted for few. As many as channels are always tried: where all
        directions vary as much, nothing leads there.
        """
        noisy = self.method == "noisy" or self.select == "orthogonality"
        numbers = [
            n
            for n in range(1, self.mixture.data.shape[1] + 1)
            if n == 1 or not noisy or self._affordable(n)
        ]
        guides = [max(map(self._evidence, self.noise_free(n))) for n in numbers]
        begin = numbers[int(np.argmax(guides))]
        fitted = {n: self.fit(n) for n in {begin, numbers[-1]}}

        def better(n_sources: int, than: int) -> bool:
            if n_sources not in numbers:
                return False
            if n_sources not in fitted:
                fitted[n_sources] = self.fit(n_sources)
            return self._evidence(fitted[n_sources]) > self._evidence(fitted[than])

        at = begin
        for way in (1, -1):
            while better(at + way, than=at):
                at += way
            if at != begin:
                break
        return max(fitted.values(), key=self._evidence)

    def _affordable(self, n_sources: int) -> bool:
        """Whether nobody need ask for a model with noise and so many sources to get one."""
        visits = 2.0**n_sources * self.mixture.n_search
        return n_sources <= _MOST_NOISY and visits <= _AFFORDABLE

    def criterion(self, candidate: Candidate) -> float:
        """Log-likelihood of all samples less the number of parameters (half of AIC, negative)."""
        return candidate.log_likelihood * len(self.mixture.data) - candidate.n_parameters

    def _evidence(self, candidate: Candidate) -> float:
        """What decides about the number of sources: half of BIC, negative."""
        n_samples = len(self.mixture.data)
        penalty = candidate.n_parameters * np.log(n_samples) / 2
        return float(candidate.log_likelihood * n_samples - penalty)

    def admissible(self, candidate: Candidate) -> bool:
        """Noise belongs into a model with noise, and nowhere else."""
        least = 2 * NOISE_FLOOR * self.mixture.variance
        if candidate.noisy:
            return candidate.noise_variance > least
        return candidate.noise_variance <= least

    def runs(self, best: Candidate) -> tuple[SeparationRun, ...]:
        """Records of everything that took part in the choice."""
        guides_only = self.method == "noisy" or self.select == "orthogonality"
        noise_free = [] if guides_only else list(chain(*self._noise_free.values()))
        n_samples = len(self.mixture.data)
        return tuple(
            SeparationRun(
                family=candidate.family,
                n_sources=candidate.n_sources,
                log_likelihood=attempt.log_likelihood,
                criterion=attempt.log_likelihood * n_samples - candidate.n_parameters,
                n_iter=attempt.n_iter,
                converged=attempt.converged,
                reason=attempt.reason,
                noise_variance=attempt.noise_variance,
                orthogonality_deviation=self._deviation(attempt.mixing),
                history=attempt.history,
                mixing=attempt.mixing,
                admissible=self.admissible(candidate),
                best=number == candidate.best,
                chosen=candidate is best and number == candidate.best,
            )
            for candidate in [*noise_free, *self._noisy]
            for number, attempt in enumerate(candidate.attempts)
        )

    def _deviation(self, mixing: Array) -> float:
        return orthogonality_deviation(self.mixture.whitened(mixing))


def _method(candidate: Candidate) -> str:
    if candidate.noisy:
        return "noisy"
    return "orthogonal" if candidate.family == ORTHOGONAL else "noise_free"


def _arrangement(mixing: Array, prior: Prior) -> tuple[np.ndarray, Array]:
    """Order of the sources by their share of the variance, and signs that make the largest entry
    of each column positive.
    """
    order = np.argsort(-(mixing**2).sum(axis=0) * prior.variance, kind="stable")
    columns = mixing[:, order]
    largest = columns[np.abs(columns).argmax(axis=0), np.arange(len(order))]
    return order, np.where(largest < 0, -1.0, 1.0)


def _reliability(mixture: Mixture, candidate: Candidate, model: FittedModel) -> Reliability:
    columns = mixture.whitened(model.mixing_)
    columns = columns / np.linalg.norm(columns, axis=0)
    others = [a for number, a in enumerate(candidate.attempts) if number != candidate.best]
    least = candidate.log_likelihood - _NEARLY_AS_LIKELY
    near = [attempt for attempt in others if attempt.log_likelihood >= least]
    similarities = []
    for attempt in near or others:
        other = mixture.whitened(attempt.mixing)
        norms = np.linalg.norm(other, axis=0)
        other = other / np.where(norms > 0, norms, 1.0)
        similarities.append(np.abs(columns.T @ other).max(axis=1))
    n_sources = columns.shape[1]
    agreement = np.mean(similarities, axis=0) if similarities else np.full(n_sources, np.nan)
    deviation = np.zeros(n_sources)
    if isinstance(model.parameters_, Parameters):
        deviation = mixture.posterior_deviation(model.parameters_)
    own = np.sqrt(model.parameters_.prior.variance)
    return Reliability(
        agreement,
        _activation(model, candidate.noise_variance),
        deviation / np.where(own > 0, own, 1.0),
    )


def _activation(model: FittedModel, noise_variance: float) -> Array:
    prior = model.parameters_.prior
    power = (model.mixing_**2).sum(axis=0)[:, None] * (prior.variances + prior.means**2)
    heard = power > noise_variance
    heard[:, 0] = False
    return (prior.weights * heard).sum(axis=1)
