"""The command line as its user meets it: files, exit statuses, and what is printed where."""

import contextlib
import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.io import loadmat, savemat

import spikeslab
from experiments import made_up_results
from spikeslab.cli import main
from spikeslab.cli.folder import output_folder
from spikeslab.cli.reproduction import print_results, prompts
from spikeslab.experiments import Plan
from spikeslab.experiments.sources import N_SOURCES, benchmarks
from spikeslab.experiments.trials import Store
from spikeslab.metrics import amari_index
from spikeslab.parameters import load_arrays

SPIKESLAB = Path(sys.executable).with_name("spikeslab")
RATE = 8000


def run(*arguments, **options):
    """The installed command, in a process of its own."""
    command = [SPIKESLAB, *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run(command, **options)


def sparse_sources(n_samples, n_sources, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_samples, n_sources)) * (rng.random((n_samples, n_sources)) < 0.3)


MIXING = np.array([[1.0, 0.6], [-0.5, 1.0]])
SOURCES = sparse_sources(600, 2)
MIXTURE = SOURCES @ MIXING.T
MIXTURE *= 0.8 / np.abs(MIXTURE).max()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One separation of a recording, by the installed command."""
    folder = tmp_path_factory.mktemp("finished")
    soundfile.write(folder / "mix.flac", MIXTURE, 11_025, subtype="PCM_24")
    done = run("separate", "mix.flac", "-n", 2, cwd=folder)
    return folder, done


# ---- separate ----


def correlations(found, true=SOURCES):
    """Of each true source with the found one that is most like it."""
    n_found = found.shape[1]
    return np.abs(np.corrcoef(found.T, true.T)[:n_found, n_found:]).max(axis=0)


def test_a_recording_becomes_one_recording_per_source(finished):
    folder, done = finished
    assert (done.returncode, done.stderr) == (0, "")
    results = folder / "mix-sources"
    assert sorted(path.name for path in results.iterdir()) == [
        "model.npz",
        "report.html",
        "source-1.flac",
        "source-2.flac",
    ]
    found = []
    for number in (1, 2):
        path = results / f"source-{number}.flac"
        told = soundfile.info(path)
        assert (told.samplerate, told.channels, told.subtype) == (11_025, 1, "PCM_24")
        found.append(soundfile.read(path)[0])
        assert np.abs(found[-1]).max() == pytest.approx(0.9, abs=1e-6)
    assert correlations(np.stack(found, axis=1)).min() > 0.98


def test_the_summary_says_what_was_found_and_where_it_is(finished):
    _, done = finished
    for words in ("2 sources in 2 channels of 600 samples", "Share of", "Agreement", "reliable"):
        assert words in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == (
        "Written to mix-sources: source-1.flac to source-2.flac, model.npz, report.html"
    )


def test_nothing_is_written_beside_the_results(finished):
    folder, _ = finished
    assert sorted(path.name for path in folder.iterdir()) == ["mix-sources", "mix.flac"]


def test_the_report_is_of_this_recording(finished):
    folder, _ = finished
    page = (folder / "mix-sources" / "report.html").read_text(encoding="utf-8")
    assert "mix.flac" in page
    assert "data:audio/wav" in page


# ---- killed ----

ALWAYS_KEPT = """
import sys
import spikeslab.checkpoint
from spikeslab.cli import main
spikeslab.checkpoint.SECONDS, spikeslab.checkpoint._SHARE = 0.0, 0.5
sys.exit(main(sys.argv[1:]))
"""


def runs_in(path):
    if not path.exists():
        return 0
    return len({name.split("/")[0] for name in load_arrays(path, "checkpoint") if "/" in name})


def contents(folder):
    """Of its files, without dates and durations."""
    found = {}
    for path in sorted(Path(folder).iterdir()):
        found[path.name] = path.read_bytes()
        if path.suffix == ".npz":  # which is a zip file
            found[path.name] = {name: a.tobytes() for name, a in np.load(path).items()}
        elif path.suffix == ".html":
            found[path.name] = re.sub(
                rb"\d{4}-\d\d-\d\d \d\d:\d\d|\d+\.\d seconds", b"", path.read_bytes()
            )
    return found


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_separation_that_is_killed_goes_on_and_writes_the_same_files(here, kills):
    np.save("mix.npy", MIXTURE)
    whole = run("separate", "mix.npy", "-n", 2, "-o", "whole")
    arguments = ("separate", "mix.npy", "-n", "2", "-o", "killed", "--checkpoint", "kept.ckpt")
    kept, rng = here / "kept.ckpt", np.random.default_rng(0)
    for kill in range(kills):
        process = subprocess.Popen([sys.executable, "-c", ALWAYS_KEPT, *arguments])
        while process.poll() is None and runs_in(kept) <= kill % 7:  # of some ten
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not Path("killed").exists()
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == whole.stdout.replace("whole", "killed")
    assert contents("killed") == contents("whole")


def test_a_checkpoint_of_another_separation_is_refused(capsys):
    np.save("mix.npy", MIXTURE)
    common = ("--checkpoint", "kept.ckpt", "--no-report", "--method", "noise_free")
    assert main(["separate", "mix.npy", "-n", "2", "-o", "out", *common]) == 0
    capsys.readouterr()
    assert main(["separate", "mix.npy", "-n", "1", "-o", "other", *common]) == 2
    assert "kept.ckpt belongs to another fit (other n_sources)" in only_error(capsys)
    assert not Path("other").exists()


def test_json_is_all_there_is_on_standard_output():
    np.save("mix.npy", MIXTURE)
    done = run("separate", "mix.npy", "-n", 2, "-o", "out", "--json", "--no-report")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["files"] == ["source-1.npy", "source-2.npy", "model.npz"]
    assert sorted(record["files"]) == sorted(os.listdir("out"))
    assert (record["n_sources"], record["n_channels"], record["n_samples"]) == (2, 2, 600)
    assert [source["file"] for source in record["sources"]] == record["files"][:2]
    assert sum(source["share_of_variance"] for source in record["sources"]) == pytest.approx(
        1, abs=0.1
    )
    found = np.stack([np.load(f"out/source-{number}.npy")[:, 0] for number in (1, 2)], axis=1)
    assert amari_index(np.linalg.pinv(record["mixing"]), MIXING) < 0.05
    assert correlations(found).min() > 0.98


def test_the_same_seed_gives_the_same_files(capsys):
    np.save("mix.npy", MIXTURE)
    for folder in ("a", "b"):
        assert main(["separate", "mix.npy", "-n2", "-o", folder, "--seed", "3", "--no-report"]) == 0
    first, second = (Path(folder, "source-1.npy").read_bytes() for folder in ("a", "b"))
    assert first == second


def test_tables_and_matrices_come_back_as_such(capsys):
    Path("mix.csv").write_text(
        "left;right\n" + "".join(f"{a:.9g};{b:.9g}\n" for a, b in MIXTURE), encoding="utf-8"
    )
    savemat("mix.mat", {"X": MIXTURE.T})
    for name in ("mix.csv", "mix.mat"):
        arguments = ["separate", name, "-n", "2", "-o", name[-3:], "--no-report"]
        assert main([*arguments, "--method", "noise_free"]) == 0
    lines = Path("csv/source-2.csv").read_text().splitlines()
    assert lines[0] == "source-2"
    table = np.array(lines[1:], float)
    matrix = loadmat("mat/source-2.mat")["X"]
    assert matrix.shape == (1, 600)
    np.testing.assert_allclose(table, matrix[0], atol=1e-4 * np.abs(table).max())


def test_the_number_of_sources_is_found(capsys):
    X = SOURCES @ np.array([[1, 0.5], [0.3, -1], [0.7, 0.7]]).T
    X += 0.05 * np.random.default_rng(1).standard_normal(X.shape)
    np.save("mix.npy", X)
    assert main(["separate", "mix.npy", "--json", "--no-report"]) == 0
    assert json.loads(capsys.readouterr().out)["n_sources"] == 2


def test_clipped_audio_is_separated_with_a_warning():
    soundfile.write("mix.wav", (2 * MIXTURE).clip(-1, 1), RATE)
    wide = np.repeat(2 * MIXTURE, 4, axis=0).clip(-1, 1)  # runs of equal samples at the limit
    soundfile.write("mix.wav", wide, RATE)
    done = run("separate", "mix.wav", "-n", 2, "--method", "noise_free", "--no-report", "--json")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines
    assert all(line.startswith("Warning: channel ") for line in lines)
    assert any("is clipped" in warning for warning in json.loads(done.stdout)["warnings"])


# ---- what is done with the model ----


def test_apply_unmixes_like_the_separation_did(capsys):
    np.save("mix.npy", MIXTURE)
    assert main(["separate", "mix.npy", "-n", "2", "-o", "out", "--no-report"]) == 0
    np.save("more.npy", MIXTURE[100:300])
    assert main(["apply", "out/model.npz", "more.npy"]) == 0
    assert sorted(os.listdir("more-sources")) == ["source-1.npy", "source-2.npy"]
    for number in (1, 2):
        before, now = (
            np.load(f"{folder}/source-{number}.npy") for folder in ("out", "more-sources")
        )
        np.testing.assert_allclose(now, before[100:300], atol=1e-9)


def test_apply_to_audio_and_as_json(finished, capsys):
    folder, _ = finished
    model = folder / "mix-sources" / "model.npz"
    soundfile.write("next.wav", MIXTURE[:200], RATE)
    assert main(["apply", str(model), "next.wav", "-o", "next", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["files"] == ["source-1.wav", "source-2.wav"]
    source = soundfile.read("next/source-1.wav")[0]
    assert np.abs(source).max() == pytest.approx(0.9, abs=1e-4)


def test_apply_refuses_other_channels(finished, capsys):
    folder, _ = finished
    np.save("three.npy", np.ones((9, 3)))
    assert main(["apply", str(folder / "mix-sources" / "model.npz"), "three.npy"]) == 2
    assert "unmixes 2 channels, but three.npy has 3" in only_error(capsys)
    assert os.listdir() == ["three.npy"]


def test_info_says_what_a_model_is(finished, capsys):
    folder, _ = finished
    model = str(folder / "mix-sources" / "model.npz")
    assert main(["info", model]) == 0
    printed = capsys.readouterr().out
    assert "2 sources in 2 channels" in printed
    assert "converged" in printed
    assert main(["info", model, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["n_sources"], record["n_channels"]) == (2, 2)
    assert amari_index(np.linalg.pinv(record["mixing"]), MIXING) < 0.05


@pytest.mark.parametrize("command", [["info"], ["apply"]])
def test_what_is_no_model(command, capsys):
    np.save("mix.npy", MIXTURE)
    Path("model.npz").write_text("not a model")
    np.savez("other.npz", a=1)
    for model in ("model.npz", "other.npz", "missing.npz", "."):
        assert main([*command, model, *(["mix.npy"] if command == ["apply"] else [])]) == 2
        only_error(capsys)


# ---- what is refused ----


def only_error(capsys):
    """The one line on standard error; nothing went to standard output."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("Error: ")
    return printed.err


