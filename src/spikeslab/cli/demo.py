"""Four voices, mixed and separated again: how good it is, because here the truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.io import wavfile

from ..datasets import load_voices, mix
from ..metrics import amari_index, amari_index_of_mixing, match_sources, sdr
from ..signals import read
from .folder import output_folder
from .progress import separate_with_progress
from .results import PEAK, write_separation
from .summary import print_files, print_separation

SNR_DB = 20.0
SEED = 0


def run_demo(folder: Path, *, force: bool) -> None:
    voices = load_voices()
    rng = np.random.default_rng(SEED)
    mixing = rng.standard_normal((4, 4))
    mixture = mix(voices.signals, mixing, snr_db=SNR_DB, rng=rng)
    with output_folder(folder, force=force) as part:
        loudness = PEAK / np.abs(mixture).max()
        recording = part / "mixture.wav"
        wavfile.write(recording, voices.rate, np.round(32767 * loudness * mixture).astype(np.int16))
        signals = read(recording)
        separation = separate_with_progress(signals.data, 4, random_state=SEED)
        files = write_separation(part, separation, signals, "Four voices", report=True)
    print_separation(separation, voices.rate)

    order, _ = match_sources(separation.sources, voices.signals)
    before, after = sdr(mixture, voices.signals), sdr(separation.sources, voices.signals)
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("Voice")
    table.add_column("File")
    table.add_column("SDR before", justify="right")
    table.add_column("after", justify="right")
    for name, number, *ratios in zip(voices.names, order, before, after, strict=True):
        table.add_row(name, files[number], *(f"{ratio:.1f} dB" for ratio in ratios))
    console = Console(highlight=False)
    console.print(
        f"The truth is known here: four voices with noise {SNR_DB:g} dB below the mixture.\n",
        soft_wrap=True,
    )
    console.print(table)
    unit = np.diag(1 / mixture.std(axis=0))
    scaled = separation.mixing * separation.sources.std(axis=0)
    console.print(
        f"\nAmari index (0 is perfect, 1 the worst): {amari_index(unit, mixing):.3f} before, "
        f"{amari_index_of_mixing(scaled, mixing):.3f} after",
        soft_wrap=True,
    )
    print_files(folder, ["mixture.wav", *files])
