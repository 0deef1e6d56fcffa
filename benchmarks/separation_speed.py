"""Time of `separate`, and of the noise-free estimator beside Picard on long recordings."""

import numpy as np

from measure import Settings, Table, Target, best_times
from problems import LANGUAGES
from separation_cells import recordings
from spikeslab import separate
from spikeslab.baselines import picard
from spikeslab.datasets import laplace, mix, orthogonal_mixing, spike_and_slab


def speed(settings: Settings) -> Table:
    table = Table("Speed, one thread")
    rng = np.random.default_rng(0)
    speech = recordings(settings.speech, LANGUAGES)
    halo = recordings(settings.speech, ("en", "es", "fr", "it", "ru"))
    rotation = orthogonal_mixing(4, rng)
    short = {
        ("speech4", 0.15): mix(speech.draw(500, rng), rotation),
        ("speech4 at 15 dB", 0.15): mix(speech.draw(500, rng), rotation, snr_db=15, rng=rng),
        ("spike-slab at 15 dB", 0.15): mix(
            spike_and_slab(500, 4, rng), rotation, snr_db=15, rng=rng
        ),
        ("halo10", 1.0): mix(halo.draw_halo(500, rng), orthogonal_mixing(10, rng)),
        ("laplace at 15 dB", 1.0): mix(
            laplace(500, 10, rng), orthogonal_mixing(10, rng), snr_db=15, rng=rng
        ),
    }
    for (name, bound), X in short.items():
        H = X.shape[1]
        best = best_times(
            {
                "separate": lambda X=X, H=H: separate(X, H, random_state=0),
                "number": lambda X=X: separate(X, random_state=0),
                "picard": lambda X=X: picard(X, random_state=0),
            },
            settings.seconds,
        )
        what = f"`separate(X, {H})`, {name}, N = 500"
        detail = f"{best['separate'] / best['picard']:.0f}x Picard"
        table.add(what, best["separate"], Target(bound, " s"), " s", detail)
        table.add(f"`separate(X)`, {name}, N = 500: also the number", best["number"], unit=" s")
    for H in (4, 10):
        X = mix(laplace(100_000, H, rng), orthogonal_mixing(H, rng))
        best = best_times(
            {
                "ours": lambda X=X, H=H: separate(X, H, method="noise_free", random_state=0),
                "picard": lambda X=X: picard(X, random_state=0),
                "extended": lambda X=X: picard(X, extended=True, random_state=0),
            },
            settings.seconds,
        )
        table.add(
            f"noise-free {H} x 100000 over Picard",
            best["ours"] / best["picard"],
            Target(1),
            detail=f"{best['ours']:.2f} over {best['picard']:.2f} s; Picard extended "
            f"{best['extended']:.2f} s",
        )
    return table
