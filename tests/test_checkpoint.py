"""Checkpoints: what goes on from one ends where it would have ended, and no other file is used."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import spikeslab.checkpoint
from problems import FAMILIES, METHODS, NOISES, floor_of, make_data, make_model, make_start
from spikeslab import Expectation, GaussianSparseCoding, maximise
from spikeslab.checkpoint import Checkpoint, digest
from spikeslab.missing import InferenceWithMissing
from spikeslab.online import maximise_online
from spikeslab.parameters import load_arrays
from spikeslab.quasi_newton import Curvature
from spikeslab.truncated import TruncatedInference


def assert_same_arrays(some, others):
    assert some.keys() == others.keys()
    for name, values in some.items():
        np.testing.assert_array_equal(others[name], values)


# ---- one run ----


@dataclass
class Notebook:
    """A journal in memory whose time has always come."""

    saved: dict | None = None
    pages: list = field(default_factory=list)
    due = True

    def keep(self, arrays):
        self.pages.append(through_a_file(arrays))


def through_a_file(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as loaded:
        return dict(loaded)


TRUNCATED = partial(TruncatedInference, n_free=1, max_active=1)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize(
    ("infer", "missing", "method", "noise"),
    [
        *((InferenceWithMissing, 0.0, method, noise) for method in METHODS for noise in NOISES),
        *((TRUNCATED, 0.0, "quasi-newton", noise) for noise in NOISES),
        *((InferenceWithMissing, 0.2, "quasi-newton", noise) for noise in NOISES[:2]),
    ],
)
def test_a_run_that_goes_on_from_any_iteration_ends_at_the_same_bits(
    noise, method, missing, infer, family
):
    rng = np.random.default_rng(0)
    data, n_latents = {"isotropic": ("square", 2), "diagonal": ("more latents", 4)}.get(
        noise, ("more features", 1)
    )
    X = make_data(data, rng)
    model = make_model(family, noise)
    start = make_start(model, X, n_latents, rng)
    floor, variance = floor_of(X), np.mean(X**2)
    X[rng.random(X.shape) < missing] = np.nan
    expectation = Expectation(X, noise, infer=infer)

    def run(journal):
        return maximise(
            expectation,
            start,
            model,
            method=method,
            noise_floor=floor,
            anneal_from=0.3 * variance,
            anneal_iterations=3,
            max_iter=14,
            journal=journal,
        )

    notes = Notebook()
    expected = run(notes).arrays()
    assert_same_arrays(run(None).arrays(), expected)
    assert len(notes.pages) == len(expected["history"])
    for page in notes.pages[::4]:
        again = Notebook(page)
        assert_same_arrays(run(again).arrays(), expected)
        for before, after in zip(notes.pages[::-1], again.pages[::-1], strict=False):
            assert_same_arrays(before, after)


@pytest.mark.parametrize("family", list(FAMILIES.values())[::3], ids=list(FAMILIES)[::3])
@pytest.mark.parametrize(
    ("infer", "missing", "noise"),
    [
        *((InferenceWithMissing, 0.0, noise) for noise in NOISES),
        *((TRUNCATED, 0.0, noise) for noise in NOISES),
        *((InferenceWithMissing, 0.2, noise) for noise in NOISES[:2]),
    ],
)
def test_a_run_in_batches_that_goes_on_from_any_batch_ends_at_the_same_bits(
    noise, missing, infer, family
):
    rng = np.random.default_rng(0)
    X = make_data("square", rng, (60, 3, 2))
    model = make_model(family, noise)
    start = make_start(model, X, 2, rng)
    floor = floor_of(X)
    X[rng.random(X.shape) < missing] = np.nan

    def batches(number):
        order = np.random.default_rng(number).permutation(len(X))
        for first in range(0, len(X), 20):
            yield Expectation(X[order[first : first + 20]], noise, infer=infer)

    def run(journal):
        return maximise_online(
            batches,
            Expectation(X, noise, infer=infer),
            start,
            model,
            noise_floor=floor,
            n_points=len(X),
            max_iter=5,
            journal=journal,
        )

    notes = Notebook()
    expected = run(notes).arrays()
    assert_same_arrays(run(None).arrays(), expected)
    assert len(notes.pages) == 3 * (len(expected["history"]) - 1) + 1
    for page in notes.pages[1::4]:
        assert_same_arrays(run(Notebook(page)).arrays(), expected)


@pytest.mark.parametrize("n_pairs", [0, 3, 150])
def test_curvature_goes_on_from_its_arrays_also_when_it_has_forgotten_pairs(n_pairs):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    hessian = root @ root.T + np.eye(6)
    moves = rng.normal(size=(n_pairs + 5, 6))
    one = Curvature(6)
    for move in moves[:n_pairs]:
        one.add(move, hessian @ move)
    other = Curvature.from_arrays(through_a_file(one.arrays()))
    for move in moves[n_pairs:]:
        steps = [curvature.step(move, np.copy) for curvature in (one, other)]
        np.testing.assert_array_equal(*steps)
        for curvature in (one, other):
            curvature.add(move, hessian @ move)
    assert len(one.arrays()["moved"]) == min(n_pairs + 5, 100)


# ---- fits ----

ARGUMENTS = {
    "default": {"n_init": 3},
    "plain EM": {"n_init": 2, "accelerate": False, "max_iter": 200, "tol": 1e-4},
    "two threads": {"n_init": 3, "n_jobs": 2},
    "blocks in threads": {"n_init": 1, "n_jobs": 2, "n_slabs": 2, "noise": "diagonal"},
    "given components": {"n_init": 2, "init": np.eye(3), "noise": "full"},
}
by_arguments = pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())


def make_fit(**arguments):
    given = {"n_components": 3, "random_state": 0, "tol": 1e-5, "n_init": 2}
    return GaussianSparseCoding(**given | arguments)


def make_X(n_points=300, missing=0.0):
    rng = np.random.default_rng(3)
    X = make_data("square", rng, (n_points, 3, 3))
    X[rng.random(X.shape) < missing] = np.nan
    return X


@pytest.fixture(scope="module")
def X():
    return make_X()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.ckpt"


def write_always(patch):
    """Let the file be written after every iteration."""
    patch.setattr(spikeslab.checkpoint, "SECONDS", 0.0)
    patch.setattr(spikeslab.checkpoint, "_SHARE", np.inf)


@pytest.fixture
def always(monkeypatch):
    write_always(monkeypatch)


def assert_same_fit(one, other):
    assert_same_arrays(one.parameters_.arrays(), other.parameters_.arrays())
    assert one.history_ == other.history_
    assert one.runs_ == other.runs_


def interrupt_after(calls):
    """A callback that presses Ctrl-C."""
    seen = []

    def callback(progress):
        seen.append(progress)
        if len(seen) == calls:
            signal.raise_signal(signal.SIGINT)

    return callback


@by_arguments
def test_after_ctrl_c_the_same_call_goes_on(X, path, always, arguments):
    expected = make_fit(**arguments).fit(X)
    for calls in (7, 20):
        broken = make_fit(**arguments, callback=interrupt_after(calls))
        with pytest.raises(KeyboardInterrupt):
            broken.fit(X, checkpoint=path)
        assert np.isfinite(broken.score(X))
    assert_same_fit(make_fit(**arguments).fit(X, checkpoint=path), expected)
    assert os.listdir(path.parent) == [path.name]


@by_arguments
def test_a_finished_fit_is_read_back_without_an_e_step(X, path, monkeypatch, arguments):
    fitted = make_fit(**arguments).fit(X, checkpoint=path)
    monkeypatch.setattr(Expectation, "__call__", None)
    called = []
    again = make_fit(**arguments, callback=called.append).fit(X, checkpoint=path)
    assert_same_fit(again, fitted)
    assert not called


def test_an_error_costs_nothing_but_the_rest_of_the_fit(X, path, always):
    def fail(progress):
        if progress.run == 1:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        make_fit(n_init=3, callback=fail).fit(X, checkpoint=path)
    runs = []
    again = make_fit(n_init=3, callback=lambda p: runs.append(p.run)).fit(X, checkpoint=path)
    assert set(runs) == {1, 2}
    assert_same_fit(again, make_fit(n_init=3).fit(X))


def test_without_a_random_state_the_starts_drawn_first_are_used_again(X, path, always):
    seen = []

    def note(progress):
        seen.append((progress.run, progress.log_likelihood))
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_fit(n_init=2, random_state=None, callback=note).fit(X, checkpoint=path)
    drawn = [np.load(path)["drawn"].item()]
    fitted = make_fit(n_init=2, random_state=None).fit(X, checkpoint=path)
    drawn.append(np.load(path)["drawn"].item())
    assert drawn[0] == drawn[1]
    assert len(set(json.loads(drawn[0])["seeds"])) == 2
    best = int(np.argmax([run.log_likelihood for run in fitted.runs_]))
    if best == 0:
        assert fitted.history_[:5] == [value for _, value in seen]
    assert_same_fit(make_fit(n_init=2, random_state=None).fit(X, checkpoint=path), fitted)


def test_it_is_no_part_of_the_estimator(X, path):
    model = make_fit(n_init=1)
    pipeline = make_pipeline(StandardScaler(), clone(model))
    pipeline.fit(X, gaussiansparsecoding__checkpoint=path)
    assert path.exists()
    assert "checkpoint" not in model.get_params()
    latents = clone(model).fit_transform(X, checkpoint=path.with_name("other.ckpt"))
    np.testing.assert_array_equal(latents, clone(model).fit(X).transform(X))


# ---- killed ----


@dataclass(frozen=True)
class Kind:
    """Of fits that are killed: its arguments and data, and how often it is told of its progress
    until the last moment at which it is killed.
    """

    arguments: dict
    data: dict = field(default_factory=dict)
    last_moment: int = 100  # iterations

    def fit(self, random_state):
        return make_fit(**self.arguments | {"random_state": random_state})


LONG = {"tol": 0.0, "max_iter": 1000, "anneal": 500}
IN_CUBES = {"n_components": 6, "inference": "truncated", "n_free": 2, "max_active": 3} | LONG
BATCHES = {"batch_size": 500, "n_init": 8, "max_iter": 40, "tol": 0.0}
THREADS = {"n_jobs": 2}
MISSING = {"n_points": 300, "missing": 0.2}
PASSES = {"data": {"n_points": 7000}, "last_moment": 8}
KINDS = {
    **{name: Kind(arguments | LONG) for name, arguments in ARGUMENTS.items()},
    "missing values": Kind(LONG, MISSING),
    "truncated": Kind(IN_CUBES),
    "truncated, soft spikes, diagonal": Kind(IN_CUBES | {"spike": "soft", "noise": "diagonal"}),
    "truncated, two slabs, full": Kind(IN_CUBES | {"n_slabs": 2, "noise": "full"}),
    "truncated in threads": Kind(IN_CUBES | THREADS),
    "batches": Kind(BATCHES, **PASSES),
    "batches, full noise, plain EM": Kind(
        BATCHES | {"noise": "full", "accelerate": False}, **PASSES
    ),
    "batches in threads": Kind(BATCHES | THREADS, **PASSES),
    "batches with missing values": Kind(BATCHES, {"n_points": 7000, "missing": 0.2}, 8),
    "batches, truncated": Kind(BATCHES | {"n_components": 6, "inference": "truncated"}, **PASSES),
}

CHILD = """
import os, sys
sys.path.insert(0, {tests!r})
import test_checkpoint as t

