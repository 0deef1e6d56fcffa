"""An output folder that appears whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SOURCE = re.compile(r"source-\d+\.\w+")
_RESULT = re.compile(rf"{_SOURCE.pattern}|mixture\.\w+|model\.npz|report\.html")


@contextmanager
def output_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Give a temporary folder whose files are moved into `target` at the end.

    Whatever goes wrong before, nothing is left. A folder that is not empty is refused; with `force`
    the results of an earlier run are replaced, but a folder with anything else still refused.
    """
    target = Path(os.path.abspath(target))
    earlier = _earlier_results(target, force)
    parent = target if target.is_dir() else target.parent
    part = parent / f".{target.name}.{secrets.token_hex(4)}.part"
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        try:
            part.mkdir(parents=True)
        except OSError as error:
            raise OSError(f"cannot write to the folder {target}: {error.strerror}") from None
        yield part
        with _undisturbed():
            if target.exists():
                for file in part.iterdir():
                    os.replace(file, target / file.name)
                    earlier.discard(file.name)
                part.rmdir()
                for name in earlier:
                    (target / name).unlink()
            else:
                part.rename(target)
    except BaseException:
        with _undisturbed():
            shutil.rmtree(part, ignore_errors=True)
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()
        raise


def _earlier_results(target: Path, force: bool) -> set[str]:
    """Names of the sources in an existing folder, which is checked."""
    if not target.is_dir():
        if os.path.lexists(target):
            raise FileExistsError(f"cannot write to the folder {target}: it is a file")
        return set()
    names = sorted(path.name for path in target.iterdir())
    if names and not force:
        raise FileExistsError(
            f"the output folder {target} is not empty; "
            "give another with -o, or replace earlier results with --force"
        )
    others = [name for name in names if not _RESULT.fullmatch(name)]
    if others:
        raise FileExistsError(
            f"the output folder {target} has more in it than earlier results ({others[0]}), "
            "and --force does not touch that; give another with -o"
        )
    return {name for name in names if _SOURCE.fullmatch(name)}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the program are ignored for the moment it takes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
