"""Data that are read in blocks give what the same data give in memory."""

import tracemalloc
from functools import reduce

import h5py
import numpy as np
import pytest
import zarr

from problems import FAMILIES, make_parameters
from spikeslab import Expectation, GaussianSparseCoding, blocks
from spikeslab.blocks import ArrayRows, BlockRows, add_up, open_rows

RNG = np.random.default_rng(0)
TRUTH = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (5, 3), RNG)
X = TRUTH.sample(4000, RNG)[0]
FRESH = {"n_components": 3, "n_init": 2, "random_state": 0}


class Files:
    """Blocks that are there only while they are looked at."""

    def __init__(self, parts):
        self._parts = parts

    def __iter__(self):
        return (part.copy() for part in self._parts)


def memory_map(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def zarr_array(X, folder):
    array = zarr.create_array(folder / "X.zarr", shape=X.shape, chunks=(300, 2), dtype=X.dtype)
    array[:] = X
    return array


def hdf5_array(X, folder, chunks=(300, 2)):
    return h5py.File(folder / "X.h5", "w").create_dataset("X", data=X, chunks=chunks)


def parts_of(X, size=617):
    return [X[i : i + size] for i in range(0, len(X), size)]


SOURCES = {
    "memory map": memory_map,
    "zarr": zarr_array,
    "hdf5": hdf5_array,
    "hdf5, not chunked": lambda X, folder: hdf5_array(X, folder, None),
    "list of blocks": lambda X, folder: parts_of(X),
    "tuple of one block": lambda X, folder: (X,),
    "iterable": lambda X, folder: Files(parts_of(X, 1234)),
}

by_source = pytest.mark.parametrize("source", SOURCES)


@pytest.fixture(autouse=True)
def little_at_a_time(monkeypatch):
    """Several reads of the little data of these tests."""
    monkeypatch.setattr(blocks, "_READ_NUMBERS", 5 * 700)


@pytest.fixture(scope="module")
def in_memory():
    return GaussianSparseCoding(**FRESH).fit(X)


@by_source
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_a_source_has_the_statistics_of_its_rows(source, dtype, tmp_path):
    rows = (10 * X).astype(dtype)
    expected = Expectation(rows, "full", 1.0)(TRUTH)
    found = Expectation(open_rows(SOURCES[source](rows, tmp_path)), "full", 1.0)(TRUTH)
    assert found.n == len(X)
    for name in ("log_likelihood", "counts", "second", "xx", "yx", "y", "yy"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * np.abs(b).max(), err_msg=name)


@by_source
def test_a_fit_and_all_that_follows_are_those_of_the_rows_in_memory(source, tmp_path, in_memory):
    data = SOURCES[source](X, tmp_path)
    model = GaussianSparseCoding(**FRESH).fit(data)
    assert model.n_iter_ == in_memory.n_iter_
    np.testing.assert_allclose(model.log_likelihood_, in_memory.log_likelihood_, atol=1e-11)
    np.testing.assert_allclose(model.mixing_, in_memory.mixing_, atol=1e-8)
    np.testing.assert_allclose(model.transform(data), in_memory.transform(X), atol=1e-8)
    np.testing.assert_allclose(model.score_samples(data), in_memory.score_samples(X), atol=1e-7)
    np.testing.assert_allclose(model.bic(data), in_memory.bic(X), rtol=1e-12)
    assert model.n_features_in_ == 5


@pytest.mark.filterwarnings("ignore:not converged")
@by_source
def test_missing_values_are_missing_in_blocks_too(source, tmp_path):
    rng = np.random.default_rng(1)
    holed = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    holed[[5, 900]] = np.nan
    data = SOURCES[source](holed, tmp_path)
    arguments = {**FRESH, "n_init": 1, "max_iter": 15, "anneal": 3}
    expected = GaussianSparseCoding(**arguments).fit(holed)
    model = GaussianSparseCoding(**arguments).fit(data)
    np.testing.assert_allclose(model.mixing_, expected.mixing_, atol=1e-8)
    np.testing.assert_allclose(model.score(data), expected.score(holed), atol=1e-9)
    with pytest.raises(ValueError, match="which noise='full' cannot take"):
        GaussianSparseCoding(3, noise="full").fit(data)


def test_a_memory_map_changes_not_a_bit(tmp_path, in_memory):
    model = GaussianSparseCoding(**FRESH).fit(memory_map(X, tmp_path))
    np.testing.assert_array_equal(model.mixing_, in_memory.mixing_)


def test_single_precision_stays_so(tmp_path, in_memory):
    single = X.astype(np.float32)
    for source in SOURCES.values():
        assert in_memory.transform(source(single, tmp_path)).dtype == np.float32
        [file.unlink() for file in tmp_path.glob("X.n*")]


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_memory_map_keeps_what_was_written_to_it(mode, tmp_path):
    """Giving pages back must not lose changes: neither those of the file nor private ones."""
    np.save(tmp_path / "X.npy", X)
    data = np.load(tmp_path / "X.npy", mmap_mode=mode)
    if mode != "r":
        data[3] = 7.0
    before = np.array(data)
    Expectation(open_rows(data))(TRUTH)
    np.testing.assert_array_equal(data, before)


def test_views_of_memory_maps_are_read_as_they_are(tmp_path):
    data = memory_map(np.hstack([X, X]), tmp_path)
    for view in (data[::2, :5], data[100:, 5:], data[1:1001]):
        expected = Expectation(np.array(view)[:, :5])(TRUTH).xx
        np.testing.assert_allclose(Expectation(open_rows(view[:, :5]))(TRUTH).xx, expected)


# ---- the sum ----


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 63, 64, 65, 513])
def test_neighbours_are_added_eight_at_a_time(n):
    """Against the plain picture of the tree, with an addition that shows its order."""

    class Shown(str):
        def __add__(self, other):
            return Shown(f"({self!s}+{other!s})")

    layer = [Shown(i) for i in range(n)]
    found = add_up(iter(layer))
    while len(layer) > 1:
        layer = [reduce(Shown.__add__, layer[i : i + 8]) for i in range(0, len(layer), 8)]
    assert found == layer[0]


