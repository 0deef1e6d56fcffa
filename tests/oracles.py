"""Slow, explicit answers that the inference code is tested against.

Every latent has the prior ``sum_k w[h, k] N(x_h; m[h, k], v[h, k])``, in which a variance of zero
is a point mass. A *state* assigns one component to every latent; given the state, everything is
Gaussian. Each oracle here visits all ``K ** H`` states and does the textbook thing in each.
"""

from collections.abc import Callable
from itertools import product
from typing import Literal, NamedTuple

import mpmath as mp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

Array = NDArray[np.float64]


class Posterior(NamedTuple):
    """Exact posterior summaries of H latents with K components each.

    Attributes
    ----------
    log_z : float
        Log of the integral of prior times likelihood; the logsumexp of `state_log_weights`.
    state_log_weights : array of shape (K ** H,)
        Log of what each state contributes to the integral, not normalised. The states are in
        C order: the component of the last latent varies fastest.
    mean : array of shape (H,)
        E[x_h].
    probabilities : array of shape (H, K)
        P(k_h = k).
    first : array of shape (H, K)
        E[1(k_h = k) x_h].
    second : array of shape (H, K)
        E[1(k_h = k) x_h ** 2].
    outer : array of shape (H, H)
        E[x x'].
    """

    log_z: float
    state_log_weights: Array
    mean: Array
    probabilities: Array
    first: Array
    second: Array
    outer: Array


def posterior(A: Array, b: Array, weights: Array, means: Array, variances: Array) -> Posterior:
    """Summarise the posterior under the likelihood exp(b'x - x'Ax / 2), in float64.

    In each state, write x = m + S u with S = diag(sqrt(v)) and u ~ N(0, I). The likelihood is then
    exp(b'm - m'Am / 2 + g'u - u'(SAS)u / 2) with g = S(b - Am), so that u has the posterior
    precision P = I + SAS and the posterior mean P^-1 g. No variance is ever divided by.
    """
    n_latents, n_components = weights.shape
    latents = np.arange(n_latents)
    states = _all_states(n_latents, n_components)

    log_weights, locations, covariances = [], [], []
    for state in states:
        m = means[latents, state]
        S = np.diag(np.sqrt(variances[latents, state]))
        P = np.eye(n_latents) + S @ A @ S
        g = S @ (b - A @ m)
        u = np.linalg.solve(P, g)
        log_prior = _log(weights[latents, state]).sum()
        log_likelihood = b @ m - m @ A @ m / 2 + g @ u / 2 - np.linalg.slogdet(P).logabsdet / 2
        log_weights.append(log_prior + log_likelihood)
        locations.append(m + S @ u)
        covariances.append(S @ np.linalg.inv(P) @ S)

    probabilities = np.zeros((n_latents, n_components))
    first = np.zeros((n_latents, n_components))
    second = np.zeros((n_latents, n_components))
    outer = np.zeros((n_latents, n_latents))
    for state, p, x, C in zip(states, softmax(log_weights), locations, covariances, strict=True):
        probabilities[latents, state] += p
        first[latents, state] += p * x
        second[latents, state] += p * (x**2 + np.diag(C))
        outer += p * (np.outer(x, x) + C)

    return Posterior(
        log_z=float(logsumexp(log_weights)),
        state_log_weights=np.array(log_weights),
        mean=first.sum(axis=1),
        probabilities=probabilities,
        first=first,
        second=second,
        outer=outer,
    )


