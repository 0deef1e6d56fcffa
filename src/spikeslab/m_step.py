"""The M-step in closed form, from Statistics alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ._arrays import Array, unchecked
from .noise import NOISES
from .parameters import Parameters
from .prior import Prior, PriorFamily
from .statistics import Statistics

LEARNABLE = ("components", "prior", "noise", "mean")

# How strongly W is tied to its old value, relative to the latents' mean square: it decides only
# about latents that are never on, whose columns would be 0 / 0.
_TIE = 1e-12


@dataclass(frozen=True)
class Model:
    """Which parameters are free.

    Parameters
    ----------
    prior : PriorFamily
    noise : "isotropic", "diagonal" or "full"
    learn : subset of {"components", "prior", "noise", "mean"}
        The parameters that are learned; "mean" is the offset.
    """

    prior: PriorFamily = field(default_factory=PriorFamily)
    noise: str = "isotropic"
    learn: frozenset[str] = frozenset(LEARNABLE)

    def expandable(self, prior: Prior) -> bool:
        """Whether the slabs' scale may move into W: both are learned, and no scale is fixed."""
        if not self.learn >= {"components", "prior"}:
            return False
        if self.prior.n_slabs == 1 and self.prior.variance_count > 0:
            return False
        fixed_means = prior.means[:, :1] if self.prior.slab_means else prior.means
        return not fixed_means.any()

    def canonical(self, parameters: Parameters) -> Parameters:
        """The same density with the spike as component 0, which a soft one need not remain, and
        with the scale of the slabs in W; both where the model allows it.
        """
        if self.prior.soft_spike and "prior" in self.learn:
            prior, shift = parameters.prior.spike_first()
            if not shift.any() or "mean" in self.learn:
                offset = parameters.offset + parameters.mixing @ shift
                parameters = replace(parameters, prior=prior, offset=offset)
        if not self.expandable(parameters.prior):
            return parameters
        return parameters.scaled_latents(1 / self.prior.canonical_scale(parameters.prior))

    def n_parameters(self, parameters: Parameters) -> int:
        """Free numbers of what is learned."""
        n_latents, n_features = parameters.n_latents, parameters.n_features
        numbers = {
            "components": n_features * n_latents,
            "prior": self.prior.n_parameters(n_latents),
            "noise": parameters.noise.n_parameters,
            "mean": n_features,
        }
        return sum(numbers[name] for name in self.learn)


def regression(model: Model, parameters: Parameters, s: Statistics) -> tuple[Array, Array, Array]:
    """Coefficients now, and sums of products, of the regression of y on what of [x 1] is learned.

    Returns (coefficients (D, p), sum y z', sum z z') with z the learned part, y less what the fixed
    part predicts.
    """
    W, c = parameters.mixing, parameters.offset
    if "mean" not in model.learn:
        return W, s.yx - c[:, None] * s.x, s.xx
    if "components" not in model.learn:
        return c[:, None], (s.y - W @ s.x)[:, None], np.array([[s.n]], np.float64)
    n_features, n_latents = W.shape
    zz = np.empty((n_latents + 1, n_latents + 1))
    zz[:-1, :-1], zz[-1, -1] = s.xx, s.n
    zz[-1, :-1] = zz[:-1, -1] = s.x
    now, yz = np.empty((2, n_features, n_latents + 1))
    now[:, :-1], now[:, -1] = W, c
    yz[:, :-1], yz[:, -1] = s.yx, s.y
    return now, yz, zz


def solve_regression(old: Array, yz: Array, zz: Array) -> Array:
    """Minimiser of sum |y - B z|^2, tied ever so slightly to the old one."""
    tie = _TIE * zz.trace() / len(zz) or 1.0  # 1: all latents are always 0
    tied = zz.copy()
    tied.flat[:: len(zz) + 1] += tie
    solution: Array = np.linalg.solve(tied, (yz + tie * old).T)
    return solution.T


def residual_scatter(kind: str, W: Array, c: Array, s: Statistics) -> Array:
    """The noise model's part of sum <(y - c - W x)(y - c - W x)'>."""
    product = NOISES[kind].product
    scatter = s.yy - product(W, 2 * s.yx - W @ s.xx)
    if c.any():
        column = c[:, None]
        scatter = scatter - product(column, (2 * (s.y - W @ s.x) - s.n * c)[:, None])
    return scatter


def m_step(
    model: Model, parameters: Parameters, s: Statistics, noise_floor: float, expand: bool
) -> Parameters:
    """Parameters that maximise the expected log-likelihood.

    With `expand` the slab variances are learned also where the model fixes them at 1 (parameter
    expansion, PX-EM); the scale stays in the prior until `Model.canonical` moves it into W.
    """
    mixing, offset, prior, noise = (
        parameters.mixing,
        parameters.offset,
        parameters.prior,
        parameters.noise,
    )
    if not model.learn.isdisjoint(("components", "mean")):
        coefficients = solve_regression(*regression(model, parameters, s))
        if "components" in model.learn:
            mixing = coefficients[:, : len(s.x)]
        if "mean" in model.learn:
            offset = coefficients[:, -1]
    if "prior" in model.learn:
        prior = model.prior.update(
            prior, s.counts, s.first, s.second, expand and model.expandable(prior)
        )
    if "noise" in model.learn:
        scatter = residual_scatter(model.noise, mixing, offset, s)
        noise = type(noise).from_scatter(scatter / s.n, len(offset), noise_floor)
    return unchecked(Parameters, mixing=mixing, offset=offset, prior=prior, noise=noise)
