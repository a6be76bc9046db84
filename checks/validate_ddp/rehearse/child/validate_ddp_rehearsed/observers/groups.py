"""Process groups: who joins which as what, whether they are up at the exit, and scripts that spawn their own ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import protocol
from ..patching import Args, Kwargs, around, everywhere

if TYPE_CHECKING:
    from ..session import Session


class _State:
    """Where the group was joined, and whether its end has been told."""

    site: protocol.Site | None = None
    left = False


def install(session: Session) -> None:
    """Local. Events ``joining``, ``group``, ``spawn`` and, at the end, ``exit``."""
    dist = session.torch.distributed
    multiprocessing = session.torch.multiprocessing
    around(multiprocessing, "spawn", session.fault, lambda args, kwargs: _spawn(session, args, kwargs))
    around(multiprocessing, "start_processes", session.fault, lambda args, kwargs: _spawn(session, args, kwargs))
    if not dist.is_available():
        return
    original = id(dist.init_process_group)
    around(
        dist, "init_process_group", session.fault,
        lambda args, kwargs: _joining(session, args, kwargs),
        lambda token, result: _joined(session, token or 0),
        lambda token, error: session.emit(protocol.Done(n=token or 0, error=f"{type(error).__name__}: {error}")),
    )  # fmt: skip
    everywhere({original: dist.init_process_group})


def _spawn(session: Session, args: Args, kwargs: Kwargs) -> None:
    if not session.sites.called_by_torch():  # `spawn` calls `start_processes`
        count = kwargs.get("nprocs", args[2] if len(args) > 2 else 1)
        session.emit(protocol.Spawn(processes=count, site=session.here()))


def _joining(session: Session, args: Args, kwargs: Kwargs) -> int:
    if session.channel.socket is None:
        session.connect()  # a rank made by a fork
    _State.site = site = session.here()
    rank = kwargs.get("rank", args[4] if len(args) > 4 else None)
    world_size = kwargs.get("world_size", args[3] if len(args) > 3 else None)
    number: int = session.next_call()
    joining = protocol.Joining(
        n=number,
        rank=rank if isinstance(rank, int) and rank >= 0 else None,
        world_size=world_size if isinstance(world_size, int) and world_size > 0 else None,
        environment={key: os.environ.get(key) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE")},
        site=site,
    )
    session.emit(joining)
    return number


def _joined(session: Session, number: int) -> None:
    dist = session.torch.distributed
    session.emit(protocol.Done(n=number))
    group = protocol.Group(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        backend=str(dist.get_backend()),
        site=_State.site or protocol.NOWHERE,
    )
    session.emit(group)


def leave(session: Session) -> None:
    """Local. Called when the interpreter goes: says whether a group is still up."""
    dist = session.torch.distributed
    if not _State.left:
        _State.left = True
        up = dist.is_available() and dist.is_initialized()
        session.emit(protocol.Exit(initialized=up, site=_State.site))
