"""Parses text to Python's own syntax tree, and survives whatever the text holds."""

from __future__ import annotations

import gc
import sys
import warnings
from _ast import PyCF_ONLY_AST
from collections.abc import Callable
from symtable import symtable
from typing import TYPE_CHECKING, Any

from validate_ddp.source.text import SYNTAX, Problem, Source, split_lines, syntax_problem

if TYPE_CHECKING:
    import ast

_FIELDS_LIMIT = 2000
"""Replacement fields in one f-string: the time that Python takes is quadratic in them."""

_FIELD_COPIES_LIMIT = 2 * 10**10
"""Braces in f-strings times characters: from 3.12 on Python copies the rest of the text at each of them."""

_CHAIN_LIMIT = 5_000 if sys.platform == "win32" else 50_000
"""Tokens that one expression may chain before Python 3.10 would overrun the C stack: with 8 MB of it, as on Linux and
macOS, it does so above 100,000 levels; Windows gives 1 MB."""

_NAME_LIMIT = 200
"""Dots in one name. Where it is imported, Python takes quadratic time and memory: gigabytes for a long line."""

_LONG_LINE = 2000
"""Characters; hardly anybody writes longer ones."""

_UNGUARDED = sys.version_info < (3, 11)


def parse(source: Source) -> ast.Module | Problem:
    """The syntax tree of ``source.text``, or why there is none, with the Python version that the text needs.

    Never raises, never prints a warning, and takes linear time. A tree can be as deep as Python allows, thousands of
    levels and on 3.10 tens of thousands: whoever walks it by recursion catches the error.
    """
    found = _parsed(source, _tree)
    if isinstance(found, Problem):
        return found
    tree: ast.Module = found
    return tree


def problem_of(source: Source) -> Problem | None:
    """Why ``source.text`` cannot be parsed, as ``parse`` tells it; None where it can. A third cheaper than its tree."""
    if not isinstance(_parsed(source, _symbols), Problem):
        return None
    # Names may be at odds (a `nonlocal` at the top) in a file that does parse.
    tree = parse(source)
    return tree if isinstance(tree, Problem) else None


def _parsed(source: Source, compiled: Callable[[str], object]) -> Any:
    """What ``compiled`` makes of the text, or the problem."""
    text = source.text
    braces = text.count("{")
    if braces > _FIELDS_LIMIT or braces * len(text) > _FIELD_COPIES_LIMIT:
        problem = _too_many_fields(source)
        if problem:
            return problem
    if _has_long_lines(text) and _names_too_long(text):
        return _too_nested(source)
    if _UNGUARDED and len(text) > 2 * _CHAIN_LIMIT and _chains_too_long(text):
        return _too_nested(source)
    try:
        return _quietly(compiled, text)
    except SyntaxError as error:
        from validate_ddp.source.dialect import explain  # only for a file that is not Python

        return explain(source, error)
    except (RecursionError, MemoryError):
        return _too_nested(source)
    except (ValueError, OverflowError, SystemError) as error:  # half characters, and what else C code may find
        return Problem(source.path, 0, 0, f"cannot be parsed: {' '.join(str(error).split())}", SYNTAX)


def _tree(text: str) -> object:
    return compile(text, "<source>", "exec", PyCF_ONLY_AST, dont_inherit=True)


def _symbols(text: str) -> object:
    return symtable(text, "<source>", "exec")


def _quietly(compiled: Callable[[str], object], text: str) -> object:
    collects = gc.isenabled()
    gc.disable()  # a tree holds no cycles; looking for them doubles the time for a large one
    try:
        with warnings.catch_warnings():  # an invalid escape sequence is no business of ours
            warnings.simplefilter("ignore")
            return compiled(text)
    finally:
        if collects:
            gc.enable()


def _too_many_fields(source: Source) -> Problem | None:
    from validate_ddp.source.lexical import fstrings

    found = fstrings(source.text)
    if found.most_fields > _FIELDS_LIMIT:
        line = len(split_lines(source.text[: found.most_at + 1]))
        message = f"one f-string has {found.most_fields} fields; more than {_FIELDS_LIMIT} take too long to parse"
        return syntax_problem(source, line, 0, message)
    if sys.version_info >= (3, 12) and found.braces * len(source.text) > _FIELD_COPIES_LIMIT:
        message = f"holds {found.braces} braces in f-strings, too many to parse in a file of this size; split it"
        return Problem(source.path, 0, 0, message, SYNTAX)
    return None


def _has_long_lines(text: str) -> bool:
    """Whether statements may be long enough to matter: cheap, and false for almost all that people write."""
    if len(text) < 20_000:
        return False
    if text.count("\\") > 20 and text.count("\\\n") + text.count("\\\r") > 20:
        return True
    start = 0
    while start + _LONG_LINE < len(text):  # to the last line end that is near enough, not from line to line
        end = text.rfind("\n", start, start + _LONG_LINE + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _names_too_long(text: str) -> bool:
    from validate_ddp.source.lexical import longest_name

    return longest_name(text) > _NAME_LIMIT


def _chains_too_long(text: str) -> bool:
    from validate_ddp.source.lexical import longest_chain

    return longest_chain(text) > _CHAIN_LIMIT


def _too_nested(source: Source) -> Problem:
    return Problem(source.path, 0, 0, "is nested too deeply for Python's parser; split the longest expression", SYNTAX)
