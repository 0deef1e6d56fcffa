"""The compiled elimination tree against brute force over all states."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import NamedTuple

import mpmath as mp
import numpy as np
import pytest

import oracles
from spikeslab._kernel import Tree, available, chosen, use


class Problem(NamedTuple):
    A: np.ndarray
    b: np.ndarray  # (N, H)
    prior: tuple[np.ndarray, np.ndarray, np.ndarray]

    def tree(self):
        return Tree(self.A, *self.prior)

    def points(self):
        """b and xhat."""
        mean, _, covariance = self.tree().reference()
        return self.b, mean + (self.b - mean @ self.A) @ covariance

    def log_reference(self, xhat):
        """Log of what the reference state contributes to the evidence."""
        tree = self.tree()
        mean, variance, _ = tree.reference()
        squares = np.einsum("nh,hj,nj->n", xhat, self.A, xhat)
        gap = xhat - mean
        squares += np.divide(gap**2, variance, out=0 * gap, where=variance > 0).sum(axis=1)
        return tree.log_constant + (self.b * xhat).sum(axis=1) - squares / 2


def solve(problem, oracle=oracles.posterior):
    """The oracle's answers for all points, stacked."""
    each = [oracle(problem.A, b, *problem.prior) for b in problem.b]
    return oracles.Posterior(*(np.stack(values) for values in zip(*each, strict=True)))


def take(answers, index):
    return oracles.Posterior(*(values[index] for values in answers))


def draw(rng, n_latents, n_points, prior, n_features=None):
    W = rng.normal(size=(n_features or n_latents + 1, n_latents))
    X = rng.normal(size=(n_points, n_latents)) * rng.integers(2, size=(n_points, n_latents))
    Y = X @ W.T + 0.7 * rng.normal(size=(n_points, len(W)))
    return Problem(2 * W.T @ W, 2 * Y @ W, prior)


def assert_agrees(problem, expected, tolerance=1e-10):
    """Everything that a tree answers about the points, against the oracle's answers."""

    def close(found, wanted):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)

    tree, (b, xhat) = problem.tree(), problem.points()
    log_ratio, mean, probabilities, (counts, first, second), outer = tree.moments(b, xhat, True)
    close(problem.log_reference(xhat) + log_ratio, expected.log_z)
    close(mean, expected.mean)
    close(probabilities, expected.probabilities)
    close(tree.second_moments(b, xhat), expected.outer)
    # Sums over many points may be off by as many times the tolerance.
    n = len(b)
    close(counts / n, expected.probabilities.mean(axis=0))
    close(first / n, expected.first.mean(axis=0))
    close(second / n, expected.second.mean(axis=0))
    close(outer / n, expected.outer.mean(axis=0))
    np.testing.assert_allclose(tree.evidence(b, xhat), log_ratio, rtol=1e-13, atol=1e-13)
    assert tree.moments(b, xhat)[2].shape == (0, *problem.prior[0].shape)


# The means of a hard spike that is not at zero make it a component like any other.
PRIORS = [
    ("hard", "none"), ("hard", "slabs"), ("hard", "all"), ("soft", "none"), ("soft", "all")
]  # fmt: skip
LATENTS = {1: 4, 2: 6, 3: 4, 4: 3, 5: 3}


def make_prior(rng, n_latents, n_components, spike, means):
    prior = oracles.random_prior(rng, n_latents, n_components, spike, means != "none")
    if means == "slabs":
        prior[1][:, 0] = 0
    return prior


@cache
def solved(n_components, spike, means):
    """130 points, only 11 of them different: the oracle is slow. H > D for one of the priors."""
    rng = np.random.default_rng([n_components, *spike.encode(), *means.encode()])
    n_latents = LATENTS[n_components]
    prior = make_prior(rng, n_latents, n_components, spike, means)
    problem = draw(rng, n_latents, 11, prior, n_features=2 if means == "slabs" else None)
    which = rng.integers(11, size=130)
    return problem._replace(b=problem.b[which]), take(solve(problem), which)


