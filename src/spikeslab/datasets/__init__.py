"""Sources with a known truth: four embedded voices, recorded speech, the ICALAB benchmarks, and
generators.

Sources are arrays of shape (n_samples, n_sources), centred and of unit variance where they are
generated or drawn; `mix` makes data of them.
"""

from .generators import (
    c5,
    cauchy,
    exponential,
    laplace,
    mix,
    orthogonal_mixing,
    sergio7,
    spike_and_slab,
    uniform,
)
from .icalab import load_icalab
from .speech import SAMPLINGS, Speech, load_speech
from .voices import Recordings, load_voices

__all__ = [
    "SAMPLINGS",
    "Recordings",
    "Speech",
    "c5",
    "cauchy",
    "exponential",
    "laplace",
    "load_icalab",
    "load_speech",
    "load_voices",
    "mix",
    "orthogonal_mixing",
    "sergio7",
    "spike_and_slab",
    "uniform",
]
