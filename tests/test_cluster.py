"""Dask arrays are fitted where they are, with the results of the same blocks in this process."""

import os
import pickle
import signal
from contextlib import suppress

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from problems import FAMILIES, make_parameters
from spikeslab import Expectation, GaussianSparseCoding
from spikeslab.blocks import open_rows
from spikeslab.cluster import DaskRows
from spikeslab.posterior import Inference
from spikeslab.statistics import EStep

RNG = np.random.default_rng(0)
TRUTH = make_parameters(FAMILIES["1slab-hard-own"], "isotropic", (5, 3), RNG)
X = TRUTH.sample(3000, RNG)[0]
SIZES = (617, 383, 1, 999, 1000)
PARTS = np.split(X, np.cumsum(SIZES)[:-1])
FRESH = {"n_components": 3, "n_init": 2, "random_state": 0, "anneal": 3, "max_iter": 12}

pytestmark = pytest.mark.filterwarnings("ignore:not converged")


def dask_array(X=X):
    return da.from_array(X, chunks=(SIZES, X.shape[1]))


@pytest.fixture(scope="module")
def local():
    return GaussianSparseCoding(**FRESH).fit(PARTS)


@pytest.fixture(scope="module")
def cluster():
    settings = {"distributed.comm.timeouts.connect": "5s", "distributed.admin.log-format": ""}
    with dask.config.set(settings):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        yield cluster
        with suppress(KeyError):  # dask trips over a worker that a test has just killed
            cluster.close()


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


@pytest.fixture(params=["threads", "cluster"])
def scheduler(request):
    if request.param == "cluster":
        request.getfixturevalue("client")
    return request.param


def assert_same_fit(model, local):
    """Also after iterations that blow up any difference but rounding."""
    np.testing.assert_allclose(model.mixing_, local.mixing_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        [run.log_likelihood for run in model.runs_],
        [run.log_likelihood for run in local.runs_],
        rtol=0,
        atol=1e-10,
    )
    assert [run.n_iter for run in model.runs_] == [run.n_iter for run in local.runs_]


# ---- the same results ----


@pytest.mark.parametrize(("persisted", "n_jobs"), [(False, None), (True, 2)])
def test_the_fit_is_that_of_the_same_blocks_here(scheduler, persisted, n_jobs, local):
    data = dask_array().persist() if persisted else dask_array()
    assert_same_fit(GaussianSparseCoding(n_jobs=n_jobs, **FRESH).fit(data), local)


