"""Run as a program: by how much a fit of N points raises the peak memory of its process, in units of the data's size.

It needs a process of its own, because a peak never goes down, and Linux, whose /proc tells it (getrusage would count the
parent's memory from before the program was replaced).
"""

import re
import sys
from pathlib import Path

import numpy as np

import spikeslab
from spikeslab.initialise import random_start

STATUS = Path("/proc/self/status")


def resident(which: str) -> int:
    """VmRSS: now; VmHWM: at its peak. In bytes."""
    return 1024 * int(re.search(rf"{which}:\s*(\d+) kB", STATUS.read_text()).group(1))


def fit(X: np.ndarray) -> str:
    estimator = getattr(spikeslab, "GaussianSparseCoding", None)
    if estimator is not None:
        estimator(n_components=X.shape[1], max_iter=3, n_init=1, tol=1.0).fit(X)
        return "GaussianSparseCoding.fit"
    covariance = np.eye(X.shape[1])
    start = random_start(spikeslab.Model(), covariance, X.shape[1], np.random.default_rng(0))
    spikeslab.maximise(spikeslab.Expectation(X), start, max_iter=3)
    return "maximise(Expectation(X))"


def main(n_points: int, n_features: int) -> None:
    fit(
        np.random.default_rng(1).standard_normal((500, n_features))
    )  # code and libraries are loaded now
    rng = np.random.default_rng(0)
    X = np.empty((n_points, n_features))
    for rows in np.array_split(
        X, max(1, n_points // 1000)
    ):  # no temporary that would raise the peak
        rows[:] = rng.laplace(size=rows.shape)
    before = resident("VmRSS")
    what = fit(X)
    print((resident("VmHWM") - before) / X.nbytes, what, sep="\t")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