@pytest.mark.parametrize("n_points", [1, 7, 130])  # 130 is more than a block
@pytest.mark.parametrize(("spike", "means"), PRIORS)
@pytest.mark.parametrize("n_components", [1, 2, 3, 4, 5])
def test_posterior_is_that_of_brute_force(kernel, n_components, spike, means, n_points):
    problem, expected = solved(n_components, spike, means)
    problem = problem._replace(b=problem.b[:n_points])
    assert_agrees(problem, take(expected, slice(n_points)))


@cache
def solved_few_latents(n_components, n_latents, spike):
    rng = np.random.default_rng([n_components, n_latents])
    prior = make_prior(rng, n_latents, n_components, spike, "none")
    problem = draw(rng, n_latents, 9, prior)
    return problem, solve(problem)


@pytest.mark.parametrize("spike", ["hard", "soft"])
@pytest.mark.parametrize("n_latents", [1, 2, 3])  # within the leaf block, or just above it
@pytest.mark.parametrize("n_components", [2, 3, 4])
def test_trees_smaller_than_the_leaf_block(kernel, n_components, n_latents, spike):
    assert_agrees(*solved_few_latents(n_components, n_latents, spike))


# Weights set to 0 in each latent; the others' then add up to 1, so that some are exactly 1.
DROPPED = {
    "pi 0, 1 and between": (2, [[1], [0], [], []]),
    "pi 0 everywhere": (2, [[1]] * 3),
    "pi 1 everywhere": (2, [[0]] * 3),
    "pi 0 and 1": (2, [[1], [0], [1]]),
    "some of three": (3, [[0], [], [1, 2], [0, 1]]),
    "no spikes": (3, [[0]] * 4),
    "a slab of each": (3, [[1]] * 4),
    "last slab of each": (3, [[2]] * 4),
    "different numbers left": (4, [[], [0], [1, 3], [0, 1, 2]]),
    "one of four in each": (4, [[0], [1], [2], [3]]),
    "third of five": (5, [[2]] * 3),
    "some of five": (5, [[], [4], [1, 2, 3]]),
}


@cache
def solved_without(case, spike, means):
    n_components, dropped = DROPPED[case]
    rng = np.random.default_rng([*case.encode(), *spike.encode(), *means.encode()])
    prior = make_prior(rng, len(dropped), n_components, spike, means)
    for weights, components in zip(prior[0], dropped, strict=True):
        weights[components] = 0
        weights /= weights.sum()
    problem = draw(rng, len(dropped), 7, prior)
    return problem, solve(problem)


@pytest.mark.parametrize(("spike", "means"), PRIORS)
@pytest.mark.parametrize("case", DROPPED)
def test_weights_of_exactly_0_and_1(kernel, case, spike, means):
    problem, expected = solved_without(case, spike, means)
    assert_agrees(problem, expected)
    b, xhat = problem.points()
    probabilities = problem.tree().moments(b, xhat, True)[2]
    assert (probabilities[:, problem.prior[0] == 0] == 0).all()


def test_a_component_without_weight_is_no_state():
    prior = tuple(np.tile(row, (40, 1)) for row in ([1.0, 0.0], [0.0, 0.0], [0.0, 1.0]))
    prior[0][:3] = 0.5
    assert Tree(np.eye(40), *prior).states == 8


@cache
def solved_large(n_latents, n_components, spike, means):
    """Few points, because the oracle takes a second for each."""
    rng = np.random.default_rng([n_latents, n_components])
    prior = make_prior(rng, n_latents, n_components, spike, means)
    problem = draw(rng, n_latents, 2, prior)
    return problem, solve(problem)


@pytest.mark.parametrize(
    ("n_latents", "n_components", "spike", "means"),
    [(14, 2, "hard", "none"), (9, 3, "soft", "all")],
)
def test_trees_cut_into_subtrees(kernel, n_latents, n_components, spike, means):
    assert_agrees(*solved_large(n_latents, n_components, spike, means))


