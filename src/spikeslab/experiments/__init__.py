"""The experiments of the paper, one module each: `prior`, `verification`, `directions` and
`separation`.

A module lists its trials for a `Plan`, runs one of them, and summarises finished ones as plain
values. `reproduce` does all of it and keeps finished trials in a folder.
"""

from .plan import Plan
from .reproduce import EXPERIMENTS, reproduce
from .runner import TrialProgress

__all__ = ["EXPERIMENTS", "Plan", "TrialProgress", "reproduce"]
