"""A suppression comment silences nothing, or names a rule that does not exist.

## What it does
Reports a `noqa` or `validate-ddp:` comment with a code of this catalogue which is enabled in this run and is not
reported at that place, and comments with unknown rules or directives. A blanket `# noqa` is honoured and never
reported, and neither are codes of other tools.

The comments that are understood:

- `# noqa: DDP201` or `# noqa: DDP201, E501`: on a line of the statement, or on a comment line directly above it;
- `# validate-ddp: ignore[missing-set-epoch, DDP502]`, or `ignore` alone for every rule: at the same places;
- `# validate-ddp: off[DDP502]`, or `off` alone: from this line to `# validate-ddp: on`, or to the end of the block
  in which the comment stands;
- `# validate-ddp: ignore-file[DDP502]`, or `ignore-file` alone: the whole file; on a line of its own, not indented.

For a compound statement (`for`, `if`, `def`, ...) the lines of its header count, not those of its body.

## Why is this bad?
A stale suppression hides the next real defect at its place; a mistyped one hides nothing.

## Example
```python
sampler.set_epoch(epoch)  # noqa: DDP201
```

## Use instead
```python
sampler.set_epoch(epoch)
```

## References
- [ruff's `lint.external`: let ruff keep the DDP codes in `noqa`](https://docs.astral.sh/ruff/settings/#lint_external)
"""

from __future__ import annotations

SEVERITIES = ("warning",)
EVIDENCE = "S"
FIX = "-"
VALID: tuple[str, ...] = ()
INVALID: tuple[str, ...] = ()
