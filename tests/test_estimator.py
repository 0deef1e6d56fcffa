"""GaussianSparseCoding as a scikit-learn user meets it."""

import pickle
import signal
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from oracles import log_density
from spikeslab import GaussianSparseCoding, IsotropicNoise, Parameters, Prior, Progress

VARIANTS = {
    "default": {},
    "diagonal": {"noise": "diagonal"},
    "full": {"noise": "full", "slab_mean": True},
    "soft": {"spike": "soft", "n_slabs": 2},
    "shared": {"n_slabs": 2, "shared_prior": True, "accelerate": False},
}


@parametrize_with_checks(
    [
        GaussianSparseCoding(),
        GaussianSparseCoding(2, noise="diagonal", slab_mean=True, n_init=1),
        GaussianSparseCoding(3, noise="full", spike="soft", n_init=1, init="random"),
        GaussianSparseCoding(3, inference="truncated", n_free=1, n_init=1, init="data"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(1)
    return Parameters(
        rng.standard_normal((3, 3)),
        np.array([5.0, 0.0, -2.0]),
        Prior.spike_and_slab([0.2, 0.3, 0.4]),
        IsotropicNoise(0.01, 3),
    )


@pytest.fixture(scope="module")
def X(truth):
    return truth.sample(400, np.random.default_rng(2))[0]


@pytest.fixture(scope="module")
def model(X):
    return GaussianSparseCoding(3, random_state=0).fit(X)


def angles_to(truth, mixing):
    """Degrees between each true direction and the nearest found one."""
    unit = [W / np.linalg.norm(W, axis=0) for W in (truth.mixing, mixing)]
    return np.degrees(np.arccos(np.minimum(np.abs(unit[0].T @ unit[1]), 1))).min(axis=1)


def test_it_recovers_the_directions_activations_and_noise(truth, X, model):
    assert angles_to(truth, model.mixing_).max() < 3
    np.testing.assert_allclose(
        np.sort(model.activation_), np.sort(truth.prior.activation), atol=0.06
    )
    np.testing.assert_allclose(model.parameters_.noise.variance, 0.01, rtol=0.25)
    np.testing.assert_allclose(model.mean_, truth.offset, atol=0.05)


def test_the_fit_is_more_likely_than_the_truth(truth, X, model):
    assert model.score(X) > log_density_of(truth, X).mean()


def log_density_of(p, X):
    prior = p.prior
    return log_density(
        X, p.mixing, p.offset, p.noise.covariance, prior.weights, prior.means, prior.variances
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_the_densities_of_the_explicit_mixture(variant, X):
    model = GaussianSparseCoding(2, n_init=1, max_iter=20, random_state=0, **VARIANTS[variant])
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    expected = log_density_of(model.parameters_, X)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.score(X), expected.mean(), atol=1e-10)
    np.testing.assert_allclose(model.log_likelihood_, expected.mean(), atol=1e-9)


def test_attributes_have_their_documented_shapes(model):
    assert model.components_.shape == (3, 3)
    np.testing.assert_array_equal(model.components_, model.mixing_.T)
    assert model.activation_.shape == model.slab_mean_.shape == model.mean_.shape == (3,)
    assert model.noise_covariance_.shape == (3, 3)
    assert len(model.history_) == model.n_iter_ + 1
    assert model.history_[-1] == model.log_likelihood_
    assert model.converged_
    assert len(model.runs_) == 5
    assert max(run.log_likelihood for run in model.runs_) == model.log_likelihood_
    assert all(run.reason == "converged" for run in model.runs_)
    assert all(0 <= run.orthogonality_deviation <= 90 for run in model.runs_)


def test_transform_is_the_posterior_mean_and_inverts_where_noise_is_small(X, model):
    latents = model.transform(X)
    np.testing.assert_array_equal(latents, model.posterior(X).mean)
    back = model.inverse_transform(latents)
    # what is not explained is of the size of the noise, its standard deviation being 0.1
    assert np.abs(back - X).mean() < 0.12


def test_information_criteria_count_the_parameters(X, model):
    total = model.score_samples(X).sum()
    n_parameters = 3 * 3 + 3 + 1 + 3  # mixing, activations, noise, offset
    np.testing.assert_allclose(model.aic(X), -2 * total + 2 * n_parameters)
    np.testing.assert_allclose(model.bic(X), -2 * total + np.log(len(X)) * n_parameters)


def test_samples_look_like_the_data(X, model):
    Y, latents = model.sample(20000)
    assert latents.shape == (20000, 3)
    error = np.abs(np.cov(Y.T) - model.parameters_.covariance)
    assert error.max() < 0.1 * np.abs(np.cov(X.T)).max()


def test_posterior_says_how_sure_it_is(X, model):
    posterior = model.posterior(X[:5])
    assert posterior.activation.shape == (5, 3)
    supports = posterior.supports(8)
    np.testing.assert_allclose(supports.probability.sum(axis=1), 1, rtol=1e-12)
    marginal = np.einsum("nk,nkh->nh", supports.probability, supports.active)
    np.testing.assert_allclose(marginal, posterior.activation, atol=1e-12)
    assert posterior.sample(7, random_state=0).shape == (7, 5, 3)
    assert posterior.covariance().shape == (5, 3, 3)
    assert "5 points" in repr(posterior)


def test_the_same_seed_gives_the_same_fit_for_any_number_of_threads(X, model):
    for n_jobs in (1, 2, -1):
        again = GaussianSparseCoding(3, random_state=0, n_jobs=n_jobs).fit(X)
        np.testing.assert_array_equal(again.mixing_, model.mixing_)
        assert [r.log_likelihood for r in again.runs_] == [r.log_likelihood for r in model.runs_]


def test_held_out_likelihood_finds_the_number_of_components():
    # four features, two sources: a third has nothing to explain
    rng = np.random.default_rng(0)
    truth = Parameters(
        rng.standard_normal((4, 2)),
        np.zeros(4),
        Prior.spike_and_slab([0.3, 0.3]),
        IsotropicNoise(0.1, 4),
    )
    X = truth.sample(600, rng)[0]
    search = GridSearchCV(
        GaussianSparseCoding(n_init=2, random_state=0), {"n_components": [1, 2, 3, 4]}, cv=3
    )
    assert search.fit(X).best_params_ == {"n_components": 2}


def test_it_works_in_a_pipeline_with_names_and_pandas(X):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    pipeline = make_pipeline(
        StandardScaler(), PCA(2), GaussianSparseCoding(2, random_state=0)
    ).set_output(transform="pandas")
    latents = pipeline.fit_transform(frame)
    assert list(latents.columns) == ["gaussiansparsecoding0", "gaussiansparsecoding1"]
    assert latents.index.equals(frame.index)
    assert np.isfinite(cross_val_score(pipeline, frame, cv=3)).all()


def test_feature_names_are_kept_and_checked(X):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[["c", "b", "a"]])


def test_float32_in_is_float32_out_and_loses_no_more_than_rounding(X, model):
    single = X.astype(np.float32)
    fitted = GaussianSparseCoding(3, random_state=0).fit(single)
    assert fitted.transform(single).dtype == np.float32
    assert fitted.inverse_transform(fitted.transform(single)).dtype == np.float32
    np.testing.assert_allclose(fitted.log_likelihood_, model.log_likelihood_, rtol=1e-5)


def test_save_and_load_give_the_same_model(tmp_path, X, model):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = clone(model).set_params(to_learn=("components", "prior", "noise")).fit(frame)
    model.save(tmp_path / "model.npz")
    loaded = GaussianSparseCoding.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.transform(frame), model.transform(frame))
    assert loaded.runs_ == model.runs_
    assert loaded.history_ == model.history_
    assert (loaded.n_iter_, loaded.converged_) == (model.n_iter_, model.converged_)
    assert list(loaded.feature_names_in_) == ["a", "b", "c"]
    assert loaded.get_params() == {
        **model.get_params(),
        "to_learn": ["components", "prior", "noise"],
    }
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:  # nothing needs unpickling
        assert all(file[name].dtype != object for name in file.files)


def test_pickle_and_clone(X, model):
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).transform(X), model.transform(X)
    )
    with pytest.raises(NotFittedError):
        clone(model).transform(X)


