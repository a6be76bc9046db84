"""Look-up of rules by code or name; the rules are found from their file names, and imported only when needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from validate_ddp.catalogue import Rule

if TYPE_CHECKING:
    from types import ModuleType

_RULES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rules")
_PACKAGE = __name__.rpartition(".catalogue")[0] + ".rules"

_OBSERVED = os.path.join(os.path.dirname(_RULES), "rehearse", "rules")
_OBSERVED_PACKAGE = __name__.rpartition(".catalogue")[0] + ".rehearse.rules"

_stubs: tuple[Stub, ...] | None = None
_observed: tuple[Stub, ...] | None = None


class Stub(NamedTuple):
    """A rule known by its file only: ``rules/<trigger>/ddpNNN_rule_name.py``; of the trigger "rehearsal", in
    ``rehearse/rules``."""

    code: str
    name: str
    trigger: str
    module: str


def stubs() -> tuple[Stub, ...]:
    """Every rule that reads scripts, sorted by code; nothing is imported."""
    global _stubs
    if _stubs is None:
        _stubs = _discover(_RULES)
    return _stubs


def observed() -> tuple[Stub, ...]:
    """The rules that only a rehearsal can show, sorted by code; the others' files are in ``stubs``."""
    global _observed
    if _observed is None:
        read = {stub.code for stub in stubs()}
        found = [
            Stub(parts[0].upper(), parts[2].replace("_", "-"), "rehearsal", f"{_OBSERVED_PACKAGE}.{file[:-3]}")
            for file, parts in _named(os.listdir(_OBSERVED))
        ]
        _observed = tuple(sorted(stub for stub in found if stub.code not in read))
    return _observed


def every() -> tuple[Stub, ...]:
    """All rules of the catalogue, sorted by code."""
    return tuple(sorted((*stubs(), *observed())))


def _named(files: list[str]) -> list[tuple[str, tuple[str, str, str]]]:
    """The files called like a rule, with (code, "_", name)."""
    found = []
    for file in files:
        code, _, name = parts = file[:-3].partition("_")
        # The length keeps editors' and archivers' droppings (ddp201_x.py.orig, ._ddp201_x.py) out.
        if file.endswith(".py") and len(code) == 6 and code.startswith("ddp") and code[3:].isdigit() and name:
            found.append((file, parts))
    return found


def _discover(folder: str) -> tuple[Stub, ...]:
    found = []
    with os.scandir(folder) as triggers:
        folders = [entry.name for entry in triggers if not entry.name.startswith(("_", ".")) and entry.is_dir()]
    for trigger in folders:
        for file, (code, _, name) in _named(os.listdir(os.path.join(folder, trigger))):
            found.append(Stub(code.upper(), name.replace("_", "-"), trigger, f"{_PACKAGE}.{trigger}.{file[:-3]}"))
    return tuple(sorted(found))


def find(code_or_name: str) -> Stub | None:
    """The rule with that code or that name, in any case; None when there is none."""
    wanted = code_or_name.strip().lower()
    for stub in every():
        if wanted == stub.code.lower() or wanted == stub.name:
            return stub
    return None


def name_of(code: str) -> str:
    """The rule's name; the code itself, in lower case, for one that the catalogue does not hold."""
    stub = find(code)
    return stub.name if stub else code.lower()


def load(stub: Stub) -> ModuleType:
    """The rule's module, imported now."""
    import importlib

    return importlib.import_module(stub.module)


def describe(stub: Stub) -> Rule:
    """The rule's whole entry, from its module. Raises ValueError where the module lacks a part of it."""
    module = load(stub)
    documentation = (module.__doc__ or "").strip()
    missing = [part for part in ("SEVERITIES", "EVIDENCE", "FIX") if not hasattr(module, part)]
    if not documentation or missing:
        raise ValueError(f"rule {stub.code} is incomplete: no {', '.join(missing) or 'docstring'} in {stub.module}")
    return Rule(
        code=stub.code,
        name=stub.name,
        severities=tuple(module.SEVERITIES),
        evidence=module.EVIDENCE,
        fix=module.FIX,
        summary=documentation.splitlines()[0].strip(),
        documentation=documentation,
        valid=tuple(getattr(module, "VALID", ())),
        invalid=tuple(getattr(module, "INVALID", ())),
    )


def codes_matching(selector: str) -> frozenset[str]:
    """The codes that a selector means: ``ALL``, a prefix of codes (``DDP``, ``DDP2``), a code, or a name.

    Raises ValueError, with a one-line message, for a selector that means nothing.
    """
    wanted = selector.strip()
    if wanted.upper() == "ALL":
        return frozenset(stub.code for stub in every())
    stub = find(wanted)
    if stub:
        return frozenset((stub.code,))
    prefix = wanted.upper()
    if len(prefix) >= 3 and prefix.startswith("DDP"):
        codes = frozenset(stub.code for stub in every() if stub.code.startswith(prefix))
        if codes:
            return codes
    raise ValueError(unknown(selector))


def specificity(selector: str) -> int:
    """How narrow a selector is: 0 for ``ALL``, its length for a prefix, most for a code or a name."""
    wanted = selector.strip()
    if wanted.upper() == "ALL":
        return 0
    return 6 if find(wanted) else len(wanted)


def unknown(code_or_name: str) -> str:
    """A one-line message for a rule that does not exist, with the nearest one that does."""
    import difflib

    shown = ascii(code_or_name)[1:-1][:60]
    known = [word for stub in every() for word in (stub.code.lower(), stub.name)]
    near = difflib.get_close_matches(code_or_name.strip().lower()[:60], known, 1)
    if near:
        stub = find(near[0])
        if stub:
            return f"unknown rule `{shown}`: did you mean {stub.code} ({stub.name})?"
    return f"unknown rule `{shown}`: `validate-ddp rules` lists them all"
