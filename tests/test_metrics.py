"""Measures of what was found, against their formulas and constructed answers."""

from itertools import permutations, product

import numpy as np
import pytest

from spikeslab.metrics import (
    amari_index,
    amari_index_of_mixing,
    column_angles,
    match_sources,
    orthogonality_deviation,
    sdr,
    sir,
)


def written_out(gains):
    """The paper's formula, with its sums written as loops."""
    H = len(gains)
    total = 0.0
    for h, k in product(range(H), range(H)):
        total += abs(gains[h][k]) / max(abs(gains[h][j]) for j in range(H))
        total += abs(gains[h][k]) / max(abs(gains[j][k]) for j in range(H))
    return total / (2 * H * (H - 1)) - 1 / (H - 1)


# ---- Amari index ----


@pytest.mark.parametrize("n_sources", [2, 3, 7])
def test_the_amari_index_is_the_papers(n_sources):
    rng = np.random.default_rng(n_sources)
    for _ in range(20):
        B, A = rng.standard_normal((2, n_sources, n_sources))
        np.testing.assert_allclose(amari_index(B, A), written_out(B @ A), rtol=1e-12)
        assert 0 < amari_index(B, A) <= 1


def test_zero_is_perfect_and_one_the_worst():
    rng = np.random.default_rng(0)
    for n_sources in (2, 3, 5):
        A = rng.standard_normal((n_sources, n_sources))
        B = rng.permutation(np.diag(rng.uniform(-3, 3, n_sources))) @ np.linalg.inv(A)
        assert amari_index(B, A) < 1e-10
        np.testing.assert_allclose(amari_index(np.ones_like(A), np.eye(n_sources)), 1)
        signs = rng.choice([-1, 1], A.shape)
        np.testing.assert_allclose(amari_index(signs, np.eye(n_sources)), 1)


def test_order_signs_and_a_common_scale_do_not_matter_and_single_scales_do_not_to_the_perfect():
    rng = np.random.default_rng(1)
    B, A = rng.standard_normal((2, 4, 4))
    expected = amari_index(B, A)
    for _ in range(10):
        order, other = rng.permutation(4), rng.permutation(4)
        signs = rng.choice([-1.0, 1.0], (2, 4))
        moved = 1e5 * (signs[0][:, None] * B)[order]
        np.testing.assert_allclose(amari_index(moved, (A * signs[1])[:, other]), expected)
    scaled = np.diag([1e-4, 1, 100, -7]) @ np.linalg.inv(A)
    assert amari_index(scaled, A) < 1e-10


def test_one_source_is_always_separated():
    assert amari_index([[0.3, 0.1]], [[1.0], [5.0]]) == 0


def test_rows_of_zeros_count_as_equal_numbers():
    gains = np.array([[1.0, 0.0], [0.0, 0.0]])
    # rows: 1 + 2, columns: 1 + 2
    np.testing.assert_allclose(amari_index(gains, np.eye(2)), 6 / 4 - 1)


def test_the_index_of_a_mixing_matrix_is_that_of_its_pseudo_inverse():
    rng = np.random.default_rng(2)
    A, estimated = rng.standard_normal((2, 5, 3))
    normal = np.linalg.solve(estimated.T @ estimated, estimated.T)
    expected = written_out(normal @ A)
    np.testing.assert_allclose(amari_index_of_mixing(estimated, A), expected, rtol=1e-10)
    assert amari_index_of_mixing(A[:, [2, 0, 1]] * [1, -5, 0.1], A) < 1e-10


@pytest.mark.parametrize(
    ("unmixing", "mixing", "message"),
    [
        (np.eye(2), np.ones((2, 3)), "unmixing must have shape 3 x 2"),
        (np.ones((3, 2)), np.ones((2, 3)), "mixing has 3 columns and 2 rows"),
        (np.ones((0, 2)), np.ones((2, 0)), "mixing has 0 columns"),
        (np.eye(2), [1.0, 2.0], "mixing must have shape any x any"),
        (np.full((2, 2), np.nan), np.eye(2), "unmixing contains NaN"),
    ],
)
def test_the_amari_index_refuses_what_it_has_no_meaning_for(unmixing, mixing, message):
    with pytest.raises(ValueError, match=message):
        amari_index(unmixing, mixing)


# ---- directions ----


@pytest.mark.parametrize("angle", [0.0, 1e-6, 1.0, 30.0, 60.0, 89.0, 90.0, 120.0, 179.0])
def test_angles_and_orthogonality_of_known_directions(angle):
    radians = np.radians(angle)
    pair = np.array([[1.0, np.cos(radians)], [0.0, np.sin(radians)]]) * [3.0, -0.2]
    acute = min(angle, 180 - angle)
    np.testing.assert_allclose(orthogonality_deviation(pair), 90 - acute, atol=1e-6)
    np.testing.assert_allclose(column_angles(pair[:, 1:], pair[:, :1]), acute, rtol=1e-9, atol=0)