def audio(data, name="mix.wav"):
    return lambda: soundfile.write(name, data, RATE)


def array(data):
    return lambda: np.save("mix.npy", data)


def cut_audio():
    soundfile.write("mix.wav", MIXTURE, RATE)
    Path("mix.wav").write_bytes(Path("mix.wav").read_bytes()[:1000])


def with_value(value):
    X = MIXTURE.copy()
    X[5, 1] = value
    return X


THREE = np.column_stack([MIXTURE, MIXTURE.sum(axis=1)])  # of rank two

REFUSED = {
    "mono": (audio(MIXTURE[:, 0]), ["mix.wav"], "one channel"),
    "silent": (audio(MIXTURE * [1, 0]), ["mix.wav"], "channel 2 is silent"),
    "all silent": (audio(0 * MIXTURE), ["mix.wav"], "channel 1 is silent"),
    "identical": (audio(MIXTURE[:, [0, 0]]), ["mix.wav"], "channels 1 and 2 are identical"),
    "nan": (array(with_value(np.nan)), ["mix.npy"], "sample 6 of channel 2 is nan"),
    "infinite": (array(with_value(-np.inf)), ["mix.npy"], "is -inf, not a finite number"),
    "rank-deficient": (array(THREE), ["mix.npy", "-n", "3"], "have only rank 2"),
    "30 sources": (array(MIXTURE), ["mix.npy", "-n", "30"], "n_sources=30"),
    "3 of 2 noise-free": (
        array(MIXTURE),
        ["mix.npy", "-n", "3", "--method", "noise_free"],
        "n_sources=3, but without noise",
    ),
    "0 sources": (array(MIXTURE), ["mix.npy", "-n", "0"], "n_sources must be at least 1"),
    "sources in words": (array(MIXTURE), ["mix.npy", "-n", "two"], "whole number or auto"),
    "complex": (array(MIXTURE + 1j), ["mix.npy"], "complex"),
    "3-D": (array(MIXTURE[None]), ["mix.npy"], "3 dimensions"),
    "few samples": (
        array(np.array([[1.0, 2.0, 0.5], [0.5, -1.0, 2.0], [1.0, 1.0, 3.0]])),
        ["mix.npy"],
        "X has 3 samples of 3 channels",
    ),
    "text": (lambda: Path("mix.csv").write_text("a,b\n1,x\n"), ["mix.csv"], "line 2, column 2"),
    "truncated": (cut_audio, ["mix.wav"], "mix.wav: it was cut off"),
    "unreadable": (lambda: Path("mix.wav").write_text("hello"), ["mix.wav"], "cannot read mix.wav"),
    "empty": (lambda: Path("mix.wav").touch(), ["mix.wav"], "cannot read mix.wav"),
    "suffix": (lambda: Path("mix.mp3").touch(), ["mix.mp3"], "must end in .wav"),
    "folder": (lambda: Path("mix.wav").mkdir(), ["mix.wav"], "is a folder"),
    "missing": (lambda: None, ["mix.wav"], "mix.wav does not exist"),
    "below a file": (
        array(MIXTURE),
        ["mix.npy", "-o", "mix.npy/out"],
        "cannot write to the folder",
    ),
    "output is a file": (array(MIXTURE), ["mix.npy", "-o", "mix.npy"], "it is a file"),
    "method": (array(MIXTURE), ["mix.npy", "--method", "ica"], "'ica' is not one of 'auto'"),
    "select": (array(MIXTURE), ["mix.npy", "--select", "luck"], "'luck' is not one of"),
    "seed": (array(MIXTURE), ["mix.npy", "--seed", "-1"], "--seed"),
    "jobs": (array(MIXTURE), ["mix.npy", "--jobs", "0"], "jobs"),
    "option": (array(MIXTURE), ["mix.npy", "--colour"], "--colour"),
    "no input": (lambda: None, [], "INPUT"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_leaves_nothing(case, capsys):
    make, arguments, message = REFUSED[case]
    make()
    before = sorted(os.listdir())
    assert main(["separate", *arguments]) == 2
    assert any(part in only_error(capsys) for part in message.split("|"))
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("case", ["mono", "below a file", "method", "30 sources"])
def test_the_process_ends_with_status_2_and_no_traceback(case):
    make, arguments, message = REFUSED[case]
    make()
    done = run("separate", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory; try fewer sources or a shorter input"),
        (OSError(errno.ENOSPC, "No space left on device", "model.npz"), "model.npz: No space left"),
        (ValueError("two\nlines"), "two lines"),
        (ImportError("reports need Jinja2: pip install 'spikeslab[app]'"), "reports need Jinja2"),
    ],
)
def test_what_goes_wrong_on_the_way_leaves_nothing(error, message, capsys, monkeypatch):
    def fail(folder, *arguments, **options):
        (folder / "source-1.npy").write_text("half of it")
        raise error

    monkeypatch.setattr("spikeslab.cli.app.write_separation", fail)
    np.save("mix.npy", MIXTURE)
    assert main(["separate", "mix.npy", "-n", "2", "-o", "new/folder", "--no-report"]) == 2
    assert message in only_error(capsys)
    assert os.listdir() == ["mix.npy"]


def test_a_bug_is_not_hidden(monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("spikeslab.cli.app.write_separation", fail)
    np.save("mix.npy", MIXTURE)
    with pytest.raises(ZeroDivisionError):
        main(["separate", "mix.npy", "-n", "2"])
    assert os.listdir() == ["mix.npy"]


def test_without_typer_it_says_what_to_install():
    program = (
        "import sys; sys.modules['typer'] = None\n"
        "from spikeslab.cli import main\n"
        "sys.exit(main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: the command line needs typer: pip install 'spikeslab[app]'\n"


# ---- interruptions ----


def started(*arguments, **options):
    """The command in the background, once it has begun to separate."""
    command = [SPIKESLAB, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    deadline = time.monotonic() + 60
    while not list(Path().rglob(".*.part")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def write_long_mixture():
    rng = np.random.default_rng(0)
    np.save("mix.npy", sparse_sources(100_000, 6) @ rng.standard_normal((6, 6)))


@pytest.mark.parametrize(
    ("number", "status", "delay"),
    [(signal.SIGINT, 130, 0.0), (signal.SIGINT, 130, 0.7), (signal.SIGTERM, 143, 0.3)],
)
def test_an_interrupted_run_leaves_nothing(number, status, delay):
    write_long_mixture()
    process = started("separate", "mix.npy", "-n", "6", "-o", "a/b")
    assert process.poll() is None, process.communicate()
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, b"", b"")
    assert os.listdir() == ["mix.npy"]


# ---- the output folder ----


def test_earlier_results_are_only_replaced_by_force(capsys):
    np.save("mix.npy", MIXTURE)
    arguments = ["separate", "mix.npy", "-n", "2", "-o", "out", "--no-report"]
    Path("out").mkdir()
    assert main(arguments) == 0  # an empty folder will do
    for name in ("source-7.npy", "source-1.npy"):
        Path("out", name).write_text("of an earlier run")
    capsys.readouterr()
    assert main(arguments) == 2
    assert "is not empty; give another with -o, or replace" in only_error(capsys)
    assert Path("out/source-7.npy").exists()
    assert main([*arguments, "--force"]) == 0
    assert sorted(os.listdir("out")) == ["model.npz", "source-1.npy", "source-2.npy"]
    assert np.load("out/source-1.npy").size == 600


def test_other_files_are_never_touched(capsys):
    np.save("mix.npy", MIXTURE)
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("years of work")
    Path("out/source-1.npy").write_text("of an earlier run")
    assert main(["separate", "mix.npy", "-o", "out", "--force"]) == 2
    assert "more in it than earlier results (thesis.tex)" in only_error(capsys)
    assert sorted(os.listdir("out")) == ["source-1.npy", "thesis.tex"]
    assert sorted(os.listdir()) == ["mix.npy", "out"]


def test_the_current_folder_can_be_the_output(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with output_folder(Path(), force=False) as folder:
        (folder / "model.npz").write_text("model")
    assert os.listdir() == ["model.npz"]


def test_the_folder_is_made_with_its_parents_and_usual_permissions():
    Path("usual").mkdir()
    with output_folder(Path("a/b/c"), force=False) as folder:
        (folder / "model.npz").write_text("model")
        assert not Path("a/b/c").exists()
    assert os.listdir("a/b/c") == ["model.npz"]
    assert os.listdir("a/b") == ["c"]
    assert Path("a/b/c").stat().st_mode == Path("usual").stat().st_mode


def test_a_failed_replacement_keeps_the_earlier_results():
    Path("out").mkdir()
    Path("out/model.npz").write_text("earlier")
    with (
        contextlib.suppress(KeyboardInterrupt),
        output_folder(Path("out"), force=True) as folder,
    ):
        (folder / "model.npz").write_text("later")
        raise KeyboardInterrupt
    assert os.listdir("out") == ["model.npz"]
    assert Path("out/model.npz").read_text() == "earlier"


# ---- the command itself ----


def test_help_is_what_it_says_without_arguments(capsys):
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("separate", "apply", "info", "demo", "reproduce"):
        assert command in done.stdout
    for option in ("--help", "-h"):
        assert main([option]) == 0
        assert "separate" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spikeslab {spikeslab.__version__}\n"


@pytest.mark.parametrize("command", ["separate", "apply", "info", "demo", "reproduce"])
def test_every_command_has_help_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"spikeslab {command} " in printed.split("Usage:")[1].split("\n", 1)[1]
    assert "[/]" not in printed


def test_an_unknown_command(capsys):
    assert main(["seperate"]) == 2
    assert "seperate" in only_error(capsys)


def test_progress_is_drawn_on_a_terminal_only():
    np.save("mix.npy", MIXTURE)
    controller, terminal = pty.openpty()
    done = run(
        "separate",
        *("mix.npy", "-n", 2, "--no-report", "--json"),
        capture_output=False,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    drawn = b""
    with contextlib.suppress(OSError):  # the end of what a terminal says
        while piece := os.read(controller, 4096):
            drawn += piece
    os.close(controller)
    assert done.returncode == 0
    assert re.search(rb"run \d+ of \d+", drawn)
    assert b"iteration" in drawn
    json.loads(done.stdout)


def test_a_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    done = run("--help", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert "Traceback" not in done.stderr


# ---- demo ----


def test_the_demo_separates_four_voices():
    done = run("demo")
    assert (done.returncode, done.stderr) == (0, "")
    sources = [f"source-{number}.wav" for number in (1, 2, 3, 4)]
    assert sorted(os.listdir("spikeslab-demo")) == [
        "mixture.wav",
        "model.npz",
        "report.html",
        *sources,
    ]
    mixture, rate = soundfile.read("spikeslab-demo/mixture.wav")
    assert (mixture.shape, rate) == ((36_000, 4), 8000)
    index = next(line for line in done.stdout.splitlines() if line.startswith("Amari index"))
    before, after = (float(word) for word in index.split() if word.startswith("0."))
    assert after < 0.05 < 0.2 < before
    for voice in ("english", "french", "german", "spanish"):
        words = next(line for line in done.stdout.splitlines() if line.startswith(voice)).split()
        assert float(words[-2]) > float(words[-4]) + 3  # decibels
    assert done.stdout.splitlines()[-1].startswith("Written to spikeslab-demo: ")


# ---- reproduce ----


def test_an_experiment_is_reproduced():
    done = run("reproduce", "prior", "-o", "out", "--jobs", 1)
    assert done.returncode == 0
    assert "3 of 3 trials" in done.stderr.splitlines()[-1]
    assert "left" in done.stderr.splitlines()[0]
    table = [line.split() for line in done.stdout.splitlines() if line.startswith("π")]
    assert [row[2] for row in table] == ["1", "0.5", "0.25"]
    for row in table:
        assert float(row[-2]) == pytest.approx(float(row[-1]), abs=0.3)
    assert done.stdout.splitlines()[-1] == (
        "The report is out/report.html; all numbers are in results.json beside it."
    )
    assert sorted(os.listdir("out")) == [
        "prior.png",
        "prior.svg",
        "report.html",
        "results.json",
        "trials.jsonl",
    ]
    before = Path("out/results.json").read_bytes()
    again = run("reproduce", "prior", "-o", "out", "--json")
    record = json.loads(again.stdout)
    assert record == {"output": "out", "results": json.loads(before)}
    assert again.stderr.count("\n") == 1  # nothing had to be run
    assert Path("out/results.json").read_bytes() == before
    assert main(["reproduce", "prior", "-o", "out", "--seed", "1"]) == 0
    assert Path("out/results.json").read_bytes() != before


def test_all_tables_fit_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_results(made_up_results(Plan(trials=10)))
    printed = capsys.readouterr().out.splitlines()
    assert sum("separate()" in line for line in printed) == 2
    rows = [line for line in printed if line.startswith(("Cauchy, H = ", "Laplace, H = "))]
    assert len(rows) == 8
    assert all(line.count("%") >= 3 for line in rows)
    rows = [line for line in printed if line.startswith(("10halo", "Sergio7", "Speech4", "c5"))]
    assert len(rows) == 12
    assert all(
        re.search(r" (200|500)( +0\.\d\d \(0\.\d\d\)){2}( +0\.\d{3}){2}$", line.rstrip())
        for line in rows
    )
    assert any("stand-ins" in line for line in printed)
    assert "…" not in "".join(printed)


def icalab_files(missing=(), n_samples=600):
    Path("icalab").mkdir()
    for name, n_sources in N_SOURCES.items():
        if name not in missing:
            signals = np.random.default_rng(0).laplace(size=(n_sources, n_samples))
            signals[-1] *= name not in ("Speech4",) or n_samples > 600
            savemat(f"icalab/{name}.mat", {"x": signals})


def damaged_trials():
    Path("out").mkdir()
    Path("out/trials.jsonl").write_text('{"key": "x", "outcome": {}}\n{"key": \n')


NOT_REPRODUCED = {
    "experiment": (lambda: None, ["recovery"], "'recovery' is not one of 'prior'"),
    "few trials": (lambda: None, ["prior", "--trials", "1"], "--trials"),
    "jobs": (lambda: None, ["prior", "--jobs", "0"], "n_jobs must be at least 1, got 0"),
    "icalab": (lambda: None, ["--icalab", "icalab"], "the ICALAB folder"),
    "no .mat": (lambda: Path("icalab").mkdir(), ["--icalab", "icalab"], "there are no .mat files"),
    "a .mat": (
        lambda: icalab_files(missing=("Sergio7", "c5signals")),
        ["separation", "--icalab", "icalab"],
        "lacks Sergio7.mat, c5signals.mat; it has 10halo.mat, Speech4.mat",
    ),
    "short .mat": (
        lambda: icalab_files(n_samples=499),
        ["separation", "--icalab", "icalab"],
        "10halo.mat has 499 points in time; at least 500 are needed",
    ),
    "constant .mat": (
        icalab_files,
        ["separation", "--icalab", "icalab"],
        "Speech4.mat is constant",
    ),
    "speech": (lambda: None, ["--speech", "voices"], "the folder of prompts"),
    "no prompts": (lambda: Path("voices").mkdir(), ["--speech", "voices"], "no prompts of en, es"),
    "both": (icalab_files, ["--icalab", "icalab", "--speech", "voices"], "drop one"),
    "output is a file": (lambda: Path("out").touch(), ["prior", "-o", "out"], "it is a file"),
    "below a file": (lambda: Path("a").touch(), ["prior", "-o", "a/out"], "cannot write to the fo"),
    "other things": (
        lambda: (Path("out").mkdir(), Path("out/thesis.tex").touch()),
        ["prior", "-o", "out"],
        "other things in it (thesis.tex)",
    ),
    "damaged": (damaged_trials, ["prior", "-o", "out"], "line 2 of out/trials.jsonl is damaged"),
}


@pytest.mark.parametrize("case", NOT_REPRODUCED)
def test_what_cannot_be_reproduced_is_one_line_and_leaves_nothing(case, capsys):
    make, arguments, message = NOT_REPRODUCED[case]
    make()
    before = sorted(Path().rglob("*"))
    assert main(["reproduce", *arguments]) == 2
    assert message in only_error(capsys)
    assert sorted(Path().rglob("*")) == before


def test_a_folder_in_use_is_refused(capsys):
    Path("out").mkdir()
    with Store(Path("out/trials.jsonl")):
        assert main(["reproduce", "prior", "-o", "out"]) == 2
    assert "out is in use: another run writes its trials there" in only_error(capsys)


def test_recorded_prompts_are_used_where_they_are_installed(monkeypatch, tmp_path):
    def origins(speech):
        return {benchmark.origin for benchmark in benchmarks(Plan(speech=prompts(speech)))}

    monkeypatch.setattr("spikeslab.experiments.sources.DEBIAN", tmp_path / "none")
    assert origins(None) == {"voices", "generated"}
    rng = np.random.default_rng(0)
    for language in ("en_US", "es", "fr_CA_f_June", "it", "ru"):
        (tmp_path / "sounds" / language).mkdir(parents=True)
        sound = (3000 * rng.laplace(size=9000)).astype(np.int16)
        soundfile.write(tmp_path / "sounds" / language / "hello.wav", sound, 8000)
    monkeypatch.setattr("spikeslab.experiments.sources.DEBIAN", tmp_path / "sounds")
    assert origins(None) == {"prompts", "generated"}
    assert prompts(Path("sounds")) == tmp_path / "sounds"