# ---- memory ----


def peak(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_fit_of_blocks_never_holds_the_data():
    class Endless:
        def __iter__(self):
            return (np.random.default_rng(i).normal(size=(20_000, 8)) for i in range(20))

    model = GaussianSparseCoding(3, n_init=1, max_iter=2, random_state=0)
    with pytest.warns(match="max_iter"):
        most = peak(lambda: model.fit(Endless()))
    assert most < 5 * 20_000 * 8 * 8 < 20 * 20_000 * 8 * 8 / 3
    assert model.n_samples_seen_ == 400_000


# ---- batches ----


@by_source
@pytest.mark.parametrize("size", [1000, 617, 333, 4001])
def test_batches_are_all_rows_once(source, size, tmp_path):
    rows = open_rows(SOURCES[source](X, tmp_path))
    batches = [batch.data for batch in rows.batches(size, np.random.default_rng(0))]
    assert all(len(batch) <= size for batch in batches)
    assert sum(len(batch) < size for batch in batches) <= 1
    together = np.concatenate(batches)
    np.testing.assert_array_equal(together[together[:, 0].argsort()], X[X[:, 0].argsort()])


def test_batches_are_in_random_order_where_they_can_be(tmp_path):
    def order(rows, seed):
        batches = rows.batches(500, np.random.default_rng(seed))
        return np.concatenate([batch.data[:, 0] for batch in batches])

    for rows in (
        ArrayRows(X),
        open_rows(memory_map(X, tmp_path)),
        open_rows(zarr_array(X, tmp_path)),
        open_rows(parts_of(X)),
    ):
        np.testing.assert_array_equal(order(rows, 0), order(rows, 0))
        assert (order(rows, 0) != order(rows, 1)).any()
    stream = open_rows(Files(parts_of(X)))
    np.testing.assert_array_equal(order(stream, 1), X[:, 0])


# ---- what is refused ----


def spoilt(value, row):
    Y = X.copy()
    Y[row, 2] = value
    return Y


@by_source
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_the_first_row_with_infinity_is_named(source, value, tmp_path, in_memory):
    bad = spoilt(value, [2718, 3000])
    data = SOURCES[source](bad, tmp_path)
    model = GaussianSparseCoding(**FRESH)
    for call in (model.fit, in_memory.transform, in_memory.score_samples):
        with pytest.raises(ValueError, match=r"X contains infinity in row 2718\b"):
            call(data)
    assert not hasattr(model, "n_features_in_")


BAD_BLOCKS = {
    "iterator": (iter(parts_of(X)), TypeError, "X is an iterator, .* only once.* partial_fit"),
    "generator": ((part for part in parts_of(X)), TypeError, "X is an iterator"),
    "features differ": ([X, X[:, :4]], ValueError, "block 1 of X has 4 features, .* has 5"),
    "empty block": ([X, X[:0], X], ValueError, "block 1 of X is empty"),
    "one dimension": ([X, X[0]], ValueError, r"but block 1 has shape \(5,\)"),
    "complex": ([X + 1j], ValueError, "X must hold real numbers, got complex128"),
    "text": ([np.array([["a", "b"]] * 3)], ValueError, "X must hold real numbers, got <U1"),
    "one row": ([X[:1]], ValueError, "X has 1 rows and 5 columns, but at least 2 and 1"),
    "constant": ([np.ones((10, 3)), np.ones((5, 3))], ValueError, "X is constant"),
}


@pytest.mark.parametrize("case", BAD_BLOCKS)
def test_bad_blocks(case):
    data, error, message = BAD_BLOCKS[case]
    model = GaussianSparseCoding(2)
    with pytest.raises(error, match=message):
        model.fit(data)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_other_data_than_those_of_the_fit_are_refused(in_memory):
    with pytest.raises(ValueError, match="X has 4 features, but the model was fitted to 5"):
        in_memory.transform([X[:, :4]])


def test_a_file_without_rows_or_columns_is_refused(tmp_path):
    for shape in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match=f"X has {shape[0]} rows and {shape[1]} columns"):
            GaussianSparseCoding(2).fit(hdf5_array(np.empty(shape), tmp_path, None))


def test_what_may_become_an_array_is_not_taken_for_blocks():
    for data in (X, X.tolist(), [X[0], X[1]], [[1.0, 2.0]], [], None, 3, "text"):
        assert open_rows(data) is None
    assert isinstance(open_rows([X]), BlockRows)