def test_warm_start_goes_on_from_where_it_was(X, model):
    warm = clone(model).set_params(warm_start=True, n_init=1, max_iter=5)
    with pytest.warns(ConvergenceWarning):
        first = warm.fit(X).log_likelihood_
    warm.set_params(max_iter=1000).fit(X)
    assert warm.history_[0] == pytest.approx(first, abs=1e-9)
    assert warm.log_likelihood_ > first
    assert len(warm.runs_) == 1


def test_given_components_are_the_start(X, truth):
    model = GaussianSparseCoding(
        init=truth.mixing.T, to_learn=("prior", "noise"), n_init=1, random_state=0
    ).fit(X)
    np.testing.assert_allclose(model.components_, truth.mixing.T, rtol=1e-12)


def test_given_parameters_are_the_start_and_nothing_else_is_learned(X, truth):
    model = GaussianSparseCoding(init=truth, to_learn=()).fit(X)
    np.testing.assert_allclose(model.score(X), log_density_of(truth, X).mean(), atol=1e-10)
    np.testing.assert_array_equal(model.mixing_, truth.mixing)
    np.testing.assert_allclose(model.mean_, truth.offset, rtol=1e-14)


def test_plain_em_and_the_accelerated_fit_find_the_same_optimum(X, model):
    plain = GaussianSparseCoding(3, accelerate=False, tol=1e-10, max_iter=5000, random_state=0)
    plain.fit(X)
    np.testing.assert_allclose(plain.log_likelihood_, model.log_likelihood_, atol=1e-6)
    assert sum(run.n_iter for run in plain.runs_) > 2 * sum(run.n_iter for run in model.runs_)