@pytest.mark.parametrize("n", [1, 9, 70])
def test_sums_are_added_up_in_the_same_order_whatever_the_number_of_chunks(n):
    chunks = da.from_array(X, chunks=(-(-len(X) // n), 5))
    parts = [np.asarray(block) for block in chunks.blocks]
    here, there = (Expectation(open_rows(data), "full", 1.0)(TRUTH) for data in (parts, chunks))
    for name in ("n", "log_likelihood", "counts", "second", "xx", "yx", "y", "yy"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)


@pytest.mark.parametrize("noise", ["diagonal", "full"])
def test_other_models_are_fitted_too(client, noise):
    shared = {**FRESH, "noise": noise, "spike": "soft", "n_slabs": 2, "slab_mean": True}
    model = GaussianSparseCoding(**shared)
    assert_same_fit(model.fit(dask_array()), GaussianSparseCoding(**shared).fit(PARTS))


def test_missing_values_are_missing_there_too(client):
    holed = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    holed[0] = np.nan
    model = GaussianSparseCoding(**FRESH).fit(dask_array(holed))
    expected = GaussianSparseCoding(**FRESH).fit(np.split(holed, np.cumsum(SIZES)[:-1]))
    assert_same_fit(model, expected)
    np.testing.assert_allclose(model.score(dask_array(holed)), expected.score(holed), rtol=1e-12)


def test_transform_and_scores_are_lazy_dask_arrays(scheduler, local):
    data = dask_array()
    latents, scores = local.transform(data), local.score_samples(data)
    assert isinstance(latents, da.Array)
    assert isinstance(scores, da.Array)
    assert latents.chunks == (SIZES, (3,))
    assert scores.chunks == (SIZES,)
    np.testing.assert_allclose(latents.compute(), local.transform(X), atol=1e-12)
    np.testing.assert_allclose(scores.compute(), local.score_samples(X), atol=1e-12)
    np.testing.assert_allclose(local.score(data), local.score(X), rtol=1e-12)
    np.testing.assert_allclose(local.bic(data), local.bic(X), rtol=1e-12)


def test_single_precision_stays_so(local):
    latents = local.transform(dask_array(X.astype(np.float32)))
    assert latents.dtype == latents.compute().dtype == np.float32


def test_batches_are_whole_chunks_in_random_order(local):
    rows = open_rows(dask_array())
    rng = np.random.default_rng(0)
    batches = [batch.shape[0] for batch in rows.batches(600, rng)]
    assert sum(batches) == len(X)
    assert all(size >= 600 for size in batches[:-1])
    model = GaussianSparseCoding(3, batch_size=600, n_init=1, max_iter=3, random_state=0)
    assert model.fit(dask_array()).log_likelihood_ > local.log_likelihood_ - 0.1
    learned = local.__class__(**FRESH).fit(PARTS).partial_fit(dask_array()).mixing_
    np.testing.assert_array_equal(
        learned, GaussianSparseCoding(**FRESH).fit(PARTS).partial_fit(PARTS).mixing_
    )


def test_only_parameters_and_sums_travel(client, monkeypatch):
    """What goes to the cluster and comes back for an E-step does not grow with the data."""
    compute, travelled = DaskRows._computed, []

    def watched(rows, value):
        result = compute(rows, value)
        travelled.append(len(cloudpickle.dumps((dict(value.dask), result))))
        return result

    monkeypatch.setattr(DaskRows, "_computed", watched)
    for n in (400, 40_000):
        data = da.random.default_rng(0).normal(size=(n, 5), chunks=(n // 4, 5)).persist()
        Expectation(open_rows(data))(TRUTH)
    small, large = travelled[:2], travelled[2:]
    assert max(small) < 20_000 < X.nbytes
    np.testing.assert_allclose(large, small, atol=200)  # names and numbers of rows are longer


# ---- what can go wrong there ----


@pytest.mark.parametrize("persisted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_killed_worker_costs_time_and_not_the_result(client, persisted, local):
    data = dask_array().persist() if persisted else dask_array()
    killed = []

    def callback(progress):
        if progress.iteration == 5 and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    model = GaussianSparseCoding(callback=callback, **FRESH).fit(data)
    assert killed[0] not in client.run(os.getpid).values()
    assert_same_fit(model, local)


def refused_in_the_middle(happens, data):
    """A fit during which something happens."""

    def callback(progress):
        if progress.iteration == 3:
            happens()

    model = GaussianSparseCoding(callback=callback, **FRESH)
    with pytest.raises(ConnectionError, match="cluster has disappeared, or lost data") as caught:
        model.fit(data)
    assert not [name for name in vars(model) if name.endswith("_")]
    return caught


@pytest.mark.parametrize("what", ["cluster", "client"])
def test_a_cluster_that_disappears_is_one_clear_error(what):
    """And not quietly replaced by this process."""
    small = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with (
        dask.config.set(scheduler="threads"),  # to which it goes back
        LocalCluster(**small) as cluster,
        Client(cluster) as client,
    ):
        refused_in_the_middle({"cluster": cluster, "client": client}[what].close, dask_array())


def test_blocks_that_nobody_can_make_again_are_one_clear_error(client):
    """Scattered data have no recipe."""
    futures = client.scatter(PARTS)
    data = da.concatenate(
        [
            da.from_delayed(dask.delayed(future), part.shape, part.dtype)
            for future, part in zip(futures, PARTS, strict=True)
        ]
    )
    held = {worker for workers in client.who_has(futures).values() for worker in workers}

    def kill():
        for worker, pid in client.run(os.getpid).items():
            if worker in held:
                os.kill(pid, signal.SIGKILL)

    refused_in_the_middle(kill, data)
    client.wait_for_workers(2)


def test_an_error_of_the_data_keeps_its_own_type(scheduler, local):
    """Infinity is found in the order of the rows, whichever chunk is looked at first."""
    bad = X.copy()
    bad[[1500, 2999]] = np.inf
    with pytest.raises(ValueError, match=r"X contains infinity in row 1500\b"):
        GaussianSparseCoding(**FRESH).fit(dask_array(bad))
    with pytest.raises(ValueError, match=r"X contains infinity in row \d+"):
        local.transform(dask_array(bad)).compute()
    with pytest.raises(ValueError, match=r"X contains infinity in row 2999\b"):
        local.transform(dask_array(bad))[2000:].compute()


def unknown_chunks():
    data = dask_array()
    return data[data[:, 0] > 0]


BAD_ARRAYS = {
    "split features": (
        lambda: da.from_array(X, chunks=(500, 2)),
        ValueError,
        r"split its features, into \(2, 2, 1\).*X.rechunk\({1: -1}\)",
    ),
    "unknown chunks": (unknown_chunks, ValueError, r"unknown sizes; call X.compute_chunk_sizes"),
    "empty chunk": (
        lambda: da.from_array(X, chunks=((1000, 0, 2000), 5)),
        ValueError,
        "chunk 1 of X is empty; leave out chunks without rows",
    ),
    "one dimension": (lambda: dask_array()[:, 0], ValueError, r"two dimensions, got shape \(3000,"),
    "complex": (lambda: dask_array() + 1j, ValueError, "X must hold real numbers, got complex128"),
    "no array": (lambda: dask.delayed(X), TypeError, "must be a Dask array, got Delayed"),
    "constant": (lambda: da.ones((20, 3), chunks=(5, 3)), ValueError, "X is constant"),
    "no rows": (lambda: dask_array()[:0], ValueError, "chunk 0 of X is empty"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case):
    data, error, message = BAD_ARRAYS[case]
    model = GaussianSparseCoding(2)
    with pytest.raises(error, match=message):
        model.fit(data())
    assert not [name for name in vars(model) if name.endswith("_")]


def test_a_posterior_travels_without_its_tables():
    step = EStep(TRUTH, None, Inference)
    expected = step.statistics(X).xx  # now the tables are there
    copy = pickle.loads(pickle.dumps(step))
    np.testing.assert_array_equal(copy.statistics(X).xx, expected)
    assert len(pickle.dumps(step)) == len(pickle.dumps(EStep(TRUTH, None, Inference)))
