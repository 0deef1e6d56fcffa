"""Missing values: everything is that of the observed entries, exactly."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import oracles
from problems import (
    EVERYTHING,
    FAMILIES,
    METHODS,
    covariance_of,
    floor_of,
    make_data,
    make_model,
    make_parameters,
    make_start,
    penalty,
    problem_with_holes,
    with_holes,
)
from spikeslab import (
    Expectation,
    GaussianSparseCoding,
    IsotropicNoise,
    NoiseFreeSparseCoding,
    Parameters,
    Prior,
    PriorFamily,
    Statistics,
    maximise,
    separate,
    statistics,
)
from spikeslab.blocks import ArrayRows, Survey
from spikeslab.coordinates import Coordinates
from spikeslab.initialise import STARTS, observed_covariance
from spikeslab.missing import InferenceWithMissing
from spikeslab.posterior import Inference

SEPARABLE = ("isotropic", "diagonal")
RICH = PriorFamily(n_slabs=2, soft_spike=True, slab_means=True)

by_noise = pytest.mark.parametrize("noise", SEPARABLE)
by_method = pytest.mark.parametrize("method", METHODS)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
by_shape = pytest.mark.parametrize("shape", [(3, 2), (2, 3), (5, 1)], ids=str)


def complete(Y, p):
    """The oracle's answers for all points, stacked."""
    prior = (p.prior.weights, p.prior.means, p.prior.variances)
    each = [oracles.completion(y, p.mixing, p.offset, p.noise.covariance, *prior) for y in Y]
    return oracles.Completion(*(np.stack(values) for values in zip(*each, strict=True)))


def log_density(Y, p):
    return complete(Y, p).log_density


# Inference


@by_noise
@by_family
@by_shape
def test_the_posterior_is_that_of_brute_force(kernel, noise, family, shape):
    p, Y = problem_with_holes(family, noise, shape)
    expected, inference = complete(Y, p), InferenceWithMissing(p)
    moments = inference.moments(Y, each=True)
    mean, outer = expected.mean[:, shape[0] :], expected.outer[:, shape[0] :, shape[0] :]
    close = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(inference.log_evidence(Y), expected.log_density, **close)
    np.testing.assert_allclose(moments.log_evidence, expected.log_density, **close)
    np.testing.assert_allclose(moments.mean, mean, **close)
    np.testing.assert_allclose(moments.probabilities, expected.probabilities, **close)
    covariance = outer - mean[:, :, None] * mean[:, None, :]
    np.testing.assert_allclose(inference.covariance(Y), covariance, **close)


@by_noise
@by_family
@by_shape
def test_predictions_are_those_of_the_conditioned_mixture(noise, family, shape):
    p, Y = problem_with_holes(family, noise, shape)
    expected, missing = complete(Y, p), np.isnan(Y)
    mean, variance = InferenceWithMissing(p).predict(Y)
    n_features = shape[0]
    wanted = expected.mean[:, :n_features]
    squares = np.diagonal(expected.outer, axis1=1, axis2=2)[:, :n_features]
    np.testing.assert_allclose(mean[missing], wanted[missing], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance[missing], (squares - wanted**2)[missing], atol=1e-8)