@cache
def solved_blocks(n_latents, n_components, spike, means):
    """Two independent groups of latents, whose posteriors the oracle finds one by one."""
    rng = np.random.default_rng([n_latents, n_components, *spike.encode(), *means.encode()])
    n = n_latents // 2
    groups = []
    for size in (n, n_latents - n):
        prior = make_prior(rng, size, n_components, spike, means)
        groups.append(draw(rng, size, 3, prior))
    A = np.zeros((n_latents, n_latents))
    A[:n, :n], A[n:, n:] = groups[0].A, groups[1].A
    one, two = map(solve, groups)
    prior = tuple(np.concatenate(pair) for pair in zip(*(g.prior for g in groups), strict=True))
    outer = np.zeros((3, n_latents, n_latents))
    outer[:, :n, :n], outer[:, n:, n:] = one.outer, two.outer
    outer[:, :n, n:] = one.mean[:, :, None] * two.mean[:, None, :]
    outer[:, n:, :n] = outer[:, :n, n:].transpose(0, 2, 1)
    joined = (np.concatenate(pair, axis=1) for pair in zip(one[2:-1], two[2:-1], strict=True))
    expected = oracles.Posterior(one.log_z + two.log_z, np.empty(3), *joined, outer)
    # In random order, so that the tree mixes the groups; 1100 points are more than a batch.
    order, which = rng.permutation(n_latents), rng.integers(3, size=1100)
    b = np.concatenate([g.b for g in groups], axis=1)
    problem = Problem(
        A[np.ix_(order, order)],
        np.ascontiguousarray(b[which][:, order]),
        tuple(values[order] for values in prior),
    )
    ordered = [values[:, order] for values in expected[2:-1]]
    expected = oracles.Posterior(*expected[:2], *ordered, outer[:, order][:, :, order])
    return problem, take(expected, which)


@pytest.mark.parametrize(
    ("n_latents", "n_components", "spike", "means"),
    [(14, 2, "hard", "slabs"), (14, 2, "soft", "none"), (9, 3, "hard", "none"),
     (7, 4, "hard", "all"), (6, 5, "soft", "all")],
)  # fmt: skip
def test_independent_groups_of_latents_in_one_cut_tree(
    kernel, n_latents, n_components, spike, means
):
    problem, expected = solved_blocks(n_latents, n_components, spike, means)
    n_points = 1100 if (n_latents, spike) == (14, "hard") else 7
    problem = problem._replace(b=problem.b[:n_points])
    assert_agrees(problem, take(expected, slice(n_points)))


@pytest.mark.slow
@pytest.mark.parametrize(("n_latents", "n_points"), [(20, 150), (24, 2)])
def test_the_largest_trees_agree_with_their_independent_halves(kernel, n_latents, n_points):
    """2^20 and 2^24 states against two trees of half the latents, which do not interact."""
    if kernel == "baseline" and n_latents == 24:
        pytest.skip("minutes")
    rng, half = np.random.default_rng(3), n_latents // 2
    A, b = np.zeros((n_latents, n_latents)), 3 * rng.standard_normal((n_points, n_latents))
    prior = oracles.random_prior(rng, n_latents, 2, spike="hard", with_means=False)
    groups = [slice(0, half), slice(half, None)]
    for group in groups:
        W = rng.standard_normal((half + 2, half))
        A[group, group] = 2 * W.T @ W

    def moments(A, prior, b):
        tree = Tree(A, *prior)
        mean, _, covariance = tree.reference()
        return tree.moments(b, mean + (b - A @ mean) @ covariance, True)

    whole = moments(A, prior, b)
    halves = [moments(A[g, g].copy(), [a[g].copy() for a in prior], b[:, g].copy()) for g in groups]
    np.testing.assert_allclose(whole[0], halves[0][0] + halves[1][0], rtol=1e-11, atol=1e-11)
    for group, (_, mean, probabilities, sums, outer) in zip(groups, halves, strict=True):
        np.testing.assert_allclose(whole[1][:, group], mean, atol=1e-10)
        np.testing.assert_allclose(whole[2][:, group], probabilities, atol=1e-10)
        np.testing.assert_allclose(whole[3][:, group], sums, atol=1e-8)
        np.testing.assert_allclose(whole[4][group, group], outer, atol=1e-8)
    across = halves[0][1].T @ halves[1][1]  # independent given the data
    np.testing.assert_allclose(whole[4][groups[0], groups[1]], across, atol=1e-8)


