"""A bar on standard error while many files are checked."""

from __future__ import annotations


class Bar:
    """A progress bar over a number of files; it goes away when the last one is done."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._total = total
        columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TextColumn("files"))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("checking", total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        """Moves the bar to ``done`` files."""
        self._progress.update(self._task, completed=done)
        if done >= self._total:
            self._progress.stop()
