"""Online EM: batches lead to where all data at once do."""

import pickle
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.exceptions import NotFittedError

import spikeslab.checkpoint
from problems import FAMILIES, NOISES, make_model, make_noise_of, make_parameters
from spikeslab import Expectation, GaussianSparseCoding, Parameters, Prior, Progress
from spikeslab.m_step import m_step
from spikeslab.maximise import Maximiser
from spikeslab.online import Online, begin, expected_statistics, step

by_noise = pytest.mark.parametrize("noise", NOISES)
by_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def problem(seed=0, n_points=20_000, noise="isotropic"):
    rng = np.random.default_rng(seed)
    truth = Parameters(
        rng.normal(size=(5, 3)),
        rng.normal(size=5),
        Prior.spike_and_slab([0.15, 0.25, 0.35]),
        make_noise_of(noise, 5, rng, 0.1),
    )
    return truth.sample(n_points, rng)[0], truth


@pytest.fixture(scope="module")
def X():
    return problem()[0]


@pytest.fixture(scope="module")
def whole(X):
    return GaussianSparseCoding(3, n_init=1, random_state=0).fit(X)


# ---- the step ----


@by_noise
@by_family
def test_expected_statistics_are_those_of_very_many_samples(noise, family):
    """Means of draws of the latents themselves, without any posterior."""
    rng = np.random.default_rng(0)
    p = make_parameters(family, noise, (3, 2), rng)
    n = 50_000
    x, component = p.prior.sample(n, rng)
    deviation = np.linalg.cholesky(p.noise.covariance)
    y = p.offset + x @ p.mixing.T + rng.standard_normal((n, 3)) @ deviation.T
    on = component[:, :, None] == np.arange(family.n_components)
    scatter = y[:, :, None] * y[:, None, :]
    samples = {
        "counts": on.astype(float),
        "first": on * x[:, :, None],
        "second": on * x[:, :, None] ** 2,
        "x": x,
        "xx": x[:, :, None] * x[:, None, :],
        "yx": y[:, :, None] * x[:, None, :],
        "y": y,
        "yy": {
            "isotropic": scatter.trace(axis1=1, axis2=2)[:, None],
            "diagonal": np.einsum("ndd->nd", scatter),
            "full": scatter,
        }[noise],
    }
    found = expected_statistics(p)
    assert found.n == 1
    for name, values in samples.items():
        error = np.abs(getattr(found, name) - values.mean(axis=0))
        assert (error <= 5 * values.std(axis=0) / np.sqrt(n) + 1e-12).all(), name


@by_noise
@by_family
def test_expected_statistics_are_a_fixed_point_of_the_m_step(noise, family):
    p = make_parameters(family, noise, (4, 2), np.random.default_rng(1))
    model = make_model(family, noise, ("components", "prior", "noise", "mean"))
    again = m_step(model, p, expected_statistics(p), 1e-9, True)
    np.testing.assert_allclose(again.mixing, p.mixing, atol=1e-8)
    np.testing.assert_allclose(again.offset, p.offset, atol=1e-8)
    np.testing.assert_allclose(again.prior.weights, p.prior.weights, atol=1e-10)
    np.testing.assert_allclose(again.prior.variances, p.prior.variances, rtol=1e-6)
    np.testing.assert_allclose(again.noise.covariance, p.noise.covariance, atol=1e-8)


def test_the_weights_of_the_batches_are_the_documented_ones(X):
    """The mean of y forgets like any other statistic: followed by hand."""
    batches = [X[:500], X[500:1000], X[1000:1100], X[1100:1600]]
    p = problem()[1]
    state, expected, seen = begin(p), p.mean, 0
    for batch in batches:
        state, _ = step(make_model(), state, Expectation(batch), 1e-6, n_points=1000)
        weight = max((seen / len(batch) + 2) ** -0.6, len(batch) / 1000)
        expected = (1 - weight) * expected + weight * batch.mean(axis=0)
        seen += len(batch)
        np.testing.assert_allclose(state.statistics.y, expected, rtol=1e-12)
        assert state.n_seen == seen


@by_noise
def test_one_batch_of_everything_is_a_step_of_em(noise):
    X, p = problem(noise=noise, n_points=500)
    model = make_model(noise=noise)
    batch = Expectation(X, noise)
    state, log_likelihood = step(model, begin(p), batch, 1e-6, n_points=len(X), expand=False)
    statistics = batch(p)
    expected = m_step(model, p, statistics, 1e-6, False)
    assert log_likelihood == statistics.log_likelihood
    np.testing.assert_allclose(state.parameters.mixing, expected.mixing, rtol=1e-9)
    np.testing.assert_allclose(state.parameters.noise.covariance, expected.noise.covariance)


