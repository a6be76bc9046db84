"""The same script written otherwise: its settings renamed or moved, its functions in another module."""

from __future__ import annotations

import ast
from collections.abc import Callable

Texts = dict[str, str]
"""The files of a program by their paths."""

KEPT = frozenset({"local_rank", "local-rank"})
"""What a launcher passes by this name."""


def options(tree: ast.Module) -> dict[str, ast.Call]:
    """The declarations of the options, by the field that their value goes to."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("--"):
                found[str(first.value).removeprefix("--").replace("-", "_")] = node
    return found


def renamed(texts: Texts) -> Texts:
    """Each option under a name that says nothing, `args.gpu` as `args.setting_3`."""
    fields = sorted({name for text in texts.values() for name in options(ast.parse(text))} - KEPT)
    new = {name: f"setting_{number}" for number, name in enumerate(fields)}

    class Rename(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if node.attr in new and isinstance(node.value, (ast.Name, ast.Attribute)) and _is_of_settings(node.value):
                node.attr = new[node.attr]
            return node

    changed = {}
    for path, text in texts.items():
        tree = ast.parse(text)
        for name, call in options(tree).items():
            if name in new:
                call.args[0] = ast.Constant(f"--{new[name]}")
        changed[path] = ast.unparse(Rename().visit(tree))
    return changed


def _is_of_settings(node: ast.Name | ast.Attribute) -> bool:
    return (node.id if isinstance(node, ast.Name) else node.attr) in ("args", "opt", "options", "config", "cfg")


def _read_by(texts: Texts, imports: str, made: Callable[[dict[str, ast.Call]], str], reading: str) -> Texts:
    """The command line's parser replaced by ``reading``, which stands where it was asked."""
    changed = {}
    for path, text in texts.items():
        tree = ast.parse(text)
        fields = options(tree)
        if not fields or not KEPT.isdisjoint(fields):
            return texts  # a launcher's option has to stay one
        body = ast.parse(imports + "\n" + made(fields)).body
        tree = _without_parser(tree, ast.parse(reading, mode="eval").body)
        after = next(
            i for i, node in enumerate(tree.body) if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr))
        )
        tree.body[after:after] = body
        changed[path] = ast.unparse(ast.fix_missing_locations(tree))
    return changed


def _without_parser(tree: ast.Module, reading: ast.expr) -> ast.Module:
    class Replace(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return None if _calls(node.value, "add_argument") else self.generic_visit(node)

        def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
            return None if _calls(node.value, "ArgumentParser") else self.generic_visit(node)

        def visit_Call(self, node: ast.Call) -> ast.AST:
            return reading if _calls(node, "parse_args") else self.generic_visit(node)

    replaced = Replace().visit(tree)
    assert isinstance(replaced, ast.Module)
    return replaced


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name


def in_a_dataclass(texts: Texts) -> Texts:
    """The settings in a dataclass, which the command line fills."""

    def made(fields: dict[str, ast.Call]) -> str:
        return "@dataclass\nclass Settings:\n" + "".join(_field(name, call) for name, call in fields.items())

    imports = "from dataclasses import dataclass\nfrom typing import Any\nfrom transformers import HfArgumentParser"
    return _read_by(texts, imports, made, "HfArgumentParser(Settings).parse_args_into_dataclasses()[0]")


def _field(name: str, call: ast.Call) -> str:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    default = ast.unparse(given["default"]) if "default" in given else "False" if "action" in given else "None"
    return f"    {name}: Any = {default}\n"


def in_yaml(texts: Texts) -> Texts:
    """The settings in a file of their own."""
    return _read_by(
        texts, "import yaml\nimport types", lambda _: "", "types.SimpleNamespace(**yaml.safe_load(open('a.yaml')))"
    )


def in_omegaconf(texts: Texts) -> Texts:
    """The settings with their defaults where OmegaConf finds them, beside a file."""

    def made(fields: dict[str, ast.Call]) -> str:
        return (
            "defaults = dict(" + ", ".join(_field(*row).strip().replace(": Any", "") for row in fields.items()) + ")\n"
        )

    reading = "OmegaConf.merge(OmegaConf.create(defaults), OmegaConf.load('a.yaml'))"
    return _read_by(texts, "from omegaconf import OmegaConf", made, reading)


def in_another_module(texts: Texts) -> Texts:
    """All but the main block in a module beside the script."""
    if len(texts) > 1:
        return texts
    ((path, text),) = texts.items()
    tree = ast.parse(text)
    last = tree.body[-1]
    if not (isinstance(last, ast.If) and "__main__" in ast.unparse(last.test)):
        return texts
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    names += [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    script = ast.Module([*imports, *ast.parse(f"from parts import {', '.join(names)}").body, last], [])
    return {path: ast.unparse(script), "parts.py": ast.unparse(ast.Module(tree.body[:-1], []))}


WAYS: dict[str, Callable[[Texts], Texts]] = {
    "settings renamed": renamed,
    "settings in a dataclass": in_a_dataclass,
    "settings in YAML": in_yaml,
    "settings of OmegaConf": in_omegaconf,
    "functions in another module": in_another_module,
}
