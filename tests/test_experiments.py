"""The paper's experiments: what trials do, that they are kept, and what is made of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.io import savemat
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from experiments import made_up_results
from spikeslab import Parameters, Prior
from spikeslab.experiments import EXPERIMENTS, Plan, directions, prior, separation, verification
from spikeslab.experiments.protocol import (
    as_printed,
    em,
    largest_fall,
    noise_of,
    paper_start,
    recovery_errors,
)
from spikeslab.experiments.runner import TrialProgress, run_trials
from spikeslab.experiments.sources import N_SOURCES, Benchmark, benchmarks
from spikeslab.experiments.sources import draw as draw_sources
from spikeslab.experiments.trials import Store, Trial, generator
from spikeslab.noise import FullNoise, IsotropicNoise
from spikeslab.statistics import Expectation

SPIKESLAB = Path(sys.executable).with_name("spikeslab")


# ---- the paper's protocol ----


def printed_moments(Y, parameters):
    """Sums over the data of the paper's three expectations, formula by formula, state by state."""
    W, Sigma, pi = parameters.mixing, parameters.noise.covariance, parameters.prior.activation
    H = W.shape[1]
    precision = np.linalg.inv(Sigma)
    s_sum, sz_sum, szsz_sum = np.zeros(H), np.zeros((len(Y), H)), np.zeros((H, H))
    states = np.array(list(product([0, 1], repeat=H)))
    for n, y in enumerate(Y):
        log_joint = [
            np.log(np.where(s, pi, 1 - pi)).sum()
            + multivariate_normal(cov=(W * s) @ (W * s).T + Sigma).logpdf(y)
            for s in states
        ]
        for s, p in zip(states, np.exp(log_joint - logsumexp(log_joint)), strict=True):
            Ws = W * s
            Lambda = np.linalg.inv(Ws.T @ precision @ Ws + np.eye(H))
            kappa = Lambda @ Ws.T @ precision @ y
            s_sum += p * s
            sz_sum[n] += p * kappa
            szsz_sum += p * (Lambda + np.outer(kappa, kappa))
    return s_sum, sz_sum, szsz_sum


def a_model(noise="full", H=3, D=2, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((D, D))
    parameters = Parameters(
        rng.standard_normal((D, H)),
        np.zeros(D),
        Prior.spike_and_slab(rng.uniform(0.2, 0.8, H)),
        noise_of(noise, root @ root.T + 0.3 * np.eye(D)),
    )
    return parameters, parameters.sample(12, rng)[0]


@pytest.mark.parametrize("noise", ["isotropic", "full"])
def test_printed_moments_are_the_papers_formulas(noise):
    parameters, Y = a_model(noise)
    s, sz, szsz = printed_moments(Y, parameters)
    printed = as_printed(Expectation(Y, noise))(parameters)
    np.testing.assert_allclose(printed.counts[:, 1], s, rtol=1e-10)
    np.testing.assert_allclose(printed.yx, Y.T @ sz, atol=1e-10)
    np.testing.assert_allclose(printed.xx, szsz, rtol=1e-10, atol=1e-10)
    assert not np.allclose(Expectation(Y, noise)(parameters).xx, szsz, rtol=1e-3)


@pytest.mark.parametrize("new_mixing", [False, True])
def test_asymmetry_is_that_of_the_printed_update_of_sigma(new_mixing):
    parameters, Y = a_model()
    _, sz, corrected = printed_moments(Y, parameters)
    exact = Expectation(Y, "full")(parameters)
    corrected -= np.diag(exact.counts[:, 0])  # Lambda_s lives on the support of s only
    W = Y.T @ sz @ np.linalg.inv(corrected) if new_mixing else parameters.mixing
    update = np.zeros((2, 2))
    for y, x in zip(Y, sz, strict=True):
        update += np.outer(y, y) - 2 * np.outer(W @ x, y)
    update += W @ corrected @ W.T
    expected = np.linalg.norm(update - update.T) / np.linalg.norm(update)
    found = verification.sigma_asymmetry(Y, parameters, new_mixing=new_mixing)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-10)
    assert (found < 1e-10) == new_mixing


