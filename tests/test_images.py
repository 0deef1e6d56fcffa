"""Patches go there and back; denoising gains what it should on an image whose truth is known."""

import numpy as np
import pytest
from scipy.interpolate import griddata
from sklearn.datasets import load_sample_image

from spikeslab import patches
from spikeslab.images import denoise, inpaint, noise_level
from spikeslab.metrics import psnr
from spikeslab.patches import Average, Patches


def drawing(height=64, width=64):
    """Edges, a ramp, a disc and stripes, from 0 to 255."""
    y, x = np.mgrid[:height, :width]
    image = 80.0 + x
    image[(y - 20) ** 2 + (x - 24) ** 2 < 150] = 220
    image[y > x // 2 + 36] = 30
    stripes = (y > 40) & (x > 36)
    image[stripes] = 128 + 60 * np.sin(0.9 * (x + y))[stripes]
    return image


def noisy(image, sigma, seed=0):
    return image + sigma * np.random.default_rng(seed).standard_normal(image.shape)


@pytest.fixture
def tiny_strips(monkeypatch):
    monkeypatch.setattr(patches, "_STRIP", 40)


# ---- patches ----


@pytest.mark.parametrize("shape", [(8, 8, 1), (13, 9, 1), (11, 30, 3), (20, 8, 2)])
def test_patches_there_and_back_are_the_image(shape, tiny_strips):
    rng = np.random.default_rng(0)
    image = rng.normal(size=shape)
    cut = Patches(shape, 8)
    average = Average(cut)
    seen = 0
    for strip in cut.strips():
        details, means = cut.split(image, strip)
        weights = rng.uniform(0.1, 2, len(details))
        average.add(strip, cut.join(details, means), weights)
        seen += len(details)
    assert seen == len(cut)
    np.testing.assert_allclose(average.image(), image, atol=1e-13)


def test_a_patch_is_its_means_and_orthonormal_details():
    image = np.random.default_rng(1).normal(size=(9, 10, 2))
    cut = Patches(image.shape, 8)
    details, means = cut.split(image, slice(0, 2))
    assert details.shape == (6, cut.n_details) == (6, 2 * 63)
    corner = image[1:9, 2:10]  # the last one
    np.testing.assert_allclose(means[-1], corner.mean(axis=(0, 1)))
    np.testing.assert_allclose(
        (details[-1] ** 2).sum() + 64 * (means[-1] ** 2).sum(), (corner**2).sum()
    )
    np.testing.assert_allclose(cut.join(details, means)[-1], corner.transpose(2, 0, 1), atol=1e-13)


def test_a_sample_of_patches_is_some_of_them():
    image = np.random.default_rng(2).normal(size=(20, 17, 1))
    cut = Patches(image.shape, 8)
    everything = np.concatenate([cut.split(image, strip)[0] for strip in cut.strips()])
    np.testing.assert_array_equal(cut.sample(image, 130, np.random.default_rng(0)), everything)
    some = cut.sample(image, 30, np.random.default_rng(0))
    distances = np.abs(some[:, None] - everything).max(axis=2)
    assert len(set(distances.argmin(axis=1))) == len(some) == 30
    assert distances.min(axis=1).max() < 1e-12


def test_pixels_of_patches_by_their_numbers():
    image = np.random.default_rng(2).normal(size=(12, 11, 2))
    found = Patches(image.shape, 8).pixels(image, np.array([0, 5]))
    np.testing.assert_array_equal(found[0], image[:8, :8].transpose(2, 0, 1).reshape(2, 64))
    np.testing.assert_array_equal(found[1], image[1:9, 1:9].transpose(2, 0, 1).reshape(2, 64))


def test_pixels_may_have_weights_of_their_own():
    average = Average(Patches((8, 9, 1), 8))
    pixels = np.stack([np.zeros((1, 8, 8)), np.ones((1, 8, 8))])
    weights = np.ones_like(pixels)
    weights[1, :, :, 0] = 3
    weights[0, :, :, 0] = 0  # nothing is known of the first column
    average.add(slice(0, 1), pixels, weights)
    expected = [np.nan, 0.75, *[0.5] * 6, 1]
    np.testing.assert_allclose(average.image()[:, :, 0], np.tile(expected, (8, 1)))


def test_overlapping_patches_are_averaged_by_weight():
    cut = Patches((8, 9, 1), 8)
    average = Average(cut)
    pixels = np.stack([np.zeros((1, 8, 8)), np.ones((1, 8, 8))])
    average.add(slice(0, 1), pixels, np.array([1.0, 3.0]))
    expected = [0, *[0.75] * 7, 1]
    np.testing.assert_allclose(average.image()[:, :, 0], np.tile(expected, (8, 1)))


# ---- noise ----


@pytest.mark.parametrize("sigma", [2, 10, 25, 60])
def test_the_noise_level_is_found(sigma):
    for seed in range(3):
        found = noise_level(noisy(drawing(96, 96), sigma, seed))
        assert found == pytest.approx(sigma, rel=0.1)


def test_the_noise_level_of_colours_is_that_of_all_channels():
    image = np.stack([drawing(80, 90)] * 3, axis=2)
    assert noise_level(noisy(image, 15)) == pytest.approx(15, rel=0.07)


def test_an_image_without_noise_has_hardly_any_noise():
    assert noise_level(drawing()) < 1
    assert noise_level(np.full((20, 20), 7.0)) == 0


# ---- denoising ----


@pytest.mark.parametrize("fast", [True, False])
def test_denoising_gains_eight_decibels(fast):
    clean = drawing(40, 40)
    given = noisy(clean, 25)
    found = denoise(given, 25, fast=fast, n_components=32)
    assert psnr(found, clean) > psnr(given, clean) + 8


def test_pure_noise_is_not_learned_by_heart():
    noise = np.random.default_rng(3).standard_normal((40, 40))
    assert denoise(noise, 1.0, fast=True).std() < 0.25


def test_colours_help_each_other():
    grey = drawing(32, 32)
    clean = np.stack([grey, 0.5 * grey, 255 - grey], axis=2)
    given = noisy(clean, 25)
    together = denoise(given, 25, fast=True)
    alone = np.stack([denoise(given[..., c], 25, fast=True) for c in range(3)], axis=2)
    assert psnr(together, clean) > psnr(alone, clean) + 0.5


def test_scaling_the_image_scales_the_result():
    given = noisy(drawing(24, 24), 20)
    found = denoise(given, 20, fast=True)
    np.testing.assert_allclose(denoise(given / 256, 20 / 256, fast=True), found / 256, rtol=1e-9)


def test_the_result_has_the_type_and_the_range_of_the_image():
    given = np.clip(np.rint(noisy(drawing(24, 24), 60)), 0, 255).astype(np.uint8)
    found = denoise(given, fast=True)
    assert (found.dtype, found.shape) == (np.uint8, given.shape)
    as_floats = denoise(given.astype(np.float32), fast=True)
    assert as_floats.dtype == np.float32
    np.testing.assert_allclose(found, np.clip(as_floats, 0, 255), atol=0.51)
    assert denoise(given[:, :, None], fast=True).shape == (24, 24, 1)


def test_a_constant_image_stays_as_it_is():
    constant = np.full((20, 24), 3.0)
    np.testing.assert_array_equal(denoise(constant), constant)
    np.testing.assert_allclose(denoise(constant, 1.0, fast=True), constant, atol=1e-9)


def test_the_callback_sees_both_stages_to_their_ends(tiny_strips):
    seen = []
    denoise(noisy(drawing(20, 20), 5), 5.0, fast=True, callback=seen.append)
    for stage in ("learning", "cleaning"):
        some = [progress for progress in seen if progress.stage == stage]
        assert [progress.done for progress in some] == list(range(1, some[0].total + 1))
    assert [progress.stage for progress in (seen[0], seen[-1])] == ["learning", "cleaning"]


@pytest.mark.parametrize(
    ("image", "sigma", "error", "words"),
    [
        (np.ones((1, 1)), 1.0, ValueError, r"at least 16 pixels a side, got shape \(1, 1\)"),
        (np.ones((15, 90)), 1.0, ValueError, r"at least 16 pixels a side, got shape \(15, 90\)"),
        (np.ones((20, 20, 0)), 1.0, ValueError, "at least 16 pixels"),
        (np.ones(400), 1.0, ValueError, r"image must have shape \(height, width\)"),
        (np.full((20, 20), np.nan), 1.0, ValueError, "image contains NaN or infinity"),
        (np.ones((20, 20), bool), 1.0, TypeError, "array of numbers, got type bool"),
        (np.ones((20, 20), complex), 1.0, TypeError, "real numbers"),
        (np.full((20, 20), "a"), 1.0, TypeError, "array of numbers"),
        (np.ones((20, 20)), 0.0, ValueError, "sigma must be above 0, got 0.0"),
        (np.ones((20, 20)), -3.0, ValueError, "sigma must be above 0"),
        (np.ones((20, 20)), np.nan, ValueError, "sigma must be above 0"),
        (np.ones((20, 20)), "much", ValueError, "sigma must be one of 'auto', got 'much'"),
    ],
)
def test_wrong_input_is_refused_with_one_sentence(image, sigma, error, words):
    with pytest.raises(error, match=words):
        denoise(image, sigma)


# ---- inpainting ----


def interpolated(clean, missing):
    """Cubic, and the nearest pixel outside of what that covers."""
    known, rest, filled = np.argwhere(~missing), np.argwhere(missing), clean.copy()
    cubic = griddata(known, clean[~missing], rest, method="cubic")
    nearest = griddata(known, clean[~missing], rest, method="nearest")
    filled[missing] = np.where(np.isnan(cubic), nearest, cubic)
    return filled


@pytest.mark.parametrize(("share", "gain"), [(0.5, 4), (0.8, 1)])
def test_inpainting_is_better_than_interpolation_and_keeps_what_is_known(share, gain):
    clean = drawing()
    missing = np.random.default_rng(4).random(clean.shape) < share
    found = inpaint(np.where(missing, np.nan, clean), missing)
    np.testing.assert_array_equal(found[~missing], clean[~missing])
    assert psnr(found, clean) > psnr(interpolated(clean, missing), clean) + gain


def test_a_photograph_is_inpainted_two_and_a_half_decibels_better_than_by_interpolation():
    photograph = load_sample_image("china.jpg")[150:278, 200:328] @ [0.299, 0.587, 0.114]
    missing = np.random.default_rng(6).random(photograph.shape) < 0.8
    found = inpaint(np.where(missing, 0, photograph), missing)
    assert psnr(found, photograph) > psnr(interpolated(photograph, missing), photograph) + 2.5


def test_colours_are_inpainted_in_their_type():
    clean = np.stack([drawing(24, 24), 255 - drawing(24, 24)], axis=2).astype(np.uint8)
    missing = np.random.default_rng(5).random((24, 24)) < 0.2
    given = np.where(missing[:, :, None], 0, clean).astype(np.uint8)
    found = inpaint(given, missing)
    assert (found.dtype, found.shape) == (np.uint8, clean.shape)
    np.testing.assert_array_equal(found[~missing], clean[~missing])
    assert psnr(found, clean) > psnr(given, clean) + 6


def test_colours_that_are_one_grey_are_filled_in_as_that():
    grey = drawing(32, 32)
    missing = np.random.default_rng(5).random(grey.shape) < 0.5
    given = np.where(missing, 0, grey)
    colours = inpaint(np.stack([given, 0.5 * given, 255 - given], axis=2), missing)
    close = {"atol": 1e-6 * 255}
    np.testing.assert_allclose(colours[:, :, 1], 0.5 * colours[:, :, 0], **close)
    np.testing.assert_allclose(colours[:, :, 2], 255 - colours[:, :, 0], **close)
    assert psnr(colours[:, :, 0], grey) > psnr(interpolated(grey, missing), grey) + 2


def test_scaling_and_shifting_the_image_do_so_with_what_is_filled_in():
    clean = drawing(32, 32)
    missing = np.random.default_rng(5).random(clean.shape) < 0.4
    found = inpaint(clean, missing)
    np.testing.assert_allclose(inpaint(7 - 0.01 * clean, missing), 7 - 0.01 * found, rtol=1e-7)


def test_what_is_missing_has_no_influence():
    clean = drawing(32, 32)
    missing = np.random.default_rng(5).random(clean.shape) < 0.4
    found = inpaint(clean, missing)
    np.testing.assert_array_equal(inpaint(np.where(missing, -1e9, clean), missing), found)


def test_a_hole_wider_than_patches_is_filled_smoothly():
    y, x = np.mgrid[:60, :60]
    ramp = 2.0 * x + y
    missing = np.zeros(ramp.shape, bool)
    missing[18:42, 18:42] = True
    found = inpaint(np.where(missing, 0, ramp), missing)
    assert np.abs(found - ramp).max() < 15


def test_the_callback_sees_inpainting_to_its_end(tiny_strips):
    seen = []
    missing = np.random.default_rng(5).random((20, 24)) < 0.4
    inpaint(drawing(20, 24), missing, callback=seen.append)
    assert [progress.done for progress in seen] == list(range(1, seen[0].total + 1))


def test_nothing_missing_and_nothing_varying_need_no_learning():
    image = drawing(20, 20)
    nothing = np.zeros(image.shape, bool)
    np.testing.assert_array_equal(inpaint(image, nothing), image)
    hole = nothing.copy()
    hole[5:9, 5:9] = True
    np.testing.assert_array_equal(inpaint(np.where(hole, 9, 3), hole), np.full((20, 20), 3))


def test_a_line_of_known_pixels_is_enough():
    missing = np.ones((16, 20), bool)
    missing[3] = False
    found = inpaint(drawing(16, 20), missing)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("image", "mask", "error", "words"),
    [
        (
            np.ones((20, 20)),
            np.zeros((20, 19), bool),
            ValueError,
            r"shape \(20, 20\), got \(20, 19",
        ),
        (np.ones((20, 20)), np.ones((20, 20), bool), ValueError, "all pixels are missing"),
        (np.ones((20, 20)), np.ones((20, 20)), TypeError, "mask must be an array of bool"),
        (np.ones((20, 20), bool), np.eye(20, dtype=bool), TypeError, "image must be .* type bool"),
        (np.ones((3, 20)), np.zeros((3, 20), bool), ValueError, "at least 16 pixels a side"),
        (np.full((20, 20), np.nan), np.eye(20, dtype=bool), ValueError, "image contains NaN"),
    ],
)
def test_wrong_masks_are_refused_with_one_sentence(image, mask, error, words):
    with pytest.raises(error, match=words):
        inpaint(image, mask)


def test_holes_in_one_colour_are_filled_with_it_at_once(monkeypatch):
    monkeypatch.setattr("spikeslab.images.completed", None)  # is not needed
    image = np.broadcast_to([200.0, 100.0, 50.0], (20, 20, 3))
    mask = np.random.default_rng(0).random((20, 20)) < 0.3
    found = inpaint(np.where(mask[:, :, None], 0.0, image), mask)
    np.testing.assert_array_equal(found, image)
