"""Tells from bytes, without a parse, whether a file can matter and what it imports."""

from __future__ import annotations

import re

_SIGNS = (
    b"distributed",
    b"rank",
    b"RANK",
    b"DataParallel",
    b"world_size",
    b"WORLD_SIZE",
    b"ccelerat",  # accelerate, Accelerator
    b"horovod",
    b"hydra",
    b"deepspeed",
    b"abric",  # lightning's Fabric
    b"ightning",
    b"HfArgumentParser",
    b"TrlParser",
    b"TrainingArguments",
    b"mpi4py",
    b"torch_xla",
    b"SLURM",
    b"torchrun",
    b"detectron2.engine",
    b"detectron2.utils",
    b"mmengine.dist",
    b"mmcv.runner",
    b"megatron",
)
"""A file that has to do with several processes holds one of these, the commonest first; ``rank`` covers get_rank,
local_rank and is_rank_zero, ``distributed`` covers most else."""

_SPACE = rb"(?:[ \t\f]|\\(?:\r\n|\r|\n))*"
_WORD = rb"[\w\x80-\xff]+"
# Counts are bounded so that hostile text costs linear time; no real statement comes near them.
_FROM = (
    rb"\bfrom\b" + _SPACE + rb"((?:\." + _SPACE + rb"){0,100}(?:(?!import\b)" + _WORD
    + rb"(?:" + _SPACE + rb"\." + _SPACE + _WORD + rb"){0,100})?)" + _SPACE + rb"\bimport\b" + _SPACE
)  # fmt: skip
_NAMES = rb"[\w\x80-\xff.,* \t\f]*(?:\\(?:\r\n|\r|\n)[\w\x80-\xff.,* \t\f]*){0,100}"
_BRACKETED = rb"\((?:[\w\x80-\xff.,*\s\\]+|#[^\r\n]*)*"
_DYNAMIC = rb"import(?:_module|__)" + _SPACE + rb"\(\s*[bBuUrR]?[\"']([\w\x80-\xff.]+)[\"']"


def may_matter(data: bytes) -> bool:
    """Whether the bytes can have to do with distributed training. May be wrong with yes, hardly with no."""
    return any(sign in data for sign in _SIGNS)


def imports(data: bytes) -> list[str]:
    """Dotted names of the modules that the source may import, relative ones with their leading dots, each once.

    ``from a import b`` gives "a" and "a.b", as b may be a module. Never misses an import statement of valid UTF-8
    source, wherever it stands; may give names out of comments and strings. Linear time. Also finds literal names in
    ``import_module("a")``. For a notebook give the encoded text, not the JSON.
    """
    if b"import" not in data:
        return []
    found: dict[bytes, None] = {}
    start = re.compile(rb"(?:" + _FROM + rb")|\bimport\b" + _SPACE)
    names, bracketed = re.compile(_NAMES), re.compile(_BRACKETED)
    position = unclosed = 0
    while (position := _line_of_import(data, position)) >= 0:
        statement = start.search(data, position)
        if statement is None:
            break
        module = statement.group(1)
        position = end = statement.end()
        if module is not None:
            module = _squeezed(module)
            found[module] = None
        if data[end : end + 1] == b"(" and module is not None:
            if end < unclosed:  # a bracket in a comment of one that has no end: looked through already
                continue
            region = bracketed.match(data, end)
            assert region is not None
            if data[region.end() : region.end() + 1] != b")":
                unclosed = region.end()
                continue
            listed = re.sub(rb"#[^\r\n]*", b"", region.group()[1:])
            position = region.end()
        else:
            region = names.match(data, end)
            assert region is not None
            listed = region.group()
            # In a comment a backslash continues nothing, so the next line may be a statement of its own.
            broken = listed.find(b"\\")
            position = end + broken if broken >= 0 else region.end()
        _add(found, module, listed)
    if b"import_module" in data or b"__import__" in data:
        for dynamic in re.finditer(_DYNAMIC, data):
            found[dynamic.group(1)] = None
    return [_text(name) for name in found]


def _line_of_import(data: bytes, position: int) -> int:
    """Where the line begins that holds the next ``import``, with the lines that it continues; -1 where there is none.

    No earlier than ``position``. To look for the word first is ten times as fast as a pattern over everything.
    """
    word = data.find(b"import", position)
    if word < 0:
        return -1
    line = data.rfind(b"\n", position, word)
    while line > position and data[line - 1 : line] in (b"\\", b"\r"):
        line = data.rfind(b"\n", position, line)
    return max(line, position)


def _add(found: dict[bytes, None], module: bytes | None, listed: bytes) -> None:
    for item in re.sub(rb"\\(?:\r\n|\r|\n)", b" ", listed).split(b","):
        words = re.sub(rb"\s*\.\s*", b".", item).split()
        if not words or words[0].startswith(b"*"):
            continue
        if module is None:
            found[words[0]] = None
        else:
            found[module + (b"" if module.endswith(b".") else b".") + words[0]] = None


def _squeezed(module: bytes) -> bytes:
    return re.sub(rb"\s+|\\", b"", module)


def _text(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    if text.isascii():
        return text
    from unicodedata import normalize  # as the compiler does with identifiers

    return normalize("NFKC", text)
