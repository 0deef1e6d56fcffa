"""What a command found, for people on standard output or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..report import findings

if TYPE_CHECKING:
    from ..separation import FittedModel, Separation


def print_json(record: dict[str, Any]) -> None:
    """Print one JSON document; what is not a finite number becomes null."""
    print(json.dumps(_finite(record), indent=2, allow_nan=False))


def print_files(folder: Path, files: list[str]) -> None:
    sources = [name for name in files if name.startswith("source-")]
    several = f"{sources[0]} to {sources[-1]}" if len(sources) > 1 else sources[0]
    others = [name for name in files if name not in sources]
    print(f"Written to {folder}: {', '.join([several, *others])}")


def print_separation(separation: Separation, rate: int | None) -> None:
    """A headline, why this model, a table of the sources, and what lowers the trust in them."""
    seconds = f" ({len(separation.data) / rate:.1f} s)" if rate else ""
    console = Console(highlight=False)
    console.print(f"[bold]{findings.headline(separation)}{seconds}[/]", soft_wrap=True)
    console.print(escape(findings.reason(separation)), soft_wrap=True)
    snr = findings.snr_db(separation)
    if snr is not None:
        console.print(f"Noise: {snr:.1f} dB below the signal", soft_wrap=True)
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("Source")
    for title in ("Share of\nvariance", "Active", "Agreement\nof runs", "Posterior\nstd"):
        table.add_column(title, justify="right")
    table.add_column("")
    for row in findings.sources(separation):
        table.add_row(
            row.name.removeprefix("Source "),
            f"{row.share:.1%}",
            f"{row.activation:.0%}",
            "-" if np.isnan(row.agreement) else f"{row.agreement:.2f}",
            f"{row.posterior_std:.3f}",
            "; ".join(row.doubts) or "reliable",
        )
    console.print()
    console.print(table)
    console.print()
    for warning in findings.warnings(separation):
        console.print(f"Note: {escape(warning)}", soft_wrap=True)


def of_separation(
    separation: Separation, source: Path, folder: Path, files: list[str], warnings: list[str]
) -> dict[str, Any]:
    """The same for a program."""
    run = findings.chosen_run(separation)
    n_samples, n_channels = separation.data.shape
    return {
        "input": str(source),
        "output": str(folder),
        "files": files,
        "n_samples": n_samples,
        "n_channels": n_channels,
        "n_sources": separation.sources.shape[1],
        "method": separation.method,
        "family": run.family,
        "log_likelihood": run.log_likelihood,
        "converged": run.converged,
        "noise_variance": separation.noise_variance,
        "sources": [
            {
                "file": file,
                "share_of_variance": row.share,
                "activation": row.activation,
                "agreement": row.agreement,
                "posterior_std": row.posterior_std,
                "doubts": row.doubts,
            }
            for file, row in zip(files, findings.sources(separation), strict=False)
        ],
        "mixing": separation.mixing.tolist(),
        "settings": {
            name: value
            for name, value in separation.settings.items()
            if isinstance(value, (bool, int, float, str, type(None)))
        },
        "seconds": separation.seconds,
        "warnings": [*warnings, *findings.warnings(separation)],
    }


def of_model(model: FittedModel) -> dict[str, Any]:
    n_channels, n_sources = model.mixing_.shape
    return {
        "kind": type(model).__name__,
        "n_channels": n_channels,
        "n_sources": n_sources,
        "log_likelihood": model.log_likelihood_,
        "n_iter": model.n_iter_,
        "converged": model.converged_,
        "activation": model.activation_.tolist(),
        "mean": model.mean_.tolist(),
        "mixing": model.mixing_.tolist(),
    }


def print_model(record: dict[str, Any]) -> None:
    console = Console(highlight=False)
    reached = "converged" if record["converged"] else "not converged"
    counts = (
        f"{findings.counted(record['n_sources'], 'source')} in "
        f"{findings.counted(record['n_channels'], 'channel')}"
    )
    console.print(f"[bold]{record['kind']}[/]: {counts}", soft_wrap=True)
    console.print(
        f"Log-likelihood {record['log_likelihood']:.4f} per sample, {reached} after "
        f"{findings.counted(record['n_iter'], 'iteration')}",
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in ("Source", "Active", "Column of the mixing matrix"):
        table.add_column(title)
    columns = np.transpose(record["mixing"])
    for number, (active, column) in enumerate(zip(record["activation"], columns, strict=True), 1):
        entries = "  ".join(f"{entry:9.4g}" for entry in column)
        table.add_row(str(number), f"{active:.0%}", entries)
    console.print()
    console.print(table)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
