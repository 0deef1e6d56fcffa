"""`separate`: from mixtures with known sources to what it says about them."""

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import subspace_angles

import spikeslab.checkpoint
import spikeslab.separation as module
from spikeslab import GaussianSparseCoding, NoiseFreeSparseCoding, separate
from spikeslab.baselines import fast_ica
from spikeslab.initialise import random_rotations
from spikeslab.metrics import amari_index_of_mixing, column_angles, match_sources, sdr
from spikeslab.separation import load_model, orthogonality_threshold


def sparse(rng, n_samples, n_sources, activity=0.25):
    shape = (n_samples, n_sources)
    return rng.standard_normal(shape) * (rng.random(shape) < activity)


def mixed(rng, S, n_channels, noise=0.0):
    """Data and mixing matrix; `noise` relative to the standard deviation of the channels."""
    A = rng.standard_normal((n_channels, S.shape[1]))
    X = S @ A.T
    return X + noise * X.std() * rng.standard_normal(X.shape), A


@pytest.fixture(scope="module")
def noise_free():
    rng = np.random.default_rng(0)
    S = np.column_stack([rng.exponential(size=500), rng.laplace(size=500), rng.random(500)])
    X, A = mixed(rng, S, 3)
    return X, A, S, separate(X, 3, random_state=0)


@pytest.fixture(scope="module")
def noisy():
    rng = np.random.default_rng(1)
    S = sparse(rng, 600, 3)
    X, A = mixed(rng, S, 4, 0.2)
    return X, A, S, separate(X, 3, random_state=0)


@pytest.fixture(scope="module")
def overcomplete():
    rng = np.random.default_rng(2)
    S = sparse(rng, 800, 3, 0.15)
    A = np.array([[1.0, 0.5, -0.5], [0.0, 0.9, 0.8]])
    X = S @ A.T + 0.03 * rng.standard_normal((800, 2))
    return X, A, S, separate(X, 3, random_state=0)


CASES = ("noise_free", "noisy", "overcomplete")


@pytest.fixture(params=CASES)
def case(request):
    return request.getfixturevalue(request.param)


# ---- what is found ----


def test_without_noise_sources_of_all_kinds_are_found(noise_free):
    X, A, S, found = noise_free
    assert found.method == "noise_free"
    assert isinstance(found.model, NoiseFreeSparseCoding)
    assert found.noise_variance == 0
    assert amari_index_of_mixing(found.mixing, A) < 0.06
    assert sdr(found.sources, S).min() > 20
    np.testing.assert_allclose(found.model.mean_ + found.sources @ found.mixing.T, X, atol=1e-10)


def test_with_noise_the_noise_is_estimated_and_sources_beat_linear_unmixing(noisy):
    X, A, S, found = noisy
    assert found.method == "noisy"
    assert isinstance(found.model, GaussianSparseCoding)
    true_noise = np.mean((X - S @ A.T) ** 2)
    np.testing.assert_allclose(found.noise_variance, true_noise, rtol=0.1)
    assert amari_index_of_mixing(found.mixing, A) < 0.04
    ideal = (X - X.mean(axis=0)) @ np.linalg.pinv(A).T  # linear unmixing that knows the truth
    ica = (X - X.mean(axis=0)) @ fast_ica(X, 3, random_state=0).T
    ours = sdr(found.sources, S)
    assert (ours > sdr(ideal, S) + 1).all()
    assert (ours > sdr(ica, S) + 1).all()


def test_posterior_means_beat_linear_unmixing_in_noise_on_other_sources_too():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        S = rng.laplace(size=(500, 3)) if seed % 2 else sparse(rng, 500, 3)
        X, A = mixed(rng, S, 3, 0.3)
        found = separate(X, 3, random_state=0)
        linear = (X - X.mean(axis=0)) @ np.linalg.pinv(A).T
        assert sdr(found.sources, S).mean() > sdr(linear, S).mean() + 1


