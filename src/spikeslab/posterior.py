"""The exact posterior of the latents for given parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from scipy.linalg.lapack import dtrtrs

from ._arrays import Array
from ._kernel import Observed, Tree
from .parameters import Parameters

# Numbers held at once while states are enumerated: 128 MiB.
_STATE_BLOCK = 1 << 24
# Signal to noise ratio above which the product Sigma^-1 W Lam may cancel.
_STEEP = 1e6
_LOG_2_PI = float(np.log(2 * np.pi))

NOTHING = np.zeros(())  # adds nothing to a sum of any shape


def _regression(mixing: Array, precision: Array, variance: Array) -> Array:
    """The (D, H) matrix Sigma^-1 W Lam, without squaring W's condition number.

    From the QR decomposition of Sigma^-1/2 W V^1/2 on top of the identity.
    """
    sharpness, root = np.sqrt(precision), np.sqrt(variance)
    n_features, n_latents = mixing.shape
    Q, R = np.linalg.qr(np.vstack([sharpness[:, None] * mixing * root, np.eye(n_latents)]))
    return sharpness[:, None] * np.linalg.solve(R, Q[:n_features].T).T * root


def _solve_root(root: Array, M: Array) -> Array:
    return np.asarray(dtrtrs(root, M, lower=1)[0])


class Moments(NamedTuple):
    """Posterior moments of a block of N points. The first three are per point, the last two of
    these only on request.

    Where entries of y are missing their expectations stand for them in `cross`, and are summed in
    `y` and `yy`.
    """

    log_evidence: Array  # (N,), log density of each point
    mean: Array  # (N or 0, H), <x>
    probabilities: Array  # (N or 0, H, K), of the components
    counts: Array  # (H, K), the probabilities summed over the points
    first: Array  # (H, K), <x> where the component is on, summed
    second: Array  # (H, K), <x^2> where the component is on, summed
    outer: Array  # (H, H), <xx'> summed
    cross: Array  # (D, H), y <x>' summed
    y: Array = NOTHING  # (D,), of the missing entries alone, summed
    yy: Array = NOTHING  # what the noise model depends on of their squares, summed


class Supports(NamedTuple):
    """The most probable supports of N points.

    A support says which latents are active, that is, not in their spike.
    """

    active: np.ndarray  # (N, k, H), bool
    probability: Array  # (N, k), in falling order


class LatentInference(Protocol):
    """What the E-step and `Posterior` ask of inference with fixed parameters; `Inference` says what
    each method returns.
    """

    @property
    def n_states(self) -> float: ...
    def log_evidence(self, Y: Array) -> Array: ...
    def moments(self, Y: Array, each: bool = False) -> Moments: ...
    def covariance(self, Y: Array) -> Array: ...
    def supports(self, Y: Array, k: int) -> Supports: ...
    def sample(self, Y: Array, n_samples: int, rng: Generator) -> Array: ...


class Inference:
    """Exact inference with fixed parameters; everything that does not depend on the data is done
    once.

    Densities are computed relative to the *reference state*, in which each latent is in its
    broadest component. It is one Gaussian, whose density comes out as a sum of squares, without the
    cancellation of ``b'Ab - y'y / sigma^2``.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        noise, prior = parameters.noise, parameters.prior
        mixing, offset = parameters.mixing, parameters.offset
        self._root = noise.root
        if self._root is not None:  # whitened, full noise is independent
            mixing = np.ascontiguousarray(_solve_root(self._root, mixing))
            offset = _solve_root(self._root, offset)
        precision = noise.precision
        self._precise_mixing = precise = mixing * precision[:, None]
        self._gram = np.ascontiguousarray(mixing.T @ precise)
        self._tree = Tree(self._gram, prior.weights, prior.means, prior.variances)
        mean, variance, covariance = self._tree.reference()
        n_features, n_latents = mixing.shape
        gain: Array = precise @ covariance
        if n_latents > n_features or (self._gram.diagonal() * variance).max() > _STEEP:
            gain = _regression(mixing, precision, variance)
        self._gain = gain
        self._b0 = -(offset @ precise)
        self._xhat0 = mean - (offset + mixing @ mean) @ gain
        self._observed = Observed(
            self._tree, precise, gain, mixing, offset, precision, self._b0, self._xhat0
        )
        self._log_constant = self._tree.log_constant - (n_features * _LOG_2_PI + noise.log_det) / 2

    @property
    def n_states(self) -> float:
        return self._tree.states

    def _whitened(self, Y: Array) -> Array:
        if self._root is not None:
            Y = _solve_root(self._root, Y.T).T
        return np.ascontiguousarray(Y, dtype=np.float64)

    def _natural(self, Y: Array) -> tuple[Array, Array]:
        """b and the posterior mean under the reference state, both (N, H)."""
        Y = self._whitened(Y)
        return Y @ self._precise_mixing + self._b0, Y @ self._gain + self._xhat0

    def log_evidence(self, Y: Array) -> Array:
        """Log density of each row of Y, (N,)."""
        return self._observed.evidence(self._whitened(Y)) + self._log_constant

    def moments(self, Y: Array, each: bool = False) -> Moments:
        """Posterior moments of the rows of Y; with `each` also per point."""
        log_density, mean, probabilities, sums, outer, cross = self._observed.moments(
            self._whitened(Y), each
        )
        log_density += self._log_constant
        if self._root is not None:
            cross = self._root @ cross
        return Moments(log_density, mean, probabilities, sums[0], sums[1], sums[2], outer, cross)

    def covariance(self, Y: Array) -> Array:
        """Posterior covariance of the latents of each point, (N, H, H)."""
        mean = self.moments(Y, each=True).mean
        return self._tree.second_moments(*self._natural(Y)) - mean[:, :, None] * mean[:, None, :]

    def _states(self) -> np.ndarray:
        """Component numbers of all states, (states, H)."""
        components = np.empty((int(self.n_states), self.parameters.n_latents), np.int8)
        number = np.arange(len(components))
        for latent, values in self._tree.digits():
            number, digit = np.divmod(number, len(values))
            components[:, latent] = np.array(values, np.int8)[digit]
        return components

    def _state_probabilities(self, Y: Array):
        """Blocks (first row, probabilities) of the states' probabilities."""
        rows = max(1, int(_STATE_BLOCK // self.n_states))
        for start in range(0, len(Y), rows):
            _, xhat = self._natural(Y[start : start + rows])
            weights = self._tree.log2_state_weights(xhat)
            weights -= weights.max(axis=1, keepdims=True)
            np.exp2(weights, out=weights)
            weights /= weights.sum(axis=1, keepdims=True)
            yield start, weights

    def supports(self, Y: Array, k: int) -> Supports:
        """The k most probable supports of each point, and their probabilities."""
        patterns, of_state = np.unique(self._states() > 0, axis=0, return_inverse=True)
        of_state = of_state.ravel()
        k = min(k, len(patterns))
        one_to_one = len(patterns) == len(of_state)
        active = np.empty((len(Y), k, self.parameters.n_latents), bool)
        probability = np.empty((len(Y), k))
        for start, weights in self._state_probabilities(Y):
            if one_to_one:
                each = np.empty_like(weights)
                each[:, of_state] = weights
            else:
                each = np.stack(
                    [np.bincount(of_state, row, minlength=len(patterns)) for row in weights]
                )
            best = np.argpartition(-each, k - 1, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(each, best, 1), axis=1, kind="stable")
            best = np.take_along_axis(best, order, 1)
            block = slice(start, start + len(weights))
            active[block] = patterns[best]
            probability[block] = np.take_along_axis(each, best, 1)
        return Supports(active, probability)

    def sample(self, Y: Array, n_samples: int, rng: Generator) -> Array:
        """Draws of the latents from the posterior of each point, (n_samples, N, H)."""
        prior, (N, H) = self.parameters.prior, (len(Y), self.parameters.n_latents)
        b, _ = self._natural(Y)
        states = self._states()
        drawn = np.empty((n_samples, N, H))
        latents = np.arange(H)
        for start, weights in self._state_probabilities(Y):
            edges = np.cumsum(weights, axis=1)
            for i, edge in enumerate(edges, start=start):
                number = np.searchsorted(edge, rng.random(n_samples) * edge[-1], side="right")
                components = states[np.minimum(number, len(edge) - 1)]
                mean = prior.means[latents, components]
                root = np.sqrt(prior.variances[latents, components])
                # x = mean + root u, u ~ N(P^-1 root (b - A mean), P^-1), P = I + root A root = L L'
                precision = np.eye(H) + root[:, :, None] * self._gram * root[:, None, :]
                factor = np.linalg.cholesky(precision)
                pull = root * (b[i] - mean @ self._gram)
                half = np.linalg.solve(factor, pull[:, :, None])
                half += rng.standard_normal((n_samples, H, 1))
                u = np.linalg.solve(factor.transpose(0, 2, 1), half)
                drawn[:, i] = mean + root * u[:, :, 0]
        return drawn


class Posterior:
    """What a fitted model says about the latents of given data; made by
    `GaussianSparseCoding.posterior`.

    Attributes
    ----------
    activation : array of shape (N, H)
        Probability that each latent is active, that is, not in its spike.
    mean : array of shape (N, H)
        Posterior mean of the latents.
    component_probabilities : array of shape (N, H, K)
    log_evidence : array of shape (N,)
        Log density of each point; a lower bound, where inference was truncated.
    """

    def __init__(
        self,
        parameters: Parameters,
        Y: Array,
        infer: Callable[[Parameters], LatentInference] = Inference,
    ) -> None:
        self._inference = infer(parameters)
        self._data = Y
        moments = self._inference.moments(Y, each=True)
        self.mean = moments.mean
        self.component_probabilities = moments.probabilities
        self.activation = moments.probabilities[:, :, 1:].sum(axis=2)
        self.log_evidence = moments.log_evidence

    def covariance(self) -> Array:
        """Posterior covariance of the latents of each point, (N, H, H)."""
        return self._inference.covariance(self._data)

    def supports(self, k: int = 1) -> Supports:
        """The k most probable sets of active latents of each point, and their probabilities."""
        if not isinstance(k, (int, np.integer)) or k < 1:
            raise ValueError(f"k must be a positive whole number, got {k!r}")
        return self._inference.supports(self._data, int(k))

    def sample(self, n_samples: int = 1, random_state=None) -> Array:
        """Draws of the latents, (n_samples, N, H)."""
        if not isinstance(n_samples, (int, np.integer)) or n_samples < 1:
            raise ValueError(f"n_samples must be a positive whole number, got {n_samples!r}")
        rng = np.random.default_rng(random_state)
        return self._inference.sample(self._data, int(n_samples), rng)

    def __repr__(self) -> str:
        n_points, n_latents = self.mean.shape
        return f"<Posterior of {n_latents} latents for {n_points} points>"
