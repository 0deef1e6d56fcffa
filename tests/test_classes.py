"""Classes that share their directions: against brute force, against the model of one class, and EM
that never falls.
"""

import pickle
from dataclasses import fields
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import oracles
from spikeslab import (
    ClasswiseSparseCoding,
    Expectation,
    GaussianSparseCoding,
    IsotropicNoise,
    Model,
    Parameters,
    Prior,
)
from spikeslab import class_statistics as e_step
from spikeslab.class_m_step import BACKGROUNDS, NO_PULL, Pull, class_m_step
from spikeslab.class_statistics import ClassInference, ClassStatistics
from spikeslab.classes import ClassParameters
from spikeslab.m_step import m_step
from spikeslab.parameters import load_arrays, save_arrays
from spikeslab.truncated import TruncatedInference

D, H, R = 6, 5, 2


def exactly(parameters):
    """Inference over all states."""
    return TruncatedInference(parameters, parameters.n_latents, parameters.n_latents)


@pytest.fixture(autouse=True)
def all_classes(monkeypatch):
    """No class is left out, unless a test says so."""
    monkeypatch.setattr(e_step, "NEGLIGIBLE", 0.0)


def make(rng, background="full", n_classes=R, n_latents=H, n_features=D):
    roots = rng.normal(size=(n_classes, n_features, 2))
    backgrounds = {
        "none": np.zeros((n_classes, n_features, n_features)),
        "isotropic": rng.uniform(0, 2, (n_classes, 1, 1)) * np.eye(n_features),
        "full": roots @ roots.transpose(0, 2, 1),  # singular
    }[background]
    return ClassParameters(
        rng.normal(size=(n_features, n_latents)),
        rng.dirichlet(np.full(n_classes, 5.0)),
        rng.uniform(0.1, 0.6, (n_classes, n_latents)),
        rng.uniform(0.5, 4.0, (n_classes, n_latents)),
        backgrounds,
        0.3,
    )


def components(p):
    """Log weight, class, active latents and covariance of all Gaussians that the model mixes."""
    for r, state in product(range(p.n_classes), product((0, 1), repeat=p.n_latents)):
        on = np.array(state)
        chances = np.where(on, p.activation[r], 1 - p.activation[r])
        prior = np.diag(on * p.slab_variances[r])
        signal = p.mixing @ prior @ p.mixing.T + p.backgrounds[r]
        log_weight = np.log(p.shares[r]) + np.log(chances).sum()
        yield log_weight, r, prior, signal


def log_joint(p, Y):
    """Of all those Gaussians and every point, (components, N)."""
    noise = p.noise_variance * np.eye(p.n_features)
    return np.stack(
        [
            w + multivariate_normal.logpdf(Y, np.zeros(p.n_features), C + noise)
            for w, _, _, C in components(p)
        ]
    )


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_bound_with_all_states_and_classes_is_the_log_density(background):
    rng = np.random.default_rng(0)
    p = make(rng, background)
    Y, _ = p.sample(30, rng)
    bound = ClassInference(p, exactly, exactly).bound(Y)
    np.testing.assert_allclose(bound, logsumexp(log_joint(p, Y), axis=0), rtol=1e-10)


