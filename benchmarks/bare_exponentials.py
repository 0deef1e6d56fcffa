"""The kernel's own vectorised exp2 with nothing around it.

One exponential per state and point is the least that an exact E-step needs.
"""

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).parents[1]
_FLAGS = [
    "-std=gnu++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-exceptions",
    "-shared",
    "-fPIC",
]
_SOURCE = f"""
#include "{_ROOT}/src/spikeslab/_kernel/simd.hpp"
extern "C" void run(const double* x, double* y, long n, long times) {{
  for (long t = 0; t < times; t++) {{
    for (long i = 0; i < n; i += 4 * kLanes)
      for (int u = 0; u < 4; u++) store(y + i + u * kLanes, exp2(load(x + i + u * kLanes)));
    asm volatile("" ::"r"(y) : "memory");
  }}
}}
"""


def flags_of_variants() -> dict[str, list[str]]:
    """What CMakeLists.txt adds for each instruction set."""
    text = (_ROOT / "CMakeLists.txt").read_text()
    calls = re.findall(r'^ *add_kernel\((\S+) "(.*)"\)', text, re.M)
    return {name: flags.split(";") if flags else [] for name, flags in calls}


def _aligned(n: int) -> np.ndarray:
    memory = np.zeros(n + 8)
    return memory[-(memory.ctypes.data // 8) % 8 :][:n]


def bare_exponentials(variant: str, n_values: int, times: int) -> Callable[[], None]:
    """Return a function that takes 2^x of `n_values` numbers so many times.

    It is compiled with the flags of a kernel variant. `n_values` is a multiple of 32; up to 1024
    stay in the L1 cache.
    """
    if n_values % 32:
        raise ValueError(f"n_values must be a multiple of 32, got {n_values}")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "exps.cpp"), Path(folder, "exps.so")
        source.write_text(_SOURCE)
        command = ["g++", *_FLAGS, *flags_of_variants()[variant], str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        run = ctypes.CDLL(str(library)).run
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    x, y = _aligned(n_values), _aligned(n_values)
    x[:] = np.linspace(-60.0, 10.0, n_values)
    run(x.ctypes.data, y.ctypes.data, n_values, 1)
    np.testing.assert_allclose(y, np.exp2(x), rtol=1e-15)
    return lambda: run(x.ctypes.data, y.ctypes.data, n_values, times)
