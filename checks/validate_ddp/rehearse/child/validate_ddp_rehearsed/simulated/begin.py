"""What a process does besides rehearsing where it stands for one rank of a large world."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ..session import Session

VARIABLE = "VALIDATE_DDP_SIMULATED"


class Part(TypedDict):
    """folder: where sources of broadcasts leave what they gave. ranks: those that are run, in this order."""

    folder: str
    ranks: list[int]


def part() -> Part | None:
    """That of this process; None in an ordinary run."""
    text = os.environ.get(VARIABLE)
    return json.loads(text) if text else None


def install(session: Session) -> None:
    """Local, after the shim and before the observers, which see what the script itself calls. Nothing in an ordinary
    run."""
    given = part()
    if given is None or not session.torch.distributed.is_available():
        return
    from .answers import Answers
    from .assumed import Assuming
    from .files import Files
    from .memory import Memory
    from .world import World

    session.options["sources"] = given["folder"]
    world = World(session, given)
    world.install()
    Files(session, world, given).install()
    memory = Memory(session)
    memory.install()
    Answers(session, world, Assuming(session), memory).install()
