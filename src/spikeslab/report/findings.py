"""What a separation found, in numbers and words: everything of the report but its pictures."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import sklearn

if TYPE_CHECKING:
    from ..separation import Separation, SeparationRun

LEAST_AGREEMENT = 0.9
MOST_UNCERTAINTY = 0.5
LEAST_SNR_DB = 5.0
CLEAR_LEAD = 2.0  # nats of the criterion: less is no reason to prefer a model

_MODELS = {
    "noise_free": "without noise",
    "orthogonal": "without noise, with orthogonal mixing of the whitened channels",
    "noisy": "with noise",
}
_OPTIONS = {"n_sources": "-n", "method": "--method", "select": "--select", "random_state": "--seed"}


@dataclass(frozen=True)
class Source:
    """One row of the table of sources."""

    name: str
    agreement: float
    activation: float
    posterior_std: float
    share: float

    @property
    def doubts(self) -> list[str]:
        """Why to check it; nothing where it is reliable."""
        found = []
        if np.isnan(self.agreement):
            found.append("no other run to compare with")
        elif self.agreement < LEAST_AGREEMENT:
            found.append("other restarts found something else")
        if self.posterior_std > MOST_UNCERTAINTY:
            found.append("its values are uncertain")
        return found


@dataclass(frozen=True)
class Candidate:
    """All runs of one kind of model, with one number of sources."""

    family: str
    n_sources: int
    n_runs: int
    log_likelihood: float
    penalty: float
    criterion: float
    noise_variance: float
    chosen: bool


def sources(separation: Separation) -> list[Source]:
    trust, data = separation.reliability, separation.data
    power = (separation.mixing**2).sum(axis=0) * separation.sources.var(axis=0)
    shares = power / data.var(axis=0, dtype=np.float64).sum()
    rows = []
    for number, share in enumerate(shares):
        row = Source(
            name=f"Source {number + 1}",
            agreement=float(trust.agreement[number]),
            activation=float(trust.activation[number]),
            posterior_std=float(trust.posterior_std[number]),
            share=float(share),
        )
        rows.append(row)
    return rows


def candidates(separation: Separation) -> list[Candidate]:
    """The kinds of models that were tried, the one with the highest criterion first."""
    groups: dict[tuple[str, int], list[SeparationRun]] = {}
    for run in separation.runs:
        groups.setdefault((run.family, run.n_sources), []).append(run)
    n_samples = len(separation.data)
    rows = []
    for (family, n_sources), runs in groups.items():
        best = next(run for run in runs if run.best)
        rows.append(
            Candidate(
                family=family,
                n_sources=n_sources,
                n_runs=len(runs),
                log_likelihood=best.log_likelihood,
                penalty=n_samples * best.log_likelihood - best.criterion,
                criterion=best.criterion,
                noise_variance=best.noise_variance,
                chosen=best.chosen,
            )
        )
    return sorted(rows, key=lambda row: -row.criterion)


def chosen_run(separation: Separation) -> SeparationRun:
    return next(run for run in separation.runs if run.chosen)


def snr_db(separation: Separation) -> float | None:
    """Signal to noise ratio of the mixture; None without noise."""
    noise = separation.noise_variance
    signal = float(separation.data.var(axis=0, dtype=np.float64).mean()) - noise
    return 10 * float(np.log10(max(signal, 1e-12 * noise) / noise)) if noise > 0 else None


def headline(separation: Separation) -> str:
    n_samples, n_channels = separation.data.shape
    found = counted(separation.sources.shape[1], "source")
    return f"{found} in {counted(n_channels, 'channel')} of {n_samples:,} samples"


def reason(separation: Separation) -> str:
    """Why this model: one sentence."""
    rows = candidates(separation)
    chosen = next(row for row in rows if row.chosen)
    model = f"The model {_MODELS[separation.method]} (kind: {_name(chosen, rows)})"
    others = [row for row in rows if not row.chosen]
    if separation.settings.get("select", "likelihood") != "likelihood":
        return f"{model} was chosen because select={separation.settings['select']!r} asked for it."
    if not others:
        return f"{model} was the only one tried, in {counted(chosen.n_runs, 'run')}."
    rival = others[0]
    lead = chosen.criterion - rival.criterion
    tried = f"of {len(rows)} kinds tried"
    if lead < 0:
        return f"{model} was chosen although {_name(rival, rows)} has the higher likelihood."
    if lead < CLEAR_LEAD:
        return (
            f"{model} explains the data best {tried}, but hardly better than the next, "
            f"{_name(rival, rows)}: by {lead:.1f} nats of penalised log-likelihood."
        )
    return (
        f"{model} explains the data best {tried}: by {lead:,.0f} nats of penalised "
        f"log-likelihood over the next, {_name(rival, rows)}."
    )


def warnings(separation: Separation) -> list[str]:
    """What lowers the trust in the whole, most important first."""
    found = []
    run = chosen_run(separation)
    doubtful = [row.name.removeprefix("Source ") for row in sources(separation) if row.doubts]
    if doubtful:
        which = "Source" if len(doubtful) == 1 else "Sources"
        found.append(f"{which} {_listed(doubtful)} should be checked; the table says why.")
    if not run.converged:
        found.append(
            f"The chosen run had not converged when it stopped ({run.reason}) after "
            f"{counted(run.n_iter, 'iteration')}: a longer one might find something else."
        )
    snr = snr_db(separation)
    if snr is not None and snr < LEAST_SNR_DB:
        found.append(f"The noise is strong: the signal is only {snr:.1f} dB above it.")
    if len(separation.runs) == 1:
        found.append("There was only one run, so agreement between restarts says nothing.")
    return found


def python_snippet(separation: Separation) -> str:
    arguments = [f"{name}={value!r}" for name, value in _plain_settings(separation).items()]
    call = ", ".join(["X", *arguments])
    return (
        "from spikeslab import separate\n\n"
        f"# X: the mixture, an array of shape {separation.data.shape}\n"
        f"separation = separate({call})"
    )


def command_line(separation: Separation) -> str:
    words = ["spikeslab", "separate", "MIXTURE"]
    for name, value in _plain_settings(separation).items():
        if name in _OPTIONS and value is not None:
            words += [_OPTIONS[name], str(value)]
    return " ".join(words)


def versions() -> dict[str, str]:
    from .. import __version__

    return {
        "spikeslab": __version__,
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    }


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _name(row: Candidate, rows: list[Candidate]) -> str:
    """The family, with the number of sources where that differs between candidates."""
    if len({other.n_sources for other in rows}) == 1:
        return row.family
    return f"{row.family} with {counted(row.n_sources, 'source')}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _plain_settings(separation: Separation) -> dict[str, Any]:
    """Settings that can be written down: not callbacks and random generators."""
    return {
        name: value
        for name, value in separation.settings.items()
        if value is None or isinstance(value, (bool, int, float, str))
    }
