"""A rank fails in any way, anywhere: the job is over at once, and what is printed first is what went wrong.

Jobs of plain processes over gloo; rank zero, which has the store, is the one that fails in half of the cases.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time

import pytest

torch = pytest.importorskip("torch")

from trainer_runs import saved_in  # noqa: E402

from reference_trainer.faults import (  # noqa: E402
    Lifelines,
    Watch,
    _hear_no_more_of_workers,
    _is_lost_connection,
)
from reference_trainer.launch import World  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

LIMIT = 10.0
"""Seconds from the fault to the end of the job's last process."""
TIMEOUT = 1.5
"""Seconds of a collective's time-out, where a rank hangs."""

FIRST = {
    # kind: (what the failing rank prints first, its exit code); a rank that hangs is told of by its peers
    "raise": (r"rank {rank} of \d \(.*\) failed first:", 1),
    "quit": (r"rank {rank} of \d \(.*\) failed first:", 1),
    "interrupt": (r"rank {rank} of \d \(.*\) failed first:", 130),
    "kill": (r"rank \d of \d \(.*\): (leaving, because )?rank {rank} died", -9),
    "exit": (r"rank \d of \d \(.*\): (leaving, because )?rank {rank} died", 7),
    "hang": (r"rank (?!{rank})\d of \d \(.*\) failed first:", 1),
}
LAST_LINE = {
    "raise": "ZeroDivisionError: planted in {place}",
    "quit": "SystemExit: 0",
    "interrupt": "KeyboardInterrupt",
}

CASES = [
    *[(kind, "forward", 1) for kind in FIRST],
    ("raise", "forward", 0),
    ("kill", "forward", 0),
    ("kill", "collective", 1),
    ("raise", "evaluation", 0),
    ("raise", "loader", 1),
    pytest.param("hang", "loader", 1, marks=pytest.mark.slow),
    *[(kind, "saving", 0) for kind in ("raise", "kill")],
    pytest.param("hang", "saving", 0, marks=pytest.mark.slow),
    *[pytest.param(kind, "drawing", 0, marks=pytest.mark.soak) for kind in ("raise", "hang")],
]
"""All kinds in all places are in the soak."""


def settings(kind, place, rank, **options):
    """Of a job with this fault."""
    return {
        "kind": kind,
        "place": place,
        "rank": rank,
        "eval_every": {"evaluation": 2, "drawing": 5}.get(place, 0),
        "workers": 1 if place == "loader" else 0,
        "timeout": TIMEOUT if kind == "hang" else 60,
        **options,
    }


def check(ended, kind, place, rank, *, plain=True):
    """What holds for every fault."""
    assert not ended.left, ended.output
    assert ended.since_struck < LIMIT + (TIMEOUT if kind == "hang" else 0), ended.output
    faults = [line for line in ended.told if " of " in line]
    first, code = FIRST[kind]
    if place == "loader" and kind not in ("raise", "hang"):  # the worker's end is the rank's error
        first, code = FIRST["raise"]
    assert re.match(first.format(rank=rank), faults[0]), ended.output
    if kind in LAST_LINE:
        assert LAST_LINE[kind].format(place=place) in ended.output
    if plain:
        # A worker's error has its own traceback within its rank's.
        assert ended.output.count("Traceback (most recent call last)") <= 1 + (place == "loader"), ended.output
        assert ended.codes[rank] == code, ended.output
        assert all(each != 0 for each in ended.codes) or place == "saving", ended.output
    if kind == "hang" and place != "loader":
        assert re.search(rf"rank {rank} of \d .*: leaving, because .* it was at .*job.py:\d+ in strike", ended.output)


def whole_checkpoints(ended):
    """The steps of the checkpoints there are; reading one that is not whole raises."""
    return [saved_in(path)["step"] for path in sorted((ended.folder / "run" / "checkpoints").glob("step-*"))]


@pytest.mark.parametrize(("kind", "place", "rank"), CASES)
def test_the_job_is_over_at_once_and_tells_the_cause_first(start_job, kind, place, rank):
    ended = start_job(2, **settings(kind, place, rank, save_every=3)).end()
    check(ended, kind, place, rank)
    # In step 5 (from 0) the last save is that of step 3; the fault in saving is in its first one, or in that of step 6.
    if place in ("forward", "collective"):
        assert whole_checkpoints(ended) == [3]


def test_a_fault_in_a_save_leaves_the_checkpoint_before_and_the_run_goes_on_from_it(start_job):
    ended = start_job(2, **settings("kill", "saving", 0, save_every=3, saves=1)).end()
    check(ended, "kill", "saving", 0)
    assert whole_checkpoints(ended) == [3]
    again = start_job(2, folder=ended.folder, save_every=3).end()
    assert again.codes == [0, 0], again.output
    assert "resumed from" in again.output and whole_checkpoints(again) == [3, 6, 9, 12]


def test_on_three_ranks_two_leave_with_a_line_each(start_job):
    ended = start_job(3, **settings("raise", "forward", 1)).end()
    check(ended, "raise", "forward", 1)
    leaving = [line for line in ended.told if "leaving, because rank 1 failed with ZeroDivisionError" in line]
    assert [line[:6] for line in sorted(leaving)] == ["rank 0", "rank 2"]


