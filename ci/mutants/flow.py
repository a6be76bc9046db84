"""Where values go in a correct script: which names hold a wrapped model, a sampler, a loader, a rank."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from ci.mutants.script import File, Script, keyword

_MAKERS = {
    "DistributedDataParallel": "wrapped",
    "FullyShardedDataParallel": "wrapped",
    "DistributedSampler": "sampler",
    "DataLoader": "loader",
    "distributed.get_rank": "rank",
}
_SAME = {".to", ".cuda", ".cpu", ".train", ".eval", ".requires_grad_"}
_PREPARE = (".prepare", ".setup", ".setup_dataloaders")
_PASSES = 6


class Tag(NamedTuple):
    """A value by its kind and the expression that makes it."""

    kind: str
    node: cst.CSTNode


Key = tuple[object, ...]


class Flow:
    """Values of names, without regard to order: good enough for scripts that are written to be planted in."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._held: dict[Key, set[Tag]] = {}
        self._parts: dict[int, list[set[Tag]]] = {}
        self._functions = {
            (file.path, _local_name(file, node)): (file, node) for file, node in script.find(cst.FunctionDef)
        }
        self._classes = {(file.path, node.name.value): (file, node) for file, node in script.find(cst.ClassDef)}
        for _ in range(_PASSES):
            self._pass()

    def kinds(self, file: File, node: cst.CSTNode) -> set[str]:
        """What the expression may be."""
        return {tag.kind for tag in self.tags(file, node)}

    def names_in(self, file: File, scope: cst.FunctionDef | None, kind: str) -> list[str]:
        """The plain names that hold a value of the kind in a function."""
        start = (file.path, id(scope) if scope else 0)
        return [
            str(key[2]) for key, tags in self._held.items() if key[:2] == start and any(t.kind == kind for t in tags)
        ]

    def callee(self, file: File, call: cst.Call) -> tuple[File, cst.FunctionDef] | None:
        """The function of the script which the call calls; ``__init__`` for a class."""
        name = file.qualified(call.func)
        for path, local in ((file.path, name), self._imported(name)):
            if (path, local) in self._functions:
                return self._functions[path, local]
            if (path, f"{local}.__init__") in self._functions:
                return self._functions[path, f"{local}.__init__"]
        if isinstance(call.func, cst.Attribute):
            for tag in self._receiver(file, call.func.value):
                holder, owner = self._classes[tag]
                method = self._functions.get((holder.path, f"{owner.name.value}.{call.func.attr.value}"))
                if method is not None:
                    return method
        return None

    def tags(self, file: File, node: cst.CSTNode) -> set[Tag]:
        """What the expression may be, with where it is made."""
        if isinstance(node, cst.Name):
            return self._name(file, node)
        if isinstance(node, cst.Attribute):
            return self._attribute(file, node)
        if isinstance(node, cst.IfExp):
            return self.tags(file, node.body) | self.tags(file, node.orelse)
        if isinstance(node, (cst.Tuple, cst.List)):
            self._parts[id(node)] = [self.tags(file, element.value) for element in node.elements]
            return {Tag("tuple", node)}
        if isinstance(node, cst.Subscript) and "environ" in file.code(node.value):
            return _environment(node)
        if isinstance(node, cst.Call):
            return self._call(file, node)
        return set()

    def _call(self, file: File, call: cst.Call) -> set[Tag]:
        name = "." + file.qualified(call.func)
        for ending, kind in _MAKERS.items():
            if name.endswith("." + ending):
                return {Tag(kind, call)}
        if name.startswith(".torch.optim."):
            return {Tag("scheduler" if ".lr_scheduler." in name else "optimizer", call)}
        if file.is_call_of(call, *_PREPARE):
            return self._prepared(file, call)
        if isinstance(call.func, cst.Attribute) and "." + call.func.attr.value in _SAME:
            return self.tags(file, call.func.value)
        if isinstance(call.func, cst.Name) and call.func.value == "int" and call.args:
            return self.tags(file, call.args[0].value)
        if isinstance(call.func, cst.Attribute) and "environ" in file.code(call.func.value):
            return _environment(call)
        callee = self.callee(file, call)
        if callee is None:
            return set()
        found = set(self._held.get(("return", id(callee[1])), ()))
        if callee[1].name.value == "__init__":
            owner = callee[0].enclosing(callee[1], cst.ClassDef)
            assert owner is not None
            found.add(Tag("instance", owner))
        return found

    def _prepared(self, file: File, call: cst.Call) -> set[Tag]:
        parts = []
        for argument in call.args:
            held = self.tags(file, argument.value)
            parts.append(
                held if {t.kind for t in held} & {"loader", "optimizer", "scheduler"} else {Tag("wrapped", call)}
            )
        if len(parts) == 1:
            return parts[0]
        self._parts[id(call)] = parts
        return {Tag("tuple", call)}

    def _name(self, file: File, node: cst.Name) -> set[Tag]:
        scopes = [id(parent) for parent in file.parents(node) if isinstance(parent, cst.FunctionDef)]
        for scope in (*scopes, 0):
            held = self._held.get((file.path, scope, node.value))
            if held:
                return held
        path, local = self._imported(file.qualified(node))
        return self._held.get((path, 0, local), set())

    def _attribute(self, file: File, node: cst.Attribute) -> set[Tag]:
        owners = self._receiver(file, node.value)
        if owners:
            return {tag for owner in owners for tag in self._held.get(("attr", *owner, node.attr.value), ())}
        return self._held.get(("text", file.code(node)), set())

    def _receiver(self, file: File, node: cst.CSTNode) -> list[tuple[str, str]]:
        """The classes of the script whose instance the expression is."""
        if isinstance(node, cst.Name) and node.value == "self":
            owner = file.enclosing(node, cst.ClassDef)
            return [(file.path, owner.name.value)] if owner else []
        made = [tag.node for tag in self.tags(file, node) if tag.kind == "instance"]
        return [key for key, (_, owner) in self._classes.items() if any(owner is node for node in made)]

    def _imported(self, name: str) -> tuple[str, str]:
        module, _, local = name.partition(".")
        return f"{module}.py", local

    def _pass(self) -> None:
        for file in self.script.files:
            for node in file.nodes:
                if isinstance(node, cst.Assign):
                    for target in node.targets:
                        self._bind(file, target.target, self.tags(file, node.value))
                elif isinstance(node, cst.Return) and node.value is not None:
                    function = file.function(node)
                    if function is not None:
                        self._hold(("return", id(function)), self.tags(file, node.value))
                elif isinstance(node, cst.Call):
                    self._pass_arguments(file, node)

    def _bind(self, file: File, target: cst.CSTNode, tags: set[Tag]) -> None:
        if isinstance(target, cst.Name):
            scope = file.function(target)
            self._hold((file.path, id(scope) if scope else 0, target.value), tags)
        elif isinstance(target, cst.Attribute):
            owners = self._receiver(file, target.value)
            for owner in owners:
                self._hold(("attr", *owner, target.attr.value), tags)
            if not owners:
                self._hold(("text", file.code(target)), tags)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for tag in tags:
                for element, part in zip(target.elements, self._parts.get(id(tag.node), ()), strict=False):
                    self._bind(file, element.value, part)

    def _pass_arguments(self, file: File, call: cst.Call) -> None:
        if file.is_call_of(call, "multiprocessing.spawn"):
            self._spawn(file, call)
            return
        callee = self.callee(file, call)
        if callee is None:
            return
        holder, function = callee
        parameters = [p.name.value for p in (*function.params.params, *function.params.kwonly_params)]
        positional = parameters[1:] if parameters[:1] == ["self"] else parameters
        for index, argument in enumerate(call.args):
            if argument.keyword is not None:
                name = argument.keyword.value
            elif index < len(positional):
                name = positional[index]
            else:
                continue
            self._hold((holder.path, id(function), name), self.tags(file, argument.value))

    def _spawn(self, file: File, call: cst.Call) -> None:
        """The first parameter of what is spawned is the rank, and on one node the local rank."""
        target = self._functions.get((file.path, file.code(call.args[0].value)))
        if target is None:
            return
        holder, function = target
        names = [parameter.name.value for parameter in function.params.params]
        self._hold((holder.path, id(function), names[0]), {Tag("rank", call)})
        passed = keyword(call, "args")
        if passed is not None and isinstance(passed.value, cst.Tuple):
            for name, element in zip(names[1:], passed.value.elements, strict=False):
                self._hold((holder.path, id(function), name), self.tags(file, element.value))

    def _hold(self, key: Key, tags: set[Tag]) -> None:
        if tags:
            self._held.setdefault(key, set()).update(tags)


def _local_name(file: File, function: cst.FunctionDef) -> str:
    owner = file.enclosing(function, cst.ClassDef)
    return f"{owner.name.value}.{function.name.value}" if owner else function.name.value


def _environment(node: cst.Subscript | cst.Call) -> set[Tag]:
    text = cst.Module([]).code_for_node(node)
    for name, kind in (("LOCAL_RANK", "local_rank"), ("RANK", "rank")):
        if f'"{name}"' in text:
            return {Tag(kind, node)}
    return set()
