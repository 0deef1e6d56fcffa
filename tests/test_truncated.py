"""Truncated inference against brute force over exactly the states that it sums over, and the
estimator that uses it.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.special import expit

import oracles
from problems import FAMILIES, log_density, make_noise_of, make_parameters
from spikeslab import (
    Expectation,
    GaussianSparseCoding,
    IsotropicNoise,
    Model,
    Parameters,
    Prior,
    TruncatedInference,
    maximise,
)
from spikeslab._kernel import available, use
from spikeslab.blocks import ArrayRows
from spikeslab.initialise import data_start


def close(found, wanted, tolerance=1e-10):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def natural(p, Y):
    """A and b of the likelihood exp(b'x - x'Ax/2), by the textbook."""
    precise = np.linalg.solve(p.noise.covariance, p.mixing)
    return p.mixing.T @ precise, (Y - p.offset) @ precise


def in_the_set(inference, Y):
    """The oracle's answers for each point, from the chosen states alone."""
    p = inference.parameters
    A, b = natural(p, Y)
    answers = []
    for point, state, free in zip(b, *inference.states(Y), strict=True):
        weights = np.zeros_like(p.prior.weights)
        latents = np.arange(len(state))
        weights[latents, state] = p.prior.weights[latents, state]
        weights[free] = p.prior.weights[free]
        answers.append(oracles.posterior(A, point, weights, p.prior.means, p.prior.variances))
    return oracles.Posterior(*(np.stack(values) for values in zip(*answers, strict=True)))


def log_density_in(p, Y, answer):
    residual = Y - p.offset
    covariance = p.noise.covariance
    squares = np.einsum("nd,nd->n", residual, np.linalg.solve(covariance, residual.T).T)
    log_det = np.linalg.slogdet(2 * np.pi * covariance).logabsdet
    return answer.log_z - (squares + log_det) / 2


def check_against_the_set(inference, Y, weights=None):
    p, answer = inference.parameters, in_the_set(inference, Y)
    moments = inference.moments(Y, each=True, weights=weights)
    q = np.ones(len(Y)) if weights is None else weights
    close(moments.log_evidence, log_density_in(p, Y, answer))
    close(inference.log_evidence(Y), moments.log_evidence)
    close(moments.mean, answer.mean)
    close(moments.probabilities, answer.probabilities)
    close(moments.counts, np.einsum("n,nhk->hk", q, answer.probabilities))
    close(moments.first, np.einsum("n,nhk->hk", q, answer.first))
    close(moments.second, np.einsum("n,nhk->hk", q, answer.second))
    close(moments.outer, np.einsum("n,nij->ij", q, answer.outer))
    close(moments.cross, np.einsum("n,nd,nh->dh", q, Y, answer.mean))
    return answer


# ---- one point ----


def check_a_problem(family, noise, seed):
    rng = np.random.default_rng(seed)
    for n_features, n_latents, n_free, max_active in [(3, 4, 2, 2), (5, 3, 1, 3), (2, 4, 4, 1)]:
        p = make_parameters(FAMILIES[family], noise, (n_features, n_latents), rng)
        Y, _ = p.sample(9, rng)
        inference = TruncatedInference(p, n_free, max_active)
        check_against_the_set(inference, Y)
        exact = log_density(Y, p)
        assert (inference.log_evidence(Y) <= exact + 1e-9).all()
        if n_free == n_latents:
            close(inference.log_evidence(Y), exact)
        moments = inference.moments(Y)
        assert moments.mean.shape == (0, n_latents)  # not asked for
        assert moments.probabilities.shape == (0, n_latents, FAMILIES[family].n_components)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_in_the_chosen_set_and_never_above_the_exact_density(kernel, family):
    check_a_problem(family, "isotropic", 3)


@pytest.mark.parametrize("noise", ["diagonal", "full"])
@pytest.mark.parametrize("family", ["1slab-hard-own", "1slab-soft-own-means", "2slab-soft-shared"])
def test_any_noise(family, noise):
    check_a_problem(family, noise, 4)


