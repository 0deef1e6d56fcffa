"""Other methods of source separation to compare with, each one function.

They take samples X of shape (N, D) and return an unmixing matrix of shape (H, D): the sources are
``(X - X.mean(0)) @ unmixing.T``.
"""

from .jade import jade
from .kernel_ica import kernel_ica
from .least_squares_ica import least_squares_ica
from .peers import fast_ica, picard

__all__ = ["fast_ica", "jade", "kernel_ica", "least_squares_ica", "picard"]
