"""Dockerfiles: the commands of RUN, CMD and ENTRYPOINT, and the variables of ENV."""

from __future__ import annotations

import json
import re

from validate_ddp.launch.origin import Origin, Segment
from validate_ddp.launch.records import Launch, Setting, Word
from validate_ddp.launch.shell import Script, starts_in

_INSTRUCTION = re.compile(rb"[ \t]*(RUN|CMD|ENTRYPOINT|ENV)[ \t]+((?:[^\\\n]|\\[ \t]*\r?\n|\\.)*)", re.IGNORECASE)
_PAIR = re.compile(rb"([A-Za-z_]\w*)(?:=|[ \t]+)(\"[^\"]*\"|\S+)")


def of_dockerfile(path: str, text: str, origin: Origin) -> Launch:
    """The facts of a Dockerfile."""
    whole = Script(origin)
    position = 0
    data = origin.data
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        found = _INSTRUCTION.match(data, position)
        if found:
            end = max(found.end(), position)
            _instruction(whole, found.group(1).upper(), found.start(2), found.group(2))
        position = end + 1
    return Launch(path, text, whole.records, [], frozenset(whole.used))


def _instruction(whole: Script, name: bytes, at: int, body: bytes) -> None:
    origin = whole.origin
    if name == b"ENV":
        for pair in _PAIR.finditer(body):
            start, end = at + pair.start(), at + pair.end()
            value = pair.group(2).decode("utf-8", "replace").strip('"')
            span = origin.span(start, end)
            word = Word(value, (value,) if "$" not in value else (), "$" in value, span)
            setting = Setting(pair.group(1).decode(), word, "export", span, span)
            whole.exported.insert(0, setting)
            whole.records.append(setting)
    elif body.lstrip().startswith(b"["):
        try:
            listed = json.loads(body)
        except ValueError:
            return
        span = origin.span(at, at + len(body.rstrip()))
        words = [Word(text, (text,), False, span) for text in listed if isinstance(text, str)]
        found = starts_in(words, tuple(whole.exported))
        if found is not None:
            whole.records.append(found)
    else:
        Script(origin.part(body, (Segment(0, at),)), whole).read()
