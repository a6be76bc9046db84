"""Starting and ending the ranks, with scripts that never import torch: nothing of ours is in them, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from process_marks import alive_after
from validate_ddp.rehearse.parent.processes import cpu_seconds

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="process groups and /proc")


class Ran(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str
    report: dict[str, Any]


class Rehearse:
    """Runs a script's text with the command, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ)

    def command(self, script: str, *options: str) -> list[str]:
        (self.folder / "train.py").write_text(script)
        ours = ["--no-partition", "--timeout", "20", "--report", str(self.folder / "report.json")]
        return [sys.executable, "-m", "validate_ddp", "run", *ours, *options, "train.py"]

    def __call__(self, script: str, *options: str) -> Ran:
        command = self.command(script, *options)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        return Ran(done.returncode, done.stdout, done.stderr, json.loads((self.folder / "report.json").read_text()))


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    return Rehearse(tmp_path)


def test_every_rank_runs_the_script_as_main_with_its_environment(rehearse: Rehearse) -> None:
    ran = rehearse(
        "import os, sys\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE OMP_NUM_THREADS OWN'.split()\n"
        "row = [__name__, *(os.environ[name] for name in names), sys.path[0] == os.getcwd(), sys.argv]\n"
        "sys.stdout.write(' '.join(map(str, row)) + chr(10))\n",
        "--nproc-per-node", "2", "--env", "OWN=x",
    )  # fmt: skip
    assert ran.code == 0
    rows = sorted(row for row in ran.out.splitlines() if row.startswith("__main__"))
    assert rows == [f"__main__ {rank} {rank} 2 1 x True ['train.py']" for rank in (0, 1)]
    assert "2 ranks never reported" in ran.out


def test_where_torch_is_never_imported_nothing_of_ours_is(rehearse: Rehearse) -> None:
    ran = rehearse(
        "import sys\n"
        "ours = [name for name in sys.modules if name.startswith('validate_ddp_rehearsed.')]\n"
        "paths = [path for path in sys.path if 'child' in path]\n"
        "sys.stdout.write(f'OURS {ours} {paths}' + chr(10))\n"
    )
    assert ran.out.count("OURS ['validate_ddp_rehearsed.hook'] []") == 2


def test_a_shadowed_sitecustomize_still_runs(rehearse: Rehearse, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 7\n")
    rehearse.environment["PYTHONPATH"] = os.pathsep.join([str(own), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = rehearse(
        "import sitecustomize, sys\n"
        "found = sitecustomize.__file__.endswith('own/sitecustomize.py')\n"
        "sys.stdout.write(f'OWN {OWN} {found}' + chr(10))\n"
    )
    assert ran.out.count("OWN 7 True") == 2


def test_a_rank_that_exits_with_a_code_is_named(rehearse: Rehearse) -> None:
    ran = rehearse("import os, sys\nsys.exit(5 if os.environ['RANK'] == '1' else 0)\n")
    assert ran.code == 3
    assert ran.report["failure"]["rank"] == 1 and "code 5" in ran.report["failure"]["message"]


def test_a_rank_that_is_killed_is_named_with_its_signal(rehearse: Rehearse) -> None:
    ran = rehearse("import os, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 11)\ntime.sleep(60)\n")
    assert ran.code == 3
    assert "SIGSEGV" in ran.report["failure"]["message"]


def test_the_deadline_ends_a_run_with_all_it_started(rehearse: Rehearse, tmp_path: Path) -> None:
    ran = rehearse(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "daemon = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
        "with open('pids', 'a') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid} {daemon.pid} ')\n"
        "time.sleep(100)\n",
        "--timeout", "1.5",
    )  # fmt: skip
    assert ran.code == 3 and ran.report["outcome"] == "timeout"
    pids = [int(text) for text in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 6 and not alive_after(3, *pids)


def test_an_interrupt_leaves_nothing(rehearse: Rehearse, tmp_path: Path) -> None:
    script = "import os, time\nopen(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    with subprocess.Popen(rehearse.command(script), cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 20
        files = [tmp_path / "pid0", tmp_path / "pid1"]
        while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    pids = [int(file.read_text()) for file in files]
    assert not alive_after(0, *pids)


def test_a_folder_for_temporary_files_may_have_any_name(rehearse: Rehearse, tmp_path: Path) -> None:
    # A socket's path has 107 bytes at most.
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    rehearse.environment["TMPDIR"] = str(scratch)
    assert rehearse("print(1)\n").code == 0
    assert not list(scratch.iterdir())


def test_a_full_disk_under_the_log_is_told_and_ends_nothing(rehearse: Rehearse) -> None:
    ran = rehearse("print('x' * 9)\n", "--log", "/dev/full")
    assert ran.code == 0 and ran.out.count("xxxxxxxxx") == 2
    assert [fault["where"] for fault in ran.report["faults"]] == ["log"]
    assert "/dev/full: No space left on device" in ran.report["faults"][0]["message"]


def test_nothing_is_left_among_the_temporary_files(rehearse: Rehearse, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rehearse.environment["TMPDIR"] = str(scratch)
    assert rehearse("print(1)\n").code == 0
    assert not list(scratch.iterdir())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system tells of no children")
def test_a_process_that_waits_for_one_that_computes_has_used_what_that_has() -> None:
    child = "import sys, time\nwhile time.process_time() < 0.3:\n    pass\nprint(flush=True)\nsys.stdin.read()"
    waits = f"import subprocess, sys\nsubprocess.run([sys.executable, '-Sc', {child!r}])"
    with subprocess.Popen([sys.executable, "-Sc", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()  # the child has computed, and waits for the end of the input
        own, both = cpu_seconds(process.pid), cpu_seconds(process.pid, started=True)
        process.stdin.close()
    assert own is not None and both is not None and both - own >= 0.25
