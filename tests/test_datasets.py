"""Sources with a known truth: their distributions, the noise, and files that the tests write."""

import wave
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.io import savemat, wavfile

from spikeslab import datasets
from spikeslab.datasets import (
    SAMPLINGS,
    load_icalab,
    load_speech,
    load_voices,
    mix,
    orthogonal_mixing,
)

N = 20_000


@pytest.fixture
def rng():
    return np.random.default_rng(1)


# ---- voices ----


def test_voices_are_alike_in_length_and_loudness_and_independent():
    voices = load_voices()
    assert voices.signals.shape == (36_000, 4)
    assert (voices.rate, len(set(voices.names))) == (8000, 4)
    assert np.abs(voices.signals).max() < 1
    np.testing.assert_allclose(voices.signals.std(axis=0), voices.signals.std(), rtol=0.01)
    np.testing.assert_allclose(voices.signals.mean(axis=0), 0, atol=1e-4)
    assert stats.kurtosis(voices.signals, axis=0).min() > 2  # sparse, as speech is
    correlations = np.corrcoef(voices.signals.T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.05


def test_voices_have_no_silence_at_either_end_and_do_not_clip():
    voices = load_voices()
    for end in (voices.signals[:400], voices.signals[-400:]):
        assert (np.abs(end).max(axis=0) > 0.01).all()
    for voice in voices.signals.T:
        peak = np.abs(voice).max()
        assert (np.abs(voice) == peak).sum() < 3


def test_the_embedded_files_are_small_and_plain():
    folder = Path(datasets.__file__).parent / "voices"
    files = list(folder.glob("*.wav"))
    assert sum(path.stat().st_size for path in files) < 400_000
    for path in files:
        with wave.open(str(path)) as file:
            layout = file.getnchannels(), file.getsampwidth(), file.getframerate()
        assert layout == (1, 2, 8000)


# ---- generators ----

GENERATED = {
    "laplace": (datasets.laplace, stats.laplace(scale=np.sqrt(0.5))),
    "uniform": (datasets.uniform, stats.uniform(-np.sqrt(3), 2 * np.sqrt(3))),
    "exponential": (datasets.exponential, stats.expon(-1)),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_sources_have_their_distribution(name, rng):
    draw, distribution = GENERATED[name]
    sources = draw(N, 2, rng)
    np.testing.assert_allclose(sources.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(sources.std(axis=0), 1)
    for source in sources.T:
        assert stats.kstest(source, distribution.cdf).statistic < 0.015


def test_cauchy_sources_keep_their_centre(rng):
    sources = datasets.cauchy(N, 3, rng)
    np.testing.assert_allclose(sources.std(axis=0), 1)
    for source in sources.T:
        low, centre, high = np.quantile(source, [0.25, 0.5, 0.75])
        assert abs(centre) < 0.05 * (high - low)
        unit = stats.kstest(2 * source / (high - low), stats.cauchy.cdf)
        assert unit.statistic < 0.015


def test_spike_and_slab_sources_are_zero_or_gaussian(rng):
    activation = np.array([0.1, 0.5, 1.0])
    sources = datasets.spike_and_slab(N, 3, rng, activation)
    np.testing.assert_allclose((sources != 0).mean(axis=0), activation, atol=0.01)
    np.testing.assert_allclose(sources.var(axis=0), 1, atol=0.05)
    for source, probability in zip(sources.T, activation, strict=True):
        active = source[source != 0] * np.sqrt(probability)
        assert stats.kstest(active, stats.norm.cdf).statistic < 0.03


class TwoGaussians:
    """Three in ten from N(2, .5^2), the others from N(-1, 1)."""

    def mean(self):
        return 0.3 * 2 - 0.7

    def std(self):
        return np.sqrt(0.3 * (0.25 + 4) + 0.7 * (1 + 1) - self.mean() ** 2)

    def ppf(self, levels):
        grid = np.linspace(-6, 6, 10_001)
        cdf = 0.3 * stats.norm.cdf(grid, 2, 0.5) + 0.7 * stats.norm.cdf(grid, -1, 1)
        return np.interp(levels, cdf, grid)


def test_sergio7_has_its_seven_distributions(rng):
    sources = datasets.sergio7(N, rng)
    assert sources.shape == (N, 7)
    np.testing.assert_allclose(sources.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(sources.std(axis=0), 1)
    levels = np.linspace(0.05, 0.95, 19)
    families = [
        stats.expon(),
        stats.gamma(0.5),
        stats.lognorm(1),
        stats.beta(1, 4),
        stats.rayleigh(),
        TwoGaussians(),
        stats.weibull_min(0.7),
    ]
    signs = [1, 1, 1, 1, 1, 1, -1]
    for source, sign, family in zip(sources.T, signs, families, strict=True):
        expected = (family.ppf(levels) - family.mean()) / family.std()
        np.testing.assert_allclose(np.quantile(sign * source, levels), expected, atol=0.08)


def test_c5_has_light_tails_and_hardly_correlates(rng):
    sources = datasets.c5(5000, rng)
    assert sources.shape == (5000, 5)
    np.testing.assert_allclose(sources.std(axis=0), 1)
    kurtosis = stats.kurtosis(sources, axis=0, fisher=False)
    np.testing.assert_allclose(kurtosis[[0, 1, 2, 4]], [1.5, 1, 1.8, 1.8], atol=0.1)
    assert np.abs(np.corrcoef(sources.T) - np.eye(5)).max() < 0.05
    assert set(np.round(sources[:, 1], 6)) == set(np.round(sources[:2000, 1], 6))
    assert len(set(np.round(sources[:, 1], 6))) == 2  # the square wave


def test_orthogonal_mixing_is_orthogonal_and_without_preference(rng):
    draws = np.array([orthogonal_mixing(3, rng) for _ in range(4000)])
    np.testing.assert_allclose(draws @ draws.transpose(0, 2, 1) - np.eye(3), 0, atol=1e-12)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=0.05)  # also the diagonal
    np.testing.assert_allclose((draws**2).mean(axis=0), 1 / 3, atol=0.02)
    assert abs(np.sign(np.linalg.det(draws)).mean()) < 0.06


def test_noise_is_relative_to_the_mean_variance_of_the_channels(rng):
    sources = datasets.laplace(N, 2, rng) + np.array([3.0, 0.0])
    mixing = np.array([[1.0, 2.0], [0.0, 0.1], [-3.0, 1.0]])
    clean = mix(sources, mixing)
    np.testing.assert_allclose(clean[7], mixing @ sources[7])
    noise = mix(sources, mixing, snr_db=6, rng=rng) - clean
    channels = [np.var(clean[:, channel]) for channel in range(3)]
    expected = sum(channels) / 3 / 10**0.6
    np.testing.assert_allclose(noise.var(axis=0), expected, rtol=0.05)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.03


def test_generators_repeat_for_a_seed():
    for draw in (datasets.sergio7, datasets.c5):
        first, second = (draw(50, np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


BAD_CALLS = {
    "one sample": (lambda rng: datasets.laplace(1, 2, rng), ValueError, "n_samples must be at"),
    "no source": (lambda rng: datasets.uniform(9, 0, rng), ValueError, "n_sources must be at"),
    "half a sample": (lambda rng: datasets.sergio7(2.5, rng), TypeError, "whole number"),
    "activation": (
        lambda rng: datasets.spike_and_slab(9, 2, rng, [0.2, 0.0]),
        ValueError,
        "activation must be above 0",
    ),
    "shapes": (lambda rng: mix(np.ones((9, 2)), np.ones((3, 3))), ValueError, "shape any x 2"),
    "no generator": (
        lambda rng: mix(np.ones((9, 2)), np.eye(2), snr_db=3),
        TypeError,
        "rng must be",
    ),
    "decibels": (
        lambda rng: mix(np.ones((9, 2)), np.eye(2), snr_db="3", rng=rng),
        TypeError,
        "snr_db must be a number",
    ),
    "infinite": (
        lambda rng: mix(np.ones((9, 2)), np.eye(2), snr_db=np.inf, rng=rng),
        ValueError,
        "snr_db must be",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments(case, rng):
    call, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call(rng)


# ---- recorded speech ----

RATE = 8000
LANGUAGES = ("en", "es", "fr", "it", "ru")


def write_prompt(path, samples, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, np.asarray(samples).astype(np.int16))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Like Debian's: a folder per language, one of them under two names, short and silent files."""
    root = tmp_path_factory.mktemp("sounds")
    rng = np.random.default_rng(0)
    for number, language in enumerate(LANGUAGES):
        home = root / f"{language}_XX_f_Somebody"
        for name in ("vm-intro", "vm-rec-name", "digits/hundred"):
            samples = 2000 * rng.laplace(size=12_000)
            samples[4000:6000] = rng.normal(size=2000)  # a pause
            write_prompt(home / f"{name}.wav", samples)
        write_prompt(home / "beep.wav", samples[:5000])
        write_prompt(home / "silence/2.wav", np.zeros(16_000))
        write_prompt(home / "tt-monkeys.wav", samples)
        write_prompt(home / f"only-{number}.wav", samples)
    (root / "en").symlink_to(root / "en_XX_f_Somebody")
    (root / "readme.txt").write_text("not a folder")
    return root


def test_speech_has_every_long_prompt_once(prompts):
    speech = load_speech(prompts)
    assert speech.speakers == LANGUAGES
    assert speech.rate == RATE
    assert set(speech.prompts["en"]) == {
        "vm-intro.wav",
        "vm-rec-name.wav",
        "digits/hundred.wav",
        "only-0.wav",
    }
    assert all(path.is_absolute() for path in speech.prompts["en"].values())
    assert load_speech(prompts, ("ru", "en")).speakers == ("ru", "en")


def test_other_folders_are_speakers_by_their_names(tmp_path):
    for name in ("alice", "bob"):
        write_prompt(tmp_path / name / "a.wav", 100 * np.ones(9000))
    assert load_speech(tmp_path).speakers == ("alice", "bob")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_draws_are_standardised_and_repeat(prompts, sampling):
    speech = load_speech(prompts, ("en", "fr", "it", "ru"))
    first, second = (speech.draw(500, np.random.default_rng(4), sampling) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (500, 4)
    np.testing.assert_allclose(first.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(first.std(axis=0), 1)


@pytest.fixture
def ramps(tmp_path):
    """Prompts that count their samples, so that a draw tells which samples it took."""
    for name in ("alice", "bob"):
        write_prompt(tmp_path / name / "a.wav", np.arange(-15_000, 15_000, 2))
    return load_speech(tmp_path)


def steps_between(sources):
    """Of a ramp, between one sample and the next, in samples."""
    steps = np.diff(sources, axis=0)
    return steps / np.abs(steps).min()


def test_contiguous_draws_take_consecutive_samples(ramps, rng):
    steps = steps_between(ramps.draw(300, rng, "contiguous"))
    np.testing.assert_allclose(steps, 1)


def test_iid_draws_take_the_same_random_times_of_a_window(ramps, rng):
    sources = ramps.draw(300, rng)
    steps = steps_between(sources)
    assert (steps < 0).any()
    assert (steps > 0).any()
    np.testing.assert_allclose(sources[:, 0], sources[:, 1])  # the windows differ, the times do not
    assert len(np.unique(sources[:, 0])) == 300
    everything = np.sort(ramps.draw(5000, rng)[:, 0])
    np.testing.assert_allclose(steps_between(everything), 1)  # all of a window of 5000


def test_pauses_are_cut_out(tmp_path, rng):
    loud = 3000 * np.sign(rng.standard_normal(6400))
    samples = np.concatenate([loud, np.full(16_000, 50.0) * np.tile([1, -1], 8000), loud])
    write_prompt(tmp_path / "alice" / "a.wav", samples)
    speech = load_speech(tmp_path)
    for _ in range(5):
        kept = np.abs(speech.draw(1000, rng, "no pauses"))
        np.testing.assert_allclose(kept, 1, atol=0.1)
    uncut = [np.abs(speech.draw(1000, rng)) for _ in range(20)]
    assert min(draw.min() for draw in uncut) < 0.1


def test_silent_stretches_are_drawn_again(tmp_path, rng):
    samples = np.zeros(40_000)
    samples[:6000] = 3000 * rng.standard_normal(6000)
    write_prompt(tmp_path / "alice" / "a.wav", samples)
    speech = load_speech(tmp_path)
    for _ in range(20):
        assert np.isfinite(speech.draw(50, rng, "contiguous")).all()


def test_nothing_but_silence_is_an_error(tmp_path, rng):
    write_prompt(tmp_path / "alice" / "a.wav", np.zeros(9000))
    with pytest.raises(ValueError, match="no draw in 1000 has 5000 audible samples"):
        load_speech(tmp_path).draw(50, rng)


def test_halo_is_one_prompt_twice_per_speaker_once_faster(tmp_path, rng):
    time = np.arange(16_000) / RATE
    tones = {"alice": 300.0, "bob": 700.0}
    for name, frequency in tones.items():
        write_prompt(tmp_path / name / "a.wav", 9000 * np.sin(2 * np.pi * frequency * time))
        write_prompt(tmp_path / name / f"{name}.wav", 9000 * np.sin(2 * np.pi * 1500 * time))
    sources = load_speech(tmp_path).draw_halo(4000, rng, "contiguous")
    spectrum = np.abs(np.fft.rfft(sources * np.hanning(4000)[:, None], axis=0))
    peaks = spectrum.argmax(axis=0) * RATE / 4000
    np.testing.assert_allclose(peaks, [300, 700, 1.07 * 300, 1.07 * 700], atol=2)


def test_halo_needs_a_common_prompt(tmp_path, rng):
    for name in ("alice", "bob"):
        write_prompt(tmp_path / name / f"{name}.wav", 100 * rng.standard_normal(9000))
    with pytest.raises(ValueError, match=r"no prompt that all speakers say.*alice, bob"):
        load_speech(tmp_path).draw_halo(50, rng)


def test_speech_that_is_not_there(prompts, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_speech(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no prompts of anybody.*found: none"):
        load_speech(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no prompts of de of .*\(found: en\)"):
        load_speech(prompts, ["en", "de"])
    with pytest.raises(TypeError, match="speakers must be a collection of names, got 'en'"):
        load_speech(prompts, "en")


def test_prompts_that_cannot_be_used(tmp_path):
    write_prompt(tmp_path / "a" / "stereo.wav", np.ones((9000, 2)))
    with pytest.raises(ValueError, match=r"one channel, but .*stereo.wav has 2"):
        load_speech(tmp_path)
    (tmp_path / "a" / "stereo.wav").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match=r"cannot read .*stereo.wav: it ends too early"):
        load_speech(tmp_path)
    write_prompt(tmp_path / "a" / "stereo.wav", np.ones(9000))
    write_prompt(tmp_path / "b" / "fast.wav", np.ones(90_000), rate=16_000)
    with pytest.raises(ValueError, match="different sampling rates: 8000 Hz, 16000 Hz"):
        load_speech(tmp_path)


def test_bad_draws(prompts, rng):
    speech = load_speech(prompts)
    with pytest.raises(ValueError, match="n_samples must be at most 5000"):
        speech.draw(5001, rng)
    with pytest.raises(ValueError, match="n_samples must be at least 2"):
        speech.draw(1, rng)
    with pytest.raises(ValueError, match="sampling must be one of 'iid'"):
        speech.draw(9, rng, "random")


# ---- ICALAB ----


def test_icalab_files_are_read_whatever_their_variable_is_called(tmp_path, rng):
    speech, halo = rng.standard_normal((4, 5000)), rng.standard_normal((10, 600))
    savemat(tmp_path / "Speech4.mat", {"Speech4": speech, "fs": 8000})
    savemat(tmp_path / "10halo.mat", {"s": halo.astype(np.float32)}, do_compression=True)
    (tmp_path / "readme.txt").write_text("no matter")
    found = load_icalab(tmp_path)
    assert set(found) == {"Speech4", "10halo"}
    np.testing.assert_array_equal(found["Speech4"], speech.T)
    np.testing.assert_allclose(found["10halo"], halo.T, rtol=1e-6)
    assert found["10halo"].dtype == np.float64


def test_icalab_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the ICALAB folder .*nowhere does not exist"):
        load_icalab(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"there are no .mat files in the ICALAB folder"):
        load_icalab(tmp_path)
    savemat(tmp_path / "c5signals.mat", {"note": "nothing", "fs": 8000})
    with pytest.raises(ValueError, match=r"c5signals.mat: it must hold one matrix.*fs \(1 x 1\)"):
        load_icalab(tmp_path)


# ---- speakers whose folders are on this machine ----

INSTALLED = Path("/usr/share/asterisk/sounds")


@pytest.mark.skipif(not INSTALLED.is_dir(), reason="no asterisk-core-sounds-*-wav package")
def test_installed_prompts_are_speech(rng):
    speech = load_speech(INSTALLED)
    sources = np.stack([speech.draw(500, rng) for _ in range(20)])
    kurtosis = stats.kurtosis(sources, axis=1)
    assert np.median(kurtosis) > 1
    pairs = list(combinations(range(len(speech.speakers)), 2))
    correlations = [np.corrcoef(draw.T)[i, j] for draw in sources for i, j in pairs]
    assert np.mean(np.abs(correlations)) < 0.1
