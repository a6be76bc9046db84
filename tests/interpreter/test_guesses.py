"""The tables of guesses: each entry is matched by the case that asked for it, and no name alone leads to an error."""

from __future__ import annotations

import re
from typing import Any

import pytest
from validate_ddp.findings import ERROR
from validate_ddp.interpreter import mentions, names, names_of_training, premise
from validate_ddp.interpreter.guess import Guess
from validate_ddp.interpreter.mentions import Mention


def entries(module: Any, kind: type) -> dict[str, Any]:
    return {name: entry for name, entry in vars(module).items() if isinstance(entry, kind)}


RANKS = entries(names, Guess)
GUESSES = RANKS | entries(names_of_training, Guess)
MENTIONS = entries(mentions, Mention)


def said(guess: Guess) -> list[str]:
    """What of its case the guess rests on: names, dotted where they are; or the whole line."""
    if guess.of == "text":
        return [guess.case] if guess.matches(guess.case) else []
    found = [match.group() for match in re.finditer(r"[A-Za-z_][\w.]*(?:\(\))?", guess.case)]
    found += [whole[: dot.start()] for whole in found for dot in re.finditer(r"\.", whole)]
    return [name for name in found if guess.matches(name) or guess.matches(name.replace("_", ""))]


@pytest.mark.parametrize("guess", GUESSES.values(), ids=GUESSES.keys())
def test_a_guess_matches_its_own_case(guess: Guess) -> None:
    assert said(guess)
    assert guess.says and guess.otherwise


@pytest.mark.parametrize("mention", MENTIONS.values(), ids=MENTIONS.keys())
def test_a_mention_is_in_its_own_case(mention: Mention) -> None:
    assert any(word in mention.case.encode() for word in mention.words)
    assert mention.says and mention.otherwise


def test_a_name_says_one_thing() -> None:
    kinds = [names.GLOBAL_RANK, names.LOCAL_RANK, names.GROUP_RANK, names.WORLD_SIZE, names.MAIN_PROCESS]
    kinds += [names.LOCAL_MAIN_PROCESS, names.DISTRIBUTED_FLAG]
    assert sum(len(kind.words) for kind in kinds) == len(frozenset().union(*(kind.words for kind in kinds)))


HEAD = """
from project import args, cfg, mpu, scores, rank0_has, writer

def work(model, sampler):
    dist.init_process_group("nccl")
    net = DDP(model)
    for epoch in range(9):
        for batch in DataLoader(list(range(9)), sampler=sampler):
            net(batch).backward()
            CASE
"""
BODIES = {
    "collective": "dist.barrier()",
    "wrapped": "DDP(torch.nn.Linear(1, 1))",
    "left": "return",
    "saved": 'torch.save(model.state_dict(), "model.pt")',
    "joined": 'dist.init_process_group("nccl", rank=dist.get_rank(), world_size=2)',
}


def script(case: str, body: str) -> str:
    """The case in a training, with the body under it, or behind it."""
    lines = [case, *body.splitlines()]
    if case.startswith("@"):
        lines = [case, "def act():", f"    {body}", "act()"]
    elif case.startswith(("def ", "class ")) or case.endswith(":"):
        lines = [case, f"    {body}"]
    return HEAD.replace("CASE", "\n            ".join(lines)) + "\nwork(torch.nn.Linear(1, 1), None)\n"


def neutral(guess: Guess) -> str:
    """The case where each name that the guess rests on says nothing."""
    last = {whole.removesuffix("()").rpartition(".")[2] for whole in said(guess)} if guess.of != "text" else set()
    case = guess.case
    for name in re.findall(r"[A-Za-z_]\w*", case):
        if name in last or guess.matches(name):
            case = re.sub(rf"\b{name}\b", "thing", case)
    return case


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("guess", RANKS.values(), ids=RANKS.keys())
def test_no_name_alone_leads_to_an_error(lint: Any, guess: Guess, body: str) -> None:
    def errors(case: str) -> set[tuple[str, int]]:
        return {(each.code, each.line) for each in lint.body(script(case, body)) if each.severity == ERROR}

    assert neutral(guess) != guess.case
    others = errors(neutral(guess)) | (errors("if True:") if guess in premise.NAMED else set())
    assert errors(guess.case) <= others
