"""A hundred faults and twenty signals at random moments, under torchrun and as plain processes; prints the figures."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from trainer_runs import saved_in  # noqa: E402

pytestmark = [pytest.mark.runtime, pytest.mark.soak, pytest.mark.timeout(3600)]

RANKS = 3
LIMIT = 10.0
"""Seconds from a fault to the end of the job's last process; a hang has the collective's time-out besides."""
TIMEOUT = 3.0
KINDS = ("raise", "kill", "exit", "hang")
PLACES = ("forward", "collective", "evaluation", "loader", "saving")
REPEATS = 5
"""20 combinations, five times each: once of these under torchrun."""

PLANTED = {
    # What has to be told first, of rank r; where a rank hangs, its peers tell, and where it hung comes second.
    "raise": r"rank {r} of \d \(.*\) failed first:",
    "kill": r"rank \d of \d \(.*\): (leaving, because )?rank {r} died",
    "exit": r"rank \d of \d \(.*\): (leaving, because )?rank {r} died",
    "hang": r"rank (?!{r})\d of \d \(.*\) failed first:",
}


def checkpoints(folder):
    """The steps of the checkpoints there are; reading one that is not whole raises."""
    return [saved_in(path)["step"] for path in sorted((folder / "run" / "checkpoints").glob("step-*"))]


def fault(draw, kind, place):
    """Settings of a job with this fault at a random step, on a random rank."""
    every = draw.randint(1, 4)
    return {
        "kind": kind,
        "place": place,
        "rank": 0 if place == "saving" else draw.randrange(RANKS),
        "step": draw.randint(2, 10),
        "workers": draw.choice([1, 2]) if place == "loader" else draw.choice([0, 0, 1]),
        "eval_every": every if place == "evaluation" else 0,
        "save_every": every,
        "saves": draw.randint(1, 2),
        "timeout": TIMEOUT if kind == "hang" else 60,
        "pace": 0.01,
    }


def told_first(ended):
    """The first line on a fault."""
    return next((line for line in ended.told if " of " in line), "nothing")


def test_faults(start_job, start_torchrun, capsys):
    draw = random.Random(0)
    seconds, wrong, torchrun = {True: [], False: []}, [], []
    saved, first = Counter(), Counter()
    for number, (kind, place) in enumerate([(kind, place) for kind in KINDS for place in PLACES] * REPEATS):
        settings = fault(draw, kind, place)
        under_torchrun = number % REPEATS == (number // (len(KINDS) * len(PLACES)))
        ended = (start_torchrun if under_torchrun else start_job)(RANKS, **settings).end()
        # A worker's death is an error of its rank, with a traceback.
        pattern = PLANTED["raise" if place == "loader" and kind in ("kill", "exit") else kind].format(
            r=settings["rank"]
        )
        hung = kind == "hang"
        took = ended.since_struck - (TIMEOUT if hung else 0)
        seconds[hung].append(took)
        torchrun += [took] if under_torchrun else []
        right = re.match(pattern, told_first(ended)) is not None
        first[right] += 1
        steps = checkpoints(ended.folder)
        expected = list(range(settings["save_every"], 13, settings["save_every"]))
        good = steps == expected[: len(steps)] and (place != "saving" or len(steps) == settings["saves"])
        saved[good] += 1
        if not (right and good and took < LIMIT and not ended.left):
            wrong.append(
                f"{settings} torchrun={under_torchrun}: {took:.1f} s, {steps}, left={ended.left}\n{ended.output}"
            )
    with capsys.disabled():
        print(f"\n{first.total()} faults on {RANKS} ranks, {len(torchrun)} of them under torchrun:")
        for hung, name in ((False, "raise, kill, exit"), (True, f"hang, beyond the time-out of {TIMEOUT:g} s")):
            found = seconds[hung]
            print(f"  job over ({name}): median {statistics.median(found):.2f} s, most {max(found):.2f} s")
        print(f"  of these under torchrun: median {statistics.median(torchrun):.2f} s, most {max(torchrun):.2f} s")
        print(f"  the cause was told first in {first[True]}, the checkpoints were whole in {saved[True]}")
    assert not wrong, "\n\n".join(wrong[:3])


def sent(draw, running, when, under_torchrun):
    """Sends SIGTERM at that moment; returns how many steps had begun."""
    running.wait_for(when)
    time.sleep(draw.random() * 0.05)
    begun = sum(1 for _ in running.folder.glob("step *"))
    whom = [0] if under_torchrun else draw.choice([[0], [1], [2], [0, 1, 2]])
    for rank in whom:
        os.kill(running.pids[rank], signal.SIGTERM)
    return begun


def test_signals(start_job, start_torchrun, capsys):
    draw = random.Random(1)
    late, seconds, wrong = [], [], []
    for number in range(21):
        moment, under_torchrun = ("step 5", "evaluation", "saving")[number % 3], number % 7 < 2
        settings = {"steps": 2000, "pace": 0.02, "workers": draw.choice([0, 2])}
        settings |= {"evaluation": {"eval_every": 3, "eval_batch": 1}, "saving": {"save_every": 3}}.get(moment, {})
        running = (start_torchrun if under_torchrun else start_job)(RANKS, **settings)
        begun = sent(draw, running, moment, under_torchrun)
        since = time.monotonic()
        ended = running.end()
        seconds.append(ended.ended - since)
        ends = set(re.findall(r"^rank \d ended at step (\d+) SIGTERM$", ended.output, re.MULTILINE))
        step = int(ends.pop()) if len(ends) == 1 else -1
        late.append(step - begun)
        codes = [1] if under_torchrun else [0] * RANKS  # torchrun's own, after its own signal
        if not (ended.codes == codes and 0 <= step - begun <= 2 and checkpoints(ended.folder)[-1:] == [step]):
            wrong.append(f"{moment} torchrun={under_torchrun}: begun {begun}, {ended.codes}\n{ended.output}")
    with capsys.disabled():
        print(f"\n{len(late)} SIGTERMs in training, evaluation, saving; saved so many steps later: {Counter(late)}")
        print(f"  job over: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s")
    assert not wrong, "\n\n".join(wrong[:3])
