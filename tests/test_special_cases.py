"""Known models that must come out exactly."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA, FactorAnalysis

from problems import (
    FAMILIES,
    METHODS,
    NOISES,
    covariance_of,
    floor_of,
    log_density,
    make_data,
    make_model,
    make_start,
)
from spikeslab import Expectation, Parameters, Prior, maximise
from spikeslab.noise import NOISES as NOISE_CLASSES

by_noise = pytest.mark.parametrize("noise", NOISES)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


@pytest.fixture(scope="module")
def data():
    """Centred data of 6 features with 2 factors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)) @ rng.normal(size=(2, 6))
    X += rng.normal(size=X.shape) * [0.3, 0.5, 0.4, 0.8, 0.6, 0.7]
    return X - X.mean(axis=0)


def fit(X, noise, activation, learn=("components", "noise"), method="quasi-newton", H=2):
    """A fit that starts with the given probability that a latent is on."""
    model = make_model(noise=noise, learn=learn)
    start = make_start(model, X, H, np.random.default_rng(1), "pca")
    start = replace(start, prior=Prior.spike_and_slab(np.full(H, activation)))
    limits = {"noise_floor": 1e-8, "max_iter": 20000, "tol": 1e-13}
    return maximise(Expectation(X, noise), start, model, method=method, **limits)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("learn", [(), ("prior",), ("mean",), ("prior", "mean")])
def test_always_on_with_diagonal_noise_is_factor_analysis(data, method, learn):
    peer = FactorAnalysis(2, tol=1e-12, max_iter=100000, svd_method="lapack").fit(data)
    result = fit(data, "diagonal", 1.0, ("components", "noise", *learn), method)
    assert result.log_likelihood == pytest.approx(peer.score(data), abs=1e-6)
    covariance = result.parameters.covariance
    np.testing.assert_allclose(covariance, peer.get_covariance(), rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(result.parameters.prior.activation, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("learn", [(), ("prior",), ("mean",), ("prior", "mean")])
def test_always_on_with_isotropic_noise_is_probabilistic_pca(data, method, learn):
    n = len(data)
    peer = PCA(2).fit(data * np.sqrt((n - 1) / n))  # so that it divides by n, as likelihood does
    result = fit(data, "isotropic", 1.0, ("components", "noise", *learn), method)
    assert result.log_likelihood == pytest.approx(peer.score(data), abs=1e-6)
    covariance = result.parameters.covariance
    np.testing.assert_allclose(covariance, peer.get_covariance(), rtol=2e-4, atol=2e-4)
    noise = result.parameters.noise.variance
    assert noise == pytest.approx(peer.noise_variance_, rel=1e-4)


@pytest.mark.parametrize("H", [1, 6, 7])
def test_always_on_with_full_noise_is_a_gaussian(data, H):
    result = fit(data, "full", 1.0, H=H)
    covariance = covariance_of(data)
    gaussian = -(np.linalg.slogdet(2 * np.pi * covariance).logabsdet + 6) / 2
    assert result.log_likelihood == pytest.approx(gaussian, abs=1e-6)
    np.testing.assert_allclose(result.parameters.covariance, covariance, atol=1e-3)


@by_noise
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("learn", [(), ("prior",), ("mean",), ("prior", "mean")])
def test_never_on_is_the_noise_alone(data, noise, method, learn):
    X = data + 0.5 * ("mean" in learn)
    result = fit(X, noise, 0.0, ("components", "noise", *learn), method)
    product = NOISE_CLASSES[noise].product
    alone = NOISE_CLASSES[noise].from_scatter(product(data.T, data.T) / len(data), 6, 0.0)
    gaussian = -(6 * np.log(2 * np.pi) + alone.log_det + 6) / 2
    p = result.parameters
    assert result.log_likelihood == pytest.approx(gaussian, abs=1e-9)
    np.testing.assert_allclose(p.noise.values, alone.values, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(p.prior.activation, 0)
    assert np.isfinite(p.mixing).all()


@by_noise
@by_family
@pytest.mark.parametrize("kind", ["square", "more latents", "more features"])
def test_marginal_is_the_explicit_mixture_at_the_fitted_optimum(noise, family, kind):
    rng = np.random.default_rng(2)
    family = replace(family, weight_count=1.0, variance_count=2.0)
    X = make_data(kind, rng)
    model = make_model(family, noise)
    start = make_start(model, X, {"more latents": 3}.get(kind, 2), rng)
    limits = {"noise_floor": floor_of(X, 1e-3), "max_iter": 40}
    result = maximise(Expectation(X, noise), start, model, **limits)
    explicit = log_density(X, result.parameters).mean()
    assert result.log_likelihood == pytest.approx(explicit, abs=1e-9)


@by_noise
def test_mean_and_covariance_are_those_of_samples(noise):
    rng = np.random.default_rng(3)
    prior = Prior([[0.7, 0.3], [0.2, 0.8]], [[0, 1], [0, -2]], [[0, 1], [0.1, 0.5]])
    covariance = np.array([[0.5, 0.1], [0.1, 0.3]])
    product = NOISE_CLASSES[noise].product
    root = np.linalg.cholesky(covariance)
    of_kind = NOISE_CLASSES[noise].from_scatter(product(root, root), 2, 0.0)
    p = Parameters([[1, 2], [0.5, -1]], [3, 4], prior, of_kind)
    Y, _ = p.sample(200_000, rng)
    np.testing.assert_allclose(Y.mean(axis=0), p.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(Y.T), p.covariance, atol=0.06)