def test_more_sources_than_channels_are_found(overcomplete):
    _, A, S, found = overcomplete
    assert found.sources.shape == S.shape
    assert found.method == "noisy"
    assert column_angles(found.mixing, A).max() < 5
    assert sdr(found.sources, S).min() > 5
    assert not [run for run in found.runs if run.family == "noise-free"]


def test_with_more_channels_than_sources_the_subspace_is_found(noisy):
    _, A, _, found = noisy
    assert found.mixing.shape == (4, 3)
    assert np.degrees(subspace_angles(found.mixing, A)).max() < 5


@pytest.mark.parametrize(
    ("n_sources", "n_channels", "noise"),
    [(1, 3, 0.1), (2, 4, 0.1), (3, 4, 0.15), (2, 2, 0.0), (3, 3, 0.1)],
)
def test_the_number_of_sources_is_found(n_sources, n_channels, noise):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        A = random_rotations(1, n_channels, rng)[0][:, :n_sources]
        X = sparse(rng, 400, n_sources) @ A.T
        X += noise * X.std() * rng.standard_normal(X.shape)
        found = separate(X, random_state=0)
        assert found.sources.shape == (400, n_sources)
        assert {run.n_sources for run in found.runs} == set(range(1, n_channels + 1))
        assert column_angles(found.mixing, A).max() < 10


def test_sources_of_unequal_scales_are_found():
    """Over 40 dB without noise; with noise, of what is above it."""
    rng = np.random.default_rng(0)
    S = rng.laplace(size=(1000, 3)) * [1.0, 0.1, 0.01]
    X, _ = mixed(rng, S, 3)
    assert sdr(separate(X, 3, random_state=0).sources, S).min() > 20
    S = sparse(rng, 1000, 3) * [1.0, 0.3, 0.1]
    X = S @ rng.standard_normal((4, 3)).T
    X += 0.005 * rng.standard_normal(X.shape)
    assert sdr(separate(X, 3, random_state=0).sources, S).min() > 15


@pytest.mark.parametrize(
    ("method", "families"),
    [
        ("noise_free", {"noise-free", "noise-free, Laplacian"}),
        ("orthogonal", {"orthogonal"}),
        ("noisy", {"Laplacian prior", "shared prior", "spike and slab"}),
        (
            "auto",
            {"noise-free", "noise-free, Laplacian", "Laplacian prior", "shared prior"}
            | {"spike and slab", "own priors"},
        ),
    ],
)
def test_methods_try_what_they_say(noise_free, method, families):
    X, A, _, _ = noise_free
    found = separate(X, 3, method, random_state=0)
    assert {run.family for run in found.runs} == families
    assert found.method == method or method == "auto"
    if method != "noisy":  # exponential and uniform sources are not what these are for
        assert amari_index_of_mixing(found.mixing, A) < 0.1
    if method == "orthogonal":
        chosen = next(run for run in found.runs if run.chosen)
        assert chosen.orthogonality_deviation < 1e-6


# ---- the account of it ----


