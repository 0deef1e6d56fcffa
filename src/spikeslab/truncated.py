"""Posteriors of many latents: a set of states chosen for every point, and the closed form inside
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.random import Generator
from scipy.linalg import solve_triangular

from ._arrays import Array
from ._checks import check_integer
from ._kernel import Truncated
from .missing import REFUSED, InferenceWithMissing, has_missing, informative, joined
from .noise import NOISES, FullNoise, Noise
from .parameters import Parameters
from .posterior import NOTHING, Moments, Supports
from .prior import Prior
from .truncated_missing import PatternwiseInference, prior_moments, unobserved_density

N_FREE, MAX_ACTIVE = 8, 16
MOST_FREE, MOST_ACTIVE = 20, 64  # what the kernel has room for
_NEVER = 1e-300  # probability of what does not occur
_LOG_2_PI = float(np.log(2 * np.pi))


def check_truncation(n_free: int | None, max_active: int | None, n_latents: int) -> tuple[int, int]:
    """Both numbers checked; None is the default, or all latents where there are fewer."""
    chosen = []
    for name, value, default, most in (
        ("n_free", n_free, N_FREE, MOST_FREE),
        ("max_active", max_active, MAX_ACTIVE, MOST_ACTIVE),
    ):
        if value is None:
            value = min(default, n_latents)
        check_integer(name, value, 1)
        if value > min(n_latents, most):
            limit = f"the number of latents, {n_latents}" if value > n_latents else str(most)
            raise ValueError(f"{name} must be at most {limit}, got {value}")
        chosen.append(int(value))
    return chosen[0], chosen[1]


class _Bases:
    """All latents at their bases, ``N(mean, variance)``: Gaussian noise on top of the model's own.

    Given what the latents have above their bases, z, and data y, they are distributed as ``lift @ z
    + mean + pull @ white y + N(0, covariance)``.
    """

    def __init__(self, parameters: Parameters, mean: Array, variance: Array) -> None:
        mixing, noise = parameters.mixing, parameters.noise
        self.mean, self.offset = mean, parameters.offset + mixing @ mean
        self.hard = not variance.any()
        self.noise: Noise = noise
        if self.hard:
            return
        self.noise = FullNoise(noise.covariance + (mixing * variance) @ mixing.T)
        precise = noise.solve(mixing)
        spread = np.eye(len(mean)) + variance[:, None] * (mixing.T @ precise)
        self.lift = np.linalg.inv(spread)
        self.covariance = self.lift * variance
        self.pull = self.covariance @ precise.T @ self.noise.root

    def whiten(self, rows: Array) -> Array:
        root = self.noise.root
        if root is None:
            return np.ascontiguousarray(rows * np.sqrt(self.noise.precision))
        return np.ascontiguousarray(solve_triangular(root, rows.T, lower=True).T)

    def colour(self, rows: Array) -> Array:
        """The inverse of whitening."""
        root = self.noise.root
        return rows / np.sqrt(self.noise.precision) if root is None else rows @ root.T

    def latents(self, z: Array, white: Array) -> Array:
        """Means of latents (N, H) whose parts above the bases have the means z."""
        if self.hard:
            return z + self.mean if self.mean.any() else z
        return z @ self.lift.T + self.mean + white @ self.pull.T

    def sums(
        self, n: float, z: Array, zz: Array, zy: Array, y: Array, white: Array, weighted: Array
    ) -> tuple[Array, Array, Array]:
        """Sums of x, xx' and white y x' (D, H) from those of z, zz', z y' (H, D) and y; the points
        are given as they are and times their weights.
        """
        mean = self.mean
        if not self.hard:
            yy, lift, pull = weighted.T @ white, self.lift, self.pull
            z, zz = lift @ z, lift @ zz @ lift.T + n * self.covariance + pull @ yy @ pull.T
            half = lift @ zy @ pull.T
            zz = zz + half + half.T
            z, zy = z + pull @ y, lift @ zy + pull @ yy
        if mean.any():
            half = np.outer(z, mean) + n / 2 * np.outer(mean, mean)
            z, zz, zy = z + n * mean, zz + half + half.T, zy + np.outer(mean, y)
        return z, zz, zy.T


def _for_holes(
    parameters: Parameters, n_free: int, max_active: int, n_moves: int
) -> PatternwiseInference | TruncatedInference:
    """What takes points with missing entries where some bases are Gaussians.

    Latents that are always active are turned on by the search, if there is room for them: their
    hard spike, which never occurs, is as good as that with a probability of 1e-300.
    """
    prior = parameters.prior
    unused = (prior.weights == 0) & (prior.variances == 0)
    always = (np.where(prior.weights > 0, prior.variances, np.inf).min(axis=1) > 0)[:, None]
    weights = np.where(always & unused, _NEVER, prior.weights)
    room = max_active + int(always.sum())
    if (always.sum(axis=1) <= unused.sum(axis=1)).all() and room <= MOST_ACTIVE:
        stand_in = replace(parameters, prior=replace(prior, weights=weights))
        return TruncatedInference(stand_in, n_free, min(room, parameters.n_latents), n_moves)
    again = partial(TruncatedInference, n_free=n_free, max_active=max_active, n_moves=n_moves)
    return PatternwiseInference(parameters, again)


class TruncatedInference:
    """Inference in a part of the states, with the methods of `Inference`.

    For every point a search finds a locally most probable set of active latents. The `n_free`
    latents that are easiest to change may be in any state, all others stay as they are in that set;
    the sum over these states is exact. So the evidence is a lower bound on the exact one, and is
    exact with as many free latents as there are latents.

    NaN is an entry that was not observed, with isotropic or diagonal noise: everything is then
    about the observed entries. Each point has the matrices of its own, unless spikes are soft: then
    the points are grouped by what they miss, which takes far longer where everyone misses something
    else.

    Every latent has a *base*, its narrowest component: the spike, unless it is always active. With
    all latents at their bases the data are Gaussian. Relative to that the kernel sees white noise,
    and latents that are zero or in one of their other components.

    Parameters
    ----------
    parameters : Parameters
    n_free : int, optional
        Latents that are free for each point; the cost doubles with each. Default: 8.
    max_active : int, optional
        Most latents that the search turns on. Default: 16.
    n_moves : int
        Additions, removals and exchanges of latents that the search may make after its greedy part.
    """

    def __init__(
        self,
        parameters: Parameters,
        n_free: int | None = None,
        max_active: int | None = None,
        n_moves: int = 2,
    ) -> None:
        self.parameters = parameters
        prior, mixing = parameters.prior, parameters.mixing
        n_latents, n_components = prior.weights.shape
        n_free, max_active = check_truncation(n_free, max_active, n_latents)
        check_integer("n_moves", n_moves, 0)
        base = np.where(prior.weights > 0, prior.variances, np.inf).argmin(axis=1)
        others = np.arange(n_components - 1)
        latents = np.arange(n_latents)
        self._base = at = (latents, base)
        self._slabs = slabs = (latents[:, None], others + (others >= base[:, None]))
        self._bases = bases = _Bases(parameters, prior.means[at], prior.variances[at])
        self._instead = None if bases.hard else _for_holes(parameters, n_free, max_active, n_moves)
        on = prior.weights[slabs] > 0
        with np.errstate(divide="ignore"):
            log_odds = np.log(prior.weights[slabs]) - np.log(prior.weights[at])[:, None]
        shifts = np.where(on, prior.means[slabs] - prior.means[at][:, None], 0.0)
        widths = np.where(on, prior.variances[slabs] - prior.variances[at][:, None], 1.0)
        if n_components == 1:  # the kernel wants a slab: one that never occurs
            log_odds, shifts, widths = (np.full((n_latents, 1), x) for x in (-np.inf, 0.0, 1.0))
        # in units of the broadest slab
        scale = np.sqrt(np.maximum(widths.max(axis=1), 0.0))
        self._scale = scale = np.where(scale > 0, scale, 1.0)
        self._shifts, self._widths = shifts, widths
        white = bases.whiten(mixing.T) * scale[:, None]
        self._kernel = Truncated(
            white,
            white @ white.T,
            log_odds,
            shifts / scale[:, None],
            widths / scale[:, None] ** 2,
            n_free,
            max_active,
            n_moves,
        )
        self._log_constant = (
            np.log(prior.weights[at]).sum() - (len(mixing) * _LOG_2_PI + bases.noise.log_det) / 2
        )
        self._n_free = n_free
        self._n_states = float(n_components**n_free)

    @property
    def n_states(self) -> float:
        """States that are summed over, for each point."""
        return self._n_states

    def _white(self, Y: Array) -> Array:
        """Rows as the kernel takes them, NaN staying what it is."""
        return self._bases.whiten(Y - self._bases.offset)

    def _by_pattern(self, Y: Array) -> PatternwiseInference | TruncatedInference | None:
        """Who answers instead, because points differ in what they miss."""
        if not has_missing(Y):
            return None
        if self.parameters.noise.root is not None:
            raise ValueError(REFUSED)
        return self._instead

    def _density(self, log_ratio: Array, white: Array) -> Array:
        if has_missing(white):
            missing = np.isnan(white)
            log_ratio = log_ratio - unobserved_density(self.parameters, missing)
            white = np.where(missing, 0.0, white)
        return log_ratio - np.einsum("nd,nd->n", white, white) / 2 + self._log_constant

    def log_evidence(self, Y: Array) -> Array:
        """Lower bound on the log density of what is observed of each row of Y, (N,)."""
        if (patternwise := self._by_pattern(Y)) is not None:
            found = patternwise.log_evidence(Y)
        else:
            white = self._white(Y)
            found = self._density(self._kernel.evidence(white), white)
        return np.where(informative(Y), found, 0.0) if has_missing(Y) else found

    def moments(self, Y: Array, each: bool = False, weights: Array | None = None) -> Moments:
        """Posterior moments of the rows of Y; with `each` also per point.

        With `weights` (N,) every point counts that often in the sums; the log evidences are those
        of single points.
        """
        if weights is not None:
            weights = np.ascontiguousarray(weights, np.float64)
        if not has_missing(Y):
            return self._moments(Y, each, weights)
        counted = np.ones(len(Y)) if weights is None else weights
        patternwise = self._by_pattern(Y)
        infer = self._moments if patternwise is None else patternwise.moments
        some = informative(Y)
        if some.all():
            return infer(Y, each, counted)
        rows, empty = np.flatnonzero(some), np.flatnonzero(~some)
        parts = [(empty, prior_moments(self.parameters, counted[empty], each))]
        if len(rows):
            parts.append((rows, infer(Y[rows], each, counted[rows])))
        return joined(parts)

    def _moments(self, Y: Array, each: bool, weights: Array | None) -> Moments:
        prior, scale = self.parameters.prior, self._scale
        n_latents, n_components = prior.weights.shape
        white = self._white(Y)
        log_ratio, z, inner, sums, zz, zy, missing = self._kernel.moments(white, weights, each)
        log_evidence = self._density(log_ratio, white)
        y: Array = NOTHING  # of missing entries, like yy
        yy: Array = NOTHING
        holed = has_missing(white)
        if holed:
            missing = missing[:, : white.shape[1]]
            y, yy = self._missing(np.isnan(white), weights, *missing)
            white = np.nan_to_num(white)
        n, weighted = float(len(white)), white
        if weights is not None:
            n, weighted = float(weights.sum()), white * weights[:, None]
        total = weighted.sum(axis=0)
        if holed:
            total += missing[0]
        used = slice(n_components - 1)
        seen, slope, bend = sums[:, :, used]
        slope, bend = slope / scale[:, None], bend / scale[:, None] ** 2
        x, outer, cross = self._bases.sums(
            n,
            (self._shifts[:, used] * seen + self._widths[:, used] * slope).sum(axis=1),
            (np.tril(zz) + np.tril(zz, -1).T) * scale * scale[:, None],
            zy[:, : white.shape[1]] * scale[:, None],
            total,
            white,
            weighted,
        )
        cross = self._bases.colour(cross.T).T + np.outer(self._bases.offset, x)

        counts, first, second = np.zeros((3, n_latents, n_components))
        m, v = prior.means[self._slabs], prior.variances[self._slabs]
        counts[self._slabs] = seen
        first[self._slabs] = m * seen + v * slope
        second[self._slabs] = m * (m * seen + 2 * v * slope) + v * (v * bend + seen)
        # the rest is the base's
        m, v = prior.means[self._base], prior.variances[self._base]
        rest = n - counts.sum(axis=1)
        counts[self._base] = rest
        first[self._base] = np.where(v > 0, x - first.sum(axis=1), m * rest)
        second[self._base] = np.where(v > 0, outer.diagonal() - second.sum(axis=1), m**2 * rest)

        mean, probabilities = z, np.empty((len(z), n_latents, n_components))
        if each:
            mean = self._bases.latents(z * scale, white)
            probabilities[:, *self._slabs] = inner[:, :, used]
            probabilities[:, *self._base] = 1 - inner[:, :, used].sum(axis=2)
        return Moments(
            log_evidence,
            mean,
            probabilities,
            counts,
            first,
            second,
            outer,
            cross,
            y,
            yy,
        )

    def _missing(
        self, missing: np.ndarray, weights: Array | None, y: Array, squares: Array
    ) -> tuple[Array, Array]:
        """Sums of missing entries and of their squares from those of white ones, (D,) each."""
        count = missing.sum(axis=0) if weights is None else weights @ missing
        c, precision = self._bases.offset, self.parameters.noise.precision
        y = y / np.sqrt(precision)
        squares = c * (c * count + 2 * y) + squares / precision
        product = NOISES[self.parameters.noise.kind].product
        return c * count + y, product(np.ones((len(c), 1)), squares[:, None])

    def predict(self, Y: Array) -> tuple[Array, Array]:
        """Mean and variance of every entry, (N, D) each, were it to be drawn anew from the
        posterior of its row.
        """
        p, noise = self.parameters, self.parameters.noise
        if isinstance(instead := self._by_pattern(Y), TruncatedInference):
            return instead.predict(Y)
        if not self._bases.hard or noise.root is not None:
            x, W = self.moments(Y, each=True).mean, p.mixing
            spread = np.maximum(((W @ self.covariance(Y)) * W).sum(axis=2), 0.0)
            return x @ W.T + p.offset, spread + noise.covariance.diagonal()
        white, variance = self._kernel.predict(self._white(Y))
        mean = self._bases.colour(white) + self._bases.offset
        variance = (variance + 1) / noise.precision
        empty = ~informative(Y)
        mean[empty], variance[empty] = p.mean, p.covariance.diagonal()
        return mean, variance

    def states(self, Y: Array) -> tuple[np.ndarray, np.ndarray]:
        """What is summed over: for each row of Y the best state found, as the component of every
        latent (N, H), and the latents that may leave it, in rising order (N, n_free).
        """
        if (patternwise := self._by_pattern(Y)) is not None:
            return patternwise.states(Y)
        state, free = self._kernel.states(self._white(Y))
        latents, slabs = self._slabs
        choices = np.concatenate([self._base[1][:, None], slabs], axis=1)
        return choices[latents[:, 0], state], free

    def mean_and_spread(self, Y: Array, form: Array) -> tuple[Array, Array, Array]:
        """For each row of Y the lower bound on its log density, the posterior mean of its latents,
        (N, H), and the trace of ``form @ covariance`` of the latents, for a symmetric form (H, H).
        """
        if (patternwise := self._by_pattern(Y)) is not None:
            return patternwise.mean_and_spread(Y, form)
        white, bases, scale = self._white(Y), self._bases, self._scale
        above = form if bases.hard else bases.lift.T @ form @ bases.lift
        log_ratio, z, spread = self._kernel.mean_and_spread(
            white, np.ascontiguousarray(above * scale * scale[:, None], np.float64)
        )
        if not bases.hard:
            spread += np.vdot(form, bases.covariance)
        return self._density(log_ratio, white), bases.latents(z * scale, white), spread

    def covariance(self, Y: Array) -> Array:
        """Posterior covariance of the latents of each point, (N, H, H)."""
        each = np.empty((len(Y), self.parameters.n_latents, self.parameters.n_latents))
        for i in range(len(Y)):
            moments = self.moments(Y[i : i + 1], each=True)
            each[i] = moments.outer - np.outer(moments.mean, moments.mean)
        return each

    def supports(self, Y: Array, k: int) -> Supports:
        """The k most probable supports of each point among those summed over, and their
        probabilities.
        """
        if (patternwise := self._by_pattern(Y)) is not None:
            return patternwise.supports(Y, k)
        k = min(k, 2**self._n_free)
        active = np.tile(self._base[1] > 0, (len(Y), k, 1))
        probability = np.zeros((len(Y), k))
        for i, (involved, inference) in enumerate(self._each_exactly(Y)):
            found = inference.supports(Y[i : i + 1], k)
            places = np.arange(found.probability.shape[1])
            active[i, places[:, None], involved] = found.active[0]
            probability[i, places] = found.probability[0]
        return Supports(active, probability)

    def sample(self, Y: Array, n_samples: int, rng: Generator) -> Array:
        """Draws of the latents from the posterior of each point, (n_samples, N, H)."""
        if (patternwise := self._by_pattern(Y)) is not None:
            return patternwise.sample(Y, n_samples, rng)
        parameters = self.parameters
        drawn = np.empty((n_samples, len(Y), parameters.n_latents))
        prior = parameters.prior
        means, variances = prior.means[self._base], prior.variances[self._base]
        for i, (involved, inference) in enumerate(self._each_exactly(Y)):
            x = inference.sample(Y[i : i + 1], n_samples, rng)[:, 0]
            drawn[:, i] = means
            drawn[:, i, involved] = x
            rest = np.setdiff1d(np.arange(parameters.n_latents), involved)
            if not variances[rest].any():
                continue
            # those at soft bases: draws from the prior, corrected by what they miss of the data
            W = parameters.mixing[:, rest]
            z = rng.standard_normal((n_samples, len(rest))) * np.sqrt(variances[rest])
            noise = (
                rng.standard_normal((n_samples, len(W)))
                @ np.linalg.cholesky(parameters.noise.covariance).T
            )
            missed = Y[i] - inference.parameters.offset - x @ inference.parameters.mixing.T
            missed -= z @ W.T + noise
            gain = variances[rest][:, None] * inference.parameters.noise.solve(W).T
            drawn[:, i, rest] += z + missed @ gain.T
        return drawn

    def _each_exactly(self, Y: Array) -> Iterator[tuple[np.ndarray, InferenceWithMissing]]:
        """For each point the latents that are not surely at their bases, in rising order, and exact
        inference of these, in the states summed over and with all others as part of the noise.
        """
        parameters, prior = self.parameters, self.parameters.prior
        mixing, noise = parameters.mixing, parameters.noise
        means, variances = prior.means[self._base], prior.variances[self._base]
        for state, free in zip(*self.states(Y), strict=True):
            on = state != self._base[1]
            on[free] = True
            involved, rest = np.flatnonzero(on), np.flatnonzero(~on)
            weights = np.zeros_like(prior.weights)
            weights[np.arange(len(state)), state] = 1
            weights[free] = prior.weights[free]
            weights = weights[involved]
            W = mixing[:, rest]
            around = noise
            if variances[rest].any():
                around = FullNoise(noise.covariance + (W * variances[rest]) @ W.T)
            yield (
                involved,
                InferenceWithMissing(
                    Parameters(
                        mixing[:, involved],
                        parameters.offset + W @ means[rest],
                        Prior(weights, prior.means[involved], prior.variances[involved]),
                        around,
                    )
                ),
            )
