"""A file is not valid Python for the interpreter that runs the check.

## What it does
Reports the place where the parser gave up: a slip, Python 2, or syntax newer than the running Python (the message
names the version that is needed). The other files are still checked, and the exit code is 2.

## Why is this bad?
A file that does not parse was not checked, and `torchrun` cannot run it with this Python either.

## Example
```python
print "epoch", epoch
```

## Use instead
```python
print("epoch", epoch)
```
For newer syntax, run `validate-ddp` with the Python that runs the training.

## References
- [The Python grammar](https://docs.python.org/3/reference/grammar.html)
"""

from __future__ import annotations

SEVERITIES = ("error",)
EVIDENCE = "S"
FIX = "-"
VALID: tuple[str, ...] = ()
INVALID: tuple[str, ...] = ()
