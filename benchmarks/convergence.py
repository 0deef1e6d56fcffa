"""How many E-steps a method takes to come within 1e-6 nats per point of its own limit."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from measure import Settings, Table, Target
from problems import LANGUAGES, data_sets
from spikeslab import Expectation, Model, Parameters, Statistics, maximise
from spikeslab.initialise import random_start
from spikeslab.maximise import Method

NEAR = 1e-6
PAPER = Model(learn=frozenset(("components", "prior", "noise")))  # no offset: data are centred
METHODS: tuple[Method, ...] = ("quasi-newton", "em", "px")


class Run(NamedTuple):
    evaluations: float  # to within NEAR of the limit; infinite if the run ended before
    limit: float  # nats per point


class Recorder:
    """An E-step that notes the log-likelihood per point of every evaluation."""

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation
        self.history: list[float] = []

    def __call__(self, parameters: Parameters) -> Statistics:
        statistics = self._expectation(parameters)
        self.history.append(statistics.log_likelihood / statistics.n)
        return statistics


def run(method: Method, X: NDArray[np.float64], seed: int, most: int) -> Run:
    """Run a method from the paper's start for at most so many iterations.

    Its limit is the best of the run and of a long quasi-Newton run from its end.
    """
    X = X - X.mean(axis=0)
    covariance = np.cov(X.T, bias=True)
    floor = 1e-4 * covariance.trace() / len(covariance)
    start = random_start(PAPER, covariance, X.shape[1], np.random.default_rng(seed))
    expectation = Expectation(X)
    recorder = Recorder(expectation)
    tol = 1e-13 if method == "quasi-newton" else -np.inf
    result = maximise(
        recorder, start, PAPER, method=method, noise_floor=floor, max_iter=most, tol=tol
    )
    onward = maximise(
        expectation, result.parameters, PAPER, noise_floor=floor, max_iter=3000, tol=1e-13
    )
    history = np.array(recorder.history)
    limit = max(np.nanmax(history), onward.log_likelihood)
    near = np.flatnonzero(history >= limit - NEAR)
    return Run(near[0] + 1.0 if len(near) else np.inf, limit)


def e_steps_needed(settings: Settings) -> Table:
    seeds, most = (3, 3000) if settings.quick else (12, 10_000)
    table = Table(
        f"e. E-steps to within {NEAR:g} nats per point of the run's own limit, "
        f"N = 500, {seeds} seeds"
    )
    sets = data_sets(settings.speech)
    ratios, capped, worse, better = [], [], 0, 0
    for name, draw in sets.items():
        runs: dict[str, list[Run]] = {method: [] for method in METHODS}
        for seed in range(seeds):
            X = draw(np.random.default_rng(1000 + seed), 500)
            for method in METHODS:
                runs[method].append(run(method, X, seed, most))
        # A run that was never near needed more than `most`, a quasi-Newton run counts as infinite.
        needed = {m: np.array([r.evaluations for r in rs]) for m, rs in runs.items()}
        for method, counts in needed.items():
            late = int((counts > most).sum())
            if late:
                capped.append(f"{late} of {method} on {name}")
            if method != "quasi-newton":
                np.minimum(counts, most, out=counts)
        pairs = zip(runs["quasi-newton"], runs["em"], strict=True)
        gaps = np.array([quasi.limit - em.limit for quasi, em in pairs])
        worse, better = worse + int((gaps < -1e-3).sum()), better + int((gaps > 1e-3).sum())
        ratios.append(needed["quasi-newton"] / needed["em"])
        ours, em, px = (float(np.median(needed[method])) for method in METHODS)
        detail = f"{ours:.0f} over {em:.0f}"
        table.add(f"{name}: quasi-Newton over EM, medians", ours / em, Target(0.2), detail=detail)
        detail = f"{ours:.0f} over {px:.0f}"
        table.add(f"{name}: quasi-Newton over PX-EM, medians", ours / px, detail=detail)
    overall = float(np.median(np.concatenate(ratios)))
    table.add("all: quasi-Newton over EM, median of the pairs", overall, Target(0.2))
    table.note(
        "The limit is the best of the run and of a long quasi-Newton run from its end. Runs that "
        f"were not near it after {most} iterations, EM and PX-EM counted as {most}: "
        f"{', '.join(capped) or 'none'}. Of {seeds * len(sets)} pairs from the same start, "
        f"quasi-Newton ended in a better optimum than EM {better} times, in a worse one {worse} "
        "times (by more than 1e-3 nats per point)."
    )
    if "speech4" not in sets:
        table.note(
            "speech4 was skipped: there are no WAV files of all of "
            f"{', '.join(LANGUAGES)} under {settings.speech} "
            "(Debian packages asterisk-core-sounds-*-wav)."
        )
    return table