def test_weights_count_a_point_more_or_less_often(kernel):
    rng = np.random.default_rng(4)
    for family in ("1slab-hard-own", "2slab-soft-own-means"):
        p = make_parameters(FAMILIES[family], "full", (3, 4), rng)
        Y, _ = p.sample(20, rng)
        inference = TruncatedInference(p, 2, 3)
        check_against_the_set(inference, Y, rng.uniform(0, 3, len(Y)))


@pytest.mark.parametrize("family", ["1slab-hard-own", "2slab-soft-own-means"])
def test_a_bound_never_exceeds_the_exact_density_on_many_problems(kernel, family):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n_features, n_latents = rng.integers(1, 9), rng.integers(2, 6)
        p = make_parameters(FAMILIES[family], "isotropic", (n_features, n_latents), rng)
        noise = IsotropicNoise(float(10 ** rng.uniform(-3, 1)), int(n_features))
        p = Parameters(p.mixing, p.offset, p.prior, noise)
        Y = rng.normal(size=(20, n_features)) * 10 ** rng.uniform(-1, 1)
        n_free, max_active = rng.integers(1, n_latents + 1, 2)
        bound = TruncatedInference(p, int(n_free), int(max_active)).log_evidence(Y)
        exact = log_density(Y, p)
        assert (bound <= exact + 1e-8).all()


def test_a_full_set_that_is_far_from_the_best_state_loses_no_digits(kernel):
    """Only one latent may be on in the set, but all are in the data: other states of the cube are
    more probable than it by far more than a double can hold.
    """
    rng = np.random.default_rng(5)
    prior = Prior.spike_and_slab(np.full(5, 0.3))
    p = Parameters(rng.normal(size=(8, 5)), np.zeros(8), prior, IsotropicNoise(1e-4, 8))
    Y = rng.normal(size=(30, 5)) @ p.mixing.T * 3
    inference = TruncatedInference(p, 4, 1)
    answer = in_the_set(inference, Y)
    moments = inference.moments(Y, each=True)
    best = [np.ravel_multi_index(tuple(state), (2,) * 5) for state in inference.states(Y)[0]]
    beyond = answer.state_log_weights.max(axis=1) - answer.state_log_weights[range(30), best]
    assert np.median(beyond) > 1500 * np.log(2)
    close(moments.log_evidence, log_density_in(p, Y, answer), 1e-9)
    close(moments.mean, answer.mean, 1e-7)
    close(moments.probabilities, answer.probabilities, 1e-7)


def test_extreme_data_give_finite_answers(kernel):
    rng = np.random.default_rng(15)
    for far in (1e4, 1e8, 1e12, 1e16):
        Y = far * rng.normal(size=(20, 4))
        for family in ("1slab-hard-own", "2slab-soft-own-means"):
            p = make_parameters(FAMILIES[family], "isotropic", (4, 6), rng)
            moments = TruncatedInference(p, 3).moments(Y, each=True)
            for name in ("log_evidence", "mean", "probabilities", "counts", "outer", "cross"):
                assert np.isfinite(getattr(moments, name)).all()


def test_every_number_of_free_latents_is_exact_where_nothing_interacts(kernel):
    """With orthogonal columns the posterior factorises, whatever is free."""
    rng = np.random.default_rng(6)
    n_latents = 12
    activation = rng.uniform(0.05, 0.95, n_latents)
    scale = rng.uniform(0.5, 3, n_latents)
    Q = np.linalg.qr(rng.normal(size=(n_latents, n_latents)))[0]
    p = Parameters(
        Q * scale, np.zeros(n_latents), Prior.spike_and_slab(activation), IsotropicNoise(0.5, 12)
    )
    Y, _ = p.sample(40, rng)
    b, q = (Y @ Q) * scale / 0.5, 1 + scale**2 / 0.5
    gain = np.log(activation / (1 - activation)) - np.log(q) / 2 + b**2 / (2 * q)
    for n_free in (1, 7, 8, 9, 11):
        inference = TruncatedInference(p, n_free, n_latents)
        state, free = inference.states(Y)
        np.testing.assert_array_equal(state, gain > 0)
        wanted_free = np.sort(np.argsort(np.abs(gain), axis=1)[:, :n_free], axis=1)
        np.testing.assert_array_equal(free, wanted_free)
        on = expit(gain)
        np.put_along_axis(on, np.argsort(np.abs(gain), axis=1)[:, n_free:], 0, axis=1)
        rest = np.argsort(np.abs(gain), axis=1)[:, n_free:]
        np.put_along_axis(on, rest, np.take_along_axis(state, rest, 1), axis=1)
        moments = inference.moments(Y, each=True)
        close(moments.probabilities[:, :, 1], on)
        close(moments.mean, on * b / q)


