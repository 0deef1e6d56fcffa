"""The compiled elimination tree: exact posteriors of K-component latents, for blocks of points.

At import the best instruction set of this CPU is chosen; the environment variable
``SPIKESLAB_KERNEL`` names another one (`available` lists them).
"""

from ._core import (
    Observed,
    Tree,
    Truncated,
    available,
    chosen,
    gaussian_densities,
    gaussian_moments,
    sum_densities,
    use,
)

__all__ = [
    "Observed",
    "Tree",
    "Truncated",
    "available",
    "chosen",
    "gaussian_densities",
    "gaussian_moments",
    "sum_densities",
    "use",
]
