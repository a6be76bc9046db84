"""A bar on standard error while many files are checked, or a long run is judged."""

from __future__ import annotations


class Bar:
    """A progress bar over a number of files, or of something else; it goes away when the last one is done."""

    def __init__(self, total: int, doing: str = "checking", of: str = "files") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._total = total
        columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(of))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(doing, total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        """Moves the bar to ``done`` files."""
        self._progress.update(self._task, completed=done)
        if done >= self._total:
            self.stop()

    def stop(self) -> None:
        """Takes it away."""
        self._progress.stop()
