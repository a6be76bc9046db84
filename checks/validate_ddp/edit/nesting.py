"""How deep a statement nests: LibCST recurses natively, and a statement that is too deep for it ends the process.

Measured on Linux with 8 MiB of stack, LibCST 1.9, Python 3.10 to 3.13: 1100 nested brackets pass and 1500 crash; of
chains (``a + b + ...``, ``not not ...``, ``lambda: lambda: ...``) 3000 pass and 6000 crash. Windows gives a main
thread 1 MiB, an eighth. The limits stay at a third of what an eighth of the stack bears. Long before that LibCST's
nodes, in Python, raise RecursionError, and deep brackets take it quadratic time.
"""

from __future__ import annotations

import io
import token
import tokenize

BRACKETS = 45
CHAIN = 250
SIZE = 50_000
"""Characters of a statement. A table of data that long holds no finding worth the seconds."""

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_QUIET = frozenset((token.NEWLINE, token.INDENT, token.DEDENT, token.ENDMARKER, tokenize.NL, tokenize.COMMENT))
_STRING_START = frozenset(getattr(token, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(token, name))
_STRING_END = frozenset(getattr(token, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(token, name))


def fit_for_libcst(text: str) -> bool:
    """Whether LibCST may see a piece of code that Python's own parser has accepted. Linear time, no recursion.

    A grammar rule can nest once a token at most, and a comma ends what nests within one pair of brackets. So the
    tokens since the last comma, added up over the brackets that are open, are a bound on the depth.
    """
    if len(text) > SIZE:
        return False
    open_levels: list[int] = []
    chain = 0
    outer = 0
    try:
        for item in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if item.type in _QUIET:
                continue
            if item.string in _OPENING or item.type in _STRING_START:
                open_levels.append(chain + 1)
                outer += chain + 1
                chain = 0
            elif item.string in _CLOSING or item.type in _STRING_END:
                if open_levels:
                    chain = open_levels.pop()
                    outer -= chain
            elif item.string in (",", ";"):
                chain = 0
            elif item.type == token.STRING:
                chain += 1 + _inside_string(item.string)
            else:
                chain += 1
            if len(open_levels) > BRACKETS or outer + chain > CHAIN:
                return False
    except (tokenize.TokenError, SyntaxError):
        return False
    return True


def _inside_string(text: str) -> int:
    """A bound on the depth of the expressions in an f-string, which is a single token before Python 3.12."""
    prefix = text[: min(text.find("'") % len(text), text.find('"') % len(text))].lower()
    if "f" not in prefix:
        return 0
    return sum(not (character.isalnum() or character.isspace()) for character in text) if "{" in text else 0
