"""The tables of the separation benchmark, from the outcomes of its draws."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from separation_cells import NOISE_FREE, NOISY, UNSEEN, Cell

Outcomes = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]  # cell, method, draw


def values(outcomes: Sequence[Mapping[str, Any]], what: str) -> NDArray[np.float64]:
    return np.array([outcome[what] for outcome in outcomes])


def standard_error(x: NDArray[np.float64]) -> float:
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("nan")


def families(outcomes: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(outcome["family"] for outcome in outcomes)
    return ", ".join(f"{name} {n}" for name, n in counts.most_common())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def quality_tables(cells: Sequence[Cell], found: Outcomes, ours: str) -> list[str]:
    """Amari indices beside the best ICA of each cell, then all methods, then SDRs in noise."""
    parts = []
    ratios, verdicts = [], Counter[str]()
    for group in (NOISE_FREE, NOISY, UNSEEN):
        rows = []
        for cell in cells:
            if cell.group != group or cell.name not in found:
                continue
            of = found[cell.name]
            mine = values(of[ours], "amari")
            others = {name: values(some, "amari") for name, some in of.items() if name != ours}
            if not others:
                rows.append([cell.name, f"{mine.mean():.4f}", families(of[ours])])
                continue
            best = min(others, key=lambda name: others[name].mean())
            difference = mine - others[best]
            error = standard_error(difference)
            verdict = "tie"
            if abs(difference.mean()) > error:
                verdict = "win" if difference.mean() < 0 else "**loss**"
            verdicts[verdict] += 1
            ratios.append(mine.mean() / others[best].mean())
            rows.append(
                [
                    cell.name,
                    f"{mine.mean():.4f} ± {standard_error(mine):.4f}",
                    f"{others[best].mean():.4f} {best}",
                    f"{ratios[-1]:.2f}",
                    f"{difference.mean():+.4f} ± {error:.4f}",
                    f"{int((difference < 0).sum())}/{len(difference)}",
                    verdict,
                    families(of[ours]),
                ]
            )
        if rows:
            head = ["cell", "separate", "best ICA", "ratio", "difference", "better in"]
            head += ["", "models chosen"]
            head = head if len(rows[0]) == len(head) else ["cell", "separate", "models chosen"]
            parts.append(f"## Amari index, {group}\n\n{table(head, rows)}")
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        counted = ", ".join(f"{n} {name.strip('*')}" for name, n in verdicts.most_common())
        parts.append(
            f"All cells: {counted}; geometric mean of the ratios {mean:.3f} (target <= .55, no "
            "loss). The best ICA is chosen for each cell in hindsight; win and loss are "
            "differences of paired draws beyond one standard error.\n"
        )
    parts += [_all_methods(cells, found), _sdr_table(cells, found, ours)]
    return parts


def _all_methods(cells: Sequence[Cell], found: Outcomes) -> str:
    names = list(dict.fromkeys(name for of in found.values() for name in of))
    rows = [
        [
            cell.name,
            *(
                f"{values(of[name], 'amari').mean():.4f}" if name in of else ""
                for of in [found[cell.name]]
                for name in names
            ),
        ]
        for cell in cells
        if cell.name in found
    ]
    return f"## Mean Amari index of all methods\n\n{table(['cell', *names], rows)}" if rows else ""


def _sdr_table(cells: Sequence[Cell], found: Outcomes, ours: str) -> str:
    rows, worse = [], 0
    for cell in cells:
        if cell.name not in found or cell.snr_db is None:
            continue
        of = found[cell.name]
        mine = values(of[ours], "sdr")
        linear = values(of[ours], "linear_sdr")
        others = {name: values(some, "sdr").mean() for name, some in of.items() if name != ours}
        best = max(others, key=lambda name: others[name], default="")
        worse += mine.mean() < max(linear.mean(), others.get(best, -np.inf))
        rows.append(
            [
                cell.name,
                f"{mine.mean():.2f}",
                f"{linear.mean():.2f}",
                f"{others[best]:.2f} {best}" if best else "",
                f"{(mine - linear).mean():+.2f} ± {standard_error(mine - linear):.2f}",
            ]
        )
    if not rows:
        return ""
    head = ["cell", "posterior mean", "its mixing, inverted", "best ICA", "gain over inversion"]
    return (
        f"## SDR in noise, dB\n\n{table(head, rows)}\n"
        f"Cells in which linear unmixing is better: {worse} of {len(rows)} (target: none).\n"
    )


def overcomplete_table(cells: Sequence[Cell], found: Outcomes, ours: str) -> str:
    rows = []
    for cell in cells:
        if cell.name in found:
            angles = values(found[cell.name][ours], "angle")
            seconds = values(found[cell.name][ours], "seconds")
            rows.append(
                [
                    cell.name,
                    f"{100 * (angles <= 5).mean():.0f} %",
                    f"{np.median(angles):.2f}",
                    f"{angles.max():.1f}",
                    f"{np.median(seconds):.2f}",
                ]
            )
    head = ["cell", "all columns within 5 degrees", "median of worst angle", "largest", "seconds"]
    title = "## More sources than channels (target: 95 % at 20 dB)"
    return f"{title}\n\n{table(head, rows)}" if rows else ""


def number_table(cells: Sequence[Cell], found: Outcomes, ours: str) -> str:
    rows, right, total = [], 0, 0
    for cell in cells:
        if cell.name in found:
            true = int(cell.name.split()[1])
            numbers = values(found[cell.name][ours], "number").astype(int)
            right += int((numbers == true).sum())
            total += len(numbers)
            counts = ", ".join(f"{n}: {c}" for n, c in sorted(Counter(numbers.tolist()).items()))
            rows.append([cell.name, f"{100 * (numbers == true).mean():.0f} %", counts])
    title = "## Number of sources found by `separate(X)` (target: 90 %)"
    summary = f"\nRight in {right} of {total}.\n"
    return f"{title}\n\n{table(['cell', 'right', 'found'], rows)}{summary}" if rows else ""
