"""What changes the data's coordinates changes the fit in the same way, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import (
    DATA,
    EVERYTHING,
    FAMILIES,
    METHODS,
    NOISES,
    covariance_of,
    floor_of,
    make_data,
    make_model,
    make_start,
)
from spikeslab import Expectation, Parameters, Prior, maximise
from spikeslab.initialise import STARTS
from spikeslab.noise import make_noise

by_noise = pytest.mark.parametrize("noise", NOISES)
by_method = pytest.mark.parametrize("method", METHODS)
FEW = ["1slab-hard-own", "1slab-soft-own-means", "2slab-hard-shared", "2slab-soft-own-means"]
by_family = pytest.mark.parametrize("family", [FAMILIES[name] for name in FEW], ids=FEW)


def problem(family, noise, shape=(80, 3, 2)):
    """Data, model and start."""
    rng = np.random.default_rng(0)
    X = make_data("plain", rng, shape)
    model = make_model(family, noise)
    return X, model, make_start(model, X, shape[2], rng, "pca")


def fit(X, model, start, method, scale=1.0):
    floor = 1e-4 * scale**2
    return maximise(
        Expectation(X, model.noise), start, model, method=method, noise_floor=floor, max_iter=12
    )


def transformed(p, T):
    """The parameters of T y; T may only be what the noise model allows."""
    covariance = T @ p.noise.covariance @ T.T
    values = {
        "isotropic": covariance[:1, 0],
        "diagonal": np.diag(covariance),
        "full": covariance,
    }[p.noise.kind]
    noise = make_noise(p.noise.kind, values, p.n_features)
    return Parameters(T @ p.mixing, T @ p.offset, p.prior, noise)


def with_latents(p, order, sign):
    """The parameters with reordered, reflected latents."""
    weights, means, variances = (
        v[order] for v in (p.prior.weights, p.prior.means, p.prior.variances)
    )
    prior = Prior(weights, means * sign[:, None], variances)
    return replace(p, mixing=p.mixing[:, order] * sign, prior=prior)


def assert_same(a, b, scale=1.0):
    """Equal parameters, W and the offset in units of `scale`."""
    close = {"rtol": 1e-5, "atol": 1e-7}
    np.testing.assert_allclose(a.mixing / scale, b.mixing / scale, **close)
    np.testing.assert_allclose(a.offset / scale, b.offset / scale, **close)
    np.testing.assert_allclose(a.noise.values / scale**2, b.noise.values / scale**2, **close)
    for name in ("weights", "means", "variances"):
        np.testing.assert_allclose(getattr(a.prior, name), getattr(b.prior, name), **close)


def assert_equivariant(X, model, start, method, T, scale=1.0):
    plain = fit(X, model, start, method)
    moved = fit(X @ T.T, model, transformed(start, T), method, scale)
    assert moved.n_evaluations == plain.n_evaluations
    log_det = np.linalg.slogdet(T).logabsdet
    expected = np.array(plain.history) - log_det
    np.testing.assert_allclose(moved.history, expected, rtol=1e-8, atol=1e-8)
    assert_same(moved.parameters, transformed(plain.parameters, T), scale)


@pytest.mark.parametrize("noise", ["isotropic", "full"])
@by_method
@by_family
def test_rotating_the_data_rotates_the_fit(noise, method, family):
    T, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    assert_equivariant(*problem(family, noise), method, T)


@by_noise
@by_method
@by_family
def test_permuting_and_reflecting_features_permutes_and_reflects_the_fit(noise, method, family):
    T = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert_equivariant(*problem(family, noise), method, T)


@by_noise
@by_method
@by_family
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_scaling_the_data_scales_the_fit(noise, method, family, scale):
    assert_equivariant(*problem(family, noise), method, scale * np.eye(3), scale)


@by_family
@pytest.mark.parametrize("method", ["em", "px"])
def test_scaling_each_feature_scales_the_fit_with_diagonal_noise(family, method):
    X, model, start = problem(family, "diagonal")
    T = np.diag([1e-3, 1.0, 1e3])
    plain = maximise(Expectation(X, "diagonal"), start, model, method=method, max_iter=12)
    moved = maximise(
        Expectation(X @ T, "diagonal"),
        transformed(start, T),
        model,
        method=method,
        max_iter=12,
    )
    np.testing.assert_allclose(moved.history, plain.history, rtol=1e-8)
    back = transformed(moved.parameters, np.linalg.inv(T))
    assert_same(back, plain.parameters)


@by_noise
@by_method
@by_family
@pytest.mark.parametrize("shape", [(80, 3, 2), (60, 2, 4)], ids=["D>H", "H>D"])
def test_order_and_signs_of_the_latents_do_not_matter(noise, method, family, shape):
    X, model, start = problem(family, noise, shape)
    order = np.roll(np.arange(shape[2]), 1)
    sign = np.where(np.arange(shape[2]) % 2, 1.0, -1.0)
    if family.shared:
        sign = np.full(shape[2], -1.0)  # shared means have a common sign
    plain = fit(X, model, start, method)
    moved = fit(X, model, with_latents(start, order, sign), method)
    np.testing.assert_allclose(moved.history, plain.history, rtol=1e-8, atol=1e-8)
    assert_same(moved.parameters, with_latents(plain.parameters, order, sign))


@by_noise
@by_method
def test_the_order_of_the_points_does_not_matter(noise, method):
    X, model, start = problem(FAMILIES["1slab-hard-own-means"], noise)
    forward, backward = (fit(Y, model, start, method) for Y in (X, X[::-1]))
    np.testing.assert_allclose(backward.history, forward.history, rtol=1e-8, atol=1e-8)
    assert_same(backward.parameters, forward.parameters)


@by_noise
@pytest.mark.parametrize("method", ["em", "px"])
def test_points_seen_twice_weigh_twice_and_change_nothing(noise, method):
    X, model, start = problem(FAMILIES["1slab-hard-own-means"], noise)
    once, twice = (fit(Y, model, start, method) for Y in (X, np.repeat(X, 2, axis=0)))
    np.testing.assert_allclose(twice.history, once.history, rtol=1e-8, atol=1e-8)
    assert_same(twice.parameters, once.parameters)


@st.composite
def problems(draw):
    """Data of any shape, scale and degeneracy, a model, and a start from `initialise`."""
    shape = tuple(draw(st.integers(low, high)) for low, high in ((2, 40), (1, 6), (1, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from([*DATA, "one value"]))
    X = make_data("all zero" if kind == "one value" else kind, rng, shape)
    X = (X + (kind == "one value")) * 10.0 ** draw(st.floats(-6, 6))
    family = FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))]
    learn = draw(st.sampled_from([EVERYTHING, EVERYTHING[:3]]))
    model = make_model(family, draw(st.sampled_from(NOISES)), learn)
    start_of = STARTS[draw(st.sampled_from(sorted(STARTS)))]
    return X, model, start_of(model, covariance_of(X), shape[2], rng)


@by_method
@given(problem=problems())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_ten_iterations_from_any_start_climb_and_stay_finite(method, problem):
    X, model, start = problem
    floor = floor_of(X)
    result = maximise(
        Expectation(X, model.noise), start, model, method=method, noise_floor=floor, max_iter=10
    )
    history, p = np.array(result.history), result.parameters
    assert np.isfinite(history).all()
    assert np.diff(history).min(initial=0) >= -1e-10 * max(1.0, np.abs(history).max())
    for values in p.arrays().values():
        if values.dtype.kind == "f":
            assert np.isfinite(values).all()
    assert p.prior.weights.min() >= 0
    assert p.prior.weights.max() <= 1
    assert np.linalg.eigvalsh(p.noise.covariance)[0] >= floor * (1 - 1e-8)
