"""Progress, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .._arrays import Array
from ..experiments import TrialProgress
from ..images import ImageProgress
from ..separation import Separation, SeparationProgress, separate


@contextmanager
def _bar(first: str) -> Iterator[Callable[..., None] | None]:
    """What updates a bar, or None where standard error is no terminal."""
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
        task = bar.add_task(first, total=None, state="")
        yield partial(bar.update, task)


@contextmanager
def progress_bar() -> Iterator[Callable[[SeparationProgress], None] | None]:
    """A callback for `separate`, or None where standard error is no terminal."""
    with _bar("separating") as update:

        def show(progress: SeparationProgress) -> None:
            assert update is not None
            update(
                description=progress.stage,
                completed=progress.run + 1,
                total=progress.n_runs,
                state=f"run {progress.run + 1} of {progress.n_runs}, iteration "
                f"{progress.iteration}, log-likelihood {progress.log_likelihood:.4f} per sample",
            )

        yield show if update else None


@contextmanager
def image_bar() -> Iterator[Callable[[ImageProgress], None] | None]:
    """A callback for `denoise` and `inpaint`, or None where standard error is no terminal."""
    with _bar("learning") as update:

        def show(progress: ImageProgress) -> None:
            assert update is not None
            update(
                description=progress.stage,
                completed=progress.done,
                total=progress.total,
                state=f"{progress.done} of {progress.total}",
            )

        yield show if update else None


def separate_with_progress(data: Array, n_sources: int | str, **options: Any) -> Separation:
    """Call `separate`, with a bar on standard error where that is a terminal."""
    with progress_bar() as callback:
        return separate(data, n_sources, callback=callback, **options)


@contextmanager
def trials_bar() -> Iterator[Callable[[TrialProgress], None]]:
    """A callback for `reproduce`: a bar, or a line for every tenth where standard error is no
    terminal, because experiments take long.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        tenth = -1

        def say(progress: TrialProgress) -> None:
            nonlocal tenth
            reached = 10 * progress.finished // progress.total
            if reached > tenth:
                tenth = reached
                console.print(_state(progress), soft_wrap=True)

        yield say
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: TrialProgress) -> None:
            bar.update(
                task,
                description=_state(progress),
                completed=progress.finished,
                total=progress.total,
            )

        yield show


def _state(progress: TrialProgress) -> str:
    done = f"{progress.finished} of {progress.total} trials"
    if progress.finished == progress.total:
        return f"{done}; drawing the report"
    return f"{done}, {_about(progress.seconds_left)} left"


def _about(seconds: float) -> str:
    """A time, no more exactly than it can be foreseen."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60} min"
