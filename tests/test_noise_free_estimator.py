"""NoiseFreeSparseCoding as a scikit-learn user meets it."""

import pickle
import signal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from spikeslab import GaussianSparseCoding, NoiseFreeSparseCoding, Progress, _kernel
from spikeslab._estimator import SparseCodingEstimator
from spikeslab.metrics import amari_index

pytestmark = pytest.mark.filterwarnings("ignore:not converged")


@parametrize_with_checks(
    [
        NoiseFreeSparseCoding(),
        NoiseFreeSparseCoding(2, unmixing="orthogonal", n_init=3),
        NoiseFreeSparseCoding(1, n_slabs=1, n_init=2),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


MIXING = np.array([[1.0, 0.5, 0.2], [-0.3, 1.0, 0.4], [0.3, -0.6, 1.0], [0.5, 0.5, 0.5]])


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    sources = np.column_stack([rng.exponential(size=600), rng.laplace(size=600), rng.random(600)])
    return sources @ MIXING.T + 0.02 * rng.standard_normal((600, 4)) + [5.0, 0.0, -2.0, 1.0]


@pytest.fixture(scope="module")
def model(X):
    return NoiseFreeSparseCoding(3, random_state=0).fit(X)


def test_attributes_have_their_documented_shapes_and_meaning(X, model):
    assert model.components_.shape == (3, 4)
    np.testing.assert_array_equal(model.components_, model.mixing_.T)
    np.testing.assert_allclose(model.unmixing_ @ model.mixing_, np.eye(3), atol=1e-12)
    assert model.activation_.shape == model.slab_mean_.shape == (3,)
    assert model.mean_.shape == (4,)
    assert len(model.history_) == model.n_iter_ + 1
    assert model.history_[-1] == model.log_likelihood_
    assert max(run.log_likelihood for run in model.runs_) == model.log_likelihood_
    assert len(model.runs_) == 3
    best = max(model.runs_, key=lambda run: run.log_likelihood)
    assert (model.converged_, model.n_iter_) == (best.converged, best.n_iter)
    noise = model.noise_covariance_
    assert np.linalg.matrix_rank(noise, tol=1e-9) == 1
    np.testing.assert_allclose(noise @ model.mixing_, 0, atol=1e-12)
    assert amari_index(model.unmixing_, MIXING) < 0.05


def test_scores_are_likelihoods_also_of_new_data(X, model):
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-12)
    np.testing.assert_allclose(model.score_samples(X).mean(), model.score(X), rtol=1e-14)
    rng = np.random.default_rng(1)
    new = np.column_stack([rng.exponential(size=600), rng.laplace(size=600), rng.random(600)])
    new = new @ MIXING.T + 0.02 * rng.standard_normal((600, 4)) + [5.0, 0.0, -2.0, 1.0]
    assert abs(model.score(new) - model.score(X)) < 0.3
    assert model.score(new + 5) < model.score(new) - 100


def test_transform_is_linear_the_posterior_mean_and_inverted_in_the_subspace(X, model):
    sources = model.transform(X)
    np.testing.assert_allclose(sources, (X - model.mean_) @ model.unmixing_.T, atol=1e-12)
    np.testing.assert_allclose(model.posterior(X).mean, sources, atol=1e-12)
    back = model.inverse_transform(sources)
    assert np.abs(back - X).max() < 0.15  # the noise outside, of standard deviation 0.02
    np.testing.assert_allclose(model.transform(back), sources, atol=1e-10)


def test_the_posterior_tells_components_apart(X, model):
    posterior = model.posterior(X)
    assert posterior.component_probabilities.shape == (600, 3, 3)
    np.testing.assert_allclose(posterior.component_probabilities.sum(axis=2), 1, rtol=1e-12)
    # where the densities are learned by maximum likelihood, weights are mean probabilities; here
    # every component counts as seen once more
    expected = (600 * posterior.activation.mean(axis=0) + 2) / 603
    np.testing.assert_allclose(model.activation_, expected, atol=2e-3)
    np.testing.assert_array_equal(posterior.log_evidence, model.score_samples(X))


def test_samples_have_the_moments_of_the_data(X, model):
    Y, latents = clone(model).set_params(random_state=1).fit(X).sample(50_000)
    assert latents.shape == (50_000, 3)
    np.testing.assert_allclose(Y.mean(axis=0), X.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(np.cov(Y.T), np.cov(X.T), atol=0.05 * X.var())
    np.testing.assert_array_equal(model.sample(3)[0], model.sample(3)[0])


def test_information_criteria_count_the_parameters(X, model):
    # square: H^2 of the matrix with the scales, H means, and 2 + 2 + 2 of each density, the offset
    # being one of its means; besides, the mean and variance of the one direction outside, and where
    # the subspace is (H)
    n_parameters = 9 + 3 + 6 * 3 + 2 + 3
    total = model.score_samples(X).sum()
    np.testing.assert_allclose(model.aic(X), -2 * total + 2 * n_parameters)
    np.testing.assert_allclose(model.bic(X), -2 * total + np.log(600) * n_parameters)


def test_active_sources_have_a_mean_square_of_one(X):
    for n_slabs in (2, 4):
        prior = NoiseFreeSparseCoding(3, n_slabs=n_slabs, random_state=0).fit(X).parameters_.prior
        assert prior.n_components == 1 + n_slabs
        squares = prior.weights * (prior.means**2 + prior.variances)
        np.testing.assert_allclose(squares[:, 1:].sum(axis=1) / prior.activation, 1, rtol=1e-9)
    prior = NoiseFreeSparseCoding(3, n_slabs=1, random_state=0).fit(X).parameters_.prior
    np.testing.assert_allclose(prior.variances[:, 1], 1)  # the one slab's variance


def test_more_slabs_and_a_free_matrix_are_more_likely(X):
    def fitted(**arguments):
        return NoiseFreeSparseCoding(3, random_state=0, **arguments).fit(X).log_likelihood_

    assert fitted() > fitted(unmixing="orthogonal")
    assert fitted(n_slabs=3) > fitted(n_slabs=2) > fitted(n_slabs=1)


def test_held_out_likelihood_prefers_three_gaussians_to_two(X):
    search = GridSearchCV(NoiseFreeSparseCoding(3, random_state=0), {"n_slabs": [1, 2]}, cv=3)
    assert search.fit(X).best_params_ == {"n_slabs": 2}


def test_the_same_seed_gives_the_same_fit(X, model):
    again = NoiseFreeSparseCoding(3, random_state=0).fit(X)
    np.testing.assert_array_equal(again.mixing_, model.mixing_)
    assert again.runs_ == model.runs_
    other = NoiseFreeSparseCoding(3, random_state=1).fit(X)
    assert not np.array_equal(other.mixing_, model.mixing_)
    np.testing.assert_allclose(other.log_likelihood_, model.log_likelihood_, atol=0.02)


def test_long_data_is_searched_in_a_part_and_fitted_to_all():
    rng = np.random.default_rng(0)
    S = rng.laplace(size=(12_000, 2))
    X = S @ MIXING[:2, :2].T
    model = NoiseFreeSparseCoding(random_state=0).fit(X)
    assert len(model.runs_) == 1
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-12)
    assert amari_index(model.unmixing_, MIXING[:2, :2]) < 0.02


# ---- conventions ----


def test_it_works_in_a_pipeline_with_names_and_pandas(X):
    frame = pd.DataFrame(X, columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), NoiseFreeSparseCoding(2, random_state=0))
    sources = pipeline.set_output(transform="pandas").fit_transform(frame)
    assert list(sources.columns) == ["noisefreesparsecoding0", "noisefreesparsecoding1"]
    assert sources.index.equals(frame.index)
    fitted = NoiseFreeSparseCoding(2, random_state=0).fit(frame)
    assert list(fitted.feature_names_in_) == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        fitted.transform(frame[list("dcba")])


