"""The wrapper's state_dict is saved, with `module.` before every key.

## What it does
Looks for a checkpoint that holds `state_dict()` of a DistributedDataParallel wrapper, or the wrapper itself.

## Why is this bad?
The keys read `module.layer.weight`. A script that loads them into the bare model fails with missing and unexpected
keys, or, with `strict=False`, silently loads nothing. Where the same project loads into the wrapper again or strips the
prefix, it is deliberate: then this is advice.

## Example
```python
torch.save(ddp_model.state_dict(), "model.pt")
```

## Use instead
```python
torch.save(ddp_model.module.state_dict(), "model.pt")
```

## Fix safety
The fix takes the state of the model inside: `.module.state_dict()`, or `getattr(model, "module", model).state_dict()`
where a run on a single process does not wrap it. It is unsafe: files that were saved before keep their prefix, and code
out of sight may count on it. There is none where the same project loads into the wrapper or handles the prefix.

## References
- [DDP tutorial: save and load checkpoints](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import INFO, WARNING, Edit, Fix, Proposal, Span
from validate_ddp.interpreter import facts, mentions
from validate_ddp.interpreter.surroundings import levels
from validate_ddp.interpreter.trace import Program
from validate_ddp.interpreter.training import DDP, Fabric, Loaded, State
from validate_ddp.interpreter.values import Site, Value, bare, constant, reaching
from validate_ddp.models.networks import wrapped_state
from validate_ddp.record.run import Run
from validate_ddp.record.verdict import Observation, Seen, Telling, Unclear, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol
from validate_ddp.rules.proposing import place, propose
from validate_ddp.source import syntax
from validate_ddp.source.traversal import is_same, last_name, walk

TRIGGER = facts.Save
SEVERITIES = (WARNING, INFO)
EVIDENCE = "SR"
FIX = "unsafe"
TELLING = Telling("names without `module.`")

HEAD = """
    dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 2)
    ddp = DDP(model)
"""
VALID = (
    """
    if dist.get_rank() == 0:
        state = model.state_dict()
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        torch.save({"model": state}, "model.pt")
    """,
    """
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), "model.pt")
    """,
    """
    def unwrap(net):
        return net.module if hasattr(net, "module") else net

    if dist.get_rank() == 0:
        torch.save({"model": unwrap(ddp).state_dict(), "epoch": 1}, "model.pt")
    """,
    """
    def unwrap(net):
        kinds = (DDP, torch.nn.DataParallel)
        while isinstance(net, kinds):
            net = net.module
        return net

    if dist.get_rank() == 0:
        torch.save(unwrap(ddp).state_dict(), "model.pt")
        torch.save(model.state_dict(), "plain.pt")
    """,
    """
    # alone
    from accelerate import Accelerator
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    if accelerator.is_main_process:
        torch.save(state, "model.pt")
    """,
)
INVALID = (
    """
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), "model.pt")  # expect
    """,
    """
    def save(net, epoch):
        state = {"epoch": epoch, "model": net.state_dict()}  # expect
        if dist.get_rank() == 0:
            torch.save(state, "model.pt")

    save(ddp, 1)
    """,
    """
    if dist.get_rank() == 0:
        torch.save(ddp, "model.pt")  # expect
    """,
    """
    # alone
    from accelerate import Accelerator

    def thawed(net):
        for parameter in net.parameters():
            parameter.requires_grad_(True)
        names = set()
        for name, parameter in net.named_parameters():
            names.add(name)
        print(names)
        return net

    accelerator = Accelerator()
    model = accelerator.prepare(thawed(torch.nn.Linear(4, 4)))
    if accelerator.is_main_process:
        torch.save(model.state_dict(), "model.pt")  # expect
    """,
    """
    state = {name: value * 2 for name, value in ddp.state_dict().items()}
    ddp.load_state_dict(state)
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), "model.pt")  # expect
    """,
)


def check(program: Program) -> Iterator[Proposal]:
    """One finding for each such save."""
    reported = set()
    for fact in program.facts(facts.Save):
        unresolved = fact.role == "unresolved"
        for taken, wrapper in wrapped_state(fact.object):
            if taken is None and unresolved:
                continue  # a saver that is given the model may well unwrap it
            site = taken or fact.site
            if not isinstance(wrapper, DDP) or _gives_inner_state(wrapper):
                continue
            if site.statement in reported or _is_of_fsdp(program, site):
                continue  # one finding a statement: a checkpoint of three models is one mistake
            reported.add(site.statement)
            deliberate = _is_deliberate(program, fact, wrapper) or _is_told_apart(program, site)
            evidence = [place(wrapper.site, "the model is wrapped here")]
            if site != fact.site:
                evidence.append(place(fact.site, "and saved here"))
            yield propose(
                program,
                fact.moved(site),
                INFO if deliberate else WARNING,
                "the DistributedDataParallel wrapper is saved, so every key starts with `module.`; "
                "save `.module.state_dict()`",
                evidence=evidence,
                fix=None if deliberate else _fix(program, fact, site.statement),
            )


def _gives_inner_state(wrapper: DDP) -> bool:
    """Whether it is Fabric's, whose state is that of the model inside."""
    return bool(constant(wrapper.flavour) == Fabric.called)


