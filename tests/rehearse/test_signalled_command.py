"""The command is signalled, at a known moment each: nothing is left of the ranks and of what they have started."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process_marks import bearing_after
from restless_scripts import SCRIPTS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and sub-reapers")
LINE = "validate-ddp: {}: ends, with all that it has started\n"


class Commanded:
    """A script's text under the command, in a folder of its own, with a token that all its processes bear."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = uuid.uuid4().hex
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.running: list[subprocess.Popen[str]] = []

    def words(self, script: str, *options: str, before: str = "") -> list[str]:
        """before: statements in the command's process before it begins."""
        (self.folder / "train.py").write_text(script)
        code = f"{before}\nfrom validate_ddp.cli import run\nrun()"
        options = ("run", "--no-static", "--no-partition", "--timeout", "60", f"--env=MARK={self.token}", *options)
        return [sys.executable, "-c", code, *options, "train.py", self.token]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.scratch)}

    def start(
        self, script: str, *options: str, before: str = "", first: Callable[[], object] | None = None
    ) -> subprocess.Popen[str]:
        """first: called in the new process before all."""
        process = subprocess.Popen(
            self.words(script, *options, before=before),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=first,
        )
        self.running.append(process)
        return process

    def wait_for(self, count: int, pattern: str) -> None:
        """Waits until so many files are there."""
        deadline = time.monotonic() + 60
        while len(list(self.folder.glob(pattern))) < count:
            for process in self.running:
                assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def left(self) -> list[str]:
        """Processes with the token or the folder on their command line or in their environment, after a moment."""
        return bearing_after(20, self.token, str(self.scratch)) + [str(each) for each in self.scratch.iterdir()]


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commanded]:
    made = Commanded(tmp_path_factory.mktemp("run"))  # short: the path of a socket has room for 107 bytes
    yield made
    for process in made.running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_before_torch_is_imported_ends_all_with_a_line_and_its_code(command: Commanded, name: str) -> None:
    process = command.start(SCRIPTS["daemon"])
    command.wait_for(1, "deep-*")
    command.wait_for(2, "began-*")
    number = getattr(signal, name)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (128 + number, LINE.format(name))
    assert not command.left()


@pytest.mark.parametrize("script", ["children", "daemon"])
def test_a_command_that_is_killed_leaves_no_child_of_a_rank_however_far_it_went(
    command: Commanded, script: str
) -> None:
    process = command.start(SCRIPTS[script])
    command.wait_for(1, "deep-*")
    process.kill()
    process.communicate(timeout=30)
    assert not command.left()


@pytest.mark.parametrize("moment", ["keeper", "rank"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_the_first_milliseconds_are_as_the_others(command: Commanded, moment: str, name: str) -> None:
    hook = {"keeper": "keeping.subprocess.Popen.__init__", "rank": "keeping.Keeper.start"}[moment]
    before = (
        "import os, signal\n"
        "from validate_ddp.rehearse.parent import keeping\n"
        f"original = {hook}\n"
        "def patched(*arguments, **options):\n"
        "    result = original(*arguments, **options)\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    return result\n"
        f"{hook} = patched\n"
    )
    process = command.start("import time\ntime.sleep(1000)\n", before=before)
    process.communicate(timeout=30)
    assert process.returncode == (130 if name == "SIGINT" else -signal.SIGKILL)
    assert not command.left()


def test_a_signal_in_the_analysis_ends_it(command: Commanded) -> None:
    before = (
        "import os, signal\n"
        "from validate_ddp.rehearse import command\n"
        "def judge(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    raise AssertionError('went on')\n"
        "command.judge = judge\n"
    )
    process = command.start("pass\n", before=before)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (143, LINE.format("SIGTERM"))
    assert not command.left()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_signal_in_the_partition_check_ends_it(command: Commanded, name: str) -> None:
    script = (
        "import os, time\n"
        "rank = os.environ['RANK']\n"
        "if os.path.exists(f'ran-{rank}'):\n"
        "    open(f'again-{rank}', 'w').close()\n"
        "    time.sleep(1000)\n"
        "open(f'ran-{rank}', 'w').close()\n"
    )
    process = command.start(script, "--partition")
    command.wait_for(2, "scratch/**/again-*")
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=30)
    assert process.returncode == (143 if name == "SIGTERM" else -signal.SIGKILL)
    assert not command.left()


def test_a_process_that_cannot_be_started_is_told(command: Commanded) -> None:
    process = command.start("pass\n", before=NO_PYTHON)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors == "validate-ddp: error: no process can be started: /no/python: No such file or directory\n"
    assert not command.left()


NO_PYTHON = """
from validate_ddp.rehearse.parent import environment
environment.command = lambda plan, rank: ["/no/python", "train.py"]
"""


def test_a_second_signal_does_not_wait_for_ranks_that_refuse_to_end(command: Commanded) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: open('asked-' + os.environ['RANK'], 'w').close())\n"
        "open('began-' + os.environ['RANK'], 'w').close()\n"
        "while True:\n"
        "    time.sleep(1000)\n"
    )
    # Waiting would take longer than this test may.
    process = command.start(script, before="from validate_ddp.rehearse.parent import keeping\nkeeping.GRACE = 1000")
    command.wait_for(2, "began-*")
    process.send_signal(signal.SIGINT)
    command.wait_for(2, "asked-*")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, LINE.format("SIGINT"))
    assert not command.left()


