"""What all estimators share: attributes, files and scikit-learn's conventions."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ._arrays import Array
from ._checks import check_integer
from .parameters import load_arrays, refusing, save_arrays


@dataclass(frozen=True)
class Run:
    """One restart.

    Attributes
    ----------
    log_likelihood : float
        Per sample.
    n_iter : int
    converged : bool
    reason : str
        Why it stopped: "converged", "max_iter", "callback" or "interrupted".
    orthogonality_deviation : float
        Largest deviation from 90 degrees between two columns of the mixing matrix.
    """

    log_likelihood: float
    n_iter: int
    converged: bool
    reason: str
    orthogonality_deviation: float


class StoredEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A transformer into latents, whose `parameters_` go to a file and back.

    A subclass names the class of its `parameters_`, and says what else of a fit is kept.
    """

    _learned: ClassVar[Any]  # the class of parameters_, which has `arrays` and `from_arrays`

    parameters_: Any
    history_: list[float]
    n_features_in_: int
    feature_names_in_: np.ndarray  # where there are names

    def _record(self) -> dict[str, Any]:
        """What a file holds of the fit beside arrays: plain values."""
        raise NotImplementedError

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Set the fitted attributes from what `_record` and `arrays` gave."""
        self.parameters_ = self._learned.from_arrays(arrays)
        self.history_ = arrays["history"].tolist()
        self.n_features_in_ = self.parameters_.n_features
        if "feature_names" in arrays:
            self.feature_names_in_ = arrays["feature_names"].astype(object)

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to an .npz file (no pickle). It appears whole or not at all.

        Constructor arguments that are not plain values (a callback, given starting arrays, a
        RandomState) are not kept.
        """
        save_arrays(path, "model", self.arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a fitted model that `save` wrote."""
        arrays = load_arrays(path, "model")
        with refusing(path):
            return cls.from_arrays(arrays)

    def arrays(self) -> dict[str, np.ndarray]:
        """The fitted model as named arrays: what a file holds."""
        arrays: dict[str, np.ndarray] = self._fitted().arrays()
        arguments = {name: _plain_argument(value) for name, value in self.get_params().items()}
        record = {
            "estimator": type(self).__name__,
            "parameters": {n: value for n, value in arguments.items() if value is not _UNSAVED},
            **self._record(),
        }
        arrays["record"] = np.array(json.dumps(record, default=_plain))
        arrays["history"] = np.array(self.history_)
        if hasattr(self, "feature_names_in_"):
            arrays["feature_names"] = np.array(self.feature_names_in_, dtype=str)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        record = json.loads(str(arrays["record"]))
        arguments, written_by = record["parameters"], record["estimator"]
        known = {kind.__name__: kind for kind in (cls, *cls.__subclasses__())}
        if written_by not in known:
            raise ValueError(f"it holds a {written_by}, not a {cls.__name__}")
        model = known[written_by](**arguments)
        model._restore(record, arrays)
        return model

    # ---- fitting ----

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """A fit that fails leaves the estimator as it was."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    # ---- scikit-learn ----

    def _fitted(self) -> Any:
        check_is_fitted(self, "parameters_")
        return self.parameters_

    @property
    def _n_features_out(self) -> int:
        return self.parameters_.n_latents

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "parameters_")


