"""Gaussian Sparse Coding: spike-and-slab latent variable models fitted by exact maximum
likelihood.
"""

__version__ = "0.1.0"

from ._estimator import Run
from .class_estimator import ClasswiseSparseCoding
from .estimator import GaussianSparseCoding
from .m_step import Model
from .maximise import Progress, Result, maximise
from .noise import DiagonalNoise, FullNoise, IsotropicNoise
from .noise_free_estimator import NoiseFreeSparseCoding
from .noise_free_parameters import NoiseFreeParameters
from .parameters import Parameters
from .posterior import Posterior, Supports
from .prior import Prior, PriorFamily
from .separation import (
    Reliability,
    Separation,
    SeparationProgress,
    SeparationRun,
    separate,
)
from .statistics import Expectation, Statistics
from .truncated import TruncatedInference

__all__ = [
    "ClasswiseSparseCoding",
    "DiagonalNoise",
    "Expectation",
    "FullNoise",
    "GaussianSparseCoding",
    "IsotropicNoise",
    "Model",
    "NoiseFreeParameters",
    "NoiseFreeSparseCoding",
    "Parameters",
    "Posterior",
    "Prior",
    "PriorFamily",
    "Progress",
    "Reliability",
    "Result",
    "Run",
    "Separation",
    "SeparationProgress",
    "SeparationRun",
    "Statistics",
    "Supports",
    "TruncatedInference",
    "maximise",
    "separate",
]
