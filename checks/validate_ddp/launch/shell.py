"""Shell scripts as facts: tree-sitter-bash's tree is walked once, in the order of the text; nothing is executed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from validate_ddp.findings import Span
from validate_ddp.launch import commands
from validate_ddp.launch.commands import Context
from validate_ddp.launch.origin import Origin, Segment
from validate_ddp.launch.positional import Positionals
from validate_ddp.launch.quoting import conflict, misquoted
from validate_ddp.launch.records import Job, Record, Setting, Srun, Start, Word
from validate_ddp.launch.status import Statuses
from validate_ddp.launch.variables import Atom, Binding, Variables, unknown
from validate_ddp.launch.words import Words, unescaped
from validate_ddp.source.text import Comment

if TYPE_CHECKING:
    Node = Any

_CONDITIONAL = frozenset(("if_statement", "while_statement", "case_statement", "c_style_for_statement"))
_PLAIN = frozenset(
    "program compound_statement subshell do_group pipeline negated_command redirected_statement ERROR elif_clause"
    " else_clause case_item variable_assignments".split()
)
_CLAUSES = frozenset(("elif_clause", "else_clause", "case_item"))
_DEEPEST = 60
"""Levels of a tree; more are no launch script, and would exhaust Python's stack."""
_SCRIPTS = re.compile(r"\.(?:sh|bash|sbatch|slurm)$")
_parser: Any = None
_ENDS_THE_PARSER = re.compile(rb"(?<=\{)([0-9.]*)([^\x00-\x7f]+)")
"""Where a brace expansion may begin, tree-sitter-bash hands each character to C's isdigit, which for one of a high
number reads outside its table and ends the process."""


def parse(data: bytes) -> Node:
    """The root of the tree."""
    global _parser
    if _parser is None:
        import tree_sitter
        import tree_sitter_bash

        _parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    harmless = _ENDS_THE_PARSER.sub(lambda found: found[1] + b"_" * len(found[2]), data)
    return _parser.parse(harmless).root_node