def far_prior(case):
    """Priors under which a state may be so much better than the reference that 2^1800 is short of
    it: the kernel then looks for the best state first.
    """
    weights = np.array([[0.6, 0.4], [0.3, 0.7], [0.5, 0.5]])
    means = np.zeros((3, 2))
    variances = np.tile([0.0, 1.0], (3, 1))
    match case:
        case "slab mean 30":
            means[:, 1] = 30
        case "slab mean 300":
            means[:, 1] = 300
        case "weight 1e-200":
            weights[:] = [1 - 1e-200, 1e-200]
        case "slabs of one width":  # far from the data their ratio has no bound
            weights = np.array([[0.5, 0.2, 0.3]] * 3)
            means = np.array([[0.0, -1.0, 2.0]] * 3)
            variances = np.array([[0.0, 1.0, 1.0]] * 3)
        case "everything":
            weights = np.array([[0.5, 0.5, 1e-200]] * 3)
            means = np.array([[0.0, 30.0, -300.0]] * 3)
            variances = np.array([[0.0, 1.0, 2.0]] * 3)
    return weights, means, variances


@cache
def solved_far(case):
    rng = np.random.default_rng([*case.encode()])
    problem = draw(rng, 3, 5, far_prior(case))
    # Points near the components, and between them.
    x = [[0, 0, 0], [300, 0, 0], [30, 30, 0], [17, 1, 2], [-40, 150, 9]]
    problem = problem._replace(b=problem.b + x @ problem.A)
    return problem, solve(problem, oracles.posterior_mp)


@pytest.mark.parametrize(
    "case", ["slab mean 30", "slab mean 300", "weight 1e-200", "slabs of one width", "everything"]
)
def test_states_that_are_far_better_than_the_reference(kernel, case):
    assert_agrees(*solved_far(case))


@cache
def solved_precise(n_latents, scale):
    """A near 1e6, as with a noise variance of 1e-6; latents that are off leave probabilities that
    are neither 0 nor 1.
    """
    rng = np.random.default_rng(n_latents)
    weights = np.column_stack([np.full(n_latents, 0.7), np.full(n_latents, 0.3)])
    prior = (weights, np.zeros((n_latents, 2)), np.tile([0.0, 1.0], (n_latents, 1)))
    W = rng.normal(size=(n_latents + 1, n_latents))
    X = rng.normal(size=(4, n_latents)) * rng.integers(2, size=(4, n_latents))
    X[0] = 0
    Y = X @ W.T + 3e-3 * rng.normal(size=(4, len(W)))
    problem = Problem(1e6 * W.T @ W, scale * 1e6 * Y @ W, prior)
    ratio = np.array([log_ratio_mp(problem, b) for b in problem.b])
    return problem, solve(problem, oracles.posterior_mp), ratio


def log_ratio_mp(problem, b):
    """Log evidence less log weight of the reference state, all latents on.

    The oracle's are rounded before one could be taken from the other, and are 1e22 here.
    """
    A, (weights, _, variances) = problem.A, problem.prior
    values = []
    with mp.workdps(60):
        for on in product([0, 1], repeat=len(b)):
            active = np.flatnonzero(on)
            value = mp.fsum(mp.log(weights[h, k]) for h, k in enumerate(on))
            if len(active):
                precision = mp.matrix(A[np.ix_(active, active)].tolist())
                precision += mp.diag([1 / mp.mpf(variances[h, 1]) for h in active])
                pull = mp.matrix(b[active].tolist())
                value += mp.fdot(pull, mp.lu_solve(precision, pull)) / 2
                value -= mp.log(mp.det(precision)) / 2
            values.append(value)
        return float(mp.log(mp.fsum(mp.exp(value - values[-1]) for value in values)))


