"""Small random problems that the tests share."""

from itertools import product

import numpy as np

import oracles
from spikeslab import Model, Parameters, Prior, PriorFamily
from spikeslab.initialise import STARTS
from spikeslab.noise import NOISES as NOISE_CLASSES

NOISES = ("isotropic", "diagonal", "full")
METHODS = ("em", "px", "quasi-newton")
EVERYTHING = ("components", "prior", "noise", "mean")

# All kinds of priors, by a name that says which.
FAMILIES = {
    f"{n_slabs}slab-{('hard', 'soft')[soft]}-{('own', 'shared')[shared]}{'-means' * means}": (
        PriorFamily(n_slabs=n_slabs, soft_spike=soft, shared=shared, slab_means=means)
    )
    for n_slabs, soft, shared, means in product((1, 2), *[(False, True)] * 3)
}

# Shapes (N, D, H) of data, by what is special about them.
DATA = {
    "square": (40, 2, 2),
    "more latents": (30, 2, 4),
    "more features": (60, 4, 1),
    "fewer points than features": (5, 8, 2),
    "duplicated points": (24, 3, 2),
    "constant column": (30, 3, 2),
    "zero column": (30, 3, 3),
    "rank deficient": (30, 4, 3),
    "rank one": (20, 3, 3),
    "all zero": (10, 2, 2),
}


def make_data(kind, rng, shape=None):
    """Centred data of one of the kinds above, from sparse sources and a little noise."""
    n_points, n_features, n_latents = shape or DATA[kind]
    sources = rng.normal(size=(n_points, n_latents)) * (rng.random((n_points, n_latents)) < 0.4)
    X = sources @ rng.normal(size=(n_latents, n_features))
    X += 0.2 * rng.normal(size=X.shape)
    if kind == "duplicated points":
        X = X[rng.integers(0, max(n_points // 8, 1), n_points)]
    elif kind == "constant column":
        X[:, 0] = 3.7
    elif kind == "zero column":
        X[:, -1] = 0.0
    elif kind == "rank deficient":
        X[:, -1] = X[:, 0] - (X[:, 1] if n_features > 2 else 0)
    elif kind == "rank one":
        X = np.outer(X[:, 0], rng.normal(size=n_features))
    elif kind == "all zero":
        X[:] = 0.0
    return X - X.mean(axis=0)


def covariance_of(X):
    return X.T @ X / len(X)


def floor_of(X, fraction=1e-4):
    """A floor for the noise: a fraction of the data's variance."""
    return fraction * (np.mean(X**2) or 1.0)


def make_model(family=FAMILIES["1slab-hard-own"], noise="isotropic", learn=None):
    """By default all that there is is learned, the offset together with the slabs' means."""
    if learn is None:
        learn = EVERYTHING if family.slab_means else EVERYTHING[:3]
    return Model(family, noise, frozenset(learn))


def make_start(model, X, n_latents, rng, name="random"):
    return STARTS[name](model, covariance_of(X), n_latents, rng)


def make_noise_of(kind, n_features, rng, scale=1.0):
    root = rng.normal(size=(n_features, n_features + 2))
    covariance = scale * (root @ root.T / n_features + 0.1 * np.eye(n_features))
    product_of = NOISE_CLASSES[kind].product
    factor = np.linalg.cholesky(covariance)
    return NOISE_CLASSES[kind].from_scatter(product_of(factor, factor), n_features, 0.0)


def make_parameters(family, noise, shape, rng):
    """Random parameters with nothing special about them, shape (D, H)."""
    n_features, n_latents = shape
    weights, means, variances = oracles.random_prior(
        rng, n_latents, family.n_components, spike="soft" if family.soft_spike else "hard"
    )
    variances[:, 0] *= 1e2
    if family.slab_means:
        means[:, 1:] = rng.normal(size=means[:, 1:].shape)
    if family.shared:
        weights[:], means[:], variances[:] = weights[0], means[0], variances[0]
    return Parameters(
        rng.normal(size=shape),
        rng.normal(size=n_features),
        Prior(weights, means, variances),
        make_noise_of(noise, n_features, rng),
    )


def with_holes(X, share, rng):
    return np.where(rng.random(X.shape) < share, np.nan, X)


def problem_with_holes(family, noise, shape, n_points=9, share=0.5, seed=0):
    """Parameters, and data from them with holes: one row is whole, one empty."""
    rng = np.random.default_rng(seed)
    p = make_parameters(family, noise, shape, rng)
    whole = p.sample(n_points, rng)[0]
    Y = with_holes(whole, share, rng)
    Y[1], Y[2] = whole[1], np.nan
    return p, Y


def log_density(X, p):
    """The oracle's log density of every point."""
    return oracles.log_density(
        X,
        p.mixing,
        p.offset,
        p.noise.covariance,
        p.prior.weights,
        p.prior.means,
        p.prior.variances,
    )


def penalty(family, prior, learned_slabs):
    """Log density of the regularisation: pseudo-counts of the components, and of variances."""
    rows = slice(0, 1 if family.shared else None)
    variances = prior.variances[rows, 1:] if learned_slabs else np.empty(0)
    if family.soft_spike:
        variances = np.append(variances, prior.variances[rows, 0])
    total = -family.variance_count / 2 * np.sum(np.log(variances) + family.variance_at / variances)
    if family.weight_count:
        total += family.weight_count * np.log(prior.weights[rows]).sum()
    return total
