"""Online EM: Statistics that forget, for data that come in batches.

O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for latent data models",
JRSS B 2009. Nothing here sees the data: a batch is a function from parameters to Statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from .checkpoint import Journal
from .m_step import Model, m_step
from .maximise import Progress, Result
from .noise import NOISES
from .parameters import Parameters
from .statistics import Statistics

_DECAY = 0.6  # of the step size: between 1/2 and 1, small for parameters that move far
_PATIENCE = 3  # passes without a gain that count as convergence

Batch = Callable[[Parameters], Statistics]


class Online(NamedTuple):
    """Parameters, the running mean of the Statistics they come from, and how many points those
    have seen.
    """

    parameters: Parameters
    statistics: Statistics  # of one point
    n_seen: float


class Pass(NamedTuple):
    """How far a pass over all data has come: all that its next batch depends on."""

    state: Online
    n_before: float  # points seen before the pass
    quiet: int = 0  # passes in a row before it that were no better than the best
    n_batches: int = 0  # of this pass so far
    total: float = 0.0  # their log-likelihood


def begin(parameters: Parameters, n_seen: float = 0.0) -> Online:
    """Before the first batch: the Statistics are what the parameters expect."""
    return Online(parameters, expected_statistics(parameters), n_seen)


def step(
    model: Model,
    state: Online,
    batch: Batch,
    noise_floor: float,
    n_points: float = np.inf,
    expand: bool = True,
) -> tuple[Online, float]:
    """Learn from one batch. Returns also its log-likelihood, all points together, before that.

    Batch t = 0, 1, ... enters the running mean with weight (t + 2)^-0.6, but never with less than
    its share of all data, `n_points`: then every point of several passes counts alike.
    """
    new = batch(state.parameters)
    if not new.n:  # nothing was observed
        return state, 0.0
    weight = max((state.n_seen / new.n + 2) ** -_DECAY, min(new.n / n_points, 1.0))
    mean = state.statistics.weighted(1 - weight) + new.weighted(weight / new.n)
    parameters = m_step(model, state.parameters, mean, noise_floor, expand)
    return Online(parameters, mean, state.n_seen + new.n), new.log_likelihood


def expected_statistics(parameters: Parameters) -> Statistics:
    """The Statistics of one point from the model itself, whose M-step changes nothing."""
    W, c, prior = parameters.mixing, parameters.offset, parameters.prior
    first = prior.weights * prior.means
    second = prior.weights * (prior.variances + prior.means**2)
    x = prior.mean
    xx = np.diag(prior.variance) + np.outer(x, x)
    y, product = parameters.mean, NOISES[parameters.noise.kind].product
    root = np.linalg.cholesky(parameters.covariance)
    yy = product(root, root) + product(y[:, None], y[:, None])
    yx = np.outer(c, x) + W @ xx
    return Statistics(1.0, 0.0, prior.weights, first, second, x, xx, yx, y, yy)


def maximise_online(
    batches: Callable[[int], Iterable[Batch]],
    whole: Batch,
    start: Parameters,
    model: Model,
    *,
    noise_floor: float,
    n_points: float,
    n_seen: float = 0.0,
    expand: bool = True,
    max_iter: int = 1000,
    tol: float = 1e-7,
    callback: Callable[[Progress], object] | None = None,
    run: int = 0,
    journal: Journal | None = None,
) -> Result:
    """Several passes of online EM. The parameters after the best pass are kept.

    Parameters
    ----------
    batches : callable
        Called with the number of a pass, from 1; the batches of all data.
    whole : callable
        From parameters to the Statistics of all data: called once, to score what was found.
    start : Parameters
    model : Model
        What is learned.
    noise_floor : float
        Least noise variance (or eigenvalue of the noise covariance).
    n_points : float
        Of all data.
    n_seen : float
        Points that the start was learned from.
    expand : bool
        Learn the slabs' scale, too (PX-EM).
    max_iter : int
        Passes.
    tol : float
        Stop when three passes in a row are not better than the best before by this per point.
    callback : callable, optional
        Called with a Progress after every pass; returning True ends the run.
    run : int
        Number of this run, for the callback.
    journal : Journal, optional
        Where the run is kept between batches, and gone on with, bit for bit.

    Returns
    -------
    Result
        Its history has the mean log-likelihood of every pass, in which the parameters move, and at
        last that of the parameters which are kept. Also after Ctrl-C.
    """
    saved = None if journal is None else journal.saved
    if saved is not None and "quiet" not in saved:  # finished
        return Result.from_arrays(saved)
    if saved is not None:
        at, result = _restore(saved)
    else:
        start = start.as_read()
        at, result = Pass(begin(start, n_seen), n_seen), Result(start, -np.inf)
    try:
        while result.n_iter < max_iter:
            begun, seen_then = perf_counter(), at.state.n_seen
            for batch in islice(batches(result.n_iter + 1), at.n_batches, None):
                state, gained = step(model, at.state, batch, noise_floor, n_points, expand)
                at = at._replace(
                    state=state._replace(parameters=state.parameters.as_read()),
                    n_batches=at.n_batches + 1,
                    total=at.total + gained,
                )
                if journal is not None and journal.due:
                    journal.keep(_arrays(at, result))
            rate = (at.state.n_seen - seen_then) / (perf_counter() - begun)
            mean = at.total / (at.state.n_seen - at.n_before)
            quiet = 0 if mean > result.log_likelihood + tol else at.quiet + 1
            at = Pass(at.state, at.state.n_seen, quiet)
            if mean > result.log_likelihood:
                result.parameters, result.log_likelihood = at.state.parameters, mean
            result.history.append(mean)
            result.n_iter += 1
            if callback is not None and callback(
                Progress(run, result.n_iter, mean, model.canonical(at.state.parameters), rate)
            ):
                result.reason = "callback"
                break
            if quiet == _PATIENCE:
                result.converged, result.reason = True, "converged"
                break
        statistics = whole(result.parameters)
        result.log_likelihood = statistics.log_likelihood / statistics.n
        result.history.append(result.log_likelihood)
    except KeyboardInterrupt:
        result.reason = "interrupted"
    result.parameters = model.canonical(result.parameters)
    if journal is not None and result.reason != "interrupted":
        journal.keep(result.arrays())
    return result


_NUMBERS = ("n_before", "quiet", "n_batches", "total")  # of a pass


def _arrays(at: Pass, result: Result) -> dict[str, np.ndarray]:
    """All that further batches depend on."""
    now = {f"now_{name}": array for name, array in at.state.parameters.arrays().items()}
    statistics = at.state.statistics
    mean = {f"mean_{f.name}": getattr(statistics, f.name) for f in fields(Statistics)}
    numbers = {name: getattr(at, name) for name in _NUMBERS} | {"n_seen": at.state.n_seen}
    return result.arrays() | now | mean | {n: np.array(value) for n, value in numbers.items()}


def _restore(saved: dict[str, np.ndarray]) -> tuple[Pass, Result]:
    now = {name[4:]: array for name, array in saved.items() if name.startswith("now_")}
    parts: dict[str, Any] = {f.name: saved[f"mean_{f.name}"] for f in fields(Statistics)}
    parts |= {name: float(parts[name]) for name in ("n", "log_likelihood")}
    state = Online(Parameters.from_arrays(now), Statistics(**parts), float(saved["n_seen"]))
    numbers = {name: saved[name].item() for name in _NUMBERS}
    result = Result(Parameters.from_arrays(saved), -np.inf, saved["history"].tolist())
    if result.history:
        result.n_iter, result.log_likelihood = len(result.history), max(result.history)
    return Pass(state, **numbers), result