def test_float32_in_is_float32_out_and_loses_no_more_than_rounding(X, model):
    single = X.astype(np.float32)
    fitted = NoiseFreeSparseCoding(3, random_state=0).fit(single)
    assert fitted.transform(single).dtype == np.float32
    assert fitted.inverse_transform(fitted.transform(single)).dtype == np.float32
    np.testing.assert_allclose(fitted.log_likelihood_, model.log_likelihood_, atol=1e-4)
    np.testing.assert_allclose(np.abs(fitted.mixing_), np.abs(model.mixing_), atol=1e-3)


def test_pickle_and_clone(X, model):
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).transform(X), model.transform(X)
    )
    with pytest.raises(NotFittedError):
        clone(model).transform(X)


@pytest.mark.parametrize("n_components", [2, 4])
def test_save_and_load_give_the_same_model_bit_for_bit(tmp_path, X, n_components):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = NoiseFreeSparseCoding(n_components, random_state=0).fit(frame)
    model.save(tmp_path / "model.npz")
    for kind in (NoiseFreeSparseCoding, SparseCodingEstimator):
        loaded = kind.load(tmp_path / "model.npz")
        assert type(loaded) is NoiseFreeSparseCoding
        np.testing.assert_array_equal(loaded.transform(frame), model.transform(frame))
        np.testing.assert_array_equal(loaded.score_samples(frame), model.score_samples(frame))
        np.testing.assert_array_equal(loaded.noise_covariance_, model.noise_covariance_)
        assert loaded.runs_ == model.runs_
        assert loaded.history_ == model.history_
        assert loaded.get_params() == model.get_params()
        assert list(loaded.feature_names_in_) == list("abcd")
    loaded.save(tmp_path / "again.npz")
    with np.load(tmp_path / "model.npz") as one, np.load(tmp_path / "again.npz") as two:
        assert set(one.files) == set(two.files)
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])
            assert one[name].dtype != object  # nothing needs unpickling


