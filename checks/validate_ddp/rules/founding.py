"""Whether a finding rests on complete evidence: asked of every error, here and nowhere else.

An error needs of all that it rests on: that which ranks come there is no guess from a name; that where it says all of
them, no rank may decide otherwise by itself, as on a loss, a look at the disk or something unknown; and that it does
not happen while an error is handled. That the launch has several ranks is taken for granted (``interpreter/premise``).
"""

from __future__ import annotations

from collections.abc import Iterable

from validate_ddp.findings import ERROR, WARNING
from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.ranks import PARTIAL


def founded(severity: str, rests_on: Iterable[Fact], guessed: bool = False) -> str:
    """``severity``, but no error where something that the finding rests on is open, or ``guessed`` from a name."""
    return WARNING if severity == ERROR and (guessed or any(map(is_doubtful, rests_on))) else severity


def is_doubtful(fact: Fact) -> bool:
    """Whether it may be otherwise on some rank than the walk has seen it.

    A way out on what a rank alone has computed (``Exit.subject``) is all the same what its finding says.
    """
    if Flag.HANDLER in fact.flags:
        return True
    if fact.who in PARTIAL:
        return fact.is_guessed or fact.is_open
    if any(guard.who == "unclear" for guard in fact.guards):
        return True
    return fact.divides is not None and not (isinstance(fact, facts.Exit) and bool(fact.subject))
