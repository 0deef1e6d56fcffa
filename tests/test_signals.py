"""Files of signals: what is written is read again, and what is wrong is said in one sentence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.io import loadmat, savemat, wavfile

from spikeslab.signals import clipped_samples, clipping, read

RNG = np.random.default_rng(0)
DATA = np.round(RNG.uniform(-0.9, 0.9, (50, 3)), 4)
NAMES = ["source-1", "source-2", "source-3"]


# ---- what is read ----


@pytest.mark.parametrize(
    ("name", "encoding", "tolerance"),
    [
        ("a.wav", "PCM_16", 2**-15),
        ("a.wav", "PCM_24", 2**-23),
        ("a.wav", "FLOAT", 1e-6),
        ("a.wav", "DOUBLE", 0),
        ("A.WAV", "PCM_U8", 2**-7),
        ("a.flac", "PCM_16", 2**-15),
        ("a.flac", "PCM_24", 2**-23),
    ],
)
def test_audio_comes_back_in_its_own_encoding_and_rate(tmp_path, name, encoding, tolerance):
    soundfile.write(tmp_path / name, DATA, 11_025, subtype=encoding)
    signals = read(tmp_path / name)
    assert (signals.rate, signals.names) == (11_025, None)
    assert signals.suffix == Path(name).suffix.lower()
    np.testing.assert_allclose(signals.data, DATA, atol=tolerance)
    copy = tmp_path / f"copy{signals.suffix}"
    signals.write(copy, signals.data[:, :1], NAMES[:1])
    told = soundfile.info(copy)
    original = soundfile.info(tmp_path / name)
    assert (told.subtype, told.format, told.samplerate) == (encoding, original.format, 11_025)
    np.testing.assert_allclose(read(copy).data, signals.data[:, :1], atol=1e-15)


def test_audio_agrees_with_another_reader(tmp_path):
    samples = RNG.integers(-(2**15), 2**15, (40, 2), dtype=np.int16)
    wavfile.write(tmp_path / "a.wav", 8000, samples)
    np.testing.assert_array_equal(read(tmp_path / "a.wav").data, samples / 2**15)


TABLES = {
    "commas": ("1,2\n3.5,-4e-1\n", None),
    "semicolons": ("1;2\n3.5;-0.4\n", None),
    "tabs": ("1\t2\n3.5\t-0.4\n", None),
    "blanks": ("  1  2\n3.5 -0.4\n", None),
    "comma and blank": ("1, 2\n3.5, -0.4", None),
    "header": ("left,right\n1,2\n3.5,-.4\n", ("left", "right")),
    "header with a comma": ('"a, b";c\n1;2\n3.5;-0.4\n', ("a, b", "c")),
    "commented header": ("# left right\n1 2\n3.5 -0.4\n", ("left", "right")),
    "windows": ("\ufeffleft;right\r\n1;2\r\n3.5;-0.4\r\n", ("left", "right")),
    "blank lines": ("\n1,2\n\n3.5,-0.4\n\n", None),
    "quoted": ('"1","2"\n"3.5","-0.4"\n', None),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_all_kinds(tmp_path, case):
    text, names = TABLES[case]
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8", newline="")
    signals = read(path)
    np.testing.assert_array_equal(signals.data, [[1, 2], [3.5, -0.4]])
    assert signals.names == names
    assert signals.rate is None
    signals.write(path, signals.data, NAMES[:2])
    again = read(path)
    np.testing.assert_array_equal(again.data, signals.data)
    assert again.names == (None if names is None else tuple(NAMES[:2]))


def test_a_table_is_written_with_its_delimiter(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1;2\n3;4\n")
    read(path).write(path, np.array([[0.5, 1e-9], [1 / 3, 2.0]]), ["x", "y"])
    assert path.read_text() == "x;y\n0.5;1e-09\n0.3333333333;2\n"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.parametrize("upright", [True, False])
def test_arrays_keep_their_orientation_and_precision(tmp_path, dtype, upright):
    values = (100 * DATA).astype(dtype)
    np.save(tmp_path / "a.npy", values if upright else values.T)
    signals = read(tmp_path / "a.npy")
    np.testing.assert_array_equal(signals.data, values)
    assert signals.data.dtype == np.float64
    signals.write(tmp_path / "b.npy", signals.data / 2, NAMES)
    written = np.load(tmp_path / "b.npy")
    assert written.dtype == (np.float32 if dtype is np.float32 else np.float64)
    expected = (values / 2).astype(written.dtype)
    np.testing.assert_array_equal(written if upright else written.T, expected)


@pytest.mark.parametrize("upright", [True, False])
def test_matlab_files_keep_variable_and_orientation(tmp_path, upright):
    content = {"X": DATA if upright else DATA.T, "fs": 8000, "note": "text", "t": np.arange(50)}
    savemat(tmp_path / "a.mat", content)
    signals = read(tmp_path / "a.mat")
    np.testing.assert_array_equal(signals.data, DATA)
    signals.write(tmp_path / "b.mat", signals.data[:, :1], NAMES[:1])
    written = loadmat(tmp_path / "b.mat")["X"]
    np.testing.assert_array_equal(written if upright else written.T, DATA[:, :1])


# ---- what is refused ----


def text_file(text, encoding="utf-8"):
    return lambda path: path.write_bytes(text.encode(encoding))


def npy_file(array):
    return lambda path: np.save(path, array, allow_pickle=True)


def mat_file(**variables):
    return lambda path: savemat(path, variables)


def audio_file(data=DATA, cut=None):
    def write(path):
        soundfile.write(path, data, 8000)
        if cut is not None:
            path.write_bytes(path.read_bytes()[:cut])

    return write


def npz_file(path):
    with open(path, "wb") as file:
        np.savez(file, a=DATA)


def cut_npy(path):
    np.save(path, DATA)
    path.write_bytes(path.read_bytes()[:-100])


def cut_mat(path):
    savemat(path, {"X": DATA})
    path.write_bytes(path.read_bytes()[:-100])


def hdf5_mat(path):
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    path.write_bytes(header.ljust(512, b"\0"))


with_nan = DATA.copy()
with_nan[6, 1] = np.nan

REFUSED = {
    "text in .wav": ("a.wav", text_file("hello"), "Format not recognised|Error in WAV"),
    "empty .wav file": ("a.wav", text_file(""), "a.wav: "),
    "no samples in .wav": ("a.wav", audio_file(np.empty((0, 2))), "it holds no samples"),
    "cut .wav": ("a.wav", audio_file(cut=200), "it was cut off"),
    "cut in the header": ("a.wav", audio_file(cut=30), "a.wav: "),
    "cut .flac": ("a.flac", audio_file(np.tile(DATA, (400, 1)), cut=20_000), "a.flac: "),
    "text in .flac": ("a.flac", text_file("hello"), "a.flac: "),
    "empty .csv": ("a.csv", text_file(""), "it is empty"),
    "header alone": ("a.csv", text_file("a,b\n"), "it has a header and nothing below"),
    "text in .csv": (
        "a.csv",
        text_file("a,b\n1,2\n\n3,four\n"),
        "line 4, column 2 holds 'four', which is not a number",
    ),
    "text in line 1": ("a.csv", text_file("1,b\n1,2\n"), "line 1, column 2 holds 'b'"),
    "decimal commas": ("a.csv", text_file("1,5;2\n3;4\n"), "line 1, column 1 holds '1,5'"),
    "missing value": ("a.csv", text_file("1,2\n3,\n"), "line 2, column 2 is empty"),
    "ragged": ("a.csv", text_file("1,2\n3,4,5\n"), "line 2 has 3 values, line 1 has 2"),
    "header too long": ("a.csv", text_file("a,b,c\n1,2\n3,4\n"), "3 names for 2 columns"),
    "nan in .csv": ("a.csv", text_file("1,2\n3,nan\n"), "sample 2 of channel 2 is nan"),
    "latin 1": ("a.csv", text_file("größe,b\n1,2\n", "latin-1"), "not a text file in UTF-8"),
    "nan": ("a.npy", npy_file(with_nan), "sample 7 of channel 2 is nan, not a finite number"),
    "infinity": ("a.npy", npy_file(np.array([[1, 2], [-np.inf, 0]])), "is -inf"),
    "complex": ("a.npy", npy_file(DATA + 1j), "complex numbers"),
    "three dimensions": ("a.npy", npy_file(DATA[None]), "it has 3 dimensions"),
    "no dimension": ("a.npy", npy_file(np.array(1.0)), "it has 0 dimensions"),
    "strings": ("a.npy", npy_file(np.array([["a", "b"]])), "it holds str32, not numbers"),
    "objects": ("a.npy", npy_file(np.array([[None, 1]])), "no .npy array of numbers"),
    "no samples": ("a.npy", npy_file(np.empty((0, 3))), "it holds no samples"),
    "archive": ("a.npy", npz_file, "an archive"),
    "cut .npy": ("a.npy", cut_npy, "was cut off"),
    "text in .npy": ("a.npy", text_file("hello"), "no .npy array of numbers"),
    "empty .npy": ("a.npy", text_file(""), "no .npy array of numbers"),
    "no matrix": ("a.mat", mat_file(fs=8000, note="x"), r"has 0; its variables are fs \(1 x 1\)"),
    "two matrices": ("a.mat", mat_file(A=DATA, B=DATA), r"has 2.* A \(50 x 3\), B \(50 x 3\)"),
    "3-D matrix": ("a.mat", mat_file(A=np.ones((2, 3, 4))), r"has 0; .*A \(2 x 3 x 4\)"),
    "complex matrix": ("a.mat", mat_file(A=DATA + 1j), "complex numbers"),
    "empty .mat": ("a.mat", mat_file(), "its variables are none"),
    "cut .mat": ("a.mat", cut_mat, "no .mat file, or was cut off"),
    "text in .mat": ("a.mat", text_file("hello"), "no .mat file, or was cut off"),
    "MATLAB 7.3": ("a.mat", hdf5_mat, "MATLAB's format 7.3; save it with '-v7'"),
    "other suffix": ("a.mp3", text_file("x"), r"must end in .wav, .flac, .csv, .npy, .mat"),
    "no suffix": ("a", text_file("x"), "must end in"),
    "folder": ("a.wav", Path.mkdir, "is a folder, not a file of signals"),
    "missing": ("a.csv", lambda path: None, "a.csv does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_with_a_sentence(tmp_path, case):
    name, write, message = REFUSED[case]
    path = tmp_path / name
    write(path)
    with pytest.raises((ValueError, OSError), match=message) as caught:
        read(path)
    sentence = str(caught.value)
    assert name in sentence
    assert "\n" not in sentence


def test_without_soundfile_arrays_are_read_and_audio_says_what_to_install(tmp_path):
    np.save(tmp_path / "a.npy", DATA)
    soundfile.write(tmp_path / "a.wav", DATA, 8000)
    program = (
        "import sys; sys.modules['soundfile'] = None\n"
        "from spikeslab.signals import read\n"
        f"print(read({str(tmp_path / 'a.npy')!r}).data.shape)\n"
        f"read({str(tmp_path / 'a.wav')!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "(50, 3)\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: reading and writing audio needs soundfile: pip install")


# ---- clipping ----


@pytest.mark.parametrize("audio", [True, False])
def test_clipped_audio_is_a_warning_for_its_channel(tmp_path, audio):
    tones = np.sin(np.arange(4000)[:, None] * [0.1, 0.23]) * [0.9, 1.5]
    tones = tones.clip(-1, 1)
    path = tmp_path / ("a.wav" if audio else "a.npy")
    if audio:
        soundfile.write(path, tones, 8000)
    else:
        np.save(path, tones)
    warnings = clipping(read(path))
    assert [warning.partition(" (")[0] for warning in warnings] == ["channel 2 is clipped"] * audio


def test_clipped_samples_are_counted_in_runs_at_the_limits():
    channel = np.array([0, 1, 1, 1, 0.5, 1, 1, 0, -0.5, -0.5, -0.5, -0.5, -0.2, 1, 1, 1])
    assert clipped_samples(channel) == 3 + 3 + 4
    assert clipped_samples(channel / 10) == 0  # a quiet channel of few bits
