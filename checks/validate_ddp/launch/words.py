"""Words of a shell command from its syntax: quotes taken off, variables looked up, what is unknown said to be so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from validate_ddp.launch.origin import Origin, Segment
from validate_ddp.launch.records import Word, as_number
from validate_ddp.launch.variables import Atom, Binding, Fields, Variables, joined_texts, unknown

if TYPE_CHECKING:
    Node = Any

_ESCAPED = re.compile(rb"\\(\r?\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(rb"\\(\r?\n|[\"\\$`])")
_FALLBACK = re.compile(rb"\|\|\s*echo\s+[\"']?([\w.:-]+)[\"']?\s*\)?\s*$")
_THIS_FILE = rb"""["']?(?:\$0|\$\{0\}|\$\{?BASH_SOURCE(?:\[0\])?\}?)["']?"""
_OWN_FOLDER = re.compile(
    rb"""\$\(\s*(?:cd\s+(?:--\s+)?["']?\$\(\s*)?dirname\s+(?:--\s+)?(?:%b|["']?\$\(\s*(?:readlink\s+-f|realpath)\s+%b\s*\)["']?)\s*\)"""
    rb"""(?P<behind>(?:/[\w./-]*)?)(?:["']?\s*(?:&?>[^&]*(?:2>&1\s*)?)?&&\s*pwd(?:\s+-P)?\s*\))?$"""
    % (_THIS_FILE, _THIS_FILE)
)
"""The folder of the script itself, as scripts ask for it."""
_SUM = re.compile(r"(\d{1,9})\s*([-+*/%])\s*(\d{1,9})$")
_DEFAULTS = (":-", "-", ":=", "=")


class Words:
    """Reads words of one text. used: the variables that were read, by name."""

    def __init__(self, origin: Origin, variables: Variables, used: set[str]) -> None:
        self.origin = origin
        self.variables = variables
        self.used = used

    def of(self, node: Node) -> list[Word]:
        """The words that an argument becomes: several where a variable holds several, none for an empty one."""
        fields = self._array_in(node)
        if fields is not None:
            return [self._word(field, node, True) for field in fields]
        atoms = self.atoms(node, False)
        return [self._word(tuple(field), node, False) for field in _split(atoms)]

    def one(self, node: Node | None, name_end: int) -> Word:
        """What is behind the ``=`` of an assignment, as one word."""
        if node is None:
            return Word("", ("",), False, self.origin.span(name_end, name_end))
        atoms = tuple(atom._replace(splits=False) for atom in self.atoms(node, True))
        return self._word(atoms, node, True)._replace(span=self.origin.span(node.start_byte, node.end_byte))

    def binding(self, node: Node | None, surely: bool) -> Binding:
        """What an assignment of ``node`` binds."""
        if node is None:
            return Binding((Atom(("",), False, 0, 0),), surely)
        if node.type == "array":
            return Binding((), surely, self._fields(node))
        return Binding(tuple(self.atoms(node, True)), surely)

    def _fields(self, array: Node) -> Fields:
        fields: list[tuple[Atom, ...]] = []
        for child in array.named_children:
            if child.type == "comment":
                continue
            inner = self._array_in(child)
            fields += inner if inner is not None else [tuple(field) for field in _split(self.atoms(child, False))]
        return tuple(fields)

    def _array_in(self, node: Node) -> Fields | None:
        """The elements of ``"${A[@]}"``, where that is all that the word is and they are known."""
        inner = node
        if (
            inner.type == "string"
            and inner.named_child_count == 1
            and inner.end_byte - inner.start_byte
            == 2 + (inner.named_children[0].end_byte - inner.named_children[0].start_byte)
        ):
            inner = inner.named_children[0]
        if inner.type != "expansion" or inner.named_child_count != 1 or inner.named_children[0].type != "subscript":
            return None
        if not inner.text.endswith((b"[@]}", b"[*]}")) or inner.text.startswith((b"${#", b"${!")):
            return None
        name = _text(inner.named_children[0].child_by_field_name("name"))
        self.used.add(name)
        binding = self.variables.sure(name)
        return binding.fields if binding is not None else None

    def _word(self, atoms: tuple[Atom, ...], node: Node, whole: bool) -> Word:
        texts, closed = joined_texts(atoms)
        start = min((atom.start for atom in atoms), default=node.start_byte)
        end = max((atom.end for atom in atoms), default=node.end_byte)
        if start < node.start_byte and end > node.start_byte:  # pieces of the definition and of the use
            start, end = node.start_byte, node.end_byte
        if whole and len(atoms) == 1 and start >= node.start_byte:
            start, end = node.start_byte, node.end_byte
        return Word(
            raw=self.origin.data[start:end].decode("utf-8", "replace"),
            texts=texts,
            open=not closed,
            span=self.origin.span(start, end),
            names=tuple(dict.fromkeys(name for atom in atoms for name in atom.names)),
            many=len(atoms) == 1 and atoms[0].many,
            fallback=any(atom.fallback for atom in atoms),
            tail=self.origin.span(atoms[1].start, atoms[1].end) if _is_option(atoms) else None,
        )

    def atoms(self, node: Node, quoted: bool) -> list[Atom]:
        """The pieces of a word; ``quoted``: white space of variables in it splits nothing."""
        kind, start, end = node.type, node.start_byte, node.end_byte
        if kind in ("word", "number", "variable_name", "special_variable_name", "extglob_pattern", "regex"):
            return [Atom((_unescaped(node.text, _ESCAPED),), False, start, end)]
        if kind == "raw_string":
            return [Atom((_plain(node.text[1:-1]),), False, start + 1, end - 1)]
        if kind == "ansi_c_string":
            return [Atom((_plain(node.text[2:-1]),), False, start, end)]
        if kind == "string":
            return self._string(node)
        if kind in ("concatenation", "command_name"):
            return [atom for child in node.children for atom in self.atoms(child, quoted)]
        if kind == "simple_expansion":
            return self._variable(_text(node)[1:], node, quoted)
        if kind == "expansion":
            return self._expansion(node, quoted)
        if kind == "command_substitution":
            own = _OWN_FOLDER.match(node.text)
            if own:
                return [Atom((_plain(b"." + own.group("behind")),), False, start, end)]
            found = _FALLBACK.search(node.text)
            texts = (_plain(found.group(1)),) if found else ()
            return [Atom(texts, True, start, end, many=not quoted, fallback=bool(found))]
        if kind == "arithmetic_expansion":
            return [self._arithmetic(node)]
        return [unknown(start, end)]

    def _string(self, node: Node) -> list[Atom]:
        """A string in double quotes; between its parts the tree leaves white space out."""
        atoms: list[Atom] = []
        position = node.start_byte + 1
        last = node.end_byte - (1 if node.text.endswith(b'"') and len(node.text) > 1 else 0)
        data = self.origin.data
        for child in node.named_children:
            if child.type == "string_content":
                continue
            if child.start_byte > position:
                atoms.append(_literal(data, position, child.start_byte))
            atoms += [atom._replace(many=False) for atom in self.atoms(child, True)]
            position = child.end_byte
        if position < last or not atoms:
            atoms.append(_literal(data, position, max(last, position)))
        return atoms

    def _variable(self, name: str, node: Node, quoted: bool) -> list[Atom]:
        """``$name``: the atoms that it surely holds, at their own place; else all that it can hold, at this one."""
        self.used.add(name)
        start, end = node.start_byte, node.end_byte
        if name in ("@", "*"):
            return [Atom((), True, start, end, names=(name,), many=True)]
        binding = self.variables.sure(name)
        if binding is not None and binding.fields is None:
            return [
                atom._replace(splits=not quoted, names=(*atom.names, name), many=not quoted and _may_be_more(atom))
                for atom in binding.atoms
            ]
        atom = self.variables.value(name, start, end)
        return [atom._replace(many=not quoted and _may_be_more(atom))]

    def _expansion(self, node: Node, quoted: bool) -> list[Atom]:
        """``${name}`` and its forms."""
        start, end = node.start_byte, node.end_byte
        parts = node.children[1:-1]
        name = next((_text(part) for part in parts if part.type in ("variable_name", "special_variable_name")), "")
        if not name:
            inner = next((part for part in parts if part.type == "subscript"), None)
            if inner is not None:
                self.used.add(_text(inner.child_by_field_name("name")))
            return [unknown(start, end)._replace(many=not quoted or b"[@]" in node.text)]
        self.used.add(name)
        if len(parts) == 1:
            return self._variable(name, node, quoted)
        operator = parts[1].type if parts[0].type in ("variable_name", "special_variable_name") else ""
        if operator not in _DEFAULTS:
            return [unknown(start, end, name)._replace(many=not quoted and not operator.startswith(("%", "#", "/")))]
        default = [atom for part in parts[2:] for atom in self.atoms(part, True)]
        texts, _ = joined_texts(tuple(default))
        held = self.variables.value(name, start, end)
        if self.variables.sure(name) is not None and (held.texts or held.open) and "" not in held.texts:
            merged = Atom(held.texts if not held.open else (*held.texts, *texts), held.open, start, end)
        else:
            merged = Atom(tuple(dict.fromkeys((*held.texts, *texts))), True, start, end)
        names = tuple(dict.fromkeys((name, *(each for atom in default for each in atom.names))))
        if operator in (":=", "="):
            self.variables.bind(name, Binding((merged,), False))
        return [merged._replace(names=names, many=not quoted and _may_be_more(merged))]

    def _arithmetic(self, node: Node) -> Atom:
        """A sum of two numbers that are known; anything else is unknown."""
        start, end = node.start_byte, node.end_byte
        inner = _text(node)[3:-2].strip()
        names = re.findall(r"[A-Za-z_]\w*", inner)
        self.used.update(names)
        for name in names:
            number = self._number(name, start, end)
            if number is None:
                return unknown(start, end, *names)
            inner = re.sub(rf"\$?\{{?\b{name}\b\}}?", str(number), inner)
        found = _SUM.match(inner)
        if as_number(inner) is not None:
            return Atom((inner,), False, start, end, names=tuple(names))
        if found is None or (found.group(2) in "/%" and int(found.group(3)) == 0):
            return unknown(start, end, *names)
        left, right = int(found.group(1)), int(found.group(3))
        result = {"+": left + right, "-": left - right, "*": left * right}.get(found.group(2))
        if result is None:
            result = left // right if found.group(2) == "/" else left % right
        return Atom((str(result),), False, start, end, names=tuple(names))

    def _number(self, name: str, start: int, end: int) -> int | None:
        atom = self.variables.value(name, start, end)
        return as_number(atom.texts[0]) if len(atom.texts) == 1 and not atom.open else None

    def inside(self, node: Node) -> Origin | None:
        """The script that a quoted word is, as of ``bash -c``, or quoted pieces; None for a word of another kind."""
        parts = node.children if node.type == "concatenation" else [node]
        if not any(part.type in ("string", "raw_string") for part in parts):
            return None
        return _put_together(self.origin, [piece for part in parts for piece in _pieces(part)])


Piece = tuple[bytes, int]
"""Bytes, and where they stand."""


def unescaped(origin: Origin, raw: bytes, start: int) -> Origin:
    """The script that is left of ``raw``, which lies at ``start``, when a here document gives it on."""
    return _put_together(origin, _unescaped_pieces(raw, start))


def _pieces(part: Node) -> list[Piece]:
    """What a part of a word says as a script: a variable in it stays one."""
    if part.type == "raw_string":
        return [(part.text[1:-1], part.start_byte + 1)]
    if part.type != "string":
        return [(part.text, part.start_byte)]
    raw = part.text[1:-1] if part.text.endswith(b'"') and len(part.text) > 1 else part.text[1:]
    return _unescaped_pieces(raw, part.start_byte + 1)


def _unescaped_pieces(raw: bytes, start: int) -> list[Piece]:
    pieces: list[Piece] = []
    position = 0
    for match in re.finditer(rb"\\([\"\\$`])", raw):
        pieces += [(raw[position : match.start()], start + position), (match.group(1), start + match.start() + 1)]
        position = match.end()
    return [*pieces, (raw[position:], start + position)]


def _put_together(origin: Origin, pieces: list[Piece]) -> Origin:
    segments: list[Segment] = []
    length = 0
    for piece, at in pieces:
        segments.append(Segment(length, at))
        length += len(piece)
    return origin.part(b"".join(piece for piece, _ in pieces), tuple(segments))


def _literal(data: bytes, start: int, end: int) -> Atom:
    return Atom((_unescaped(data[start:end], _ESCAPED_IN_QUOTES),), False, start, end)


def _unescaped(text: bytes, escape: re.Pattern[bytes]) -> str:
    if b"\\" not in text:
        return _plain(text)
    return _plain(escape.sub(lambda match: b"" if match.group(1).endswith(b"\n") else match.group(1), text))


def _plain(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _text(node: Node | None) -> str:
    return "" if node is None else _plain(node.text)


def _split(atoms: list[Atom]) -> list[list[Atom]]:
    """The words that atoms make: white space of a variable's value ends one, and its place is kept where it can be."""
    words: list[list[Atom]] = [[]]
    for atom in atoms:
        if not atom.splits or len(atom.texts) != 1 or not any(map(str.isspace, atom.texts[0])):
            words[-1].append(atom._replace(splits=False))
            continue
        text = atom.texts[0]
        exact = len(text.encode()) == atom.end - atom.start
        for match in re.finditer(r"\s+|\S+", text):
            if match.group().isspace():
                words.append([])
                continue
            start, end = atom.start, atom.end
            if exact:
                start, end = start + len(text[: match.start()].encode()), start + len(text[: match.end()].encode())
            words[-1].append(atom._replace(texts=(match.group(),), start=start, end=end, splits=False))
    return [word for word in words if word and not _vanishes(word)]


def _is_option(atoms: tuple[Atom, ...]) -> bool:
    """Whether it is an option that is written out, and a value that is one piece, maybe of elsewhere."""
    return len(atoms) == 2 and len(atoms[0].texts) == 1 and atoms[0].texts[0].endswith("=")


def _may_be_more(atom: Atom) -> bool:
    """Whether nothing tells that it is one word."""
    if len(atom.texts) == 1 and not atom.open:
        return False
    return not atom.texts or any(" " in text for text in atom.texts)


def _vanishes(word: list[Atom]) -> bool:
    """Whether it is a variable that is surely empty, and not quoted."""
    return all(atom.texts == ("",) and not atom.open and bool(atom.names) for atom in word)
