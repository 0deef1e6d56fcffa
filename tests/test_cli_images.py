"""The commands for pictures as their user meets them."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from spikeslab.cli import main
from spikeslab.metrics import psnr


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def drawing(side=32):
    y, x = np.mgrid[:side, :side]
    return np.where((y - 12) ** 2 + (x - 14) ** 2 < 60, 200, 60 + 2 * x).astype(np.uint8)


@pytest.fixture
def noisy():
    """noisy.png and clean.png."""
    clean = drawing()
    noise = 20 * np.random.default_rng(0).standard_normal(clean.shape)
    given = np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)
    Image.fromarray(clean).save("clean.png")
    Image.fromarray(given).save("noisy.png")
    return given, clean


def test_denoise_writes_a_better_picture_and_the_comparison(noisy, capsys):
    given, clean = noisy
    command = ["denoise", "noisy.png", "-o", "out.png", "--fast", "--clean", "clean.png"]
    assert main([*command, "--sigma", "20"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = np.asarray(Image.open("out.png"))
    assert found.dtype == np.uint8
    before, after = psnr(given, clean), psnr(found, clean)
    assert after > before + 4
    assert f"PSNR: {before:.2f} dB before" in shown.out
    assert "Sigma: 20" in shown.out
    assert "out.png, out-comparison.png" in shown.out
    assert Image.open("out-comparison.png").size[0] > 3 * 32
    assert sorted(os.listdir()) == ["clean.png", "noisy.png", "out-comparison.png", "out.png"]


def test_denoise_estimates_the_noise_and_speaks_json(noisy, capsys):
    assert main(["denoise", "noisy.png", "--fast", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["output"] == "noisy-denoised.png"
    assert record["files"] == ["noisy-denoised.png"]
    assert record["sigma"] == pytest.approx(20, rel=0.25)
    assert os.path.exists("noisy-denoised.png")


def test_the_same_seed_gives_the_same_picture(noisy):
    for name in ("a.png", "b.png"):
        assert main(["denoise", "noisy.png", "-o", name, "--fast", "--seed", "3"]) == 0
    np.testing.assert_array_equal(Image.open("a.png"), Image.open("b.png"))


def test_deep_grey_stays_deep():
    rng = np.random.default_rng(1)
    deep = (drawing(24) * 200 + 2000 * rng.standard_normal((24, 24))).clip(0, 65535)
    Image.fromarray(deep.astype(np.uint16)).save("deep.png")
    assert main(["denoise", "deep.png", "-o", "out.tif", "--fast", "--sigma", "2000"]) == 0
    found = np.asarray(Image.open("out.tif"))
    assert found.dtype == np.uint16
    assert found.max() > 255


def test_inpaint_fills_what_the_mask_says(monkeypatch, capsys):
    monkeypatch.setattr("spikeslab.inpainting._STEPS", 2)
    clean = drawing(24)
    missing = np.random.default_rng(2).random(clean.shape) < 0.3
    Image.fromarray(clean).save("clean.png")
    Image.fromarray(np.where(missing, 0, clean).astype(np.uint8)).save("torn.png")
    Image.fromarray(missing).save("holes.png")
    command = ["inpaint", "torn.png", "--mask", "holes.png", "--clean", "clean.png"]
    assert main(command) == 0
    found = np.asarray(Image.open("torn-inpainted.png"))
    np.testing.assert_array_equal(found[~missing], clean[~missing])
    assert psnr(found, clean) > 25
    assert "PSNR" in capsys.readouterr().out
    assert os.path.exists("torn-inpainted-comparison.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["denoise", "none.png"], "none.png does not exist"),
        (["denoise", "text.png"], "cannot read text.png: it is no PNG, JPEG or TIFF picture"),
        (["denoise", "dot.png"], "at least 16 pixels a side, got shape (1, 1)"),
        (["denoise", "noisy.png", "--sigma", "much"], "--sigma must be a number or auto"),
        (["denoise", "noisy.png", "--sigma", "-1"], "sigma must be above 0, got -1.0"),
        (["denoise", "noisy.png", "-o", "clean.png"], "clean.png exists; give another name"),
        (["denoise", "noisy.png", "-o", "a.bmp"], "must end in .png"),
        (["denoise", "noisy.png", "-o", "a/b.png"], "there is no folder a"),
        (["denoise", "noisy.png", "--clean", "dot.png"], "dot.png has shape (1, 1)"),
        (["inpaint", "noisy.png", "--mask", "dot.png"], "mask must have the image's shape"),
        (["inpaint", "noisy.png", "--mask", "white.png"], "all pixels are missing"),
        (["inpaint", "noisy.png"], "Missing option '--mask'"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(noisy, capsys, arguments, words):
    Image.fromarray(np.zeros((1, 1), np.uint8)).save("dot.png")
    Image.fromarray(np.full((32, 32), 255, np.uint8)).save("white.png")
    with open("text.png", "w") as file:
        file.write("not a picture")
    before = sorted(os.listdir())
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert sorted(os.listdir()) == before


def test_force_replaces(noisy):
    Image.fromarray(np.zeros((4, 4), np.uint8)).save("out.png")
    assert main(["denoise", "noisy.png", "-o", "out.png", "--fast"]) == 2
    assert main(["denoise", "noisy.png", "-o", "out.png", "--fast", "--force"]) == 0
    assert Image.open("out.png").size == (32, 32)


@pytest.mark.parametrize("command", [["denoise"], ["inpaint", "--mask", "clean.png"]])
def test_too_little_memory_is_told_in_words_of_pictures(noisy, command, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("spikeslab.cli.pictures.image_bar", fail)
    assert main([*command, "noisy.png", "-o", "out.png"]) == 2
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == "Error: not enough memory; try a smaller picture"
