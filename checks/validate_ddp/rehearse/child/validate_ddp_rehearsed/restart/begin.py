"""What a process of the restart check does besides rehearsing: it writes elsewhere, is seeded, tells of each step."""

from __future__ import annotations

import json
import os
import random
import sys
from typing import TYPE_CHECKING, TypedDict

from ..hook import RESTART

if TYPE_CHECKING:
    from ..session import Session


class Orders(TypedDict):
    """What a process is told, in ``RESTART``. folder: of the check, where it says why it is ended. files: where it
    writes, with all ranks of its run. seed: for what the script does not seed. stop: the steps after which the run is
    ended, before the next one; None for its own end. whole: the steps after which tensors are told whole."""

    folder: str
    files: str
    seed: int
    stop: int | None
    whole: int | None


def install(session: Session) -> None:
    """Local. Nothing in other runs."""
    orders = _orders()
    if orders is None:
        return
    from ..held import guard
    from .files import Files
    from .moments import Moments
    from .settings import watch_settings

    files = Files(orders, session)
    files.install(session.torch)
    guard.watch(files.ended, (orders["folder"], session.options["dumps"]))
    Moments(session, orders).install()
    watch_settings(session)
    _seed(session, orders["seed"])


def _orders() -> Orders | None:
    text = os.environ.get(RESTART)
    return json.loads(text) if text else None


def hold() -> None:
    """Local. It writes in the folders of the check and of its run: see ``guard.hold``."""
    orders = _orders()
    if orders is not None:
        from ..held import guard

        guard.hold([orders["folder"], json.loads(os.environ["VALIDATE_DDP_REHEARSAL"])["dumps"]])


def _seed(session: Session, seed: int) -> None:
    """Other for each rank, as what no script seeds is."""
    number = os.environ.get("RANK", "")
    if not number.isdigit():  # spawned by the script
        process = sys.modules.get("multiprocessing.process")
        identity = process.current_process()._identity if process is not None else ()
        number = str(identity[0] if identity else 0)
    session.torch.manual_seed(seed + int(number))
    random.seed(seed + int(number))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed + int(number))