def test_a_model_file_of_the_other_kind_is_refused(tmp_path, X, model):
    model.save(tmp_path / "noise free.npz")
    noisy = GaussianSparseCoding(2, n_init=1, random_state=0).fit(X)
    noisy.save(tmp_path / "noisy.npz")
    with pytest.raises(ValueError, match=r"noise free\.npz: it holds a NoiseFreeSparseCoding, not"):
        GaussianSparseCoding.load(tmp_path / "noise free.npz")
    with pytest.raises(ValueError, match=r"noisy\.npz: it holds a GaussianSparseCoding, not"):
        NoiseFreeSparseCoding.load(tmp_path / "noisy.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixing": np.zeros((4, 3))}, "linearly independent"),
        ({"residual_variance": np.array(0.0)}, "residual_variance must be"),
        ({"variances": np.zeros((3, 3))}, "variances must be positive"),
        ({"residual_variance": None}, "it lacks 'residual_variance'"),
    ],
)
def test_a_wrong_model_file_is_refused(tmp_path, model, changes, message):
    path = tmp_path / "model.npz"
    model.save(path)
    with np.load(path) as file:
        arrays = dict(file) | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(ValueError, match=message) as caught:
        NoiseFreeSparseCoding.load(path)
    assert "model.npz" in str(caught.value)


# ---- callbacks, interruption, output ----


@pytest.mark.parametrize("unmixing", ["free", "orthogonal"])
def test_the_callback_sees_every_run_under_its_own_number(X, unmixing):
    seen: list[Progress] = []
    model = NoiseFreeSparseCoding(2, n_init=3, unmixing=unmixing, callback=seen.append)
    model.set_params(random_state=0).fit(X)
    n_runs = 3 + 2 + 3 if unmixing == "free" else 3 + 2
    assert {progress.run for progress in seen} == set(range(n_runs))
    for run in range(n_runs):
        of_run = [progress.iteration for progress in seen if progress.run == run]
        assert of_run == list(range(len(of_run)))
    assert seen[-1].parameters is None
    # what is told is what is kept: densities of the data
    best = n_runs - len(model.runs_) + np.argmax([run.log_likelihood for run in model.runs_])
    told = [progress.log_likelihood for progress in seen if progress.run == best]
    np.testing.assert_allclose(told, model.history_, rtol=1e-14)


def test_a_callback_that_returns_true_ends_runs(X):
    model = NoiseFreeSparseCoding(
        2, callback=lambda progress: progress.iteration == 3, random_state=0
    ).fit(X)
    assert all(run.reason == "callback" and run.n_iter == 3 for run in model.runs_)
    assert not model.converged_
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-10)