def test_one_run_is_chosen_and_the_model_is_that_run(case):
    X, _, _, found = case
    (chosen,) = [run for run in found.runs if run.chosen]
    np.testing.assert_allclose(found.model.score(X), chosen.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(found.model.log_likelihood_, chosen.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(chosen.history[-1], chosen.log_likelihood, rtol=1e-12)
    assert column_angles(found.mixing, chosen.mixing).max() < 1e-6
    assert chosen.admissible
    assert chosen.best
    assert chosen.criterion == max(r.criterion for r in found.runs if r.best and r.admissible)
    expected = chosen.log_likelihood * len(X) - found.model.n_parameters
    np.testing.assert_allclose(chosen.criterion, expected, rtol=1e-12)
    if found.method == "noisy":
        assert found.noise_variance == chosen.noise_variance


@pytest.mark.parametrize("method", ["noise_free", "orthogonal", "noisy"])
def test_likelihoods_of_all_kinds_are_densities_of_the_data(method):
    rng = np.random.default_rng(0)
    for n_sources in (1, 2):
        X, _ = mixed(rng, sparse(rng, 200, n_sources, 0.7), 2, 0.3)
        found = separate(X, n_sources, method, random_state=0)
        half = 4 * np.abs(X).max()
        axis = (np.arange(500) + 0.5) / 250 * half - half
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        total = np.exp(found.model.score_samples(grid)).sum() * (axis[1] - axis[0]) ** 2
        np.testing.assert_allclose(total, 1, atol=0.01)


def test_long_data_is_searched_in_a_part_and_the_chosen_model_fitted_to_all():
    rng = np.random.default_rng(0)
    S = sparse(rng, 7000, 2)
    X, A = mixed(rng, S, 3, 0.2)
    for method in ("auto", "noise_free", "noisy"):
        found = separate(X, 2, method, random_state=0)
        (chosen,) = [run for run in found.runs if run.chosen]
        np.testing.assert_allclose(found.model.score(X), chosen.log_likelihood, rtol=1e-9)
        assert column_angles(found.mixing, A).max() < 5


def test_the_model_reproduces_the_sources_also_from_a_file(case, tmp_path):
    X, _, _, found = case
    np.testing.assert_array_equal(found.model.transform(X), found.sources)
    found.model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(load_model(tmp_path / "model.npz").transform(X), found.sources)
    np.testing.assert_array_equal(found.model.mixing_, found.mixing)
    assert found.prior is found.model.parameters_.prior


def test_sources_come_in_the_order_of_their_power_with_the_largest_entries_positive(case):
    _, _, _, found = case
    power = (found.mixing**2).sum(axis=0) * found.prior.variance
    assert (np.diff(power) <= 0).all()
    largest = np.abs(found.mixing).argmax(axis=0)
    assert (found.mixing[largest, np.arange(len(power))] > 0).all()


def test_reliability_is_in_range(case):
    _, _, S, found = case
    trust = found.reliability
    n_sources = S.shape[1]
    for values in (trust.agreement, trust.activation, trust.posterior_std):
        assert values.shape == (n_sources,)
    assert ((trust.agreement >= 0) & (trust.agreement <= 1 + 1e-12)).all()
    assert ((trust.activation >= 0) & (trust.activation <= 1)).all()
    assert (trust.posterior_std >= 0).all()
    assert (trust.posterior_std <= 1 + 1e-9).all()
    assert (trust.posterior_std == 0).all() == (found.method == "noise_free")


def test_restarts_that_fail_do_not_make_what_was_found_doubtful():
    """Runs with the wrong kind of density, and their local optima, are far less likely."""
    rng = np.random.default_rng(0)
    S = rng.uniform(-1, 1, (1500, 6))
    X, A = mixed(rng, S, 6)
    found = separate(X, 6, "noise_free", random_state=0)
    assert amari_index_of_mixing(found.mixing, A) < 0.05
    best = max(run.log_likelihood for run in found.runs)
    assert any(run.log_likelihood < best - 0.05 for run in found.runs)
    assert found.reliability.agreement.min() > 0.98


def test_posterior_deviations_are_those_of_the_posterior(noisy):
    X, _, _, found = noisy
    covariance = found.model.posterior(X).covariance()
    rms = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2).mean(axis=0))
    expected = rms / np.sqrt(found.prior.variance)
    np.testing.assert_allclose(found.reliability.posterior_std, expected, rtol=1e-6)


def test_posterior_deviations_tell_the_error():
    """Relative to the source: what a posterior mean misses is what the posterior says it misses."""
    rng = np.random.default_rng(3)
    S = sparse(rng, 2000, 2) * [1.0, 0.2]
    X = S @ np.array([[1.0, 0.3], [-0.4, 1.0]]) + 0.15 * rng.standard_normal((2000, 2))
    found = separate(X, 2, "noisy", random_state=0)
    order, signs = match_sources(found.sources, S)
    estimates = found.sources[:, order] * signs
    scale = np.linalg.norm(found.mixing[:, order], axis=0) / np.hypot(1.0, [0.3, 0.4])
    error = np.sqrt(((estimates * scale - S) ** 2).mean(axis=0) / S.var(axis=0))
    np.testing.assert_allclose(found.reliability.posterior_std[order], error, rtol=0.2)
    assert error[1] > 2 * error[0]


