"""Plain numbers by which a script multiplies or divides its loss at last: one of them may stand for the ranks."""

from __future__ import annotations

from ..patching import Handed

_DEEP = 8
"""Operations that are looked at, from the loss back."""


def times(loss: Handed) -> list[float]:
    """By which numbers that need no gradient a loss is multiplied, the last one first; by one of them divided by."""
    found = list[float]()
    node: Handed = getattr(loss, "grad_fn", None)
    for _ in range(_DEEP):
        made = type(node).__name__
        if not made.startswith(("DivBackward", "MulBackward")):
            break
        parts = [each for each, _ in node.next_functions]
        number = _number(node, "_saved_other" if parts[0] is not None else "_saved_self")
        if number is None or (parts[0] is None and made.startswith("Div")):
            break
        found.append(1 / number if made.startswith("Div") else number)
        node = parts[0] or parts[1]
    return found


def _number(node: Handed, name: str) -> float | None:
    """What a product or quotient has kept beside what has a gradient; None for what has one too, or is none or zero."""
    kept = getattr(node, name, None)
    if kept is None or getattr(kept, "requires_grad", False) or getattr(kept, "dim", lambda: 0)():
        return None
    return float(kept) or None
