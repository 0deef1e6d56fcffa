"""The other methods of source separation, against dense computations and known answers."""

import sys
from itertools import combinations_with_replacement

import numpy as np
import pytest

import oracles
from spikeslab.baselines import fast_ica, jade, kernel_ica, least_squares_ica, picard
from spikeslab.baselines._rotations import minimise_over_rotations, slope_of_rotation
from spikeslab.baselines._whiten import whiten
from spikeslab.baselines.jade import cumulant_matrices, diagonalise_jointly
from spikeslab.baselines.kernel_ica import (
    Kernel,
    incomplete_cholesky,
    kernel_generalised_variance,
)
from spikeslab.baselines.least_squares_ica import (
    _RIDGES,
    Ratio,
    held_out_losses,
    squared_loss_mutual_information,
)
from spikeslab.initialise import random_rotations
from spikeslab.metrics import amari_index

METHODS = {
    "jade": lambda X, n=None: jade(X, n),
    "kernel": lambda X, n=None: kernel_ica(X, n, random_state=0),
    "least squares": lambda X, n=None: least_squares_ica(X, n, n_init=2, random_state=0),
    "fast logcosh": lambda X, n=None: fast_ica(X, n, random_state=0),
    "fast exp": lambda X, n=None: fast_ica(X, n, fun="exp", random_state=0),
    "fast cube": lambda X, n=None: fast_ica(X, n, fun="cube", random_state=0),
    "picard": lambda X, n=None: picard(X, n, extended=True, random_state=0),
    "picard ortho": lambda X, n=None: picard(X, n, extended=True, ortho=True, random_state=0),
}


def sources_of(kind, rng, shape):
    if kind == "uniform":
        return rng.uniform(-1, 1, shape)
    if kind == "skewed":
        return rng.exponential(size=shape)
    S = rng.laplace(size=shape)
    if kind == "mixed":
        S[:, 0] = rng.uniform(-1, 1, shape[0])
    return S


