"""A moving average on one side of the wrapping, and the model on the other: their names differ by `module.`.

## What it does
Compares the dictionaries of tensors in each file that a rehearsal saves: two of them that hold the same names, but for
`module.` in front of all names of one. Also a `KeyError` of a name that is there with or without `module.`.

## Why is this bad?
An EMA that was made before the model was wrapped in DistributedDataParallel has the model's names; what is read from
the wrapper has `module.` in front of each. An update by name fails, or, where missing names are skipped, averages
nothing. A file with both kinds of names loads in one place and not in the other.

## Example
```python
ema = copy.deepcopy(model)
model = DistributedDataParallel(model)
torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "last.pt")
```

## Use instead
```python
ema = copy.deepcopy(model)
model = DistributedDataParallel(model)
torch.save({"model": model.module.state_dict(), "ema": ema.state_dict()}, "last.pt")
```

## References
- [An EMA made before wrapping](https://github.com/m2lines/Samudra/pull/324)
- [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
"""

from __future__ import annotations

from validate_ddp.findings import INFO, WARNING
from validate_ddp.record.run import Run, Site
from validate_ddp.record.verdict import Observation, Seen, Telling, Well
from validate_ddp.rehearse.child.validate_ddp_rehearsed import protocol

SEVERITIES = (WARNING, INFO)
EVIDENCE = "R"
FIX = "-"
TELLING = Telling(outranks=("DDP501",))


def observe(run: Run) -> Seen:
    """Held where a file holds two dictionaries of the same names. A run that also loads into a wrapper means it so:
    info."""
    severity = INFO if list(run.each(protocol.Load)) else WARNING
    for rank, event in run.each(protocol.Save):
        for key, wrapped, former, before, count in event.twins or ():
            if wrapped != before:
                names = (key, former) if wrapped else (former, key)
                yield _at(severity, event.site, _apart(*names, count), rank)
            else:
                yield Well()
    for rank, error in run.each(protocol.UncaughtException):
        if error.present:
            yield _at(WARNING, Site(error.stack), _missing(error), rank)


def _apart(wrapper: str, inner: str, count: int) -> str:
    return (
        f"`{wrapper}` and `{inner}` hold the same {count} names in this file, but `{wrapper}` with `module.` in front: "
        "it is the wrapper's state, the other one the model's, and neither loads where the other does"
    )


def _missing(event: protocol.UncaughtException) -> str:
    return (
        f"there is no `{event.missing}` here, but `{event.present}`: the names of one are those of the wrapper, "
        "of the other those of the model"
    )


def _at(severity: str, site: Site, message: str, rank: int) -> Observation:
    return Observation(severity, site, message, (), (rank,))