def test_sources_that_cannot_be_told_apart_agree_less():
    """Two Gaussians have no directions: every restart finds others."""
    rng = np.random.default_rng(0)
    S = np.column_stack(
        [rng.laplace(size=400) ** 3 / 10, rng.standard_normal(400), rng.standard_normal(400)]
    )
    X = S @ random_rotations(1, 3, rng)[0]
    found = separate(X, 3, "noise_free", random_state=0)
    order, _ = match_sources(found.sources, S)
    agreement = found.reliability.agreement[order]
    assert agreement[0] > 0.95
    assert agreement[1:].max() < agreement[0] - 0.05


def test_one_restart_has_nothing_to_agree_with():
    rng = np.random.default_rng(0)
    X, _ = mixed(rng, sparse(rng, 200, 2), 2, 0.2)
    found = separate(X, 2, "noisy", n_init=1, random_state=0)
    assert np.isnan(found.reliability.agreement).all()
    assert "nan" in repr(found)


def test_the_repr_is_a_table(case):
    X, _, S, found = case
    lines = repr(found).splitlines()
    assert lines[0] == (
        f"Separation of {S.shape[1]} sources from {X.shape[1]} channels of {len(X)} samples"
    )
    assert ("no noise" in lines[1]) == (found.noise_variance == 0)
    assert f"{found.model.score(X):.4f}" in lines[1]
    assert len(lines) == 3 + S.shape[1]
    shares = [float(line.split()[1].rstrip("%")) for line in lines[3:]]
    assert 60 < sum(shares) < 130


def test_the_spike_is_the_peak_of_the_density_so_that_activation_means_something():
    """A soft spike may become broader than a slab while the model is fitted: labels, no more."""
    for seed in (22, 37, 38):
        rng = np.random.default_rng(seed)
        S = rng.laplace(size=(300, 3)) if seed % 2 else sparse(rng, 300, 3, 0.3)
        X = S @ rng.standard_normal((3, 3))
        X += 0.2 * X.std() * rng.standard_normal(X.shape)
        found = separate(X, 3, random_state=0)
        prior = found.prior
        assert prior.variances.min() > 0  # hard spikes are the peaks anyway
        peaks = prior.weights / np.sqrt(prior.variances)
        assert (peaks[:, 0] >= peaks.max(axis=1) * (1 - 1e-9)).all()


def test_where_spikes_are_narrow_activation_is_how_often_a_source_is_on():
    for seed, active in enumerate((0.1, 0.3, 0.5)):
        rng = np.random.default_rng(seed)
        S = sparse(rng, 1000, 3, active)
        X, _ = mixed(rng, S, 3, 0.1)
        found = separate(X, 3, random_state=0)
        assert found.prior.variances[:, 0].max() < 1e-3
        np.testing.assert_allclose(found.reliability.activation, active, atol=0.07)


# ---- the paper's choice by orthogonality ----


@pytest.mark.parametrize(
    ("deviations", "threshold"),
    [
        ([3, 4, 6, 7, 8, 12, 33, 41, 44], 15.0),
        ([1, 2, 3], 5.0),
        ([1, 2, 3, 11, 12], 5.0),  # an empty bin ends a cluster
        ([1, 2, 3, 6, 11, 12], 10.0),  # as does the minimum before counts rise again
        ([12, 13, 33], 15.0),  # the first cluster need not be at 0
        ([0, 0, 0], 5.0),
        ([88, 89, 90], 90.0),
        ([2, 7, 7, 12, 12, 12, 17, 40], 20.0),
        ([42.0], 45.0),
    ],
)
def test_the_threshold_is_behind_the_first_cluster(deviations, threshold):
    assert orthogonality_threshold(deviations) == threshold


