"""Parameters: sampling, files, and what they refuse."""

import os
import pathlib

import numpy as np
import pytest

import oracles
import spikeslab.parameters
from spikeslab import DiagonalNoise, FullNoise, IsotropicNoise, Parameters, Prior
from spikeslab.parameters import load_arrays, save_arrays

NOISES = ["isotropic", "diagonal", "full"]


def moments(parameters):
    prior = parameters.prior
    return oracles.model_moments(
        parameters.mixing, parameters.offset, parameters.noise.covariance,
        prior.weights, prior.means, prior.variances,
    )  # fmt: skip


# ---- sampling ----


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("n_components", "prior"), [(2, {}), (3, {"spike": "soft", "with_means": True})]
)
def test_samples_have_the_models_mean_and_covariance(make_parameters, noise, n_components, prior):
    rng, n = np.random.default_rng(0), 50_000
    parameters = make_parameters(rng, noise, 3, 4, n_components, **prior)
    Y, X = parameters.sample(n, rng)
    assert (Y.shape, X.shape) == ((n, 3), (n, 4))
    mean, covariance = moments(parameters)
    np.testing.assert_allclose(parameters.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(parameters.covariance, covariance, rtol=1e-12, atol=1e-12)
    gap = Y - mean
    assert (np.abs(gap.mean(axis=0)) < 5 * np.sqrt(np.diag(covariance) / n)).all()
    products = gap[:, :, None] * gap[:, None, :]
    error = products.std(axis=0) / np.sqrt(n)
    assert (np.abs(products.mean(axis=0) - covariance) < 5 * error).all()


@pytest.mark.parametrize("noise", NOISES)
def test_what_the_latents_leave_of_a_sample_is_the_noise(make_parameters, noise):
    rng, n = np.random.default_rng(0), 50_000
    parameters = make_parameters(rng, noise)
    Y, X = parameters.sample(n, rng)
    rest = Y - parameters.offset - X @ parameters.mixing.T
    products = rest[:, :, None] * rest[:, None, :]
    error = products.std(axis=0) / np.sqrt(n)
    gap = products.mean(axis=0) - parameters.noise.covariance
    assert (np.abs(gap) < 5 * error).all()


def test_sampled_latents_and_components_follow_the_prior():
    rng, n = np.random.default_rng(0), 50_000
    prior = Prior.spike_and_slab([0.0, 0.3, 1.0], slab_mean=2.0)
    X, components = prior.sample(n, rng)
    np.testing.assert_array_equal(X != 0, components == 1)
    assert not components[:, 0].any()
    assert components[:, 2].all()
    assert abs(components[:, 1].mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / n)
    assert abs(X[:, 2].mean() - 2) < 5 / np.sqrt(n)


def test_the_same_seed_gives_the_same_sample(make_parameters):
    parameters = make_parameters(np.random.default_rng(0))
    one, two = (parameters.sample(5, np.random.default_rng(7)) for _ in range(2))
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(left, right)


def test_scaled_latents_and_shift_keep_the_density(make_parameters):
    rng = np.random.default_rng(0)
    parameters = make_parameters(rng, with_means=True)
    scaled = parameters.scaled_latents(np.array([2.0, -0.5, 3.0]))
    for found, wanted in zip(moments(scaled), moments(parameters), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parameters.shifted(np.ones(4)).mean, parameters.mean + 1)


# ---- files ----


@pytest.fixture(params=NOISES)
def parameters(request, make_parameters):
    return make_parameters(np.random.default_rng(0), request.param, 3, 2, 3, with_means=True)


def assert_same(one, two):
    assert type(one.noise) is type(two.noise)
    for name, values in one.arrays().items():
        assert values.tobytes() == two.arrays()[name].tobytes(), name


def test_a_round_trip_through_a_file_is_exact(parameters, tmp_path):
    path = tmp_path / "model.npz"
    parameters.save(path)
    loaded = Parameters.load(path)
    assert_same(loaded, parameters)
    assert os.listdir(tmp_path) == ["model.npz"]
    loaded.save(str(path))  # over the old one, and again
    assert_same(Parameters.load(str(path)), parameters)


def test_a_prior_made_of_a_priors_arrays_is_the_same_prior():
    rng = np.random.default_rng(0)
    for n_components in (2, 3, 4) * 20:
        prior = Prior(*oracles.random_prior(rng, 3, n_components))
        again = Prior(prior.weights, prior.means, prior.variances)
        np.testing.assert_array_equal(again.weights, prior.weights)


def test_a_file_keeps_its_name_whatever_the_ending(parameters, tmp_path):
    parameters.save(tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"]
    assert_same(Parameters.load(tmp_path / "model"), parameters)


def test_a_file_holds_no_pickle(parameters, tmp_path):
    parameters.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
        assert {"mixing", "offset", "weights", "spikeslab_format"} <= set(file.files)


class Exploit:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(os.environ["EXPLOIT"]),)


def test_a_pickle_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPLOIT", str(tmp_path / "exploited"))
    path = tmp_path / "model.npz"
    np.savez(path, mixing=np.array([Exploit()], dtype=object))
    with pytest.raises(ValueError, match=r"model\.npz"):
        Parameters.load(path)
    assert not (tmp_path / "exploited").exists()


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Parameters.load(tmp_path / "nowhere.npz")


def test_damaged_bytes_are_noticed_or_harmless(make_parameters, tmp_path):
    parameters = make_parameters(np.random.default_rng(0))
    path = tmp_path / "model.npz"
    parameters.save(path)
    whole = path.read_bytes()
    refused = 0
    for i in range(0, len(whole), 3):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        try:
            assert_same(Parameters.load(path), parameters)  # dates and the like do not matter
        except ValueError as error:
            assert "model.npz" in str(error), i  # noqa: PT017
            refused += 1
    assert refused > len(whole) / 6


def test_a_truncated_file_is_refused(make_parameters, tmp_path):
    path = tmp_path / "model.npz"
    make_parameters(np.random.default_rng(0)).save(path)
    whole = path.read_bytes()
    for length in [0, 1, 10, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cannot read .*model\.npz: ."):
            Parameters.load(path)


def write_foreign_npz(path, arrays):
    np.savez(path, a=np.ones(3))


def write_other_version(path, arrays):
    save_arrays(path, "parameters", arrays | {"more": np.ones(2)})
    with np.load(path) as file:
        np.savez(path, **(dict(file) | {"spikeslab_format": np.array(99)}))


def write_other_content(path, arrays):
    save_arrays(path, "a checkpoint", arrays)


def write_npy(path, arrays):
    with open(path, "wb") as file:
        np.save(file, np.ones(3))


def write_text(path, arrays):
    path.write_text("W = 1\n")


def write_incomplete(path, arrays):
    del arrays["weights"]
    save_arrays(path, "parameters", arrays)


def write_unknown_noise(path, arrays):
    save_arrays(path, "parameters", arrays | {"noise_kind": np.array("laplace")})


def write_wrong_values(path, arrays):
    save_arrays(path, "parameters", arrays | {"weights": -arrays["weights"]})


def write_wrong_noise_shape(path, arrays):
    save_arrays(path, "parameters", arrays | {"noise": np.empty(0)})


def write_wrong_mark(path, arrays):
    np.savez(path, spikeslab_format=np.ones(3), spikeslab_content=np.array("parameters"))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_foreign_npz, "was not written by spikeslab"),
        (write_other_version, "has format 99, and this version of spikeslab reads 1"),
        (write_other_content, "holds a checkpoint, not parameters"),
        (write_npy, "no .npz file"),
        (write_text, "no .npz file"),
        (write_incomplete, "lacks 'weights'"),
        (write_unknown_noise, "no noise of kind 'laplace'"),
        (write_wrong_values, "weights must lie in"),
        (write_wrong_noise_shape, "noise must have shape 1, got"),
        (write_wrong_mark, ""),
    ],
)
def test_any_other_file_is_refused_with_its_name(make_parameters, tmp_path, write, message):
    path = tmp_path / "model.npz"
    write(path, make_parameters(np.random.default_rng(0)).arrays())
    with pytest.raises(ValueError, match=rf"cannot read .*model\.npz: .*{message}"):
        Parameters.load(path)