def test_the_bound_is_never_above_the_log_density(monkeypatch):
    monkeypatch.setattr(e_step, "NEGLIGIBLE", 0.05)
    rng = np.random.default_rng(1)
    few = partial(TruncatedInference, n_free=1, max_active=2, n_moves=0)
    for _ in range(10):
        p = make(rng, n_classes=4)
        Y, _ = p.sample(100, rng)
        inference = ClassInference(p, few, few)
        q = inference.responsibilities(Y)
        assert (q == 0).any()  # classes are left out
        np.testing.assert_allclose(q.sum(axis=1), 1)
        exact = logsumexp(log_joint(p, Y), axis=0)
        bound = inference.bound(Y)
        assert (bound <= exact + 1e-9).all()
        assert (bound < exact - 1e-3).any()
        assert inference.statistics(Y).bound == pytest.approx(bound.sum())


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_statistics_are_the_sums_of_the_textbook_posterior(background):
    rng = np.random.default_rng(2)
    p = make(rng, background)
    Y, _ = p.sample(7, rng)
    joint = log_joint(p, Y)
    of_class = np.array([r for _, r, _, _ in components(p)])
    q = softmax(joint, axis=0)
    n, counts = np.zeros(R), np.zeros((R, H))
    xx, yx, yy = np.zeros((R, H, H)), np.zeros((R, D, H)), np.zeros((R, D, D))
    for r in range(R):
        noise = p.backgrounds[r] + p.noise_variance * np.eye(D)
        precise = np.linalg.solve(noise, p.mixing)
        off_on = np.stack([1 - p.activation[r], p.activation[r]], axis=1)
        variances = np.stack([np.zeros(H), p.slab_variances[r]], axis=1)
        for y, weight in zip(Y, q[of_class == r].sum(axis=0), strict=True):
            each = oracles.posterior(
                p.mixing.T @ precise, y @ precise, off_on, np.zeros((H, 2)), variances
            )
            n[r] += weight
            counts[r] += weight * each.probabilities[:, 1]
            xx[r] += weight * each.outer
            yx[r] += weight * np.outer(y, each.mean)
            yy[r] += weight * np.outer(y, y)
    s = ClassInference(p, exactly, exactly).statistics(Y)
    for name, expected in {"n": n, "counts": counts, "xx": xx, "yx": yx, "yy": yy}.items():
        np.testing.assert_allclose(getattr(s, name), expected, 1e-9, 1e-9, err_msg=name)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_clean_points_have_mean_and_variance_of_the_explicit_mixture(background):
    rng = np.random.default_rng(3)
    p = make(rng, background)
    Y, _ = p.sample(20, rng)
    s2 = p.noise_variance
    mean, square = np.zeros_like(Y), np.zeros(len(Y))
    for q, (_, _, _, signal) in zip(softmax(log_joint(p, Y), axis=0), components(p), strict=True):
        gain = signal @ np.linalg.inv(signal + s2 * np.eye(D))
        z = Y @ gain.T
        mean += q[:, None] * z
        square += q * ((z**2).sum(axis=1) + s2 * gain.trace())
    clean = ClassInference(p, exactly, exactly).clean(Y)
    np.testing.assert_allclose(clean.mean, mean, 1e-9, 1e-9)
    np.testing.assert_allclose(clean.variance, square - (mean**2).sum(axis=1), 1e-8)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_latents_have_the_mean_of_the_explicit_mixture(background):
    rng = np.random.default_rng(15)
    p = make(rng, background)
    Y, _ = p.sample(20, rng)
    mean = np.zeros((len(Y), H))
    noise = p.noise_variance * np.eye(D)
    for q, (_, _, prior, signal) in zip(
        softmax(log_joint(p, Y), axis=0), components(p), strict=True
    ):
        mean += q[:, None] * (Y @ np.linalg.solve(signal + noise, p.mixing @ prior))
    latents = ClassInference(p, exactly, exactly).latents(Y)
    np.testing.assert_allclose(latents, mean, 1e-9, 1e-9)


def test_one_class_without_background_is_the_usual_model():
    """One step of PX-EM from the same parameters, and its bound."""
    rng = np.random.default_rng(4)
    W, activation = rng.normal(size=(D, H)), rng.uniform(0.1, 0.6, H)
    usual = Parameters(W, np.zeros(D), Prior.spike_and_slab(activation), IsotropicNoise(0.3, D))
    Y, _ = usual.sample(200, rng)
    ours = ClassParameters(W, [1.0], activation[None], np.ones((1, H)), np.zeros((1, D, D)), 0.3)
    model = Model(learn=frozenset(("components", "prior", "noise")))
    for _ in range(3):
        s = Expectation(Y)(usual)
        t = ClassInference(ours, exactly, exactly).statistics(Y)
        assert t.bound == pytest.approx(s.log_likelihood, rel=1e-12)
        usual = model.canonical(m_step(model, usual, s, 1e-9, expand=True))
        ours = class_m_step(ours, t, background="none", noise_floor=1e-9).canonical()
        np.testing.assert_allclose(ours.mixing, usual.mixing, 1e-8, 1e-10)
        np.testing.assert_allclose(ours.activation[0], usual.prior.activation, 1e-9)
        np.testing.assert_allclose(ours.slab_variances, 1, 1e-12)
        assert ours.noise_variance == pytest.approx(usual.noise.variance, rel=1e-9)


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_canonical_form_is_the_same_density_with_unit_variances(background):
    p = make(np.random.default_rng(19), background)
    Y, _ = p.sample(10, np.random.default_rng(20))
    q = p.canonical()
    np.testing.assert_allclose(log_joint(q, Y), log_joint(p, Y), rtol=1e-10)
    on = p.shares[:, None] * p.activation
    np.testing.assert_allclose((on * q.slab_variances).sum(axis=0), on.sum(axis=0))


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("seed", range(2))
def test_em_never_falls(background, seed):
    rng = np.random.default_rng(seed)
    Y, _ = make(rng, background).sample(150, rng)
    p = make(rng, background)
    floor = 1e-6 if background == "none" else None
    bounds = []
    for _ in range(40):
        s = ClassInference(p, exactly, exactly).statistics(Y)
        bounds.append(s.bound)
        p = class_m_step(p, s, background=background, noise_floor=floor)
    rises = np.diff(bounds)
    assert rises.min() > -1e-9 * abs(bounds[0])
    assert rises.sum() > 10


