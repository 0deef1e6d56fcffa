"""Maximum likelihood: it climbs, its derivatives are right, and it ends where it should."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import oracles
from problems import (
    DATA,
    EVERYTHING,
    FAMILIES,
    METHODS,
    NOISES,
    floor_of,
    log_density,
    make_data,
    make_model,
    make_parameters,
    make_start,
    penalty,
)
from spikeslab import Expectation, IsotropicNoise, Parameters, Prior, PriorFamily, maximise
from spikeslab.coordinates import Coordinates
from spikeslab.m_step import m_step

by_noise = pytest.mark.parametrize("noise", NOISES)
by_method = pytest.mark.parametrize("method", METHODS)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
by_data = pytest.mark.parametrize("data", DATA)

REGULARISED = {
    name: replace(family, weight_count=1.5, variance_count=3.0, variance_at=0.3)
    for name, family in FAMILIES.items()
}
by_regularised = pytest.mark.parametrize("family", REGULARISED.values(), ids=REGULARISED.keys())

SUBSETS = [s for size in range(1, 5) for s in combinations(EVERYTHING, size)]
by_subset = pytest.mark.parametrize("learn", SUBSETS, ids="+".join)

RICH = PriorFamily(n_slabs=2, soft_spike=True, slab_means=True)


def assert_never_falls(values):
    assert np.isfinite(values).all()
    assert np.diff(values).min(initial=0.0) >= -1e-10


def assert_sound(parameters, floor):
    prior = parameters.prior
    for array in (parameters.mixing, parameters.offset, prior.means, prior.variances):
        assert np.isfinite(array).all()
    assert prior.weights.min() >= 0
    assert prior.weights.max() <= 1
    np.testing.assert_allclose(prior.weights.sum(axis=1), 1, rtol=1e-12)
    assert (prior.variances >= 0).all()
    assert np.linalg.eigvalsh(parameters.noise.covariance)[0] >= floor * (1 - 1e-8)


# The likelihood never falls


@by_noise
@by_method
@by_family
@by_data
def test_log_likelihood_never_falls_and_parameters_stay_sound(noise, method, family, data):
    rng = np.random.default_rng(1)
    X = make_data(data, rng)
    model = make_model(family, noise)
    start = make_start(model, X, DATA[data][2], rng)
    floor = floor_of(X)
    result = maximise(
        Expectation(X, noise), start, model, method=method, noise_floor=floor, max_iter=30
    )
    assert_never_falls(result.history)
    assert_sound(result.parameters, floor)
    assert result.log_likelihood == result.history[-1]


@by_noise
@by_method
@pytest.mark.parametrize("data", ["rank one", "rank deficient", "zero column"])
def test_without_noise_the_log_likelihood_falls_by_no_more_than_rounding(noise, method, data):
    rng = np.random.default_rng(1)
    X = make_data(data, rng)
    model = make_model(noise=noise)
    start = make_start(model, X, DATA[data][2], rng)
    result = maximise(
        Expectation(X, noise), start, model, method=method, noise_floor=1e-10, max_iter=60
    )
    assert np.diff(result.history).min() >= -1e-5  # 1e10 times float64's resolution, and a bit


@by_noise
@by_method
@by_family
@pytest.mark.parametrize("data", ["square", "more latents", "rank one"])
def test_log_likelihood_never_falls_while_the_noise_floor_is_lowered(noise, method, family, data):
    rng = np.random.default_rng(2)
    X = make_data(data, rng)
    model = make_model(family, noise)
    start = make_start(model, X, DATA[data][2], rng, "pca")
    floors = {"anneal_from": floor_of(X, 0.3), "noise_floor": floor_of(X)}
    result = maximise(
        Expectation(X, noise),
        start,
        model,
        method=method,
        anneal_iterations=15,
        max_iter=30,
        **floors,
    )
    assert_never_falls(result.history)
    assert_sound(result.parameters, floors["noise_floor"])


@by_noise
@by_method
@by_regularised
@pytest.mark.parametrize("data", ["square", "duplicated points"])
def test_with_pseudo_counts_the_penalised_objective_never_falls(noise, method, family, data):
    rng = np.random.default_rng(3)
    X = make_data(data, rng)
    model = make_model(family, noise)
    expectation, visits, objectives = Expectation(X, noise), {}, []

    def visit(parameters):
        statistics = expectation(parameters)
        visits[statistics.log_likelihood / len(X)] = parameters
        return statistics

    def note(progress):
        visited = visits[progress.log_likelihood].prior  # with the slabs' scale still in it
        learned_slabs = method != "em" or family.n_slabs > 1
        added = penalty(family, visited, learned_slabs)
        objectives.append(progress.log_likelihood + added / len(X))

    start = make_start(model, X, DATA[data][2], rng)
    result = maximise(
        visit,
        start,
        model,
        method=method,
        noise_floor=floor_of(X),
        max_iter=20,
        callback=note,
    )
    assert_never_falls(objectives)
    assert_sound(result.parameters, floor_of(X))


@by_noise
@by_method
@by_family
def test_with_pseudo_counts_of_the_weights_the_callback_sees_the_objective_rise(
    noise, method, family
):
    rng = np.random.default_rng(4)
    X = make_data("square", rng)
    family = replace(family, weight_count=2.0)
    model, objectives = make_model(family, noise), []

    def note(progress):
        added = penalty(family, progress.parameters.prior, learned_slabs=False)
        objectives.append(progress.log_likelihood + added / len(X))

    start = make_start(model, X, 2, rng)
    maximise(
        Expectation(X, noise),
        start,
        model,
        method=method,
        noise_floor=floor_of(X),
        max_iter=30,
        callback=note,
    )
    assert_never_falls(objectives)


# Coordinates


def coordinates_at_random(family, noise, learn, seed, shape=(3, 2), shake=0.2):
    """A model, its coordinates around random parameters, and a point in them."""
    rng = np.random.default_rng(seed)
    model = make_model(family, noise, learn)
    start = make_parameters(family, noise, shape, rng)
    coordinates = Coordinates(model, start, 1e-3)
    theta = coordinates.pack(start)
    theta = theta + shake * rng.normal(size=theta.shape)
    X = start.sample(12, rng)[0]
    return model, coordinates, theta, X


def assert_gradient_is_right(family, noise, learn):
    model, coordinates, theta, X = coordinates_at_random(family, noise, learn, 5)

    def objective(theta):
        p = coordinates.unpack(theta)
        value = log_density(X, p).sum()
        if "prior" not in model.learn:
            return value
        return value + penalty(family, p.prior, model.expandable(p.prior) or family.n_slabs > 1)

    p = coordinates.unpack(theta)
    gradient, _ = coordinates.gradient(theta, p, Expectation(X, noise)(p))
    numerical = oracles.central_difference(objective, theta, 3e-6)
    np.testing.assert_allclose(gradient, numerical, rtol=1e-6, atol=1e-7 * np.abs(gradient).max())


@by_noise
@by_regularised
def test_gradient_is_the_slope_of_the_penalised_log_likelihood(noise, family):
    assert_gradient_is_right(family, noise, EVERYTHING)


@by_noise
@by_subset
@pytest.mark.parametrize("family", [PriorFamily(), RICH], ids=["plain", "rich"])
def test_gradient_is_right_whatever_is_learned(noise, learn, family):
    assert_gradient_is_right(family, noise, learn)


def flat(p):
    arrays = p.mixing, p.offset, p.prior.weights, p.prior.means, p.prior.variances
    return np.concatenate([np.ravel(v) for v in (*arrays, p.noise.covariance)])


@by_noise
@by_subset
@pytest.mark.parametrize(
    "family", [PriorFamily(), replace(RICH, shared=True)], ids=["plain", "rich"]
)
def test_unpack_undoes_pack(noise, learn, family):
    _, coordinates, theta, _ = coordinates_at_random(family, noise, learn, 6)
    p = coordinates.unpack(theta)
    again = coordinates.unpack(coordinates.pack(p))
    np.testing.assert_allclose(flat(again), flat(p), rtol=1e-10, atol=1e-12)
    packed = coordinates.pack(again)
    np.testing.assert_allclose(packed, coordinates.pack(p), rtol=1e-8, atol=1e-10)


def assert_metric_is_the_em_step(family, noise, learn):
    """At fixed Statistics the M-step is their stationary point; displace it and come back."""
    rng = np.random.default_rng(7)
    model = make_model(family, noise, learn)
    truth = make_parameters(family, noise, (3, 2), rng)
    s = Expectation(truth.sample(100, rng)[0], noise)(truth)
    coordinates = Coordinates(model, truth, 1e-9)
    theta = coordinates.pack(m_step(model, truth, s, 1e-9, True))
    p = coordinates.unpack(theta + 1e-5 * rng.normal(size=theta.shape))
    theta = coordinates.pack(p)
    gradient, metric = coordinates.gradient(theta, p, s)
    em_step = flat(m_step(model, p, s, 1e-9, True)) - flat(p)
    step = flat(coordinates.unpack(theta + metric(gradient))) - flat(p)
    assert np.linalg.norm(step - em_step) < 1e-3 * np.linalg.norm(em_step)


@by_noise
@by_family
def test_metric_turns_the_gradient_into_the_em_step(noise, family):
    assert_metric_is_the_em_step(family, noise, EVERYTHING)


@by_noise
@by_regularised
def test_metric_turns_the_penalised_gradient_into_the_em_step(noise, family):
    assert_metric_is_the_em_step(family, noise, EVERYTHING)


@by_noise
@by_subset
def test_metric_turns_the_gradient_into_the_em_step_whatever_is_learned(noise, learn):
    assert_metric_is_the_em_step(RICH, noise, learn)


# The M-step


def posteriors(p, X):
    """The textbook posterior of every point."""
    precision, prior = np.linalg.inv(p.noise.covariance), p.prior
    A, B = p.mixing.T @ precision @ p.mixing, (X - p.offset) @ precision @ p.mixing
    return [oracles.posterior(A, b, prior.weights, prior.means, prior.variances) for b in B]


def expected_log_likelihood(family, p, old, X, expand):
    """Brute force: the expectation, under given posteriors, of the log density of y and x."""
    precision = np.linalg.inv(p.noise.covariance)
    log_det = np.linalg.slogdet(2 * np.pi * p.noise.covariance).logabsdet
    total = penalty(family, p.prior, expand or family.n_slabs > 1)
    some = slice(0 if family.soft_spike else 1, None)  # a hard spike has no density
    m, v = p.prior.means[:, some], p.prior.variances[:, some]
    for y, q in zip(X, old, strict=True):
        total += np.sum(q.probabilities * np.log(p.prior.weights))
        probability, first, second = (
            each[:, some] for each in (q.probabilities, q.first, q.second)
        )
        square = second - 2 * m * first + m**2 * probability
        total -= np.sum(probability * np.log(2 * np.pi * v) + square / v) / 2
        r, W = y - p.offset, p.mixing
        cross = W @ np.outer(q.mean, r)
        scatter = np.outer(r, r) - cross - cross.T + W @ q.outer @ W.T
        total -= (log_det + np.sum(precision * scatter)) / 2
    return total


def perturbations(p, model, floor, expand, size, rng):
    """Allowed parameters around p, moved in one group at a time and in all."""
    family, prior = model.prior, p.prior
    one_row = slice(0, 1) if family.shared else slice(None)

    def shake(shape):
        noise = size * rng.normal(size=shape)
        noise[:] = noise[one_row]
        return noise

    weights = prior.weights * np.exp(shake(prior.weights.shape))
    weights /= weights.sum(axis=1, keepdims=True)
    means = prior.means + shake(prior.means.shape) * family.learned_means(p.n_latents)
    free = family.learned_variances(p.n_latents, expand)
    variances = prior.variances * np.exp(shake(free.shape) * free)
    if p.noise.kind == "isotropic":
        noise = IsotropicNoise(p.noise.variance * np.exp(size * rng.normal()), p.n_features)
    elif p.noise.kind == "diagonal":
        noise = type(p.noise)(p.noise.variances * np.exp(size * rng.normal(size=p.n_features)))
    else:
        turn = np.eye(p.n_features) + size * rng.normal(size=(p.n_features,) * 2)
        noise = type(p.noise)(turn @ p.noise.covariance @ turn.T)
    changes = {
        "mixing": p.mixing + size * rng.normal(size=p.mixing.shape),
        "offset": p.offset + size * rng.normal(size=p.offset.shape),
        "noise": noise.at_least(floor),
    }
    yield from (replace(p, **{name: change}) for name, change in changes.items())
    for change in ({"weights": weights}, {"means": means}, {"variances": variances}):
        yield replace(p, prior=replace(prior, **change))
    yield replace(p, prior=Prior(weights, means, variances), **changes)


@by_noise
@by_family
@pytest.mark.parametrize("expand", [False, True], ids=["plain", "expanded"])
@pytest.mark.parametrize("floor", [1e-6, 1.5], ids=["free", "at the floor"])
def test_m_step_maximises_the_expected_log_likelihood(noise, family, expand, floor):
    rng = np.random.default_rng(8)
    # with one slab, regularised variances and the expansion exclude each other
    variance_count = 0.0 if expand and family.n_slabs == 1 else 2.0
    family = replace(family, weight_count=1.0, variance_count=variance_count)
    model = make_model(family, noise, EVERYTHING)
    old = make_parameters(family, noise, (2, 2), rng)
    assert not expand or model.expandable(old.prior) or not family.slab_means
    expand = expand and model.expandable(old.prior)
    X = old.sample(8, rng)[0]
    best = m_step(model, old, Expectation(X, noise)(old), floor, expand)
    beliefs = posteriors(old, X)
    height = expected_log_likelihood(family, best, beliefs, X, expand)
    for size in (1e-4, 1e-2, 0.3):
        for other in perturbations(best, model, floor, expand, size, rng):
            assert expected_log_likelihood(family, other, beliefs, X, expand) <= height + 1e-9


# Where it ends


@pytest.fixture(scope="module")
def clear():
    """Two clear sources: data, start and model."""
    rng = np.random.default_rng(9)
    truth = Parameters(
        np.array([[1.0, 0.6], [-0.4, 1.2]]),
        np.zeros(2),
        Prior.spike_and_slab([0.3, 0.4]),
        IsotropicNoise(0.01, 2),
    )
    X = truth.sample(300, rng)[0]
    model = make_model()
    return Expectation(X), make_start(model, X, 2, rng, "pca"), model


@pytest.fixture(scope="module")
def long_em(clear):
    return maximise(*clear, method="em", max_iter=20000, tol=1e-11)


@pytest.mark.parametrize("method", ["px", "quasi-newton"])
def test_faster_methods_reach_the_optimum_of_plain_em_in_fewer_e_steps(clear, long_em, method):
    fast = maximise(*clear, method=method, max_iter=20000, tol=1e-11)
    assert long_em.converged
    assert fast.converged
    assert fast.log_likelihood == pytest.approx(long_em.log_likelihood, abs=1e-7)
    np.testing.assert_allclose(flat(fast.parameters), flat(long_em.parameters), atol=2e-3)
    assert fast.n_evaluations < long_em.n_evaluations


def test_with_pseudo_counts_of_variances_plain_em_and_quasi_newton_reach_the_same_optimum(clear):
    expectation, start, _ = clear
    family = PriorFamily(soft_spike=True, shared=True, weight_count=1.0, variance_count=20.0)
    model = make_model(family)
    start = replace(start, prior=family.start(2, np.random.default_rng(0)))
    # a floor, because a soft spike takes the noise's part and leaves a plateau towards zero noise
    plain, fast = (
        maximise(
            expectation, start, model, method=method, max_iter=5000, tol=1e-9, noise_floor=1e-3
        )
        for method in ("em", "quasi-newton")
    )
    assert fast.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-4)


@by_method
def test_a_run_ends_converged(clear, method):
    result = maximise(*clear, method=method, tol=1e-4)
    assert (result.reason, result.converged) == ("converged", True)
    assert result.n_iter == len(result.history) - 1 < 1000


@by_method
def test_a_run_ends_at_max_iter(clear, method):
    result = maximise(*clear, method=method, tol=0, max_iter=7)
    assert (result.reason, result.converged, result.n_iter) == ("max_iter", False, 7)
    assert len(result.history) == 8


@by_method
def test_a_callback_ends_the_run_and_saw_every_iteration(clear, method):
    seen = []

    def note(progress):
        seen.append(progress)
        return progress.iteration == 5

    result = maximise(*clear, method=method, callback=note, run=3)
    assert (result.reason, result.converged, result.n_iter) == ("callback", False, 5)
    assert [p.iteration for p in seen] == list(range(6))
    assert {p.run for p in seen} == {3}
    assert [p.log_likelihood for p in seen] == result.history
    np.testing.assert_array_equal(flat(seen[-1].parameters), flat(result.parameters))


@by_method
@pytest.mark.parametrize("after", [0, 1, 4, 12])
def test_ctrl_c_returns_the_best_parameters_so_far(clear, method, after):
    expectation, start, model = clear
    calls = []

    def interrupted(parameters):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(expectation(parameters))
        return calls[-1]

    result = maximise(interrupted, start, model, method=method)
    assert (result.reason, result.converged) == ("interrupted", False)
    if after:
        reached = expectation(result.parameters)
        assert result.log_likelihood == max(s.log_likelihood for s in calls) / reached.n
        assert reached.log_likelihood / reached.n == pytest.approx(result.log_likelihood, abs=1e-9)
    else:
        np.testing.assert_allclose(flat(result.parameters), flat(start), rtol=1e-14)


# What is learned, and what is not


@by_noise
@by_method
@by_subset
@pytest.mark.parametrize("family", [PriorFamily(), RICH], ids=["plain", "rich"])
def test_what_is_not_learned_stays_bitwise(noise, method, learn, family):
    rng = np.random.default_rng(10)
    start = make_parameters(family, noise, (3, 2), rng)
    X = start.sample(30, rng)[0] + 1.0
    model = make_model(family, noise, learn)
    p = maximise(Expectation(X, noise), start, model, method=method, max_iter=10).parameters
    before, after = (
        {
            "components": q.mixing,
            "mean": q.offset,
            "prior": np.stack([q.prior.weights, q.prior.means, q.prior.variances]),
            "noise": q.noise.values,
        }
        for q in (start, p)
    )
    assert {name for name in EVERYTHING if (before[name] != after[name]).any()} == set(learn)


@by_method
def test_slab_means_that_are_not_learned_stay(method):
    rng = np.random.default_rng(11)
    prior = Prior.spike_and_slab([0.4, 0.6], slab_mean=1.5)
    start = Parameters(rng.normal(size=(3, 2)), np.zeros(3), prior, IsotropicNoise(0.1, 3))
    X = start.sample(100, rng)[0]
    fit = maximise(Expectation(X), start, make_model(), method=method, max_iter=10).parameters
    np.testing.assert_allclose(fit.prior.means, prior.means, rtol=1e-12)
    np.testing.assert_allclose(fit.prior.variances, prior.variances, rtol=1e-12)


def slab_mean_square(prior):
    weights = prior.weights[:, 1:] / prior.weights[:, 1:].sum(axis=1, keepdims=True)
    return (weights * (prior.variances[:, 1:] + prior.means[:, 1:] ** 2)).sum(axis=1)


def assert_canonical(family, prior):
    scale = prior.variances[:, 1] if family.n_slabs == 1 else slab_mean_square(prior)
    np.testing.assert_allclose(scale, 1, rtol=1e-12)


@by_noise
@by_family
def test_canonical_is_the_same_density_with_the_scale_in_w(noise, family):
    rng = np.random.default_rng(12)
    p = make_parameters(family, noise, (3, 2), rng)
    canonical = make_model(family, noise).canonical(p)
    X = p.sample(20, rng)[0]
    np.testing.assert_allclose(log_density(X, canonical), log_density(X, p), rtol=1e-10)
    assert_canonical(family, canonical.prior)


@by_method
@by_family
def test_fitted_parameters_are_canonical(method, family):
    rng = np.random.default_rng(13)
    X = make_data("square", rng)
    model = make_model(family)
    start = make_start(model, X, 2, rng)
    result = maximise(Expectation(X), start, model, method=method, max_iter=8)
    assert_canonical(family, result.parameters.prior)
