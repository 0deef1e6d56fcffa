"""ClasswiseSparseCoding, the estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ._arrays import Array, as_array
from ._checks import check_choice, check_integer, check_jobs, check_real
from ._estimator import StoredEstimator, pool, threads
from .blocks import add_up, row_slices
from .class_m_step import BACKGROUNDS, Pull, class_m_step
from .class_statistics import ClassInference, ClassStatistics, Clean
from .classes import ClassParameters
from .truncated import TruncatedInference, check_truncation

_BLOCK = 1024  # points that are looked at together
_FREE_TO_SCORE = 2  # latents, for deciding about classes
_FORGETTING = 0.6  # a step counts (step + 2)^-this at least

# The start: points are divided by their energy for some steps, quiet classes with few active
# latents, loud ones with many.
_GUIDED_STEPS, _GUIDED = 10, 0.9
_FEW_ACTIVE, _ONE_CLASS, _MANY_ACTIVE = 0.5, 2.0, 8.0

_NOISE_FLOOR = 1e-4  # of the mean variance
_NOISE_START = 0.5


class ClassProgress(NamedTuple):
    """Given to the callback after every step."""

    step: int  # from 1
    n_steps: int
    bound: float  # per point, of this step's points with the parameters before it
    parameters: ClassParameters


T = TypeVar("T")


class ClasswiseSparseCoding(StoredEstimator):
    """Sparse coding with classes of samples that share one dictionary.

    A class has its own probabilities and variances of the latents, and a dense Gaussian background
    of its own: what is smooth, what has edges and what is textured are told apart, while all use
    the same directions. Given its class a sample follows the model of `GaussianSparseCoding`. With
    one class and no background it is that model. (It is a class of its own, as `GaussianMixture` is
    beside `FactorAnalysis`: what else `GaussianSparseCoding` can do is not for classes of samples.)

    Parameters
    ----------
    n_components : int, default=64
        Number of latents H.
    n_classes : int, default=8
    background : {"none", "isotropic", "full"}, default="none"
        Covariance of each class's background. It can be told from noise only if `noise_variance` is
        given.
    noise_variance : float, default=None
        Variance of the white noise; None learns it.
    n_free : int, default=8
        Latents that inference leaves free for each sample; the cost doubles with each. Where there
        are no more latents inference is exact.
    max_active : int, default=16
        Most latents that are found active in a sample.
    n_steps : int, default=90
    batch_size : int or None, default=4096
        Samples of a step, which is combined with those before it; None takes all samples each time.
    pull : float, default=1.0
        Strength of the light regularisation toward what the classes have in common and toward
        small backgrounds; 0 is maximum likelihood, 1 right for independent samples. Where samples
        repeat each other, as overlapping patches do, so many as count for one.
    n_jobs : int, default=None
        Threads for blocks of samples; the result does not depend on it. None means 1, -1 all
        processors.
    random_state : int, RandomState instance or None, default=None
    callback : callable, default=None
        Called with a `ClassProgress` after every step; returning True ends the fit.

    Attributes
    ----------
    parameters_ : ClassParameters
        Of the samples less `mean_`.
    components_ : array of shape (n_components, n_features)
    mean_ : array of shape (n_features,)
        Of the data.
    history_ : list of float
        Lower bound on the log-likelihood per sample, step by step.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab import ClasswiseSparseCoding
    >>> rng = np.random.default_rng(0)
    >>> texture = rng.standard_normal((500, 6)) * np.repeat([[0], [2]], 250, axis=0)
    >>> noisy = texture + rng.standard_normal((500, 6))
    >>> model = ClasswiseSparseCoding(
    ...     4, 2, background="isotropic", noise_variance=1.0, random_state=0
    ... ).fit(noisy)
    >>> clean, variance = model.clean(noisy)
    >>> bool(np.mean((clean - texture) ** 2) < 0.6 * np.mean((noisy - texture) ** 2))
    True
    """

    _learned = ClassParameters
    parameters_: ClassParameters
    mean_: Array

    def __init__(
        self,
        n_components: int = 64,
        n_classes: int = 8,
        *,
        background: str = "none",
        noise_variance: float | None = None,
        n_free: int = 8,
        max_active: int = 16,
        n_steps: int = 90,
        batch_size: int | None = 4096,
        pull: float = 1.0,
        n_jobs: int | None = None,
        random_state=None,
        callback: Callable[[ClassProgress], object] | None = None,
    ) -> None:
        self.n_components = n_components
        self.n_classes = n_classes
        self.background = background
        self.noise_variance = noise_variance
        self.n_free = n_free
        self.max_active = max_active
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.pull = pull
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback

    # ---- fitting ----

    def fit(self, X, y=None) -> Self:
        """Fit the model to samples X of shape (n_samples, n_features); y is ignored."""
        with self._unchanged_on_error():
            self._check()
            X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
            with pool(threads(self.n_jobs)) as executor:
                self._fit(X, executor)
        return self

    def _fit(self, X: Array, executor: Executor | None) -> None:
        rng = np.random.default_rng(
            check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        )
        mean = X.mean(axis=0)
        X = X - mean
        mean_square = float(np.mean(X**2))
        if self.noise_variance is None and mean_square == 0:
            raise ValueError(
                "X is constant: there is nothing to learn noise_variance from; give it"
            )
        parameters = self._start(X, self.noise_variance or _NOISE_START * mean_square, rng)
        guide = _by_energy(X, self.n_classes)
        learn = partial(
            class_m_step,
            background=self.background,
            noise_floor=None if self.noise_variance else _NOISE_FLOOR * mean_square,
            pull=Pull().scaled(self.pull),
        )
        batches = _batches(len(X), self.batch_size or len(X), rng)
        kept: ClassStatistics | None = None
        history = []
        for step in range(1, self.n_steps + 1):
            rows = next(batches)
            q = guide[rows] if step <= _GUIDED_STEPS else None
            new = (len(X) / len(rows)) * self._statistics(parameters, X[rows], q, executor)
            history.append(new.bound / len(X))
            share = max((step + 1) ** -_FORGETTING, len(rows) / len(X))
            kept = new if kept is None else (1 - share) * kept + share * new
            parameters = learn(parameters, kept)
            if self.callback is not None and self.callback(
                ClassProgress(step, self.n_steps, history[-1], parameters.canonical())
            ):
                break
        self.parameters_, self.mean_, self.history_ = parameters.canonical(), mean, history

    def _check(self) -> None:
        for name in ("n_components", "n_classes", "n_steps"):
            check_integer(name, getattr(self, name), 1)
        check_jobs(self.n_jobs)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        check_choice("background", self.background, BACKGROUNDS)
        check_real("pull", self.pull, 0.0)
        if self.noise_variance is not None:
            check_real("noise_variance", self.noise_variance, 0.0, above=True)
        elif self.background != "none":
            raise ValueError(
                f"background={self.background!r} can be told from noise only if noise_variance is "
                "given"
            )
        self._truncation()

    def _truncation(self) -> tuple[int, int]:
        for name in ("n_free", "max_active"):
            check_integer(name, getattr(self, name), 1)
        H = self.n_components
        return check_truncation(min(self.n_free, H), min(self.max_active, H), H)

    def _start(self, X: Array, noise_variance: float, rng: np.random.Generator) -> ClassParameters:
        """Directions are samples, loud ones rather than quiet ones, with the noise's part of their
        energy taken off.
        """
        (N, D), H, R = X.shape, self.n_components, self.n_classes
        energy = np.einsum("nd,nd->n", X, X)
        signal = np.maximum(energy - D * noise_variance, 1e-6 * energy.mean() + 1e-300)
        drawn = rng.choice(N, H, replace=N < H, p=signal / signal.sum())
        kept = np.maximum(1 - D * noise_variance / np.maximum(energy[drawn], 1e-300), 0.1)
        active = np.geomspace(_FEW_ACTIVE, _MANY_ACTIVE, R) if R > 1 else np.array([_ONE_CLASS])
        return ClassParameters(
            X[drawn].T * np.sqrt(kept),
            np.full(R, 1 / R),
            np.repeat(np.minimum(active / H, 0.5)[:, None], H, axis=1),
            np.ones((R, H)),
            np.zeros((R, D, D)),
            noise_variance,
        )

    def _statistics(
        self, parameters: ClassParameters, X: Array, q: Array | None, executor: Executor | None
    ) -> ClassStatistics:
        infer = self._inference(parameters).statistics
        if q is None:
            return add_up(_in_blocks(infer, executor, X))
        return add_up(_in_blocks(infer, executor, X, q))

    def _inference(self, parameters: ClassParameters) -> ClassInference:
        free, active = self._truncation()
        return ClassInference(
            parameters,
            partial(TruncatedInference, n_free=free, max_active=active),
            partial(
                TruncatedInference, n_free=min(free, _FREE_TO_SCORE), max_active=active, n_moves=0
            ),
        )

    # ---- using it ----

    @property
    def components_(self) -> Array:
        return self._fitted().mixing.T

    def transform(self, X) -> Array:
        """Posterior mean of the latents, shape (n_samples, n_components)."""
        return np.concatenate(self._each(self._inference(self._fitted()).latents, X))

    def score_samples(self, X) -> Array:
        """Lower bound on the log density of each sample, (n_samples,)."""
        return np.concatenate(self._each(self._inference(self._fitted()).bound, X))

    def score(self, X, y=None) -> float:
        """Its mean over the samples; y is ignored."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X) -> Array:
        """Probabilities of the classes of each sample, (n_samples, n_classes); those below 1/1000
        are 0.
        """
        return np.concatenate(self._each(self._inference(self._fitted()).responsibilities, X))

    def clean(self, X, noise_variance: float | None = None) -> Clean:
        """Posterior mean of the samples without their noise, and its variance summed over the
        features.

        `noise_variance` is that of these samples, where it is not that of the model.
        """
        parameters = self._fitted()
        if noise_variance is not None:
            parameters = parameters.with_noise(noise_variance)
        parts = self._each(self._inference(parameters).clean, X)
        mean, variance = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Clean(mean + self.mean_, variance)

    def _each(self, of: Callable[[Array], T], X) -> list[T]:
        """What `of` says of blocks of samples less the mean."""
        X = validate_data(self, X, reset=False, dtype=np.float64) - self.mean_
        with pool(threads(self.n_jobs)) as executor:
            return list(_in_blocks(of, executor, X))

    # ---- files ----

    def _record(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"mean": self.mean_}

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._restore(record, arrays)
        self.mean_ = as_array("mean", arrays["mean"], (self.n_features_in_,))


def _by_energy(X: Array, n_classes: int) -> Array:
    """Responsibilities (N, R) that favour the class of the sample's rank by energy."""
    ranks = np.einsum("nd,nd->n", X, X).argsort().argsort()
    q = np.full((len(X), n_classes), (1 - _GUIDED) / n_classes)
    q[np.arange(len(X)), ranks * n_classes // len(X)] += _GUIDED
    return q


def _batches(n_points: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows for each step, all of them in the order of the data where they fit."""
    if size >= n_points:
        while True:
            yield np.arange(n_points)
    while True:
        order = rng.permutation(n_points)
        for start in range(0, n_points - size + 1, size):
            yield order[start : start + size]


def _in_blocks(of: Callable[..., T], executor: Executor | None, *arrays: Array) -> Iterator[T]:
    """What `of` says of each block of rows of the arrays, in their order."""
    slices = row_slices(len(arrays[0]), _BLOCK)

    def one(rows: slice) -> T:
        return of(*(array[rows] for array in arrays))

    return map(one, slices) if executor is None else executor.map(one, slices)