def test_a_failed_save_leaves_the_old_file_intact(make_parameters, tmp_path, monkeypatch):
    rng, path = np.random.default_rng(0), tmp_path / "model.npz"
    old, new = make_parameters(rng), make_parameters(rng)
    old.save(path)

    def fail(file, **arrays):
        file.write(b"half of it")
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(spikeslab.parameters.np, "savez_compressed", fail)
        with pytest.raises(OSError, match="the disk is full"):
            new.save(path)
    assert os.listdir(tmp_path) == ["model.npz"]
    assert_same(Parameters.load(path), old)


def test_saving_where_there_is_no_directory_fails(make_parameters, tmp_path):
    with pytest.raises(FileNotFoundError):
        make_parameters(np.random.default_rng(0)).save(tmp_path / "nowhere" / "model.npz")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX files")
def test_a_saved_file_is_as_readable_as_any_new_file(make_parameters, tmp_path):
    (tmp_path / "other").touch()
    make_parameters(np.random.default_rng(0)).save(tmp_path / "model.npz")
    modes = [(tmp_path / name).stat().st_mode for name in ("model.npz", "other")]
    assert oct(modes[0]) == oct(modes[1])


def test_load_arrays_returns_what_save_arrays_took(tmp_path):
    arrays = {"a": np.arange(3), "name": np.array("x")}
    save_arrays(tmp_path / "file", "things", arrays)
    loaded = load_arrays(tmp_path / "file", "things")
    assert loaded.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(loaded[name], values)