def posterior_mp(
    A: Array, b: Array, weights: Array, means: Array, variances: Array, digits: int = 60
) -> Posterior:
    """Summarise the same posterior in `digits` decimal digits, and round only the answers.

    The float64 inputs are taken as exact. In each state, with V = diag(v) and r = b - Am, the
    posterior covariance is C = (I + VA)^-1 V, the posterior mean m + Cr, and the log weight
    log w + b'm - m'Am / 2 + r'Cr / 2 - log|I + VA| / 2, which again never divides by a variance.
    """
    with mp.workdps(digits):
        n_latents, n_components = weights.shape
        latents = range(n_latents)
        states = _all_states(n_latents, n_components)
        A, b = mp.matrix(A.tolist()), mp.matrix(b.tolist())

        log_weights, locations, covariances = [], [], []
        for state in states:
            m = mp.matrix([means[h, state[h]] for h in latents])
            V = mp.diag([variances[h, state[h]] for h in latents])
            r = b - A * m
            M = mp.eye(n_latents) + V * A
            C = mp.inverse(M) * V
            log_prior = mp.fsum(mp.log(weights[h, state[h]]) for h in latents)
            log_likelihood = mp.fdot(b, m) - mp.fdot(m, A * m) / 2
            log_likelihood += mp.fdot(r, C * r) / 2 - mp.log(mp.det(M)) / 2
            log_weights.append(log_prior + log_likelihood)
            locations.append(m + C * r)
            covariances.append(C)

        largest = max(log_weights)
        log_z = largest + mp.log(mp.fsum(mp.exp(value - largest) for value in log_weights))

        probabilities = mp.zeros(n_latents, n_components)
        first = mp.zeros(n_latents, n_components)
        second = mp.zeros(n_latents, n_components)
        outer = mp.zeros(n_latents, n_latents)
        for state, value, x, C in zip(states, log_weights, locations, covariances, strict=True):
            p = mp.exp(value - log_z)
            for h in latents:
                k = int(state[h])
                probabilities[h, k] += p
                first[h, k] += p * x[h]
                second[h, k] += p * (x[h] ** 2 + C[h, h])
            outer += p * (x * x.T + C)
        mean = [mp.fsum(first[h, k] for k in range(n_components)) for h in latents]

        return Posterior(
            log_z=float(log_z),
            state_log_weights=np.array(log_weights, dtype=float),
            mean=np.array(mean, dtype=float),
            probabilities=np.array(probabilities.tolist(), dtype=float),
            first=np.array(first.tolist(), dtype=float),
            second=np.array(second.tolist(), dtype=float),
            outer=np.array(outer.tolist(), dtype=float),
        )


def log_density(
    X: Array,
    mixing: Array,
    offset: Array,
    covariance: Array,
    weights: Array,
    means: Array,
    variances: Array,
) -> Array:
    """Log density of each row of `X` under y = offset + mixing x + e with e ~ N(0, covariance).

    The marginal of y is a mixture over the states of N(c + W m, W diag(v) W' + covariance).
    """
    n_latents, n_components = weights.shape
    latents = np.arange(n_latents)
    states = _all_states(n_latents, n_components)
    terms = np.empty((len(states), len(X)))
    for term, state in zip(terms, states, strict=True):
        location = offset + mixing @ means[latents, state]
        scatter = mixing @ np.diag(variances[latents, state]) @ mixing.T + covariance
        log_prior = _log(weights[latents, state]).sum()
        term[:] = log_prior + multivariate_normal.logpdf(X, location, scatter)
    return logsumexp(terms, axis=0)


class Completion(NamedTuple):
    """What the observed entries of one point say about z = (y, x), (D + H,).

    Attributes
    ----------
    log_density : float
        Of the observed entries; 0 without any.
    mean : array of shape (D + H,)
        E[z], in which observed entries are themselves.
    outer : array of shape (D + H, D + H)
        E[z z'].
    probabilities, first, second : arrays of shape (H, K)
        As in `Posterior`.
    """

    log_density: float
    mean: Array
    outer: Array
    probabilities: Array
    first: Array
    second: Array