class Script:
    """The walk of one script, and of those that it holds in strings. records: the facts so far."""

    def __init__(self, origin: Origin, outer: Script | None = None, srun: Srun | None = None) -> None:
        self.is_file = False
        self.origin = origin
        self.records: list[Record] = outer.records if outer else []
        self.comments: list[Comment] = outer.comments if outer else []
        self.used: set[str] = outer.used if outer else set()
        self.exported: list[Setting] = list(outer.exported) if outer else []
        self.variables: Variables = Variables(outer.variables if outer else None)
        self.words = Words(origin, self.variables, self.used)
        self.positionals = Positionals(origin, self.records)
        self.allexport = False
        self.srun = srun
        self.folder: str = outer.folder if outer else ""
        self.started: list[tuple[Node, Start]] = []
        self.depth: int = outer.depth + 1 if outer else 0

    def read(self) -> None:
        """Walk the whole script; one with a merge conflict is no script, and nothing else is said of it."""
        undecided = conflict(self.origin) if self.is_file else None
        if undecided is not None:
            self.records[:] = [undecided]
            return
        root = parse(self.origin.data)
        self._visit(root, True, 0)
        self.records += misquoted(self.origin, root, self.is_file)
        self.positionals.finish()
        statuses = Statuses(self.origin, root, any(isinstance(record, Job) for record in self.records))
        self.records += [lost for lost in (statuses.of(*each) for each in self.started) if lost is not None]

    def _visit(self, node: Node, surely: bool, level: int) -> None:
        """One node. surely: every run of the script comes here."""
        kind = node.type
        if level > _DEEPEST:
            return
        if kind == "comment":
            self._comment(node)
        elif kind == "command":
            self._command(node, surely, level)
        elif kind == "variable_assignment":
            self._assign(node, surely)
        elif kind == "declaration_command":
            self._declare(node, surely)
        elif kind == "unset_command":
            for child in node.named_children:
                name = child.text.decode("utf-8", "replace")
                self.variables.bind(name, Binding((unknown(0, 0, name),), True))
                self.exported = [setting for setting in self.exported if setting.name != name]
        elif kind == "list":
            self._list(node, surely, level)
        elif kind == "for_statement":
            self._for(node, level)
        elif kind == "function_definition":
            self.positionals.within += 1
            self._branches([node.named_children], level, False)
            self.positionals.within -= 1
        elif kind in _CONDITIONAL:
            self.positionals.tested(node)
            clauses = [child for child in node.named_children if child.type in _CLAUSES]
            first = [child for child in node.named_children if child.type not in _CLAUSES]
            is_whole = any(child.type == "else_clause" for child in clauses)
            self._branches([first, *([clause] for clause in clauses)], level, is_whole)
        elif kind == "test_command":
            self.positionals.tested(node)
            self._reads(node)
        elif kind == "heredoc_redirect":
            self._heredoc(node, level)
        elif kind in _PLAIN:
            if kind == "redirected_statement":
                self._used_in_redirects(node)
            folder = self.folder
            self._children(node, surely and kind != "ERROR", level)
            if kind == "subshell":
                self.folder = folder

    def _children(self, node: Node, surely: bool, level: int) -> None:
        for child in node.named_children:
            self._visit(child, surely, level + 1)

    def _branches(self, branches: list[list[Node]], level: int, is_whole: bool) -> None:
        """Nodes of which one list is run; or none of them, where they are not the whole of what may be."""
        before = self.variables.state()
        states = [] if is_whole else [before]
        for branch in branches:
            self.variables.restore(before)
            for child in branch:
                self._visit(child, False, level + 1)
            states.append(self.variables.state())
        self.variables.join(states)

    def _list(self, node: Node, surely: bool, level: int) -> None:
        """``a && b``: what follows a test, or ``||``, may not come to run."""
        left, right = node.named_children[0], node.named_children[-1]
        self._visit(left, surely, level + 1)
        for child in node.named_children[1:-1]:
            self._branches([[child]], level, False)
        tested = any(child.type == "||" for child in node.children) or left.type in ("test_command", "negated_command")
        if right is left:
            return
        if tested or left.type == "list":
            self._branches([[right]], level, False)
        else:
            self._visit(right, surely, level + 1)

    def _for(self, node: Node, level: int) -> None:
        name = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        words = [
            word
            for child in node.named_children
            if body is None or child.start_byte < body.start_byte
            if child != name
            for word in self.words.of(child)
        ]
        if name is not None:
            texts = tuple(dict.fromkeys(text for word in words for text in word.texts))
            is_open = not words or len(texts) > 16 or any(word.open for word in words)
            atom = Atom(texts if len(texts) <= 16 else (), is_open, name.start_byte, name.end_byte)
            self.variables.bind(name.text.decode("utf-8", "replace"), Binding((atom,), True))
        if body is not None:
            self._branches([[body]], level, False)

    def _comment(self, node: Node) -> None:
        span = self.origin.span(node.start_byte, node.end_byte)
        data = self.origin.data
        begin = data.rfind(b"\n", 0, node.start_byte) + 1
        before = data[begin : node.start_byte].decode("utf-8", "replace")
        text = node.text.decode("utf-8", "replace")
        self.comments.append(Comment(span.line, span.column, text, not before.strip()))

    def _assign(self, node: Node, surely: bool) -> Setting | None:
        """``name=value``; a setting where the variable is in the environment."""
        target = node.child_by_field_name("name")
        if target is None or target.type != "variable_name":
            return None
        name = target.text.decode("utf-8", "replace")
        value = node.child_by_field_name("value")
        was_used = name in self.used
        binding = self.words.binding(value, True)
        word = self.words.one(value, node.end_byte)
        if not was_used:  # `X=${X:-1}` makes nothing of it
            self.used.discard(name)
        if any(child.type == "+=" for child in node.children):
            self.variables.append(name, binding)
        else:
            self.variables.bind(name, binding)
        self.positionals.taken(name, value, node, surely)
        setting = Setting(name, word, "export", self._span(node), self._span(node))
        if self.allexport or any(each.name == name for each in self.exported):
            self._export(setting)
        return setting

    def _declare(self, node: Node, surely: bool) -> None:
        """``export``, ``declare -x``, ``local``, ``readonly``."""
        exports = node.text.startswith(b"export") or re.match(rb"(?:declare|typeset)\s+-\w*x", node.text) is not None
        if node.text.startswith(b"local"):
            surely = False
        for child in node.named_children:
            if child.type == "variable_assignment":
                setting = self._assign(child, surely)
                if setting is not None and exports:
                    self._export(setting._replace(statement=self._span(node)))
            elif child.type == "variable_name" and exports:
                name = child.text.decode("utf-8", "replace")
                atom = self.variables.value(name, child.start_byte, child.end_byte)
                word = Word(name, atom.texts, atom.open, self._span(child))
                self._export(Setting(name, word, "export", self._span(child), self._span(node)))

    def _export(self, setting: Setting) -> None:
        self.exported = [each for each in self.exported if each.name != setting.name]
        self.exported.insert(0, setting)
        self.records.append(setting)

    def _command(self, node: Node, surely: bool, level: int) -> None:
        prefix: list[Setting] = []
        words: list[Word] = []
        nodes: list[Node] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                setting = self._prefixed(child, node)
                if setting is not None:
                    prefix.append(setting)
            elif child.type == "command_name" or not child.type.endswith(("redirect", "comment")):
                found = self.words.of(child)
                words += found
                nodes += [child] * len(found)
        if not words:
            return
        name = commands.base(words[0])
        if name in ("read", "mapfile", "readarray", "getopts"):
            for word in words[1:]:
                self.variables.bind(word.raw, Binding((unknown(0, 0, word.raw),), True))
        elif name == "set":
            self.allexport = self.allexport or any(word.only in ("-a", "-o allexport") for word in words)
            if _sets_parameters(words[1:]):
                self.positionals.reset()
        elif name in ("cd", "pushd", "popd"):
            to = words[1].only if len(words) == 2 else None
            self.folder = "" if to is None or to == "-" else os.path.join(self.folder, to)
        elif name == "shift":
            self.positionals.shifted(words, surely)
        elif name == "eval" and len(words) > 1 and "'" not in words[1].raw[:1] + '"' and not words[1].many:
            words, nodes = words[1:], nodes[1:]
        self.positionals.handed_on(node, words)
        if self._strings(words, nodes, level):
            return
        statement = self._statement(node)
        context = Context(tuple(self.exported), self.srun)
        start = commands.start(words, tuple(prefix), context, statement)
        if start is not None:
            start = start._replace(folder=self.folder)
            self.records += prefix
            self.records.append(start)
            self.started.append((node, start))

    def _prefixed(self, node: Node, command: Node) -> Setting | None:
        """``A=1 torchrun``: in the environment of that command only."""
        target = node.child_by_field_name("name")
        if target is None or target.type != "variable_name":
            return None
        word = self.words.one(node.child_by_field_name("value"), node.end_byte)
        name = target.text.decode("utf-8", "replace")
        return Setting(name, word, "prefix", self._span(node), self._span(command))

    def _strings(self, words: list[Word], nodes: list[Node], level: int) -> bool:
        """Read the scripts that the command is given as strings: ``bash -c "..."``, ``eval "..."``, ``ssh h "..."``."""
        scripts: list[tuple[Node, int]] = []
        for index, word in enumerate(words):
            name = commands.base(word)
            is_shell = name in commands.SHELLS and index + 2 < len(words) and _is_c(words[index + 1])
            if is_shell:
                scripts.append((nodes[index + 2], index))
            elif index == 0 and name in ("eval", "ssh", "pdsh", "tmux", "screen", "parallel"):
                scripts += [(each, 0) for each in nodes[1:] if each.type in ("string", "raw_string")]
        found = False
        for node, index in scripts:
            origin = self.words.inside(node)
            if origin is not None and self.depth < 4:
                srun = commands.sruns(words[:index]) or self.srun
                self._nested(origin, srun)
                found = True
        return found

    def _heredoc(self, node: Node, level: int) -> None:
        """A script that is handed to a shell or ``sbatch``, or written to a file of scripts."""
        body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
        statement = node.parent
        if body is None or statement is None or self.depth >= 4:
            return
        line = statement.text.partition(b"\n")[0].decode("utf-8", "replace")
        first = line.split()[:1]
        is_run = bool(first) and first[0] in ("sbatch", "bash", "sh", "ssh", "srun")
        if is_run or any(_SCRIPTS.search(word.strip("\"'<>")) for word in line.split()):
            begin = next((child for child in node.named_children if child.type == "heredoc_start"), None)
            if begin is not None and begin.text[:1] not in (b'"', b"'", b"\\"):
                self._nested(unescaped(self.origin, body.text, body.start_byte), self.srun)
            else:
                self._nested(self.origin.part(body.text, (Segment(0, body.start_byte),)), self.srun)

    def _nested(self, origin: Origin, srun: Srun | None) -> None:
        from validate_ddp.launch.batch import job

        asked = job(origin)
        if asked is not None:
            self.records.append(asked)
        Script(origin, self, srun).read()

    def _used_in_redirects(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "file_redirect":
                self._reads(child)

    def _reads(self, node: Node) -> None:
        """Note the variables that are read anywhere in a node."""
        for found in re.finditer(rb"\$\{?#?([A-Za-z_]\w*)", node.text):
            self.used.add(found.group(1).decode())

    def _statement(self, node: Node) -> Span:
        parent = node.parent
        if parent is not None and parent.type == "redirected_statement":
            node = parent
        return self._span(node)

    def _span(self, node: Node) -> Span:
        return self.origin.span(node.start_byte, node.end_byte)


def _is_c(word: Word) -> bool:
    """Whether it is ``-c``, or an option of a shell that ends in it (``-lc``)."""
    text = word.only or ""
    return text.startswith("-") and not text.startswith("--") and text.endswith("c")


def starts_in(words: list[Word], settings: tuple[Setting, ...] = ()) -> Start | None:
    """The command that plain words make, as of a list in YAML or Python."""
    if not words:
        return None
    return commands.start(
        words,
        (),
        Context(settings),
        words[0].span._replace(end_line=words[-1].span.end_line, end_column=words[-1].span.end_column),
    )


def _sets_parameters(words: list[Word]) -> bool:
    """Whether ``set`` is given other parameters for the script, and not its own options only, as `-euo pipefail`."""
    rest = iter(words)
    for word in rest:
        if word.only is None or word.only[:1] not in ("-", "+") or word.only in ("-", "--"):
            return True
        if word.only.endswith("o"):
            next(rest, None)
    return False
