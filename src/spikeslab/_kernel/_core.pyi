from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.floating[Any]]

def available() -> list[str]:
    """Names of the kernels this CPU can run, the best first."""

def chosen() -> str:
    """Name of the kernel in use."""

def use(name: str) -> None:
    """Use another kernel; an empty name is the best one."""

def sum_densities(
    signals: _Array, unmixing: _Array, weights: _Array, means: _Array, variances: _Array
) -> tuple[_Array, _Array, _Array, _Array]:
    """Sums over N points of the mixture densities of sources ``u = B x``, for R runs side by side.

    `signals` is (H, N), `unmixing` (R, H, H), the rest (R, H, K). Returns the log density of u
    (R,); per component the responsibility r, r u and r u^2 (3, R, H, K); psi_i u_j for the scores
    ``psi = -d log p / du`` (R, H, H); and ``d psi / du`` (R, H).
    """

def gaussian_densities(y: _Array, covariances: _Array, noise: float) -> _Array:
    """Log density (N, R) of what is observed of each row of y (N, D), NaN being missing, under
    ``N(0, C + noise I)`` for each of the covariances C, (R, D, D).

    Fastest where neighbouring rows have about as many entries, as in `gaussian_moments`.
    """

def gaussian_moments(
    y: _Array, covariance: _Array, noise: float, weights: _Array | None = None
) -> tuple[_Array, _Array, _Array]:
    """Posterior mean and variance of every entry of z, (N, D) each, where ``y = z + e`` with ``z ~
    N(0, C)`` and white noise e; and with weights (N,) the weighted sum of <zz'>, (D, D), of which
    only the lower triangle is meant.
    """

class Tree:
    """What the posterior ``prod_h sum_k w N(x_h; m, v) * exp(b'x - x'Ax/2)`` needs that does not
    depend on b.

    Points come as b and as xhat, their posterior means under the *reference state*: every latent in
    its broadest component.
    """

    states: float
    log_constant: float
    def __init__(self, A: _Array, weights: _Array, means: _Array, variances: _Array) -> None: ...
    def reference(self) -> tuple[_Array, _Array, _Array]:
        """Means and variances of the reference components (H,), and the posterior covariance (H,
        H).
        """

    def evidence(self, b: _Array, xhat: _Array) -> _Array:
        """Log of each point's evidence over that of the reference state, (N,)."""

    def moments(
        self, b: _Array, xhat: _Array, probabilities: bool = False
    ) -> tuple[_Array, _Array, _Array, _Array, _Array]:
        """The evidence (N,), <x> (N, H), component probabilities (N or 0, H, K); summed over the
        points: per component the probability, <x> and <x^2> (3, H, K), and <xx'> (H, H).
        """

    def second_moments(self, b: _Array, xhat: _Array) -> _Array:
        """<xx'> of each point, (N, H, H)."""

    def log2_state_weights(self, xhat: _Array) -> _Array:
        """log2 weight of every state relative to the reference state, (N, states)."""

    def digits(self) -> list[tuple[int, list[int]]]:
        """How a state's number is read: per digit, the fastest first, the latent and what component
        each value means.
        """

class Observed:
    """Points given as observations ``y = offset + mixing x + e``, the noise e independent between
    features.

    ``precise`` is Sigma^-1 W and ``gain`` the regression of xhat on y, both (D, H); ``b0`` and
    ``xhat0`` are b and xhat at y = 0. Log densities come without the constant that does not depend
    on y.
    """

    def __init__(
        self,
        tree: Tree,
        precise: _Array,
        gain: _Array,
        mixing: _Array,
        offset: _Array,
        precision: _Array,
        b0: _Array,
        xhat0: _Array,
    ) -> None: ...
    def evidence(self, y: _Array) -> _Array:
        """Log density of each row of y, (N,)."""

    def moments(
        self, y: _Array, each: bool = False
    ) -> tuple[_Array, _Array, _Array, _Array, _Array, _Array]:
        """Log density (N,), <x> (N or 0, H), component probabilities (N or 0, H, K); summed over
        the points: per component the probability, <x> and <x^2> (3, H, K), <xx'> (H, H) and y <x>'
        (D, H).
        """

    def incomplete_evidence(self, y: _Array) -> _Array:
        """Log density of the observed entries of each row of y, NaN being missing, (N,). Unlike
        `evidence` it is complete, constants included.
        """

    def incomplete_moments(
        self, y: _Array, each: bool = False
    ) -> tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array]:
        """Log density of the observed entries (N,), <x> (N or 0, H), component probabilities (N or
        0, H, K), <xx'> (N or 0, H, H); summed over the points: per component the probability, <x>
        and <x^2> (3, H, K), <xx'> (H, H), y <x>' of the observed entries (D, H); over the points
        that miss each feature: <x> (D, H) and <xx'> (D, H, H).
        """

class Truncated:
    """Points y of D features with unit noise, of H latents that are zero or in one of C slabs; for
    each point the evidence of a cube of states. NaN is a missing entry.

    `mixing` is (H, D), `gram` its product with its transpose, the next three are (H, C); the log
    odds of a slab are against zero. `free` latents are free, the search turns at most `active` on
    and makes at most `moves` moves after its greedy part.
    """

    def __init__(
        self,
        mixing: _Array,
        gram: _Array,
        log_odds: _Array,
        means: _Array,
        variances: _Array,
        free: int,
        active: int,
        moves: int,
    ) -> None: ...
    def evidence(self, y: _Array) -> _Array:
        """Log of each point's evidence over that of all latents being zero, (N,)."""

    def moments(
        self, y: _Array, weights: _Array | None = None, each: bool = False
    ) -> tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array]:
        """The evidence (N,), <x> (N or 0, H) and slab probabilities (N or 0, H, C); summed over the
        points, times their weights: per slab its probability and the slopes of its log weight in
        its mean and (twice) in its variance (3, H, C), <xx'> (H, H) of which only the lower
        triangle is meant, <x y'> (H, D or more, where there is nothing to read), and <y> and <y^2>
        of the missing entries alone (2, D or more).
        """

    def predict(self, y: _Array) -> tuple[_Array, _Array]:
        """Mean and variance of what the latents make of every entry, (N, D) each."""

    def mean_and_spread(self, y: _Array, form: _Array) -> tuple[_Array, _Array, _Array]:
        """The evidence (N,), <x> (N, H) and the trace of form times covariance (N,)."""

    def states(self, y: _Array) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
        """The best set found, (N, H): 0 for zero, 1 for the first slab; and the free latents in
        rising order (N, free).
        """
