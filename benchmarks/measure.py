"""Times that can be compared, and tables that say whether a target was met."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BURST = 0.005  # seconds


@dataclass(frozen=True)
class Settings:
    """How thorough a run is, and where the recordings are."""

    quick: bool
    speech: Path

    @property
    def seconds(self) -> float:
        """Time for one comparison."""
        return 0.5 if self.quick else 3.0


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_times(competitors: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the least time of one call of each.

    They take turns, so that a slow spell of the machine hits all of them; a short call is made
    several times per turn, so that its best one finds its data in the cache.
    """
    best = {name: min(_time(call), _time(call)) for name, call in competitors.items()}
    burst = {name: max(1, int(_BURST / once)) for name, once in best.items()}
    turns = max(2, int(seconds / sum(burst[name] * best[name] for name in best)))
    for _ in range(turns):
        for name, call in competitors.items():
            best[name] = min(best[name], *(_time(call) for _ in range(burst[name])))
    return best


@dataclass(frozen=True)
class Target:
    bound: float
    unit: str = "x"
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}{self.unit}"

    def verdict(self, value: float) -> str:
        if (value >= self.bound) if self.at_least else (value <= self.bound):
            return f"met, {100 * value / self.bound:.0f} % of it"
        return f"**missed** by {100 * abs(value / self.bound - 1):.0f} %"


@dataclass
class Table:
    title: str
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, what: str, value: float, target: Target | None = None, unit: str = "x", detail=""
    ) -> None:
        number = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        shown = f"{number}{unit}" + (f" ({detail})" if detail else "")
        self.rows.append((what, shown, str(target or ""), target.verdict(value) if target else ""))

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        if self.rows:
            lines += ["| | measured | target | |", "|---|---|---|---|"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
            lines += [""]
        for sentence in self.notes:
            lines += [sentence, ""]
        return "\n".join(lines)
