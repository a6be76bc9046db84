"""How a finding was derived, in words: from the script through calls, loops and conditions to what happens.

Each step names a place and quotes its code, so that a reader can say which of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.interpreter import facts
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.ranks import BY_NAME, phrase
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.values import Const, Site, constant
from validate_ddp.interpreter.wording import described

_LONGEST = 72
_TAKEN_AS: dict[type[Fact], str] = {
    facts.ProcessGroup: "the start of a process group",
    facts.Device: "the choice of a device",
    facts.Sampler: "the making of a distributed sampler",
    facts.Loader: "the making of a loader",
    facts.Iterate: "a run through a loader",
    facts.Wrap: "the wrapping of a model",
    facts.Forward: "a forward of a model",
    facts.Backward: "a backward",
    facts.Collective: "a collective",
    facts.Save: "a write",
    facts.Load: "a load",
    facts.LoadState: "a load into a model",
}


def derivation(program: Program, fact: Fact) -> tuple[str, ...]:
    """The steps, in the order in which a rank comes to them."""
    spawned = Flag.SPAWNED in fact.flags
    steps = [f"{program.entry} is the script" + ("" if spawned else ": every rank runs it")]
    launches = {launch.site for launch in program.facts(facts.Launch)}
    for depth, site in enumerate((*fact.chain, None)):
        steps += _around(program, fact, depth)
        if site is not None:
            starts = spawned and site in launches
            steps.append(f"{_at(program, site)} {'starts a process for each rank' if starts else 'is called'}")
    taken_as = _TAKEN_AS.get(type(fact), f"{_words(type(fact))} `{fact.name}`")
    steps.append(f"{_at(program, fact.site)} is reached on {phrase(fact.who)}, and taken as {taken_as}")
    for role, value in fact.given.items():
        if value == getattr(type(fact), role, ()) or role not in fact.told:
            continue
        value = value if isinstance(value, tuple) else (Const(value),)
        if role in ("sampler", "loader", "loaded", "wrapper") and getattr(value[0], "site", None) == fact.site:
            continue  # that is the thing itself
        several = role[-1] == "s" and role[-2] != "s" and not isinstance(constant(value), bool)
        steps.append(f"its {role.replace('_', ' ')} {'are' if several else 'is'} {described(value)}")
    return tuple(steps)


def _words(kind: type[Fact]) -> str:
    """The name of a kind in words: ``sharded state``."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).strip()


def _around(program: Program, fact: Fact, depth: int) -> Iterator[str]:
    """The loops and conditions within the function at ``depth`` of the chain, in the order of the text."""
    inside = fact.chain[depth] if depth < len(fact.chain) else fact.site
    rows: list[tuple[tuple[int, ...], str]] = []
    for guard in fact.guards:
        if guard.depth != depth:
            continue
        passed = "its handler goes on" if guard.swallows else "whether it holds is not known"
        passed += ", and the ranks may differ about it" if guard.apart else ""
        if guard.premised and guard.exact:
            passed = "taken for granted, as several ranks run"
        if guard.who != "all":
            passed = f"{phrase(guard.who)} {'pass' if guard.who in ('some', 'nonzero') else 'passes'}"
            passed += "" if guard.sure else BY_NAME
            passed += "" if guard.exact else ", if anything else that it asks for holds"
        rows.append((tuple(guard.site.span), f"{_at(program, guard.site)}: {passed}"))
    for loop in dict.fromkeys(fact.loops):
        if (loop.site.path, loop.site.function) == (inside.path, inside.function):
            times = "runs once" if loop.once else "goes round, as epochs or steps do" if loop.counts else "goes round"
            rows.append((tuple(loop.site.span), f"{_at(program, loop.site)} {times}"))
    yield from (text for _, text in sorted(rows))


def _at(program: Program, site: Site) -> str:
    code = " ".join(program.code(site.path, site.span).split())
    if len(code) > _LONGEST:
        code = code[: _LONGEST - 3] + "..."
    where = f"{site.path}:{site.span.line}" + (f" in {site.function}()" if site.function else "")
    return f"{where} `{code}`" if code else where
