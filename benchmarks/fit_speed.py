"""Where the time of a whole fit goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

import spikeslab._kernel
import spikeslab.posterior
from measure import Settings, Table, Target
from problems import mixture
from spikeslab import Expectation, Model, maximise
from spikeslab.initialise import random_start
from spikeslab.maximise import Method


class Stopwatch:
    """Adds up the time spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable) -> Callable:
        def call(*arguments):
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return call


@contextmanager
def timed_kernel(stopwatch: Stopwatch) -> Iterator[None]:
    """Time everything that is called in the compiled module while this lasts."""
    with ExitStack() as stack:

        def replace(owner: object, name: str) -> None:
            stack.enter_context(patch.object(owner, name, stopwatch.timed(getattr(owner, name))))

        for name, kind in vars(spikeslab._kernel).items():
            if isinstance(kind, type):
                for method, function in vars(kind).items():
                    if callable(function) and not method.startswith("_"):
                        replace(kind, method)
                if hasattr(spikeslab.posterior, name):  # its constructor
                    replace(spikeslab.posterior, name)
        yield


class Shares(NamedTuple):
    """Microseconds per E-step of a fit."""

    total: float
    e_step: float  # in `statistics_of`
    kernel: float  # in the compiled module


def shares(n_latents: int, method: Method, iterations: int, repeats: int) -> Shares:
    """Fit a few times and return the fastest."""
    parameters = mixture(n_latents)
    X, _ = parameters.sample(500, np.random.default_rng(0))
    expectation, model = Expectation(X), Model()
    start = random_start(model, np.cov(X.T, bias=True), n_latents, np.random.default_rng(0))
    fits = []
    for _ in range(repeats):
        kernel, e_steps = Stopwatch(), Stopwatch()
        timed = e_steps.timed(expectation)
        with timed_kernel(kernel):
            begun = time.perf_counter()
            result = maximise(timed, start, model, method=method, tol=-np.inf, max_iter=iterations)
            total = time.perf_counter() - begun
        scale = 1e6 / result.n_evaluations
        fits.append(Shares(total * scale, e_steps.seconds * scale, kernel.seconds * scale))
    return min(fits)


def whole_fit(settings: Settings) -> Table:
    table = Table("d. Whole fits, H = D, N = 500, 300 iterations of plain EM")
    repeats = 3 if settings.quick else 20
    big = shares(10, "em", 300, repeats)
    share = 100 * big.e_step / big.total
    detail = f"{big.e_step:.0f} of {big.total:.0f} us per iteration"
    table.add("H = 10: share of the E-step", share, Target(80, " %", True), " %", detail)
    share = 100 * big.kernel / big.total
    table.add("H = 10: share of the compiled kernel", share, unit=" %")

    small, limit = shares(4, "em", 300, 2 * repeats), Target(60, " us")
    detail = f"of {small.total:.0f} us per iteration"
    outside = small.total - small.e_step
    table.add("H = 4: outside the E-step", outside, limit, " us", detail)
    outside = small.total - small.kernel
    table.add("H = 4: outside the compiled kernel", outside, limit, " us", detail)

    quasi = shares(4, "quasi-newton", 40, 4 * repeats)
    detail = f"of {quasi.total:.0f} us per E-step"
    what = "H = 4, 40 iterations of quasi-Newton EM"
    outside = quasi.total - quasi.kernel
    table.add(f"{what}: outside the compiled kernel", outside, None, " us", detail)
    table.add(f"{what}: time per E-step over that of plain EM", quasi.total / small.total)
    return table
