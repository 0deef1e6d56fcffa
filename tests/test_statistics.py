"""Statistics are a sum over the points, however it is computed."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest

import oracles
from problems import FAMILIES, NOISES, log_density, make_parameters
from spikeslab import Expectation, Statistics, statistics

NAMES = [f.name for f in fields(Statistics)]

by_noise = pytest.mark.parametrize("noise", NOISES)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def assert_same(a, b, rtol=1e-12):
    for name in NAMES:
        expected = np.asarray(getattr(b, name))
        atol = rtol * np.abs(expected).max()
        np.testing.assert_allclose(getattr(a, name), expected, rtol, atol, err_msg=name)


def assert_bitwise_same(a, b):
    for name in NAMES:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of 13 points, streamed rather than kept."""
    monkeypatch.setattr(statistics, "_LEAST_POINTS", 1)
    monkeypatch.setattr(statistics, "_MOST_POINTS", 13)


def problem(noise="isotropic", family="1slab-hard-own-means", n_points=101, shape=(3, 2)):
    rng = np.random.default_rng(0)
    p = make_parameters(FAMILIES[family], noise, shape, rng)
    return p.sample(n_points, rng)[0], p


@by_noise
@by_family
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)], ids=["D>H", "H>D"])
def test_statistics_are_the_sums_of_the_textbook_posterior(noise, family, shape):
    rng = np.random.default_rng(1)
    p = make_parameters(family, noise, shape, rng)
    X = p.sample(7, rng)[0]
    s = Expectation(X, noise)(p)
    precision = np.linalg.inv(p.noise.covariance)
    A, prior = p.mixing.T @ precision @ p.mixing, p.prior
    each = [
        oracles.posterior(A, b, prior.weights, prior.means, prior.variances)
        for b in (X - p.offset) @ precision @ p.mixing
    ]
    full = X.T @ X
    expected = Statistics(
        n=len(X),
        log_likelihood=log_density(X, p).sum(),
        counts=sum(q.probabilities for q in each),
        first=sum(q.first for q in each),
        second=sum(q.second for q in each),
        x=sum(q.mean for q in each),
        xx=sum(q.outer for q in each),
        yx=sum(np.outer(y, q.mean) for y, q in zip(X, each, strict=True)),
        y=X.sum(axis=0),
        yy={"isotropic": full.trace()[None], "diagonal": np.diag(full), "full": full}[noise],
    )
    assert_same(s, expected, rtol=1e-10)


@by_noise
@by_family
@pytest.mark.parametrize("cut", [1, 50, 100])
def test_two_parts_add_up_to_the_whole(noise, family, cut):
    rng = np.random.default_rng(2)
    p = make_parameters(family, noise, (3, 2), rng)
    X = p.sample(101, rng)[0]
    first, second, whole = (Expectation(part, noise)(p) for part in (X[:cut], X[cut:], X))
    assert_same(first + second, whole)


def test_statistics_do_not_add_to_anything_else():
    X, p = problem()
    with pytest.raises(TypeError):
        Expectation(X)(p) + 1


@by_noise
def test_blocks_change_nothing_beyond_rounding(noise, request):
    X, p = problem(noise)
    whole = Expectation(X, noise)(p)
    request.getfixturevalue("tiny_blocks")
    blocked = Expectation(X, noise)
    assert len(list(statistics.block_slices(X.shape, 4))) == 8
    assert_same(blocked(p), whole)


@by_noise
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_change_nothing_at_all(noise, n_threads, tiny_blocks):
    X, p = problem(noise, n_points=997)
    serial = Expectation(X, noise)(p)
    with ThreadPoolExecutor(n_threads) as executor:
        for _ in range(3):
            assert_bitwise_same(Expectation(X, noise, executor=executor)(p), serial)


@by_noise
@pytest.mark.parametrize("streamed", [False, True])
def test_a_shift_is_subtracted_from_the_data(noise, streamed, request):
    if streamed:
        request.getfixturevalue("tiny_blocks")
    X, p = problem(noise)
    shift = np.array([1.0, -20.0, 0.3])
    assert_same(Expectation(X + shift, noise, shift)(p), Expectation(X, noise)(p))
    assert_same(Expectation(X + 2, noise, 2)(p), Expectation(X, noise)(p))


@by_noise
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, ">f8"])
def test_other_types_and_layouts_are_computed_in_float64(noise, streamed, dtype, request):
    if streamed:
        request.getfixturevalue("tiny_blocks")
    X, p = problem(noise)
    X = (10 * X).astype(dtype)
    expected = Expectation(X.astype(np.float64), noise, 0.1)(p)
    for variant in (X, np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2]):
        assert_same(Expectation(variant, noise, 0.1)(p), expected)


def test_the_data_are_not_changed():
    X, p = problem()
    before = X.copy()
    Expectation(X, shift=1.0)(p)
    np.testing.assert_array_equal(X, before)


def peak_memory(X, executor=None):
    """Most memory that an E-step takes besides the data."""
    p = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (8, 3), np.random.default_rng(3))
    tracemalloc.start()
    try:
        Expectation(X, executor=executor)(p)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_stays_below_half_of_many_data(dtype):
    X = np.random.default_rng(3).normal(size=(200_000, 8)).astype(dtype)
    assert peak_memory(X) < X.nbytes / 2


def test_memory_stays_below_half_of_very_many_data_with_threads():
    X = np.random.default_rng(3).normal(size=(800_000, 8))
    with ThreadPoolExecutor(2) as executor:
        assert peak_memory(X, executor) < X.nbytes / 2