def test_the_search_ends_where_no_single_change_gains(kernel):
    rng = np.random.default_rng(7)
    for family in ("1slab-hard-own", "2slab-hard-own-means"):
        p = make_parameters(FAMILIES[family], "isotropic", (4, 6), rng)
        Y, _ = p.sample(25, rng)
        n_components = p.prior.n_components
        inference = TruncatedInference(p, 1, 6, n_moves=100)
        A, b = natural(p, Y)
        prior = p.prior.weights, p.prior.means, p.prior.variances
        for point, state in zip(b, inference.states(Y)[0], strict=True):
            logs = oracles.posterior(A, point, *prior).state_log_weights
            logs = logs.reshape((n_components,) * 6)
            best = logs[tuple(state)]
            for h in range(6):
                for component in range(n_components):
                    changed = state.copy()
                    changed[h] = component
                    assert logs[tuple(changed)] <= best + 0.05
                    for j in range(6):
                        if j == h or component or not state[h] or state[j]:
                            continue
                        for entering in range(1, n_components):  # exchange h for j
                            changed = state.copy()
                            changed[h], changed[j] = 0, entering
                            assert logs[tuple(changed)] <= best + 0.05


def test_latents_that_are_always_or_never_active(kernel):
    rng = np.random.default_rng(8)
    weights = np.array([[0, 1.0], [1, 0], [0.7, 0.3], [0.4, 0.6], [0, 1]])
    means, variances = rng.normal(size=(5, 2)), rng.uniform(0.5, 2, (5, 2))
    means[:, 0] = variances[:, 0] = 0
    p = Parameters(
        rng.normal(size=(3, 5)), rng.normal(size=3), Prior(weights, means, variances),
        make_noise_of("diagonal", 3, rng),
    )  # fmt: skip
    Y, _ = p.sample(10, rng)
    check_against_the_set(TruncatedInference(p, 1, 1), Y)
    check_against_the_set(TruncatedInference(p, 4, 2), Y)
    found = TruncatedInference(p, 3, 3).supports(Y, 2)
    assert found.active[:, :, 0].all()
    assert not found.active[:, :, 1].any()


def test_a_spike_broader_than_its_slab(kernel):
    """Fits of soft spikes may pass through such priors."""
    rng = np.random.default_rng(14)
    p = make_parameters(FAMILIES["2slab-soft-own-means"], "isotropic", (4, 5), rng)
    variances = p.prior.variances.copy()
    variances[:3] = variances[:3, ::-1]
    variances[3] = 0.7  # none is broader
    prior = Prior(p.prior.weights, p.prior.means, variances)
    p = Parameters(p.mixing, p.offset, prior, p.noise)
    Y, _ = p.sample(8, rng)
    inference = TruncatedInference(p, 2, 3)
    answer = check_against_the_set(inference, Y)
    supports = inference.supports(Y, 100)
    close(supports.probability.sum(axis=1), 1)
    active = np.einsum("nk,nkh->nh", supports.probability, supports.active)
    close(active, answer.probabilities[:, :, 1:].sum(axis=2))