@pytest.mark.parametrize("n_latents", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("family", ["1slab-hard-own", "2slab-soft-own-means"])
def test_trees_of_any_height(kernel, family, n_latents):
    if FAMILIES[family].n_components ** n_latents > 3**5:
        pytest.skip("slow for the oracle")
    p, Y = problem_with_holes(FAMILIES[family], "diagonal", (4, n_latents), n_points=6)
    expected = complete(Y, p)
    moments = InferenceWithMissing(p).moments(Y, each=True)
    np.testing.assert_allclose(moments.log_evidence, expected.log_density, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(moments.mean, expected.mean[:, 4:], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.first, expected.first.sum(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.second, expected.second.sum(axis=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 1.0]], ids=["never on", "always on"])
def test_weights_of_exactly_0_and_1(kernel, weights):
    p, Y = problem_with_holes(FAMILIES["1slab-soft-own-means"], "isotropic", (4, 3))
    prior = replace(p.prior, weights=np.vstack([p.prior.weights[:2], weights]))
    p = replace(p, prior=prior)
    expected, moments = complete(Y, p), InferenceWithMissing(p).moments(Y, each=True)
    np.testing.assert_allclose(moments.log_evidence, expected.log_density, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(moments.probabilities, expected.probabilities, atol=1e-10)
    np.testing.assert_allclose(moments.counts, expected.probabilities.sum(axis=0), atol=1e-10)


@pytest.mark.parametrize("precision", [1e2, 1e6, 1e10])
@pytest.mark.parametrize("family", ["1slab-hard-own", "1slab-soft-own-means"])
def test_precise_data_against_many_digits(kernel, family, precision):
    rng = np.random.default_rng(3)
    p = make_parameters(FAMILIES[family], "isotropic", (6, 3), rng)
    p = replace(p, noise=IsotropicNoise(1 / precision, 6))
    Y = with_holes(p.sample(5, rng)[0], 0.4, rng)
    found = InferenceWithMissing(p).moments(Y, each=True)
    prior = (p.prior.weights, p.prior.means, p.prior.variances)
    for n, y in enumerate(Y):
        o = ~np.isnan(y)
        W, residual = p.mixing[o], y[o] - p.offset[o]
        A, b = precision * W.T @ W, precision * W.T @ residual
        # b as float64 has it is another problem: take it as exact and ask for the same by A alone
        expected = oracles.posterior_mp(A, b, *prior, digits=80)
        np.testing.assert_allclose(found.mean[n], expected.mean, atol=1e-16 * precision + 1e-9)
        np.testing.assert_allclose(
            found.probabilities[n], expected.probabilities, atol=1e-15 * precision + 1e-9
        )


@pytest.mark.parametrize("family", ["1slab-hard-own-means", "1slab-soft-own-means"])
@pytest.mark.parametrize("gap", [1.0, 30.0, 300.0])
def test_states_that_are_far_better_than_the_reference(kernel, family, gap):
    """Component means so far apart that no fixed scale of the weights would do."""
    p, Y = problem_with_holes(FAMILIES[family], "diagonal", (4, 3), n_points=6)
    means = np.column_stack([np.zeros(3), gap * np.array([1.0, -1.0, 0.5])])
    p = replace(p, prior=replace(p.prior, means=means))
    for points in (Y, Y * gap):
        expected, found = complete(points, p), InferenceWithMissing(p).moments(points, each=True)
        np.testing.assert_allclose(found.log_evidence, expected.log_density, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(found.mean, expected.mean[:, 4:], rtol=1e-7, atol=1e-7)


def test_nothing_overflows_however_far_the_points(kernel):
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own-means"], "isotropic", (4, 3))
    for scale in (1e6, 1e20, 1e100):
        moments = InferenceWithMissing(p).moments(Y * scale, each=True)
        assert np.isfinite(moments.log_evidence).all()
        assert np.isfinite(moments.mean).all()
        np.testing.assert_allclose(moments.probabilities.sum(axis=2), 1, rtol=1e-9)


def test_points_of_the_wrong_shape_are_refused():
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own"], "isotropic", (4, 3))
    inference = InferenceWithMissing(p)
    for method in (inference.log_evidence, inference.moments, inference.covariance):
        with pytest.raises(ValueError, match="y must be points x features"):
            method(Y[:, :3])


@by_noise
def test_supports_and_samples_follow_the_posterior(noise):
    p, Y = problem_with_holes(FAMILIES["1slab-soft-own-means"], noise, (4, 3), n_points=6)
    inference, expected = InferenceWithMissing(p), complete(Y, p)
    active, probability = inference.supports(Y, 8)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert (np.diff(probability, axis=1) <= 0).all()
    marginal = (active * probability[:, :, None]).sum(axis=1)
    np.testing.assert_allclose(marginal, expected.probabilities[:, :, 1], atol=1e-10)
    n_draws = 20_000
    drawn = inference.sample(Y, n_draws, np.random.default_rng(1))
    mean, outer = expected.mean[:, 4:], expected.outer[:, 4:, 4:]
    spread = np.sqrt(np.diagonal(outer, axis1=1, axis2=2) - mean**2)
    error = np.abs(drawn.mean(axis=0) - mean)
    assert (error < 5 * spread / np.sqrt(n_draws) + 1e-12).all()
    np.testing.assert_allclose(np.einsum("snh,snk->nhk", drawn, drawn) / n_draws, outer, atol=0.1)


@by_noise
def test_without_missing_values_it_is_bitwise_the_ordinary_inference(noise):
    rng = np.random.default_rng(0)
    p = make_parameters(FAMILIES["1slab-hard-own"], noise, (4, 3), rng)
    Y = p.sample(50, rng)[0]
    ordinary, found = Inference(p), InferenceWithMissing(p)
    for a, b in zip(ordinary.moments(Y, True), found.moments(Y, True), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ordinary.log_evidence(Y), found.log_evidence(Y))
    np.testing.assert_array_equal(ordinary.covariance(Y), found.covariance(Y))


# Statistics


@by_noise
@by_family
@by_shape
def test_statistics_are_the_expectations_of_the_complete_data(noise, family, shape):
    p, Y = problem_with_holes(family, noise, shape)
    some = ~np.isnan(Y).all(axis=1)
    each, D = complete(Y[some], p), shape[0]
    outer = each.outer.sum(axis=0)
    squares = np.diag(outer)[:D]
    expected = Statistics(
        n=some.sum(),
        log_likelihood=each.log_density.sum(),
        counts=each.probabilities.sum(axis=0),
        first=each.first.sum(axis=0),
        second=each.second.sum(axis=0),
        x=each.mean.sum(axis=0)[D:],
        xx=outer[D:, D:],
        yx=outer[:D, D:],
        y=each.mean.sum(axis=0)[:D],
        yy=squares.sum()[None] if noise == "isotropic" else squares,
    )
    assert_same(Expectation(Y, noise)(p), expected, rtol=1e-10)


def assert_same(a, b, rtol=1e-12):
    for name in (f.name for f in fields(Statistics)):
        expected = np.asarray(getattr(b, name))
        atol = rtol * np.abs(expected).max()
        np.testing.assert_allclose(getattr(a, name), expected, rtol, atol, err_msg=name)


@by_noise
def test_neither_blocks_nor_threads_nor_a_shift_change_anything(noise, monkeypatch):
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own-means"], noise, (3, 2), n_points=101)
    whole = Expectation(Y, noise)(p)
    monkeypatch.setattr(statistics, "_LEAST_POINTS", 1)
    monkeypatch.setattr(statistics, "_MOST_POINTS", 13)
    blocked = Expectation(Y, noise)
    assert_same(blocked(p), whole)
    shift = np.array([1.0, -20.0, 0.3])
    assert_same(Expectation(Y + shift, noise, shift)(p), whole, rtol=1e-11)
    assert_same(Expectation(Y[:40], noise)(p) + Expectation(Y[40:], noise)(p), whole)
    with ThreadPoolExecutor(3) as executor:
        assert_same(Expectation(Y, noise, executor=executor)(p), blocked(p), rtol=0)


@by_noise
def test_a_block_without_a_single_value_counts_for_nothing(noise, monkeypatch):
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own-means"], noise, (3, 2), n_points=40)
    padded = np.vstack([np.full((30, 3), np.nan), Y, np.full((30, 3), np.nan)])
    expected = Expectation(Y, noise)(p)
    assert_same(Expectation(padded, noise)(p), expected)
    monkeypatch.setattr(statistics, "_LEAST_POINTS", 1)
    monkeypatch.setattr(statistics, "_MOST_POINTS", 8)
    assert_same(Expectation(padded, noise)(p), expected)


@by_noise
@pytest.mark.parametrize("family", [PriorFamily(), RICH, replace(RICH, shared=True)])
def test_gradient_is_the_slope_of_the_observed_log_likelihood(noise, family):
    rng = np.random.default_rng(5)
    family = replace(family, weight_count=1.5, variance_count=3.0, variance_at=0.3)
    model = make_model(family, noise, EVERYTHING)
    start = make_parameters(family, noise, (3, 2), rng)
    coordinates = Coordinates(model, start, 1e-3)
    theta = coordinates.pack(start)
    theta = theta + 0.2 * rng.normal(size=theta.shape)
    Y = with_holes(start.sample(12, rng)[0], 0.4, rng)

    def objective(theta):
        p = coordinates.unpack(theta)
        learned_slabs = model.expandable(p.prior) or family.n_slabs > 1
        return log_density(Y, p).sum() + penalty(family, p.prior, learned_slabs)

    p = coordinates.unpack(theta)
    gradient, _ = coordinates.gradient(theta, p, Expectation(Y, noise)(p))
    numerical = oracles.central_difference(objective, theta, 3e-6)
    np.testing.assert_allclose(gradient, numerical, rtol=1e-6, atol=1e-7 * np.abs(gradient).max())


# Maximum likelihood


@by_noise
@by_method
@by_family
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_the_log_likelihood_never_falls(noise, method, family, share):
    rng = np.random.default_rng(1)
    X = with_holes(make_data("more features", rng, (40, 4, 2)), share, rng)
    model = make_model(family, noise)
    mean, covariance, _ = observed_moments(X)
    start = STARTS["random"](model, covariance, 2, rng)
    result = maximise(
        Expectation(X, noise, mean),
        start,
        model,
        method=method,
        noise_floor=1e-4 * covariance.trace() / 4,
        max_iter=30,
    )
    assert np.diff(result.history).min() >= -1e-10
    explicit = log_density(X - mean, result.parameters).sum() / (~np.isnan(X)).any(axis=1).sum()
    rounding = 1e-9 + 1e-15 * np.square(result.parameters.prior.means).max()
    assert result.log_likelihood == pytest.approx(explicit, abs=rounding)


@st.composite
def problems(draw):
    """Data with any pattern of missingness, a model, and a start."""
    shape = tuple(draw(st.integers(low, high)) for low, high in ((3, 30), (1, 6), (1, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = make_data(draw(st.sampled_from(["square", "rank one", "constant column"])), rng, shape)
    model = make_model(
        FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))], draw(st.sampled_from(SEPARABLE))
    )
    start = make_start(model, X, shape[2], rng, draw(st.sampled_from(sorted(STARTS))))
    holes = st.lists(st.booleans(), min_size=X.size, max_size=X.size)
    X = np.where(np.reshape(draw(holes), X.shape), np.nan, X)
    X[0] = 0.3  # something is observed
    return X, model, start


@by_method
@given(problem=problems())
@settings(deadline=None, max_examples=40, derandomize=True)
def test_ten_iterations_with_any_pattern_climb_and_stay_finite(method, problem):
    X, model, start = problem
    floor = floor_of(np.nan_to_num(X), 1e-3)
    result = maximise(
        Expectation(X, model.noise), start, model, method=method, noise_floor=floor, max_iter=10
    )
    history = np.array(result.history)
    assert np.isfinite(history).all()
    assert np.diff(history).min(initial=0) >= -1e-10 * max(1.0, np.abs(history).max())
    for values in result.parameters.arrays().values():
        if values.dtype.kind == "f":
            assert np.isfinite(values).all()


def gaussian_fit(X, n_latents):
    """Probabilistic PCA of the observed entries by a general-purpose optimiser on the marginal."""
    n_features = X.shape[1]
    rows = [(y[~np.isnan(y)], np.flatnonzero(~np.isnan(y))) for y in X if not np.isnan(y).all()]

    def split(theta):
        W = theta[: n_features * n_latents].reshape(n_features, n_latents)
        covariance = W @ W.T + np.exp(theta[-1]) * np.eye(n_features)
        return theta[n_features * n_latents : -1], covariance

    def loss(theta):
        c, covariance = split(theta)
        return -sum(
            multivariate_normal.logpdf(y, c[o], covariance[np.ix_(o, o)]) for y, o in rows
        ) / len(rows)

    random = np.random.default_rng(0)
    start = np.append(random.normal(size=n_features * (n_latents + 1)), -1.0)
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-5})
    return -found.fun, split(found.x)


def test_always_on_is_probabilistic_pca_of_what_is_observed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1)) @ rng.normal(size=(1, 4)) + 0.5 * rng.normal(size=(60, 4)) + 1
    X = with_holes(X, 0.3, rng)
    expected, (mean, covariance) = gaussian_fit(X, 1)
    model = make_model(learn=("components", "noise", "mean"))
    start = make_start(model, np.nan_to_num(X), 1, rng, "pca")
    start = replace(start, prior=Prior.spike_and_slab([1.0]))
    result = maximise(Expectation(X), start, model, max_iter=5000, tol=1e-13)
    assert result.log_likelihood == pytest.approx(expected, abs=1e-7)
    np.testing.assert_allclose(result.parameters.offset, mean, atol=1e-3)
    np.testing.assert_allclose(result.parameters.covariance, covariance, atol=2e-3)


