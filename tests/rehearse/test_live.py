"""The live view: what a terminal shows while ranks run, and that nothing of it goes anywhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rehearse.live import LiveView
from validate_ddp.rehearse.log import Log
from validate_ddp.rehearse.parent.supervisor import supervise
from validate_ddp.rehearse.parent.view import Plain
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.screens import Screens

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pseudo-terminals")


def drawn(view: LiveView, now: float) -> str:
    """What a terminal of 100 columns shows of the table."""
    console = Console(file=io.StringIO(), width=100, no_color=True)
    console.print(view.drawing(now))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def followed(run: Any) -> LiveView:
    """A view that has been told of the events of a recorded run."""
    view = LiveView(False, ["DDP201 train.py:11"])
    events = run.told()
    view.began(events)
    for event in events:
        if event.rank_of is not None:
            view.event(event.rank_of, event)
    return view


def test_the_table_tells_where_each_rank_is(recorded: Any) -> None:
    recorded.call(0, "all_reduce", 69, done=False)
    recorded.train_on(1)
    view = followed(recorded)
    table = drawn(view, time.monotonic() + 7)
    assert re.search(r"\n +0 .* 0 +7 s in all_reduce at train.py:69", table)
    assert re.search(r"\n +1 .* 1 +after backward at train.py:25", table)
    assert "read before: DDP201 train.py:11" in table


def test_findings_are_shown_while_the_run_goes_on(recorded: Any) -> None:
    recorded.wrapper(line=33, nested=True)
    view = followed(recorded)
    view._look()
    assert re.search(r"error DDP312 double-wrap train.py:33", drawn(view, time.monotonic()))


def test_what_a_rank_is_called_and_says_moves_no_cursor(recorded: Any) -> None:
    recorded.add(0, "exception", kind="ValueError", message="\x1b[2Jgone", stack=[], traceback="")
    assert "\x1b" not in drawn(followed(recorded), time.monotonic())


def test_a_rank_prints_to_a_terminal_and_whole_lines_come_out() -> None:
    printed: list[tuple[int | None, str]] = []
    screens = Screens(72, lambda rank, line: printed.append((rank, line)))
    far = screens.open(1)
    script = (
        "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size(1).columns, '\u00e9'); "
        "print('1/3', end='\\r2/3\\r3/3')"
    )
    subprocess.run([sys.executable, "-X", "utf8", "-c", script], stdout=far, check=True, timeout=30)
    (near,) = screens.screens
    screens.read(near)
    assert printed == [(1, "True 72 \u00e9")] and screens.current(1) == "3/3"
    os.close(far)
    screens.close()
    assert printed[1:] == [(1, "3/3")] and not screens.screens


class Broken(Plain):
    """A view that fails at the first event, and gives each rank a terminal."""

    def __init__(self) -> None:
        self.screens = Screens(80, lambda rank, line: None)

    def output(self, rank: int | None) -> int | None:
        return self.screens.open(rank)

    def readable(self) -> list[int]:
        return list(self.screens.screens)

    def read(self, descriptor: int) -> bool:
        raise ZeroDivisionError("of the view")


def test_a_view_that_fails_changes_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('x' * 300_000)\nprint('end')\n")  # more than a terminal holds unread
    log = Log(None)
    assert supervise(Plan(("train.py",), nproc_per_node=1, timeout=20), log, Broken()) == "finished"
    assert [event.message for event in log.events if isinstance(event, protocol.Fault)] == [
        "view: ZeroDivisionError: of the view"
    ]
    assert capfdbinary.readouterr().out.endswith(b"end\n")


def on_a_terminal(folder: Path, **environment: str) -> str:
    """All that a rehearsal writes to the terminal that it has."""
    (folder / "train.py").write_text("print('hello')\n")
    near, far = pty.openpty()
    command = [sys.executable, "-m", "validate_ddp", "run", "--nproc-per-node", "1", "train.py"]
    with subprocess.Popen(
        command, cwd=folder, stdout=far, stderr=far, env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment}
    ) as process:
        os.close(far)
        written = b""
        while True:
            try:
                data = os.read(near, 65536)
            except OSError:  # nobody holds the other end any more
                break
            written += data
        assert process.wait(30) == 0
    os.close(near)
    return written.decode()


def test_on_a_terminal_the_table_goes_away_and_the_output_stays(tmp_path: Path) -> None:
    written = on_a_terminal(tmp_path)
    assert "[rank 0] " in written and "hello" in written and "the ranks start" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back
    assert written.rindex("no findings") > written.rindex("the ranks start")


def test_no_color_is_honoured_on_a_terminal(tmp_path: Path) -> None:
    written = on_a_terminal(tmp_path, NO_COLOR="1")
    colors = [code for codes in re.findall(r"\x1b\[([0-9;]*)m", written) for code in codes.split(";")]
    assert not [code for code in colors if code not in ("", "0", "1", "2")]  # bold and dim are no colours


def test_without_a_terminal_there_is_not_one_escape(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    command = [sys.executable, "-m", "validate_ddp", "run", "--nproc-per-node", "1", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "hello\n" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr and "[rank 0]" not in done.stdout
