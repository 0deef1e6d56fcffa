"""The figures show what they are given."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.stats import norm

from spikeslab import Prior, plotting

matplotlib = pytest.importorskip("matplotlib")

RATE = 8000


def tone(frequency, n_samples=RATE, rate=RATE):
    return np.sin(2 * np.pi * frequency * np.arange(n_samples) / rate)


# ---- style ----


def test_the_style_is_left_behind_nowhere():
    before = dict(matplotlib.rcParams)
    with plotting.style():
        assert matplotlib.rcParams["axes.grid"]
    plotting.waveform(tone(5))
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_imported_when_a_figure_is_drawn_and_pyplot_never():
    program = """
import sys
import spikeslab.plotting
assert "matplotlib" not in sys.modules
figure, axes = spikeslab.plotting.new_figure(2, 3)
assert axes.shape == (2, 3)
spikeslab.plotting.to_svg(figure)
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_matplotlib_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'spikeslab\[app\]'"):
        plotting.waveform(tone(5))


def test_an_svg_is_xml_that_refers_to_nothing_outside_and_is_the_same_each_time():
    first, second = (
        plotting.to_svg(plotting.waveform(tone(5), rate=RATE, spectrogram=True)) for _ in range(2)
    )
    assert first == second
    root = ElementTree.fromstring(first)
    links = [
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.endswith("href")
    ]
    assert any(link.startswith("data:image/png") for link in links)
    assert all(link.startswith(("data:image/png", "#")) for link in links)


def test_colours_differ_in_lightness_or_line():
    assert len(set(plotting.COLOURS)) == len(set(map(str, plotting.LINES))) == 7


# ---- signals ----


def test_one_outstanding_sample_of_a_million_is_seen():
    signal = np.zeros(1_000_000)
    signal[654_321] = -7.0
    axes = plotting.waveform(signal, rate=1e6).axes[0]
    outline = axes.collections[0].get_paths()[0].vertices
    x, y = outline[outline[:, 1].argmin()]
    assert y == -7.0
    assert x == pytest.approx(0.654321, abs=1 / 480)
    assert axes.get_ylim()[0] < -7 < 0 < axes.get_ylim()[1]


def test_a_short_signal_is_drawn_sample_by_sample():
    signal = np.random.default_rng(0).standard_normal(50)
    line = plotting.waveform(signal, rate=10.0).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), signal)
    np.testing.assert_allclose(line.get_xdata(), np.arange(50) / 10)


@pytest.mark.parametrize("signal", [np.zeros(20), np.full(20, -3.0), np.full(5000, 2.0)])
def test_constant_signals_are_inside_their_axes(signal):
    low, high = plotting.waveform(signal).axes[0].get_ylim()
    assert low < signal[0] < high


@pytest.mark.parametrize("rate", [100.0, 8000.0, 44_100.0])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.8])
def test_a_tone_lies_at_its_frequency(rate, place):
    """The place of the loudest row times half of the rate."""
    power = plotting.power_spectrogram(tone(place * rate / 2, int(3 * rate), rate), rate)
    rows = power.shape[1]
    assert abs((power.mean(axis=0).argmax() + 0.5) / rows - place) < 1.5 / rows
    assert power.max() == 0


def test_a_tone_lies_at_its_time():
    signal = np.zeros(40 * RATE)
    signal[24 * RATE : 26 * RATE] = tone(1000, 2 * RATE)
    power = plotting.power_spectrogram(signal, RATE)
    loud = np.flatnonzero(power.max(axis=1) > -20)
    np.testing.assert_allclose(loud[[0, -1]] / len(power), [24 / 40, 26 / 40], atol=2 / len(power))
    assert np.ptp(np.diff(loud)) == 0


def test_decibels_are_of_power():
    signal = np.concatenate([tone(1000), 0.1 * tone(1000)])
    power = plotting.power_spectrogram(signal, RATE).max(axis=1)
    assert power[len(power) // 4] == 0
    assert power[3 * len(power) // 4] == pytest.approx(-20, abs=0.8)


@pytest.mark.parametrize("n_samples", [2, 3, 17, 100, 300_000])
def test_a_spectrogram_of_any_length_has_a_bounded_size(n_samples):
    power = plotting.power_spectrogram(np.ones(n_samples), RATE)
    assert 1 <= power.shape[0] <= 480
    assert 1 <= power.shape[1] < 256
    assert np.isfinite(power).all()
    assert (plotting.power_spectrogram(np.zeros(n_samples), RATE) == -60).all()


def test_a_spectrogram_needs_a_rate():
    with pytest.raises(ValueError, match="needs the rate"):
        plotting.waveform(tone(5), spectrogram=True)


def test_axes_have_units():
    with_rate = plotting.waveform(tone(5), rate=RATE, spectrogram=True)
    assert [axes.get_ylabel() for axes in with_rate.axes] == ["amplitude", "kHz", "dB"]
    assert with_rate.axes[1].get_xlabel() == "time / s"
    assert plotting.waveform(tone(5)).axes[0].get_xlabel() == "sample"


# ---- what was learned ----


def cells(figure):
    return [text.get_text().replace("\N{MINUS SIGN}", "-") for text in figure.axes[0].texts]


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 30.0, 1e6])
def test_the_numbers_of_a_small_matrix(scale):
    mixing = scale * np.array([[1.5, -0.25, 0.0], [1.0, 0.5, -1.25]])
    written = [float(cell) for cell in cells(draw_mixing(mixing))]
    np.testing.assert_allclose(written, mixing.ravel(), atol=0.06 * scale, rtol=0.5)