@by_noise
def test_the_order_of_rows_and_of_features_does_not_matter(noise):
    rng = np.random.default_rng(2)
    X = with_holes(make_data("more features", rng, (60, 4, 2)), 0.4, rng)
    model = make_model(FAMILIES["1slab-hard-own-means"], noise)
    start = make_start(model, np.nan_to_num(X), 2, rng)
    rows, columns = rng.permutation(60), rng.permutation(4)

    def fit(X, start):
        return maximise(Expectation(X, noise), start, model, method="px", max_iter=30)

    values = start.noise.values[columns] if noise == "diagonal" else start.noise.values
    moved = replace(
        start,
        mixing=start.mixing[columns],
        noise=type(start.noise)(values) if noise == "diagonal" else start.noise,
    )
    plain, other = fit(X, start), fit(X[rows][:, columns], moved)
    np.testing.assert_allclose(other.history, plain.history, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        other.parameters.mixing, plain.parameters.mixing[columns], rtol=1e-5, atol=1e-5
    )


def observed_moments(X):
    survey = Survey.of(X)
    mean = survey.y / survey.observed
    return mean, observed_covariance(ArrayRows(X), mean), survey.observed


def test_observed_moments_are_those_of_the_data_where_nothing_is_missing():
    X = np.random.default_rng(0).normal(size=(50, 4)) + 3
    mean, covariance, counts = observed_moments(X)
    np.testing.assert_allclose(mean, X.mean(axis=0))
    np.testing.assert_allclose(covariance, covariance_of(X - mean), atol=1e-12)
    np.testing.assert_array_equal(counts, 50)


