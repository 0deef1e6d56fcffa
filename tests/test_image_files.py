"""Pictures come back as they were, or are refused with one sentence."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spikeslab.image_files import read_mask, read_picture


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def numbers(shape, dtype):
    top = 1.0 if dtype == np.float32 else np.iinfo(dtype).max
    return (np.random.default_rng(0).random(shape) * top).astype(dtype)


def write_png(path, values, colour_type):
    """A PNG file of 16 bits a channel, some of which Pillow does not write."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("grey.png", (5, 7), np.uint8),
        ("colour.png", (5, 7, 3), np.uint8),
        ("colour.tiff", (5, 7, 3), np.uint8),
        ("see-through.png", (5, 7, 4), np.uint8),
        ("see-through-grey.png", (5, 7, 2), np.uint8),
        ("deep.png", (5, 7), np.uint16),
        ("deep.tif", (5, 7), np.uint16),
        ("floats.tif", (5, 7), np.float32),
    ],
)
def test_what_was_read_is_written_bit_for_bit(name, shape, dtype):
    values = numbers(shape, dtype)
    Image.fromarray(values).save(name)
    picture = read_picture(name)
    assert picture.depth == dtype
    n_channels = 1 if len(shape) == 2 else shape[2]
    assert picture.pixels.shape == (shape[:2] if n_channels < 3 else (*shape[:2], 3))
    assert (picture.alpha is not None) == (n_channels in (2, 4))
    picture.write("again-" + name, picture.pixels)
    np.testing.assert_array_equal(np.asarray(Image.open("again-" + name)), values)
    assert sorted(os.listdir()) == sorted([name, "again-" + name])


def test_deep_grey_that_others_wrote_is_read():
    values = numbers((4, 6), np.uint16)
    write_png("deep.png", values, 0)
    np.testing.assert_array_equal(read_picture("deep.png").pixels, values)


def test_a_jpeg_is_written_as_one():
    smooth = np.add.outer(np.arange(40), 3 * np.arange(50)).astype(np.uint8)
    Image.fromarray(smooth).save("a.jpg", quality=95)
    picture = read_picture("a.jpg")
    picture.write("b.jpeg", picture.pixels)
    again = Image.open("b.jpeg")
    assert again.format == "JPEG"
    assert np.abs(np.asarray(again) - picture.pixels).mean() < 1


def test_values_beyond_the_range_are_cut_and_rounded():
    Image.fromarray(numbers((2, 2), np.uint8)).save("a.png")
    read_picture("a.png").write("b.png", np.array([[-3, 0.4], [254.6, 300]]))
    np.testing.assert_array_equal(np.asarray(Image.open("b.png")), [[0, 0], [255, 255]])


def test_a_palette_becomes_colours():
    colours = numbers((6, 6, 3), np.uint8)
    few = Image.fromarray(colours).quantize(8)
    few.save("few.png")
    picture = read_picture("few.png")
    np.testing.assert_array_equal(picture.pixels, np.asarray(few.convert("RGB")))
    picture.write("more.png", picture.pixels)
    assert Image.open("more.png").mode == "RGB"
    few.save("holes.png", transparency=0)
    alpha = read_picture("holes.png").alpha
    np.testing.assert_array_equal(alpha == 0, np.asarray(few) == 0)


def test_a_picture_is_turned_upright():
    values = numbers((4, 6), np.uint8)
    turned = Image.Exif()
    turned[274] = 6  # by a quarter
    Image.fromarray(values).save("turned.png", exif=turned)
    np.testing.assert_array_equal(read_picture("turned.png").pixels, np.rot90(values, -1))


def test_the_colour_profile_is_kept():
    Image.fromarray(numbers((4, 4, 3), np.uint8)).save("a.png", icc_profile=b"a profile")
    picture = read_picture("a.png")
    picture.write("b.png", picture.pixels)
    assert Image.open("b.png").info["icc_profile"] == b"a profile"


def test_a_mask_is_white_where_pixels_are_missing():
    missing = np.eye(5, dtype=bool)
    Image.fromarray(missing).save("bits.png")
    Image.fromarray(missing.astype(np.uint8) * 255).save("bytes.png")
    Image.fromarray(missing.astype(np.uint16) * 65535).save("words.png")
    Image.fromarray(np.repeat(missing[:, :, None] * np.uint8(255), 3, axis=2)).save("rgb.png")
    for name in ("bits.png", "bytes.png", "words.png", "rgb.png"):
        np.testing.assert_array_equal(read_mask(name), missing)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.png", b"", "is no PNG, JPEG or TIFF picture, or is damaged"),
        ("text.jpg", b"not a picture", "is no PNG, JPEG or TIFF picture, or is damaged"),
        ("a.gif", b"GIF89a", "must end in .png, .jpg, .jpeg, .tif, .tiff, got a.gif"),
    ],
)
def test_what_is_no_picture_is_refused(name, content, words):
    Path(name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_picture(name)


def test_a_picture_that_was_cut_off_is_refused():
    Image.fromarray(numbers((40, 40), np.uint8)).save("a.png")
    whole = Path("a.png").read_bytes()
    Path("a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cannot read a\.png"):
        read_picture("a.png")


@pytest.mark.parametrize(("mode", "name"), [("1", "a.png"), ("CMYK", "a.jpg"), ("I", "a.tif")])
def test_kinds_of_pixels_that_are_not_read_are_named(mode, name):
    Image.new(mode, (4, 4)).save(name)
    with pytest.raises(ValueError, match=f"of the kind '{mode}'"):
        read_picture(name)


@pytest.mark.parametrize(("channels", "colour_type"), [(3, 2), (4, 6), (2, 4)])
def test_deep_colours_are_refused_rather_than_made_shallow(channels, colour_type):
    write_png("a.png", numbers((3, 4, channels), np.uint16), colour_type)
    with pytest.raises(ValueError, match="its channels have 16 bits each"):
        read_picture("a.png")


def test_several_pictures_in_a_file_are_refused():
    pages = [Image.new("L", (4, 4), grey) for grey in (0, 9)]
    pages[0].save("a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match="it holds 2 pictures; give a file with one"):
        read_picture("a.tif")


def test_missing_files_and_folders_are_named():
    os.mkdir("folder.png")
    with pytest.raises(IsADirectoryError, match=r"folder.png is a folder"):
        read_picture("folder.png")
    with pytest.raises(FileNotFoundError, match=r"none.png does not exist"):
        read_picture("none.png")


@pytest.mark.parametrize(
    ("shape", "dtype", "target", "words"),
    [
        ((3, 3), np.uint16, "a.jpg", "JPEG has no 16 bits a pixel; .* ends in .png"),
        ((3, 3, 4), np.uint8, "a.jpg", "JPEG has no transparency"),
        ((3, 3), np.float32, "a.png", "PNG has no 32 bits a pixel; .* ends in .tif"),
        ((3, 3), np.uint8, "a.bmp", "must end in .png"),
    ],
)
def test_targets_that_lack_something_are_refused(shape, dtype, target, words):
    Image.fromarray(numbers(shape, dtype)).save("a.tif")
    with pytest.raises(ValueError, match=words):
        read_picture("a.tif").check_target(target)


def test_a_write_that_fails_leaves_nothing(monkeypatch):
    Image.fromarray(numbers((3, 3), np.uint8)).save("a.png")
    picture = read_picture("a.png")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        picture.write("b.png", picture.pixels)
    assert os.listdir() == ["a.png"]
    with pytest.raises(FileNotFoundError, match="there is no folder none"):
        picture.write("none/b.png", picture.pixels)
