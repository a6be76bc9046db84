"""Walk one entry script as every rank of a distributed launch would run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar, overload

from validate_ddp.findings import Place, Span
from validate_ddp.interpreter import calls, expressions, facts, statements, uncalled
from validate_ddp.interpreter.fact import Fact, Flag
from validate_ddp.interpreter.facts import Iterate, Launch
from validate_ddp.interpreter.guess import Guess
from validate_ddp.interpreter.machine import MAIN, BudgetSpent, Machine, Scope, Stop, let_go
from validate_ddp.interpreter.mentions import Mention
from validate_ddp.interpreter.modules import Library
from validate_ddp.interpreter.ranks import PARTIAL
from validate_ddp.interpreter.registry import Registry
from validate_ddp.interpreter.stack import roomy
from validate_ddp.interpreter.started import NOT_LAUNCHED, Launched, Started
from validate_ddp.interpreter.values import Class, Const, Instance, Site, constant
from validate_ddp.source.syntax import Statement
from validate_ddp.source.traversal import walk, words_of

_DEEPEST = 8000 if sys.version_info >= (3, 11) else 4000
"""Python frames: an elif takes six. Where they are spent is said (DDP004). Before 3.11 each of them takes its share of
the native stack too."""


_SETTING_UP = ("barrier", "new_group", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP")


_F = TypeVar("_F", bound=Fact)
_G = TypeVar("_G", bound=Fact)
_T = TypeVar("_T")


class Program:
    """What the walk of one entry found. Rules query it.

    entry: path of the script. recorded: the facts, in the order of the walk. stop: where something was not looked at,
    if anything was not. closed: of a walk that stopped, the number of facts outside of any branch or loop that it left
    open. assumed: nothing in sight calls what was walked (``interpreter/uncalled.py``), so nothing is certain. asks: it
    reads its command line. launched: how launch files start it.
    """

    def __init__(
        self,
        entry: str,
        recorded: list[Fact],
        stop: Stop | None,
        summaries: Any,
        files: list[str],
        *,
        closed: int = 0,
        unseen: frozenset[tuple[str, str]] = frozenset(),
        made: list[Scope | Class | Instance] | None = None,
        assumed: bool = False,
        asks: bool = False,
        launched: Launched = NOT_LAUNCHED,
    ) -> None:
        self.entry = entry
        self.assumed = assumed
        self.asks = asks
        self._launched = launched
        self.stop = stop
        self.closed = closed
        self.files = files
        self._facts: dict[type[Fact], list[Any]] = {}
        for fact in recorded:
            self._facts.setdefault(type(fact), []).append(fact)
        self._unseen = unseen
        self._summaries = summaries
        self._answers: dict[Any, Any] = {}
        self._made = made or []

    def let_go(self) -> None:
        """Nobody asks any more."""
        let_go(self._made)

    @property
    def complete(self) -> bool:
        """Whether all of the program was walked: else what was not met may be there all the same."""
        return self.stop is None

    def without_open(self) -> Program:
        """The program as far as the walk was done with it: without what a branch or loop holds that it left open."""
        recorded = self.facts(*self.kinds)[: self.closed]
        return Program(
            self.entry,
            recorded,
            self.stop,
            self._summaries,
            self.files,
            unseen=self._unseen,
            assumed=self.assumed,
            launched=self._launched,
        )

    @property
    def several_nodes(self) -> Place | None:
        """What starts the script on several nodes: a word of a launch file that was read with it; None without one."""
        return self._launched.several_nodes

    @property
    def one_node(self) -> bool:
        """Whether launch files start the script, and each of their commands says that it is for one node."""
        return self._launched.one_node

    @property
    def several_ranks(self) -> Place | None:
        """What alone tells that several ranks run the script: the command of a launch file that was read with it."""
        return None if self._tells_of_several else self._launched.several

    @property
    def is_foreign(self) -> bool:
        """Whether nothing in sight has to do with the ranks that are started: what does is elsewhere, if anything."""
        return self.several_ranks is not None and facts.Launch not in self._facts

    @property
    def kinds(self) -> frozenset[type[Fact]]:
        """The kinds of facts that there are."""
        return frozenset(self._facts)

    @overload
    def facts(self, kind: type[_F], /) -> list[_F]: ...
    @overload
    def facts(self, one: type[_F], other: type[_G], /) -> list[_F | _G]: ...
    @overload
    def facts(self, *kinds: type[Fact]) -> list[Fact]: ...
    def facts(self, *kinds: type[Any]) -> list[Any]:
        """The facts of these kinds, in the order of the walk."""
        return sorted((fact for kind in kinds for fact in self._facts.get(kind, ())), key=lambda fact: fact.order)

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks run the script: one place for what makes a script distributed.

        It says so itself, or a launch file starts it so: then every rank runs it, whatever it is. A notebook is one
        process, but for those that it starts itself, unless it starts a process group.
        """
        if self._is_one_process:
            return bool(self.starts)
        if self._is_group_of_one:
            return False
        return self._tells_of_several or self.several_ranks is not None

    @property
    def _tells_of_several(self) -> bool:
        """Whether the walk saw several ranks start: a process group, a wrapper, a launcher or a distributed sampler.

        A collective alone says nothing, nor does a wrapper or a clean-up behind a condition of unknown truth: helpers
        for both kinds of run have them behind conditions that a single process never meets.
        """
        return any(
            isinstance(fact, facts.Sampler)
            or (isinstance(fact, facts.Launch) and not (fact.launched or fact.name == "Process"))  # or it prepares data
            or (isinstance(fact, facts.ProcessGroup) and not (fact.name == "destroy" and fact.hangs_on_unknown))
            or (isinstance(fact, facts.Wrap) and fact.name != "dp" and not fact.hangs_on_unknown)
            for kind in self._facts.values()
            for fact in kind
        )

    @property
    def is_tool(self) -> bool:
        """Whether the script is one for a single process that shares its set-up with trainers.

        It trains nothing, and makes itself a world of one, or puts its work on one GPU that it names, or starts its
        group and meets in it only under conditions that nobody can decide; or whatever could start several ranks is
        under some condition, and nothing is shared out between ranks or left to one of them.
        """
        if facts.Backward in self._facts or facts.Launch in self._facts or self._launched.several is not None:
            return False
        if any(fact.site.path == self.entry for fact in self.facts(facts.WorldOfOne)):
            return True
        if self._is_on_one_device or self._meets_perhaps:
            return True
        sharing = self.facts(facts.ProcessGroup, facts.Wrap, facts.Sampler)
        if all(not isinstance(fact, facts.ProcessGroup) and Flag.CONDITIONAL in fact.flags for fact in sharing):
            return True  # no group is started, and what one would be for hangs on a condition
        for fact in self.facts(facts.ProcessGroup, facts.Wrap, facts.Collective):
            if fact.name not in ("dp", "destroy") and Flag.CONDITIONAL not in fact.flags:
                return False
            if isinstance(fact, facts.Collective) and fact.name not in _SETTING_UP:
                return False
        groups, samplers = self.facts(facts.ProcessGroup), self.facts(facts.Sampler)
        if samplers and (groups or any(Flag.CONDITIONAL not in fact.flags for fact in samplers)):
            return False
        return not any(
            fact.who in PARTIAL and not fact.hangs_on_unknown for kind in self._facts.values() for fact in kind
        )

    @property
    def _is_on_one_device(self) -> bool:
        """Whether the script itself names the one GPU that it works on, whatever its rank, and shares out no data."""
        own = [fact.device for fact in self.facts(facts.Device) if fact.site.path == self.entry and fact.who == "all"]
        names = [constant(device) for device in own]
        named = [name for name in names if isinstance(name, str) and name.startswith("cuda:")]
        return (
            bool(named)
            and len(named) == len(names)
            and not self.facts(facts.Sampler, facts.Wrap)
            and not self._parts_ranks
        )

    @property
    def _meets_perhaps(self) -> bool:
        """Whether several ranks start, and meet, only if an undecided condition holds: for one backend of several."""
        starts = [fact for fact in self.facts(facts.ProcessGroup) if fact.name == "init"]
        met = [*starts, *self.facts(facts.Collective, facts.Wrap, facts.Sampler)]
        return bool(starts) and all(fact.hangs_on_unknown for fact in met) and not self._parts_ranks

    @property
    def _parts_ranks(self) -> bool:
        """Whether something surely happens on some ranks only; to ask for the rank in a group is not yet that."""
        return any(
            fact.who in PARTIAL and not fact.hangs_on_unknown and not isinstance(fact, facts.GroupRank)
            for kind in self._facts.values()
            for fact in kind
        )

    def runs_on_many(self, fact: Fact) -> bool:
        """Whether several ranks reach the fact: not what a script does before it spawns its ranks."""
        if Flag.ALONE in fact.flags:
            return False
        return Flag.SPAWNED in fact.flags or not (self.starts or self._is_one_process)

    @property
    def _is_group_of_one(self) -> bool:
        """Whether the only group that is ever started has one rank, whatever the launch, and nothing starts others."""
        of_one = [fact for fact in self.facts(facts.WorldOfOne) if fact.name == "init"]
        several = self.starts or any(fact.name == "init" for fact in self.facts(facts.ProcessGroup))
        return bool(of_one) and not several

    @property
    def _is_one_process(self) -> bool:
        """Whether it is a notebook that does not itself start a process group: what a library starts is of one rank."""
        return self.entry.endswith(".ipynb") and not any(
            fact.name == "init" and fact.site.path == self.entry for fact in self.facts(facts.ProcessGroup)
        )

    @property
    def starts(self) -> list[Launch]:
        """Where the script itself starts the processes of its ranks; others help a rank, where it joins them itself."""
        launches = self.facts(facts.Launch)
        found = [fact for fact in launches if fact.name in ("spawn", "Process")]
        joining: list[Fact] = [fact for fact in self.facts(facts.ProcessGroup) if fact.name == "init"]
        joining += [fact for fact in launches if fact.launcher]
        ways = {guard.site for fact in found for guard in fact.guards}  # beside them it may be the other alternative
        beside = [fact for fact in joining if ways.isdisjoint(guard.site for guard in fact.guards)]
        spawned = any(Flag.SPAWNED in fact.flags for fact in joining) or any(fact.name == "spawn" for fact in found)
        return [] if beside and not spawned else found

    def has_seen_all(self, fact: Fact) -> bool:
        """Whether every call that may lead to the fact was walked: another may come to it with other values."""
        ways = {(site.path, site.function) for site in (*fact.chain, fact.site)}
        return self.complete and ways.isdisjoint(self._unseen)

    def trains(self, iterate: Iterate) -> bool:
        """Whether the batches of this iteration are trained on: a backward follows in the loop, or may elsewhere."""
        if Flag.NO_GRAD in iterate.flags:
            return False
        backwards = self.facts(facts.Backward)
        serials = {loop.serial for fact in backwards for loop in fact.loops}
        if iterate.serial in serials:
            return True
        plain = iterate.name == "for" and Flag.GENERATOR not in iterate.flags
        if not backwards:  # it is out of sight: then a plain loop over the batches counts, if there is any
            if self._evaluates(iterate):
                return False
            others = self.facts(facts.Iterate)
            return plain or not any(fact.name == "for" and Flag.GENERATOR not in fact.flags for fact in others)
        if plain:
            return False
        # Batches drawn one by one: the nearest caller that runs a model tells.
        running = {fact.site.function for fact in self.facts(facts.Forward)}
        training = {fact.site.function for fact in backwards}
        callers = [iterate.site.function, *(site.function for site in iterate.chain[-1:])]
        nearest = next((name for name in callers if name in running or name in training), None)
        return nearest in training or (nearest is None and self._feeds(iterate, serials))

    def _feeds(self, iterate: Iterate, serials: set[int]) -> bool:
        """Whether a model runs with gradients on batches of this loader, in one of these loops."""
        return any(
            loop.serial in serials
            for fact in self.facts(facts.Forward)
            if Flag.NO_GRAD not in fact.flags
            and any(loader in batch.loader for batch in fact.inputs for loader in iterate.loader)
            for loop in fact.loops
        )

    def _evaluates(self, iterate: Iterate) -> bool:
        """Whether a model only runs without gradients in this loop, or was put into evaluation mode ahead of it."""
        serial = iterate.serial
        inside = [fact for fact in self.facts(facts.Forward) if any(loop.serial == serial for loop in fact.loops)]
        if inside and all(Flag.NO_GRAD in fact.flags for fact in inside):
            return True
        place = iterate.site
        modes = [
            fact
            for fact in self.facts(facts.Mode)
            if (fact.site.path, fact.site.function) == (place.path, place.function)
            and fact.site.span.line < place.span.line
        ]
        return bool(modes) and max(modes, key=lambda fact: fact.site.span.line).name == "eval"

    def body(self, path: str) -> list[Statement]:
        """The statements of a file of the program, by the path that sites name."""
        body: list[Statement] = self._summaries.body(os.path.abspath(path)) or []
        return body

    def code(self, path: str, span: Span) -> str:
        """The text of a span in a file of the program."""
        file = os.path.abspath(path)
        source = self._summaries.source(file)
        if source is None:
            return ""
        from validate_ddp.source.positions import offset_of

        text: str = source.text
        starts = self._summaries.starts_of_lines(file)
        return text[offset_of(text, starts, *span[:2]) : offset_of(text, starts, *span[2:])]

    def once(self, question: Any, answer: Callable[[], _T]) -> _T:
        """The answer to a question about the whole program, which is looked for only the first time: a rule that asks
        it for each of its findings would take quadratic time."""
        if question not in self._answers:
            self._answers[question] = answer()
        held: _T = self._answers[question]
        return held

    def mentions(self, mention: Mention) -> bool:
        """Whether a file of the program holds one of its words."""
        return self.once(
            mention,
            lambda: any(word in (self._summaries.data(file) or b"") for file in self.files for word in mention.words),
        )

    def speaks_of(self, guess: Guess) -> bool:
        """Whether a name in the code, or a string that may be one, says this; comments and documentation do not."""
        return self.once(
            guess,
            lambda: any(map(guess.matches, words_of(node for file in self.files for node in walk(self.body(file))))),
        )

    def text(self, site: Site) -> str:
        """The source text at a place, on one line; for a condition or a loop that of its header."""
        return " ".join(self.code(site.path, site.span).split())


