"""Separations made by hand, in a fraction of a second, for what shows them."""

import numpy as np

from spikeslab import GaussianSparseCoding, Prior
from spikeslab.metrics import orthogonality_deviation
from spikeslab.separation import Reliability, Separation, SeparationRun


def sparse_mixture(rng, n_samples, n_sources, n_channels, noise=0.05):
    """Bursts of noise in silence, mixed."""
    active = np.repeat(rng.random((-(-n_samples // 50), n_sources)) < 0.3, 50, axis=0)[:n_samples]
    sources = rng.standard_normal((n_samples, n_sources)) * active
    X = sources @ rng.standard_normal((n_sources, n_channels))
    return X + noise * rng.standard_normal(X.shape)


def noisy_separation(X, n_sources, *, agreement=None, **settings):
    """From a fitted model of the library; the other runs and families are made up around it."""
    model = GaussianSparseCoding(
        n_sources, n_init=1, random_state=0, callback=lambda progress: progress.iteration >= 60
    ).fit(X)
    sources = model.transform(X)
    posterior = model.posterior(X[:200])
    deviation = np.sqrt(np.diagonal(posterior.covariance(), axis1=1, axis2=2) / sources.var(axis=0))
    history = np.array(model.history_)
    kinds = [("own prior", 0.0, True), ("own prior", 0.0, False), ("own prior", 0.05, False)]
    kinds += [("shared prior", 0.02, False), ("noise-free", 0.3, False)]
    runs = [
        SeparationRun(
            family=family,
            n_sources=n_sources,
            log_likelihood=model.log_likelihood_ - lag,
            criterion=len(X) * (model.log_likelihood_ - lag) - 20,
            n_iter=len(history),
            converged=True,
            reason="converged",
            noise_variance=0.0 if family == "noise-free" else model.parameters_.noise.values[0],
            orthogonality_deviation=orthogonality_deviation(model.mixing_),
            history=tuple(history - lag),
            mixing=model.mixing_,
            best=family not in [earlier for earlier, *_ in kinds[:number]],
            chosen=chosen,
        )
        for number, (family, lag, chosen) in enumerate(kinds)
    ]
    if agreement is None:
        agreement = np.full(n_sources, 0.98)
    return Separation(
        sources=sources,
        mixing=model.mixing_,
        model=model,
        method="noisy",
        noise_variance=float(model.parameters_.noise.values[0]),
        prior=model.parameters_.prior,
        reliability=Reliability(
            agreement=np.asarray(agreement),
            activation=model.activation_,
            posterior_std=np.sqrt((deviation**2).mean(axis=0)),
        ),
        runs=tuple(runs),
        data=X,
        settings={"n_sources": n_sources, "method": "auto", "select": "likelihood", **settings},
        seconds=1.5,
    )


def noise_free_separation(sources, mixing):
    """The truth as if it had been found; no model is needed to show it."""
    n_sources = sources.shape[1]
    prior = Prior(
        np.tile([0.6, 0.3, 0.1], (n_sources, 1)),
        np.tile([0.0, 0.1, -0.2], (n_sources, 1)),
        np.tile([0.05, 0.6, 4.0], (n_sources, 1)),
    )
    run = SeparationRun(
        family="noise-free",
        n_sources=n_sources,
        log_likelihood=-2.0,
        criterion=-2.0 * len(sources) - 30,
        n_iter=3,
        converged=False,
        reason="max_iter",
        noise_variance=0.0,
        orthogonality_deviation=0.0,
        history=(-4.0, -2.5, -2.0),
        mixing=mixing,
        best=True,
        chosen=True,
    )
    return Separation(
        sources=sources,
        mixing=mixing,
        model=None,
        method="noise_free",
        noise_variance=0.0,
        prior=prior,
        reliability=Reliability(np.full(n_sources, np.nan), prior.activation, np.zeros(n_sources)),
        runs=(run,),
        data=sources @ mixing.T,
        settings={"n_sources": n_sources, "method": "noise_free", "random_state": 7},
        seconds=0.25,
    )
