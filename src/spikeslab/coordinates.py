"""Free coordinates of a model, its exact gradient in them, and EM's own metric.

W, offset and means are coordinates as they are; weights = a^2 / sum a^2, variances = t^2 + smallest
and noise = floor + B B' (B a number, a diagonal or a matrix), so that every bound is a regular
interior point and nothing is ever clipped. All slab variances are coordinates where the model can
be expanded: parameter expansion at no cost.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._arrays import Array, unchecked
from .m_step import Model, regression, residual_scatter, solve_regression
from .noise import NOISES
from .parameters import Parameters
from .prior import Prior, PriorFamily
from .statistics import Statistics

# Roots this small (squared, relative to the floor or the unit of variance) would be stationary
# points: start off them.
_LEAST_SQUARE = 1e-6


class Coordinates:
    """Maps between Parameters and one vector of the free numbers.

    Parameters
    ----------
    model : Model
    start : Parameters
        Gives the shapes, and the values of what is not learned.
    floor : float
        Least noise variance.
    """

    def __init__(self, model: Model, start: Parameters, floor: float) -> None:
        self._model, self._start, self._floor = model, start, floor
        family, learn = model.prior, model.learn
        n_features, n_latents = start.n_features, start.n_latents
        self._prior = PriorCoordinates(family, start.prior, model.expandable(start.prior))
        free_prior = "prior" in learn
        n_noise = {"isotropic": 1, "diagonal": n_features, "full": n_features**2}[model.noise]
        sizes = [
            n_features * n_latents * ("components" in learn),
            n_features * ("mean" in learn),
            *(size * free_prior for size in self._prior.sizes),
            n_noise * ("noise" in learn),
        ]
        ends = np.cumsum(sizes)
        self._slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def pack(self, p: Parameters) -> Array:
        """The coordinates of parameters."""
        learn = self._model.learn
        root: Array = np.empty(0)
        if "noise" in learn:
            values = p.noise.values
            if self._model.noise == "full":
                spectrum, vectors = np.linalg.eigh(values)
                spectrum = np.maximum(spectrum - self._floor, _LEAST_SQUARE * self._floor)
                root = (vectors * np.sqrt(spectrum)) @ vectors.T
            else:
                root = np.sqrt(np.maximum(values - self._floor, _LEAST_SQUARE * self._floor))
        return np.concatenate(
            [
                p.mixing.ravel() if "components" in learn else [],
                p.offset if "mean" in learn else [],
                *(self._prior.pack(p.prior) if "prior" in learn else []),
                root.ravel(),
            ]
        )

    def _split(self, theta: Array) -> list[Array]:
        return [theta[part] for part in self._slices]

    def unpack(self, theta: Array) -> Parameters:
        """The parameters at given coordinates."""
        W, c, a, m, t, B = self._split(theta)
        start, model = self._start, self._model
        prior, noise = start.prior, start.noise
        n_features, n_latents = start.n_features, start.n_latents
        if "prior" in model.learn:
            prior = self._prior.unpack(a, m, t)
        if "noise" in model.learn:
            cls = NOISES[model.noise]
            if model.noise == "full":
                B = B.reshape(n_features, n_features)
                noise = cls.from_scatter(
                    B @ B.T + self._floor * np.eye(n_features), n_features, self._floor
                )
            else:
                values = B**2 + self._floor
                total = values * n_features if model.noise == "isotropic" else values
                noise = cls.from_scatter(total, n_features, self._floor)
        mixing = W.reshape(n_features, n_latents) if W.size else start.mixing
        offset = c if "mean" in model.learn else start.offset
        return unchecked(Parameters, mixing=mixing, offset=offset, prior=prior, noise=noise)

    def gradient(
        self, theta: Array, p: Parameters, s: Statistics
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Gradient of the penalised log-likelihood (Fisher's identity), and EM's metric.

        The metric applies the inverse information of the complete data: to first order it turns a
        gradient into the displacement of an EM step.
        """
        model, noise = self._model, p.noise
        learn = model.learn
        _, _, a, _, t, B = self._split(theta)
        slopes: list[Array] = []
        if "prior" in learn:
            slopes, widths = self._prior.gradient(a, t, p.prior, s.counts, s.first, s.second)

        linear: Array = np.empty((0, 0))
        zz: Array = np.empty((0, 0))
        if not learn.isdisjoint(("components", "mean")):
            coefficients, yz, zz = regression(model, p, s)
            linear = noise.solve(yz - coefficients @ zz)

        slope_B: Array = np.empty(0)
        if "noise" in learn:
            R = residual_scatter(model.noise, p.mixing, p.offset, s)
            if model.noise == "full":
                B = B.reshape(R.shape)
                slope_B = (noise.solve(noise.solve(R).T) - s.n * noise.solve(np.eye(len(R)))) @ B
            else:
                each = p.n_features if model.noise == "isotropic" else 1
                slope_B = B * (R / noise.values - s.n * each) / noise.values

        def join(linear: Array, prior: list[Array], B: Array) -> Array:
            parts = [linear[:, : p.n_latents].ravel()] if "components" in learn else []
            parts += [linear[:, -1]] if "mean" in learn else []
            return np.concatenate([*parts, *prior, B.ravel()])

        def metric(g: Array) -> Array:
            W, c, *prior, B = self._split(g)
            step = linear
            if step.size:
                columns = [W.reshape(p.n_features, -1)] if W.size else []
                columns += [c[:, None]] if c.size else []
                step = solve_regression(
                    np.zeros_like(linear), noise.apply(np.concatenate(columns, axis=1)), zz
                )
            if "prior" in learn:
                prior = [slope * width for slope, width in zip(prior, widths, strict=True)]
            if model.noise == "full":
                B = noise.apply(B.reshape(p.n_features, -1)) if B.size else B
            elif B.size:
                B = B * noise.values / (p.n_features if model.noise == "isotropic" else 1)
            return join(step, prior, B / (2 * s.n))

        return join(linear, slopes, slope_B), metric