def test_a_full_background_is_found_beside_the_causes():
    rng = np.random.default_rng(5)
    truth = make(rng, n_classes=1)
    Y, _ = truth.sample(4000, rng)
    p = ClassParameters(
        truth.mixing,
        truth.shares,
        truth.activation,
        truth.slab_variances,
        np.zeros((1, D, D)),
        truth.noise_variance,
    )
    for _ in range(60):
        s = ClassInference(p, exactly, exactly).statistics(Y)
        p = class_m_step(p, s, background="full")
    signal = [
        (q.mixing * (q.activation[0] * q.slab_variances[0])) @ q.mixing.T + q.backgrounds[0]
        for q in (p, truth)
    ]
    np.testing.assert_allclose(signal[0], signal[1], atol=0.15 * np.abs(signal[1]).max())
    assert np.linalg.eigvalsh(p.backgrounds[0]).min() > -1e-12


def test_pull_brings_classes_together_and_backgrounds_down():
    rng = np.random.default_rng(6)
    p = make(rng)
    Y, _ = p.sample(300, rng)
    s = ClassInference(p, exactly, exactly).statistics(Y)
    free, light, strong = (
        class_m_step(p, s, background="full", pull=pull)
        for pull in (NO_PULL, Pull(), Pull(1e6, 1e6, 1e6))
    )
    for name in ("activation", "slab_variances"):
        apart = [np.abs(np.diff(getattr(q, name), axis=0)).max() for q in (free, light, strong)]
        assert apart[0] > apart[1] > apart[2]
        assert apart[2] < 1e-3
    energy = [np.einsum("rdd->", q.backgrounds) for q in (free, light, strong)]
    assert energy[0] > energy[1] > 100 * energy[2]


def test_statistics_add_up_and_can_be_weighted():
    rng = np.random.default_rng(7)
    p = make(rng)
    Y, _ = p.sample(40, rng)
    inference = ClassInference(p, exactly, exactly)
    whole = inference.statistics(Y)
    parts = inference.statistics(Y[:13]) + inference.statistics(Y[13:])
    twice = 2.0 * whole
    for field in fields(ClassStatistics):
        of_whole = getattr(whole, field.name)
        np.testing.assert_allclose(getattr(parts, field.name), of_whole, 1e-9, 1e-9)
        np.testing.assert_allclose(getattr(twice, field.name), 2 * np.asarray(of_whole))


def test_samples_have_the_covariance_of_the_model():
    rng = np.random.default_rng(8)
    p = make(rng)
    Y, classes = p.sample(60_000, rng)
    np.testing.assert_allclose(np.bincount(classes) / len(Y), p.shares, atol=0.01)
    for r in range(R):
        power = (p.mixing * (p.activation[r] * p.slab_variances[r])) @ p.mixing.T
        expected = power + p.backgrounds[r] + p.noise_variance * np.eye(D)
        found = np.cov(Y[classes == r].T)
        np.testing.assert_allclose(found, expected, atol=0.06 * np.abs(expected).max())


# ---- the estimator ----


def textured(rng, n=1500, dimension=12):
    """Half of the points have few strong causes, half are dense texture; noise of variance 1."""
    n_latents = 6
    W = 6 * np.linalg.qr(rng.normal(size=(dimension, n_latents)))[0]
    causes = rng.normal(size=(n, n_latents)) * (rng.random((n, n_latents)) < 0.2)
    clean = causes @ W.T
    rough = np.arange(n) % 2 == 0
    clean[rough] = 1.5 * rng.normal(size=(rough.sum(), dimension))
    return clean + rng.normal(size=clean.shape), clean, rough