@pytest.mark.parametrize("scale", [1, 1e3, 1e8])
@pytest.mark.parametrize("n_latents", [2, 3, 4])
def test_precise_data_and_far_out_points(kernel, n_latents, scale):
    problem, expected, expected_ratio = solved_precise(n_latents, scale)
    b, xhat = problem.points()
    log_ratio, mean, probabilities, *_ = problem.tree().moments(b, xhat, True)
    np.testing.assert_allclose(log_ratio, expected_ratio, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(probabilities, expected.probabilities, rtol=0, atol=1e-9)
    np.testing.assert_allclose(mean, expected.mean, rtol=0, atol=1e-9 * np.abs(mean).max())
    log_z = problem.log_reference(xhat) + log_ratio
    np.testing.assert_allclose(log_z, expected.log_z, rtol=1e-9)


@pytest.mark.parametrize(("spike", "means"), PRIORS)
@pytest.mark.parametrize("n_components", [1, 2, 3, 4, 5])
def test_nothing_overflows_however_far_the_points(kernel, n_components, spike, means):
    rng = np.random.default_rng(n_components)
    n_latents = LATENTS[n_components]
    prior = make_prior(rng, n_latents, n_components, spike, means)
    for n_features in (n_latents + 1, max(1, n_latents - 2)):
        W = rng.normal(size=(n_features, n_latents))
        sigma = 1e-3
        Y = sigma * rng.normal(size=(40, n_features)) * np.logspace(0, 8, 40)[:, None]
        problem = Problem(W.T @ W / sigma**2, Y @ W / sigma**2, prior)
        tree, (b, xhat) = problem.tree(), problem.points()
        log_ratio, mean, probabilities, sums, outer = tree.moments(b, xhat, True)
        for values in (log_ratio, mean, probabilities, sums, outer, tree.second_moments(b, xhat)):
            assert np.isfinite(values).all()
        np.testing.assert_allclose(probabilities.sum(axis=2), 1, rtol=1e-12)
        assert np.isfinite(tree.evidence(b, xhat)).all()


def state_components(tree, n_latents):
    """Component of every latent in every state of the tree."""
    components = np.empty((int(tree.states), n_latents), int)
    number = np.arange(len(components))
    for latent, values in tree.digits():
        number, digit = np.divmod(number, len(values))
        components[:, latent] = np.array(values)[digit]
    return components


@pytest.mark.parametrize(
    "problem_and_answers",
    [
        *(pytest.param(lambda k=k, p=p: solved(k, *p), id=f"{k}-{p[0]}-{p[1]}")
          for k in LATENTS for p in PRIORS),
        *(pytest.param(lambda c=c: solved_without(c, "hard", "slabs"), id=c) for c in DROPPED),
    ],
)  # fmt: skip
def test_state_weights_and_their_digits(problem_and_answers):
    problem, expected = problem_and_answers()
    problem = problem._replace(b=problem.b[:4])
    n_latents, n_components = problem.prior[0].shape
    tree, (_, xhat) = problem.tree(), problem.points()
    components = state_components(tree, n_latents)
    number = components @ n_components ** np.arange(n_latents)[::-1]  # of the oracle's states
    wanted = expected.state_log_weights[:4]
    possible = np.flatnonzero(np.isfinite(wanted[0]))
    np.testing.assert_array_equal(np.sort(number), possible)
    log_weights = np.log(2) * tree.log2_state_weights(xhat) + problem.log_reference(xhat)[:, None]
    np.testing.assert_allclose(log_weights, wanted[:, number], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("spike", "means"), PRIORS)
@pytest.mark.parametrize("n_components", [2, 3, 4, 5])
def test_sums_of_two_calls_add_up(kernel, n_components, spike, means):
    problem, _ = solved(n_components, spike, means)
    tree, (b, xhat) = problem.tree(), problem.points()
    whole = tree.moments(b, xhat, True)
    one, two = (tree.moments(b[part], xhat[part], True) for part in (slice(45), slice(45, None)))
    for i in range(3):
        joined = np.concatenate([one[i], two[i]])
        np.testing.assert_allclose(joined, whole[i], rtol=1e-12, atol=1e-13)
    for i in (3, 4):
        np.testing.assert_allclose(one[i] + two[i], whole[i], rtol=1e-12, atol=1e-11)


def spike_and_slab(n_latents):
    return tuple(np.tile(row, (n_latents, 1)) for row in ([0.7, 0.3], [0.0, 0.0], [0.0, 1.0]))


def test_the_largest_tree_and_the_first_that_is_too_large():
    assert Tree(np.eye(24), *spike_and_slab(24)).states == 2**24
    refusal = r"25 latents have (33554432|3\.35544e\+07) states.*2\^24.*ask for fewer latents"
    with pytest.raises(ValueError, match=refusal):
        Tree(np.eye(25), *spike_and_slab(25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda A, w, m, v: (A[:2], w, m, v), "A must be latents x latents"),
        (lambda A, w, m, v: (A, w, m[:, :1], v), "means"),
        (lambda A, w, m, v: (A, 0 * w, m, v), "positive weight"),
        (lambda A, w, m, v: (A, w, m, 0 * v), "zero variance"),
    ],
)
def test_a_tree_of_the_wrong_shape_is_refused(change, message):
    arrays = change(np.eye(3), *spike_and_slab(3))
    with pytest.raises(ValueError, match=message):
        Tree(*map(np.ascontiguousarray, arrays))


