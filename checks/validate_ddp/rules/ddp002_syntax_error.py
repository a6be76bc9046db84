"""A file is not valid Python for the interpreter that runs the check.

## What it does
Reports the place where the parser gave up: a slip, Python 2, or syntax newer than the running Python (the message
names the version that is needed). The other files are still checked.

- `error`, and exit code 2: a broken file that was named on the command line.
- `warning`: a broken file that was met in a folder; the exit code is that of the findings.
- `info`: newer syntax, which is no fault of the file (f-strings of Python 3.12 are read all the same); and a broken
  cell of a notebook, which is left out while the other cells are checked.

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

SEVERITIES = ("error", "warning", "info")
EVIDENCE = "S"
FIX = "-"
VALID: tuple[str, ...] = ()
INVALID: tuple[str, ...] = ()