# ---- what is refused ----

HALF, ZERO = np.full((2, 2), 0.5), np.zeros((2, 2))
WIDTHS = np.array([[0.0, 1.0], [0.0, 1.0]])
GOOD = Prior(HALF, ZERO, WIDTHS)
NAN = np.array([[np.nan, 1.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Prior.spike_and_slab([0.2, 1.1]), ValueError, r"activation must lie in \[0, 1\]"),
        (lambda: Prior.spike_and_slab([-0.1, 0.5]), ValueError, r"activation must lie in \[0, 1\]"),
        (lambda: Prior.spike_and_slab([np.nan, 0.5]), ValueError, "activation contains NaN"),
        (lambda: Prior.spike_and_slab([[0.5]]), ValueError, "activation must have shape any"),
        (lambda: Prior.spike_and_slab(["a"]), TypeError, "activation must be an array of real"),
        (lambda: Prior([[-0.5, 1.5]], [[0, 0]], [[0, 1]]), ValueError, r"weights must lie in"),
        (lambda: Prior(HALF * 0.9, ZERO, WIDTHS), ValueError, "weights .* must add up to 1"),
        (lambda: Prior(NAN, ZERO, WIDTHS), ValueError, "weights contains NaN"),
        (lambda: Prior(HALF, NAN, WIDTHS), ValueError, "means contains NaN"),
        (lambda: Prior(HALF, ZERO, NAN), ValueError, "variances contains NaN"),
        (lambda: Prior(HALF, ZERO, WIDTHS + np.inf), ValueError, "variances contains .*infinity"),
        (lambda: Prior(HALF[0], ZERO, WIDTHS), ValueError, "weights must have shape"),
        (lambda: Prior(HALF, ZERO[:1], WIDTHS), ValueError, "means must have shape 2 x 2"),
        (lambda: Prior(HALF, ZERO, WIDTHS[:, :1]), ValueError, "variances must have shape 2 x 2"),
        (lambda: Prior(HALF, ZERO, ZERO), ValueError, "variances must be positive"),
        (lambda: Prior(HALF, ZERO, WIDTHS - 0.1), ValueError, "variances must be positive"),
        (lambda: Prior(np.empty((0, 2)), np.empty((0, 2)), np.empty((0, 2))), ValueError,
         "at least one latent"),
        (lambda: IsotropicNoise(0.0, 3), ValueError, "variance must be positive"),
        (lambda: IsotropicNoise(-1.0, 3), ValueError, "variance must be positive"),
        (lambda: IsotropicNoise(np.nan, 3), ValueError, "variance must be positive"),
        (lambda: IsotropicNoise(np.inf, 3), ValueError, "variance must be .*finite"),
        (lambda: DiagonalNoise([1.0, 0.0]), ValueError, "variances must be positive"),
        (lambda: DiagonalNoise([1.0, np.nan]), ValueError, "variances contains NaN"),
        (lambda: DiagonalNoise(np.eye(2)), ValueError, "variances must have shape"),
        (lambda: FullNoise(np.ones((2, 2))), ValueError, "covariance must be positive definite"),
        (lambda: FullNoise(np.zeros((2, 2))), ValueError, "covariance must be positive definite"),
        (lambda: FullNoise(-np.eye(2)), ValueError, "covariance must be positive definite"),
        (lambda: FullNoise([[1.0, 0.5], [0.2, 1.0]]), ValueError, "covariance must be .*symmetric"),
        (lambda: FullNoise(np.ones((2, 3))), ValueError, "covariance must be square"),
        (lambda: FullNoise(np.full((2, 2), np.nan)), ValueError, "covariance contains NaN"),
        (lambda: Parameters(np.ones((3, 1)), np.zeros(3), GOOD, IsotropicNoise(1.0, 3)), ValueError,
         r"mixing must have shape any x 2, got \(3, 1\)"),
        (lambda: Parameters(np.ones(2), np.zeros(3), GOOD, IsotropicNoise(1.0, 3)), ValueError,
         "mixing must have shape"),
        (lambda: Parameters(NAN, np.zeros(2), GOOD, IsotropicNoise(1.0, 2)), ValueError,
         "mixing contains NaN"),
        (lambda: Parameters(np.ones((3, 2)), np.zeros(2), GOOD, IsotropicNoise(1.0, 3)), ValueError,
         r"offset must have shape 3, got \(2,\)"),
        (lambda: Parameters(np.ones((3, 2)), np.zeros(3), GOOD, IsotropicNoise(1.0, 2)), ValueError,
         "noise has 2 features, the mixing 3"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_parameters_cannot_be_changed(parameters):
    with pytest.raises(AttributeError):
        parameters.offset = np.zeros(3)
    for values in (parameters.mixing, parameters.prior.weights, parameters.prior.variances):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


@pytest.mark.parametrize("name", ["mixing", "offset", "weights", "means", "variances", "noise"])
def test_the_callers_arrays_stay_the_callers(name):
    given = {
        "mixing": np.ones((2, 2)), "offset": np.zeros(2), "noise": np.ones(2),
        "weights": HALF.copy(), "means": ZERO.copy(), "variances": WIDTHS.copy(),
    }  # fmt: skip
    view = given[name][:]  # what is read-only here need not be so there
    prior = Prior(given["weights"], given["means"], given["variances"])
    parameters = Parameters(given["mixing"], given["offset"], prior, DiagonalNoise(given["noise"]))
    before = parameters.arrays()[name].copy()
    view += 1
    np.testing.assert_array_equal(parameters.arrays()[name], before)
    assert given[name].flags.writeable


def test_small_rounding_of_weights_and_covariances_is_mended():
    prior = Prior(HALF + 1e-8, ZERO, WIDTHS)
    np.testing.assert_allclose(prior.weights.sum(axis=1), 1, rtol=1e-15)
    rough = np.array([[1.0, 0.5 + 1e-13], [0.5, 1.0]])
    covariance = FullNoise(rough).covariance
    np.testing.assert_array_equal(covariance, covariance.T)