def test_factor_analysis_is_exact_whatever_is_free(kernel):
    rng = np.random.default_rng(9)
    for weights in (np.ones((30, 1)), np.tile([0.0, 1.0], (30, 1))):
        prior = Prior(weights, 0 * weights, 1 + 0 * weights)
        W, noise = rng.normal(size=(6, 30)), make_noise_of("diagonal", 6, rng)
        p = Parameters(W, np.zeros(6), prior, noise)
        Y, _ = p.sample(10, rng)
        moments = TruncatedInference(p, 1, 1).moments(Y, each=True)
        covariance = W @ W.T + noise.covariance
        squares = np.einsum("nd,nd->n", Y, np.linalg.solve(covariance, Y.T).T)
        log_det = np.linalg.slogdet(2 * np.pi * covariance).logabsdet
        close(moments.log_evidence, -(squares + log_det) / 2)
        close(moments.mean, Y @ np.linalg.solve(covariance, W))


@pytest.mark.parametrize("family", ["1slab-hard-own", "1slab-soft-own", "2slab-soft-own-means"])
def test_covariances_supports_and_draws_are_those_of_the_set(family):
    rng = np.random.default_rng(10)
    p = make_parameters(FAMILIES[family], "isotropic", (4, 5), rng)
    Y, _ = p.sample(4, rng)
    inference = TruncatedInference(p, 3, 4)
    answer = in_the_set(inference, Y)
    covariance = answer.outer - answer.mean[:, :, None] * answer.mean[:, None, :]
    close(inference.covariance(Y), covariance)

    form = rng.normal(size=(5, 5))
    form += form.T
    log_evidence, mean, spread = inference.mean_and_spread(Y, form)
    close(log_evidence, inference.log_evidence(Y))
    close(mean, answer.mean)
    close(spread, np.einsum("ij,nji->n", form, covariance))

    supports = inference.supports(Y, 100)
    assert supports.active.shape == (4, 8, 5)
    close(supports.probability.sum(axis=1), 1)
    assert (np.diff(supports.probability, axis=1) <= 0).all()
    active = np.einsum("nk,nkh->nh", supports.probability, supports.active)
    close(active, answer.probabilities[:, :, 1:].sum(axis=2))

    draws = inference.sample(Y, 40_000, np.random.default_rng(0))
    centred = draws - draws.mean(axis=0)
    deviation = np.sqrt(np.einsum("nhh->nh", covariance)) + 1e-12
    assert (np.abs(draws.mean(axis=0) - answer.mean) < 5 * deviation / 200).all()
    found = np.einsum("snh,snj->nhj", centred, centred) / 40_000
    scale = deviation[:, :, None] * deviation[:, None, :]
    assert (np.abs(found - covariance) < 0.06 * scale + 1e-9).all()


# ---- many points ----


def test_blocks_and_threads_make_no_difference():
    rng = np.random.default_rng(11)
    p = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (8, 20), rng)
    Y, _ = p.sample(40_000, rng)  # three blocks
    infer = partial(TruncatedInference, n_free=4)
    alone = Expectation(Y, infer=infer)(p)
    with ThreadPoolExecutor(2) as pool:
        together = Expectation(Y, executor=pool, infer=infer)(p)
    inference = infer(p)
    parts = [inference.moments(Y[i : i + 777]) for i in range(0, len(Y), 777)]
    assert together.log_likelihood == alone.log_likelihood
    for name in ("counts", "first", "second", "xx", "yx"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    for name, field in {"counts": "counts", "xx": "outer", "yx": "cross"}.items():
        close(getattr(alone, name), sum(getattr(part, field) for part in parts), 1e-10)
    assert len(inference.moments(Y[:0]).log_evidence) == 0


def test_all_kernels_agree_on_many_latents():
    rng = np.random.default_rng(12)
    p = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (30, 150), rng)
    weights = np.tile([0.98, 0.02], (150, 1))
    p = Parameters(p.mixing, p.offset, Prior(weights, p.prior.means, p.prior.variances), p.noise)
    Y, _ = p.sample(300, rng)
    answers = []
    for name in available():
        use(name)
        answers.append(TruncatedInference(p).moments(Y))
    use("")
    for answer in answers[1:]:
        same = np.isclose(answer.log_evidence, answers[0].log_evidence, rtol=1e-10, atol=1e-10)
        assert same.mean() > 0.98  # rounding in the search may choose other states of a few points


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_free": 0}, "n_free must be at least 1, got 0"),
        ({"n_free": 6}, "n_free must be at most the number of latents, 5, got 6"),
        ({"n_free": 2.5}, "n_free must be a whole number"),
        ({"max_active": 0}, "max_active must be at least 1, got 0"),
        ({"max_active": 6}, "max_active must be at most the number of latents, 5, got 6"),
        ({"n_moves": -1}, "n_moves must be at least 0, got -1"),
    ],
)
def test_impossible_truncations_are_refused(arguments, message):
    rng = np.random.default_rng(0)
    p = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (3, 5), rng)
    with pytest.raises((ValueError, TypeError), match=message):
        TruncatedInference(p, **arguments)