def test_the_maximum_is_a_fixed_point(X, whole):
    """Batches that are all of the data, whatever their weight, do not move the maximum."""
    best = GaussianSparseCoding(init=whole.parameters_, tol=1e-12).fit(X).parameters_
    state = begin(best, n_seen=10 * len(X))
    for _ in range(5):
        state, log_likelihood = step(make_model(), state, Expectation(X), 1e-6)
    np.testing.assert_allclose(log_likelihood / len(X), whole.score(X), atol=1e-6)


@by_noise
def test_statistics_know_the_variance_of_the_data(noise):
    X, p = problem(noise=noise, n_points=300)
    s = Expectation(X, noise, shift=2.0)(p)
    np.testing.assert_allclose(s.variance, X.var(axis=0).sum(), rtol=1e-10)
    np.testing.assert_allclose(s.weighted(0.1).variance, s.variance, rtol=1e-10)


# ---- fit in batches ----


@pytest.mark.parametrize(("seed", "size"), [(0, 300), (1, 1000), (2, 7000)])
def test_a_fit_in_batches_comes_within_a_ten_thousandth_of_the_full_fit(seed, size):
    """In nats per point, of which the full fit gains thousands; sizes need not divide."""
    X, _ = problem(seed)
    shared = {"n_components": 3, "n_init": 2, "random_state": 0}
    full = GaussianSparseCoding(**shared).fit(X)
    found = GaussianSparseCoding(batch_size=size, tol=1e-5, **shared).fit(X)
    assert full.log_likelihood_ - 1e-4 < found.log_likelihood_ < full.log_likelihood_ + 1e-6
    normal = norm.logpdf(X, X.mean(axis=0), X.std(axis=0)).sum(axis=1).mean()
    assert full.log_likelihood_ > normal + 0.5  # what a start of independent Gaussians has
    np.testing.assert_allclose(found.score(X), found.log_likelihood_, atol=1e-12)


def test_a_fit_in_batches_has_the_documented_attributes(X):
    seen = []
    model = GaussianSparseCoding(
        3, batch_size=1000, tol=1e-5, n_init=2, random_state=0, callback=seen.append
    ).fit(X)
    best = model.runs_[int(np.argmax([run.log_likelihood for run in model.runs_]))]
    assert best.log_likelihood == model.log_likelihood_ == model.history_[-1]
    assert len(model.history_) == model.n_iter_ + 1
    assert model.n_samples_seen_ == len(X)
    assert [(p.run, p.iteration) for p in seen] == [
        (number, i + 1) for number, run in enumerate(model.runs_) for i in range(run.n_iter)
    ]
    assert all(isinstance(p, Progress) and p.points_per_second > 0 for p in seen)
    assert all(run.reason == "converged" for run in model.runs_)


def test_the_same_seed_gives_the_same_fit_in_batches_for_any_number_of_threads(X):
    shared = {"n_components": 3, "n_init": 2, "random_state": 3, "batch_size": 3000, "tol": 1e-4}
    one, two = (GaussianSparseCoding(n_jobs=n, **shared).fit(X) for n in (1, 2))
    np.testing.assert_array_equal(one.mixing_, two.mixing_)
    other = GaussianSparseCoding(**{**shared, "random_state": 4}).fit(X)
    assert (other.mixing_ != one.mixing_).any()


def test_blocks_that_stream_are_fitted_in_batches(X, whole):
    parts = [X[i : i + 1777] for i in range(0, len(X), 1777)]
    for source in (parts, type("Stream", (), {"__iter__": lambda self: iter(parts)})()):
        model = GaussianSparseCoding(3, batch_size=500, tol=1e-5, n_init=1, random_state=0)
        assert model.fit(source).log_likelihood_ > whole.log_likelihood_ - 2e-4


def test_the_callback_can_end_a_fit_in_batches(X):
    model = GaussianSparseCoding(3, batch_size=1000, n_init=1, callback=lambda p: True).fit(X)
    assert (model.n_iter_, model.runs_[0].reason) == (1, "callback")
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, atol=1e-12)


@pytest.mark.parametrize("when", [1, 3])
def test_ctrl_c_keeps_the_best_pass(X, when):
    def callback(progress):
        if progress.iteration == when:
            raise KeyboardInterrupt

    model = GaussianSparseCoding(3, batch_size=500, n_init=2, random_state=0, callback=callback)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.runs_[-1].reason == "interrupted"
    assert model.log_likelihood_ == max(model.history_)
    assert model.score(X) >= model.log_likelihood_