def test_fitting_tells_texture_from_causes(monkeypatch):
    monkeypatch.undo()
    noisy, clean, rough = textured(np.random.default_rng(9))
    errors = {}
    for n_classes, background in ((1, "none"), (2, "isotropic"), (2, "full")):
        model = ClasswiseSparseCoding(
            6,
            n_classes,
            background=background,
            noise_variance=1.0,
            batch_size=500,
            n_steps=60,
            random_state=0,
        ).fit(noisy)
        found = model.clean(noisy)
        errors[background] = np.mean((found.mean - clean) ** 2)
        # the variance is that of the error
        promised = found.variance.mean() / clean.shape[1]
        assert promised == pytest.approx(errors[background], rel=0.15) or background == "none"
        if background == "isotropic":
            q = model.predict_proba(noisy)
            of_rough = q[rough].mean(axis=0).argmax()
            assert q[rough, of_rough].mean() > 0.8
            assert q[~rough, of_rough].mean() < 0.4
    assert errors["isotropic"] < 0.75 * errors["none"]
    assert errors["full"] < 0.8 * errors["none"]


def test_full_steps_on_all_samples_raise_the_bound():
    noisy, _, _ = textured(np.random.default_rng(10), n=300)
    model = ClasswiseSparseCoding(6, 2, batch_size=None, n_steps=40, pull=0.0, random_state=0)
    model.fit(noisy)
    free = np.array(model.history_[10:])  # before, the classes are given
    assert np.diff(free).min() > -1e-7 * abs(free[0])
    assert model.parameters_.noise_variance < np.mean(noisy**2)
    assert model.score(noisy) >= free[-1]
    assert model.components_.shape == (6, noisy.shape[1])


def test_directions_that_batches_do_not_need_stay_as_they_are():
    """What is remembered of them is of earlier batches, and taught again and again."""
    noisy, _, _ = textured(np.random.default_rng(18), n=3000)
    model = ClasswiseSparseCoding(
        24, 2, background="full", noise_variance=1.0, batch_size=100, random_state=0
    ).fit(noisy)
    assert (np.linalg.norm(model.components_, axis=1) < np.linalg.norm(noisy, axis=1).max()).all()
    assert np.mean(model.history_[-10:]) > np.mean(model.history_[25:35])


def test_the_offset_of_the_data_is_taken_off_and_put_back():
    noisy, _, _ = textured(np.random.default_rng(11), n=200)
    settings = {"n_steps": 5, "background": "full", "noise_variance": 1.0, "random_state": 0}
    plain = ClasswiseSparseCoding(4, 2, **settings).fit(noisy)
    moved = ClasswiseSparseCoding(4, 2, **settings).fit(noisy + 1000)
    a, b = plain.clean(noisy[:20]), moved.clean(noisy[:20] + 1000)
    np.testing.assert_allclose(b.mean - 1000, a.mean, atol=1e-6)
    np.testing.assert_allclose(b.variance, a.variance, rtol=1e-6)


def test_less_noise_leaves_more_of_a_point():
    noisy, _, _ = textured(np.random.default_rng(12), n=200)
    model = ClasswiseSparseCoding(
        4, 2, n_steps=20, background="full", noise_variance=1.0, random_state=0
    ).fit(noisy)
    moved = [np.mean((model.clean(noisy, v).mean - noisy) ** 2) for v in (1.0, 0.1, 1e-4)]
    assert moved[0] > moved[1] > moved[2]
    assert moved[2] < 1e-3


def test_the_callback_sees_every_step_and_can_end_the_fit():
    noisy, _, _ = textured(np.random.default_rng(13), n=100)
    seen = []

    def stop_at_three(progress):
        seen.append((progress.step, progress.n_steps, progress.bound))
        return progress.step == 3

    model = ClasswiseSparseCoding(4, 2, n_steps=7, random_state=0, callback=stop_at_three)
    assert len(model.fit(noisy).history_) == 3
    assert [step for step, _, _ in seen] == [1, 2, 3]
    assert [bound for _, _, bound in seen] == model.history_


