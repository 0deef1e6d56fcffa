"""Four sparse sources, mixed and noisy: fit the model and compare what it finds with the truth."""

import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from spikeslab import GaussianSparseCoding, IsotropicNoise, Parameters, Prior

rng = np.random.default_rng(2)
truth = Parameters(
    mixing=rng.standard_normal((4, 4)),
    offset=np.array([3.0, -1.0, 0.0, 2.0]),
    prior=Prior.spike_and_slab([0.15, 0.25, 0.35, 0.5]),
    noise=IsotropicNoise(0.02, 4),
)
X, sources = truth.sample(1000, rng)

start = time.perf_counter()
model = GaussianSparseCoding(n_components=4, random_state=0).fit(X)
seconds = time.perf_counter() - start

# latents come in any order and with any sign: match them by the angle between directions
directions = model.mixing_ / np.linalg.norm(model.mixing_, axis=0)
true_directions = truth.mixing / np.linalg.norm(truth.mixing, axis=0)
cosines = true_directions.T @ directions
rows, found = linear_sum_assignment(-np.abs(cosines))
angles = np.degrees(np.arccos(np.minimum(np.abs(cosines[rows, found]), 1)))
recovered = model.transform(X)[:, found] * np.sign(cosines[rows, found])

print(f"1000 samples of 4 sparse sources, mixed with noise of variance 0.02; {seconds:.2f} s for")
print(
    f"{len(model.runs_)} runs, the best of {model.n_iter_} iterations ({model.runs_[0].reason}).\n"
)
print("source   active: true  found   direction off by   correlation of the source")
for i in range(4):
    correlation = np.corrcoef(sources[:, i], recovered[:, i])[0, 1]
    active, active_found = truth.prior.activation[i], model.activation_[found[i]]
    print(f"   {i + 1}             {active:.2f}   {active_found:.2f}", end="")
    print(f"        {angles[i]:5.2f} deg            {correlation:.4f}")
print(f"\nnoise variance   true 0.0200   found {model.parameters_.noise.values[0]:.4f}")
truth_score = GaussianSparseCoding(n_components=4, init=truth, to_learn=()).fit(X).score(X)
print(f"log-likelihood   truth {truth_score:.4f}   found {model.score(X):.4f} per sample")

supports = model.posterior(X[:1]).supports(3)
print("\nWhich sources are active in the first sample (truth: ", end="")
print(*(np.flatnonzero(sources[0]) + 1), sep=", ", end=")?\n")
for active, probability in zip(supports.active[0], supports.probability[0], strict=True):
    names = ", ".join(str(i + 1) for i in range(4) if active[found[i]]) or "none"
    print(f"   {probability:6.1%}  {names}")