def test_some_run_is_always_below_the_threshold():
    rng = np.random.default_rng(0)
    for _ in range(500):
        deviations = 90 * rng.beta(*rng.uniform(0.2, 5, 2), size=rng.integers(1, 60))
        threshold = orthogonality_threshold(deviations)
        assert deviations.min() <= threshold <= 90


def test_choice_by_orthogonality_takes_the_most_likely_of_the_most_orthogonal_runs():
    differs = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X, _ = mixed(rng, rng.standard_t(3, size=(60, 3)), 3, 0.1)
        found = separate(X, 3, select="orthogonality", n_init=12, random_state=0)
        assert {run.family for run in found.runs} == {"spike and slab"}
        assert len(found.runs) == 12
        threshold = orthogonality_threshold([run.orthogonality_deviation for run in found.runs])
        kept = [run for run in found.runs if run.orthogonality_deviation <= threshold]
        (chosen,) = [run for run in found.runs if run.chosen]
        assert chosen.orthogonality_deviation <= threshold
        assert chosen.log_likelihood == max(run.log_likelihood for run in kept)
        # and what is returned is that run
        np.testing.assert_allclose(found.model.score(X), chosen.log_likelihood, rtol=1e-9)
        assert column_angles(found.mixing, chosen.mixing).max() < 1e-6
        differs += chosen.log_likelihood < max(run.log_likelihood for run in found.runs)
    assert differs > 0  # else the rule was not put to the test


def test_choice_by_orthogonality_finds_sparse_sources():
    rng = np.random.default_rng(0)
    X, A = mixed(rng, sparse(rng, 500, 3), 3, 0.1)
    found = separate(X, 3, select="orthogonality", random_state=0)
    assert amari_index_of_mixing(found.mixing, A) < 0.08
    assert len(found.runs) == 40


# ---- invariances ----


def test_the_same_seed_gives_the_same_result_for_any_number_of_threads(noisy):
    X, _, _, found = noisy
    for n_jobs in (None, 2, -1):
        again = separate(X, 3, random_state=0, n_jobs=n_jobs)
        np.testing.assert_array_equal(again.sources, found.sources)
        assert [run.log_likelihood for run in again.runs] == [
            run.log_likelihood for run in found.runs
        ]
    assert separate(X, 3, random_state=1).runs[0].history != found.runs[0].history


def test_threads_that_share_long_data_give_the_same_result():
    rng = np.random.default_rng(0)
    X, _ = mixed(rng, sparse(rng, 60_000, 2), 2, 0.2)

    def stop_early(progress):
        return progress.iteration >= 5

    one, two = (
        separate(X, 2, "noisy", n_jobs=n, random_state=0, callback=stop_early) for n in (1, 2)
    )
    np.testing.assert_array_equal(one.sources, two.sources)