def test_the_largest_deviation_counts_and_zero_columns_and_single_ones_have_none():
    columns = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.1], [0.0, 0.0, 5.0]])
    cosine = 1 / np.sqrt(1 + 0.01 + 25)
    np.testing.assert_allclose(orthogonality_deviation(columns), np.degrees(np.arcsin(cosine)))
    assert orthogonality_deviation(np.zeros((3, 2))) == 0
    assert orthogonality_deviation([[1.0], [2.0]]) == 0
    np.testing.assert_allclose(orthogonality_deviation(np.ones((2, 3))), 90, atol=1e-5)
    tiny = 1e-200 * np.array([[1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(orthogonality_deviation(tiny), 45)


@pytest.mark.parametrize("shape", [(2, 4, 4), (3, 3, 5), (3, 5, 3)])
def test_angles_are_matched_as_brute_force_would(shape):
    n_features, n_true, n_found = shape
    for seed in range(10):
        rng = np.random.default_rng(seed)
        true = rng.standard_normal((n_features, n_true))
        found = rng.standard_normal((n_features, n_found))
        unit = [M / np.linalg.norm(M, axis=0) for M in (true, found)]
        angles = np.degrees(np.arccos(np.abs(unit[0].T @ unit[1])))
        got = column_angles(found, true)
        if n_found >= n_true:
            best = min(
                angles[range(n_true), order].sum() for order in permutations(range(n_found), n_true)
            )
            np.testing.assert_allclose(got.sum(), best)
        else:
            best = min(
                angles[order, range(n_found)].sum()
                for order in permutations(range(n_true), n_found)
            )
            np.testing.assert_allclose(got.sum(), best + 90 * (n_true - n_found))


# ---- sources ----


@pytest.mark.parametrize(("n_true", "n_found"), [(3, 3), (2, 4), (4, 2)])
def test_matching_is_that_of_brute_force(n_true, n_found):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        true = rng.standard_normal((50, n_true))
        found = rng.standard_normal((50, n_found)) + true @ rng.standard_normal((n_true, n_found))
        c = np.corrcoef(true.T, found.T)[:n_true, n_true:]
        order, signs = match_sources(found, true)
        pairs = [(h, k) for h, k in enumerate(order) if k >= 0]
        assert len({k for _, k in pairs}) == len(pairs) == min(n_true, n_found)
        total = sum(abs(c[pair]) for pair in pairs)
        if n_found >= n_true:
            options = [
                list(zip(range(n_true), chosen, strict=True))
                for chosen in permutations(range(n_found), n_true)
            ]
        else:
            options = [
                list(zip(chosen, range(n_found), strict=True))
                for chosen in permutations(range(n_true), n_found)
            ]
        best = max(sum(abs(c[pair]) for pair in option) for option in options)
        np.testing.assert_allclose(total, best, rtol=1e-12)
        for h, k in pairs:
            assert signs[h] == np.sign(c[h, k])
        assert all(signs[h] == 0 for h, k in enumerate(order) if k < 0)


def orthogonal_signals(rng, n_samples, n_signals):
    """Signals of zero mean, orthogonal to each other and of mean square 1."""
    raw = rng.standard_normal((n_samples, n_signals))
    q, _ = np.linalg.qr(raw - raw.mean(axis=0))
    return q * np.sqrt(n_samples)


def test_distortion_and_interference_of_constructed_estimates():
    rng = np.random.default_rng(0)
    signals = orthogonal_signals(rng, 200, 4)
    S, noise = signals[:, :2], signals[:, 2:]
    estimates = np.column_stack(
        [
            -3 * (S[:, 1] + 0.1 * S[:, 0] + 0.2 * noise[:, 0]) + 7,
            0.5 * (S[:, 0] + 0.01 * S[:, 1] + 0.3 * noise[:, 1]),
        ]
    )
    expected = -10 * np.log10([0.01**2 + 0.3**2, 0.1**2 + 0.2**2])
    np.testing.assert_allclose(sdr(estimates, S), expected, rtol=1e-9)
    np.testing.assert_allclose(sir(estimates, S), [40, 20], rtol=1e-9)


def test_interference_counts_sources_that_are_correlated_once():
    """A source that resembles another: what is along the true one is no interference."""
    rng = np.random.default_rng(1)
    a, b = orthogonal_signals(rng, 100, 2).T
    S = np.column_stack([a, 0.6 * a + 0.8 * b])
    estimate = a + 0.1 * b
    np.testing.assert_allclose(sdr(estimate[:, None], S)[0], 20, rtol=1e-9)
    np.testing.assert_allclose(sir(estimate[:, None], S)[0], 20, rtol=1e-9)


def test_perfect_missing_and_constant_estimates():
    rng = np.random.default_rng(2)
    S = orthogonal_signals(rng, 60, 3)
    for measure in (sdr, sir):
        np.testing.assert_array_equal(measure(S[:, [2, 0, 1]] * [1e-9, -1, 1e9], S), np.inf)
        np.testing.assert_array_equal(measure(S[:, :2], S), [np.inf, np.inf, -np.inf])
        np.testing.assert_array_equal(measure(np.ones((60, 3)), S), -np.inf)
        np.testing.assert_array_equal(measure(np.empty((60, 0)), S), -np.inf)


def test_scales_signs_and_order_do_not_matter():
    rng = np.random.default_rng(3)
    S = rng.laplace(size=(300, 3))
    E = S @ (np.eye(3) + 0.2 * rng.standard_normal((3, 3))) + 0.1 * rng.standard_normal((300, 3))
    for measure in (sdr, sir):
        expected = measure(E, S)
        np.testing.assert_allclose(measure(E[:, ::-1] * [-1e8, 2, 1e-8] + 3, S), expected)
        np.testing.assert_allclose(measure(1e150 * E, 1e-150 * S), expected)


@pytest.mark.parametrize(
    ("estimated", "true", "message"),
    [
        (np.ones((4, 1)), np.ones((4, 1)), "true source 0 is constant"),
        (np.ones((3, 1)), np.eye(4), "estimated must have shape 4 x any"),
        (np.ones((4, 1)), np.ones(4), "true must have shape any x any"),
        (np.ones((0, 2)), np.ones((0, 2)), "at least one sample"),
        (np.full((4, 1), np.inf), np.eye(4), "estimated contains NaN or infinity"),
    ],
)
def test_sources_that_make_no_sense_are_refused(estimated, true, message):
    for measure in (sdr, sir):
        with pytest.raises(ValueError, match=message):
            measure(estimated, true)
