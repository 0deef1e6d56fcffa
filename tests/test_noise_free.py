"""Maximum likelihood without noise, against densities written out with SciPy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.stats import multivariate_normal, norm

import oracles
from spikeslab import NoiseFreeParameters, NoiseFreeSparseCoding, Prior
from spikeslab.initialise import heavy_tailed, random_rotations
from spikeslab.metrics import amari_index, amari_index_of_mixing
from spikeslab.noise_free import NoiseFreeRun, climb_noise_free, maximise_noise_free
from spikeslab.noise_free_climb import NoiseFreeClimb
from spikeslab.noise_free_estimator import in_data_coordinates, start_densities
from spikeslab.subspace import Subspace
from spikeslab.unmixing import DENSITIES, Densities

pytestmark = pytest.mark.filterwarnings("ignore:not converged")

SOURCES = {
    "heavy-tailed": lambda rng, shape: rng.laplace(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "two-valued": lambda rng, shape: rng.choice([-1.0, 1.0], shape) + 0.1 * rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.2),
}


def mixture(rng, kind="heavy-tailed", shape=(400, 3)):
    """Data with its mixing matrix and sources; one source of each kind for `kind` "mixed"."""
    S = SOURCES[kind](rng, shape)
    A = rng.standard_normal((shape[1], shape[1]))
    return S @ A.T, A, S


def white(X, n_sources=None):
    """The subspace and white signals of data."""
    mean = X.mean(axis=0)
    subspace = Subspace.of(mean, (X - mean).T @ (X - mean) / len(X), n_sources or X.shape[1])
    return subspace, subspace.signals(X)


def start(rng, n_runs, n_sources, n_components=3):
    rotations = random_rotations(n_runs, n_sources, rng)
    return rotations, start_densities(n_runs, n_sources, n_components, rng)


def written_out(signals, matrix, prior):
    """Log-likelihood of all points: log|det B| and log densities of one-dimensional mixtures."""
    total = signals.shape[1] * np.log(abs(np.linalg.det(matrix)))
    for u, weights, means, variances in zip(
        matrix @ signals, prior.weights, prior.means, prior.variances, strict=True
    ):
        parts = zip(weights, means, variances, strict=True)
        total += np.log(sum(w * norm.pdf(u, m, np.sqrt(v)) for w, m, v in parts)).sum()
    return total


def penalty(prior, family):
    """Log of the MAP regularisation, up to a constant."""
    v = prior.variances
    pseudo = family.variance_count / 2 * (np.log(v) + family.variance_at / v).sum()
    return family.weight_count * np.log(prior.weights).sum() - pseudo


def rows_of(prior, run, n_sources):
    rows = slice(run * n_sources, (run + 1) * n_sources)
    return Prior(prior.weights[rows], prior.means[rows], prior.variances[rows])


@pytest.mark.parametrize("n_components", [2, 3, 5])
def test_the_likelihood_is_that_of_the_formula(n_components):
    family = replace(DENSITIES, n_slabs=n_components - 1)
    rng = np.random.default_rng(0)
    _, signals = white(mixture(rng)[0])
    matrix, prior = start(rng, 4, 3, n_components)
    matrix = matrix + 0.3 * rng.standard_normal(matrix.shape)
    state = Densities(signals, family, learn=True, orthogonal=False).visit(matrix, prior)
    for run in range(4):
        own = rows_of(prior, run, 3)
        expected = written_out(signals, matrix[run], own)
        np.testing.assert_allclose(state.log_likelihood[run], expected, rtol=1e-12)
        gap = state.objective[run] - state.log_likelihood[run]
        np.testing.assert_allclose(gap, penalty(own, family), rtol=1e-12)


def test_the_slope_is_that_of_finite_differences():
    rng = np.random.default_rng(1)
    _, signals = white(mixture(rng, shape=(100, 3))[0])
    matrix, prior = start(rng, 1, 3)
    state = Densities(signals, DENSITIES, learn=False, orthogonal=False).visit(matrix, prior)

    def moved(change):
        return written_out(signals, (np.eye(3) + change) @ matrix[0], prior)

    slope = oracles.central_difference(moved, np.zeros((3, 3)))
    np.testing.assert_allclose(100 * np.eye(3) - state.product[0], slope, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_a_short_step_of_the_matrix_goes_uphill(orthogonal):
    rng = np.random.default_rng(2)
    for kind in SOURCES:
        _, signals = white(mixture(rng, kind, (80, 4))[0])
        matrix, prior = start(rng, 6, 4)
        densities = Densities(signals, DENSITIES, learn=False, orthogonal=orthogonal)
        state = densities.visit(matrix, prior)
        there = densities._moved(matrix, 1e-4 * densities._direction(state))
        assert (densities.visit(there, prior).objective > state.objective).all()


@pytest.mark.parametrize("orthogonal", [False, True], ids=["free", "orthogonal"])
@pytest.mark.parametrize("regularised", [False, True], ids=["ML", "MAP"])
def test_the_likelihood_never_falls(orthogonal, regularised):
    """Of every step; with regularisation the penalised one. Few points make it hard."""
    family = DENSITIES if regularised else replace(DENSITIES, weight_count=0.0, variance_count=0.0)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        kind = list(SOURCES)[seed % len(SOURCES)]
        n_points, n_sources = int(rng.integers(6, 80)), int(rng.integers(1, 5))
        X = mixture(rng, kind, (n_points, n_sources))[0]
        _, signals = white(X + 1e-3 * rng.standard_normal(X.shape))
        matrix, prior = start(rng, 6, n_sources)
        densities = Densities(signals, family, learn=True, orthogonal=orthogonal)
        state = densities.visit(matrix, prior)
        for _ in range(25):
            new = densities.step(state)
            for run in (0, 5):
                old_prior, new_prior = (rows_of(s.prior, run, n_sources) for s in (state, new))
                before, after = (
                    written_out(signals, s.matrix[run], p) + penalty(p, family)
                    for s, p in ((state, old_prior), (new, new_prior))
                )
                assert after >= before - 1e-10 * (1 + abs(before))
            state = new


def test_the_history_is_the_likelihood_of_every_iteration_and_the_last_that_of_the_result():
    rng = np.random.default_rng(3)
    _, signals = white(mixture(rng)[0])
    unregularised = replace(DENSITIES, weight_count=0.0, variance_count=0.0)
    for run in maximise_noise_free(signals, *start(rng, 6, 3), unregularised):
        assert np.diff(run.history).min() >= -1e-12
        assert run.n_iter == len(run.history) - 1
        expected = written_out(signals, run.matrix, run.prior) / signals.shape[1]
        np.testing.assert_allclose([run.log_likelihood, run.history[-1]], expected, rtol=1e-12)


def test_runs_side_by_side_are_the_runs_one_by_one():
    rng = np.random.default_rng(4)
    _, signals = white(mixture(rng, "skewed")[0])
    matrix, prior = start(rng, 5, 3)
    together = maximise_noise_free(signals, matrix, prior)
    assert len({run.n_iter for run in together}) > 1  # they do not end together
    for r, run in enumerate(together):
        (alone,) = maximise_noise_free(signals, matrix[r : r + 1], rows_of(prior, r, 3))
        np.testing.assert_allclose(alone.matrix, run.matrix, atol=1e-9)
        np.testing.assert_allclose(alone.log_likelihood, run.log_likelihood, rtol=1e-11)
        assert (alone.n_iter, alone.reason) == (run.n_iter, run.reason)


def test_orthogonal_stays_orthogonal_and_free_has_rows_of_length_one():
    rng = np.random.default_rng(5)
    _, signals = white(mixture(rng, "uniform", (300, 5))[0])
    matrix, prior = start(rng, 4, 5)
    for run in maximise_noise_free(signals, matrix, prior, orthogonal=True):
        np.testing.assert_allclose(run.matrix @ run.matrix.T, np.eye(5), atol=1e-12)
        assert run.n_iter > 5
    for run in maximise_noise_free(signals, matrix, prior):
        np.testing.assert_allclose((run.matrix**2).sum(axis=1), 1, rtol=1e-12)
        assert np.abs(run.matrix @ run.matrix.T - np.eye(5)).max() > 1e-3


def test_converged_runs_have_no_slope_left():
    rng = np.random.default_rng(6)
    _, signals = white(mixture(rng, shape=(500, 3))[0])
    matrix, prior = start(rng, 4, 3)
    for orthogonal in (False, True):
        densities = Densities(signals, DENSITIES, learn=True, orthogonal=orthogonal)
        runs = maximise_noise_free(signals, matrix, prior, orthogonal=orthogonal, tol=1e-10)
        converged = [run for run in runs if run.converged]
        assert converged
        for run in converged:
            slope = densities.visit(run.matrix[None], run.prior).product[0] / 500
            left = slope - slope.T if orthogonal else slope - np.diag(np.diag(slope))
            assert np.abs(left).max() < 1e-3


# ---- quasi-Newton ----


@pytest.mark.parametrize("orthogonal", [False, True], ids=["free", "orthogonal"])
def test_the_gradient_of_the_climb_is_that_of_finite_differences(orthogonal):
    """Along the coordinates, of the penalised likelihood per point of what they stand for."""
    rng = np.random.default_rng(20)
    _, signals = white(mixture(rng, "skewed", (80, 3))[0])
    densities = Densities(signals, DENSITIES, learn=True, orthogonal=orthogonal)
    first = densities.visit(*start(rng, 1, 3))
    climb = NoiseFreeClimb(densities, first)
    state = climb.step(climb.step(climb.init(first)))
    theta, gradient = state.tangent.theta, state.tangent.gradient

    def value(theta):
        there = climb.attempt(theta, state).at
        B = theta[:9].reshape(3, 3)
        if orthogonal:
            expected = B @ np.linalg.inv(np.real(sqrtm(B.T @ B)))
        else:
            expected = B / np.sqrt((B**2).sum(axis=1))[:, None]
        np.testing.assert_allclose(there.matrix[0], expected, atol=1e-12)
        likelihood = written_out(signals, there.matrix[0], there.prior)
        return (likelihood + penalty(there.prior, DENSITIES)) / signals.shape[1]

    slope = oracles.central_difference(value, theta)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("orthogonal", [False, True], ids=["free", "orthogonal"])
def test_the_climb_never_falls_and_ends_where_long_em_ends_or_higher(orthogonal):
    def value(signals, run):
        return written_out(signals, run.matrix, run.prior) + penalty(run.prior, DENSITIES)

    gains, iterations = [], []
    for seed, kind in enumerate(SOURCES):
        rng = np.random.default_rng(seed)
        _, signals = white(mixture(rng, kind, (300, 3))[0])
        (rough,) = maximise_noise_free(
            signals, *start(rng, 1, 3), orthogonal=orthogonal, max_iter=30
        )
        densities = Densities(signals, DENSITIES, learn=True, orthogonal=orthogonal)
        first = densities.visit(rough.matrix[None], rough.prior)
        climb = NoiseFreeClimb(densities, first)
        state = climb.init(first)
        for _ in range(60):
            new = climb.step(state)
            assert new.objective >= state.objective - 1e-12
            state = new
        run = climb_noise_free(signals, rough, orthogonal=orthogonal)
        (long,) = maximise_noise_free(
            signals, rough.matrix[None], rough.prior, orthogonal=orthogonal, max_iter=20_000
        )
        assert run.converged
        gains.append(value(signals, run) - value(signals, long))
        iterations.append((run.n_iter, long.n_iter))
    assert min(gains) > -0.01  # nats, of all points together
    climbed, plain = np.sum(iterations, axis=0)
    assert climbed < plain / 3


def test_the_climb_says_why_it_ended():
    rng = np.random.default_rng(21)
    _, signals = white(mixture(rng)[0])
    matrix, prior = start(rng, 1, 3)
    begin = NoiseFreeRun(matrix[0], prior)
    short = climb_noise_free(signals, begin, max_iter=3)
    assert (short.n_iter, short.converged, short.reason) == (3, False, "max_iter")
    assert len(short.history) == 4
    seen = []

    def callback(iteration, log_likelihood):
        seen.append(log_likelihood)
        return iteration == 2

    ended = climb_noise_free(signals, begin, callback=callback)
    assert (ended.reason, ended.history) == ("callback", seen)

    def interrupt(iteration, log_likelihood):
        if iteration == 2:
            raise KeyboardInterrupt

    stopped = climb_noise_free(signals, begin, callback=interrupt)
    assert stopped.reason == "interrupted"
    expected = written_out(signals, stopped.matrix, stopped.prior) / signals.shape[1]
    np.testing.assert_allclose(stopped.log_likelihood, expected, rtol=1e-12)


def test_a_run_that_went_on_remembers_how_it_began():
    first = NoiseFreeRun(np.eye(2), heavy_tailed(2, 3), history=[1.0, 2.0], n_iter=1)
    second = NoiseFreeRun(np.eye(2), heavy_tailed(2, 3), 4.0, [2.0, 3.0, 4.0], 2, True, "converged")
    run = second.after(first)
    assert run.history == [1.0, 2.0, 3.0, 4.0]
    assert (run.n_iter, run.log_likelihood, run.reason) == (3, 4.0, "converged")


# ---- fixed densities ----


def test_the_scale_of_a_matrix_with_fixed_densities_is_the_most_likely_one():
    rng = np.random.default_rng(22)
    _, signals = white(mixture(rng, "sparse", (500, 3))[0])
    prior = heavy_tailed(3, 3)
    (run,) = maximise_noise_free(
        signals, random_rotations(1, 3, rng), prior, learn=False, tol=1e-12
    )

    def value(change):
        return written_out(signals, (np.eye(3) + change) @ run.matrix, prior)

    slope = oracles.central_difference(value, np.zeros((3, 3)))
    assert np.abs(slope).max() < 1e-3 * 500
    assert np.abs((run.matrix**2).sum(axis=1) - 1).max() > 1e-3


def test_laplacian_densities_are_better_for_few_laplacian_sources_and_worse_for_flat_ones():
    def indices(kind):
        found = {"learned": [], "laplacian": []}
        for seed in range(6):
            X, A, _ = mixture(np.random.default_rng(seed), kind, (200, 4))
            for densities, values in found.items():
                model = NoiseFreeSparseCoding(densities=densities, random_state=0).fit(X)
                values.append(amari_index(model.unmixing_, A))
        return np.mean(found["learned"]), np.mean(found["laplacian"])

    learned, laplacian = indices("heavy-tailed")
    assert laplacian < 0.9 * learned
    learned, laplacian = indices("uniform")
    assert laplacian > 2 * learned


def test_densities_that_are_not_learned_stay():
    rng = np.random.default_rng(7)
    _, signals = white(mixture(rng)[0])
    prior = heavy_tailed(3, 3)
    (run,) = maximise_noise_free(signals, random_rotations(1, 3, rng), prior, learn=False)
    np.testing.assert_array_equal(run.prior.variances, prior.variances)
    np.testing.assert_array_equal(run.prior.weights, prior.weights)
    assert run.history[-1] > run.history[0]


def test_a_callback_ends_its_own_run():
    rng = np.random.default_rng(8)
    _, signals = white(mixture(rng)[0])
    seen = []

    def callback(run, iteration, log_likelihood):
        seen.append((run, iteration, log_likelihood))
        return run == 1 and iteration == 4

    runs = maximise_noise_free(signals, *start(rng, 3, 3), callback=callback)
    assert [run.reason == "callback" for run in runs] == [False, True, False]
    assert runs[1].n_iter == 4
    for r, run in enumerate(runs):
        assert [value for number, _, value in seen if number == r] == run.history


# ---- what is found ----


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("heavy-tailed", 0.05),
        ("uniform", 0.03),
        ("two-valued", 0.01),
        ("skewed", 0.02),
        ("sparse", 0.005),
    ],
)
@pytest.mark.parametrize("unmixing", ["free", "orthogonal"])
def test_sources_of_all_kinds_are_separated(kind, most, unmixing):
    indices = []
    for seed in range(4):
        X, A, _ = mixture(np.random.default_rng(seed), kind, (1000, 3))
        model = NoiseFreeSparseCoding(unmixing=unmixing, random_state=0).fit(X)
        indices.append(amari_index_of_mixing(model.mixing_, A))
    # whitening leaves an error of 1 / sqrt(N), which the free matrix does not have
    assert np.mean(indices) < max(most, 0.03 * (unmixing == "orthogonal"))


def test_kinds_may_be_mixed_and_one_source_may_be_gaussian():
    rng = np.random.default_rng(0)
    S = np.column_stack([make(rng, 2000) for make in SOURCES.values()] + [rng.normal(size=2000)])
    A = rng.standard_normal((6, 6))
    model = NoiseFreeSparseCoding(random_state=0).fit(S @ A.T)
    assert amari_index(model.unmixing_, A) < 0.03


def test_the_free_matrix_is_better_than_a_rotation_where_whitening_errs():
    free, rotated = [], []
    for seed in range(5):
        X, A, _ = mixture(np.random.default_rng(seed), "sparse", (300, 4))
        for unmixing, indices in (("free", free), ("orthogonal", rotated)):
            model = NoiseFreeSparseCoding(unmixing=unmixing, random_state=0).fit(X)
            indices.append(amari_index(model.unmixing_, A))
    assert np.mean(free) < np.mean(rotated) / 3


def test_recovered_densities_are_the_true_ones():
    rng = np.random.default_rng(0)
    truth = Prior(
        [[0.5, 0.3, 0.2], [0.3, 0.3, 0.4]],
        [[0.0, 2.0, -2.0], [0.0, 1.0, 3.0]],
        [[0.05, 0.3, 0.3], [0.02, 0.1, 0.5]],
    )
    S, _ = truth.sample(20000, rng)
    A = np.array([[1.0, 0.4], [-0.3, 1.0]])
    model = NoiseFreeSparseCoding(random_state=0).fit(S @ A.T)
    gains = model.unmixing_ @ A
    for h, found in enumerate(np.abs(gains).argmax(axis=0)):
        scale = gains[found, h]
        grid = np.linspace(-4, 6, 400)
        true = density(truth, h, grid)
        shift = (model.transform(S @ A.T)[:, found] - scale * S[:, h]).mean()
        got = density(model.parameters_.prior, found, scale * grid + shift) * abs(scale)
        assert np.abs(got - true).sum() * (grid[1] - grid[0]) < 0.05  # integrated difference


def density(prior, h, x):
    parts = zip(prior.weights[h], prior.means[h], prior.variances[h], strict=True)
    return sum(w * norm.pdf(x, m, np.sqrt(v)) for w, m, v in parts)


def test_the_fit_is_more_likely_than_the_truth():
    rng = np.random.default_rng(0)
    truth = NoiseFreeParameters(
        [[1.0, 0.5], [0.2, -1.0]],
        [3.0, -1.0],
        Prior([[0.6, 0.2, 0.2]] * 2, [[0.0, 1.0, -1.0]] * 2, [[0.05, 0.5, 1.0]] * 2),
    )
    Y, _ = truth.sample(1000, rng)
    model = NoiseFreeSparseCoding(random_state=0).fit(Y)
    assert model.score(Y) > truth.posterior(Y).log_evidence.mean()


# ---- densities of the data ----


@pytest.mark.parametrize("n_sources", [1, 2])
def test_the_density_of_the_data_integrates_to_one(n_sources):
    rng = np.random.default_rng(0)
    S = rng.laplace(size=(300, n_sources)) * [3.0, 1.0][:n_sources]
    X = S @ rng.standard_normal((n_sources, 2)) + 0.3 * rng.standard_normal((300, 2)) + [5.0, -3.0]
    model = NoiseFreeSparseCoding(n_sources, random_state=0).fit(X)
    steps = 20 * X.std(axis=0) / 900
    axes = [
        mean + step * np.arange(-450, 450) for mean, step in zip(X.mean(axis=0), steps, strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    total = np.exp(model.score_samples(grid)).sum() * steps.prod()
    np.testing.assert_allclose(total, 1, atol=2e-3)


def test_with_more_channels_the_density_is_that_of_the_sources_times_that_of_the_rest():
    rng = np.random.default_rng(0)
    X = rng.laplace(size=(500, 2)) @ rng.standard_normal((2, 5)) + 0.1 * rng.normal(size=(500, 5))
    model = NoiseFreeSparseCoding(2, random_state=0).fit(X)
    _, _, directions = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    inside, outside = (X - X.mean(axis=0)) @ directions[:2].T, (X - X.mean(0)) @ directions[2:].T
    variance = (outside**2).mean()
    gaussian = multivariate_normal(np.zeros(3), variance * np.eye(3)).logpdf(outside)
    parameters = model.parameters_
    square = replace(  # the same model of the two principal components
        parameters,
        mixing=directions[:2] @ parameters.mixing,
        offset=directions[:2] @ (parameters.offset - X.mean(axis=0)),
        residual_variance=0.0,
    )
    expected = square.posterior(inside).log_evidence + gaussian
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-9)
    np.testing.assert_allclose(parameters.residual_variance, variance, rtol=1e-9)
    np.testing.assert_allclose(model.log_likelihood_, expected.mean(), rtol=1e-9)


@pytest.mark.parametrize("scales", [(1, 1e-3, 1), (1e5, 1, 1), (1e-9, 1e-6, 1e-4)])
def test_scores_are_the_likelihood_that_was_maximised_on_channels_of_any_scale(scales):
    X = mixture(np.random.default_rng(0))[0] * scales
    model = NoiseFreeSparseCoding(random_state=0).fit(X)
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-9)


def test_what_only_rounding_leaves_outside_of_the_sources_has_a_finite_density():
    rng = np.random.default_rng(0)
    S = rng.laplace(size=(400, 2))
    for extra in (np.zeros(400), S[:, 0], S[:, 0] - 2 * S[:, 1]):
        X = np.column_stack([S @ rng.standard_normal((2, 2)), extra])
        model = NoiseFreeSparseCoding(2, random_state=0).fit(X)
        np.testing.assert_allclose(model.score(X), model.log_likelihood_, atol=1e-3)
        assert 0 < model.parameters_.residual_variance < 1e-10 * X.var()
        found = np.abs(np.corrcoef(model.transform(X).T, S.T)[:2, 2:])
        assert found.max(axis=0).min() > 0.99


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_moves_the_likelihood_and_nothing_else(factor):
    X = mixture(np.random.default_rng(0), "skewed")[0]
    one, other = (NoiseFreeSparseCoding(random_state=0).fit(Y) for Y in (X, factor * X))
    np.testing.assert_allclose(other.mixing_, factor * one.mixing_, rtol=1e-6)
    np.testing.assert_allclose(other.transform(factor * X), one.transform(X), atol=1e-6)
    shift = -3 * np.log(factor)
    np.testing.assert_allclose(other.log_likelihood_, one.log_likelihood_ + shift, rtol=1e-9)


def test_rotated_permuted_and_shifted_channels_give_the_same_sources():
    rng = np.random.default_rng(0)
    X = mixture(rng, "skewed", (1000, 3))[0]
    base = NoiseFreeSparseCoding(random_state=0).fit(X)
    rotation = random_rotations(1, 3, rng)[0]
    for Y in (X @ rotation, X[:, [2, 0, 1]], X + np.array([100.0, -7.0, 1.0])):
        model = NoiseFreeSparseCoding(random_state=0).fit(Y)
        np.testing.assert_allclose(model.log_likelihood_, base.log_likelihood_, atol=1e-4)
        match = np.abs(np.corrcoef(model.transform(Y).T, base.transform(X).T)[:3, 3:]).max(axis=1)
        assert match.min() > 0.9999


# ---- small and strange data ----


@pytest.mark.parametrize("n_points", [4, 5, 10, 20])
def test_few_points_are_fitted_with_finite_densities(n_points):
    for seed in range(5):
        X = mixture(np.random.default_rng(seed), shape=(n_points, 3))[0]
        model = NoiseFreeSparseCoding(random_state=seed).fit(X)
        assert np.isfinite(model.score_samples(X)).all()
        assert model.parameters_.prior.variances.min() > 0
        np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-8)


def test_duplicated_points_and_points_far_out_do_not_break_the_fit():
    rng = np.random.default_rng(0)
    X, A, _ = mixture(rng, "sparse", (200, 3))
    twice = np.repeat(X, 2, axis=0)
    model = NoiseFreeSparseCoding(random_state=0).fit(twice)
    assert amari_index(model.unmixing_, A) < 0.05
    X[0] *= 1e4
    assert np.isfinite(NoiseFreeSparseCoding(random_state=0).fit(X).score(X))


def test_constant_columns_are_refused_or_left_outside():
    X = mixture(np.random.default_rng(0))[0]
    X[:, 1] = 3.7
    with pytest.raises(ValueError, match=r"3 features but only rank 2.* 3 are asked for"):
        NoiseFreeSparseCoding().fit(X)
    model = NoiseFreeSparseCoding(2, random_state=0).fit(X)
    np.testing.assert_allclose(model.mixing_[1], 0, atol=1e-6)
    np.testing.assert_allclose(model.mean_[1], 3.7)


# ---- parameters ----


def parameters(rng, n_features=4, n_latents=2, residual=0.3):
    weights, means, variances = oracles.random_prior(rng, n_latents, 3, "soft", with_means=True)
    variances[:, 0] *= 1e3
    return NoiseFreeParameters(
        rng.standard_normal((n_features, n_latents)),
        rng.standard_normal(n_features),
        Prior(weights, means, variances),
        residual,
    )


@pytest.mark.parametrize(("n_features", "residual"), [(2, 0.0), (4, 0.3)])
def test_the_density_of_parameters_is_the_explicit_mixture(n_features, residual):
    rng = np.random.default_rng(0)
    p = parameters(rng, n_features, 2, residual)
    Y, _ = p.sample(50, rng)
    outside = np.eye(n_features) - p.mixing @ p.unmixing
    explicit = oracles.log_density(
        Y,
        p.mixing,
        p.offset,
        residual * outside,
        p.prior.weights,
        p.prior.means,
        p.prior.variances,
    )
    posterior = p.posterior(Y)
    np.testing.assert_allclose(posterior.log_evidence, explicit, rtol=1e-9)
    np.testing.assert_allclose(posterior.component_probabilities.sum(axis=2), 1, rtol=1e-12)
    for n, x in enumerate(posterior.mean[:5]):
        for h in range(2):
            of = p.prior.weights[h] * norm.pdf(x[h], p.prior.means[h], p.prior.variances[h] ** 0.5)
            np.testing.assert_allclose(posterior.activation[n, h], 1 - of[0] / of.sum(), rtol=1e-9)


def test_samples_have_the_moments_and_latents_of_the_parameters():
    rng = np.random.default_rng(1)
    p = parameters(rng)
    Y, latents = p.sample(200_000, rng)
    np.testing.assert_allclose(p.posterior(Y[:100]).mean, latents[:100], atol=1e-10)
    np.testing.assert_allclose(Y.mean(axis=0), p.mean, atol=0.02)
    scale = np.abs(p.covariance).max()
    np.testing.assert_allclose(np.cov(Y.T), p.covariance, atol=0.02 * scale)


def test_data_coordinates_are_those_of_the_white_signals_moved_back():
    rng = np.random.default_rng(2)
    X = mixture(rng, "skewed", (300, 3))[0] + [1.0, 2.0, 3.0]
    subspace, signals = white(X)
    (run,) = maximise_noise_free(signals, *start(rng, 1, 3), max_iter=5)
    p = in_data_coordinates(subspace, run)
    expected = run.log_likelihood + subspace.log_constant
    np.testing.assert_allclose(p.posterior(X).log_evidence.mean(), expected, rtol=1e-12)
    prior = p.prior
    assert not prior.means[:, 0].any()  # the spike is at zero, and has the highest peak
    peak = prior.weights / np.sqrt(prior.variances)
    assert (peak[:, :1] >= peak).all()
    slabs = prior.weights[:, 1:] * (prior.means[:, 1:] ** 2 + prior.variances[:, 1:])
    np.testing.assert_allclose(slabs.sum(axis=1) / prior.activation, 1, rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixing": np.ones((2, 3))}, "shape any x 2"),
        ({"mixing": np.ones((1, 2)), "offset": [0.0]}, "no more sources than signals, got 2 of 1"),
        ({"mixing": np.ones((4, 2))}, "columns of mixing must be linearly independent"),
        ({"mixing": np.zeros((4, 2))}, "columns of mixing must be linearly independent"),
        ({"offset": np.zeros(3)}, "offset must have shape 4"),
        ({"prior": Prior.spike_and_slab([0.2, 0.3])}, "spikes must be soft"),
        ({"residual_variance": 0.0}, "residual_variance must be .* positive for a tall one, got 0"),
        ({"residual_variance": -1.0}, "got -1"),
        ({"residual_variance": np.nan}, "got nan"),
    ],
)
def test_impossible_parameters_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(parameters(np.random.default_rng(0)), **changes)