def test_more_free_latents_than_there_is_room_for_are_refused():
    rng = np.random.default_rng(0)
    p = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (3, 70), rng)
    with pytest.raises(ValueError, match="n_free must be at most 20, got 21"):
        TruncatedInference(p, n_free=21)
    with pytest.raises(ValueError, match="max_active must be at most 64, got 65"):
        TruncatedInference(p, max_active=65)


# ---- the estimator ----


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(13)
    prior = Prior.spike_and_slab(np.full(6, 0.15))
    truth = Parameters(rng.normal(size=(5, 6)), rng.normal(size=5), prior, IsotropicNoise(0.05, 5))
    return truth.sample(400, rng)[0]


@pytest.fixture(scope="module")
def model(X):
    return GaussianSparseCoding(
        6, inference="truncated", n_free=3, max_active=4, init="random", n_init=2, random_state=0
    ).fit(X)


def test_the_fit_is_a_bound_that_never_falls(X, model):
    assert model.bound_
    assert (np.diff(model.history_) >= 0).all()
    close(model.score(X), model.log_likelihood_, 1e-9)
    exact = log_density(X, model.parameters_)
    assert (model.score_samples(X) <= exact + 1e-9).all()
    close(model.aic(X), -2 * model.score_samples(X).sum() + 2 * model.n_parameters)


def test_posteriors_and_transform_are_those_of_truncated_inference(X, model):
    p, rows = model.parameters_, X[:30]
    inference = TruncatedInference(p, 3, 4)
    answer = in_the_set(inference, rows)
    posterior = model.posterior(rows)
    close(posterior.activation, answer.probabilities[:, :, 1])
    close(posterior.log_evidence, model.score_samples(rows))
    close(model.transform(rows), answer.mean)
    covariance = answer.outer - answer.mean[:, :, None] * answer.mean[:, None, :]
    close(posterior.covariance(), covariance)
    assert posterior.supports(2).active.shape == (30, 2, 6)
    assert posterior.sample(3, random_state=0).shape == (3, 30, 6)


def test_saved_models_keep_how_they_infer(X, model, tmp_path):
    model.save(tmp_path / "model.npz")
    loaded = GaussianSparseCoding.load(tmp_path / "model.npz")
    assert loaded.bound_
    np.testing.assert_array_equal(loaded.score_samples(X), model.score_samples(X))


def test_with_everything_free_the_fit_is_the_exact_one(X):
    arguments = {"n_components": 4, "init": "random", "n_init": 1, "random_state": 0, "tol": 1e-9}
    exact = GaussianSparseCoding(**arguments).fit(X)
    free = GaussianSparseCoding(inference="truncated", n_free=4, **arguments).fit(X)
    assert not exact.bound_
    assert not free.bound_
    close(free.log_likelihood_, exact.log_likelihood_, 1e-7)