def test_observed_moments_are_near_those_of_the_data_and_positive_definite():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, 3)) + [1, 2, 3]
    mean, covariance, counts = observed_moments(with_holes(X, 0.5, rng))
    np.testing.assert_allclose(mean, X.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(covariance, np.cov(X.T), atol=0.1)
    np.testing.assert_allclose(counts, 10_000, rtol=0.03)
    few = with_holes(rng.normal(size=(12, 8)), 0.6, rng)
    assert np.linalg.eigvalsh(observed_moments(few)[1])[0] > 0


# The estimator


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(1)
    return Parameters(
        rng.standard_normal((5, 3)),
        np.array([5.0, 0.0, -2.0, 1.0, 0.0]),
        Prior.spike_and_slab([0.2, 0.3, 0.4]),
        IsotropicNoise(0.02, 5),
    )


@pytest.fixture(scope="module")
def whole(truth):
    return truth.sample(600, np.random.default_rng(2))[0]


@pytest.fixture(scope="module")
def X(whole):
    X = with_holes(whole, 0.3, np.random.default_rng(3))
    X[::50] = np.nan
    return X


@pytest.fixture(scope="module")
def model(X):
    return GaussianSparseCoding(3, random_state=0).fit(X)


def test_it_recovers_the_parameters(truth, model):
    unit = [W / np.linalg.norm(W, axis=0) for W in (truth.mixing, model.mixing_)]
    order = np.abs(unit[0].T @ unit[1]).argmax(axis=1)
    assert np.abs(unit[0].T @ unit[1]).max(axis=1).min() > np.cos(np.radians(5))
    np.testing.assert_allclose(model.activation_[order], truth.prior.activation, atol=0.06)
    np.testing.assert_allclose(model.mean_, truth.offset, atol=0.1)
    assert model.parameters_.noise.variance == pytest.approx(0.02, rel=0.15)


def test_scores_are_densities_of_the_observed_entries(X, model):
    expected, some = log_density(X, model.parameters_), ~np.isnan(X).all(axis=1)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.score_samples(X)[~some], 0, atol=1e-12)
    n, k = some.sum(), model.n_parameters
    np.testing.assert_allclose(model.score(X), expected.sum() / n)
    np.testing.assert_allclose(model.log_likelihood_, expected.sum() / n)
    np.testing.assert_allclose(model.bic(X), -2 * expected.sum() + k * np.log(n))
    np.testing.assert_allclose(model.aic(X), -2 * expected.sum() + 2 * k)


