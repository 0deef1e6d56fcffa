"""Data larger than memory, and two workers:
`python benchmarks/scale.py > benchmarks/results/scale.md`.

Prints Markdown tables of ratios measured in one run with the target beside each number. The data of
the first table are written to a file in --folder, which must have room for them (1.3 GB at the
default size), and stay in the system's cache.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from engine import machine
from measure import Table, Target, best_times
from peak_memory import resident
from problems import mixture
from spikeslab import Expectation, GaussianSparseCoding, Parameters
from spikeslab.blocks import open_rows
from spikeslab.cluster import DaskRows
from spikeslab.posterior import Inference
from spikeslab.statistics import EStep

HERE = Path(__file__).parent
N_FEATURES, N_LATENTS = 16, 8
GIGABYTE = 1e9


def sparse_rows(n_points: int, n_features: int, n_latents: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).standard_normal((n_latents, n_features))
    sources = rng.standard_normal((n_points, n_latents)) * (rng.random((n_points, n_latents)) < 0.2)
    return sources @ mixing + 0.3 * rng.standard_normal((n_points, n_features))


def write_data(path: Path, n_points: int) -> None:
    data = np.lib.format.open_memmap(path, "w+", np.float64, (n_points, N_FEATURES))
    for number, start in enumerate(range(0, n_points, 100_000)):
        rows = data[start : start + 100_000]
        rows[:] = sparse_rows(len(rows), N_FEATURES, N_LATENTS, number)
    data.flush()


def fitted(X: np.ndarray, **arguments) -> tuple[GaussianSparseCoding, float]:
    """A short fit, and its points per second in an iteration, the best of all."""
    rates = []
    model = GaussianSparseCoding(
        N_LATENTS,
        n_init=1,
        random_state=0,
        callback=lambda progress: rates.append(progress.points_per_second),
        **arguments,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few iterations are not enough to converge
        model.fit(X)
    return model, max(rates[1:])


def memory_map(n_points: int, folder: Path) -> Table:
    size = n_points * N_FEATURES * 8 / GIGABYTE
    table = Table(
        f"a. Memory map, N = {n_points}, D = {N_FEATURES}, H = {N_LATENTS}: {size:.2f} GB"
    )
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "X.npy"
        write_data(path, n_points)
        for what, arguments in (("fit", ["0"]), ("fit in batches of 10000", ["10000"])):
            command = [sys.executable, __file__, "--alone", str(path), *arguments]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            peak, raised, seconds, rate = map(float, out.split())
            detail = f"{raised:.2f} GB above the start; {seconds:.0f} s, {rate / 1e6:.2f} million/s"
            table.add(f"peak memory of the {what}", peak, Target(1.0, " GB"), " GB", detail)
        mapped, loaded = np.load(path, mmap_mode="r"), np.load(path)
        found, _ = fitted(loaded[:5000], max_iter=20)
        learned = found.parameters_
        steps = {
            "mapped": Expectation(open_rows(mapped), shift=learned.offset),
            "loaded": Expectation(loaded, shift=learned.offset),
        }
        centred = learned.shifted(-learned.offset)
        best = best_times({name: _call(step, centred) for name, step in steps.items()}, 20.0)
        table.add(
            "points per second of an E-step, mapped over loaded",
            best["loaded"] / best["mapped"],
            Target(0.8, at_least=True),
            detail=f"{n_points / best['mapped'] / 1e6:.2f} million/s",
        )
    return table


def _call(step: Expectation, parameters: Parameters) -> Callable[[], object]:
    return lambda: step(parameters)


def alone(path: str, batch_size: int) -> None:
    """Fit a file in a process of its own, and print what that took."""
    GaussianSparseCoding(2, n_init=1, max_iter=3).fit([sparse_rows(100, 3, 2, 0)])  # loads code
    X = np.load(path, mmap_mode="r")
    before, begun = resident("VmRSS"), time.perf_counter()
    arguments = {"batch_size": batch_size, "max_iter": 2} if batch_size else {"max_iter": 4}
    _, rate = fitted(X, **arguments)
    seconds, peak = time.perf_counter() - begun, resident("VmHWM")
    print(peak / GIGABYTE, (peak - before) / GIGABYTE, seconds, rate)


def workers(n_points: int) -> Table:
    n_latents, n_chunks = 10, 16
    table = Table(
        f"b. Workers of a LocalCluster, N = {n_points}, H = D = {n_latents}, {n_chunks} chunks"
    )
    parameters = mixture(n_latents)
    X = parameters.sample(n_points, np.random.default_rng(0))[0]
    with ExitStack() as stack:
        clients = []
        for n_workers in (1, 2):
            cluster = LocalCluster(
                n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
            )
            stack.enter_context(cluster)
            clients.append(stack.enter_context(Client(cluster, set_as_default=False)))
        best = best_times(
            {
                "here": _call(Expectation(X), parameters),
                "one": _call(_spread(X, n_chunks, clients[0]), parameters),
                "two": _call(_spread(X, n_chunks, clients[1]), parameters),
            },
            30.0,
        )
        few = X[: 8 * n_chunks]
        idle = best_times(
            {
                "one": _call(_spread(few, n_chunks, clients[0]), parameters),
                "two": _call(_spread(few, n_chunks, clients[1]), parameters),
            },
            10.0,
        )
    speed_up = best["one"] / best["two"]
    detail = f"{best['one']:.2f} and {best['two']:.2f} s per E-step"
    table.add("two workers, speed-up", speed_up, Target(1.6, at_least=True), detail=detail)
    table.add("one worker over this process, one thread", best["one"] / best["here"])
    for name in ("one", "two"):
        what = f"an iteration of {n_chunks} chunks with hardly any data, {name} worker(s)"
        table.add(what, 1e3 * idle[name], unit=" ms")
    step = EStep(parameters, None, Inference)
    table.note(
        f"In an iteration {len(pickle.dumps(step)) / 1024:.1f} KiB of parameters go to every "
        f"worker, and {len(pickle.dumps(step.statistics(X[:100]))) / 1024:.1f} KiB of statistics "
        f"come out of every chunk; a chunk has {X.nbytes / n_chunks / 2**20:.1f} MiB."
    )
    return table


def _spread(X: np.ndarray, n_chunks: int, client: Client) -> Expectation:
    chunks = (len(X) // n_chunks, X.shape[1])
    return Expectation(DaskRows(client.persist(da.from_array(X, chunks=chunks)), client))


def main() -> None:
    parser = argparse.ArgumentParser(description="Data larger than memory, and two workers.")
    parser.add_argument("--points", type=int, default=10_000_000, metavar="N", help="of table a")
    parser.add_argument("--only", default="ab", metavar="LETTERS", help="sections, such as b")
    parser.add_argument("--folder", type=Path, default=None, metavar="DIR", help="for the file")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        return alone(arguments.alone[0], int(arguments.alone[1]))
    parts = ["# Results of benchmarks/scale.py\n", machine() + "\n"]
    print(*parts, sep="\n", flush=True)
    for name, section in {
        "a": lambda: memory_map(arguments.points, arguments.folder),
        "b": lambda: workers(arguments.points // 10),
    }.items():
        if name in arguments.only:
            parts.append(section().markdown())
            print(parts[-1], flush=True)
    return None


if __name__ == "__main__":
    main()