@pytest.mark.parametrize("n_samples", [600, 6000])
def test_ctrl_c_keeps_the_best_so_far_whatever_it_interrupts(X, n_samples):
    """A real SIGINT in a callback: during the search, during refinements, in the last run."""
    X = np.tile(X, (n_samples // len(X), 1))
    X = X + 0.01 * np.random.default_rng(0).standard_normal(X.shape)
    seen = []
    stop_after = np.inf

    def callback(progress):
        seen.append(progress.log_likelihood)
        if len(seen) == stop_after:
            signal.raise_signal(signal.SIGINT)

    NoiseFreeSparseCoding(3, callback=callback, random_state=0).fit(X)
    for stop_after in (1, len(seen) // 4, len(seen) // 2, len(seen) - 1):
        seen.clear()
        model = NoiseFreeSparseCoding(3, callback=callback, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
        np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-9)
        assert model.history_[-1] == model.log_likelihood_
        if n_samples == 600:  # with more, what the search says is about a part of the data
            # what never falls has the penalty of the densities in it
            assert model.log_likelihood_ >= max(seen[:stop_after]) - 1e-4
    model.set_params(callback=None).fit(X)  # and the process goes on


def test_ctrl_c_between_callbacks_is_not_swallowed(X, monkeypatch):
    calls = []
    whole = _kernel.sum_densities

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 10:
            signal.raise_signal(signal.SIGINT)
        return whole(*arguments)

    monkeypatch.setattr(_kernel, "sum_densities", interrupted)
    model = NoiseFreeSparseCoding(3, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert len(calls) == 10  # and nothing was begun after it
    np.testing.assert_allclose(model.score(X), model.log_likelihood_, rtol=1e-9)


def test_an_error_in_the_callback_is_raised_and_nothing_is_half_fitted(X, model):
    def callback(progress):
        raise RuntimeError("mine")

    broken = clone(model).set_params(callback=callback)
    with pytest.raises(RuntimeError, match="mine"):
        broken.fit(X)
    with pytest.raises(NotFittedError):
        broken.transform(X)


def test_verbose_prints_and_silence_is_the_default(X, capsys):
    NoiseFreeSparseCoding(2, random_state=0).fit(X)
    assert capsys.readouterr().out == ""
    model = NoiseFreeSparseCoding(2, random_state=0, verbose=1).fit(X)
    assert capsys.readouterr().out.count("run ") == len(model.runs_)


def test_not_converging_is_said(X):
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model = NoiseFreeSparseCoding(2, max_iter=2, random_state=0).fit(X)
    assert model.n_iter_ == 2
    assert not model.converged_


# ---- bad input ----

GOOD = np.random.default_rng(0).standard_normal((30, 3))

BAD_DATA = {
    "nan": (np.where(np.eye(30, 3) > 0, np.nan, GOOD), ValueError, "NaN"),
    "infinity": (np.where(np.eye(30, 3) > 0, np.inf, GOOD), ValueError, "infinity"),
    "no rows": (np.empty((0, 3)), ValueError, "0 sample"),
    "one row": (GOOD[:1], ValueError, "minimum of 2"),
    "one dimension": (GOOD[:, 0], ValueError, "2D array"),
    "text": ([["a", "b"], ["c", "d"]], ValueError, "could not convert"),
    "complex": (GOOD + 1j, ValueError, "Complex"),
    "sparse": (scipy.sparse.csr_matrix(GOOD), TypeError, "[Ss]parse"),
    "constant": (np.ones((10, 3)), ValueError, "only rank 0"),
    "rank deficient": (GOOD[:, [0, 1, 1]], ValueError, "3 features but only rank 2"),
    "fewer samples than features": (GOOD[:3], ValueError, "only rank 2"),
}

BAD_ARGUMENTS = {
    "n_components=0": ({"n_components": 0}, ValueError, "n_components must be at least 1, got 0"),
    "n_components=2.5": ({"n_components": 2.5}, TypeError, "n_components must be a whole number"),
    "n_components=4": ({"n_components": 4}, ValueError, "n_components=4, but without noise .* 3"),
    "unmixing": (
        {"unmixing": "square"},
        ValueError,
        "unmixing must be one of 'free', 'orthogonal', got 'square'",
    ),
    "n_slabs=0": ({"n_slabs": 0}, ValueError, "n_slabs must be at least 1"),
    "n_slabs=8": ({"n_slabs": 8}, ValueError, "n_slabs must be at most 7, got 8"),
    "n_init": ({"n_init": 0}, ValueError, "n_init must be at least 1"),
    "max_iter": ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
    "tol<0": ({"tol": -1e-3}, ValueError, "tol must be at least 0, got -0.001"),
    "tol text": ({"tol": "small"}, TypeError, "tol must be a number"),
    "callback": ({"callback": 3}, TypeError, "callback must be callable"),
    "random_state": ({"random_state": "seed"}, ValueError, "seed"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(case):
    X, error, message = BAD_DATA[case]
    assert_refused(NoiseFreeSparseCoding(), X, error, message)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case):
    arguments, error, message = BAD_ARGUMENTS[case]
    assert_refused(NoiseFreeSparseCoding(**arguments), GOOD, error, message)


def assert_refused(model, X, error, message):
    with pytest.raises(error, match=message):
        model.fit(X)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_a_failed_refit_keeps_the_previous_fit(X, model):
    fitted = pickle.loads(pickle.dumps(model))
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(np.full((5, 2), np.nan))
    np.testing.assert_array_equal(fitted.transform(X), model.transform(X))
    assert fitted.n_features_in_ == 4


@pytest.mark.parametrize("method", ["transform", "score_samples", "score", "posterior", "bic"])
def test_fitted_and_unfitted_models_refuse_what_they_cannot_use(model, method):
    with pytest.raises(NotFittedError):
        getattr(NoiseFreeSparseCoding(2), method)(GOOD)
    for X, message in ((GOOD, "3 features"), (np.full((2, 4), np.nan), "NaN"), (GOOD[0], "2D")):
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(X)
    for attribute in ("mixing_", "unmixing_", "activation_", "noise_covariance_", "n_parameters"):
        with pytest.raises(NotFittedError):
            getattr(NoiseFreeSparseCoding(2), attribute)
