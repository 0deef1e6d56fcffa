"""Progress of a separation, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .._arrays import Array
from ..separation import Separation, SeparationProgress, separate


@contextmanager
def progress_bar() -> Iterator[Callable[[SeparationProgress], None] | None]:
    """A callback for `separate`, or None where standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description:20}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("separating", total=None, state="")

        def show(progress: SeparationProgress) -> None:
            bar.update(
                task,
                description=progress.stage,
                completed=progress.run + 1,
                total=progress.n_runs,
                state=f"run {progress.run + 1} of {progress.n_runs}, iteration "
                f"{progress.iteration}, log-likelihood {progress.log_likelihood:.4f} per sample",
            )

        yield show


def separate_with_progress(data: Array, n_sources: int | str, **options: Any) -> Separation:
    """Call `separate`, with a bar on standard error where that is a terminal."""
    with progress_bar() as callback:
        return separate(data, n_sources, callback=callback, **options)
