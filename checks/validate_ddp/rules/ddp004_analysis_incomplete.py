"""Part of a program was not looked at, as it is too large or too deeply nested.

## What it does
Names the script, the place where the walk through its program stopped, and why:

- a program of more than 400,000 statements, or one whose functions call each other in so many ways that 60,000 more
  statements were walked a second time;
- calls that are nested more than 40 deep: what is called deeper is not followed;
- expressions, branches or calls that are nested too deeply for Python's own stack.

What was found before stays. A finding within a branch or loop in which the walk stopped is `info`, whatever it was,
as what follows there may put it right; one that rests on something missing from the whole program, as DDP101 does, is
not made.

## Why is this bad?
What was not looked at was not checked: silence would look like "nothing wrong there".

## Example
```console
$ validate-ddp train.py
train.py:9:1: info DDP004 analysis-incomplete: not all of this script's program was looked at: ...
```

## Use instead
Check the part that was left out by a smaller script of its own, such as a test or an example which uses it.

## References
- [Model checking: why all paths of a program cannot be followed](https://en.wikipedia.org/wiki/State_explosion_problem)
"""

from __future__ import annotations

SEVERITIES = ("info",)
EVIDENCE = "S"
FIX = "-"
VALID: tuple[str, ...] = ()
INVALID: tuple[str, ...] = ()