@pytest.mark.parametrize("kind", ["laplace", "uniform", "mixed", "skewed"])
@pytest.mark.parametrize("name", METHODS)
def test_known_sources_are_separated(name, kind):
    if name.startswith("picard"):
        pytest.importorskip("picard")
    rng = np.random.default_rng(0)
    slow = name in ("kernel", "least squares")
    shape = (200, 2) if slow else (400, 3)
    S = sources_of(kind, rng, shape)
    A = rng.standard_normal((shape[1], shape[1]))
    X = S @ A.T + [10.0, -5.0, 0.0][: shape[1]]
    unmixing = METHODS[name](X)
    assert amari_index(unmixing, A) < 0.16
    if name != "picard":  # whose scale is that of its densities
        np.testing.assert_allclose((X @ unmixing.T).std(axis=0), 1, rtol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_more_channels_are_reduced_to_the_principal_subspace(name):
    if name.startswith("picard"):
        pytest.importorskip("picard")
    rng = np.random.default_rng(1)
    A = rng.standard_normal((5, 2))
    X = rng.laplace(size=(200, 2)) @ A.T + 1e-3 * rng.standard_normal((200, 5))
    unmixing = METHODS[name](X, 2)
    assert unmixing.shape == (2, 5)
    assert amari_index(unmixing, A) < 0.16


def test_jade_and_the_kernel_methods_find_the_same():
    rng = np.random.default_rng(2)
    X = sources_of("mixed", rng, (500, 3)) @ rng.standard_normal((3, 3))
    found = [METHODS[name](X) for name in ("jade", "kernel", "least squares")]
    for one in found:
        for other in found:
            assert amari_index(one, np.linalg.inv(other)) < 0.13


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_answer(name):
    if name.startswith("picard"):
        pytest.importorskip("picard")
    X = np.random.default_rng(3).laplace(size=(60, 2)) @ [[1.0, 0.4], [0.2, 1.0]]
    np.testing.assert_array_equal(METHODS[name](X), METHODS[name](X))


# ---- whitening ----


@pytest.mark.parametrize("n_sources", [None, 2])
def test_whitening_is_that_of_the_covariance(n_sources):
    rng = np.random.default_rng(0)
    X = rng.laplace(size=(200, 4)) @ rng.standard_normal((4, 4)) + [1.0, 2.0, 3.0, 4.0]
    Z, whitener = whiten(X, n_sources)
    size = n_sources or 4
    np.testing.assert_allclose(Z.T @ Z / 200, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(Z, (X - X.mean(axis=0)) @ whitener.T, atol=1e-10)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    leading = vectors[:, -size:] / np.sqrt(values[-size:])
    np.testing.assert_allclose(whitener.T @ whitener, leading @ leading.T, atol=1e-10)


# ---- JADE ----


def test_cumulant_matrices_are_the_cumulants_of_brute_force():
    rng = np.random.default_rng(0)
    Z, _ = whiten(rng.laplace(size=(80, 3)) @ rng.standard_normal((3, 3)))
    second = np.einsum("ni,nj->ij", Z, Z) / 80
    fourth = np.einsum("ni,nj,nk,nl->ijkl", Z, Z, Z, Z) / 80
    fourth -= np.einsum("ij,kl->ijkl", second, second)
    fourth -= np.einsum("ik,jl->ijkl", second, second)
    fourth -= np.einsum("il,jk->ijkl", second, second)
    pairs = list(combinations_with_replacement(range(3), 2))
    got = cumulant_matrices(Z)
    assert len(got) == len(pairs)
    for matrix, (i, j) in zip(got, pairs, strict=True):
        factor = 1 if i == j else np.sqrt(2)
        np.testing.assert_allclose(matrix, factor * fourth[i, j], atol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_joint_diagonalisation_finds_the_common_axes(size):
    rng = np.random.default_rng(size)
    rotation = random_rotations(1, size, rng)[0]
    diagonals = rng.standard_normal((6, size))
    matrices = rotation @ (diagonals[:, :, None] * np.eye(size)) @ rotation.T
    found = diagonalise_jointly(matrices)
    np.testing.assert_allclose(found @ found.T, np.eye(size), atol=1e-12)
    assert amari_index(found, rotation) < 1e-8


def off_diagonal(rotation, matrices):
    turned = rotation @ matrices @ rotation.T
    return (turned**2).sum() - (np.diagonal(turned, axis1=1, axis2=2) ** 2).sum()


def test_joint_diagonalisation_leaves_as_little_as_brute_force():
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((5, 2, 2))
    matrices = matrices + matrices.transpose(0, 2, 1)
    angles = np.linspace(0, np.pi, 20_000)
    turns = np.array([[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]])
    least = min(off_diagonal(turn, matrices) for turn in turns.transpose(2, 0, 1))
    got = off_diagonal(diagonalise_jointly(matrices), matrices)
    np.testing.assert_allclose(got, least, rtol=1e-5)
    # with more axes: no small rotation of a plane is better
    matrices = rng.standard_normal((8, 4, 4))
    matrices = matrices + matrices.transpose(0, 2, 1)
    found = diagonalise_jointly(matrices)
    value = off_diagonal(found, matrices)
    for p in range(4):
        for q in range(p):
            for angle in (-0.01, 0.01):
                turn = np.eye(4)
                turn[p, p] = turn[q, q] = np.cos(angle)
                turn[p, q], turn[q, p] = np.sin(angle), -np.sin(angle)
                assert off_diagonal(turn @ found, matrices) > value


# ---- kernel ICA ----


def gram(source, width):
    return np.exp(-((source[:, None] - source) ** 2) / (2 * width**2))


def dense_contrast(sources, kernel):
    """Minus half the log determinant of the matrix with identities and the blocks R_h R_k."""
    n_sources, n_samples = sources.shape
    centring = np.eye(n_samples) - 1 / n_samples
    R = []
    for source in sources:
        K = centring @ gram(source, kernel.width) @ centring
        R.append(K @ np.linalg.inv(K + n_samples * kernel.ridge / 2 * np.eye(n_samples)))
    blocks = [
        [np.eye(n_samples) if h == k else R[h] @ R[k] for k in range(n_sources)]
        for h in range(n_sources)
    ]
    return -np.linalg.slogdet(np.block(blocks))[1] / 2


@pytest.mark.parametrize("precision", [1e-2, 1e-6])
def test_incomplete_cholesky_misses_no_more_of_the_gram_matrix_than_asked(precision):
    rng = np.random.default_rng(0)
    sources = np.stack([rng.laplace(size=120), np.round(rng.standard_normal(120), 1)])
    kernel = Kernel(0.7, 1e-2, precision)
    factors, pivots, used = incomplete_cholesky(sources, kernel)
    for source, F, chosen, needed in zip(sources, factors, pivots, used, strict=True):
        rest = gram(source, 0.7) - F.T @ F
        assert -1e-10 < rest.trace() <= precision * 120
        assert np.linalg.eigvalsh(rest).min() > -1e-8
        np.testing.assert_allclose(rest[chosen[needed]], 0, atol=1e-7)
        assert not F[~needed].any()


@pytest.mark.parametrize("n_sources", [2, 3])
def test_the_kernel_contrast_is_the_dense_one(n_sources):
    rng = np.random.default_rng(1)
    sources = random_rotations(1, n_sources, rng)[0] @ rng.laplace(size=(n_sources, 60))
    kernel = Kernel(1.0, 2e-2, 1e-12)
    got = kernel_generalised_variance(sources, kernel)[0]
    np.testing.assert_allclose(got, dense_contrast(sources, kernel), rtol=1e-6)


def test_the_kernel_contrast_at_the_papers_precision_is_close_to_the_dense_one():
    rng = np.random.default_rng(2)
    sources = random_rotations(1, 2, rng)[0] @ rng.laplace(size=(2, 200))
    kernel = Kernel.recommended(200)
    got = kernel_generalised_variance(sources, kernel)[0]
    np.testing.assert_allclose(got, dense_contrast(sources, kernel), rtol=0.02)


def test_the_slope_of_the_kernel_contrast_is_that_of_finite_differences():
    rng = np.random.default_rng(3)
    sources = rng.laplace(size=(3, 25))
    kernel = Kernel(1.0, 2e-2, 1e-12)
    gradient = kernel_generalised_variance(sources, kernel)[1]
    expected = oracles.central_difference(lambda s: dense_contrast(s, kernel), sources)
    np.testing.assert_allclose(gradient, expected, atol=1e-4 * np.abs(expected).max())


def test_the_kernel_contrast_sees_dependence():
    rng = np.random.default_rng(4)
    kernel = Kernel.recommended(400)
    independent = rng.standard_normal((2, 400))
    a = rng.standard_normal(400)
    dependent = np.stack([a, a**2 - 1 + 0.1 * rng.standard_normal(400)])  # uncorrelated
    low, high = (kernel_generalised_variance(s, kernel)[0] for s in (independent, dependent))
    assert 0 < low < high / 5


# ---- least-squares ICA ----


def recombined(sources, ratio):
    """h and G of the estimate, over all N^H recombinations one by one."""
    n_sources, n_samples = sources.shape
    centres = sources[:, ratio.centres]

    def basis(points):
        distance = ((points[:, :, None] - centres[:, None]) ** 2).sum(axis=0)
        return np.exp(-distance / (2 * ratio.width**2)).T

    grids = np.meshgrid(*([np.arange(n_samples)] * n_sources), indexing="ij")
    everything = np.stack([sources[h, grid.ravel()] for h, grid in enumerate(grids)])
    values = basis(everything)
    return basis(sources).mean(axis=1), values @ values.T / values.shape[1]


@pytest.mark.parametrize("n_sources", [2, 3])
def test_the_squared_loss_is_that_of_all_recombinations(n_sources):
    rng = np.random.default_rng(0)
    sources = rng.laplace(size=(n_sources, 14))
    ratio = Ratio(np.array([0, 3, 7, 11]), 1.0, 1e-2)
    h, G = recombined(sources, ratio)
    expected = h @ np.linalg.solve(G + 1e-2 * np.eye(4), h) / 2 - 0.5
    got = squared_loss_mutual_information(sources, ratio)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_the_slope_of_the_squared_loss_is_that_of_finite_differences_along_rotations():
    rng = np.random.default_rng(1)
    sources = rng.laplace(size=(3, 40))
    ratio = Ratio(np.arange(0, 40, 3), 0.8, 1e-2)
    value, gradient = squared_loss_mutual_information(sources, ratio)
    slope = slope_of_rotation(gradient, sources)
    np.testing.assert_allclose(slope, -slope.T)
    for p, q in ((0, 1), (0, 2), (1, 2)):
        moved = []
        for angle in (-1e-5, 1e-5):
            turn = np.eye(3)
            turn[p, p] = turn[q, q] = np.cos(angle)
            turn[p, q], turn[q, p] = np.sin(angle), -np.sin(angle)
            moved.append(squared_loss_mutual_information(turn @ sources, ratio)[0])
        np.testing.assert_allclose(slope[p, q], (moved[1] - moved[0]) / 2e-5, rtol=1e-4)
    assert np.isfinite(value)


def test_held_out_losses_are_those_of_fits_to_the_other_folds():
    rng = np.random.default_rng(2)
    sources = rng.laplace(size=(2, 20))
    centres = np.array([1, 5, 9])
    folds = np.array_split(rng.permutation(20), 4)
    expected = np.zeros(len(_RIDGES))
    for fold in folds:
        rest = np.setdiff1d(np.arange(20), fold)
        parts = []
        for rows in (rest, fold):
            # the centres stay those of the whole sample: append them, average over the rows alone
            points = np.concatenate([sources[:, rows], sources[:, centres]], axis=1)
            n = len(rows)
            one = [np.exp(-((p[:n, None] - p[n:]) ** 2) / (2 * 0.9**2)) for p in points]
            parts.append(
                ((one[0] * one[1]).mean(axis=0), (one[0].T @ one[0]) * (one[1].T @ one[1]) / n**2)
            )
        (h, G), (h_out, G_out) = parts
        for r, ridge in enumerate(_RIDGES):
            a = np.linalg.solve(G + ridge * np.eye(3), h)
            expected[r] += (a @ G_out @ a / 2 - h_out @ a) / len(folds)
    np.testing.assert_allclose(held_out_losses(sources, centres, 0.9, folds), expected, rtol=1e-8)


def test_the_estimate_is_larger_where_sources_depend_on_each_other():
    rng = np.random.default_rng(3)
    S = rng.uniform(-1.7, 1.7, (2, 400))
    ratio = Ratio(rng.choice(400, 100, replace=False), 0.7, 1e-3)
    turn = np.sqrt(0.5) * np.array([[1, 1], [-1, 1]])
    apart, together = (squared_loss_mutual_information(s, ratio)[0] for s in (S, turn @ S))
    assert together > apart + 0.05


# ---- rotations ----


def test_minimisation_over_rotations_finds_a_known_minimum():
    """|R - T|^2 over rotations R, for a rotation T: least, 0, at T."""
    rng = np.random.default_rng(0)
    target, start = random_rotations(2, 4, rng)
    if np.linalg.det(target) * np.linalg.det(start) < 0:
        target[0] *= -1

    def objective(rotation):
        slope = -2 * target @ rotation.T
        return ((rotation - target) ** 2).sum(), slope - slope.T

    value, found = minimise_over_rotations(objective, start, tol=1e-14)
    assert value < 1e-6
    np.testing.assert_allclose(found, target, atol=1e-3)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-12)


# ---- bad input ----

GOOD = np.random.default_rng(0).laplace(size=(40, 3))


@pytest.mark.parametrize(
    ("X", "n_sources", "error", "message"),
    [
        (GOOD, 4, ValueError, "n_sources=4 exceeds the 3 features of X"),
        (GOOD, 0, ValueError, "n_sources must be at least 1, got 0"),
        (GOOD, 1.5, TypeError, "n_sources must be a whole number"),
        (GOOD[:, [0, 1, 1]], None, ValueError, "X has rank 2 .* too little for 3 sources; give n"),
        (np.ones((9, 2)), None, ValueError, "X has rank 0 .* give data that varies"),
        (GOOD[:3], None, ValueError, "X has rank 2"),
        (np.where(GOOD > 1, np.nan, GOOD), None, ValueError, "X contains NaN"),
        (GOOD[:, 0], None, ValueError, "2D array"),
        (GOOD[:1], None, ValueError, "minimum of 2"),
    ],
)
@pytest.mark.parametrize("name", METHODS)
def test_bad_data_is_refused(name, X, n_sources, error, message):
    if name.startswith("picard"):
        pytest.importorskip("picard")
    with pytest.raises(error, match=message):
        METHODS[name](X, n_sources)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="fun must be one of 'logcosh', 'exp', 'cube', got 'tanh'"):
        fast_ica(GOOD, fun="tanh")
    with pytest.raises(TypeError, match="extended must be True or False, got 1"):
        picard(GOOD, extended=1)
    with pytest.raises(TypeError, match="ortho must be True or False"):
        picard(GOOD, ortho="yes")
    with pytest.raises(ValueError, match="n_init must be at least 1, got 0"):
        least_squares_ica(GOOD, n_init=0)
    with pytest.raises(ValueError, match="n_init must be at least 0, got -1"):
        kernel_ica(GOOD, n_init=-1)


def test_picard_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "picard", None)
    with pytest.raises(ImportError, match=r"pip install 'spikeslab\[picard\]'"):
        picard(GOOD)
