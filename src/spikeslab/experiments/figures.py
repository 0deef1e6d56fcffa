"""The figures of the experiments, drawn from their results alone."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from .._arrays import Array
from ..noise import IsotropicNoise
from ..parameters import Parameters
from ..plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, new_figure, style
from ..posterior import Inference
from ..prior import Prior
from .directions import HIGH
from .separation import COLUMNS, PRINTED_COLUMNS, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = dict[str, Any]

_WIDE = 9.2  # inches
_MARKERS = {
    "gsc": (SKY, "o"),
    "gsc_orthogonal": (BLUE, "s"),
    "separate": (VERMILLION, "D"),
    "least_squares": (GREEN, "^"),
    "kernel": (ORANGE, "v"),
    "fast_ica": (PURPLE, "P"),
    "jade": (GREY, "X"),
}


@style()
def prior(results: Results) -> Figure:
    """Samples of the prior above, observations below; activations from left to right."""
    figure, axes = new_figure(2, 3, width=_WIDE, height=6.0, sharex=True, sharey=True)
    for column, cell in zip(axes.T, results["cells"], strict=True):
        for panel, name, colour in zip(
            column, ("prior", "observations"), (BLUE, VERMILLION), strict=True
        ):
            x, y = np.array(cell[name]).T
            panel.scatter(x, y, s=5, color=colour, alpha=0.5, linewidths=0, rasterized=True)
            panel.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
        pi = {1.0: "1", 0.5: "1/2", 0.25: "1/4"}[cell["activation"]]
        column[0].set_title(f"π = {pi}: {cell['look']}")
        column[0].set_xlabel("latent 1")
        column[1].set_xlabel("observable 1")
    axes[0, 0].set_ylabel("prior samples\nlatent 2")
    axes[1, 0].set_ylabel("observed samples\nobservable 2")
    return figure


@style()
def likelihoods(results: Results) -> Figure:
    """Log-likelihood per iteration from the same starts, with exact and with printed moments."""
    cells = [cell for cell in results["cells"] if cell["noise"] == "isotropic"]
    figure, axes = new_figure(1, len(cells), width=_WIDE, height=3.4)
    for panel, cell in zip(axes, cells, strict=True):
        for histories, colour, line, label in (
            (cell["printed"]["histories"], VERMILLION, "--", "printed Λ"),
            (cell["histories"], BLUE, "-", "exact Λ"),
        ):
            for number, history in enumerate(histories):
                panel.plot(
                    np.arange(1, len(history) + 1),
                    history,
                    color=colour,
                    linestyle=line,
                    linewidth=1.1,
                    alpha=0.8,
                    label=None if number else label,
                )
        ends = [history[-1] for history in cell["histories"] + cell["printed"]["histories"]]
        room = max(np.ptp(ends), 0.05)
        panel.set_ylim(min(ends) - 0.4 * room, max(ends) + 0.1 * room)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set(title=_READING[cell["reading"]], xlabel="EM iteration")
    axes[0].set_ylabel("log-likelihood per point / nats")
    axes[0].legend(loc="lower right", handlelength=2.6)
    return figure


_READING = {
    "variance": "noise variance in U(.05, 10)",
    "deviation": "noise std in U(.05, 10)",
    "low noise": "noise variance in U(.05, 1)",
}


@style()
def recovery(results: Results) -> Figure:
    """Median relative error of W over the data sets, by reading and model of the noise."""
    figure, panel = new_figure(width=_WIDE, height=3.4)
    looks = {
        "all": (SKY, "o", "all runs"),
        "best": (BLUE, "s", "most likely run"),
        "truth": (VERMILLION, "D", "EM started at the truth"),
    }
    for place, cell in enumerate(results["cells"]):
        for lift, (which, (colour, marker, label)) in zip(
            (-0.2, 0.0, 0.2), looks.items(), strict=True
        ):
            panel.plot(
                cell["errors"]["W"][which]["median"],
                place + lift,
                marker,
                color=colour,
                markersize=8,
                markeredgecolor="white",
                label=None if place else label,
            )
    names = [f"{_READING[cell['reading']]}; {cell['noise']}" for cell in results["cells"]]
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xlim(left=0)
    panel.set_xlabel("relative error of W (median over data sets)")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@style()
def histograms(results: Results) -> Figure:
    """The paper's second figure for both priors and both numbers of latents."""
    cells = [cell for cell in results["cells"] if cell["mixing"] == "orthogonal"]
    figure, axes = new_figure(1, len(cells), width=_WIDE, height=2.9)
    for panel, cell in zip(axes, cells, strict=True):
        values = np.array(cell["log_likelihoods"])
        span = max(np.ptp(values), 2.5 * HIGH)
        edges = np.linspace(values.max() - 1.02 * span, values.max() + 0.02 * span, 27)
        high = values > cell["best"] - HIGH
        panel.hist(values[high], edges, color=BLUE, label="high")
        panel.hist(
            values[~high],
            edges,
            color="#C9C9C9",
            hatch="///",
            edgecolor="#8A8A8A",
            linewidth=0,
            label="lower",
        )
        panel.axvline(cell["best"] - HIGH, color=BLACK, linewidth=1, linestyle="--")
        panel.set_title(f"{cell['prior'].capitalize()}, H = {cell['latents']}")
        panel.set_xlabel("log L per point / nats")
        panel.locator_params(axis="x", nbins=4)
        panel.yaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("runs")
    axes[0].legend(loc="upper left", handlelength=1.2)
    return figure


