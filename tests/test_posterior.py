"""Inference in the model's own terms: mixing, noise and data."""

from itertools import product

import mpmath as mp
import numpy as np
import pytest

import oracles
from spikeslab import IsotropicNoise, Parameters, Posterior, Prior
from spikeslab.posterior import Inference

NOISES = ["isotropic", "diagonal", "full"]


def arrays(parameters):
    prior = parameters.prior
    return (
        parameters.mixing, parameters.offset, parameters.noise.covariance,
        prior.weights, prior.means, prior.variances,
    )  # fmt: skip


def natural(parameters, Y):
    """A and b of the likelihood exp(b'x - x'Ax/2), by the textbook."""
    W, offset, covariance, *_ = arrays(parameters)
    precise = np.linalg.solve(covariance, W)
    return W.T @ precise, (Y - offset) @ precise


def solve(parameters, Y):
    """The oracle's answers for all points, stacked."""
    A, b = natural(parameters, Y)
    each = [oracles.posterior(A, point, *arrays(parameters)[3:]) for point in b]
    return oracles.Posterior(*(np.stack(values) for values in zip(*each, strict=True)))


@pytest.mark.parametrize("n_features", [2, 3, 5])  # less than, as many as, and more than latents
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("n_components", "prior"),
    [(2, {}), (2, {"with_means": True}), (3, {"spike": "soft", "with_means": True})],
)
def test_everything_about_a_point(make_parameters, noise, n_features, n_components, prior):
    rng = np.random.default_rng(n_features)
    parameters = make_parameters(rng, noise, n_features, 3, n_components, **prior)
    Y, _ = parameters.sample(11, rng)
    inference, expected = Inference(parameters), solve(parameters, Y)
    moments = inference.moments(Y, True)

    def close(found, wanted):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)

    log_density = oracles.log_density(Y, *arrays(parameters))
    close(moments.log_evidence, log_density)
    close(inference.log_evidence(Y), log_density)
    close(moments.mean, expected.mean)
    close(moments.probabilities, expected.probabilities)
    close(moments.counts, expected.probabilities.sum(axis=0))
    close(moments.first, expected.first.sum(axis=0))
    close(moments.second, expected.second.sum(axis=0))
    close(moments.outer, expected.outer.sum(axis=0))
    product_of_means = expected.mean[:, :, None] * expected.mean[:, None, :]
    close(inference.covariance(Y), expected.outer - product_of_means)
    assert inference.moments(Y).probabilities.shape == (0, 3, n_components)  # not asked for


@pytest.mark.parametrize("noise", NOISES)
def test_one_feature_or_one_latent(make_parameters, noise):
    rng = np.random.default_rng(0)
    for n_features, n_latents in [(1, 1), (1, 3), (3, 1)]:
        parameters = make_parameters(rng, noise, n_features, n_latents)
        Y, _ = parameters.sample(5, rng)
        wanted = oracles.log_density(Y, *arrays(parameters))
        found = Inference(parameters).log_evidence(Y)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_data_of_any_memory_layout(make_parameters):
    rng = np.random.default_rng(0)
    parameters = make_parameters(rng)
    Y, _ = parameters.sample(20, rng)
    inference = Inference(parameters)
    wide = np.zeros((40, 8))
    wide[::2, ::2] = Y
    for other in (np.asfortranarray(Y), wide[::2, ::2]):
        found, wanted = inference.moments(other, True), inference.moments(Y, True)
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-12, atol=1e-13)
    assert inference.moments(Y[:0], True).mean.shape == (0, 3)


def precise_posterior(parameters, y):
    """The posterior with W, Sigma and y exact: rounding A and b would change the answer."""
    with mp.workdps(60):
        W, variance = mp.matrix(parameters.mixing.tolist()), mp.mpf(parameters.noise.variance)
        residual = mp.matrix(y.tolist()) - mp.matrix(parameters.offset.tolist())
        A, b = W.T * W / variance, W.T * residual / variance
    A = np.array(A.tolist(), dtype=object)
    b = np.array(list(b), dtype=object)
    return oracles.posterior_mp(A, b, *arrays(parameters)[3:])


