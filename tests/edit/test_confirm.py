"""Proposals are confirmed on the concrete statement, whatever stands round it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syntax_nodes import calls_and_statements, fix, span_of
from validate_ddp.edit.confirm import confirm
from validate_ddp.findings import Proposal, Span
from validate_ddp.source.text import Cell

pytestmark = pytest.mark.usefixtures("six_rules")

SCRIPT = '''\
import torch
# coding: latin-1
@dec(save("é"))
@other
async def f(x, *, y=save(1)):
    ü = "é"; save(ü); save(  (ü), save(ü))
    async with save(1) as z, \\
          save(2):
        pass
    x = await save(lambda: save(3))
    if x: save(4)
    elif (save(5)): save(6)
    else: save(7)
    return f"é {save(8)} {x}" "abc" f'{save(9)!r:>{save(10)}}'
class A(save(11)):
\tdef g(self):
\t\t@save(12)
\t\tdef h(): pass
\t\tmatch save(13):
\t\t\tcase A(x) if save(14): save(15)
\t\tfor i in (save(16)): # comment: colon
\t\t\ttorch.save(17,
  b=3)
\t\ttry: save(18)
\t\texcept save(19) as e: save(20)
\t\twhile (y := save(21)): save(22)
\t\tsave(23)(24); save(25).save(26); d[save(27)] = save(28)
\t\tassert save(
"""é
  """, save(29)), save(30)
\t\tdel a[save(31)]
\t\treturn [save(32) for save in save(33) if save(34)]
\t\t# -*- coding: utf-16 -*-
\t\tsave(35, # -*- coding: utf-16 -*-
\t\t)
if (lambda: save(36))(): pass
while lambda: save(37): pass
with (
    save(38) as a, save(39),
): save(40)
match = save; match(save(41)); case = {save(42): 1}
'''


def header_of(statement: Any, how: str) -> Span:
    """A statement's span as a caller may give it: its start only, up to its last expression, or whole."""
    if isinstance(statement, ast.match_case):
        pattern = span_of(statement.pattern)
        return pattern._replace(column=pattern.column - 5)
    span = span_of(statement)
    if how == "whole" or not (hasattr(statement, "body") or hasattr(statement, "cases")):
        return span
    if how == "expression":
        for field in ("test", "iter", "subject"):
            if hasattr(statement, field):
                end = span_of(getattr(statement, field))
                return span._replace(end_line=end.end_line, end_column=end.end_column)
    return span._replace(end_line=span.line, end_column=span.column)


def proposals_for_calls(text: str, how: str) -> list[tuple[Proposal, str]]:
    found = []
    for node, statement in calls_and_statements(text):
        name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node.func))
        expects = ("call", getattr(node.func, name) if name else "")
        header = header_of(statement, how)
        proposal = Proposal("DDP502", "error", "x.py", span_of(node), header, "m", expects)
        proposal = proposal._replace(fix=fix("insert_before", node, "pass"))
        found.append((proposal, ast.get_source_segment(text, node) or ""))
    return found


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("how", ["start", "expression", "whole"])
def test_every_call_of_a_tangled_script_is_confirmed(newline: str, how: str) -> None:
    text = SCRIPT.replace("\n", newline)
    proposals = proposals_for_calls(text, how)
    findings = confirm(text, [proposal for proposal, _ in proposals])
    assert len(findings) > 45
    missed = [code for (_, code), finding in zip(proposals, findings, strict=True) if not finding.confirmed]
    assert missed == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_wrong_name_kind_or_place_is_not_confirmed(newline: str) -> None:
    text = SCRIPT.replace("\n", newline)
    for proposal, code in proposals_for_calls(text, "start"):
        if "f'" in code or 'f"' in code or code in ("save(8)", "save(9)", "save(10)"):
            continue
        span = proposal.span
        wrong = [
            proposal._replace(expects=("call", "other_name")),
            proposal._replace(expects=("for", "")),
            proposal._replace(span=span._replace(end_column=span.end_column - 1)),
            proposal._replace(span=span._replace(column=span.column + 1)),
        ]
        for item, finding in zip(wrong, confirm(text, wrong), strict=True):
            assert not finding.confirmed and finding.fix is None, (code, item)


def test_an_unconfirmed_proposal_stays_as_a_finding_without_its_fix() -> None:
    (proposal, _) = proposals_for_calls("x = 1; save(2)\n", "whole")[0]
    (finding,) = confirm("x = 1; save(2)\n", [proposal])
    assert finding.confirmed and finding.fix == proposal.fix
    (finding,) = confirm("x = 1; load(2)\n", [proposal])
    assert not finding.confirmed and finding.fix is None
    assert (finding.code, finding.name, finding.line, finding.column) == ("DDP502", "save-on-every-rank", 1, 8)