@roomy
def trace(summaries: Any, entry: str, registry: Registry, started: Started | None = None) -> Program:
    """Walk the script at the absolute path ``entry``, with what the registry knows of libraries.

    started: by which commands, where its options are to be what they give.
    """
    library = Library(summaries, entry, registry.words)
    machine = Machine(library, registry)
    machine.started = started or Started(())
    launched = summaries.launched.get(entry, NOT_LAUNCHED)
    machine.started.several = launched.several is not None
    machine.evaluate = MethodType(expressions.evaluate, machine)
    machine.walk = MethodType(statements.walk, machine)
    machine.call = MethodType(calls.call_values, machine)
    module = library.module(entry)
    module.state = "loading"
    module.scope.names["__name__"] = MAIN
    module.scope.names["__file__"] = (Const(entry),)
    deepest = sys.getrecursionlimit()
    assumed = False
    try:
        body = library.body(module)  # under the usual limit: the parser recurses natively
        sys.setrecursionlimit(max(deepest, _DEEPEST))
        library.run(machine, module, body)
        assumed = entry in summaries.named and summaries.starts(entry) and uncalled.walk(machine, module)
    except (BudgetSpent, RecursionError):
        pass  # `machine.stops` says where
    finally:
        sys.setrecursionlimit(deepest)
        del machine.evaluate, machine.walk, machine.call  # which hold the machine
    made = [*machine.made, *(module.scope for module in library.modules.values())]
    files = [file for file in library.modules if summaries.is_file(file)]
    stop = machine.stops[0] if machine.stops else None
    closed = machine.closed if machine.is_open else len(machine.facts)
    unseen = frozenset(machine.unseen)
    return Program(
        summaries.shown(entry),
        machine.facts,
        stop,
        summaries,
        files,
        closed=closed,
        unseen=unseen,
        made=made,
        assumed=assumed,
        asks=machine.started.asked,
        launched=launched,
    )