def test_ctrl_c_reaches_the_runs_in_threads_within_a_batch(X):
    seen = []

    def callback(progress):
        seen.append(progress)
        if len(seen) == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    model = GaussianSparseCoding(
        3, batch_size=100, n_init=4, n_jobs=2, random_state=0, callback=callback
    )
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.log_likelihood_ >= seen[0].log_likelihood - 1e-9
    assert all(run.reason == "interrupted" for run in model.runs_)
    assert len(seen) < 20  # of some hundred


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("source", [lambda X: X, lambda X: [X[:7000], X[7000:]]])
@pytest.mark.parametrize("init", ["pca", "random"])
def test_a_fit_in_batches_goes_on_from_a_checkpoint_bit_for_bit(
    X, tmp_path, monkeypatch, source, init
):
    """Stopped in every third pass, again and again."""
    monkeypatch.setattr(spikeslab.checkpoint, "SECONDS", 0.0)
    arguments = {"init": init, "noise": "full", "batch_size": 3000, "max_iter": 7, "tol": 0.0}
    arguments |= {"n_components": 3, "n_init": 2, "random_state": 0}
    data, path = source(X), tmp_path / "fit.npz"
    whole = GaussianSparseCoding(**arguments).fit(data)

    def callback(progress):
        if (progress.run, progress.iteration) in stops:
            stops.remove((progress.run, progress.iteration))
            raise KeyboardInterrupt

    stops = {(0, 2), (0, 5), (1, 3)}
    model = GaussianSparseCoding(callback=callback, **arguments)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, checkpoint=path)
    for _ in range(2):  # the second time there is nothing left to do
        model = GaussianSparseCoding(**arguments).fit(data, checkpoint=path)
        assert not stops
        np.testing.assert_array_equal(model.mixing_, whole.mixing_)
        assert model.history_ == whole.history_
        assert model.runs_ == whole.runs_