def test_fitting_the_bound_comes_near_the_exact_optimum():
    """From the same start, to 1 % of what the exact fit gains: the median over problems. With one
    latent clamped; with two it is 2 to 3 %, because half of the fits end in another optimum.
    """
    missed = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        prior = Prior.spike_and_slab(np.full(8, 0.15))
        truth = Parameters(rng.normal(size=(8, 8)), np.zeros(8), prior, IsotropicNoise(0.1, 8))
        X, _ = truth.sample(400, rng)
        arguments = {"n_components": 8, "init": "data", "n_init": 1, "random_state": seed}
        exact = GaussianSparseCoding(**arguments).fit(X)
        truncated = GaussianSparseCoding(inference="truncated", n_free=7, **arguments).fit(X)
        reached = log_density(X, truncated.parameters_).mean()
        gained = exact.log_likelihood_ - exact.history_[0]
        missed.append((exact.log_likelihood_ - reached) / gained)
    assert np.median(missed) < 0.01


def test_auto_is_exact_as_long_as_that_is_affordable(X):
    for n_components, n_slabs, bound in [
        (14, 1, False),
        (15, 1, True),
        (8, 2, False),
        (9, 2, True),
    ]:
        model = GaussianSparseCoding(
            n_components, n_slabs=n_slabs, init="random", n_init=1, max_iter=1, random_state=0
        )
        with pytest.warns(Warning, match="not converged"):
            model.fit(X[:20])
        assert model.bound_ == bound


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inference": "some"}, "inference must be one of 'auto', 'exact', 'truncated'"),
        ({"n_free": 0}, "n_free must be at least 1, got 0"),
        ({"max_active": 0}, "max_active must be at least 1, got 0"),
        ({"inference": "truncated", "n_free": 5}, "n_free must be at most the number of latents"),
        ({"inference": "truncated", "max_active": 5}, "max_active must be at most the number"),
    ],
)
def test_impossible_arguments_are_refused(X, arguments, message):
    model = GaussianSparseCoding(4, **arguments)
    with pytest.raises(ValueError, match=message):
        model.fit(X)
    assert not hasattr(model, "parameters_")


def test_starting_from_data_takes_samples_as_components(X):
    model = GaussianSparseCoding(
        20, init="data", n_init=1, random_state=0, to_learn=["noise"], max_iter=1
    )
    with pytest.warns(Warning, match="not converged"):
        model.fit(X)
    rows = X - X.mean(axis=0)
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (rows, model.components_)]
    assert (unit[1] @ unit[0].T).max(axis=1).min() > 1 - 1e-12
    norms = [np.linalg.norm(a, axis=1) for a in (rows, model.components_)]
    assert norms[1].mean() > 1.2 * norms[0].mean()  # energy is preferred


def bars(n_points, size, rng):
    """Images (N, size^2) in which about two of the 2 * size horizontal and vertical bars appear,
    with amplitude N(0, 9) in unit noise; and the bars.
    """
    shapes = np.zeros((2, size, size, size))
    shapes[0, np.arange(size), np.arange(size)] = shapes[1, np.arange(size), :, np.arange(size)] = 1
    shapes = shapes.reshape(2 * size, size**2)
    on = rng.random((n_points, 2 * size)) < 1 / size
    amplitudes = 3 * rng.standard_normal(on.shape) * on
    return amplitudes @ shapes + rng.standard_normal((n_points, size**2)), shapes


def found_bars(model, shapes):
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (shapes, model.components_)]
    return (np.abs(unit[0] @ unit[1].T).max(axis=1) > 0.9).all()


def test_bars_are_found():
    X, shapes = bars(1000, 5, np.random.default_rng(0))
    model = GaussianSparseCoding(
        10, inference="truncated", n_free=6, init="data", n_init=2, tol=1e-5, random_state=0
    ).fit(X)
    assert found_bars(model, shapes)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 8])
def test_bars_are_found_nearly_always(size):
    successes = 0
    for seed in range(10):
        X, shapes = bars(2000, size, np.random.default_rng(seed))
        model = GaussianSparseCoding(
            2 * size, inference="truncated", init="data", tol=1e-5, random_state=seed
        ).fit(X)
        successes += found_bars(model, shapes)
    assert successes >= 9