def completion(
    y: Array,
    mixing: Array,
    offset: Array,
    covariance: Array,
    weights: Array,
    means: Array,
    variances: Array,
) -> Completion:
    """Condition the explicit mixture of Gaussians of (y, x) on the entries of y that are no NaN."""
    n_features, n_latents = mixing.shape
    n_components = weights.shape[1]
    latents = np.arange(n_latents)
    states = _all_states(n_latents, n_components)
    observed = np.flatnonzero(~np.isnan(y))
    log_weights, locations, spreads = [], [], []
    for state in states:
        m, V = means[latents, state], np.diag(variances[latents, state])
        location = np.concatenate([offset + mixing @ m, m])
        joint = np.block([[mixing @ V @ mixing.T + covariance, mixing @ V], [V @ mixing.T, V]])
        log_weight = _log(weights[latents, state]).sum()
        if len(observed):
            block = joint[np.ix_(observed, observed)]
            gain = np.linalg.solve(block, joint[observed]).T
            log_weight += multivariate_normal.logpdf(y[observed], location[observed], block)
            location = location + gain @ (y[observed] - location[observed])
            joint = joint - gain @ joint[observed]
        log_weights.append(log_weight)
        locations.append(location)
        spreads.append(joint)

    size = n_features + n_latents
    mean, outer = np.zeros(size), np.zeros((size, size))
    probabilities, first, second = np.zeros((3, n_latents, n_components))
    for state, p, z, C in zip(states, softmax(log_weights), locations, spreads, strict=True):
        x, spread = z[n_features:], np.diag(C)[n_features:]
        mean += p * z
        outer += p * (np.outer(z, z) + C)
        probabilities[latents, state] += p
        first[latents, state] += p * x
        second[latents, state] += p * (x**2 + spread)
    return Completion(float(logsumexp(log_weights)), mean, outer, probabilities, first, second)


def model_moments(
    mixing: Array,
    offset: Array,
    covariance: Array,
    weights: Array,
    means: Array,
    variances: Array,
) -> tuple[Array, Array]:
    """Mean and covariance of y = offset + mixing x + e, by the laws of total mean and variance."""
    latent_mean = (weights * means).sum(axis=1)
    within = (weights * variances).sum(axis=1)
    between = (weights * (means - latent_mean[:, None]) ** 2).sum(axis=1)
    mean = offset + mixing @ latent_mean
    return mean, mixing @ np.diag(within + between) @ mixing.T + covariance


def central_difference(function: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """Gradient of a scalar function of an array of any shape, one element at a time."""
    gradient = np.empty(x.shape)
    for index in np.ndindex(x.shape):
        change = np.zeros(x.shape)
        change[index] = step
        gradient[index] = (function(x + change) - function(x - change)) / (2 * step)
    return gradient


def random_prior(
    rng: np.random.Generator,
    n_latents: int,
    n_components: int,
    spike: Literal["hard", "soft"] = "hard",
    with_means: bool = False,
) -> tuple[Array, Array, Array]:
    """Draw the weights, means and variances of a prior whose component 0 is the spike.

    A hard spike has variance zero; a soft one is about a hundred times narrower than the slabs.
    `with_means` moves every component away from zero, the spike included.
    """
    shape = (n_latents, n_components)
    weights = rng.dirichlet(np.full(n_components, 2.0), size=n_latents)
    means = rng.normal(size=shape) if with_means else np.zeros(shape)
    variances = rng.uniform(0.5, 2.0, size=shape)
    variances[:, 0] *= {"hard": 0.0, "soft": 1e-4}[spike]
    return weights, means, variances


def random_problem(
    rng: np.random.Generator, n_latents: int, n_features: int = 6, noise_variance: float = 0.5
) -> tuple[Array, Array]:
    """Draw A = W'W / s2 and b = W'y / s2 from a linear model with standard normal latents.

    With fewer features than latents, A is singular.
    """
    W = rng.normal(size=(n_features, n_latents))
    noise = np.sqrt(noise_variance) * rng.normal(size=n_features)
    y = W @ rng.normal(size=n_latents) + noise
    return W.T @ W / noise_variance, W.T @ y / noise_variance


def _all_states(n_latents: int, n_components: int) -> NDArray[np.intp]:
    """All assignments of components to latents, shape (K ** H, H), the last latent fastest."""
    return np.array(list(product(range(n_components), repeat=n_latents)))


def _log(x: Array) -> Array:
    """Logarithm that maps zero to -inf without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(x)
