"""A file that was to be checked could not be read.

## What it does
Reports a path which does not exist, may not be opened, holds no text, or is a notebook that is no valid JSON. The
other files are still checked, and the exit code is 2.

A file that was met in a folder and holds no text is a `warning`, and the exit code is that of the findings. A named
file that is no Python, such as a launch script, and an empty notebook are `info`: they are not read.

## Why is this bad?
A file that was not read was not checked: silence would look like "nothing wrong here".

## Example
```console
$ validate-ddp trian.py
trian.py:1:1: error DDP001 unreadable-file: no such file or folder
```

## Use instead
Correct the path, the permissions or the encoding. Leave files out on purpose with `exclude`:
```toml
[tool.validate-ddp]
extend-exclude = ["legacy/"]
```

## References
- [PEP 263: source code encodings](https://peps.python.org/pep-0263/)
"""

from __future__ import annotations

SEVERITIES = ("error", "warning", "info")
EVIDENCE = "S"
FIX = "-"
VALID: tuple[str, ...] = ()
INVALID: tuple[str, ...] = ()
