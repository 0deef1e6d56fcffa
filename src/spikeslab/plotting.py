"""Figures of what was found: functions from arrays to a Matplotlib Figure, without pyplot's global
state.

Every figure is drawn at a width that can be read on a phone; pages put several side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ._arrays import Array
from .prior import Prior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito (2008), which the colour-blind can tell apart, in our order.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
GREY = "#5A5A5A"
# To be used along with COLOURS: nothing is told by colour alone.
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))

WIDTH = 4.6  # inches; half of a page, all of a phone

_STYLE: Any = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so figures look the same everywhere
    "font.size": 9.5,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#777777",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "xtick.color": "#777777",
    "ytick.color": "#777777",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "image.interpolation": "none",
    "savefig.dpi": 160,
    "svg.hashsalt": "spikeslab",  # the same data give the same file
}

_PIXELS = 480  # columns of a waveform or a spectrogram: more are not seen
_BINS = 128  # rows of a spectrogram
_FLOOR_DB, _STEP_DB = -60.0, 1.5
_WINDOW_SECONDS = 0.032
_WINDOWS_PER_COLUMN = 8
_MOST_CELLS_WITH_NUMBERS = 64
_ROOT_2_PI = float(np.sqrt(2 * np.pi))


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures of the library, for figures of one's own; also a decorator.

    Examples
    --------
    >>> from spikeslab.plotting import new_figure, style
    >>> with style():
    ...     figure, axes = new_figure(height=2.0)
    ...     _ = axes.plot([1, 2, 4])
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError("figures need Matplotlib: pip install 'spikeslab[app]'") from None
    with matplotlib.rc_context(_STYLE):
        yield


@style()
def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = 2.6, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure of the given inches and its axes: like `pyplot.subplots`, but held by nobody."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, **subplots)


@style()
def to_svg(figure: Figure) -> bytes:
    """The figure as a self-contained SVG file, its letters drawn as outlines."""
    file = BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


# ---- signals ----


@style()
def waveform(
    signal: Array, *, rate: float | None = None, spectrogram: bool = False, colour: str = BLUE
) -> Figure:
    """A signal against time, optionally above its spectrogram (for which `rate` is needed)."""
    if not spectrogram:
        figure, axes = new_figure(height=1.5)
        _draw_waveform(axes, signal, rate, colour)
        axes.set_xlabel(_time_label(rate))
        return figure
    if rate is None:
        raise ValueError("a spectrogram needs the rate of the signal")
    figure, (top, bottom) = new_figure(2, height=2.7, sharex=True, height_ratios=(1, 1.25))
    _draw_waveform(top, signal, rate, colour)
    unit, name = (1e3, "kHz") if rate >= 2000 else (1.0, "Hz")
    image = bottom.imshow(
        power_spectrogram(signal, rate).T,
        extent=(0, len(signal) / rate, 0, rate / 2 / unit),
        origin="lower",
        aspect="auto",
        cmap="magma",
        vmin=_FLOOR_DB,
        vmax=0,
    )
    bottom.grid(False)
    bottom.set(xlabel=_time_label(rate), ylabel=name)
    bar = figure.colorbar(image, ax=bottom, pad=0.02, aspect=12)
    bar.set_label("dB")
    bar.set_ticks([_FLOOR_DB, _FLOOR_DB / 2, 0])
    bar.outline.set_visible(False)
    return figure


def power_spectrogram(signal: Array, rate: float) -> Array:
    """Power in dB below its maximum, shape (times, frequencies), small enough to be drawn.

    Windows of about 32 ms (of the root of the number of samples where that is too short) start at
    evenly spaced times; every column is the mean over those that fall on it. Rounded to 1.5 dB,
    which nobody sees and which makes the picture a third of the size.
    """
    wanted = max(_WINDOW_SECONDS * rate, np.sqrt(len(signal)) if rate < 2000 else 0, 16)
    length = 1 << round(np.log2(wanted))
    length = min(length, 1 << int(np.log2(max(len(signal) // 2, 2))))
    steps = (len(signal) - length) // max(length // 4, 1) + 1
    columns = min(_PIXELS, steps)
    each = min(_WINDOWS_PER_COLUMN, -(-steps // columns))
    starts = np.linspace(0, len(signal) - length, columns * each).round().astype(int)
    rows = max(1, length // 2 // _BINS)
    power = np.empty((columns, length // 2 // rows))
    for column, some in enumerate(starts.reshape(columns, each)):
        windows = sliding_window_view(signal, length)[some] * np.hanning(length + 1)[:-1]
        density = (np.abs(np.fft.rfft(windows, axis=1)) ** 2).mean(axis=0)
        power[column] = density[1 : 1 + power.shape[1] * rows].reshape(-1, rows).mean(axis=1)
    top = power.max()
    if not top > 0:
        return np.full(power.shape, _FLOOR_DB)
    decibels = 10 * np.log10(np.maximum(power / top, 10 ** (_FLOOR_DB / 10)))
    return np.round(decibels / _STEP_DB) * _STEP_DB


def _draw_waveform(axes: Axes, signal: Array, rate: float | None, colour: str) -> None:
    """The signal itself, or where it is dense what lies between its least and largest values."""
    step = 1 / rate if rate else 1.0
    if len(signal) > 4 * _PIXELS:
        edges = np.linspace(0, len(signal), _PIXELS + 1).round().astype(int)
        low = np.minimum.reduceat(signal, edges[:-1])
        high = np.maximum.reduceat(signal, edges[:-1])
        centres = (edges[:-1] + edges[1:] - 1) / 2 * step
        axes.fill_between(centres, low, high, color=colour, linewidth=0.5)
    else:
        axes.plot(np.arange(len(signal)) * step, signal, color=colour, linewidth=0.8)
    axes.set_xlim(0, len(signal) * step)
    largest = float(np.abs(signal).max()) * 1.08 or 1.0
    axes.set_ylim(min(-largest * (signal.min() < 0), 0) or -0.02 * largest, largest)
    if signal.max() <= 0:
        axes.set_ylim(-largest, 0.02 * largest)
    axes.set_ylabel("amplitude")


def _time_label(rate: float | None) -> str:
    return "time / s" if rate else "sample"


# ---- what was learned ----


@style()
def mixing_matrix(
    mixing: Array, *, sources: Sequence[str], channels: Sequence[str], label: str = "weight"
) -> Figure:
    """Heat map of a mixing matrix (D, H), with numbers where they fit."""
    n_channels, n_sources = mixing.shape
    numbers = mixing.size <= _MOST_CELLS_WITH_NUMBERS and n_sources <= 8
    height = min(1.2 + 0.34 * n_channels if numbers else 1.2 + 0.16 * n_channels, 5.0)
    figure, axes = new_figure(height=max(height, 2.2))
    largest = float(np.abs(mixing).max()) or 1.0
    image = axes.imshow(mixing, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto")
    axes.grid(False)
    axes.tick_params(length=0)
    _name_ticks(axes.xaxis, sources, most=16 if numbers else 10)
    _name_ticks(axes.yaxis, channels, most=20)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if numbers:
        decimals = 2 - int(np.floor(np.log10(largest)))
        form = f"z.{max(decimals, 0)}f" if -2 <= decimals <= 4 else ".0e"
        for (channel, source), value in np.ndenumerate(mixing):
            shade = "white" if abs(value) > 0.6 * largest else "black"
            text = f"{value:{form}}".replace("-", "\N{MINUS SIGN}")
            axes.text(source, channel, text, ha="center", va="center", color=shade, fontsize=9)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label(label)
    return figure


def _name_ticks(axis: Any, names: Sequence[str], most: int) -> None:
    """As many names as fit, shortened where they are long."""
    every = slice(None, None, -(-len(names) // most))
    short = [name if len(name) <= 14 else name[:13] + "…" for name in names[every]]
    axis.set_ticks(range(len(names))[every], short)


class Curve(NamedTuple):
    """The log-likelihood of a run after every iteration, and the family the run belongs to."""

    family: str
    values: Sequence[float]
    chosen: bool = False


@style()
def likelihoods(curves: Sequence[Curve]) -> Figure:
    """Log-likelihood per sample of all runs; a family has a colour and a line style of its own."""
    figure, axes = new_figure(height=3.2)
    families = list(dict.fromkeys(curve.family for curve in curves))
    labelled = set()
    for curve in sorted(curves, key=lambda curve: curve.chosen):  # the chosen one on top
        kind = families.index(curve.family)
        iterations = np.arange(1, len(curve.values) + 1)
        look: dict[str, Any] = {
            "color": COLOURS[kind % len(COLOURS)],
            "linestyle": LINES[kind % len(LINES)],
            "label": None if curve.family in labelled else curve.family,
        }
        labelled.add(curve.family)
        if curve.chosen:
            axes.plot(iterations, curve.values, color="white", linewidth=5.0)
            axes.plot(iterations, curve.values, linewidth=2.8, **look)
            axes.plot(
                iterations[-1:],
                curve.values[-1:],
                marker="o",
                markersize=8,
                markeredgecolor="white",
                linestyle="none",
                color=look["color"],
                label="the chosen run",
                zorder=5,
            )
        else:
            axes.plot(iterations, curve.values, linewidth=1.2, alpha=0.7, **look)
    axes.set_xscale("log")
    axes.set(xlabel="iteration", ylabel="log-likelihood per sample / nats")
    axes.set_ylim(*_interesting([np.asarray(curve.values) for curve in curves]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    entries = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    order = [*families, *(["the chosen run"] if "the chosen run" in entries else [])]
    figure.legend(
        [entries[name] for name in order],
        order,
        loc="outside lower center",
        ncols=2,
        handlelength=3.0,
    )
    return figure


def _interesting(histories: Sequence[Array]) -> tuple[float, float]:
    """A range that shows how far apart the runs end, rather than the climb of the first
    iterations.
    """
    everything = np.concatenate(histories)
    top, middle = everything.max(), np.median(everything)
    apart = top - min(values[-1] for values in histories)
    shown = max(2.5 * apart, (0.1 if apart > 0 else 2.5) * (top - middle))
    low = max(everything.min(), top - shown)
    room = 0.05 * (top - low) or 0.5
    return low - room, top + room


@style()
def density(values: Array, prior: Prior, source: int, *, label: str = "source") -> Figure:
    """Histogram of a source's values with the fitted mixture, its components and its hard spike.

    `prior` is the learned density of all sources, of which that of `source` is drawn.
    """
    figure, axes = new_figure(height=2.8)
    weights, means = prior.weights[source], prior.means[source]
    deviations = np.sqrt(prior.variances[source])
    low, high = np.quantile(values, [0.0005, 0.9995])
    room = 0.08 * (high - low) or float(prior.variance[source]) ** 0.5 or 1.0
    low, high = min(low - room, 0), max(high + room, 0)
    heights, edges = np.histogram(values, bins=80, range=(low, high))
    width = edges[1] - edges[0]
    bars = heights / (len(values) * width)
    axes.stairs(bars, edges, fill=True, color="#C9C9C9", label="values found")

    soft = deviations > 0
    gaussians = np.array([weights, means, deviations]).T[soft]
    narrow = np.concatenate([m + s * np.linspace(-4, 4, 41) for _, m, s in gaussians] or [[]])
    grid = np.union1d(np.linspace(low, high, 400), narrow[(low <= narrow) & (narrow <= high)])
    parts = [w * np.exp(-(((grid - m) / s) ** 2) / 2) / (s * _ROOT_2_PI) for w, m, s in gaussians]
    least = 0.5 / (len(values) * width)
    top = 3 * max(bars.max(), min(np.sum(parts, axis=0).max() if parts else 0, 3 * bars.max()))
    for number, part in enumerate(parts if len(parts) > 1 else []):
        name = "its components" if number == 0 else None
        axes.plot(grid, part, color=SKY, linestyle="--", linewidth=1.1, label=name)
    if parts:
        axes.plot(grid, np.sum(parts, axis=0), color=BLUE, linewidth=1.8, label="fitted density")
    for weight, mean in zip(weights[~soft], means[~soft], strict=True):
        axes.annotate(
            "",
            (mean, top),
            (mean, least),
            arrowprops={"arrowstyle": "-|>", "color": VERMILLION, "lw": 2.2, "shrinkA": 0},
        )
        side = "left" if mean - low < 0.6 * (high - low) else "right"
        axes.annotate(
            f"exactly {mean:g}:\n{100 * weight:.0f} %",
            (mean, top),
            ((8 if side == "left" else -8), -2),
            textcoords="offset points",
            color="#A34700",
            ha=side,
            va="top",
        )
    axes.set_yscale("log")
    axes.set(xlim=(low, high), ylim=(least, top * 1.3), xlabel=label, ylabel="density")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=3, handlelength=2.2)
    return figure


@style()
def uncertainty(
    mean: Array,
    deviation: Array,
    activation: Array,
    *,
    first: int = 0,
    rate: float | None = None,
    label: str = "source",
) -> Figure:
    """A stretch of a source: posterior mean, two standard deviations around it and, below, the
    probability that the source is active. `first` is the number of its first sample.
    """
    figure, (top, bottom) = new_figure(2, height=2.6, sharex=True, height_ratios=(3, 1))
    step = 1e3 / rate if rate else 1.0
    times = (first + np.arange(len(mean))) * step
    band = (mean - 2 * deviation, mean + 2 * deviation)
    top.fill_between(times, *band, color=SKY, alpha=0.45, linewidth=0, label="± 2 std")
    top.plot(times, mean, color=BLUE, linewidth=1.2, label="posterior mean")
    top.set_ylabel(label)
    top.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, borderaxespad=0)
    bottom.fill_between(times, 0, activation, color=ORANGE, linewidth=0, step="mid")
    bottom.set(ylim=(0, 1), yticks=(0, 1), ylabel="P(active)", xlim=(times[0], times[-1]))
    bottom.set_xlabel("time / ms" if rate else "sample")
    return figure


# ---- images ----


@style()
def pictures(panels: Mapping[str, Array]) -> Figure:
    """Images side by side under their titles, grey (h, w) or coloured (h, w, 3), white being 1."""
    shape = next(iter(panels.values())).shape
    width = 2 * WIDTH
    height = width / len(panels) * shape[0] / shape[1] + 0.3
    figure, axes = new_figure(1, len(panels), width=width, height=height, squeeze=False)
    for panel, (title, image) in zip(axes[0], panels.items(), strict=True):
        panel.imshow(np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1)
        panel.set_title(title)
        panel.set_axis_off()
    return figure


@style()
def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