def test_slab_means_find_skewed_sources():
    rng = np.random.default_rng(0)
    truth = Parameters(
        rng.standard_normal((2, 2)),
        np.zeros(2),
        Prior.spike_and_slab([0.3, 0.4], slab_mean=[3.0, -3.0]),
        IsotropicNoise(0.01, 2),
    )
    X = truth.sample(500, rng)[0]
    fits = [
        GaussianSparseCoding(2, slab_mean=flag, random_state=0).fit(X) for flag in (False, True)
    ]
    assert fits[1].score(X) > fits[0].score(X) + 0.1
    np.testing.assert_allclose(np.abs(fits[1].slab_mean_), 3, atol=0.5)


# ---- callbacks, interruption, output ----


def test_the_callback_sees_every_iteration_and_can_stop(X):
    seen: list[Progress] = []

    def callback(progress):
        seen.append(progress)
        return progress.iteration == 3

    model = GaussianSparseCoding(2, n_init=2, callback=callback, random_state=0).fit(X)
    assert [(p.run, p.iteration) for p in seen] == [(r, i) for r in (0, 1) for i in range(4)]
    assert all(run.reason == "callback" for run in model.runs_)
    assert not model.converged_
    assert seen[3].log_likelihood == pytest.approx(model.runs_[0].log_likelihood)
    assert isinstance(seen[0].parameters, Parameters)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_ctrl_c_keeps_the_best_so_far(X, n_jobs):
    """A real SIGINT, while the runs go on in this thread or in others."""
    seen = []
    threads = threading.active_count()

    def callback(progress):
        seen.append(progress.log_likelihood)
        if len(seen) == 20:
            signal.raise_signal(signal.SIGINT)

    model = GaussianSparseCoding(3, n_init=4, callback=callback, n_jobs=n_jobs, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.log_likelihood_ >= max(seen[:20]) - 1e-9
    assert any(run.reason == "interrupted" for run in model.runs_)
    assert np.isfinite(model.score(X))
    model.set_params(callback=None, n_jobs=None).fit(X)  # and the process goes on
    assert model.converged_
    assert threading.active_count() <= threads


def test_ctrl_c_before_anything_was_fitted_leaves_an_unfitted_model(X):
    def callback(progress):
        raise KeyboardInterrupt

    model = GaussianSparseCoding(2, n_init=1, callback=callback)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert np.isfinite(model.score(X))  # one E-step was done: that is the best so far


def test_an_error_in_the_callback_is_raised_and_nothing_is_half_fitted(X, model):
    def callback(progress):
        raise RuntimeError("mine")

    for n_jobs in (1, 2):
        broken = clone(model).set_params(callback=callback, n_jobs=n_jobs)
        with pytest.raises(RuntimeError, match="mine"):
            broken.fit(X)
        with pytest.raises(NotFittedError):
            broken.transform(X)


def test_verbose_prints_and_silence_is_the_default(X, capsys):
    GaussianSparseCoding(2, n_init=2, random_state=0).fit(X)
    assert capsys.readouterr().out == ""
    GaussianSparseCoding(2, n_init=2, random_state=0, verbose=2).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("run 0, iteration") for line in lines) > 3
    assert lines[-1].startswith("run 1: ")
    assert lines[-1].endswith("converged")


def test_not_converging_is_said(X):
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model = GaussianSparseCoding(2, max_iter=2, random_state=0).fit(X)
    assert model.n_iter_ == 2
    assert not model.converged_
