"""A separation as one page that explains itself: a single HTML file that needs nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from .. import plotting
from .._arrays import Array
from .._checks import check_real
from .._files import write_whole
from ..parameters import Parameters
from ..posterior import Posterior
from . import findings
from .audio import Excerpt, playable, wav_uri

if TYPE_CHECKING:
    from ..separation import Separation

MOST_SIGNALS = 24  # drawn of the channels, and of the sources
_STRETCH = 240  # samples in the pictures of the posterior


@dataclass(frozen=True)
class _Picture:
    uri: str
    alt: str


@dataclass(frozen=True)
class _Signal:
    name: str
    picture: _Picture
    audio: str = ""
    doubts: list[str] | None = None  # None: nothing to judge


def write_report(
    separation: Separation,
    path: str | os.PathLike[str],
    *,
    rate: float | None = None,
    title: str | None = None,
) -> None:
    """Write a report of what `separate` found as an HTML file; it appears whole or not at all.

    The file contains its pictures and players and can be sent to anybody: it loads nothing from
    elsewhere.

    Parameters
    ----------
    separation : Separation
    path : path
        Of the file; its folder must exist.
    rate : float, default=None
        Samples per second. With it time is shown in seconds and signals have spectrograms, from
        3000 on also players.
    title : str, default=None
        Heading of the page.
    """
    if rate is not None:
        check_real("rate", rate, 0.0, above=True)
        rate = float(rate)
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title must be a string, got {title!r}")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; give the name of a file")
    write_whole(path, _page(separation, rate, title).encode())


def _page(separation: Separation, rate: float | None, title: str | None) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ImportError("reports need Jinja2: pip install 'spikeslab[app]'") from None
    environment = Environment(
        loader=PackageLoader("spikeslab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, number=_number)
    rows = findings.sources(separation)
    channels = _channel_names(separation)
    n_channels, n_sources = (min(len(names), MOST_SIGNALS) for names in (channels, rows))
    excerpt = None
    if rate is not None and playable(rate):
        excerpt = Excerpt.of(n_channels + n_sources, len(separation.data), rate)
    posterior, stretch = _posterior(separation, rows[:n_sources], rate)
    return environment.get_template("page.html").render(
        style=files("spikeslab.report").joinpath("page.css").read_text(encoding="utf-8"),
        title=title or "Source separation",
        separation=separation,
        rate=rate,
        headline=findings.headline(separation),
        reason=findings.reason(separation),
        warnings=findings.warnings(separation),
        snr=findings.snr_db(separation),
        run=findings.chosen_run(separation),
        rows=rows,
        least_agreement=findings.LEAST_AGREEMENT,
        most_uncertainty=findings.MOST_UNCERTAINTY,
        candidates=findings.candidates(separation),
        excerpt=excerpt,
        sources=[
            _signal(row.name, values, rate, excerpt, plotting.BLUE, row.doubts)
            for row, values in zip(rows[:n_sources], separation.sources.T, strict=False)
        ],
        mixture=[
            _signal(name, values, rate, excerpt, plotting.GREY)
            for name, values in zip(channels[:n_channels], separation.data.T, strict=False)
        ],
        n_channels=len(channels),
        mixing=_mixing(separation, channels),
        likelihoods=_likelihoods(separation),
        densities=[
            _Picture(
                _svg_uri(plotting.density(values, separation.prior, number, label=row.name)),
                f"Histogram of {row.name} with its fitted density on a logarithmic scale",
            )
            for number, (row, values) in enumerate(
                zip(rows[:n_sources], separation.sources.T, strict=False)
            )
        ],
        posterior=posterior,
        stretch=stretch,
        python_snippet=findings.python_snippet(separation),
        command_line=findings.command_line(separation),
        versions=findings.versions(),
    )


def _signal(
    name: str,
    values: np.ndarray,
    rate: float | None,
    excerpt: Excerpt | None,
    colour: str,
    doubts: list[str] | None = None,
) -> _Signal:
    values = np.asarray(values, dtype=np.float64)
    drawn = plotting.waveform(values, rate=rate, spectrogram=rate is not None, colour=colour)
    kind = "Waveform" if rate is None else "Waveform and spectrogram"
    audio = wav_uri(values, excerpt) if excerpt else ""
    return _Signal(name, _Picture(_svg_uri(drawn), f"{kind} of {name}"), audio, doubts)


def _mixing(separation: Separation, channels: list[str]) -> _Picture:
    """The mixing matrix of sources of unit variance, in the units of the channels."""
    n_sources = separation.mixing.shape[1]
    scaled = separation.mixing * separation.sources.std(axis=0)
    short = [name.removeprefix("Channel ") for name in channels]
    figure = plotting.mixing_matrix(
        scaled,
        sources=[str(number + 1) for number in range(n_sources)],
        channels=short,
        label="standard deviation with sign",
    )
    axes = figure.axes[0]
    axes.set(xlabel="source", ylabel="channel")
    return _Picture(
        _svg_uri(figure),
        f"Heat map of the mixing matrix, {len(channels)} channels by {n_sources} sources",
    )


def _likelihoods(separation: Separation) -> _Picture:
    several = len({run.n_sources for run in separation.runs}) > 1
    curves = [
        plotting.Curve(
            f"{run.family}, {run.n_sources}" if several else run.family, run.history, run.chosen
        )
        for run in separation.runs
        if len(run.history)
    ]
    return _Picture(
        _svg_uri(plotting.likelihoods(curves)),
        f"Log-likelihood per sample against iteration for {len(curves)} runs",
    )


def _posterior(
    separation: Separation, sources: list[findings.Source], rate: float | None
) -> tuple[list[_Picture], tuple[int, int]]:
    """Pictures of the posterior where the mixture is strongest, and the samples they show."""
    if separation.method != "noisy":  # nothing is uncertain
        return [], (0, 0)
    parameters = separation.model.parameters_
    assert isinstance(parameters, Parameters)
    data = separation.data - separation.data.mean(axis=0, dtype=np.float64)
    length = min(_STRETCH, len(data))
    energy = np.concatenate([[0.0], np.cumsum((data**2).sum(axis=1))])
    first = int(np.argmax(energy[length:] - energy[:-length]))
    rows = separation.data[first : first + length] - parameters.offset
    posterior = Posterior(parameters.shifted(-parameters.offset), rows)
    deviation = np.sqrt(np.maximum(_diagonal(posterior.covariance()), 0.0))
    pictures = [
        _Picture(
            _svg_uri(
                plotting.uncertainty(
                    posterior.mean[:, number],
                    deviation[:, number],
                    posterior.activation[:, number],
                    first=first,
                    rate=rate,
                    label=source.name,
                )
            ),
            f"Posterior mean of {source.name} with its uncertainty and activation probability",
        )
        for number, source in enumerate(sources)
    ]
    return pictures, (first, first + length)


def _diagonal(covariances: Array) -> Array:
    return np.diagonal(covariances, axis1=1, axis2=2)


def _channel_names(separation: Separation) -> list[str]:
    names = getattr(separation.model, "feature_names_in_", None)
    if names is not None:
        return [str(name) for name in names]
    return [f"Channel {number + 1}" for number in range(separation.data.shape[1])]


def _svg_uri(figure: Any) -> str:
    """A data URI of a figure; its letters as they are, a quarter shorter than in base64."""
    svg = plotting.to_svg(figure).replace(b"\n", b" ")
    return f"data:image/svg+xml,{quote(svg, safe=' /:=+,;()*!@')}"


def _percent(value: float) -> str:
    if np.isnan(value):
        return "unknown"
    return "< 1 %" if 0 < value < 0.005 else f"{100 * value:.0f} %"


def _number(value: float, form: str) -> str:
    """With a minus sign instead of a hyphen."""
    return format(value, form).replace("-", "\N{MINUS SIGN}")


__all__ = ["write_report"]
