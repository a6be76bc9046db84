"""Libraries that call the program's functions with arguments from the command line: typer, click, fire and others."""

from __future__ import annotations

from validate_ddp.interpreter import calls, commands, facts
from validate_ddp.interpreter.call import Call
from validate_ddp.interpreter.callables import Commands
from validate_ddp.interpreter.machine import Machine
from validate_ddp.interpreter.objects import Container, Tuple
from validate_ddp.interpreter.rows import api, method
from validate_ddp.interpreter.values import UNKNOWN, Class, Function, Symbol, Value, bare, join


def _application(machine: Machine, symbol: Symbol, call: Call) -> Value:
    return (Commands(call.site),)


def _command(machine: Machine, holder: Commands, call: Call) -> Value:
    """``app.command()``, and ``app.command()(function)``; a decorator is looked for where the application runs."""
    return (holder,)


def _run(machine: Machine, holder: Commands, call: Call) -> Value:
    """Run an application, or hand it a function: `app.command()(train)`."""
    handed = [inner for inner in bare(call.argument(0)) if isinstance(inner, Function)]
    if handed:
        holder.added += handed
        return call.argument(0)
    for function in holder.first:
        commands.run(machine, [function])
    groups = [holder, *(inner for inner in holder.added if isinstance(inner, Commands))]
    found = [inner for group in groups for inner in (*group.added, *commands.decorated_by(machine, group))]
    return commands.run(machine, found)


def _added(machine: Machine, holder: Commands, call: Call) -> Value:
    for atom in bare(call.given):
        if isinstance(atom, Commands):
            holder.added.append(atom)
    return UNKNOWN


def _fire(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function, a class with methods, several of them, or all that the module holds."""
    value = call.argument(0, "component") or call.argument(0, "components")
    return commands.run(machine, commands.meant_by(machine, value) if value else commands.of_module(machine))


def _settings(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """A function to run, or a class, of which an object is made from the command line."""
    value = call.argument(0, "config_class")
    result: Value = ()
    for atom in bare(value):
        if isinstance(atom, (Class, Function)):
            result = join(result, _from_command_line(machine, atom, call))
    return result or UNKNOWN


def _from_command_line(machine: Machine, atom: Class | Function, call: Call) -> Value:
    if isinstance(atom, Function):
        return commands.run(machine, [atom])
    filled = Call(atom.name, [], {}, call.site)
    filled.open = True
    return calls.instantiate(machine, atom, filled)


def _parser(machine: Machine, symbol: Symbol, call: Call) -> Value:
    """``HfArgumentParser((ModelArguments, DataArguments))``."""
    made = Commands(call.site)
    for atom in bare(call.argument(0, "dataclass_types")):
        held = [inner for value in atom.fields.values() for inner in bare(value)] if isinstance(atom, Container) else []
        made.added += held or [atom]
    return (made,)


def _parsed(machine: Machine, parser: Commands, call: Call) -> Value | None:
    if not parser.added or not all(isinstance(atom, (Class, Symbol)) for atom in parser.added):
        return None
    fields: dict[str, Value] = {}
    for index, atom in enumerate(parser.added):
        filled = Call("", [], {}, call.site)
        filled.open = True
        fields[str(index)] = calls.call_atom(machine, atom, filled)
    return (Tuple(call.site, fields),)


DECLARED = (
    api("typer.Typer cyclopts.App", _application),
    method("__call__ main", _run, of=Commands),
    method("command callback default group", _command, of=Commands),
    method("add_typer add_command", _added, of=Commands),
    api("fire.Fire jsonargparse.CLI jsonargparse.auto_cli defopt.run", _fire),
    api("tyro.cli draccus.parse pyrallis.parse simple_parsing.parse", _settings),
    api("HfArgumentParser TrlParser", _parser, within="transformers trl", fact=facts.Launch),
    method(
        "parse_args_into_dataclasses parse_args_and_config parse_json_file parse_yaml_file parse_dict",
        _parsed,
        of=Commands,
    ),
)