def test_transform_and_posterior_are_those_of_the_observed_entries(X, model):
    expected, posterior = complete(X, model.parameters_), model.posterior(X)
    np.testing.assert_allclose(model.transform(X), expected.mean[:, 5:], atol=1e-9)
    np.testing.assert_array_equal(model.transform(X), posterior.mean)
    np.testing.assert_allclose(posterior.activation, expected.probabilities[:, :, 1], atol=1e-9)
    np.testing.assert_allclose(posterior.log_evidence, expected.log_density, atol=1e-9)
    outer = posterior.covariance() + posterior.mean[:, :, None] * posterior.mean[:, None, :]
    np.testing.assert_allclose(outer, expected.outer[:, 5:, 5:], atol=1e-9)
    np.testing.assert_allclose(posterior.supports(8).probability.sum(axis=1), 1)
    assert posterior.sample(2).shape == (2, *X.shape[:1], 3)


def test_impute_is_the_conditional_mean_and_its_spread(X, model):
    expected, missing = complete(X, model.parameters_), np.isnan(X)
    filled, std = model.impute(X, return_std=True)
    np.testing.assert_array_equal(filled, model.impute(X))
    np.testing.assert_array_equal(filled[~missing], X[~missing])
    np.testing.assert_array_equal(std[~missing], 0)
    mean = expected.mean[:, :5]
    variance = np.diagonal(expected.outer, axis1=1, axis2=2)[:, :5] - mean**2
    np.testing.assert_allclose(filled[missing], mean[missing], atol=1e-9)
    np.testing.assert_allclose(std[missing] ** 2, variance[missing], atol=1e-9)