def say(progress):
    os.write(1, b".")

t.spikeslab.checkpoint.SECONDS, t.spikeslab.checkpoint._SHARE = {seconds}, {share}
kind = t.KINDS[{name!r}]
X, model = t.make_X(**kind.data), kind.fit({random_state}).set_params(callback=say)
say(None)
model.fit(X, checkpoint={path!r}).save({result!r})
"""


def fit_with_kills(name, random_state, path, rng, most):
    """Fit in processes that are killed at random moments until one ends, at the latest the one
    after so many kills. Returns the model, the number of kills that came before the end, and after
    how many of these there was something to go on from.
    """
    result, kills, kept = path.with_name("model.npz"), 0, 0
    while True:
        code = CHILD.format(
            tests=os.path.dirname(__file__),
            name=name,
            random_state=random_state,
            path=str(path),
            result=str(result),
            seconds=0.0 if kills < most else 10.0,
            share=[1e9, 0.3][kills % 2],  # is killed while it writes, or between writes
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        with child:
            assert child.stdout.read(1)
            if kills < most:  # told of by the child, so that a busy machine does not matter
                child.stdout.read(rng.integers(KINDS[name].last_moment))
                time.sleep(rng.uniform(0, 0.01))
                child.kill()
            child.communicate()
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        assert set(os.listdir(path.parent)) <= {path.name, f".{path.name}.part"}
        kills += 1
        kept += path.exists() and any("/" in part for part in load_arrays(path, "checkpoint"))
    assert set(os.listdir(path.parent)) == {path.name, result.name}
    return GaussianSparseCoding.load(result), kills, kept


def assert_kills_do_not_matter(name, folder, wanted):
    """So many kills before the end, of as many fits as that takes. Returns after how many of them
    there was something to go on from.
    """
    X, rng = make_X(**KINDS[name].data), np.random.default_rng(len(name))
    kills = fits = all_kept = 0
    while kills < wanted:
        assert fits < wanted, "fits are too short to be killed"
        path = folder / str(fits) / "fit.ckpt"
        path.parent.mkdir()
        fitted, killed, kept = fit_with_kills(name, fits, path, rng, wanted - kills)
        assert_same_fit(fitted, KINDS[name].fit(fits).fit(X))
        kills, fits, all_kept = kills + killed, fits + 1, all_kept + kept
    assert kills == wanted
    return all_kept


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("name", ["two threads", "truncated", "batches"])
def test_fits_that_are_killed_twice_end_at_the_same_bits(name, tmp_path):
    assert_kills_do_not_matter(name, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("name", KINDS)
def test_fits_that_are_killed_eight_times_end_at_the_same_bits(name, tmp_path):
    assert assert_kills_do_not_matter(name, tmp_path, 8) > 4


# ---- refused ----


@pytest.fixture
def interrupted(X, path, monkeypatch):
    """The file of a fit that has not ended."""
    with monkeypatch.context() as patch:
        write_always(patch)
        with pytest.raises(KeyboardInterrupt):
            make_fit(callback=interrupt_after(12)).fit(X, checkpoint=path)
    return path


def assert_refused(model, X, path, message, error=ValueError):
    before = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    called = []
    model.set_params(callback=called.append)
    with pytest.raises(error, match=message):
        model.fit(X, checkpoint=path)
    assert not called
    with pytest.raises(NotFittedError):
        model.transform(X)
    assert {f: f.read_bytes() for f in path.parent.iterdir() if f.is_file()} == before


OTHER = {
    "random_state": {"random_state": 1},
    "no random_state": {"random_state": None},
    "n_init": {"n_init": 3},
    "tol": {"tol": 1e-6},
    "max_iter": {"max_iter": 999},
    "noise": {"noise": "diagonal"},
    "min_noise": {"min_noise": 1e-3},
    "to_learn": {"to_learn": ["components", "prior", "noise"]},
    "start": {"init": "random"},
}


@pytest.mark.parametrize("what", OTHER)
def test_a_file_of_other_arguments_is_refused(X, interrupted, what):
    name = what.removeprefix("no ")
    message = rf"fit\.ckpt belongs to another fit \(other {name}.*; give the same as then, or"
    assert_refused(make_fit(**OTHER[what]), X, interrupted, message)


def test_a_file_of_other_data_is_refused(X, interrupted):
    changed = X.copy()
    changed[200, 1] = np.nextafter(changed[200, 1], 9)
    for other in (changed, X[:-1], X[::-1], X.astype(np.float32)):
        assert_refused(make_fit(), other, interrupted, r"another fit \(other data\)")


def test_a_file_of_another_version_is_refused(X, interrupted, monkeypatch):
    monkeypatch.setattr(spikeslab.checkpoint, "__version__", "99.0")
    assert_refused(make_fit(), X, interrupted, r"other version of spikeslab")


def test_a_warm_start_from_elsewhere_is_refused_and_from_the_same_place_goes_on(X, path, always):
    first = make_fit(n_init=1, max_iter=12).fit(X)
    second = clone(first).set_params(warm_start=True, max_iter=1000)

    def warm(parameters, **arguments):
        model = clone(second).set_params(**arguments)
        model.parameters_ = parameters
        return model

    expected = warm(first.parameters_).fit(X)
    with pytest.raises(KeyboardInterrupt):
        warm(first.parameters_, callback=interrupt_after(3)).fit(X, checkpoint=path)
    with pytest.raises(ValueError, match=r"other start\)"):
        warm(expected.parameters_).fit(X, checkpoint=path)
    assert_same_fit(warm(first.parameters_).fit(X, checkpoint=path), expected)


def test_a_file_that_was_cut_off_is_refused(X, interrupted):
    whole = interrupted.read_bytes()
    for length in [0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1]:
        interrupted.write_bytes(whole[:length])
        assert_refused(make_fit(), X, interrupted, r"cannot read .*fit\.ckpt: .")


def test_a_file_with_a_wrong_byte_is_refused_or_has_not_lost_anything(X, interrupted):
    whole, expected, refused = interrupted.read_bytes(), make_fit().fit(X), 0
    places = np.random.default_rng(0).integers(len(whole), size=30)
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 0x20
        interrupted.write_bytes(broken)
        try:
            fitted = make_fit().fit(X, checkpoint=interrupted)
        except ValueError as error:
            assert "fit.ckpt" in str(error)  # noqa: PT017
            assert interrupted.read_bytes() == broken
            refused += 1
        else:
            assert_same_fit(fitted, expected)
    assert refused > len(places) / 3


def test_files_that_are_no_checkpoints_are_refused_and_stay(X, path):
    path.write_text("my diary\n")
    assert_refused(make_fit(), X, path, r"cannot read .*fit\.ckpt: it is no \.npz file")
    path.unlink()
    make_fit(n_init=1).fit(X).save(path)
    assert_refused(make_fit(), X, path, "it holds model, not checkpoint")


def test_where_nothing_can_be_written_is_said_before_the_work(X, path):
    in_a_file = path / "fit.ckpt"
    path.touch()
    places = {path.parent: "Is a dir", path.parent / "no" / "a": "No such", in_a_file: "Not a dir"}
    for place, why in places.items():
        with pytest.raises(OSError, match=f"cannot use the checkpoint .*: {why}"):
            make_fit(callback=pytest.fail).fit(X, checkpoint=place)
    with pytest.raises(TypeError, match="checkpoint must be the path of a file, got 3"):
        make_fit().fit(X, checkpoint=3)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_refused(X, path):
    path.parent.chmod(0o500)
    assert_refused(make_fit(), X, path, "Permission denied", OSError)


def test_a_file_in_use_is_refused(X, path):
    def fit_again(progress):
        if progress.iteration == 2:
            with pytest.raises(ValueError, match=r"fit\.ckpt is in use by another fit"):
                make_fit(n_init=1).fit(X, checkpoint=path)

    model = make_fit(n_init=1, callback=fit_again).fit(X, checkpoint=path)
    assert_same_fit(make_fit(n_init=1).fit(X, checkpoint=path), model)


def test_a_fit_that_cannot_begin_leaves_no_file(X, path):
    for arguments, message in (
        ({"n_components": 25, "inference": "exact"}, "25 latents"),
        ({"init": np.ones((3, 4))}, "init must have shape"),
        ({"init": [["a"]]}, "init must be an array of real numbers"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make_fit().set_params(**arguments).fit(X, checkpoint=path)
        assert os.listdir(path.parent) == []


# ---- the file ----


def test_a_full_disk_costs_the_file_and_not_the_fit(X, path, always, monkeypatch):
    def fail(file, content, arrays):
        if any(name.startswith("1/") for name in arrays):
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        write(file, content, arrays)

    write = spikeslab.checkpoint.write_arrays
    with monkeypatch.context() as patch:
        patch.setattr(spikeslab.checkpoint, "write_arrays", fail)
        with pytest.warns(UserWarning, match=r"cannot write .*fit\.ckpt: No space left"):
            model = make_fit(n_init=2).fit(X, checkpoint=path)
    assert os.listdir(path.parent) == [path.name]
    assert_same_fit(make_fit(n_init=2).fit(X, checkpoint=path), model)  # from what was written


def test_a_state_is_due_every_so_many_seconds_and_seldom_on_a_slow_disk(path, monkeypatch):
    now, slowness = [0.0], [0.0]

    def slow(*arguments):
        now[0] += slowness[0]
        write(*arguments)

    write = spikeslab.checkpoint.write_arrays
    monkeypatch.setattr(spikeslab.checkpoint, "write_arrays", slow)
    monkeypatch.setattr(spikeslab.checkpoint.time, "monotonic", lambda: now[0])
    page = {"values": np.arange(3.0)}
    with Checkpoint(path, {}, {}) as checkpoint:
        journal = checkpoint.journal("0")
        for seconds, expected in ((0, False), (9, False), (10, True)):
            now[0] = seconds
            assert journal.due is expected
        slowness[0] = 2.0
        journal.keep(page)  # takes 5 % of 40 s
        now[0] = 12 + 39 - 2
        assert not journal.due
        now[0] = 12 + 40
        assert journal.due


def test_runs_keep_their_own_arrays(path):
    pages = {run: {"a": np.full(2, ord(run)), "b": np.array("text")} for run in "abc"}
    with Checkpoint(path, {"x": 1}, {"seeds": [1, 2]}) as checkpoint:
        assert checkpoint.journal("a").saved is None
        for run, page in pages.items():
            checkpoint.journal(run).keep({"older": np.zeros(3)})
            checkpoint.journal(run).keep(page)
    with Checkpoint(path, {"x": 1}, {"seeds": [3, 4]}) as checkpoint:
        assert checkpoint.drawn == {"seeds": [1, 2]}
        for run, page in pages.items():
            assert_same_arrays(checkpoint.journal(run).saved, page)


def test_digests_tell_values_types_and_shapes_apart_and_nothing_else(monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 4))
    others = [X.T, X.ravel(), X.astype(np.float32), X[:-1], X[::-1], X + 0, np.where(X > 2, 9, X)]
    different = [digest(X), digest(X, X), *map(digest, others)]
    assert digest(X + 0) == digest(X)
    assert len(set(different)) == len(different) - 1  # X + 0 is X
    assert digest(np.asfortranarray(X)) == digest(X)
    assert digest(np.repeat(X, 2, axis=1)[:, ::2]) == digest(X)
    assert digest(np.array("full")) != digest(np.array("none"))
    monkeypatch.setattr(spikeslab.checkpoint, "_HASHED_AT_ONCE", 7)
    assert digest(X) == different[0]
