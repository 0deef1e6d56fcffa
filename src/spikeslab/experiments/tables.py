"""The results in short: a table for each experiment, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .directions import PAPER
from .separation import PRINTED_COLUMNS

Results = dict[str, Any]


class Table(NamedTuple):
    """A title, the names of the columns, in two lines where they are long, and rows of texts."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def short_tables(results: Results) -> dict[str, Table]:
    """One for each experiment that there are results of."""
    make = {
        "prior": _prior,
        "verification": _verification,
        "directions": _directions,
        "separation": _separation,
    }
    return {name: make[name](results[name]) for name in make if name in results}


def _prior(results: Results) -> Table:
    rows = [
        (
            f"π = {cell['activation']:g}",
            cell["look"],
            f"{cell['kurtosis']:z.2f}",
            f"{cell['kurtosis_expected']:.2f}",
        )
        for cell in results["cells"]
    ]
    return Table("Distributions of the model", ("", "paper", "excess\nkurtosis", "expected"), rows)


def _verification(results: Results) -> Table:
    rows = [
        (
            f"{cell['reading']}, {cell['noise']}",
            f"{cell['within_.01']:.0%}",
            f"{cell['errors']['W']['best']['median']:.3f}",
            f"{cell['errors']['W']['truth']['median']:.3f}",
            f"{cell['largest_fall']:.0e}" if cell["largest_fall"] else "never",
            f"{cell['printed']['falling']:.0%}",
        )
        for cell in results["cells"]
    ]
    return Table(
        "Model verification (paper: all runs, “with high accuracy”)",
        (
            "Reading of sigma,\nnoise model",
            "runs within\n.01 of best",
            "error of W,\nbest run",
            "from the\ntruth",
            "largest\nfall",
            "falls with\nprinted Λ",
        ),
        rows,
    )


def _directions(results: Results) -> Table:
    rows = []
    for cell in results["cells"]:
        printed, runs = PAPER[cell["prior"], cell["latents"]]
        paper = "< .01" if printed == 0.01 else f"{printed:.2f}"
        ours = [cell["isotropic"], cell["ours"]["default"], cell["ours"]["separate"]]
        rows.append(
            (
                f"{cell['prior'].capitalize()}, H = {cell['latents']}, {cell['mixing']}",
                f"{paper}, {f'{runs}%' if runs else 'most':>4}",
                *map(_index_and_share, ours),
            )
        )
    return Table(
        "Recovery of sparse directions: Amari index, share of high likelihoods",
        ("Data and W", "paper", "paper's\nprotocol", "default\nestimator", "separate()"),
        rows,
    )


def _index_and_share(entry: Results) -> str:
    index = " none" if entry["amari"] is None else f"{entry['amari']:.3f}"
    return f"{index}, {entry['high']:4.0%}"


def _separation(results: Results) -> Table:
    rows = []
    for cell in results["cells"]:
        columns = cell["columns"]
        variant = f" {cell['variant'].split('; ')[-1]}" if cell["name"] == "Speech4" else ""
        rows.append(
            (
                f"{cell['name']}{variant}",
                str(cell["n_samples"]),
                *(
                    f"{columns[name]['amari']:.2f} ({cell['printed'][name]['amari']:.2f})"
                    for name in PRINTED_COLUMNS[:2]
                ),
                f"{columns['separate']['amari']:.3f}",
                f"{min(columns[name]['amari'] for name in PRINTED_COLUMNS[2:]):.3f}",
            )
        )
    real = results["cells"][0]["origin"] == "icalab"
    return Table(
        "Source separation: Amari index"
        + ("" if real else " of stand-ins; the paper's numbers are for other data"),
        ("", "N", "GSC\n(paper)", "GSC⊥\n(paper)", "separate()", "best of\n4 peers"),
        rows,
    )