TOLD = """
from validate_ddp.rehearse.parent import keeping
original = keeping.Keeper.start
def start(keeper, *arguments):
    pid = original(keeper, *arguments)
    open(f"told-{len(keeper.pids)}", "w").close()
    return pid
keeping.Keeper.start = start
"""
"""The command knows the process of both ranks: a keeper that is killed before it has said so ends the run."""
WITHOUT_KEEPER = """
import os, signal, subprocess, sys, time
rank = os.environ["RANK"]
while not os.path.exists("told-2"):
    time.sleep(0.01)
if rank == "0":
    keeper = os.getppid()
    os.kill(keeper, signal.SIGKILL)
    while os.getppid() == keeper:
        time.sleep(0.01)
    open("lost", "w").close()
"""


def test_a_run_whose_keeper_is_killed_goes_on_and_knows_how_its_ranks_end(command: Commanded) -> None:
    script = WITHOUT_KEEPER + "while not os.path.exists('lost'):\n    time.sleep(0.01)\nsys.exit(5 * int(rank))\n"
    process = command.start(script, before=TOLD)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3 and "rank 1 first: exited with code 5" in output
    assert not command.left()


def test_a_run_whose_keeper_is_killed_is_ended_by_a_signal(command: Commanded) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
    script = WITHOUT_KEEPER + child + "open(f'deep-{rank}', 'w').close()\ntime.sleep(1000)\n"
    process = command.start(script, before=TOLD)
    command.wait_for(2, "deep-*")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert not command.left()


def test_a_command_under_nohup_does_not_end_with_its_terminal(command: Commanded) -> None:
    script = "import os, time\nopen('began-' + os.environ['RANK'], 'w').close()\n"
    script += "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
    process = command.start(script, first=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    command.wait_for(2, "began-*")
    process.send_signal(signal.SIGHUP)
    (command.folder / "go").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_named_semaphores_of_a_killed_run_are_freed(command: Commanded) -> None:
    script = (
        "import multiprocessing, os, time\n"
        "def wait(lock):\n"
        "    open('deep-' + lock._semlock.name.strip('/'), 'w').close()\n"
        "    time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    lock = context.Lock()\n"
        "    context.Process(target=wait, args=(lock,)).start()\n"
        "    time.sleep(1000)\n"
    )
    process = command.start(script)
    command.wait_for(2, "deep-*")
    names = [path.name.removeprefix("deep-") for path in command.folder.glob("deep-*")]
    assert all(os.path.exists(f"/dev/shm/sem.{name}") for name in names)
    process.kill()
    process.communicate()
    assert not command.left()
    assert not [name for name in names if os.path.exists(f"/dev/shm/sem.{name}")]


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGKILL"])
def test_a_semaphore_that_no_tracker_knows_of_yet_is_freed_too(command: Commanded, kind: str) -> None:
    # As multiprocessing makes one, and is killed before it has told its tracker.
    script = (
        "import _multiprocessing, os, time\n"
        "name = f'mp-{os.getpid()}x'\n"
        "made = _multiprocessing.SemLock(1, 1, 1, '/' + name, False)\n"
        "open('deep-' + name, 'w').close()\n"
        "time.sleep(1000)\n"
    )
    process = command.start(script)
    command.wait_for(2, "deep-*")
    names = [path.name.removeprefix("deep-") for path in command.folder.glob("deep-*")]
    assert all(os.path.exists(f"/dev/shm/sem.{name}") for name in names)
    process.send_signal(getattr(signal, kind))
    process.communicate(timeout=30)
    assert not command.left()
    assert not [name for name in names if os.path.exists(f"/dev/shm/sem.{name}")]


def test_ctrl_c_twice_on_a_terminal_leaves_nothing_and_the_cursor_shown(command: Commanded) -> None:
    words = command.words(SCRIPTS["children"])
    pid, near = pty.fork()
    if pid == 0:
        os.chdir(command.folder)
        os.execve(words[0], words, {**command.environment, "TERM": "xterm"})
    command.wait_for(1, "deep-*")
    os.write(near, b"\x03\x03")
    written = b""
    try:
        while data := os.read(near, 65536):
            written += data
    except OSError:  # nobody holds the other end any more
        pass
    os.close(near)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert LINE.format("SIGINT").strip() in written.decode()
    assert written.rfind(b"\x1b[?25h") > written.rfind(b"\x1b[?25l") >= 0
    assert not command.left()
