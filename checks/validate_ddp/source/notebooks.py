"""Reads the code of a Jupyter notebook as one text, and writes changed cells back without touching the rest."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from validate_ddp.source.text import EMPTY, SYNTAX, UNREADABLE, Cell, Problem, Source, line_of_byte

_MARK = "# %% validate-ddp cell "


class _Code(NamedTuple):
    """The source of one code cell, and where its JSON value lies in the decoded file."""

    source: str
    start: int
    end: int


class _Layout(NamedTuple):
    """A notebook taken apart: the decoded file, its code cells, and the marks that no cell's text contains."""

    document: str
    codes: tuple[_Code, ...]
    python: bool
    mark: str
    token: str


def from_bytes(path: str, data: bytes) -> Source | Problem:
    """The code cells as one text, each below a comment line, with IPython's own syntax neutralised line for line.

    A notebook for another language than Python gives an empty text without cells.
    """
    if not data.strip():
        return Problem(path, 0, 0, "is empty, so it is not a notebook", UNREADABLE, cause=EMPTY)
    try:
        layout = _take_apart(data)
    except UnicodeDecodeError as error:
        line = line_of_byte(data, error.start)
        return Problem(path, line, 0, "is not a notebook: not UTF-8", UNREADABLE)
    except json.JSONDecodeError as error:
        message = f"is not a notebook: JSON error: {error.msg}"
        return Problem(path, error.lineno, error.colno, message, UNREADABLE)
    except RecursionError:
        return Problem(path, 0, 0, "is not a notebook: JSON nested too deeply", UNREADABLE)
    except ValueError as error:
        return Problem(path, 0, 0, f"is not a notebook: {error}", UNREADABLE)
    if not layout.python:
        return Source(path, data, "", ())
    return _assemble(path, data, layout)


def splice(data: bytes, new_text: str, cells: tuple[Cell, ...]) -> bytes:
    """Put ``new_text``, a changed form of the notebook's text, back into the notebook's bytes.

    Only cells whose text changed are rewritten; the rest of the JSON stays byte for byte. ``new_text`` may have more
    or fewer lines, but must keep the comment line above each cell: ValueError where one is missing or out of order.
    """
    from validate_ddp.source import magics

    layout = _take_apart(data)
    if not layout.python:
        return data
    if len(cells) != len(layout.codes):
        raise ValueError(f"the notebook has {len(layout.codes)} code cells, not {len(cells)}")
    bodies = _bodies(new_text, layout)
    old_bodies = [magics.neutralise(code.source, layout.token) + "\n" for code in layout.codes]
    plain = data.isascii() and b"\\u" in data
    pieces: list[str] = []
    position = 0
    for code, old, new in zip(layout.codes, old_bodies, bodies, strict=True):
        if new == old:
            continue
        source = magics.restore(new[:-1] if new.endswith("\n") else new, layout.token)
        pieces += layout.document[position : code.start], _value(layout.document, code, source, plain)
        position = code.end
    pieces.append(layout.document[position:])
    marked = data.startswith(b"\xef\xbb\xbf")
    return "".join(pieces).encode("utf-8-sig" if marked else "utf-8")


def _assemble(path: str, data: bytes, layout: _Layout) -> Source | Problem:
    from validate_ddp.source import magics

    pieces: list[str] = []
    cells: list[Cell] = []
    line = 1
    for number, code in enumerate(layout.codes, 1):
        if "\0" in code.source:
            return Problem(path, 0, 0, "holds a NUL character, so it is not Python text", UNREADABLE, number)
        try:
            code.source.encode("utf-8")
        except UnicodeEncodeError:
            return Problem(path, 0, 0, "holds half a character (a lone surrogate)", SYNTAX, number)
        body = magics.neutralise(code.source, layout.token)
        body += "\n"
        count = body.count("\n") + body.count("\r") - body.count("\r\n")
        cells.append(Cell(number, line + 1, count))
        pieces += _marker(layout, number), body
        line += 1 + count
    return Source(path, data, "".join(pieces), tuple(cells))


def _marker(layout: _Layout, number: int) -> str:
    return f"{layout.mark}{number}\n"


def _bodies(text: str, layout: _Layout) -> list[str]:
    """The text between the markers, one a cell."""
    bodies: list[str] = []
    position = 0
    for number in range(1, len(layout.codes) + 1):
        marker = _marker(layout, number)
        start = text.find(marker, position)
        if start < 0 or (number == 1 and start != 0):
            raise ValueError(f"the comment line above code cell {number} is missing")
        if number > 1:
            bodies.append(text[position:start])
        position = start + len(marker)
    if layout.codes:
        bodies.append(text[position:])
    return bodies