def test_the_same_random_state_gives_the_same_model():
    noisy, _, _ = textured(np.random.default_rng(14), n=300)
    settings = {"n_steps": 8, "batch_size": 100}
    a, b, c = (
        ClasswiseSparseCoding(4, 2, **settings, random_state=seed).fit(noisy).components_
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(a, c)


@parametrize_with_checks(
    [ClasswiseSparseCoding(3, 2, n_steps=15), ClasswiseSparseCoding(2, 1, n_steps=3, n_jobs=2)]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_threads_change_nothing_at_all():
    noisy, _, _ = textured(np.random.default_rng(16), n=2600)  # several blocks
    settings = {"n_steps": 12, "background": "full", "noise_variance": 1.0, "random_state": 0}
    one, two, five = (
        ClasswiseSparseCoding(4, 2, **settings, n_jobs=n_jobs).fit(noisy) for n_jobs in (None, 2, 5)
    )
    for other in (two, five):
        assert other.history_ == one.history_
        np.testing.assert_array_equal(other.components_, one.components_)
        np.testing.assert_array_equal(other.transform(noisy), one.transform(noisy))
        np.testing.assert_array_equal(other.clean(noisy).mean, one.clean(noisy).mean)
        np.testing.assert_array_equal(other.score_samples(noisy), one.score_samples(noisy))


@pytest.fixture(scope="module")
def fitted():
    noisy, _, _ = textured(np.random.default_rng(17), n=300)
    frame = pd.DataFrame(noisy + 5, columns=[f"f{i}" for i in range(noisy.shape[1])])
    settings = {"n_steps": 15, "background": "full", "noise_variance": 1.0, "random_state": 0}
    return ClasswiseSparseCoding(4, 2, **settings).fit(frame), frame


def test_save_and_load_give_the_same_model(fitted, tmp_path):
    model, frame = fitted
    model.save(tmp_path / "model.npz")
    loaded = ClasswiseSparseCoding.load(tmp_path / "model.npz")
    for method in ("transform", "predict_proba", "score_samples"):
        expected = getattr(model, method)(frame)
        np.testing.assert_array_equal(getattr(loaded, method)(frame), expected)
    for one, other in zip(model.clean(frame), loaded.clean(frame), strict=True):
        np.testing.assert_array_equal(one, other)
    assert loaded.history_ == model.history_
    assert loaded.get_params() == model.get_params()
    assert list(loaded.feature_names_in_) == list(frame.columns)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:  # nothing needs unpickling
        assert all(file[name].dtype != object for name in file.files)
    with pytest.raises(ValueError, match="holds a ClasswiseSparseCoding, not a GaussianSparseC"):
        GaussianSparseCoding.load(tmp_path / "model.npz")


def test_a_file_without_all_that_belongs_to_it_is_refused(fitted, tmp_path):
    path = tmp_path / "model.npz"
    fitted[0].save(path)
    arrays = load_arrays(path, "model")
    save_arrays(path, "model", {name: a for name, a in arrays.items() if name != "backgrounds"})
    with pytest.raises(ValueError, match=r"model\.npz: it lacks 'backgrounds'"):
        ClasswiseSparseCoding.load(path)
    save_arrays(path, "model", arrays | {"mean": arrays["mean"][1:]})
    with pytest.raises(ValueError, match=r"model\.npz: mean must have shape 12, got \(11,\)"):
        ClasswiseSparseCoding.load(path)


def test_pickle_and_clone(fitted):
    model, frame = fitted
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).transform(frame), model.transform(frame)
    )
    with pytest.raises(NotFittedError):
        clone(model).transform(frame)


def test_a_fit_that_fails_leaves_the_model_as_it_was(fitted):
    model, frame = fitted
    before = model.transform(frame)
    broken = pickle.loads(pickle.dumps(model))
    with pytest.raises(ValueError, match="NaN"):
        broken.fit(np.full((9, 3), np.nan))
    np.testing.assert_array_equal(broken.transform(frame), before)


def test_names_of_what_comes_out(fitted):
    model, frame = fitted
    latents = clone(model).set_output(transform="pandas").fit_transform(frame)
    assert list(latents.columns) == [f"classwisesparsecoding{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_components": 0}, "n_components must be at least 1, got 0"),
        ({"n_classes": 0}, "n_classes must be at least 1, got 0"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_free": 0}, "n_free must be at least 1, got 0"),
        ({"n_free": 30, "n_components": 40}, "n_free must be at most 20, got 30"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"n_jobs": 0}, "n_jobs must be at least 1, got 0"),
        ({"pull": -1.0}, "pull must be at least 0, got -1.0"),
        ({"background": "dense"}, "background must be one of 'none', 'isotropic', 'full'"),
        ({"background": "full"}, "only if noise_variance is given"),
        ({"noise_variance": 0.0}, "noise_variance must be above 0, got 0.0"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        ClasswiseSparseCoding(**arguments).fit(np.eye(4))


def test_constant_data_need_a_noise_variance():
    with pytest.raises(ValueError, match="X is constant"):
        ClasswiseSparseCoding(2, 2).fit(np.ones((9, 3)))
    model = ClasswiseSparseCoding(2, 2, noise_variance=1.0).fit(np.ones((9, 3)))
    np.testing.assert_allclose(model.clean(np.ones((2, 3))).mean, 1)