def test_the_protocol_is_plain_em_of_300_iterations_without_an_offset():
    parameters, Y = a_model("isotropic", H=2)
    Y = Y + 3.0
    result = em(Y, parameters)
    assert result.n_iter == 300
    assert len(result.history) == 301
    assert not result.parameters.offset.any()
    assert largest_fall(result.history) < 1e-10
    s, sz, szsz = printed_moments(Y, parameters)
    szsz -= np.diag(len(Y) - s)
    W = Y.T @ sz @ np.linalg.inv(szsz)
    first = em(Y, parameters, iterations=1).parameters
    np.testing.assert_allclose(first.mixing, W, rtol=1e-8)
    np.testing.assert_allclose(first.prior.activation, s / len(Y), rtol=1e-10)
    scatter = Y.T @ Y - W @ sz.T @ Y - Y.T @ sz @ W.T + W @ szsz @ W.T
    assert first.noise.variance == pytest.approx(scatter.trace() / (2 * len(Y)), rel=1e-8)


def test_largest_fall():
    assert largest_fall([-3.0, -2.0, -2.5, -2.25, -2.375, -1.0]) == 0.5
    assert largest_fall([-3.0, -2.0]) == 0.0
    assert largest_fall([-3.0]) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_recovery_errors_take_the_best_permutation_and_signs(seed):
    rng = np.random.default_rng(seed)
    truth, _ = a_model(H=3, D=3, seed=seed)
    order, signs = rng.permutation(3), rng.choice([-1, 1], 3)
    found = Parameters(
        (truth.mixing * signs)[:, order] + 0.4 * rng.standard_normal((3, 3)),
        np.zeros(3),
        Prior.spike_and_slab(rng.uniform(0.1, 0.9, 3)),
        IsotropicNoise(0.7, 3),
    )
    size = np.linalg.norm(truth.mixing)
    error, pi = min(
        (
            np.linalg.norm(found.mixing[:, order] * flips - truth.mixing) / size,
            np.abs(found.prior.activation[list(order)] - truth.prior.activation).mean(),
        )
        for order in map(list, permutations(range(3)))
        for flips in product([-1, 1], repeat=3)
    )
    scatter = np.linalg.norm(0.7 * np.eye(3) - truth.noise.covariance)
    assert recovery_errors(found, truth) == {
        "W": pytest.approx(error),
        "pi": pytest.approx(pi),
        "Sigma": pytest.approx(scatter / np.linalg.norm(truth.noise.covariance)),
    }


def test_the_papers_start():
    Y = np.random.default_rng(1).standard_normal((50, 2)) @ [[3.0, 1.0], [0.0, 1.0]] + 5.0
    rng = np.random.default_rng(0)
    starts = [paper_start(Y, 3, "full", rng) for _ in range(300)]
    centred = Y - Y.mean(axis=0)
    for start in starts[:3]:
        np.testing.assert_allclose(start.noise.covariance, centred.T @ centred / 50)
        assert not start.offset.any()
    assert like(np.ravel([start.mixing for start in starts]), stats.norm())
    activations = np.ravel([start.prior.activation for start in starts])
    assert like(activations, stats.uniform(0.05, 0.95))
    isotropic = paper_start(Y, 3, "isotropic", rng).noise
    assert isotropic.variance == pytest.approx(Y.var(axis=0).mean())


# ---- what is drawn ----