def draw_mixing(mixing):
    names = [[f"{kind}{i}" for i in range(n)] for kind, n in zip("cs", mixing.shape, strict=True)]
    return plotting.mixing_matrix(mixing, channels=names[0], sources=names[1])


def test_a_large_matrix_is_an_image_with_some_of_its_names():
    mixing = np.random.default_rng(0).standard_normal((64, 20))
    figure = draw_mixing(mixing)
    assert cells(figure) == []
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), mixing)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    places = figure.axes[0].get_yticks()
    assert 8 <= len(names) <= 20
    assert names == [f"c{place}" for place in places]


def test_colours_of_a_matrix_are_white_at_zero():
    image = draw_mixing(np.array([[0.5, -2.0]])).axes[0].images[0]
    assert image.norm.vmin == -image.norm.vmax == -2
    assert image.norm(0.0) == 0.5


def test_names_are_taken_literally():
    figure = plotting.mixing_matrix(
        np.eye(2), channels=["$price_{", "a very long name of a channel"], sources=["%", "\\"]
    )
    plotting.to_svg(figure)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["$price_{", "a very long n…"]


def curves():
    return [
        plotting.Curve("noise-free", [-900.0, -3.0, -2.0]),
        plotting.Curve("noise-free", [-800.0, -3.0, -2.5]),
        plotting.Curve("shared prior", [-700.0, -2.0, -1.5, -1.4], chosen=True),
        plotting.Curve("shared prior", [-700.0, -2.0, -1.5, -1.45]),
    ]


def test_families_differ_in_colour_and_in_line():
    figure = plotting.likelihoods(curves())
    handles = figure.legends[0].legend_handles
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["noise-free", "shared prior", "the chosen run"]
    first, second = handles[:2]
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_every_run_ends_inside_of_the_picture_and_the_chosen_is_the_thickest():
    axes = plotting.likelihoods(curves()).axes[0]
    low, high = axes.get_ylim()
    assert -900 < low < -2.5
    assert high > -1.4
    drawn = {tuple(line.get_ydata()): line for line in axes.lines if line.get_color() != "white"}
    for curve in curves():
        assert tuple(curve.values) in drawn
    widths = {values: line.get_linewidth() for values, line in drawn.items() if len(values) > 1}
    assert max(widths, key=widths.__getitem__) == (-700.0, -2.0, -1.5, -1.4)


@pytest.mark.parametrize("values", [[-5.0], [-5.0, -5.0], [1e12, 1e12 + 1]])
def test_curves_with_nothing_to_see(values):
    figure = plotting.likelihoods([plotting.Curve("only", values, chosen=True)])
    low, high = figure.axes[0].get_ylim()
    assert low < values[-1] < high
    plotting.to_svg(figure)


PRIOR = Prior(
    weights=[[0.0, 1.0, 0.0], [0.3, 0.5, 0.2]],
    means=[[0.0, 1.0, 0.0], [0.0, 0.5, -1.0]],
    variances=[[0.0, 1.0, 1.0], [1e-4, 0.25, 2.0]],
)


def test_the_fitted_density_is_the_mixture():
    values = np.random.default_rng(0).standard_normal(5000)
    axes = plotting.density(values, PRIOR, 1, label="x").axes[0]
    line = next(line for line in axes.lines if line.get_label() == "fitted density")
    expected = sum(
        weight * norm(mean, np.sqrt(variance)).pdf(line.get_xdata())
        for weight, mean, variance in zip(
            PRIOR.weights[1], PRIOR.means[1], PRIOR.variances[1], strict=True
        )
    )
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-9)
    # also a component far narrower than the picture is resolved
    assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=0.03)
    assert sum(line.get_linestyle() == "--" for line in axes.lines) == 3


def test_the_histogram_is_a_density():
    values = np.random.default_rng(0).standard_normal(5000)
    steps = plotting.density(values, PRIOR, 1).axes[0].patches[0].get_data()
    assert (steps.values * np.diff(steps.edges)).sum() == pytest.approx(1, abs=0.002)


def test_a_hard_spike_is_an_arrow_with_its_probability():
    prior = Prior.spike_and_slab([0.28])
    values = prior.sample(3000, np.random.default_rng(0))[0][:, 0]
    axes = plotting.density(values, prior, 0).axes[0]
    assert [text.get_text() for text in axes.texts] == ["", "exactly 0:\n72 %"]
    arrow = axes.texts[0]
    assert arrow.xy[0] == arrow.xyann[0] == 0
    line = next(line for line in axes.lines if line.get_label() == "fitted density")
    assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(0.28, abs=0.002)


def test_a_soft_spike_has_no_arrow():
    assert len(plotting.density(np.arange(10.0), PRIOR, 1).axes[0].texts) == 0


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-9])
def test_a_source_that_never_changes_has_a_picture(value):
    plotting.to_svg(plotting.density(np.full(100, value), Prior.spike_and_slab([0.5]), 0))


def test_the_band_is_two_standard_deviations():
    rng = np.random.default_rng(0)
    mean, deviation = rng.standard_normal(30), rng.uniform(0.1, 1, 30)
    figure = plotting.uncertainty(mean, deviation, rng.random(30), first=80, rate=1000.0)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    for time, low, high in zip(
        80 + np.arange(30), mean - 2 * deviation, mean + 2 * deviation, strict=True
    ):
        found = band[np.isclose(band[:, 0], time), 1]
        assert found.min() == pytest.approx(low)
        assert found.max() == pytest.approx(high)
    assert figure.axes[1].get_xlabel() == "time / ms"
