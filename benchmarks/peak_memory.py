"""By how much a fit raises the peak memory of its process, in units of the data's size.

As a program (number of points, number of features) it fits and prints that. It needs a process of
its own, because a peak never goes down, and Linux, whose /proc tells it (getrusage would count the
parent's memory from before the program was replaced).
"""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

from measure import Settings, Table, Target
from spikeslab import GaussianSparseCoding

STATUS = Path("/proc/self/status")


def memory(settings: Settings) -> Table:
    n_points, n_features = (200_000 if settings.quick else 1_000_000), 8
    table = Table(f"f. Memory of a fit, H = D = {n_features}, N = {n_points}, float64")
    if not STATUS.exists():
        table.note("Skipped: it is read from Linux's /proc.")
        return table
    command = [sys.executable, __file__, str(n_points), str(n_features)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    what = "`GaussianSparseCoding.fit` raises the peak by, in sizes of the data"
    table.add(what, float(out), Target(1.5))
    return table


def resident(which: str) -> int:
    """Return bytes in memory: VmRSS is now, VmHWM at the peak."""
    found = re.search(rf"{which}:\s*(\d+) kB", STATUS.read_text())
    if found is None:
        raise RuntimeError(f"{STATUS} does not tell {which}")
    return 1024 * int(found.group(1))


def main(n_points: int, n_features: int) -> None:
    warnings.simplefilter("ignore")  # three iterations are not enough to converge
    model = GaussianSparseCoding(n_features, max_iter=3, n_init=1, random_state=0)
    rng = np.random.default_rng(0)
    model.fit(rng.standard_normal((500, n_features)))  # code and libraries are loaded now
    X = np.empty((n_points, n_features))
    for rows in np.array_split(X, max(1, n_points // 1000)):  # nothing else that raises the peak
        rows[:] = rng.laplace(size=rows.shape)
    before = resident("VmRSS")
    model.fit(X)
    print((resident("VmHWM") - before) / X.nbytes)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