def test_points_of_the_wrong_shape_are_refused():
    tree = Tree(np.eye(3), *spike_and_slab(3))
    for b, xhat in [((4, 2), (4, 2)), ((4, 3), (5, 3)), ((4, 3), (4, 2))]:
        for method in (tree.evidence, tree.moments, tree.second_moments):
            with pytest.raises(ValueError, match="points x latents"):
                method(np.zeros(b), np.zeros(xhat))
    with pytest.raises(ValueError, match="points x latents"):
        tree.log2_state_weights(np.zeros((4, 2)))


def test_no_points_have_no_moments(kernel):
    tree, none = Tree(np.eye(3), *spike_and_slab(3)), np.zeros((0, 3))
    log_ratio, mean, probabilities, sums, outer = tree.moments(none, none, True)
    assert (log_ratio.shape, mean.shape, probabilities.shape) == ((0,), (0, 3), (0, 3, 2))
    assert not sums.any()
    assert not outer.any()


# ---- which kernel ----


def test_use_chooses_a_kernel_and_an_empty_name_the_best():
    try:
        for name in available():
            use(name)
            assert chosen() == name
    finally:
        use("")
    assert chosen() == available()[0]
    assert available()[-1] == "baseline"


def test_a_kernel_that_does_not_exist_is_refused_and_the_choice_kept():
    before = chosen()
    with pytest.raises(ValueError, match=r"no kernel 'pdp-11'.*baseline"):
        use("pdp-11")
    assert chosen() == before


def import_with(name):
    code = "import spikeslab._kernel as k; print(k.chosen())"
    environment = {**os.environ, "SPIKESLAB_KERNEL": name}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["baseline", ""])
def test_environment_variable_chooses_the_kernel(name):
    assert import_with(name).stdout.strip() == (name or available()[0])


def test_environment_variable_with_a_nonsense_name_gives_a_clear_error():
    result = import_with("pdp-11")
    assert result.returncode == 1  # an exception, not an abort
    assert "there is no kernel 'pdp-11' for this CPU; it can run: " in result.stderr


# ---- threads ----


def long_call(n_points):
    rng = np.random.default_rng(0)
    problem = draw(rng, 13, n_points, spike_and_slab(13))
    return problem.tree(), *problem.points()


def test_the_gil_is_released_during_a_call():
    tree, b, xhat = long_call(10_000)
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    tree.moments(b, xhat)
    end = time.perf_counter()
    done.set()
    thread.join()
    # Well inside the call: not while it was entered or left.
    margin = (end - start) / 4
    assert sum(start + margin < at < end - margin for at in ticks) >= 3


def test_two_threads_at_once_get_what_one_gets(kernel):
    tree, b, xhat = long_call(1_000)
    alone = tree.moments(b, xhat, True)
    other, _ = solved(3, "soft", "all")  # another size, so that shared workspace would show
    other_alone = other.tree().moments(*other.points(), True)
    with ThreadPoolExecutor(3) as executor:
        runs = [executor.submit(tree.moments, b, xhat, True) for _ in range(3)]
        others = [executor.submit(other.tree().moments, *other.points(), True) for _ in range(20)]
    for futures, expected in ((runs, alone), (others, other_alone)):
        for future in futures:
            for found, wanted in zip(future.result(), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
