"""Every bad input gives one clear error and leaves nothing half-fitted behind."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from spikeslab import (
    FullNoise,
    GaussianSparseCoding,
    IsotropicNoise,
    Parameters,
    Prior,
)

RNG = np.random.default_rng(0)
GOOD = RNG.standard_normal((30, 3))


def with_value(value):
    X = GOOD.copy()
    X[4, 1] = value
    return X


def with_column(value):
    X = GOOD.copy()
    X[:, 1] = value
    return X


BAD_DATA = {
    "a column of nan": (with_column(np.nan), ValueError, "column 1 of X has no observed value"),
    "nothing but nan": (np.full((9, 3), np.nan), ValueError, "column 0 of X has no observed value"),
    "infinity": (with_value(np.inf), ValueError, "infinity"),
    "no rows": (np.empty((0, 3)), ValueError, "0 sample"),
    "no columns": (np.empty((5, 0)), ValueError, "0 feature"),
    "one row": (GOOD[:1], ValueError, "minimum of 2"),
    "one dimension": (GOOD[:, 0], ValueError, "2D array"),
    "three dimensions": (GOOD[None], ValueError, "dim 3"),
    "text": ([["a", "b"], ["c", "d"]], ValueError, "could not convert"),
    "complex": (GOOD + 1j, ValueError, "Complex"),
    "sparse": (scipy.sparse.csr_matrix(GOOD), TypeError, "[Ss]parse"),
    "constant": (np.ones((10, 3)), ValueError, "X is constant"),
    "None": (None, ValueError, "2D array"),
}

BAD_ARGUMENTS = {
    "n_components=0": ({"n_components": 0}, ValueError, "n_components must be at least 1, got 0"),
    "n_components=2.5": ({"n_components": 2.5}, TypeError, "n_components must be a whole number"),
    "n_components=True": ({"n_components": True}, TypeError, "n_components"),
    "25 latents": (
        {"n_components": 25, "inference": "exact"},
        ValueError,
        r"25 latents have .* states.* fewer latents",
    ),
    "16 latents, K=3": (
        {"n_components": 16, "n_slabs": 2, "inference": "exact"},
        ValueError,
        "16 latents have",
    ),
    "noise": (
        {"noise": "pink"},
        ValueError,
        "noise must be one of 'isotropic', 'diagonal', 'full'",
    ),
    "noise=None": ({"noise": None}, ValueError, "noise must be one of"),
    "spike": ({"spike": "medium"}, ValueError, "spike must be one of 'hard', 'soft', got 'medium'"),
    "slab_mean": ({"slab_mean": "yes"}, TypeError, "slab_mean must be True or False"),
    "n_slabs": ({"n_slabs": 0}, ValueError, "n_slabs must be at least 1"),
    "shared_prior": ({"shared_prior": 1}, TypeError, "shared_prior must be True or False"),
    "init": (
        {"init": "kmeans"},
        ValueError,
        "init must be one of 'random', 'pca', 'data', got 'kmeans'",
    ),
    "init shape": ({"init": np.ones((2, 4))}, ValueError, "init must have shape any x 3"),
    "init text": ({"init": [["a", "b", "c"]]}, TypeError, "init must be an array of real numbers"),
    "init nan": ({"init": np.full((2, 3), np.nan)}, ValueError, "init contains NaN"),
    "n_init": ({"n_init": 0}, ValueError, "n_init must be at least 1"),
    "max_iter": ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
    "tol<0": ({"tol": -1e-3}, ValueError, "tol must be at least 0, got -0.001"),
    "tol=nan": ({"tol": np.nan}, ValueError, "tol must be at least 0, got nan"),
    "tol text": ({"tol": "small"}, TypeError, "tol must be a number"),
    "accelerate": ({"accelerate": "squarem"}, TypeError, "accelerate must be True or False"),
    "min_noise": ({"min_noise": 0.0}, ValueError, "min_noise must be above 0"),
    "anneal text": ({"anneal": "slowly"}, ValueError, "anneal must be one of 'auto'"),
    "anneal<0": ({"anneal": -1}, ValueError, "anneal must be at least 0"),
    "anneal float": ({"anneal": 0.5}, TypeError, "anneal must be a whole number"),
    "to_learn": ({"to_learn": ["weights"]}, ValueError, "to_learn must be one of 'components'"),
    "to_learn text": ({"to_learn": "prior"}, TypeError, "to_learn must be a collection"),
    "warm_start": ({"warm_start": None}, TypeError, "warm_start must be True or False"),
    "n_jobs": ({"n_jobs": 0}, ValueError, "n_jobs must be at least 1"),
    "callback": ({"callback": 3}, TypeError, "callback must be callable"),
    "random_state": ({"random_state": "seed"}, ValueError, "seed"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(case):
    X, error, message = BAD_DATA[case]
    model = GaussianSparseCoding(2)
    with pytest.raises(error, match=message):
        model.fit(X)
    assert_not_fitted(model)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case):
    arguments, error, message = BAD_ARGUMENTS[case]
    model = GaussianSparseCoding(**arguments)
    with pytest.raises(error, match=message):
        model.fit(GOOD)
    assert_not_fitted(model)


def assert_not_fitted(model):
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        model.transform(GOOD)


def test_a_failed_refit_keeps_the_previous_fit():
    model = GaussianSparseCoding(2, random_state=0).fit(GOOD)
    before = model.transform(GOOD)
    with pytest.raises(ValueError, match="no observed value"):
        model.fit(np.full((5, 2), np.nan))
    np.testing.assert_array_equal(model.transform(GOOD), before)
    assert model.n_features_in_ == 3


START = Parameters(np.eye(3), np.zeros(3), Prior.spike_and_slab([0.5] * 3), IsotropicNoise(1.0, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 2}, "components 3, but 2 is wanted"),
        ({"noise": "diagonal"}, "noise 'isotropic', but 'diagonal' is wanted"),
        ({"n_slabs": 2}, "slabs 1, but 2 is wanted"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(arguments, message):
    model = GaussianSparseCoding(init=START, **arguments)
    with pytest.raises(ValueError, match=message):
        model.fit(GOOD)
    assert_not_fitted(model)


def test_a_start_for_other_data_is_refused():
    with pytest.raises(ValueError, match="features 3, but 2 is wanted"):
        GaussianSparseCoding(init=START).fit(GOOD[:, :2])


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="smallest eigenvalue is"):
        FullNoise(np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"activation must lie in \[0, 1\], got 0.5 to 1.5"):
        Prior.spike_and_slab([0.5, 1.5])
    with pytest.raises(ValueError, match=r"activation must lie in \[0, 1\], got -0.1"):
        Prior.spike_and_slab([-0.1, 0.5])


METHODS = ("transform", "score_samples", "score", "posterior", "aic", "bic")


@pytest.mark.parametrize("method", METHODS)
def test_a_fitted_model_refuses_bad_data(method):
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD)
    call = getattr(model, method)
    for X, error, message in (
        (GOOD[:, :2], ValueError, "2 features"),
        (with_value(np.inf), ValueError, "infinity"),
        (GOOD[0], ValueError, "2D array"),
        (GOOD + 1j, ValueError, "Complex"),
        (np.empty((0, 3)), ValueError, "0 sample"),
    ):
        with pytest.raises(error, match=message):
            call(X)


@pytest.mark.parametrize("method", METHODS)
def test_an_unfitted_model_says_so(method):
    with pytest.raises(NotFittedError):
        getattr(GaussianSparseCoding(2), method)(GOOD)
    for attribute in ("mixing_", "components_", "activation_", "mean_", "noise_covariance_"):
        with pytest.raises(NotFittedError):
            getattr(GaussianSparseCoding(2), attribute)


def test_inverse_transform_and_sample_refuse_what_makes_no_sense():
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD)
    with pytest.raises(ValueError, match="X has 3 columns, but the model has 2 components"):
        model.inverse_transform(GOOD)
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        model.sample(0)
    with pytest.raises(TypeError, match="n_samples must be a whole number"):
        model.sample(1.5)


def save(path, **changes):
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD)
    model.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    for name, value in changes.items():
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spikeslab_format": np.array(99)}, "it has format 99"),
        ({"spikeslab_format": None}, "it was not written by spikeslab"),
        ({"spikeslab_content": np.array("parameters")}, "holds parameters, not model"),
        ({"mixing": None}, "it lacks 'mixing'"),
        ({"record": np.array("{")}, "cannot read"),
        ({"record": np.array("{}")}, "it lacks 'parameters'"),
        ({"weights": np.full((2, 2), 7.0)}, "weights must lie in"),
        ({"mixing": np.full((3, 2), np.nan)}, "mixing contains NaN"),
    ],
)
def test_a_wrong_model_file_is_refused(tmp_path, changes, message):
    path = tmp_path / "model.npz"
    save(path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        GaussianSparseCoding.load(path)
    assert "model.npz" in str(caught.value)


def test_a_damaged_model_file_is_refused_wherever_it_is_damaged(tmp_path):
    path = tmp_path / "model.npz"
    GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"model\.npz"):
            GaussianSparseCoding.load(path)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), 8):
            damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            GaussianSparseCoding.load(path)
        except ValueError:
            refused += 1
    assert refused > 50  # some bytes of an archive mean nothing


def test_a_missing_file_and_an_unwritable_folder_are_the_usual_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        GaussianSparseCoding.load(tmp_path / "nothing.npz")
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD)
    with pytest.raises(FileNotFoundError):
        model.save(tmp_path / "no folder" / "model.npz")


def test_data_that_is_almost_nothing_is_fitted():
    tiny = 1e-100 * GOOD
    model = GaussianSparseCoding(2, n_init=1, random_state=0).fit(tiny)
    whole = GaussianSparseCoding(2, n_init=1, random_state=0).fit(GOOD)
    np.testing.assert_allclose(model.mixing_ * 1e100, whole.mixing_, rtol=1e-2)
