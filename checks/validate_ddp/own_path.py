"""What this process may import: nothing of the working directory, whose files are there to be checked.

Imports only what Python has loaded before it looks for the first module of ours, and no ``__future__``: until
``leave_out_working_directory`` has been called each import may be answered by a file of a stranger.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing import Process


def leave_out_working_directory() -> None:
    """Takes the working directory off ``sys.path``: ``python -m`` and ``-c`` put it first, an entry of PYTHONPATH that
    is empty or relative somewhere.

    Python's own folders stay, also where the command is called in one of them; ours goes last.
    """
    try:
        here = _identity(os.getcwd())
    except OSError:  # it has been removed: there is nothing in it, and nothing is relative to it
        return
    ours = _identity(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    relative = {os.path.abspath(entry) for entry in _python_path() if not os.path.isabs(entry)}
    kept, last = [], []
    for entry in sys.path:
        identity = _identity(entry or ".")
        if entry and entry not in relative and (identity is None or identity != here):
            kept.append(entry)
        elif identity is not None and identity == ours:
            last.append(entry)
        elif identity is not None and identity in map(_identity, _installed()):
            kept.append(entry)
    sys.path[:] = kept + last


def start_outside(process: "Process") -> None:
    """Starts a process in which Python finds no stranger's modules before ours tell it where to look.

    Where processes are not forked, each is a ``python -c``, which looks for its first modules in its working directory.
    It goes to ours by itself, once it has been told our ``sys.path``.
    """
    from multiprocessing import get_start_method

    if get_start_method() == "fork":
        process.start()
        return
    here = os.getcwd()
    os.chdir(os.path.dirname(os.__file__))
    try:
        process.start()
    finally:
        os.chdir(here)


def _python_path() -> list[str]:
    return [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _installed() -> list[str]:
    """The folders of the standard library, and those into which packages are installed."""
    standard = os.path.dirname(os.__file__)
    site = sys.modules.get("site")  # not there with `python -S`
    packages = [*site.getsitepackages(), site.getusersitepackages()] if site else []
    return [standard, os.path.join(standard, "lib-dynload"), *packages]


def _identity(path: str) -> "tuple[int, int] | None":
    """What tells a folder by whatever name; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
