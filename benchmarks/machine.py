"""What a benchmark ran on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np

from spikeslab._kernel import available, chosen


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def _cpu() -> str:
    info, facts = Path("/proc/cpuinfo"), {}
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name", platform.processor() or platform.machine())
    if "cpu family" in facts:
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return name


def machine() -> str:
    commit = _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {platform.system()}; "
        f"kernel {chosen()} (of {', '.join(available())}); "
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {version('scipy')}, "
        f"GCC {_output('g++', '-dumpfullversion')}; spikeslab {version('spikeslab')}, "
        f"commit {commit}; "
        f"load average at the start {load}."
    )
