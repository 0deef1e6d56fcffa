"""Gaussian Sparse Coding: spike-and-slab latent variable models fitted by exact maximum
likelihood.
"""

from .estimator import GaussianSparseCoding, Run
from .m_step import Model
from .maximise import Progress, Result, maximise
from .noise import DiagonalNoise, FullNoise, IsotropicNoise
from .parameters import Parameters
from .posterior import Posterior, Supports
from .prior import Prior, PriorFamily
from .statistics import Expectation, Statistics

__version__ = "0.1.0"

__all__ = [
    "DiagonalNoise",
    "Expectation",
    "FullNoise",
    "GaussianSparseCoding",
    "IsotropicNoise",
    "Model",
    "Parameters",
    "Posterior",
    "Prior",
    "PriorFamily",
    "Progress",
    "Result",
    "Run",
    "Statistics",
    "Supports",
    "maximise",
]