class SparseCodingEstimator(StoredEstimator):
    """Samples are ``mean_ + mixing_ @ x`` and perhaps noise, with sparse latents x.

    A subclass has a constructor, `fit`, `transform`, `score_samples` and `n_parameters`, and names
    the class of its `parameters_`.
    """

    _takes_missing: ClassVar[bool] = False  # whether NaN in X means something

    # fitted attributes that are set together
    log_likelihood_: float
    n_iter_: int
    converged_: bool
    runs_: list[Run]
    n_samples_seen_: int  # where there is a partial_fit

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "runs": [asdict(run) for run in self.runs_],
            "n_iter": self.n_iter_,
            "log_likelihood": self.log_likelihood_,
            "converged": self.converged_,
        }
        if hasattr(self, "n_samples_seen_"):
            record["n_samples_seen"] = self.n_samples_seen_
        return record

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._restore(record, arrays)
        self.runs_ = [Run(**run) for run in record["runs"]]
        self.n_iter_ = record["n_iter"]
        self.log_likelihood_ = record["log_likelihood"]
        self.converged_ = record["converged"]
        if "n_samples_seen" in record:
            self.n_samples_seen_ = record["n_samples_seen"]

    # ---- what was found ----

    @property
    def mixing_(self) -> Array:
        """The mixing matrix, shape (n_features, n_components)."""
        return self._fitted().mixing

    @property
    def components_(self) -> Array:
        return self._fitted().mixing.T

    @property
    def activation_(self) -> Array:
        return self._fitted().prior.activation

    @property
    def slab_mean_(self) -> Array:
        return self._fitted().prior.slab_mean

    @property
    def mean_(self) -> Array:
        return self._fitted().offset

    # ---- using it ----

    def inverse_transform(self, X) -> np.ndarray:
        """Data that latents X of shape (n_samples, n_components) stand for: ``mean_ + X @
        components_``.
        """
        parameters = self._fitted()
        X = check_array(X, dtype=[np.float64, np.float32])
        if X.shape[1] != parameters.n_latents:
            raise ValueError(
                f"X has {X.shape[1]} columns, but the model has {parameters.n_latents} components"
            )
        return (X @ parameters.mixing.T + parameters.offset).astype(X.dtype, copy=False)

    def score_samples(self, X) -> Array:
        raise NotImplementedError

    def score(self, X, y=None) -> float:
        """Mean log density of the samples; y is ignored."""
        return float(self._scores(X).mean())

    def _scores(self, X) -> Array:
        """Log density of the samples that count."""
        return self.score_samples(X)

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw data of shape (n_samples, n_features) and their latents from the model."""
        parameters = self._fitted()
        check_integer("n_samples", n_samples, 1)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return parameters.sample(int(n_samples), np.random.default_rng(seed))

    def aic(self, X) -> float:
        """Akaike's information criterion; lower is better."""
        return -2 * float(self.score_samples(X).sum()) + 2 * self.n_parameters

    def bic(self, X) -> float:
        """Bayesian information criterion; lower is better."""
        scores = self._scores(X)
        return -2 * float(scores.sum()) + self.n_parameters * float(np.log(len(scores)))

    @property
    def n_parameters(self) -> int:
        raise NotImplementedError

    # ---- fitting ----

    def _warn_if_cut_short(self, reason: str) -> None:
        if reason == "max_iter":
            warnings.warn(
                f"not converged after max_iter={self.max_iter} iterations; "
                "raise max_iter or tol, or look at history_",
                ConvergenceWarning,
                stacklevel=3,
            )

    # ---- scikit-learn ----

    def _validate(self, X, *, reset: bool) -> np.ndarray:
        return validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_min_samples=1 + reset,
            ensure_all_finite="allow-nan" if self._takes_missing else True,
        )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def threads(n_jobs: int | None) -> int:
    """The number of threads that n_jobs asks for."""
    if n_jobs is None:
        return 1
    if n_jobs == -1:
        return os.cpu_count() or 1
    return int(n_jobs)


def pool(n_threads: int) -> AbstractContextManager[ThreadPoolExecutor | None]:
    """Where so many threads work; None for the one that asks."""
    return ThreadPoolExecutor(n_threads) if n_threads > 1 else nullcontext()


_UNSAVED = object()


def _plain_argument(value: Any) -> Any:
    """A constructor argument as JSON can hold it."""
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value) if all(isinstance(item, str) for item in value) else _UNSAVED
    return _UNSAVED


def _plain(value: Any):
    """JSON for NumPy's scalars."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {value!r} to a model file")


def print_run(number: int, log_likelihood: float, n_iter: int, reason: str) -> None:
    print(f"run {number}: {log_likelihood:.6f}, {n_iter} iterations, {reason}")