def _value(document: str, code: _Code, source: str, plain: bool) -> str:
    """``source`` as JSON in the form of the value that it replaces: a string, or a list of lines laid out alike."""
    old = document[code.start : code.end]
    if not old.startswith("["):
        return json.dumps(source, ensure_ascii=plain)
    lines = [line + "\n" for line in source.split("\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    if not lines:
        return "[]"
    opening = old[1 : len(old) - len(old[1:].lstrip())]
    closing = old[len(old[:-1].rstrip()) : -1]
    if opening and "\n" in opening:
        between = "," + opening
    elif old[1:-1].strip():
        between = ", "
    else:  # an empty list shows no layout
        opening, closing, between = "", "", ", "
    return "[" + opening + between.join(json.dumps(line, ensure_ascii=plain) for line in lines) + closing + "]"


def _take_apart(data: bytes) -> _Layout:
    """Find the code cells. ValueError with the reason where the JSON is not a notebook."""
    document = data.decode("utf-8-sig")
    notebook = _DECODER.decode(document)
    if not isinstance(notebook, dict):
        raise ValueError("JSON, but not an object")
    place = _member(document, _skip(document, 0), "cells")
    if place is not None and isinstance(notebook["cells"], list):
        spans, key = [(place, notebook["cells"])], "source"
    elif isinstance(notebook.get("worksheets"), list):  # nbformat 3 and older
        spans, key = _worksheets(document, notebook["worksheets"]), "input"
    else:
        raise ValueError("JSON without a list of cells")
    codes = tuple(code for start, cells in spans for code in _codes(document, start, cells, key))
    mark, token = _MARK, "validate-ddp:"
    while any(mark in code.source for code in codes):
        mark += "~ "
    while any(token in code.source for code in codes):
        token = "~" + token
    return _Layout(document, codes, _is_python(notebook), mark, token)


def _worksheets(document: str, sheets: list[Any]) -> list[tuple[int, list[Any]]]:
    place = _member(document, _skip(document, 0), "worksheets")
    assert place is not None
    spans: list[tuple[int, list[Any]]] = []
    for start, sheet in zip(_elements(document, place), sheets, strict=True):
        inner = _member(document, start, "cells") if isinstance(sheet, dict) else None
        if inner is not None and isinstance(sheet["cells"], list):
            spans.append((inner, sheet["cells"]))
    return spans


def _codes(document: str, start: int, cells: list[Any], key: str) -> list[_Code]:
    codes: list[_Code] = []
    for position, cell in zip(_elements(document, start), cells, strict=True):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get(key, "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        elif not isinstance(source, str):
            raise ValueError(f"code cell {len(codes) + 1} has a source that is not text")
        value = _member(document, position, key)
        if value is None:  # a cell without source: nothing to read, nowhere to write
            continue
        codes.append(_Code(source, value, _end(document, value)))
    return codes


def _is_python(notebook: dict[str, Any]) -> bool:
    """Judged by the kernel that the notebook names; one that names none is taken for Python."""
    metadata = notebook.get("metadata")
    if not isinstance(metadata, dict):
        return True
    for key, name in (("kernelspec", "language"), ("language_info", "name")):
        described = metadata.get(key)
        language = described.get(name) if isinstance(described, dict) else None
        if isinstance(language, str) and language:
            return "python" in language.lower() or language.lower() == "sage"
    return True


# Positions in JSON that json.loads has accepted, so that a changed value can be replaced and nothing else moves.

_SPACE = " \t\n\r"


def _no_number(_: str) -> None:
    """Numbers do not matter here, and json raises for one of thousands of digits."""


_DECODER = json.JSONDecoder(parse_float=_no_number, parse_int=_no_number)


def _skip(document: str, position: int) -> int:
    while position < len(document) and document[position] in _SPACE:
        position += 1
    return position


def _end(document: str, position: int) -> int:
    return _DECODER.raw_decode(document, position)[1]


def _member(document: str, position: int, name: str) -> int | None:
    """Where the value of ``name`` begins in the object at ``position``; of several the last one, as in JSON."""
    found = None
    position = _skip(document, position + 1)
    while document[position] != "}":
        key, position = _DECODER.raw_decode(document, position)
        position = _skip(document, _skip(document, position) + 1)
        if key == name:
            found = position
        position = _skip(document, _end(document, position))
        if document[position] == ",":
            position = _skip(document, position + 1)
    return found


def _elements(document: str, position: int) -> list[int]:
    """Where each element begins, for the array at ``position``."""
    starts: list[int] = []
    position = _skip(document, position + 1)
    while document[position] != "]":
        starts.append(position)
        position = _skip(document, _end(document, position))
        if document[position] == ",":
            position = _skip(document, position + 1)
    return starts
