"""Gaussians with missing entries against their densities and conditionals by the textbook."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from spikeslab._kernel import gaussian_densities, gaussian_moments
from spikeslab.gaussian_classes import GaussianClasses


def covariances(shape, rng, rank=None):
    """Covariances (..., D, D) of the given shape (..., D)."""
    root = rng.normal(size=(*shape, rank or shape[-1]))
    return root @ root.swapaxes(-1, -2)


def with_holes(Y, share, rng):
    """With one row whole and one empty."""
    holed = np.where(rng.random(Y.shape) < share, np.nan, Y)
    holed[1], holed[3] = Y[1], np.nan
    return holed


def log_density(y, C, noise):
    o = ~np.isnan(y)
    if not o.any():
        return 0.0
    return multivariate_normal.logpdf(y[o], cov=C[np.ix_(o, o)] + noise * np.eye(o.sum()))


def conditional(y, C, noise):
    """Mean and covariance of z."""
    o = ~np.isnan(y)
    gain = C[:, o] @ np.linalg.inv(C[np.ix_(o, o)] + noise * np.eye(o.sum()))
    return gain @ y[o], C - gain @ C[o]


@pytest.mark.parametrize(("n_points", "n_features"), [(5, 1), (9, 3), (23, 13), (6, 40)])
def test_densities_and_moments_of_what_is_observed(kernel, n_points, n_features):
    rng = np.random.default_rng(n_features)
    C, noise = covariances((3, n_features), rng), 0.3
    Y = with_holes(rng.normal(size=(n_points, n_features)), 0.5, rng)
    found = gaussian_densities(Y, C, noise)
    np.testing.assert_allclose(
        found, [[log_density(y, one, noise) for one in C] for y in Y], rtol=1e-9, atol=1e-9
    )
    weights = rng.uniform(0, 2, n_points)
    mean, variance, scatter = gaussian_moments(Y, C[1], noise, weights)
    wanted = [conditional(y, C[1], noise) for y in Y]
    np.testing.assert_allclose(mean, [m for m, _ in wanted], atol=1e-9)
    np.testing.assert_allclose(variance, [V.diagonal() for _, V in wanted], atol=1e-9)
    total = sum(w * (np.outer(m, m) + V) for w, (m, V) in zip(weights, wanted, strict=True))
    np.testing.assert_allclose(np.tril(scatter), np.tril(total), atol=1e-8)
    assert gaussian_moments(Y, C[1], noise)[2].size == 0  # not asked for


def test_covariances_of_low_rank_and_noise_far_below_them(kernel):
    rng = np.random.default_rng(0)
    C, noise = covariances((2, 12), rng, rank=3), 1e-6
    Y = rng.normal(size=(20, 3)) @ np.linalg.cholesky(C[0] + 1e-9 * np.eye(12))[:, :3].T
    Y = with_holes(Y, 0.4, rng)
    found = gaussian_densities(Y, C, noise)
    wanted = [[log_density(y, one, noise) for one in C] for y in Y]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    mean, variance, _ = gaussian_moments(Y, C[0], noise)
    for y, m, v in zip(Y, mean, variance, strict=True):
        expected, V = conditional(y, C[0], noise)
        np.testing.assert_allclose(m, expected, atol=1e-6)
        np.testing.assert_allclose(v, V.diagonal(), atol=1e-6)
        assert (v >= 0).all()


def test_points_with_the_same_entries_share_their_factor(kernel):
    """Runs of any length, after others, before others, and broken by a single point."""
    rng = np.random.default_rng(1)
    C, noise = covariances((2, 5), rng), 0.3
    Y = rng.normal(size=(61, 5))
    Y[3:30, 1] = Y[31:50, 4] = Y[50:, [0, 2]] = np.nan
    found = gaussian_densities(Y, C, noise)
    wanted = [[log_density(y, one, noise) for one in C] for y in Y]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    weights = rng.uniform(0, 2, len(Y))
    mean, variance, scatter = gaussian_moments(Y, C[0], noise, weights)
    parts = [conditional(y, C[0], noise) for y in Y]
    np.testing.assert_allclose(mean, [m for m, _ in parts], atol=1e-9)
    np.testing.assert_allclose(variance, [V.diagonal() for _, V in parts], atol=1e-9)
    total = sum(w * (np.outer(m, m) + V) for w, (m, V) in zip(weights, parts, strict=True))
    np.testing.assert_allclose(np.tril(scatter), np.tril(total), atol=1e-8)
    whole = rng.normal(size=(50, 5))
    np.testing.assert_allclose(
        gaussian_densities(whole, C, noise),
        [[log_density(y, one, noise) for one in C] for y in whole],
        rtol=1e-9,
    )


def test_arrays_of_the_wrong_shape_are_refused():
    Y, C = np.zeros((4, 3)), np.zeros((2, 3, 2))
    with pytest.raises(ValueError, match="covariances must be classes x features x features"):
        gaussian_densities(Y, C, 1.0)
    with pytest.raises(ValueError, match="covariance must be features x features"):
        gaussian_moments(Y, C[0], 1.0)
    with pytest.raises(ValueError, match="one weight for every row"):
        gaussian_moments(Y, np.eye(3), 1.0, np.ones(5))


def problem(seed=0, n_points=40, share=0.4):
    """Classes, and points (N, 2, 4) with the same kind of holes."""
    rng = np.random.default_rng(seed)
    C = covariances((3, 2, 4), rng) * np.array([0.1, 1, 5])[:, None, None, None]
    classes = GaussianClasses(np.array([0.5, 0.3, 0.2]), C, 0.05)
    r = rng.choice(3, n_points, p=classes.shares)
    root = np.linalg.cholesky(C + 1e-12 * np.eye(4))
    Y = np.einsum("ncij,ncj->nci", root[r], rng.normal(size=(n_points, 2, 4)))
    Y += np.sqrt(0.05) * rng.normal(size=Y.shape)
    return classes, with_holes(Y, share, rng)


def joint_log(classes, Y):
    return np.array(
        [
            [
                np.log(a)
                + sum(
                    log_density(y, C, classes.noise_variance) for y, C in zip(one, Cs, strict=True)
                )
                for a, Cs in zip(classes.shares, classes.covariances, strict=True)
            ]
            for one in Y
        ]
    )


def test_classes_are_as_probable_as_bayes_says_and_the_bound_is_one():
    classes, Y = problem()
    joint = joint_log(classes, Y)
    q, bound = classes.responsibilities(Y)
    np.testing.assert_allclose(q, softmax(joint, axis=1), atol=2e-3)
    kept = (q > 0).all(axis=1)
    assert 0.1 < kept.mean() < 1
    np.testing.assert_allclose(q[kept], softmax(joint[kept], axis=1), rtol=1e-9)
    exact = logsumexp(joint, axis=1)
    np.testing.assert_allclose(bound[kept], exact[kept], rtol=1e-9, atol=1e-9)
    assert (bound <= exact + 1e-9).all()
    assert (bound > exact - 0.01).all()
    np.testing.assert_allclose(q[3], classes.shares)  # of which nothing is observed


def test_statistics_and_completions_are_those_of_the_mixture():
    classes, Y = problem(1)
    q, bound = classes.responsibilities(Y)
    s, found = classes.statistics(Y), classes.complete(Y)
    assert s.bound == pytest.approx(bound.sum())
    np.testing.assert_allclose(s.n, q.sum(axis=0))
    zz = np.zeros_like(s.zz)
    for n, point in enumerate(Y):
        for channel, y in enumerate(point):
            mean, square = np.zeros(4), np.zeros(4)
            for r, C in enumerate(classes.covariances[:, channel]):
                m, V = conditional(y, C, 0.05)
                zz[r, channel] += q[n, r] * (np.outer(m, m) + V)
                mean += q[n, r] * m
                square += q[n, r] * (m**2 + V.diagonal())
            np.testing.assert_allclose(found.mean[n, channel], mean, atol=1e-9)
            np.testing.assert_allclose(found.variance[n, channel], square - mean**2, atol=1e-9)
    np.testing.assert_allclose(s.zz, zz, atol=1e-9)


@pytest.mark.parametrize("pull", [0.0, 5.0])
def test_learning_never_lowers_the_log_likelihood(pull):
    truth, Y = problem(2, 300, 0.5)
    classes = GaussianClasses(np.full(3, 1 / 3), 0.3 * truth.covariances, 0.05)
    history = []
    for _ in range(30):
        history.append(logsumexp(joint_log(classes, Y), axis=1).sum())
        classes = classes.learned(classes.statistics(Y), pull)
    # classes that are left out, below 1/1000, cost next to nothing
    assert np.diff(history).min() > -0.02
    assert history[-1] > history[0] + 50
    assert history[-1] > logsumexp(joint_log(truth, Y), axis=1).sum()


def test_a_class_without_points_keeps_its_shape():
    classes, Y = problem(4)
    far = GaussianClasses(
        np.array([0.5, 0.3, 0.2]), classes.covariances * np.array([1, 1, 1e9])[:, None, None, None],
        0.05,
    )  # fmt: skip
    some = 0.01 * Y[~np.isnan(Y[:, 0]).any(axis=1)]
    s = far.statistics(some)
    assert s.n[2] == 0
    learned = far.learned(s, 2.0)
    np.testing.assert_allclose(learned.covariances[2], far.covariances[2])
    assert learned.shares[2] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.6], np.zeros((2, 1, 3, 3)), 1.0), "shares must be positive and add up to 1"),
        (([1.0, 0.0], np.zeros((2, 1, 3, 3)), 1.0), "shares must be positive and add up to 1"),
        (([1.0], np.zeros((1, 1, 3, 3)), 0.0), "noise_variance must be above 0"),
        (([1.0], np.zeros((2, 1, 3, 3)), 1.0), "covariances must have shape"),
        (([1.0], np.zeros((1, 1, 2, 3)), 1.0), "covariances must have shape"),
    ],
)
def test_impossible_classes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianClasses(*arguments)
