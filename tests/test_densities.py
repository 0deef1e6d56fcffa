"""The compiled sums over one-dimensional mixture densities, against the formulas written out."""

import numpy as np
import pytest
from scipy.special import logsumexp

from spikeslab import _kernel


def problem(n_runs: int, n_sources: int, n_points: int, n_components: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    shape = (n_runs, n_sources, n_components)
    return (
        rng.laplace(size=(n_sources, n_points)),
        rng.standard_normal((n_runs, n_sources, n_sources)),
        rng.dirichlet(np.ones(n_components), shape[:2]),
        rng.standard_normal(shape),
        rng.uniform(0.05, 2, shape),
    )


def written_out(signals, unmixing, weights, means, variances):
    u = unmixing @ signals
    delta = u[..., None] - means[:, :, None]
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)[:, :, None]
    logs = log_weights - (delta**2 / variances[:, :, None] + np.log(variances)[:, :, None]) / 2
    logs -= np.log(2 * np.pi) / 2
    total = logsumexp(logs, axis=3)
    r = np.exp(logs - total[..., None])
    slopes = delta / variances[:, :, None]
    psi = (r * slopes).sum(axis=3)
    bend = (r * (1 / variances[:, :, None] - (slopes - psi[..., None]) ** 2)).sum(axis=3)
    sums = np.stack([(r * u[..., None] ** power).sum(axis=2) for power in range(3)])
    return total.sum(axis=(1, 2)), sums, psi @ u.transpose(0, 2, 1), bend.sum(axis=2)


@pytest.fixture(params=_kernel.available())
def every_kernel(request):
    before = _kernel.chosen()
    _kernel.use(request.param)
    yield
    _kernel.use(before)


@pytest.mark.usefixtures("every_kernel")
@pytest.mark.parametrize("n_components", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("n_sources", "n_points"), [(1, 1), (2, 7), (5, 128), (6, 1003)])
def test_sums_are_those_of_the_formulas(n_components, n_sources, n_points):
    arguments = problem(3, n_sources, n_points, n_components)
    for got, wanted in zip(_kernel.sum_densities(*arguments), written_out(*arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.usefixtures("every_kernel")
def test_components_of_weight_zero_and_points_far_out():
    signals, unmixing, weights, means, variances = problem(1, 2, 50, 3)
    weights[0, 0] = 0.0, 0.25, 0.75
    signals[:, ::7] *= 1e8
    arguments = signals, unmixing, weights, means, variances
    for got, wanted in zip(_kernel.sum_densities(*arguments), written_out(*arguments), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())


def test_rows_of_a_larger_array_are_signals_too():
    signals, *rest = problem(2, 3, 400, 3)
    wide = np.zeros((3, 1000))
    wide[:, 100:500] = signals
    for got, wanted in zip(
        _kernel.sum_densities(wide[:, 100:500], *rest),
        _kernel.sum_densities(signals, *rest),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, B, w, m, v: (s[:-1], B, w, m, v), "sources x sources"),
        (lambda s, B, w, m, v: (s, B, w[:1], m, v), "runs x sources"),
        (lambda s, B, w, m, v: (s[:, ::2], B, w, m, v), "contiguous"),
        (lambda s, B, w, m, v: (s, B, *(np.repeat(a, 3, axis=2) for a in (w, m, v))), "at most 8"),
    ],
)
def test_wrong_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        _kernel.sum_densities(*change(*problem(2, 3, 40, 3)))