def assert_same_separation(one, other):
    def everything(found):
        runs = [{n: v for n, v in vars(run).items() if n != "mixing"} for run in found.runs]
        plain = (found.settings, found.method, found.noise_variance, runs)
        return plain, [found.sources, found.mixing, *vars(found.reliability).values()]

    (plain, arrays), (other_plain, other_arrays) = everything(one), everything(other)
    assert plain == other_plain
    arrays += [run.mixing for run in one.runs] + list(one.model.arrays().values())
    other_arrays += [run.mixing for run in other.runs] + list(other.model.arrays().values())
    for mine, its in zip(arrays, other_arrays, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_sources": "auto"},
        {"n_sources": 4, "n_init": 3},
        {"n_sources": 2, "method": "noise_free"},
        {"n_sources": 3, "select": "orthogonality", "n_init": 5, "n_jobs": 2},
    ],
)
def test_after_ctrl_c_the_same_call_goes_on_from_its_checkpoint(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(spikeslab.checkpoint, "SECONDS", 0.0)
    rng = np.random.default_rng(7)
    X, _ = mixed(rng, sparse(rng, 700, 3), 3, 0.1)
    told = []
    whole = separate(X, random_state=0, callback=told.append, **arguments)
    n_told, told_until = len(told), 0

    def stop(progress):
        told.append(progress)
        if len(told) == told_until:
            raise KeyboardInterrupt

    path = tmp_path / "separation.ckpt"
    for part in (0.1, 0.4, 0.2):
        told_until, told = int(part * n_told), []
        with pytest.raises(KeyboardInterrupt):
            separate(X, random_state=0, callback=stop, checkpoint=path, **arguments)
    told_until, told = np.inf, []
    kept = {"checkpoint": path, "callback": stop}
    assert_same_separation(separate(X, random_state=0, **kept, **arguments), whole)
    told = []
    assert_same_separation(separate(X, random_state=0, **kept, **arguments), whole)
    assert not told  # there was nothing left to do


def test_without_a_random_state_the_checkpoint_knows_what_was_drawn(noisy, tmp_path):
    X, path = noisy[0][:300], tmp_path / "separation.ckpt"
    found = separate(X, 2, "noise_free", checkpoint=path)
    again = separate(X, 2, "noise_free", checkpoint=path)
    assert_same_separation(again, found)
    given = {name: value for name, value in found.settings.items() if name != "n_sources"}
    assert_same_separation(separate(X, 2, **given), found)
    with pytest.raises(ValueError, match=r"another fit \(other random_state\)"):
        separate(X, 2, "noise_free", random_state=1, checkpoint=path)
    with pytest.raises(ValueError, match=r"another fit \(other data\)"):
        separate(X[:-1], 2, "noise_free", checkpoint=path)


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(3), 5, np.int64(5)])
def test_settings_give_the_result_again(random_state):
    rng = np.random.default_rng(0)
    X, _ = mixed(rng, sparse(rng, 150, 2), 2, 0.2)
    found = separate(X, 2, random_state=random_state)
    assert type(found.settings["random_state"]) is int
    again = separate(X, **found.settings)
    np.testing.assert_array_equal(again.sources, found.sources)
    assert again.settings == found.settings


