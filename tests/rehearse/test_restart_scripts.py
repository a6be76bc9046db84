"""Restarts of scripts that run: the three runs leave the user's files as they are, and a loss is told at its line."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from validate_ddp.rehearse.child.validate_ddp_rehearsed.held import guard
from validate_ddp.testing import rehearse

from ci.bench import rehearsals

pytestmark = [
    pytest.mark.runtime, pytest.mark.slow, pytest.mark.skipif(not guard.version(), reason="needs Landlock"),
]  # fmt: skip
SCRIPT = Path(__file__).with_name("restart_script.py")
LAST = ["--resume", "{last}"]


def digests(folder: Path) -> dict[str, str]:
    """Of all files under a folder, and when each was written."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/last.pt", "runs/log.txt", "kept/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("the user's\n")
    return tmp_path


def test_a_restart_that_is_right_and_one_that_loses_change_nothing_of_the_users(kept: Path) -> None:
    before = digests(kept)
    run = rehearse(SCRIPT, restart_at=3, restart_args=LAST, static=False)
    assert digests(kept) == before
    assert run.rules["DDP904"] == run.rules["DDP902"] == run.rules["DDP907"] == "held", str(run)
    assert "stopped after step 4, went on on 2 ranks for 2 steps: as the whole run" in str(run)
    assert not run.faults and [each.path for each in run.checkpoints] == [str(kept / "runs/last.pt")]

    lost = rehearse(SCRIPT, args=["loses"], restart_at=3, restart_args=LAST, static=False)
    assert digests(kept) == before
    lines = SCRIPT.read_text().splitlines()
    found = [(each.code, lines[each.line - 1].strip()) for each in lost.findings if each.severity == "error"]
    assert found == [("DDP904", "held = torch.load(path)")], str(lost)


@pytest.mark.parametrize(
    ("word", "told", "source"),
    [
        ("removes", "the script removes .*kept", 'shutil.rmtree("kept")'),
        ("past_python", r"PermissionError: .*notes.txt'", "raise PermissionError"),
    ],
)
def test_a_script_that_would_change_files_of_others_is_not_run_to_its_end(
    kept: Path, capfd: pytest.CaptureFixture[str], word: str, told: str, source: str
) -> None:
    before = digests(kept)
    line = next(number for number, each in enumerate(SCRIPT.read_text().splitlines(), 1) if source in each)
    with pytest.raises(ValueError, match=rf"--restart-at: {told} \(.*:{line}\): .*your files are as they were"):
        rehearse(SCRIPT, args=[word], restart_at=3, static=False)
    assert digests(kept) == before
    assert ("Traceback" in capfd.readouterr().err) is (word == "past_python")  # its own


def test_the_trainer_goes_on_from_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train --steps 8 --global-batch 60 --run-dir run --checkpoint.save-every 4 --ema.decay 0.9".split()
    run = rehearse("-m reference_trainer", args=words, restart_at=4, restart_nproc=3, static=False)
    assert "went on on 3 ranks" in str(run) and "as the whole run" in str(run), str(run)
    assert not any(each.code.startswith("DDP9") for each in run.findings)


@pytest.mark.parametrize(("words", "codes"), [([], {"DDP902", "DDP906"}), (["tells"], set())])
def test_what_a_user_of_the_trainer_keeps_aside_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], codes: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = rehearse(SCRIPT.with_name("restart_trainer.py"), args=words, restart_at=4, static=False)
    assert {each.code for each in run.findings if each.code.startswith("DDP9")} == codes, str(run)


@pytest.mark.parametrize(
    ("words", "told", "found"),
    [
        (["steps=6"], "ended by `steps=3` after step 3, went on on 2 ranks for 6 steps: as the whole run", ""),
        ([], "ended by itself after step 6, went on on 2 ranks .*: as it was saved; not compared: .*no number", ""),
        (["steps=6", "schedule"], "not compared: .*with `steps=3` two runs of the script differ in step 3", ""),
        (["elsewhere"], "not compared: the run saves at its end, and reads nothing of it", ""),
        (["loses"], "ended by itself", "error DDP904 .* begins without 12 of the 12 entries of the state"),
        (["head"], "ended by itself", "error DDP907 .*`2.weight`, `2.bias` of the model, 2 of 4 parameters, begin"),
        (["again"], "ended by itself", "warning DDP901 .*first learns from what step 1 of 6 did, .* 6 steps of data"),
        (["again", "steps=6"], "ended by `steps=3`", "error DDP901 .*step 4 learns from what step 1 of the"),
    ],
)  # fmt: skip
def test_a_run_that_saves_at_its_end_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = rehearse(SCRIPT.with_name("restart_end_script.py"), args=words, restart_at=3, static=False)
    assert re.search(told, str(run)), str(run)
    wrong = [each for each in run.findings if each.severity != "info" and each.code.startswith("DDP9")]
    assert len(wrong) == bool(found), str(run)
    assert not found or re.search(found, f"{wrong[0].severity} {wrong[0].code} {wrong[0].message}"), str(run)
    assert not run.faults and not list(tmp_path.iterdir())


PAIRS = {
    "restart_of_velocities_that_one_rank_saves": "", "restart_that_counts_samples_of_one_rank": "",
    "restart_of_a_term_that_grows": "", "restart_without_the_moments": "", "restart_of_sharded_weights_only": "",
    "restart_on_more_ranks_without_their_random_states": "", "restart_on_more_ranks_without_their_loaders": "",
    "restart_without_skipped_batches": "accelerate", "restart_of_the_loader_of_rank_zero": "torchdata",
    "restart_of_an_average_in_a_lightning_callback": "lightning",
    "restart_of_transformers_with_the_model_only": "transformers",
}  # fmt: skip
"""One of each kind, and the package without which it is left out."""


@pytest.mark.parametrize("half", ["buggy", "fixed"])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_of_each_kind_is_told_apart(tmp_path: Path, pair: str, half: str) -> None:
    if PAIRS[pair]:
        pytest.importorskip(PAIRS[pair])
    script = rehearsals.FIXTURES / "observed" / pair / f"{half}.py"
    line = next(row for row in script.read_text().splitlines() if row.startswith("# rehearse: "))
    report, _, _ = rehearsals.rehearse(script, tmp_path, *line.removeprefix("# rehearse: ").split())
    assert report["facts"]["restart"]["compared"], report["facts"]["restart"]
    found = {(each["code"], each["line"]) for each in report["findings"] if each["severity"] != "info"}
    assert found == rehearsals.expected(script), report["findings"]