def like(values, distribution):
    """Whether values look like draws: Kolmogorov and Smirnov's test."""
    return stats.kstest(values, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("reading", verification.READINGS)
def test_generating_parameters_are_drawn_as_in_the_footnote(reading):
    truths = [verification.draw(0, reading, data_set)[0] for data_set in range(300)]
    assert like(np.ravel([truth.mixing for truth in truths]), stats.norm(scale=3))
    activations = np.ravel([truth.prior.activation for truth in truths])
    assert like(activations, stats.uniform(0.05, 0.95))
    sigma = np.array([truth.noise.variance for truth in truths])
    if reading == "deviation":
        sigma = np.sqrt(sigma)
    most = 1.0 if reading == "low noise" else 10.0
    assert like(sigma, stats.uniform(0.05, most - 0.05))
    Y = verification.draw(0, reading, 0)[1]
    assert Y.shape == (500, 2)
    covariance = truths[0].mixing * truths[0].prior.activation @ truths[0].mixing.T
    covariance = covariance + truths[0].noise.covariance
    np.testing.assert_allclose(np.cov(Y.T), covariance, rtol=0.3, atol=2.0)


@pytest.mark.parametrize("prior", directions.PRIORS)
@pytest.mark.parametrize("mixing", directions.MIXINGS)
def test_standard_sparse_coding_data(prior, mixing):
    common = {"seed": 0, "prior": prior, "latents": 2, "mixing": mixing}
    sources, entries = [], []
    for data_set in range(40):
        W, Y = directions.draw({**common, "data_set": data_set})
        assert Y.shape == (500, 2)
        if mixing == "orthogonal":
            np.testing.assert_allclose(W.T @ W, np.eye(2), atol=1e-12)
            sources.append(Y @ W)
        entries.append(W)
    if mixing == "normal":
        assert like(np.ravel(entries), stats.norm())
        return
    # noise of standard deviation .1, mixed orthogonally, adds to every source
    distribution = stats.cauchy() if prior == "cauchy" else stats.laplace(scale=np.sqrt(0.5))
    rng = np.random.default_rng(0)
    expected = distribution.rvs(200_000, random_state=rng) + 0.1 * rng.standard_normal(200_000)
    assert stats.ks_2samp(np.ravel(sources), expected).pvalue > 1e-3


def test_both_models_of_the_noise_see_the_same_data_and_every_data_set_is_another():
    trials = directions.trials(Plan(trials=2))
    seen = {}
    for trial in trials:
        _, Y = directions.draw(trial.settings)
        seen.setdefault(Y.tobytes(), []).append(trial.settings["noise"])
    assert set(map(tuple, seen.values())) == {("isotropic", "full")}


def test_all_methods_separate_the_same_mixtures():
    """FastICA and JADE see the same data: their indices agree on easy ones."""
    common = {
        **Benchmark("Sergio7", "generated", "").settings,
        "seed": 3,
        "n_samples": 500,
        "trial": 0,
        "of": 2,
    }
    one, two = (
        separation.run({**common, "method": method})["amari"] for method in ("fast_ica", "jade")
    )
    assert one == pytest.approx(two, abs=0.05)


def test_the_index_does_not_depend_on_the_scales_of_the_estimates():
    rng = np.random.default_rng(0)
    sources = rng.laplace(size=(300, 3)) / np.sqrt(2)
    mixing = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    X = sources @ mixing.T
    unmixing = mixing.T + 0.1 * rng.standard_normal((3, 3))
    scaled = np.array([[0.01], [1.0], [-300.0]]) * unmixing
    assert separation.index(scaled, X, mixing) == pytest.approx(
        separation.index(unmixing, X, mixing), rel=1e-9
    )


# ---- ICALAB's files ----


@pytest.fixture(scope="session")
def icalab(tmp_path_factory):
    """Files in ICALAB's layout: one matrix, a source in every row."""
    folder = tmp_path_factory.mktemp("icalab")
    rng = np.random.default_rng(0)
    for name, n_sources in N_SOURCES.items():
        scale = rng.uniform(0.1, 100, (n_sources, 1))
        savemat(folder / f"{name}.mat", {name: scale * rng.laplace(size=(n_sources, 1200))})
    return folder


def test_icalab_sources_are_drawn_at_common_random_times(tmp_path):
    times = np.arange(800.0)
    for name, n_sources in N_SOURCES.items():
        rows = [(row + 1) * times - 7 * row for row in range(n_sources)]
        savemat(tmp_path / f"{name}.mat", {"S": np.array(rows)})
    made = benchmarks(Plan(icalab=tmp_path))
    assert [benchmark.name for benchmark in made] == list(N_SOURCES)
    for benchmark in made:
        sources = draw_sources(benchmark, 500, np.random.default_rng(0))
        assert sources.shape == (500, N_SOURCES[benchmark.name])
        np.testing.assert_allclose(sources.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(sources.std(axis=0), 1, rtol=1e-12)
        np.testing.assert_allclose(sources, sources[:, [0]] * np.ones(sources.shape[1]))
        assert len(np.unique(sources[:, 0])) == 500
        assert (np.diff(sources[:, 0]) < 0).any()


def test_icalab_replaces_every_stand_in(icalab):
    trials = separation.trials(Plan(trials=2, icalab=icalab))
    assert {trial.settings["origin"] for trial in trials} == {"icalab"}
    chosen = next(
        trial
        for trial in trials
        if (trial.settings["method"], trial.settings["name"]) == ("fast_ica", "Speech4")
    )
    assert separation.run({**chosen.settings, "n_samples": 500})["amari"] < 0.1


# ---- running and keeping ----


def a_few_trials():
    """One of each kind that does not take long."""
    plan = Plan(trials=2, quick=True)
    few = [*prior.trials(plan), *verification.trials(plan)[:: 6 * 2][:3]]
    few += [trial for trial in directions.trials(plan) if trial.settings["noise"] == "full"][::4]
    few.append(directions.trials(plan)[0])
    by_method = {
        trial.settings["method"]: trial
        for trial in separation.trials(plan)
        if (trial.settings["name"], trial.settings["n_samples"]) == ("Speech4", 200)
    }
    few += [by_method[method] for method in ("gsc", "separate", "kernel", "fast_ica", "jade")]
    return few


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Stores of the same trials, finished by one process and by two."""
    folder = tmp_path_factory.mktemp("kept")
    trials = a_few_trials()
    paths = [folder / "one.jsonl", folder / "two.jsonl"]
    told = []
    for path, n_jobs in zip(paths, (1, 2), strict=True):
        with Store(path) as store:
            run_trials(trials, store, n_jobs=n_jobs, callback=told.append)
    return trials, paths, told


def test_outcomes_do_not_depend_on_the_number_of_processes(kept):
    trials, (one, two), _ = kept
    assert {trial.experiment for trial in trials} == set(EXPERIMENTS)
    assert sorted(one.read_bytes().splitlines()) == sorted(two.read_bytes().splitlines())
    with Store(one) as store:
        for trial in trials:
            if trial.experiment in ("prior", "verification"):
                module = {"prior": prior, "verification": verification}[trial.experiment]
                assert json.loads(json.dumps(module.run(trial.settings))) == store[trial]


def test_progress_counts_trials_and_foresees_the_end(kept):
    trials, _, told = kept
    total = len(trials)
    counts = [progress.finished for progress in told]
    assert counts == 2 * list(range(total + 1))
    assert {progress.total for progress in told} == {total}
    assert told[0].seconds_left > 0
    assert told[-1].seconds_left == 0


def test_finished_trials_are_not_run_again(kept):
    trials, (path, _), _ = kept
    before, told = path.read_bytes(), []
    with Store(path) as store:
        run_trials(trials, store, callback=told.append)
    assert path.read_bytes() == before
    assert told == [TrialProgress(len(trials), len(trials), 0.0)]


def test_a_line_cut_anywhere_is_dropped_and_the_rest_kept(tmp_path):
    path = tmp_path / "trials.jsonl"
    first, second = (Trial("prior", {"number": number}, 1.0, "prior") for number in (1, 2))
    with Store(path) as store:
        store.add(first, '{"value": 1}')
        whole = len(path.read_bytes())
        store.add(second, '{"value": "ü"}')
    content = path.read_bytes()
    for end in range(whole, len(content)):
        path.write_bytes(content[:end])
        with Store(path) as store:
            assert first in store
            assert second not in store
            store.add(second, '{"value": "ü"}')
        assert path.read_bytes() == content
    with Store(path) as store:
        assert store[second] == {"value": "ü"}


def test_what_a_trial_is_called_with_is_its_name():
    trials = [trial for name in EXPERIMENTS for trial in _trials_of(name, Plan(trials=3))]
    assert len({trial.key for trial in trials}) == len(trials)
    other = _trials_of("prior", Plan(seed=1))[0]
    assert other.key not in {trial.key for trial in trials}


def _trials_of(name, plan):
    return {
        "prior": prior,
        "verification": verification,
        "directions": directions,
        "separation": separation,
    }[name].trials(plan)


def test_random_numbers_belong_to_a_seed_and_to_what_they_are_for():
    draws = {
        generator(*names).random()
        for names in [(0, "a", 1), (1, "a", 1), (0, "a", 2), (0, "b", 1), (0, "a/1", 1)]
    }
    assert len(draws) == 5
    assert generator(0, "a", 1).random() == generator(0, "a", 1).random()


def started(experiment, folder, *options):
    """The command in the background, in a group of processes of its own."""
    command = [SPIKESLAB, "reproduce", experiment, "--trials", "2", "--quick", *options]
    return subprocess.Popen(
        [*command, "-o", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def alive_in(group):
    """Processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize(
    ("experiment", "moments"),
    [
        ("prior", (1,)),
        pytest.param("verification", (0, 1, 6, 12, 18, 24, 30, 35), marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_moment_and_started_again_it_ends_with_the_same_results(
    tmp_path, experiment, moments
):
    """Also: no process is left, and `--jobs` does not matter."""
    whole = started(experiment, tmp_path / "whole", "--jobs", "1")
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    rng = np.random.default_rng()
    broken, kills = tmp_path / "broken", 0
    trials = broken / "trials.jsonl"
    for moment in moments:
        process = started(experiment, broken, "--jobs", "2")
        while process.poll() is None and not (trials.exists() and lines(trials) >= moment):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        kills += process.poll() is None
        process.kill()
        process.communicate(timeout=60)
        wait_until(lambda group=process.pid: not alive_in(group))
    assert kills > len(moments) / 2
    assert lines(trials) >= moments[-1]
    last = started(experiment, broken, "--jobs", "2")
    last.communicate(timeout=120)
    assert last.returncode == 0
    written = sorted(path.name for path in broken.iterdir())
    assert written == sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert {"results.json", "report.html"} < set(written)
    for name in set(written) - {"trials.jsonl"}:  # whose order is that of finishing
        assert (broken / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("soon", [True, False])
def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path, soon):
    out = tmp_path / "out"
    process = started("verification", out, "--jobs", "2")
    wait_until(lambda: lines(out / "trials.jsonl") >= (0 if soon else 3) and out.exists())
    os.killpg(process.pid, signal.SIGINT)
    printed, complaint = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    last = complaint.splitlines()[-1]
    told = re.fullmatch(
        rf"Interrupted\. (\d+) finished trials are kept in {out}; the same command goes on from "
        r"there\.",
        last,
    )
    assert told, complaint
    assert "Traceback" not in complaint
    kept = lines(out / "trials.jsonl")
    assert kept >= (0 if soon else 3)
    assert int(told[1]) in (kept, kept - 1)  # the last was just being counted


# ---- summaries ----


def test_prior_says_what_theory_expects():
    finished = [({"activation": pi}, {"zeros": 1 - pi, "kurtosis": 1.5}) for pi in (1.0, 0.25)]
    assert prior.summarise(finished)["cells"] == [
        {
            "activation": 1.0,
            "look": "p-PCA cloud",
            "kurtosis_expected": 0.0,
            "zeros": 0.0,
            "kurtosis": 1.5,
        },
        {
            "activation": 0.25,
            "look": "salient star",
            "kurtosis_expected": 9.0,
            "zeros": 0.75,
            "kurtosis": 1.5,
        },
    ]
    drawn = prior.run({"seed": 0, "activation": 0.25})
    assert drawn["zeros"] == pytest.approx(0.75, abs=0.005)
    assert drawn["kurtosis"] == pytest.approx(9.0, abs=0.3)


def errors(W):
    return {"W": W, "pi": W / 10, "Sigma": 2 * W}


def test_verification_counts_runs_at_the_top():
    settings = {"reading": "variance", "noise": "full"}
    first = {
        "log_likelihood": [-4.0, -4.0005, -4.005, -5.0],
        "errors": [errors(W) for W in (0.1, 0.1, 0.2, 0.8)],
        "fall": 1e-15,
        "histories": [[-5.0, -4.0]],
        "truth": {"log_likelihood": -4.2, "errors": errors(0.2)},
        "printed": {"log_likelihood": [-4.5, -4.0], "falls": [0.25, 0.0], "histories": [[-5.0]]},
        "asymmetry": {"old W": 0.1, "new W": 0.0},
    }
    second = {
        "log_likelihood": [-3.0, -3.1, -3.1, -3.1],  # the truth is more likely than all of them
        "errors": [errors(W) for W in (0.4, 0.5, 0.5, 0.6)],
        "fall": 3e-15,
        "histories": [],
        "truth": {"log_likelihood": -2.995, "errors": errors(0.3)},
        "printed": {"log_likelihood": [-3.5, -3.3], "falls": [1e-12, 0.5], "histories": []},
        "asymmetry": {"old W": 0.3, "new W": 0.0},
    }
    [cell] = verification.summarise([(settings, first), (settings, second)])["cells"]
    assert (cell["reading"], cell["noise"]) == ("variance", "full")
    assert (cell["data_sets"], cell["runs"]) == (2, 4)
    assert cell["within_.01"] == 4 / 8
    assert cell["within_.001"] == 2 / 8
    assert cell["truth_within_.01"] == 1 / 2
    assert cell["errors"]["W"] == {
        "all": {"mean": pytest.approx(0.4), "median": pytest.approx(0.4)},
        "best": {"mean": pytest.approx(0.25), "median": pytest.approx(0.25)},
        "truth": {"mean": pytest.approx(0.25), "median": pytest.approx(0.25)},
    }
    assert cell["errors"]["Sigma"]["best"]["mean"] == pytest.approx(0.5)
    assert cell["largest_fall"] == 3e-15
    assert cell["histories"] == [[-5.0, -4.0]]
    printed = cell["printed"]
    assert (printed["runs"], printed["falling"], printed["largest_fall"]) == (4, 0.5, 0.5)
    assert printed["lower_final"] == 3 / 4
    assert printed["mean_loss"] == pytest.approx((0.5 - 0.0005 + 0.5 + 0.2) / 4)
    assert cell["asymmetry"]["old W"] == pytest.approx(0.2)


def test_directions_average_over_runs_with_high_likelihood():
    common = {"prior": "cauchy", "latents": 2, "mixing": "orthogonal"}
    ours = {"default": [-4.1, 0.03], "heavy": [-3.0, 0.01], "separate": [-4.5, 0.2]}
    first = {
        "paper": [[-4.0, 0.1], [-4.1, 0.2], [-4.3, 0.9]],
        "truth": [-3.95, 0.02],
        "ours": ours,
        "picture": {"data": []},
    }
    second = {  # all runs of the paper's protocol are bad, as the default fit shows
        "paper": [[-6.0, 0.5], [-6.0, 0.5]],
        "truth": [-6.0, 0.06],
        "ours": ours | {"default": [-5.0, 0.05]},
    }
    full = {"paper": [[-4.0, 0.4]], "truth": [-4.3, 0.1]}
    [cell] = directions.summarise(
        [
            (common | {"noise": "isotropic"}, first),
            (common | {"noise": "isotropic"}, second),
            (common | {"noise": "full"}, full),
        ]
    )["cells"]
    isotropic = cell["isotropic"]
    assert (isotropic["data_sets"], isotropic["runs"]) == (2, 5)
    assert isotropic["high"] == pytest.approx((2 / 3 + 0) / 2)
    assert isotropic["high_of_own"] == pytest.approx((2 / 3 + 1) / 2)
    assert isotropic["amari"] == pytest.approx(0.15)
    assert isotropic["standard_error"] is None
    assert isotropic["truth"] == pytest.approx(0.04)
    assert isotropic["truth_high"] == 0.5
    assert cell["full"]["amari"] == 0.4
    assert cell["full"]["truth_high"] == 0.0
    assert cell["ours"]["default"]["high"] == 1.0
    assert cell["ours"]["default"]["amari"] == pytest.approx(0.04)
    assert cell["ours"]["default"]["standard_error"] == pytest.approx(0.01)
    assert cell["ours"]["separate"]["high"] == 0.5
    assert cell["log_likelihoods"] == [-4.0, -4.1, -4.3]
    assert cell["best"] == -3.95
    assert cell["picture"] == {"data": []}


def test_separation_averages_over_all_orthogonal_and_most_likely_runs():
    common = {"name": "Speech4", "origin": "icalab", "variant": "x", "n_samples": 500}
    gsc = [
        {
            "amari": [0.1, 0.2, 0.3, 0.4, 0.5],
            "log_likelihood": [-3.0, -1.0, -2.0, -2.0, -2.0],
            "deviation": [2.0, 3.0, 7.0, 50.0, 51.0],
        },
        {
            "amari": [0.0, 0.6, 0.6, 0.6, 0.8],
            "log_likelihood": [0.0, 1.0, 1.0, 1.0, 2.0],
            "deviation": [12.0, 70.0, 70.0, 70.0, 70.0],
        },
    ]
    finished = [(common | {"method": "gsc"}, outcome) for outcome in gsc]
    finished += [(common | {"method": "jade"}, {"amari": amari}) for amari in (0.1, 0.3)]
    [cell] = separation.summarise(finished)["cells"]
    columns = cell["columns"]
    assert columns["gsc"]["amari"] == pytest.approx(0.41)
    assert columns["gsc"]["runs"] == 10
    # thresholds 10 and 15 degrees
    assert columns["gsc_orthogonal"]["amari"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.0) / 4)
    assert columns["gsc_orthogonal"]["runs"] == 4
    assert columns["gsc_likelihood"]["amari"] == pytest.approx((0.2 + 0.8) / 2)
    assert columns["jade"] == {
        "amari": pytest.approx(0.2),
        "deviation": pytest.approx(0.1),
        "runs": 2,
    }
    assert cell["histogram"]["threshold"] == 10.0
    assert cell["histogram"]["deviation"] == gsc[0]["deviation"]
    assert cell["selections"] == 2
    assert cell["printed"]["gsc_orthogonal"] == {"amari": 0.05, "deviation": 0.01}
    assert cell["printed"]["jade"] == {"amari": 0.06, "deviation": 0.0}


def test_the_printed_table_is_complete_and_its_best_are_the_papers():
    """Bold in the paper: the lowest means, by our reading of its Table 1."""
    bold = {
        ("10halo", 200): {"gsc_orthogonal", "least_squares"},
        ("10halo", 500): {"least_squares", "fast_ica"},
        ("Sergio7", 200): {"least_squares"},
        ("Sergio7", 500): {"fast_ica", "jade"},
        ("Speech4", 200): {"gsc_orthogonal"},
        ("Speech4", 500): {"gsc_orthogonal"},
        ("c5signals", 200): {"fast_ica"},
        ("c5signals", 500): {"fast_ica"},
    }
    for (name, n_samples), best in bold.items():
        cell = separation.printed(name, n_samples)
        lowest = min(mean for mean, _ in cell.values())
        assert {column for column, (mean, _) in cell.items() if mean == lowest} == best


@pytest.mark.parametrize("quick", [False, True])
def test_the_protocols_size(quick):
    plan = Plan(quick=quick)
    assert len(prior.trials(plan)) == 3
    runs = {trial.settings["runs"] for trial in verification.trials(plan)}
    assert runs == {25 if quick else 250}
    data_sets = [trial.settings["data_set"] for trial in directions.trials(plan)]
    assert max(data_sets) + 1 == (10 if quick else 100)
    counts = {}
    for trial in separation.trials(plan):
        settings = trial.settings
        cell = (settings["name"], settings["variant"], settings["n_samples"], settings["method"])
        counts[cell] = counts.get(cell, 0) + 1
        if settings["method"] == "gsc":
            assert settings["runs"] == (20 if quick else 100)
    assert {counts[cell] for cell in counts if cell[3] in ("fast_ica", "jade")} == (
        {20} if quick else {100}
    )
    if not quick:
        assert {counts[cell] for cell in counts if cell[3] == "separate"} == {100}
        assert {counts[cell] for cell in counts if cell[3] in ("kernel", "least_squares")} == {20}


# ---- a plan ----


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"trials": 1}, ValueError, "trials must be at least 2, got 1"),
        ({"trials": 2.5}, TypeError, "trials must be a whole number"),
        ({"quick": 1}, TypeError, "quick must be True or False"),
    ],
)
def test_a_plan_is_checked(options, error, message):
    with pytest.raises(error, match=message):
        Plan(**options)


def test_noise_of_a_kind():
    covariance = np.array([[3.0, 1.0], [1.0, 5.0]])
    assert noise_of("isotropic", covariance).variance == 4.0
    full = noise_of("full", covariance)
    assert isinstance(full, FullNoise)
    np.testing.assert_array_equal(full.covariance, covariance)


def test_made_up_results_have_all_that_real_ones_have(kept):
    """The tests of the report use made-up outcomes: they must look like real ones."""
    trials, (path, _), _ = kept
    made_up = made_up_results(Plan(trials=2, quick=True))
    with Store(path) as store:
        for trial in trials:
            module = {
                "prior": prior,
                "verification": verification,
                "directions": directions,
            }.get(trial.experiment)
            if module is None or trial.settings.get("noise") == "full":
                continue
            real = module.summarise([(trial.settings, store[trial])])["cells"][0]
            assert set(real) - {"full"} <= set(made_up[trial.experiment]["cells"][0])