def test_whole_numbers_of_numpy_are_as_good(tmp_path):
    rng = np.random.default_rng(0)
    X, _ = mixed(rng, sparse(rng, 150, 2), 2, 0.2)
    found = separate(X, 2, n_init=1, random_state=0)
    numbers = {"n_sources": np.int64(2), "n_init": np.int32(1), "random_state": np.int64(0)}
    for checkpoint in (None, tmp_path / "separation.ckpt"):
        other = separate(X, **numbers, checkpoint=checkpoint)
        np.testing.assert_array_equal(other.sources, found.sources)
        assert other.settings == found.settings


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("name", CASES)
def test_scale_does_not_matter(request, name, factor):
    X, _, S, found = request.getfixturevalue(name)
    other = separate(factor * X, S.shape[1], random_state=0)
    assert other.method == found.method
    np.testing.assert_allclose(other.mixing, factor * found.mixing, atol=2e-3 * factor)
    np.testing.assert_allclose(other.sources, found.sources, atol=1e-2 * np.abs(S).max())
    # with a soft spike and fewer channels than sources the likelihood hardly says what is noise
    rtol = 0.5 if name == "overcomplete" else 1e-2
    np.testing.assert_allclose(other.noise_variance, factor**2 * found.noise_variance, rtol=rtol)
    np.testing.assert_allclose(other.prior.activation, found.prior.activation, atol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_permuted_rotated_and_shifted_channels_give_the_same_sources(request, name):
    X, _, S, found = request.getfixturevalue(name)
    rng = np.random.default_rng(0)
    rotation = random_rotations(1, X.shape[1], rng)[0]
    for Y in (X[:, ::-1], X @ rotation + 50 * rng.standard_normal(X.shape[1])):
        other = separate(Y, S.shape[1], random_state=0)
        assert other.method == found.method
        assert np.min(sdr(other.sources, found.sources)) > 25


def test_float32_lists_and_frames_are_mixtures_too(noisy):
    X, _, _, found = noisy
    single = separate(X.astype(np.float32), 3, random_state=0)
    assert single.sources.dtype == np.float32
    np.testing.assert_allclose(single.sources, found.sources, atol=0.02)
    same = separate(X.tolist(), 3, random_state=0)
    np.testing.assert_array_equal(same.sources, found.sources)
    framed = separate(pd.DataFrame(X), 3, random_state=0)
    np.testing.assert_allclose(framed.sources, found.sources, atol=1e-8)
    whole = separate((100 * X).round().astype(int), 3, random_state=0)
    assert sdr(whole.sources, found.sources).min() > 20


# ---- callbacks ----


def test_the_callback_is_told_of_all_families_with_comparable_likelihoods(noise_free):
    X, _, _, found = noise_free
    told = []
    again = separate(X, 3, random_state=0, callback=told.append)
    np.testing.assert_array_equal(again.sources, found.sources)
    assert {progress.stage for progress in told} == {run.family for run in found.runs}
    assert all(0 <= progress.run < progress.n_runs for progress in told)
    values = [progress.log_likelihood for progress in told]
    assert max(values) == max(value for run in found.runs for value in run.history)
    assert again.model.callback is None  # the model does not keep it


def test_a_callback_that_returns_true_ends_every_run(noisy):
    X = noisy[0]
    found = separate(X, 3, random_state=0, callback=lambda progress: progress.iteration >= 2)
    assert all(run.reason == "callback" and run.n_iter == 2 for run in found.runs)


@pytest.mark.parametrize("stage", ["noise-free", "shared prior"])
def test_ctrl_c_ends_the_search(noisy, stage):
    def callback(progress):
        if progress.stage == stage and progress.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        separate(noisy[0], 3, random_state=0, callback=callback)


# ---- bad input ----

GOOD = np.random.default_rng(0).laplace(size=(100, 3))


def with_value(value):
    X = GOOD.copy()
    X[4, 1] = value
    return X


BAD_DATA = {
    "mono": (GOOD[:, 0], r"X has shape \(100,\), which is one channel: .* at least two"),
    "one channel": (GOOD[:, :1], "X has one channel: separation needs at least two"),
    "silent": (GOOD * [1, 0, 1], "channel 2 is silent: all its values are the same"),
    "constant": (np.where([[False, False, True]], 0.1, GOOD), "channel 3 is silent"),
    "identical": (GOOD[:, [0, 1, 0]], "channels 1 and 3 are identical but for scale: drop one"),
    "scaled": (GOOD[:, [0, 1, 1]] * [1, 1, -3e-5] + 7, "channels 2 and 3 are identical"),
    "nan": (with_value(np.nan), "X contains NaN"),
    "infinity": (with_value(np.inf), "X contains infinity"),
    "rank": (
        np.column_stack([GOOD, GOOD.sum(axis=1)]),
        "the 4 channels of 100 samples have only rank 3: reduce them to 3",
    ),
    "rank in float32": (
        np.column_stack([GOOD, GOOD.sum(axis=1)]).astype(np.float32),
        "only rank 3",
    ),
    "few samples": (GOOD[:3], "X has 3 samples of 3 channels"),
    "rows are channels": (GOOD.T, "X has 3 samples of 100 channels: .* transpose X"),
    "channels far apart": (GOOD * [1, 1, 1e-7], "channel 3 is .* times smaller than channel"),
    "one sample": (GOOD[:1], "minimum of 2"),
    "three dimensions": (GOOD[None], "dim 3"),
    "text": ([["a", "b"], ["c", "d"]], "could not convert"),
    "complex": (GOOD + 1j, "Complex"),
}

BAD_ARGUMENTS = {
    "method": (
        {"method": "ica"},
        ValueError,
        "method must be one of 'auto', 'noise_free', 'orthogonal', 'noisy', got 'ica'",
    ),
    "method=None": ({"method": None}, ValueError, "method must be one of"),
    "select": (
        {"select": "best"},
        ValueError,
        "select must be one of 'likelihood', 'orthogonality', got 'best'",
    ),
    "n_sources text": ({"n_sources": "many"}, ValueError, "n_sources must be one of 'auto'"),
    "n_sources=0": ({"n_sources": 0}, ValueError, "n_sources must be at least 1, got 0"),
    "n_sources<0": ({"n_sources": -2}, ValueError, "n_sources must be at least 1, got -2"),
    "n_sources=2.5": ({"n_sources": 2.5}, TypeError, "n_sources must be a whole number, got 2.5"),
    "n_sources=None": ({"n_sources": None}, TypeError, "n_sources must be a whole number"),
    "noise-free and more sources": (
        {"n_sources": 4, "method": "noise_free"},
        ValueError,
        "n_sources=4, but without noise there can be no more sources than channels, .* 3; .*noisy",
    ),
    "orthogonal and more sources": (
        {"n_sources": 4, "method": "orthogonal"},
        ValueError,
        "n_sources=4, but without noise",
    ),
    "orthogonality and more sources": (
        {"n_sources": 4, "select": "orthogonality"},
        ValueError,
        "n_sources=4: more columns than the 3 channels cannot be orthogonal",
    ),
    "more than exact inference serves": (
        {"n_sources": 25},
        ValueError,
        r"n_sources=25: exact inference with noise visits 2\^25 .* at most 24",
    ),
    "orthogonality without noise": (
        {"select": "orthogonality", "method": "noise_free"},
        ValueError,
        "select='orthogonality' chooses among runs with noise, got method='noise_free'",
    ),
    "n_init<0": ({"n_init": -1}, ValueError, "n_init must be at least 1, got -1"),
    "n_init=0": ({"n_init": 0}, ValueError, "n_init must be at least 1, got 0"),
    "n_init text": ({"n_init": "few"}, TypeError, "n_init must be a whole number"),
    "n_jobs": ({"n_jobs": 0}, ValueError, "n_jobs must be at least 1"),
    "n_jobs=-2": ({"n_jobs": -2}, ValueError, "n_jobs must be at least 1"),
    "callback": ({"callback": 3}, TypeError, "callback must be callable, got 3"),
    "random_state": ({"random_state": "seed"}, ValueError, "'seed' cannot be used to seed"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_one_sentence(name):
    X, message = BAD_DATA[name]
    with pytest.raises(ValueError, match=message) as caught:
        separate(X)
    if name != "complex":  # where scikit-learn shows the data
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_one_sentence(name):
    arguments, error, message = BAD_ARGUMENTS[name]
    with pytest.raises(error, match=message) as caught:
        separate(GOOD, **arguments)
    assert "\n" not in str(caught.value)


def test_25_sources_are_too_many_with_noise_and_many_channels_are_not():
    rng = np.random.default_rng(0)
    X = rng.laplace(size=(200, 26))
    with pytest.raises(ValueError, match="give method='noise_free'"):
        separate(X, 25, "noisy")
    found = separate(X, 25, random_state=0, n_init=1, callback=lambda p: p.iteration >= 2)
    assert found.method == "noise_free"  # "auto" does without what it cannot afford


def test_the_number_of_sources_with_noise_ends_where_inference_is_too_much(monkeypatch):
    monkeypatch.setattr(module, "_AFFORDABLE", 4.0 * 200)
    rng = np.random.default_rng(0)
    X, _ = mixed(rng, sparse(rng, 200, 4), 4, 0.1)
    found = separate(X, method="noisy", n_init=1, random_state=0)
    assert {run.n_sources for run in found.runs} == {1, 2}
    found = separate(X, method="auto", n_init=1, random_state=0)
    assert {run.n_sources for run in found.runs} == {1, 2, 3, 4}
    noisy = [run for run in found.runs if not run.family.startswith("noise-free")]
    assert {run.n_sources for run in noisy} <= {1, 2}