def _is_told_apart(program: Program, site: Site) -> bool:
    """Whether a condition chooses between the state of a model and that of its ``.module``: in the launches that come
    here the model may be bare, `net.module.state_dict() if args.multi else net.state_dict()`."""
    from validate_ddp.interpreter.surroundings import call_at

    body = program.body(site.path)
    call = call_at(body, site.span)
    if call is None or not isinstance(call.func, syntax.Attribute):
        return False
    net = call.func.value
    found = levels(body, site.statement)
    statement = found[-1].body[found[-1].at]
    around: list[syntax.If | syntax.IfExp] = [level.owner for level in found if isinstance(level.owner, syntax.If)]
    around += [part for part in walk(statement) if isinstance(part, syntax.IfExp)]
    return any(
        any(part is call for part in walk(mine)) and any(_is_inside(part, net) for part in walk(other))
        for node in around
        for mine, other in ((node.body, node.orelse), (node.orelse, node.body))
    )


def _is_inside(part: syntax.Node, net: syntax.Expression) -> bool:
    return isinstance(part, syntax.Attribute) and part.attr == "module" and is_same(part.value, net)


def _is_of_fsdp(program: Program, site: Site) -> bool:
    """Whether the state is taken ``with FSDP.state_dict_type(model, ...)``: what the model is there, not DDP's."""
    return any(
        isinstance(level.owner, syntax.With)
        and any(
            isinstance(part, syntax.Call) and last_name(part.func) == _STATES
            for item in level.owner.items
            for part in walk(item.context_expr)
        )
        for level in levels(program.body(site.path), site.statement)
    )


_STATES = "state_dict_type"


def _fix(program: Program, fact: facts.Save, statement: Span) -> Fix | None:
    """Unwrap every wrapper whose state this statement takes; none where one of them is not plainly written."""
    from validate_ddp.interpreter.surroundings import call_at, span_of
    from validate_ddp.rules.edits import is_certain
    from validate_ddp.source.syntax import Attribute
    from validate_ddp.source.traversal import dotted

    edits: dict[Span, Edit] = {}
    for taken, wrapper in wrapped_state(fact.object):
        if taken is None or taken.statement != statement or not isinstance(wrapper, DDP):
            continue
        call = call_at(program.body(taken.path), taken.span)
        if call is None or not isinstance(call.func, Attribute):
            return None
        receiver, name = span_of(call.func.value, taken.span), dotted(call.func.value)
        if receiver is None or name is None:
            return None
        surely = any(wrap.site == wrapper.site and is_certain(program, wrap) for wrap in program.facts(facts.Wrap))
        text = f"{name}.module" if surely else f'getattr({name}, "module", {name})'
        edits[receiver] = Edit("replace", taken.path, receiver, text)
    if not edits:
        return None
    first = next(iter(edits.values())).text
    return Fix(f"save the model inside: `{first}.state_dict()`", False, tuple(edits.values()))


def _is_deliberate(program: Program, fact: facts.Save, wrapper: DDP) -> bool:
    """Whether the program loads into the wrapper, or handles the prefix."""
    if wrapper in bare(fact.object):
        return False  # the pickled wrapper itself
    for load in program.facts(facts.LoadState):
        if any(isinstance(atom, DDP) for atom in bare(load.target)) and not _is_its_own(load.state):
            return True
    return program.mentions(mentions.PREFIX_HANDLED)


def _is_its_own(state: Value) -> bool:
    """Whether what is loaded was taken from a running model, as statistics that ranks average, and no file was read."""
    parts = reaching(state)
    return any(isinstance(part, State) for part in parts) and not any(isinstance(part, Loaded) for part in parts)


def observe(run: Run) -> Seen:
    """A run that also loads into a wrapper means it so: info."""
    deliberate = bool(list(run.each(protocol.Load)))
    for rank, event in run.each(protocol.Save):
        if not event.tensors:
            continue
        if not event.wrapped:
            yield Well(event.site, held=run.wraps)
        elif run.wraps:
            message = (
                f"{event.wrapped} of {event.tensors} saved tensors are named `module. ...`: this is the state of "
                "the wrapper, which a model that is not wrapped cannot load"
            )
            severity = INFO if deliberate else WARNING
            yield Observation(severity, event.site, message, (), (rank,))
        else:
            yield Unclear(event.site)
