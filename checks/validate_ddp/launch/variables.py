"""What the variables of a shell script can hold where they are read: a walk in the order of the text, never run."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 8
"""Alternatives of one value; more tell nobody anything."""
_LARGEST = 50_000
"""Characters of a text: a variable that is doubled in each of forty lines stops growing there."""
_LONGEST = 300
"""Atoms of one value: a variable that is appended to in each of many lines stops growing there."""


class Atom(NamedTuple):
    """A piece of a word, see ``records.Word``. start, end: its bytes. splits: white space in it ends the word."""

    texts: tuple[str, ...]
    open: bool
    start: int
    end: int
    splits: bool = False
    names: tuple[str, ...] = ()
    many: bool = False
    fallback: bool = False


Fields = tuple[tuple[Atom, ...], ...]
"""An array: the atoms of each of its elements."""


class Binding(NamedTuple):
    """What a variable is set to. surely: on every way through the script."""

    atoms: tuple[Atom, ...]
    surely: bool
    fields: Fields | None = None


State = dict[str, list[Binding]]


class Variables:
    """The variables that have been set so far. outer: those of the script that holds this one in a string; what they
    hold is known here, but not where it stands."""

    def __init__(self, outer: Variables | None = None) -> None:
        self._outer = outer
        self._bound: dict[str, list[Binding]] = {}

    def bind(self, name: str, binding: Binding) -> None:
        """Set a variable: one that is surely set has forgotten what it was."""
        if len(binding.atoms) > _LONGEST:
            binding = binding._replace(atoms=(unknown(binding.atoms[0].start, binding.atoms[-1].end, name),))
        if binding.surely:
            self._bound[name] = [binding]
        else:
            self._bound.setdefault(name, []).append(binding)

    def append(self, name: str, binding: Binding) -> None:
        """``name+=value``."""
        before = self._bound.get(name)
        if before is None or len(before) > 1 or not (before[0].surely and binding.surely):
            self.bind(name, Binding((unknown(0, 0, name),), binding.surely))
            return
        held = before[0]
        if held.fields is not None and binding.fields is not None:
            self.bind(name, Binding((), True, (held.fields + binding.fields)[:_LONGEST]))
        else:
            self.bind(name, Binding(held.atoms + binding.atoms, True))

    def state(self) -> State:
        """What is bound now, to come back to."""
        return {name: list(bound) for name, bound in self._bound.items()}

    def restore(self, state: State) -> None:
        """Go back to ``state``: another branch begins there."""
        self._bound = {name: list(bound) for name, bound in state.items()}

    def join(self, states: list[State]) -> None:
        """Go on behind branches, of which one was taken: each ended in one of ``states``."""
        joined: State = {}
        for name in dict.fromkeys(name for state in states for name in state):
            held = [state.get(name, []) for state in states]
            bound = list(dict.fromkeys(binding for each in held for binding in each))
            closed = all(any(binding.surely for binding in each) for each in held)
            joined[name] = [
                binding._replace(surely=closed and number == 0) for number, binding in enumerate(bound[: _MOST + 1])
            ]
        self._bound = joined

    def holds(self, name: str) -> bool:
        return name in self._bound or (self._outer is not None and self._outer.holds(name))

    def sure(self, name: str) -> Binding | None:
        """What the variable surely holds here."""
        bound = self._bound.get(name, [])
        return bound[0] if len(bound) == 1 and bound[0].surely else None

    def value(self, name: str, start: int, end: int) -> Atom:
        """All that the variable can hold here, as one atom at a place."""
        if name not in self._bound and self._outer is not None:
            return self._outer.value(name, start, end)
        bound = self._bound.get(name, [])
        texts: list[str] = []
        is_open = not bound or not any(binding.surely for binding in bound)
        fallback = False
        for binding in bound:
            if binding.fields is not None:
                is_open = True
                continue
            joined, closed = joined_texts(binding.atoms)
            texts += joined
            is_open = is_open or not closed
            fallback = fallback or any(atom.fallback for atom in binding.atoms)
        distinct = tuple(dict.fromkeys(texts))
        if len(distinct) > _MOST:
            distinct, is_open = (), True
        return Atom(distinct, is_open, start, end, names=(name,), fallback=fallback)


def unknown(start: int, end: int, *names: str) -> Atom:
    """Of which nothing is known."""
    return Atom((), True, start, end, names=names)


def joined_texts(atoms: tuple[Atom, ...]) -> tuple[tuple[str, ...], bool]:
    """What atoms beside each other can be, and whether that is all."""
    texts: tuple[str, ...] = ("",)
    closed = True
    for atom in atoms:
        closed = closed and not atom.open
        if not atom.texts or len(texts) * len(atom.texts) > _MOST:
            return (), False
        texts = tuple(left + right for left in texts for right in atom.texts)
        if len(texts[0]) > _LARGEST:
            return (), False
    return texts, closed