class PriorCoordinates:
    """Of the priors: roots a of the weights, the means and the roots t of the variances, those that
    are learned.

    Parameters
    ----------
    family : PriorFamily
    start : Prior
        Gives the values of what is not learned.
    expand : bool
        Whether all slab variances are coordinates.
    """

    def __init__(self, family: PriorFamily, start: Prior, expand: bool) -> None:
        self._family, self._start = family, start
        self._rows = rows = 1 if family.shared else start.n_latents
        self._means = family.learned_means(rows)
        self._variances = family.learned_variances(rows, expand)
        self.sizes = rows * family.n_components, int(self._means.sum()), int(self._variances.sum())

    def pack(self, prior: Prior) -> list[Array]:
        rows, least = self._rows, self._family.smallest_variance
        variances = prior.variances[:rows][self._variances] - least
        return [
            np.sqrt(prior.weights[:rows]).ravel(),
            prior.means[:rows][self._means],
            np.sqrt(np.maximum(variances, _LEAST_SQUARE * least)),
        ]

    def unpack(self, a: Array, m: Array, t: Array) -> Prior:
        rows, start = self._rows, self._start
        squares = a.reshape(rows, -1) ** 2
        weights = squares / squares.sum(axis=1, keepdims=True)
        means, variances = (np.array(v[:rows]) for v in (start.means, start.variances))
        means[self._means] = m
        variances[self._variances] = t**2 + self._family.smallest_variance
        shape = (start.n_latents, self._family.n_components)
        weights, means, variances = (
            np.ascontiguousarray(np.broadcast_to(v, shape)) for v in (weights, means, variances)
        )
        return unchecked(Prior, weights=weights, means=means, variances=variances)

    def gradient(
        self, a: Array, t: Array, prior: Prior, counts: Array, first: Array, second: Array
    ) -> tuple[list[Array], list[Array]]:
        """Slopes of the penalised log-likelihood, and the widths that turn them into EM steps."""
        family, rows = self._family, self._rows
        a = a.reshape(rows, -1)
        weights, means, variances = (
            v[:rows] for v in (prior.weights, prior.means, prior.variances)
        )
        counts, first, second = (family.pool(v)[:rows] for v in (counts, first, second))
        # the weights' regularisation counts like further points
        tallies = counts + family.weight_count
        total = tallies.sum(axis=1, keepdims=True)
        slope_a = 2 * (tallies - total * weights) / np.where(a == 0, 1, a)
        safe = np.where(variances > 0, variances, 1.0)
        slope_m = (first - counts * means) / safe
        scatter = second - 2 * means * first + means**2 * counts
        seen = counts + family.variance_count
        slope_v = (
            scatter + family.variance_count * family.variance_at - variances * seen
        ) / safe**2
        # a component that is never on has no information of its own
        mean_width, variance_width = safe / (counts + 1e-3), safe / (seen + 1e-3)
        weight_width = np.broadcast_to((a**2).sum(axis=1, keepdims=True) / (4 * total), a.shape)
        return (
            [slope_a.ravel(), slope_m[self._means], slope_v[self._variances] * t],
            [weight_width.ravel(), mean_width[self._means], variance_width[self._variances] / 2],
        )