@style()
def picture(cell: Results) -> Figure:
    """The paper's four panels: prior, data, learned prior, learned density and directions."""
    shown = cell["picture"]
    generating, learned = np.array(shown["generating"]), np.array(shown["learned"])
    activation = shown["activation"]
    cauchy = cell["prior"] == "cauchy"
    half = 7.0 if cauchy else 3.5  # of the axes: Cauchy data reach much further
    grid = np.linspace(-half, half, 401)
    figure, axes = new_figure(1, 4, width=_WIDE, height=3.0)

    density = _cauchy(grid) if cauchy else _laplace(grid)
    axes[0].plot(grid, density, color=BLACK)
    axes[0].set(title=f"{cell['prior'].capitalize()} prior", xlabel="latent 1", ylabel="density")

    _data(axes[1], np.array(shown["data"]), half)
    axes[1].set_title("data")

    slab = activation[0] * norm.pdf(grid)
    top = slab.max()
    axes[2].plot(grid, slab, color=BLUE)
    axes[2].annotate(
        f"exactly 0:\n{1 - activation[0]:.0%}",
        (0.12 * half, 1.4 * top),
        color="#A34700",
        va="top",
    )
    arrow = {"arrowstyle": "-|>", "color": VERMILLION, "lw": 2.2, "shrinkA": 0, "shrinkB": 0}
    axes[2].annotate("", (0, 1.4 * top), (0, 0), arrowprops=arrow)
    axes[2].set(title="learned prior", xlabel="latent 1", ylim=(0, 1.45 * top))

    _contours(axes[3], learned, activation, shown["noise_variance"], half)
    for matrix, colour, line, label in (
        (generating, BLACK, "-", "generating directions"),
        (learned, VERMILLION, (0, (4, 2)), "learned directions"),
    ):
        for number, column in enumerate(matrix.T):
            x, y = np.outer(column / np.linalg.norm(column), [-2 * half, 2 * half])
            name = None if number else label
            axes[3].plot(x, y, color=colour, linestyle=line, linewidth=1.7, label=name)
    axes[3].set_title("learned density")
    for panel in axes[[1, 3]]:
        panel.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xlabel="observable 1")
    axes[1].set_ylabel("observable 2")
    figure.legend(*axes[3].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _cauchy(x: Array) -> Array:
    return 1 / (np.pi * (1 + x**2))


def _laplace(x: Array) -> Array:
    return np.exp(-np.sqrt(2) * np.abs(x)) / np.sqrt(2)


def _data(axes: Axes, Y: Array, half: float) -> None:
    axes.scatter(Y[:, 0], Y[:, 1], s=4, color=GREY, alpha=0.6, linewidths=0, rasterized=True)
    outside = int((np.abs(Y) > half).any(axis=1).sum())
    if outside:
        axes.text(
            0.98,
            0.02,
            f"{outside} of {len(Y)} outside",
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=8,
            color="#333333",
        )


def _contours(
    axes: Axes, mixing: Array, activation: list[float], variance: float, half: float
) -> None:
    """Levels of the learned density of the data, each a factor of e below the one inside."""
    line = np.linspace(-half, half, 161)
    grid = np.stack(np.meshgrid(line, line), axis=-1)
    parameters = Parameters(
        mixing,
        np.zeros(2),
        Prior.spike_and_slab(np.array(activation)),
        IsotropicNoise(variance, 2),
    )
    log_density = Inference(parameters).log_evidence(grid.reshape(-1, 2)).reshape(grid.shape[:2])
    levels = log_density.max() - np.arange(1.0, 12.0)[::-1]
    look: dict[str, Any] = {"colors": VERMILLION, "linewidths": 0.8, "linestyles": "dotted"}
    axes.contour(line, line, log_density, levels=levels, **look)


@style()
def orthogonality(results: Results) -> Figure:
    """The paper's histogram: deviation from orthogonality of all runs on Speech4, N = 500."""
    cells = [
        cell for cell in results["cells"] if cell["name"] == "Speech4" and cell["n_samples"] == 500
    ]
    figure, axes = new_figure(
        1, len(cells), width=_WIDE if len(cells) > 1 else _WIDE / 2, height=3.0, squeeze=False
    )
    for panel, cell in zip(axes[0], cells, strict=True):
        histogram = cell["histogram"]
        threshold = histogram["threshold"]
        edges = np.arange(0.0, 95.0, 5.0)
        counts, _, _ = panel.hist(histogram["deviation"], edges, color=BLUE, edgecolor="white")
        top = counts.max()
        arrow = {"arrowstyle": "-|>", "color": BLACK, "lw": 1.8}
        panel.annotate("", (threshold, 0), (threshold, 0.45 * top), arrowprops=arrow)
        panel.set_ylim(0, 1.18 * top)  # room for the words
        panel.text(88, 1.15 * top, f"threshold {threshold:g}°", ha="right", va="top")
        panel.set_title(f"{named(cell)}: {cell['variant'].split('; ')[-1]}")
        panel.yaxis.get_major_locator().set_params(integer=True)
        panel.set(xlabel="largest deviation from 90° / degrees", xlim=(0, 90))
    axes[0, 0].set_ylabel("runs")
    return figure


@style()
def table(results: Results) -> Figure:
    """The table as a picture: ours filled, the printed values hollow, lower is better."""
    sizes = sorted({cell["n_samples"] for cell in results["cells"]})
    rows = list(dict.fromkeys((named(cell), cell["variant"]) for cell in results["cells"]))
    figure, axes = new_figure(
        1, len(sizes), width=_WIDE, height=1.4 + 0.62 * len(rows), sharey=True, sharex=True
    )
    for panel, size in zip(axes, sizes, strict=True):
        for cell in results["cells"]:
            if cell["n_samples"] != size:
                continue
            row = rows.index((named(cell), cell["variant"]))
            panel.axhspan(row - 0.5, row + 0.5, color="#F4F4F4" if row % 2 else "white", zorder=0)
            for place, (column, (colour, marker)) in enumerate(_MARKERS.items()):
                y = row + 0.11 * (place - 3)
                look = {"color": colour, "markersize": 6, "linestyle": "none"}
                if column in PRINTED_COLUMNS:
                    value = cell["printed"][column]["amari"]
                    panel.plot(value, y, marker, markerfacecolor="none", **look)
                panel.plot(cell["columns"][column]["amari"], y, marker, **look)
        panel.set(title=f"N = {size}", xlabel="mean Amari index")
        panel.grid(False, axis="y")
    names = [f"{name}\n{variant.split('; ')[-1]}" for name, variant in rows]
    axes[0].set_yticks(range(len(rows)), [_wrapped(name) for name in names])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_xlim(left=0)
    handles = [
        panel.plot([], [], marker, color=colour, linestyle="none", label=COLUMNS[column])[0]
        for column, (colour, marker) in _MARKERS.items()
    ]
    handles += panel.plot(
        [], [], "o", color=BLACK, markerfacecolor="none", linestyle="none", label="hollow: printed"
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _wrapped(name: str) -> str:
    first, second = name.split("\n")
    return f"{first}\n{fill(second, 26)}"
