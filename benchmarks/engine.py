"""Speed of the exact engine: `python benchmarks/engine.py > benchmarks/results/engine.md`.

Prints Markdown tables of ratios measured in one run with the target beside each number. Everything
runs on one thread, except where two are compared with one. Competitors take turns and the best time
of each counts.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from convergence import e_steps_needed
from fit_speed import whole_fit
from kernel_speed import against_numpy, sizes, three_components
from machine import machine
from measure import Settings, Table
from peak_memory import memory
from problems import SPEECH

SECTIONS: dict[str, Callable[[Settings], Table]] = {
    "a": against_numpy,
    "b": three_components,
    "c": sizes,
    "d": whole_fit,
    "e": e_steps_needed,
    "f": memory,
}


def others_seconds() -> float | None:
    """Return the CPU time of all other programs since the machine started, on Linux."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, path.read_text().split()[1:11])
    total = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return total - sum(os.times()[:4])


def report(settings: Settings, sections: str) -> Iterator[str]:
    yield "# Results of benchmarks/engine.py" + (" --quick" if settings.quick else "") + "\n"
    yield machine() + "\n"
    yield "All of one run, competitors taking turns, best of the repeats, BLAS on one thread.\n"
    for name in sections:
        begun, others = time.perf_counter(), others_seconds()
        table = SECTIONS[name](settings)
        if others is not None:
            available_seconds = (time.perf_counter() - begun) * (os.cpu_count() or 1)
            share = max(0.0, 100 * ((others_seconds() or 0.0) - others) / available_seconds)
            table.note(f"Other programs took {share:.0f} % of the cores meanwhile.")
        yield table.markdown()


def main() -> None:
    every = "".join(SECTIONS)
    parser = argparse.ArgumentParser(description="Speed of the exact engine, as ratios.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and seeds: a minute")
    parser.add_argument("--only", default=every, metavar="LETTERS", help="sections, such as ac")
    parser.add_argument(
        "--speech",
        type=Path,
        default=SPEECH,
        metavar="DIR",
        help="recordings for speech4 (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if not set(arguments.only) <= set(every):
        parser.error(f"--only takes letters out of {every}, got {arguments.only}")
    for part in report(Settings(arguments.quick, arguments.speech), arguments.only):
        print(part, flush=True)


if __name__ == "__main__":
    main()