def test_what_the_first_sample_taught_is_in_the_checkpoint(X, tmp_path, monkeypatch):
    monkeypatch.setattr(spikeslab.checkpoint, "SECONDS", 0.0)
    arguments = {"n_components": 3, "batch_size": 4000, "n_init": 1, "random_state": 0}

    def callback(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GaussianSparseCoding(callback=callback, **arguments).fit(X, checkpoint=tmp_path / "fit")
    whole = GaussianSparseCoding(**arguments).fit(X)
    monkeypatch.setattr(Maximiser, "step", None)  # of the fit of the sample
    model = GaussianSparseCoding(**arguments).fit(X, checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(model.mixing_, whole.mixing_)


# ---- partial_fit ----


@pytest.mark.parametrize("size", [1000, 3333])
@pytest.mark.parametrize("noise", ["isotropic", "diagonal"])
def test_one_pass_of_partial_fit_comes_within_three_thousandths_of_the_full_fit(noise, size):
    X, _ = problem(noise=noise)
    X = X + 1000  # far from zero
    full = GaussianSparseCoding(3, noise=noise, n_init=2, random_state=0).fit(X)
    model = GaussianSparseCoding(3, noise=noise, n_init=2, random_state=0)
    for start in range(0, len(X), size):
        assert model.partial_fit(X[start : start + size]) is model
    assert full.log_likelihood_ - 3e-3 < model.score(X) < full.log_likelihood_ + 1e-6
    assert model.n_samples_seen_ == len(X)


def test_the_first_batch_is_fitted_like_any_data(X):
    first = GaussianSparseCoding(3, random_state=0).partial_fit(X[:500])
    np.testing.assert_array_equal(
        first.mixing_, GaussianSparseCoding(3, random_state=0).fit(X[:500]).mixing_
    )


def test_attributes_and_callback_of_partial_fit_are_of_the_batch(X):
    seen = []
    model = GaussianSparseCoding(3, n_init=1, random_state=0).fit(X[:5000])
    n_iter, expected = model.n_iter_, model.score(X[5000:6000])
    model.set_params(callback=seen.append).partial_fit(X[5000:6000])
    assert model.n_iter_ == n_iter + 1
    assert model.n_samples_seen_ == 6000
    np.testing.assert_allclose(model.log_likelihood_, expected, atol=1e-10)  # before learning
    assert model.history_[-1] == model.log_likelihood_
    assert [(p.iteration, p.log_likelihood) for p in seen] == [(n_iter + 1, model.log_likelihood_)]
    assert seen[0].points_per_second > 0


def test_a_batch_after_a_fit_of_many_data_changes_little(X, whole):
    model = pickle.loads(pickle.dumps(whole))
    for start in range(0, 1000, 100):
        model.partial_fit(X[start : start + 100])
    assert model.score(X) > whole.score(X) - 0.01


def test_it_follows_data_that_change():
    first, truth = problem(0, 5000)
    turned = truth.mixing + 0.3 * np.random.default_rng(1).normal(size=truth.mixing.shape)
    second = replace(truth, mixing=turned).sample(20_000, np.random.default_rng(2))[0]
    model = GaussianSparseCoding(3, random_state=0).fit(first)
    full = GaussianSparseCoding(3, random_state=0).fit(second)
    assert model.score(second) < full.score(second) - 0.1
    for start in range(0, len(second), 1000):
        model.partial_fit(second[start : start + 1000])
    assert model.score(second) > full.score(second) - 0.005


def test_partial_fit_goes_on_bit_for_bit_after_pickling(X):
    model = GaussianSparseCoding(3, n_init=1, random_state=0)
    for start in range(0, 3000, 1000):
        model.partial_fit(X[start : start + 1000])
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(
        copy.partial_fit(X[3000:4000]).mixing_, model.partial_fit(X[3000:4000]).mixing_
    )


def test_missing_values_are_learned_from_in_batches():
    X, _ = problem(n_points=10_000)
    rng = np.random.default_rng(1)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[1000:1100] = np.nan  # a batch without anything
    full = GaussianSparseCoding(3, n_init=1, random_state=0).fit(X)
    model = GaussianSparseCoding(3, n_init=1, random_state=0)
    for start in range(0, 1000, 1000):
        model.partial_fit(X[start : start + 1000])
    before = model.mixing_
    np.testing.assert_allclose(model.partial_fit(X[1000:1100]).mixing_, before, rtol=1e-12)
    for start in range(1100, len(X), 1000):
        model.partial_fit(X[start : start + 1000])
    assert model.score(X) > full.score(X) - 0.01


def test_a_fit_forgets_what_was_learned_in_batches(X):
    model = GaussianSparseCoding(3, n_init=1, random_state=0)
    fresh = model.fit(X[:2000]).mixing_
    model.partial_fit(X[2000:3000]).fit(X[:2000])
    np.testing.assert_array_equal(model.mixing_, fresh)
    assert model.n_samples_seen_ == 2000


def test_a_loaded_model_learns_on(tmp_path, X, whole):
    whole.save(tmp_path / "model.npz")
    model = GaussianSparseCoding.load(tmp_path / "model.npz").partial_fit(X[:500])
    assert model.n_samples_seen_ == len(X) + 500
    np.testing.assert_array_equal(
        model.mixing_, pickle.loads(pickle.dumps(whole)).partial_fit(X[:500]).mixing_
    )


# ---- what is refused ----


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "batch_size must be at least 1, got 0"),
        (-5, ValueError, "batch_size must be at least 1, got -5"),
        (2.5, TypeError, "batch_size must be a whole number, got 2.5"),
        (True, TypeError, "batch_size must be a whole number, got True"),
    ],
)
def test_a_batch_size_that_makes_no_sense_is_refused(value, error, message, X):
    for call in ("fit", "partial_fit"):
        model = GaussianSparseCoding(3, batch_size=value)
        with pytest.raises(error, match=message):
            getattr(model, call)(X)
        with pytest.raises(NotFittedError):
            model.transform(X)


def test_a_bad_batch_is_refused_and_changes_nothing(X):
    model = GaussianSparseCoding(3, n_init=1, random_state=0).partial_fit(X[:500])
    bad = X[500:600].copy()
    bad[7, 1] = np.inf
    before = pickle.dumps(model)
    for batch, message in (
        (bad, "infinity"),
        ([X[500:550], bad], "infinity in row 57"),
        (X[:100, :4], "4 features"),
        (X[:0], "0 sample"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(batch)
    assert pickle.dumps(model) == before
    with pytest.raises(ValueError, match="noise 'isotropic', but 'full' is wanted"):
        model.set_params(noise="full").partial_fit(X[:500])


def test_a_step_that_fails_leaves_the_model_as_it_was(X):
    def callback(progress):
        raise RuntimeError("mine")

    model = GaussianSparseCoding(3, n_init=1, random_state=0).partial_fit(X[:500])
    mixing = model.mixing_
    with pytest.raises(RuntimeError, match="mine"):
        model.set_params(callback=callback).partial_fit(X[500:1000])
    np.testing.assert_array_equal(model.mixing_, mixing)
    assert model.n_samples_seen_ == 500
    assert isinstance(begin(model.parameters_), Online)
