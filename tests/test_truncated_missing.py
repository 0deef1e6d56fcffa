"""Truncated inference with missing values: everything is that of the observed entries, in the
states that are summed over.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import oracles
from problems import FAMILIES, make_model, make_parameters, problem_with_holes, with_holes
from spikeslab import (
    Expectation,
    GaussianSparseCoding,
    IsotropicNoise,
    Parameters,
    Prior,
    TruncatedInference,
    maximise,
)
from spikeslab.m_step import m_step
from spikeslab.missing import InferenceWithMissing
from spikeslab.noise import NOISES

SEPARABLE = ("isotropic", "diagonal")
by_noise = pytest.mark.parametrize("noise", SEPARABLE)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def close(found, wanted, tolerance=1e-9):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def in_the_set(inference, Y):
    """The oracle's completions of all points from the chosen states alone; of a point without any
    value from all states.
    """
    return completions(inference.parameters, Y, inference.states(Y))


def completions(p, Y, states):
    latents = np.arange(p.n_latents)
    answers = []
    for y, state, free in zip(Y, *states, strict=True):
        weights = np.zeros_like(p.prior.weights)
        weights[latents, state] = p.prior.weights[latents, state]
        weights[free] = p.prior.weights[free]
        if np.isnan(y).all():
            weights = p.prior.weights
        answers.append(
            oracles.completion(
                y, p.mixing, p.offset, p.noise.covariance, weights, p.prior.means, p.prior.variances
            )
        )
    return oracles.Completion(*(np.stack(values) for values in zip(*answers, strict=True)))


def check_moments(inference, Y, weights=None):
    p, answer = inference.parameters, in_the_set(inference, Y)
    D, missing = p.n_features, np.isnan(Y)
    q = np.ones(len(Y)) if weights is None else weights
    moments = inference.moments(Y, each=True, weights=weights)
    close(moments.log_evidence, answer.log_density)
    close(inference.log_evidence(Y), answer.log_density)
    close(moments.mean, answer.mean[:, D:])
    close(moments.probabilities, answer.probabilities)
    for name in ("counts", "first", "second"):
        each = answer.probabilities if name == "counts" else getattr(answer, name)
        close(getattr(moments, name), np.einsum("n,nhk->hk", q, each))
    outer = np.einsum("n,nij->ij", q, answer.outer)
    close(moments.outer, outer[D:, D:])
    close(moments.cross, outer[:D, D:])
    close(moments.y, q @ np.where(missing, answer.mean[:, :D], 0))
    squares = np.diagonal(answer.outer, axis1=1, axis2=2)[:, :D]
    squares = q @ np.where(missing, squares, 0)
    close(moments.yy, [squares.sum()] if p.noise.kind == "isotropic" else squares)
    return answer


# ---- inference ----


@by_noise
@by_family
def test_everything_is_that_of_the_observed_entries_in_the_chosen_set(kernel, family, noise):
    for shape, n_free, max_active in [((3, 4), 2, 2), ((5, 3), 1, 3), ((2, 4), 4, 1)]:
        p, Y = problem_with_holes(family, noise, shape, 11)
        inference = TruncatedInference(p, n_free, max_active)
        answer = check_moments(inference, Y)
        D = shape[0]
        mean, outer = answer.mean, answer.outer
        covariance = outer - mean[:, :, None] * mean[:, None, :]
        close(inference.covariance(Y), covariance[:, D:, D:])
        predicted, variance = inference.predict(Y)
        missing = np.isnan(Y)
        close(predicted[missing], mean[:, :D][missing])
        spread = np.diagonal(covariance, axis1=1, axis2=2)[:, :D]
        close(variance[missing], spread[missing], 1e-8)


@by_noise
@pytest.mark.parametrize("family", ["1slab-hard-own", "1slab-soft-own", "2slab-soft-own-means"])
def test_supports_draws_and_spreads_are_those_of_the_set(family, noise):
    p, Y = problem_with_holes(FAMILIES[family], noise, (4, 5), 6)
    Y = np.delete(Y, 2, axis=0)  # the empty row
    inference = TruncatedInference(p, 3, 4)
    answer = in_the_set(inference, Y)
    mean = answer.mean[:, 4:]
    covariance = answer.outer[:, 4:, 4:] - mean[:, :, None] * mean[:, None, :]
    form = np.random.default_rng(1).normal(size=(5, 5))
    form += form.T
    log_evidence, x, spread = inference.mean_and_spread(Y, form)
    close(log_evidence, answer.log_density)
    close(x, mean)
    close(spread, np.einsum("ij,nji->n", form, covariance))

    supports = inference.supports(Y, 100)
    close(supports.probability.sum(axis=1), 1)
    active = np.einsum("nk,nkh->nh", supports.probability, supports.active)
    close(active, answer.probabilities[:, :, 1:].sum(axis=2))

    draws = inference.sample(Y, 40_000, np.random.default_rng(0))
    deviation = np.sqrt(np.einsum("nhh->nh", covariance)) + 1e-12
    assert (np.abs(draws.mean(axis=0) - mean) < 5 * deviation / 200).all()
    centred = draws - draws.mean(axis=0)
    found = np.einsum("snh,snj->nhj", centred, centred) / 40_000
    scale = deviation[:, :, None] * deviation[:, None, :]
    assert (np.abs(found - covariance) < 0.06 * scale + 1e-9).all()


@by_noise
@pytest.mark.parametrize("family", ["1slab-hard-own", "2slab-soft-own-means"])
def test_weights_count_a_point_more_or_less_often(family, noise):
    p, Y = problem_with_holes(FAMILIES[family], noise, (3, 4), 20)
    weights = np.random.default_rng(1).uniform(0, 3, len(Y))
    check_moments(TruncatedInference(p, 2, 3), Y, weights)


@by_noise
@pytest.mark.parametrize("family", ["1slab-hard-own", "1slab-hard-own-means", "2slab-hard-shared"])
def test_with_everything_free_it_is_the_exact_inference(kernel, family, noise):
    p, Y = problem_with_holes(FAMILIES[family], noise, (12, 7), 60, 0.6)
    exact, free = InferenceWithMissing(p), TruncatedInference(p, 7, 7)
    close(free.log_evidence(Y), exact.log_evidence(Y))
    for each in (False, True):
        for found, wanted in zip(free.moments(Y, each), exact.moments(Y, each), strict=True):
            close(found, wanted)
    for found, wanted in zip(free.predict(Y), exact.predict(Y), strict=True):
        close(found, wanted)


@by_noise
@pytest.mark.parametrize(("n_free", "max_active"), [(1, 1), (2, 3), (5, 5)])
def test_latents_that_are_always_or_never_active(kernel, noise, n_free, max_active):
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own-means"], noise, (4, 5), 12)
    weights = np.array([[0, 1.0], [1, 0], [0.7, 0.3], [0.4, 0.6], [0, 1]])
    p = replace(p, prior=replace(p.prior, weights=weights))
    inference = TruncatedInference(p, n_free, max_active)
    answer = check_moments(inference, Y)
    mean, variance = inference.predict(Y)
    missing = np.isnan(Y)
    close(mean[missing], answer.mean[:, :4][missing])
    squares = np.diagonal(answer.outer, axis1=1, axis2=2)[:, :4]
    close(variance[missing], (squares - answer.mean[:, :4] ** 2)[missing], 1e-8)
    if n_free == 5:
        close(inference.log_evidence(Y), InferenceWithMissing(p).log_evidence(Y))


@pytest.mark.parametrize("family", ["1slab-hard-own", "2slab-soft-own-means"])
def test_a_bound_never_exceeds_the_exact_density(family):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n_features, n_latents = rng.integers(1, 9), rng.integers(2, 6)
        p = make_parameters(FAMILIES[family], "isotropic", (n_features, n_latents), rng)
        p = replace(p, noise=IsotropicNoise(float(10 ** rng.uniform(-3, 1)), int(n_features)))
        Y = with_holes(rng.normal(size=(20, n_features)) * 10 ** rng.uniform(-1, 1), 0.5, rng)
        n_free, max_active = rng.integers(1, n_latents + 1, 2)
        bound = TruncatedInference(p, int(n_free), int(max_active)).log_evidence(Y)
        assert (bound <= InferenceWithMissing(p).log_evidence(Y) + 1e-8).all()


def many_latents(rng, n_features=21, n_latents=90):
    prior = Prior.spike_and_slab(np.full(n_latents, 0.04))
    noise = NOISES["diagonal"](rng.uniform(0.05, 0.2, n_features))
    return Parameters(
        rng.normal(size=(n_features, n_latents)), rng.normal(size=n_features), prior, noise
    )


@pytest.mark.parametrize(("max_active", "n_moves"), [(16, 2), (3, 50)])
def test_deleting_features_is_missing_them_everywhere(kernel, max_active, n_moves):
    """Also where the search forgets what it knew of latents that it left."""
    rng = np.random.default_rng(1)
    p = many_latents(rng)
    kept = rng.random(21) < 0.6
    Y = np.where(kept, p.sample(200, rng)[0], np.nan)
    less = replace(
        p,
        mixing=p.mixing[kept],
        offset=p.offset[kept],
        noise=NOISES["diagonal"](p.noise.variances[kept]),
    )
    options = {"n_free": 6, "max_active": max_active, "n_moves": n_moves}
    masked, deleted = TruncatedInference(p, **options), TruncatedInference(less, **options)
    same = (masked.states(Y)[1] == deleted.states(Y[:, kept])[1]).all(axis=1)
    assert same.mean() > 0.98  # rounding in the search may choose other states of a few points
    found, wanted = masked.moments(Y[same], True), deleted.moments(Y[same][:, kept], True)
    for name in ("log_evidence", "mean", "probabilities", "counts", "first", "second", "outer"):
        close(getattr(found, name), getattr(wanted, name))
    close(found.cross[kept], wanted.cross)


def test_points_without_holes_are_bitwise_what_they_are_alone(kernel):
    rng = np.random.default_rng(2)
    p = many_latents(rng)
    Y, _ = p.sample(300, rng)
    some = rng.random(300) < 0.5
    mixed = np.where(some[:, None], with_holes(Y, 0.5, rng), Y)
    inference = TruncatedInference(p, 5)
    alone, among = inference.moments(Y, each=True), inference.moments(mixed, each=True)
    for name in ("log_evidence", "mean", "probabilities"):
        found, wanted = getattr(among, name), getattr(alone, name)
        np.testing.assert_array_equal(found[~some], wanted[~some])
    parts = [inference.moments(mixed[rows]) for rows in (some, ~some)]
    for name in ("counts", "first", "second", "outer", "cross"):
        close(getattr(among, name), sum(getattr(part, name) for part in parts))


def test_extreme_data_give_finite_answers(kernel):
    rng = np.random.default_rng(4)
    p = make_parameters(FAMILIES["1slab-hard-own-means"], "isotropic", (4, 6), rng)
    for far in (1e4, 1e8, 1e12, 1e16):
        Y = with_holes(far * rng.normal(size=(20, 4)), 0.4, rng)
        inference = TruncatedInference(p, 3)
        for values in (*inference.moments(Y, each=True), *inference.predict(Y)):
            assert np.isfinite(values).all()


def test_full_noise_is_refused_with_a_sentence():
    p, Y = problem_with_holes(FAMILIES["1slab-hard-own"], "isotropic", (3, 4), 11)
    p = replace(p, noise=NOISES["full"](p.noise.covariance))
    inference = TruncatedInference(p)
    asks = (inference.log_evidence, inference.moments, inference.states, inference.predict)
    for ask in (*asks, partial(inference.supports, k=1), inference.covariance):
        with pytest.raises(ValueError, match=r"missing values \(NaN\), which noise='full'"):
            ask(Y)


# ---- learning ----


def sparse_data(n_points, rng, n_features=8, n_latents=12):
    prior = Prior.spike_and_slab(np.full(n_latents, 0.12))
    W = rng.normal(size=(n_features, n_latents))
    truth = Parameters(W, rng.normal(size=n_features), prior, IsotropicNoise(0.02, n_features))
    return truth, truth.sample(n_points, rng)[0]


@by_noise
@by_family
def test_a_step_of_em_raises_the_bound_of_the_same_states(noise, family):
    p, Y = problem_with_holes(family, noise, (4, 4), 25)
    model = make_model(family, noise)
    p = p.shifted(-p.offset) if "mean" not in model.learn else p
    infer = partial(TruncatedInference, n_free=2, max_active=3)
    some = Y[~np.isnan(Y).all(axis=1)]
    for _ in range(3):
        states = infer(p).states(some)
        new = m_step(model, p, Expectation(some, noise, infer=infer)(p), 1e-4, expand=False)
        before, after = (completions(q, some, states).log_density.sum() for q in (p, new))
        assert after > before
        p = new


@by_noise
def test_fits_raise_the_bound_but_for_small_falls(noise):
    """States are chosen anew in every step, so it may fall; with everything free it does not."""
    rng = np.random.default_rng(5)
    truth, whole = sparse_data(300, rng)
    X = with_holes(whole - truth.offset, 0.4, rng)
    start = replace(truth, mixing=rng.normal(size=truth.mixing.shape), offset=0 * truth.offset)
    if noise == "diagonal":
        start = replace(start, noise=NOISES["diagonal"](np.full(8, 0.5)))
    for n_free, method in [(3, "quasi-newton"), (6, "quasi-newton"), (12, "em")]:
        infer = partial(TruncatedInference, n_free=n_free)
        data = Expectation(X, noise, infer=infer)
        result = maximise(data, start, make_model(noise=noise), method=method, max_iter=25)
        steps = np.diff(result.history)
        if n_free == 12:
            assert steps.min() >= -1e-12
        assert steps.min() > -0.02
        assert (steps < -1e-6).sum() <= 3
        assert result.history[-1] > result.history[0] + 1
        n = (~np.isnan(X).all(axis=1)).sum()
        exact = InferenceWithMissing(result.parameters).log_evidence(X).sum() / n
        assert result.log_likelihood <= exact + 1e-9


def test_a_step_of_em_is_the_exact_one_where_everything_is_free():
    rng = np.random.default_rng(6)
    truth, whole = sparse_data(100, rng, 6, 5)
    X = with_holes(whole, 0.5, rng)
    arguments = {"method": "em", "max_iter": 5}
    infer = partial(TruncatedInference, n_free=5, max_active=5)
    exact = maximise(Expectation(X), truth, make_model(), **arguments)
    free = maximise(Expectation(X, infer=infer), truth, make_model(), **arguments)
    close(free.history, exact.history)
    close(free.parameters.mixing, exact.parameters.mixing, 1e-7)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(7)
    truth, whole = sparse_data(1500, rng)
    X = with_holes(whole, 0.3, rng)
    X[::100] = np.nan
    return truth, whole, X


@pytest.fixture(scope="module")
def model(data):
    return GaussianSparseCoding(
        12, inference="truncated", n_free=6, max_active=6, init="data", n_init=1, max_iter=300,
        tol=1e-5, random_state=0,
    ).fit(data[2])  # fmt: skip


def test_the_estimator_says_what_truncated_inference_says(data, model):
    X = data[2][:120]
    assert model.bound_
    inference = TruncatedInference(model.parameters_, 6, 6)
    close(model.score_samples(X), inference.log_evidence(X))
    close(model.transform(X), inference.moments(X, each=True).mean)
    posterior = model.posterior(X)
    close(posterior.log_evidence, model.score_samples(X))
    close(posterior.covariance(), inference.covariance(X))
    supports = posterior.supports(3)
    np.testing.assert_array_equal(supports.active, inference.supports(X, 3).active)
    assert posterior.sample(2, random_state=0).shape == (2, 120, 12)
    mean, variance = inference.predict(X)
    filled, std = model.impute(X, return_std=True)
    missing = np.isnan(X)
    close(filled, np.where(missing, mean, X))
    close(std, np.where(missing, np.sqrt(variance), 0))
    np.testing.assert_array_equal(std[~missing], 0)


def test_imputing_comes_near_what_the_truth_would_say(data, model):
    truth, whole, X = data
    rows = ~np.isnan(X).all(axis=1)
    missing = np.isnan(X) & rows[:, None]
    best = InferenceWithMissing(truth).predict(X)[0]
    found = model.impute(X)

    def error(filled):
        return np.mean((filled - whole)[missing] ** 2)

    mean = np.broadcast_to(np.nanmean(X, axis=0), X.shape)
    assert error(found) < error(best) + 0.25 * (error(mean) - error(best))


def test_rows_without_any_value_do_not_count_and_are_imputed_with_the_mean(data, model):
    nothing = np.full((3, 8), np.nan)
    filled, std = model.impute(nothing, return_std=True)
    p = model.parameters_
    close(filled, [p.mean] * 3)
    close(std, [np.sqrt(p.covariance.diagonal())] * 3)
    np.testing.assert_array_equal(model.score_samples(nothing), 0)
    posterior = model.posterior(nothing)
    close(posterior.activation, [p.prior.activation] * 3)
    close(posterior.covariance(), [np.diag(p.prior.variance)] * 3)
    X = data[2]
    some = ~np.isnan(X).all(axis=1)
    close(model.score(X), model.score(X[some]))


@pytest.mark.filterwarnings("ignore:not converged")
def test_batches_and_partial_fit_take_missing_values(data):
    _, _, X = data
    arguments = {"n_components": 12, "inference": "truncated", "n_free": 4, "init": "data"}
    arguments |= {"n_init": 1, "random_state": 0}
    model = GaussianSparseCoding(tol=1e-3, **arguments).partial_fit(X[:500])
    before = model.score(X)
    for start in (500, 1000):
        model.partial_fit(X[start : start + 500])
    assert model.score(X) > before
    passes = GaussianSparseCoding(batch_size=500, max_iter=3, tol=1e-2, **arguments).fit(X)
    assert passes.history_[-1] > passes.history_[0]
    close(passes.score(X), passes.log_likelihood_)