def test_predictions_are_as_wrong_as_their_variance_says(truth):
    rng = np.random.default_rng(4)
    whole = truth.sample(20_000, rng)[0]
    Y = with_holes(whole, 0.4, rng)
    mean, variance = InferenceWithMissing(truth).predict(Y)
    missing = np.isnan(Y)
    error = np.mean((mean - whole)[missing] ** 2)
    assert error == pytest.approx(np.mean(variance[missing]), rel=0.03)


def test_rows_without_any_value_are_ignored_and_imputed_with_the_mean(X, model):
    some = ~np.isnan(X).all(axis=1)
    again = GaussianSparseCoding(3, random_state=0).fit(X[some])  # perhaps another of its runs
    assert again.log_likelihood_ == pytest.approx(model.log_likelihood_, abs=1e-7)
    nothing = np.full((2, 5), np.nan)
    filled, std = model.impute(nothing, return_std=True)
    p = model.parameters_
    np.testing.assert_allclose(filled, [p.mean] * 2, atol=1e-12)
    np.testing.assert_allclose(std, np.sqrt([np.diag(p.covariance)] * 2))
    np.testing.assert_allclose(model.score_samples(nothing), 0, atol=1e-12)


def test_the_data_are_not_changed_and_complete_data_come_back(whole, X, model):
    before = X.copy()
    model.impute(X)
    np.testing.assert_array_equal(X, before)
    filled, std = model.impute(whole, return_std=True)
    np.testing.assert_array_equal(filled, whole)
    np.testing.assert_array_equal(std, 0)