@pytest.mark.parametrize(("n_features", "n_latents"), [(1, 2), (2, 3), (2, 4), (3, 4)])
@pytest.mark.parametrize("with_means", [False, True])
def test_more_latents_than_features_at_noise_variance_1e_6(n_features, n_latents, with_means):
    rng = np.random.default_rng([n_features, n_latents])
    prior = Prior.spike_and_slab(rng.uniform(0.2, 0.8, n_latents), 0.7 if with_means else 0.0)
    mixing, offset = rng.normal(size=(n_features, n_latents)), rng.normal(size=n_features)
    parameters = Parameters(mixing, offset, prior, IsotropicNoise(1e-6, n_features))
    Y, _ = parameters.sample(5, rng)
    Y[0] = offset + 2e-3  # two standard deviations from where nothing is active
    moments = Inference(parameters).moments(Y, True)
    expected = [precise_posterior(parameters, y) for y in Y]
    wanted = np.stack([answer.probabilities for answer in expected])
    np.testing.assert_allclose(moments.probabilities, wanted, rtol=0, atol=1e-9)
    wanted = np.stack([answer.mean for answer in expected])
    np.testing.assert_allclose(moments.mean, wanted, rtol=0, atol=1e-9)
    log_density = oracles.log_density(Y, *arrays(parameters))
    np.testing.assert_allclose(moments.log_evidence, log_density, rtol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("n_features", [2, 5])
def test_sums_are_the_gradient_of_the_log_evidence(make_parameters, noise, n_features):
    rng = np.random.default_rng(0)
    parameters = make_parameters(rng, noise, n_features, 3, 2, with_means=True)
    Y, _ = parameters.sample(4, rng)
    A, b = natural(parameters, Y)
    prior = arrays(parameters)[3:]

    def log_z(A, shift):
        A = (A + A.T) / 2
        return sum(oracles.posterior(A, point + shift, *prior).log_z for point in b)

    moments = Inference(parameters).moments(Y, True)
    by_b = oracles.central_difference(lambda shift: log_z(A, shift), np.zeros(3))
    np.testing.assert_allclose(moments.mean.sum(axis=0), by_b, rtol=1e-6, atol=1e-7)
    by_A = oracles.central_difference(lambda A: log_z(A, 0.0), A)
    np.testing.assert_allclose(moments.outer, -2 * by_A, rtol=1e-6, atol=1e-7)


def support_probabilities(parameters, y):
    """Probability of every support, by adding up the oracle's states."""
    A, b = natural(parameters, y[None])
    prior = arrays(parameters)[3:]
    weights = oracles.posterior(A, b[0], *prior).state_log_weights
    weights = np.exp(weights - weights.max())
    total: dict[tuple, float] = {}
    states = product(range(prior[0].shape[1]), repeat=len(A))
    for state, weight in zip(states, weights / weights.sum(), strict=True):
        active = tuple(k > 0 for k in state)
        total[active] = total.get(active, 0.0) + weight
    return total


@pytest.mark.parametrize("k", [1, 3, 16, 1000])
@pytest.mark.parametrize(
    ("n_components", "prior"), [(2, {}), (3, {}), (3, {"spike": "soft", "with_means": True})]
)
def test_supports_are_those_of_enumeration(make_parameters, n_components, prior, k):
    rng = np.random.default_rng(n_components)
    parameters = make_parameters(rng, "diagonal", 3, 4, n_components, **prior)
    Y, _ = parameters.sample(6, rng)
    active, probability = Inference(parameters).supports(Y, k)
    n_kept = min(k, 2**4)
    assert active.shape == (6, n_kept, 4)
    assert active.dtype == bool
    for y, supports, found in zip(Y, active, probability, strict=True):
        expected = support_probabilities(parameters, y)
        best = sorted(expected.values(), reverse=True)[:n_kept]
        np.testing.assert_allclose(found, best, rtol=1e-9, atol=1e-12)
        wanted = [expected[tuple(support)] for support in supports.tolist()]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
        assert len(set(map(tuple, supports.tolist()))) == n_kept
        if n_kept == 16:
            assert abs(found.sum() - 1) < 1e-12


def test_supports_of_latents_that_are_always_on_or_off():
    rng = np.random.default_rng(0)
    prior = Prior.spike_and_slab([0.0, 1.0, 0.5])
    parameters = Parameters(rng.normal(size=(4, 3)), np.zeros(4), prior, IsotropicNoise(0.1, 4))
    Y, _ = parameters.sample(5, rng)
    active, probability = Inference(parameters).supports(Y, 10)
    assert active.shape == (5, 2, 3)
    assert not active[:, :, 0].any()
    assert active[:, :, 1].all()
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("n_features", "n_components", "prior"),
    [(4, 2, {}), (2, 2, {"with_means": True}), (4, 3, {"spike": "soft", "with_means": True})],
)
def test_draws_have_the_posterior_mean_and_covariance(
    make_parameters, n_features, n_components, prior
):
    rng = np.random.default_rng(n_components)
    parameters = make_parameters(rng, "full", n_features, 3, n_components, **prior)
    Y, _ = parameters.sample(4, rng)
    inference, n_draws = Inference(parameters), 20_000
    X = inference.sample(Y, n_draws, rng)
    assert X.shape == (n_draws, 4, 3)
    mean, covariance = inference.moments(Y, True).mean, inference.covariance(Y)
    gap = X - mean
    error = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2) / n_draws)
    assert (np.abs(gap.mean(axis=0)) < 5 * error).all()
    products = gap[:, :, :, None] * gap[:, :, None, :]
    error = products.std(axis=0) / np.sqrt(n_draws)
    assert (np.abs(products.mean(axis=0) - covariance) < 5 * error).all()


