"""The command `spikeslab`, part of the extra `app`.

The exit status is 0 for success, 2 for what the user can mend, said in one line, and 130 after
Ctrl-C. Only bugs give a traceback.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_: _say(f"Warning: {message}")
            return _run(arguments)
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    try:
        from typer import Abort, TyperException

        from .app import app
    except ImportError as error:
        if (error.name or "").startswith("spikeslab"):
            raise
        return _fail(f"the command line needs {error.name}: pip install 'spikeslab[app]'")
    try:
        return app(arguments, prog_name="spikeslab", standalone_mode=False) or 0
    except Abort:
        return 130
    except TyperException as error:
        return _fail(error.format_message().replace("Value error, ", ""))  # pydantic's words
    except BrokenPipeError:
        sys.stderr.close()  # else Python complains at its exit about what it could not print
        return 1
    except MemoryError as error:
        picture = arguments[0] in ("denoise", "inpaint")
        less = "a smaller picture" if picture else "fewer sources or a shorter input"
        return _fail(str(error) or f"not enough memory; try {less}")
    except OSError as error:
        of = f"{error.filename}: " if error.filename else ""
        return _fail(f"{of}{error.strerror}" if error.strerror else str(error))
    except (ValueError, ImportError) as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    _say(f"Error: {message}")
    return 2


def _say(message: str) -> None:
    print(" ".join(message.split()), file=sys.stderr)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