def log_density_in_many_digits(p, y):
    """Sum over all states, with 80 digits."""
    with mpmath.workdps(80):
        W, y = mpmath.matrix(p.mixing.tolist()), mpmath.matrix(y.tolist())
        variance, total = mpmath.mpf(float(p.noise.variance)), mpmath.mpf(0)
        for state in product((0, 1), repeat=p.n_latents):
            weight, covariance = mpmath.mpf(1), variance * mpmath.eye(p.n_features)
            for h, k in enumerate(state):
                weight *= mpmath.mpf(float(p.prior.weights[h, k]))
                if k:
                    covariance += W[:, h] * W[:, h].T
            square = (y.T * mpmath.lu_solve(covariance, y))[0]
            total += weight * mpmath.exp(-square / 2) / mpmath.sqrt(mpmath.det(covariance))
        return float(mpmath.log(total) - p.n_features * mpmath.log(2 * mpmath.pi) / 2)


@pytest.mark.parametrize(("n_features", "n_latents", "n_free"), [(3, 5, 5), (3, 5, 2), (4, 4, 4)])
@pytest.mark.parametrize("variance", [1e-8, 1e-12])
def test_with_next_to_no_noise_the_bound_is_one_to_what_double_precision_can_tell(
    variance, n_features, n_latents, n_free
):
    rng = np.random.default_rng(0)
    p = Parameters(
        rng.normal(size=(n_features, n_latents)),
        np.zeros(n_features),
        Prior.spike_and_slab(np.full(n_latents, 0.3)),
        IsotropicNoise(variance, n_features),
    )
    Y, _ = p.sample(15, rng)
    bound = TruncatedInference(p, n_free, n_latents).log_evidence(Y)
    exact = np.array([log_density_in_many_digits(p, y) for y in Y])
    rounding = 1e-16 / variance * 100
    assert (bound < exact + rounding + 1e-9).all()
    if n_free == n_latents:
        np.testing.assert_allclose(bound, exact, atol=rounding)


@pytest.mark.parametrize("family", ["hard", "soft, two slabs"])
@pytest.mark.parametrize("variance", [1e-12, 1e-16, 1e-20])
def test_with_however_little_noise_everything_is_finite(variance, family):
    rng = np.random.default_rng(1)
    for n_features, n_latents, n_free in ((4, 4, 4), (6, 10, 5), (3, 8, 8)):
        prior = Prior.spike_and_slab(np.full(n_latents, 0.3))
        if family != "hard":
            rows = ([0.7, 0.2, 0.1], [0.0, 1.0, -2.0], [0.01, 1.0, 3.0])
            prior = Prior(*(np.tile(row, (n_latents, 1)) for row in rows))
        noise = IsotropicNoise(variance, n_features)
        p = Parameters(rng.normal(size=(n_features, n_latents)), np.zeros(n_features), prior, noise)
        inference = TruncatedInference(p, n_free, n_latents)
        for moments in inference.moments(p.sample(200, rng)[0], each=True):
            assert np.isfinite(moments).all()


def test_quasi_newton_reaches_the_exact_optimum_though_the_bound_falls_now_and_then():
    """It used to end where the bound first fell."""
    model, missed = Model(learn=frozenset({"components", "prior", "noise"})), []
    for seed in range(7):
        rng = np.random.default_rng(seed)
        prior = Prior.spike_and_slab(np.full(10, 0.2))
        mixing, noise = rng.standard_normal((10, 10)), IsotropicNoise(0.1, 10)
        Y, _ = Parameters(mixing, np.zeros(10), prior, noise).sample(1000, rng)
        begin = data_start(model, ArrayRows(Y), np.zeros(10), Y.T @ Y / len(Y), 10, rng)
        exact = Expectation(Y)
        aim = maximise(exact, begin, model, tol=1e-6)
        found = maximise(Expectation(Y, infer=TruncatedInference), begin, model, tol=1e-6)
        reached = exact(found.parameters).log_likelihood / len(Y)
        missed.append((aim.log_likelihood - reached) / (aim.log_likelihood - aim.history[0]))
    assert np.median(missed) < 0.005
    assert np.sum(np.array(missed) > 0.01) <= 1  # which exact steps from there do not mend either
