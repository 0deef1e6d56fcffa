"""Runs trials in processes, keeps what is finished, and foresees the end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from .trials import Store, Trial


@dataclass(frozen=True)
class TrialProgress:
    """What a callback is told before the first trial and after each.

    Attributes
    ----------
    finished, total : int
        Trials, those of earlier runs included.
    seconds_left : float
        An estimate.
    """

    finished: int
    total: int
    seconds_left: float


def run_trials(
    trials: Sequence[Trial],
    store: Store,
    *,
    n_jobs: int = 1,
    callback: Callable[[TrialProgress], object] | None = None,
) -> None:
    """Run the trials that the store does not have, in `n_jobs` processes of one thread each.

    However it ends, finished trials stay in the store, and no process stays behind.
    """
    missing = [trial for trial in trials if trial not in store]
    clock = _Clock(missing, n_jobs)

    def report() -> None:
        if callback is not None:
            left = len(clock.left)
            callback(TrialProgress(len(trials) - left, len(trials), clock.seconds_left()))

    report()
    if not missing:
        return
    context = get_context("spawn")
    # Workers end when the other end of this pipe closes: also when this process is killed.
    lifeline, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(n_jobs, len(missing)), context, _begin, (lifeline,))
    try:
        with _no_interrupt():  # nor in the workers that begin here: Ctrl-C is for the parent
            futures = {
                pool.submit(_perform, trial.experiment, dict(trial.settings)): trial
                for trial in missing
            }
        for future in as_completed(futures):
            trial = futures.pop(future)
            outcome, seconds = future.result()
            store.add(trial, outcome)
            clock.note(trial, seconds)
            report()
    except BrokenProcessPool:
        raise MemoryError(
            "a process that ran trials was ended from outside, perhaps for want of memory; run "
            "again with fewer jobs: finished trials are kept"
        ) from None
    except BaseException:
        ours.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()
        lifeline.close()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the end of this, and never comes in processes that begin in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Clock:
    """Foresees how long trials take: as long as others of their kind, or else as their guess and
    the speed so far say.
    """

    def __init__(self, trials: Sequence[Trial], n_jobs: int) -> None:
        self.left = {trial.key: trial for trial in trials}
        self._n_jobs = n_jobs
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._guessed = self._took = 0.0

    def note(self, trial: Trial, seconds: float) -> None:
        del self.left[trial.key]
        self._seen[trial.kind].append(seconds)
        self._guessed += trial.seconds
        self._took += seconds

    def seconds_left(self) -> float:
        speed = self._took / self._guessed if self._guessed else 1.0
        means = {kind: sum(seen) / len(seen) for kind, seen in self._seen.items()}
        work = sum(means.get(trial.kind, speed * trial.seconds) for trial in self.left.values())
        return work / min(self._n_jobs, max(len(self.left), 1))


# ---- in the workers ----


def _begin(lifeline: Connection) -> None:
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()


def _end_with_parent(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()
    except EOFError:
        os._exit(1)


def _perform(experiment: str, settings: dict) -> tuple[str, float]:
    """The outcome of a trial as JSON, and how many seconds it took."""
    run = import_module(f".{experiment}", __package__).run
    begin = time.perf_counter()
    with threadpool_limits(1):
        outcome = run(settings)
    return json.dumps(outcome, allow_nan=False), time.perf_counter() - begin