def test_an_error_of_the_user_is_one_line_and_told_once_where_all_ranks_have_it(start_job):
    alone = start_job(2, kind="refuse", rank=1).end()
    assert alone.codes == [1, 2] and "Traceback" not in alone.output, alone.output
    first, second = (line.partition("): ")[2] for line in alone.told)
    assert first == "ConfigError: planted in forward"
    # The second may have met the end of a connection before it was told why.
    told = re.escape("leaving, because rank 1 failed with ConfigError: planted in forward; ")
    assert re.match(told + "(it was at |its own error, at )", second), alone.output
    together = start_job(2, kind="refuse", rank=-1, timeout=30).end()
    # Either both have raised, or one was told of the other's error before.
    assert sorted(together.codes) in ([1, 2], [2, 2]) and "Traceback" not in together.output
    assert together.output.count(": ConfigError: planted in forward") == 1, together.output


def test_a_job_that_ends_well_says_nothing_of_faults(start_job):
    ended = start_job(3, workers=1, eval_every=4).end()
    assert ended.codes == [0, 0, 0] and not ended.left
    assert not [line for line in ended.told if " of " in line]


def test_a_rank_that_holds_the_gil_is_not_taken_for_dead(start_job):
    ended = start_job(2, hold_gil=2.0).end()
    assert ended.codes == [0, 0], ended.output


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["raise", "kill", "hang"])
def test_in_processes_that_were_spawned_too(start_spawn, kind):
    ended = start_spawn(2, **settings(kind, "forward", 1)).end()
    check(ended, kind, "forward", 1, plain=False)
    assert ended.codes != [0]


def failing_together():
    """Both ranks fail at once; runs on warm ranks, which the watch ends."""
    with Watch(World.current()):
        raise ValueError("the same on every rank")


def test_ranks_that_fail_together_print_one_traceback(worlds, capfd):
    with pytest.raises(AssertionError, match="exit code 1"):
        worlds.run(failing_together, world_size=2, isolation="process")


def watched_twice():
    """Two watches one after the other, and a goodbye after each."""
    for _ in range(2):
        with Watch(World.current()):
            torch.distributed.barrier()
    return True


def test_a_process_can_watch_again(worlds):
    assert worlds.run(watched_twice, world_size=2) == [True, True]


def test_a_process_alone_raises_as_ever():
    with pytest.raises(KeyError), Watch(World()):
        raise KeyError("x")


def test_a_worker_that_dies_while_its_rank_tells_a_fault_does_not_interrupt_that():
    def as_torch_does(number, frame):
        raise RuntimeError("DataLoader worker is killed by signal")

    before = signal.signal(signal.SIGCHLD, as_torch_does)
    try:
        with pytest.raises(RuntimeError, match="killed by signal"):
            os.kill(os.getpid(), signal.SIGCHLD)
        _hear_no_more_of_workers()
        os.kill(os.getpid(), signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_only_what_says_that_a_peer_has_gone_is_held_back():
    gone = "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:12345"
    assert _is_lost_connection(RuntimeError(gone))
    try:
        try:
            raise RuntimeError(gone)
        except RuntimeError as error:
            raise ValueError("in a handler") from error
    except ValueError as error:
        assert _is_lost_connection(error)
    assert not _is_lost_connection(RuntimeError("Timed out waiting 3000ms for recv operation to complete"))
    assert not _is_lost_connection(ZeroDivisionError(gone))


# Lifelines, in one process.


def lines_of(size, token=b"x" * 32):
    """Rank zero's end and the others'."""
    ports = []
    zero = Lifelines(0, size, token=token, host="", publish=ports.append, look_up=ports.pop)
    others = [
        Lifelines(rank, size, token=token, host="127.0.0.1", publish=ports.append, look_up=lambda: ports[0])
        for rank in range(1, size)
    ]
    while len(zero.others()) < size - 1:
        assert zero.wait(0.01) == []
    return zero, others


@pytest.mark.parametrize("goodbye", [True, False])
def test_the_end_of_a_rank_is_a_death_unless_it_said_goodbye(goodbye):
    # Rank 46 ends in the byte of the goodbye.
    zero, others = lines_of(48)
    others[45].close(goodbye=goodbye)
    others[4].close(goodbye=goodbye)
    assert sorted(zero.wait(0.2) + zero.wait(0.2)) == ([] if goodbye else [5, 46])
    assert 46 not in zero.others() and 5 not in zero.others() and 7 in zero.others()
    zero.close(goodbye=goodbye)
    assert others[0].wait(0.2) == ([] if goodbye else [0]) and others[0].others() == []
    for each in others[:4] + others[5:45] + others[46:]:
        each.close(goodbye=True)


def test_a_stranger_is_sent_away_and_no_rank():
    zero, others = lines_of(2)
    port = zero._listener.getsockname()[1]
    for said in (b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" * 3, b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
            assert zero.wait(0.1) == [] and zero.others() == [1]
        assert zero.wait(0.1) == []
    for each in (zero, *others):
        each.close(goodbye=True)


def test_waiting_ends_when_it_is_woken():
    zero, others = lines_of(2)
    zero.wake()
    start = time.monotonic()
    assert zero.wait(30) == [] and time.monotonic() - start < 10
    others[0].close(goodbye=False)
    zero.wait_for_others_to_go(30)  # also afterwards
    assert time.monotonic() - start < 10
    zero.close(goodbye=True)