def test_single_precision_and_data_frames(X, model):
    narrow = X.astype(np.float32)
    filled, std = model.impute(narrow, return_std=True)
    assert filled.dtype == std.dtype == np.float32
    np.testing.assert_allclose(filled, model.impute(X), rtol=1e-4, atol=1e-4)
    assert model.transform(narrow).dtype == np.float32
    frame = pd.DataFrame(X, columns=list("abcde"))
    named = GaussianSparseCoding(3, random_state=0).fit(frame)
    # columns are laid out otherwise, so that sums round otherwise and the fits end a little apart
    np.testing.assert_allclose(named.impute(frame), model.impute(X), atol=1e-6)
    frame["c"] = np.nan
    with pytest.raises(ValueError, match=r"column 2 \('c'\) of X has no observed value"):
        GaussianSparseCoding(3).fit(frame)


def test_a_column_without_any_value_is_imputed_by_a_fitted_model(whole, model):
    X = whole[:20].copy()
    X[:, 2] = np.nan
    expected = complete(X, model.parameters_).mean[:, 2]
    np.testing.assert_allclose(model.impute(X)[:, 2], expected, atol=1e-9)


# Bad input


def test_full_noise_is_refused_with_a_sentence(whole, X):
    message = r"missing values \(NaN\), which noise='full' cannot take"
    with pytest.raises(ValueError, match=message):
        GaussianSparseCoding(3, noise="full").fit(X)
    with pytest.raises(ValueError, match=message):
        Expectation(X, "full")
    full = GaussianSparseCoding(2, noise="full", n_init=1, random_state=0, tol=1e-3).fit(whole)
    for method in (full.transform, full.score_samples, full.posterior, full.impute):
        with pytest.raises(ValueError, match=message):
            method(X)


@pytest.mark.parametrize("refuse", [separate, NoiseFreeSparseCoding(2).fit])
def test_the_other_models_refuse_missing_values(refuse, X):
    with pytest.raises(ValueError, match="X contains NaN"):
        refuse(X)


def test_infinity_is_no_missing_value(whole, model):
    X = whole.copy()
    X[3, 2] = np.inf
    for method in (model.fit, model.transform, model.impute, model.score):
        with pytest.raises(ValueError, match="infinity"):
            method(X)


def test_nothing_to_score_and_a_wrong_option_are_refused(X, model):
    with pytest.raises(ValueError, match="X has no observed value"):
        model.score(np.full((3, 5), np.nan))
    with pytest.raises(TypeError, match="return_std must be True or False"):
        model.impute(X, return_std="yes")