def test_columns_are_characters_from_one() -> None:
    text = "é = '日本'; save(é)\n"
    (proposal, _) = proposals_for_calls(text, "whole")[0]
    (finding,) = confirm(text, [proposal])
    assert finding.confirmed
    assert text[finding.column - 1 : finding.end_column - 1] == "save(é)"


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        ("for x in y: pass", "for", ""),
        ("async for x in y: pass", "for", ""),
        ("while x: pass", "while", ""),
        ("if x: pass", "if", ""),
        ("with x: pass", "with", ""),
        ("async with x: pass", "with", ""),
        ("try: pass\nfinally: pass", "try", ""),
        ("def f(): pass", "def", "f"),
        ("async def f(): pass", "def", "f"),
        ("class A: pass", "class", "A"),
        ("match x:\n    case 1: pass", "match", ""),
        ("x = 1", "assign", ""),
        ("x: int = 1", "assign", ""),
        ("x += 1", "assign", ""),
        ("import a.b", "import", ""),
        ("from . import b", "import", ""),
        ("return x", "return", ""),
        ("raise x", "raise", ""),
        ("del x", "delete", ""),
        ("x.y", "attribute", "y"),
        ("x[1]", "subscript", ""),
        ("x.y", "expression", ""),
        ("x", "name", "x"),
        ("f(x)", "statement", ""),
    ],
)
def test_kinds_of_nodes(code: str, kind: str, name: str) -> None:
    for indent in ("", "    ", "\t"):
        block = textwrap.indent(code, indent)
        text = f"async def outer():\n{block}\n" if indent else f"{block}\n"
        statement: Any = ast.parse(text).body[0]
        statement = statement.body[0] if indent else statement
        spans = [span_of(statement)]
        if hasattr(statement, "body") or hasattr(statement, "cases"):
            spans.append(header_of(statement, "start"))
        for span in spans:
            proposal = Proposal("DDP201", "error", "x.py", span, span, "m", (kind, name))
            assert confirm(text, [proposal])[0].confirmed or span.end_column == span.column, (text, span)


def test_lines_of_a_notebook_count_within_the_cell() -> None:
    text = "# mark\nimport x\n# mark\n\nsave(1)\n"
    cells = (Cell(1, 2, 1), Cell(2, 4, 2))
    (proposal, _) = proposals_for_calls(text, "whole")[0]
    (finding,) = confirm(text, [proposal], cells)
    assert (finding.cell, finding.line, finding.confirmed) == (2, 2, True)


DEEP: dict[str, Callable[[int], str]] = {
    "parentheses": lambda depth: "(" * depth + "x" + ")" * depth,
    "lists": lambda depth: "[" * depth + "x" + "]" * depth,
    "calls": lambda depth: "f(" * depth + "x" + ")" * depth,
    "strings": lambda depth: "'a' " * depth,
    "f-strings": lambda depth: "f'{x}' " * depth,
    "and": lambda depth: "x" + " and x" * depth,
    "sum": lambda depth: "x" + "+x" * depth,
    "not": lambda depth: "not " * depth + "x",
    "lambda": lambda depth: "lambda: " * depth + "x",
    "attributes": lambda depth: "x" + ".a" * depth,
    "call chain": lambda depth: "x" + "()" * depth,
    "conditions": lambda depth: "x" + " if x else x" * depth,
    "hidden by strings": lambda depth: "[')))', " * depth + "x" + "]" * depth,
    "hidden by commas": lambda depth: "[1, " * depth + "x" + "]" * depth,
    "commas after": lambda depth: "(" * depth + "x" + ",1)" * depth,
    "in an f-string": lambda depth: "f'{" + "(" * depth + "x" + ")" * depth + "}'",
    "table": lambda depth: "[" + "[1, 2], " * depth + "]",
}

_HOSTILE = """
import json, sys
from validate_ddp.findings import Proposal, Span
from validate_ddp.edit.confirm import confirm
for name, code in json.load(sys.stdin):
    print(name, end=" ", flush=True)
    span = Span(1, 0, 1, len(code.encode()))
    proposal = Proposal("DDP502", "error", "x.py", span, span, "m", ("call", "save"))
    print(confirm(code + "\\n", [proposal])[0].confirmed, flush=True)
"""


def test_statements_too_deep_for_libcst_neither_crash_nor_hang() -> None:
    """In a process of its own: LibCST overruns the native stack where it is let, and the name of the case is left."""
    cases = [(name, f"save({make(depth)})") for name, make in sorted(DEEP.items()) for depth in (20, 2_000, 90_000)]
    done = subprocess.run(
        [sys.executable, "-c", _HOSTILE],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-100:] + done.stderr[-500:]
    expected = [f"{name} {shown}" for name in sorted(DEEP) for shown in (True, name == "table", False)]
    assert done.stdout.splitlines() == expected


SPANS = st.builds(Span, st.integers(-1, 8), st.integers(-1, 40), st.integers(-1, 8), st.integers(-1, 40))


@given(
    st.text(max_size=60), SPANS, SPANS, st.sampled_from([("call", "save"), ("for", ""), ("", ""), ("expression", "")])
)
@settings(max_examples=150)
def test_no_text_and_no_span_raises(text: str, span: Span, statement: Span, expects: tuple[str, str]) -> None:
    proposal = Proposal("DDP201", "error", "x.py", span, statement, "m", expects)
    (finding,) = confirm(text, [proposal])
    assert finding.line >= 1 and finding.column >= 1


@given(st.sampled_from(SCRIPT.split("\n")), SPANS, SPANS)
@settings(max_examples=100)
def test_no_span_into_real_code_raises(line: str, span: Span, statement: Span) -> None:
    confirm(SCRIPT, [Proposal("DDP201", "error", "x.py", span, statement, line, ("call", "save"))])