def test_draws_are_exactly_zero_as_often_as_the_spike_is_probable(make_parameters):
    rng = np.random.default_rng(0)
    parameters = make_parameters(rng)
    Y, _ = parameters.sample(4, rng)
    posterior, n_draws = Posterior(parameters, Y), 20_000
    off = (posterior.sample(n_draws, random_state=1) == 0).mean(axis=0)
    p = 1 - posterior.activation
    assert (np.abs(off - p) <= 5 * np.sqrt(p * (1 - p) / n_draws)).all()


# ---- the Posterior class ----


@pytest.fixture
def parameters(make_parameters):
    return make_parameters(np.random.default_rng(0), "diagonal", 4, 3, 3, spike="soft")


@pytest.fixture
def posterior(parameters):
    return Posterior(parameters, parameters.sample(6, np.random.default_rng(1))[0])


def test_posterior_holds_what_inference_says(parameters, posterior):
    Y, _ = parameters.sample(6, np.random.default_rng(1))
    expected = solve(parameters, Y)

    def close(found, wanted):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)

    close(posterior.activation, 1 - expected.probabilities[:, :, 0])
    close(posterior.mean, expected.mean)
    close(posterior.component_probabilities, expected.probabilities)
    close(posterior.log_evidence, oracles.log_density(Y, *arrays(parameters)))
    np.testing.assert_array_equal(posterior.covariance(), Inference(parameters).covariance(Y))
    np.testing.assert_array_equal(
        posterior.supports(2).probability, Inference(parameters).supports(Y, 2).probability
    )
    assert posterior.supports().active.shape == (6, 1, 3)
    assert repr(posterior) == "<Posterior of 3 latents for 6 points>"


def test_draws_repeat_with_the_same_seed(posterior):
    one = posterior.sample(5, random_state=3)
    assert one.shape == (5, 6, 3)
    np.testing.assert_array_equal(one, posterior.sample(5, random_state=3))
    generator = np.random.default_rng(3)
    np.testing.assert_array_equal(one, posterior.sample(5, random_state=generator))
    assert (one != posterior.sample(5, random_state=generator)).any()
    assert posterior.sample().shape == (1, 6, 3)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None])
def test_numbers_that_are_not_positive_and_whole_are_refused(posterior, bad):
    with pytest.raises(ValueError, match="k must be a positive whole number"):
        posterior.supports(bad)
    with pytest.raises(ValueError, match="n_samples must be a positive whole number"):
        posterior.sample(bad)
