"""The report: what it says, what it embeds, and how its file comes into being."""

import ast
import os
import re
import shlex
import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy.io import wavfile

from separations import noise_free_separation, noisy_separation, sparse_mixture
from spikeslab.datasets import load_voices
from spikeslab.report import audio, findings, write_report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

RATE = 4000


class Page(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text = [], ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def noisy():
    X = sparse_mixture(np.random.default_rng(0), 2000, 3, 4)
    return noisy_separation(X, 3, agreement=[0.99, 0.42, 0.93], random_state=5)


@pytest.fixture(scope="module")
def free():
    rng = np.random.default_rng(0)
    return noise_free_separation(rng.laplace(size=(400, 2)), rng.standard_normal((2, 2)))


@pytest.fixture(scope="module")
def page(noisy, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(noisy, path, rate=RATE, title="A <b>test</b> & more")
    return Page(path)


@pytest.fixture(scope="module")
def plain(free, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(free, path)
    return Page(path)


# ---- the page ----


def test_it_says_what_was_found(page, noisy):
    assert "3 sources in 4 channels of 2,000 samples." in page.text
    assert findings.reason(noisy) in page.text
    assert f"{findings.snr_db(noisy):.1f} dB" in page.text
    assert "Source 2 should be checked" in page.text
    run = findings.chosen_run(noisy)
    assert f"{run.log_likelihood:.3f}".replace("-", "\N{MINUS SIGN}") in page.text


def test_it_has_a_row_for_every_source_and_every_kind_of_model(page):
    for words in (
        "Source 1 reliable 99 %",
        "Source 2 check other restarts found something else 42",
    ):
        assert words in page.text
    for family in ("own prior chosen", "shared prior", "noise-free"):
        assert family in page.text


def test_nothing_is_loaded_from_elsewhere(page, plain):
    for read in (page, plain):
        for tag, attributes in read.elements:
            for name in ("src", "href", "srcset", "poster", "data", "action"):
                assert attributes.get(name, "data:").startswith("data:"), tag
        outside = re.sub(r'"data:[^"]*"', "", read.source)
        assert not re.search(r"url\(|@import|https?:|http-equiv=.refresh", outside)
        policy = next(m["content"] for m in read.all("meta") if "http-equiv" in m)
        assert "default-src 'none'" in policy


def test_pictures_are_whole_and_described(page, plain):
    assert len(page.all("img")) == 3 + 4 + 1 + 1 + 3 + 3
    assert len(plain.all("img")) == 2 + 2 + 1 + 1 + 2
    for image in page.all("img") + plain.all("img"):
        assert len(image["alt"]) >= 20
        kind, svg = image["src"].split(",", 1)
        assert kind == "data:image/svg+xml"
        assert ElementTree.fromstring(unquote_to_bytes(svg)).tag.endswith("svg")


def test_tables_have_headers(page):
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("table")) == 2
    assert {th["scope"] for th in page.all("th")} == {"row", "col"}
    columns = sum(th["scope"] == "col" for th in page.all("th"))
    assert columns == 6 + 7


def test_players_play_the_signals(page, noisy):
    players = page.all("audio")
    names = [player["aria-label"] for player in players]
    assert names == [f"Source {i}" for i in (1, 2, 3)] + [f"Channel {i}" for i in (1, 2, 3, 4)]
    for player, signal in zip(players, [*noisy.sources.T, *noisy.data.T], strict=True):
        rate, samples = decoded(player["src"])
        assert rate == RATE
        assert samples.dtype == np.int16
        assert np.abs(samples).max() == pytest.approx(0.9 * 32767, abs=1)
        assert np.corrcoef(samples, signal)[0, 1] > 1 - 1e-6


def decoded(uri):
    kind, content = uri.split(";base64,")
    assert kind == "data:audio/wav"
    return wavfile.read(BytesIO(b64decode(content)))


def test_data_without_a_rate_have_neither_players_nor_spectrograms(plain):
    assert not plain.all("audio")
    assert not plain.all("script")
    assert not any("spectrogram" in image["alt"] for image in plain.all("img"))


def test_rates_that_browsers_refuse_have_no_players(free, tmp_path):
    write_report(free, tmp_path / "eeg.html", rate=250)
    read = Page(tmp_path / "eeg.html")
    assert not read.all("audio")
    assert any("spectrogram" in image["alt"] for image in read.all("img"))


def test_without_noise_nothing_is_uncertain(plain):
    assert "there is no uncertainty in their values" in plain.text
    assert "Noise none assumed by the model" in plain.text


def test_what_the_user_gives_is_escaped(page, tmp_path):
    assert "A &lt;b&gt;test&lt;/b&gt; &amp; more" in page.source
    assert not page.all("b")
    names = ['"><script>alert(1)</script>', "{{ 7 * 7 }}", "$x_{"]
    X = sparse_mixture(np.random.default_rng(1), 300, 2, 3)
    frame = noisy_separation(pd.DataFrame(X, columns=names), 2)
    write_report(replace(frame, data=X), tmp_path / "names.html")
    read = Page(tmp_path / "names.html")
    assert not read.all("script")
    for name in names:
        assert name in read.text
        assert any(name in image["alt"] for image in read.all("img"))


def test_it_can_be_repeated(page, noisy):
    assert (
        "separate(X, n_sources=3, method='auto', select='likelihood', random_state=5)" in page.text
    )
    ast.parse(findings.python_snippet(noisy))
    words = shlex.split(findings.command_line(noisy))
    assert words[:3] == ["spikeslab", "separate", "MIXTURE"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options == {"-n": "3", "--method": "auto", "--select": "likelihood", "--seed": "5"}
    assert findings.command_line(noisy) in page.text
    for name, version in findings.versions().items():
        assert f"{name} {version}" in page.text or name == "date"


def test_settings_that_cannot_be_written_down_are_left_out(noisy):
    odd = replace(noisy, settings={"n_sources": 3, "callback": print, "random_state": None})
    assert "separate(X, n_sources=3, random_state=None)" in findings.python_snippet(odd)
    assert findings.command_line(odd).endswith("MIXTURE -n 3")


def test_only_so_many_channels_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    wide = noise_free_separation(rng.laplace(size=(200, 2)), rng.standard_normal((70, 2)))
    write_report(wide, tmp_path / "wide.html")
    read = Page(tmp_path / "wide.html")
    assert "Only the first 24 of 70 channels are shown." in read.text
    assert "Heat map of the mixing matrix, 70 channels by 2 sources" in read.source
    assert sum("of Channel" in image["alt"] for image in read.all("img")) == 24


def test_a_single_source_in_single_precision(tmp_path):
    rng = np.random.default_rng(0)
    one = noise_free_separation(rng.laplace(size=(100, 1)), rng.standard_normal((2, 1)))
    write_report(replace(one, data=one.data.astype(np.float32)), tmp_path / "one.html", rate=8e3)
    assert "1 source in 2 channels of 100 samples." in Page(tmp_path / "one.html").text


def test_four_voices_are_three_megabytes_without_their_sound(tmp_path):
    voices = load_voices()
    rng = np.random.default_rng(0)
    X = voices.signals @ rng.standard_normal((4, 4))
    X += 0.1 * X.std() * rng.standard_normal(X.shape)
    write_report(noisy_separation(X, 4), tmp_path / "voices.html", rate=voices.rate)
    read = Page(tmp_path / "voices.html")
    sound = sum(len(player["src"]) for player in read.all("audio"))
    assert 7e5 < sound < 9e5
    assert len(read.source) - sound < 3e6


# ---- its words ----


def test_shares_of_the_variance_add_up():
    """Without noise and correlation the sources are all there is."""
    sources = np.random.default_rng(0).standard_normal((500, 3))
    sources = np.linalg.qr(sources - sources.mean(axis=0))[0] * [3.0, 2.0, 1.0]
    rows = findings.sources(noise_free_separation(sources, np.eye(3)))
    np.testing.assert_allclose([row.share for row in rows], [9 / 14, 4 / 14, 1 / 14], rtol=1e-9)


@pytest.mark.parametrize(
    ("agreement", "deviation", "doubts"),
    [
        (0.9, 0.5, 0),
        (0.89, 0.1, 1),
        (0.95, 0.51, 1),
        (0.3, 0.8, 2),
        (np.nan, 0.1, 1),
    ],
)
def test_the_rule_of_reliability(agreement, deviation, doubts):
    assert len(findings.Source("Source 1", agreement, 0.5, deviation, 0.1).doubts) == doubts


def test_the_signal_to_noise_ratio():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 2))
    X = (X - X.mean(axis=0)) / X.std(axis=0) * [1.0, 3.0]  # mean variance 5
    made = noisy_separation(X, 2)
    assert findings.snr_db(replace(made, noise_variance=0.5)) == pytest.approx(10 * np.log10(9))
    assert findings.snr_db(replace(made, noise_variance=0.0)) is None
    assert findings.snr_db(replace(made, noise_variance=6.0)) < -50
    loud = replace(made, noise_variance=3.0)
    assert any("noise is strong" in warning for warning in findings.warnings(loud))
    quiet = replace(made, noise_variance=0.1)
    assert not any("noise is strong" in warning for warning in findings.warnings(quiet))


def test_warnings_of_few_and_unfinished_runs(noisy, free):
    assert len(findings.warnings(noisy)) == 1
    said = " ".join(findings.warnings(free))
    assert "Sources 1 and 2 should be checked" in said
    assert "had not converged when it stopped (max_iter) after 3 iterations" in said
    assert "only one run" in said


def with_criteria(separation, chosen, *others):
    """One run of each criterion, the first the chosen one."""
    run = separation.runs[0]
    runs = [replace(run, criterion=chosen, chosen=True)]
    for number, criterion in enumerate(others):
        family = f"rival {number}"
        runs.append(replace(run, criterion=criterion, chosen=False, family=family))
    return replace(separation, runs=tuple(runs))


def test_the_choice_in_a_sentence(noisy):
    clear = findings.reason(with_criteria(noisy, -100.0, -180.0, -123.4))
    assert "best of 3 kinds tried: by 23 nats" in clear
    assert clear.endswith("over the next, rival 1.")
    close = findings.reason(with_criteria(noisy, -100.0, -101.5))
    assert "hardly better than the next, rival 0: by 1.5 nats" in close
    assert "the only one tried, in 1 run" in findings.reason(with_criteria(noisy, -100.0))
    against = findings.reason(with_criteria(noisy, -100.0, -90.0))
    assert "although rival 0 has the higher likelihood" in against
    asked = replace(noisy, settings={"select": "orthogonality"})
    assert "because select='orthogonality' asked for it" in findings.reason(asked)


def test_the_number_of_sources_is_said_where_it_was_chosen(noisy):
    run = noisy.runs[0]
    fewer = replace(run, n_sources=1, chosen=False, criterion=run.criterion - 50)
    chosen = findings.reason(replace(noisy, runs=(run, fewer)))
    assert "kind: own prior with 3 sources" in chosen
    assert chosen.endswith("own prior with 1 source.")


def test_kinds_of_models_are_grouped(noisy):
    rows = findings.candidates(noisy)
    assert [(row.family, row.n_runs) for row in rows] == [
        ("own prior", 3),
        ("shared prior", 1),
        ("noise-free", 1),
    ]
    assert [row.chosen for row in rows] == [True, False, False]
    np.testing.assert_allclose([row.penalty for row in rows], 20, rtol=1e-6)


# ---- its sound ----


@pytest.mark.parametrize("n_signals", [1, 8, 48])
@pytest.mark.parametrize("rate", [3000, 8000, 44_100.0, 96_000, 11_025.3])
@pytest.mark.parametrize("seconds", [0.01, 4, 61, 7200])
def test_sound_is_kept_small_and_what_was_left_out_is_said(n_signals, rate, seconds):
    excerpt = audio.Excerpt.of(n_signals, int(seconds * rate), rate)
    size = n_signals * excerpt.seconds * excerpt.rate * 2 * 4 / 3
    assert size <= 12_000_000 * (1 + 1e-9)
    assert excerpt.seconds <= 60
    assert 3000 <= excerpt.rate <= 48_000
    small = seconds <= 60 and rate <= 48_000 and n_signals * seconds * rate * 8 / 3 <= 12_000_000
    assert bool(excerpt.sentence) != small
    if excerpt.seconds < 60 and seconds > 60:  # no more is left out than needed
        assert size > 11_900_000


def test_the_sentence_names_both_losses():
    said = audio.Excerpt.of(20, 96_000 * 120, 96_000.0).sentence
    assert said.endswith("the first 14 of 120 seconds and a rate of 16000 Hz instead of 96000 Hz.")


def test_a_tone_keeps_its_frequency_at_a_lower_rate():
    excerpt = audio.Excerpt(rate=16_000, seconds=1.5, original_rate=44_100.0, original_seconds=2.0)
    times = np.arange(2 * 44_100) / 44_100
    rate, samples = decoded(audio.wav_uri(5.0 + np.sin(2 * np.pi * 1000 * times), excerpt))
    assert rate == 16_000
    assert len(samples) == pytest.approx(1.5 * 16_000, abs=2)
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert spectrum.argmax() * rate / len(samples) == pytest.approx(1000, abs=1)


def test_silence_stays_silent():
    excerpt = audio.Excerpt.of(1, 100, 8000.0)
    for silence in (np.zeros(100), np.full(100, 3.0)):
        assert not decoded(audio.wav_uri(silence, excerpt))[1].any()


# ---- its file ----


def test_a_report_that_fails_leaves_the_former_one(noisy, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("former")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_report(noisy, path)
    assert path.read_text() == "former"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_former_report_is_replaced(free, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("former")
    write_report(free, path, title="new")
    assert "<h1>new</h1>" in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_folder_must_exist_and_the_file_not_be_one(free, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write .*there is no folder .*nowhere$"):
        write_report(free, tmp_path / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError, match="it is a folder; give the name of a file"):
        write_report(free, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(free, tmp_path / "file" / "report.html")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rate": 0}, ValueError, "rate must be above 0, got 0"),
        ({"rate": -8000}, ValueError, "rate must be above 0"),
        ({"rate": np.nan}, ValueError, "rate must be above 0, got nan"),
        ({"rate": "8000"}, TypeError, "rate must be a number, got '8000'"),
        ({"title": 3}, TypeError, "title must be a string, got 3"),
    ],
)
def test_bad_arguments(free, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        write_report(free, tmp_path / "report.html", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_missing_jinja_is_named_with_its_remedy(free, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'spikeslab\[app\]'"):
        write_report(free, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
