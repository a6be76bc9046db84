"""The batch sizes of DeepSpeed's configuration contradict each other, the ranks, or the command.

## What it does
Compares `train_batch_size`, `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps` of a configuration of
DeepSpeed: among themselves, with the ranks that a command starts which names the file, and with what that command hands
to transformers' own options for the same.

## Why is this bad?
The first is the product of the others and of the data-parallel ranks. Where it is not, DeepSpeed ends with `Check batch
related parameters` as soon as the engine is made, on every rank, after the model was loaded. transformers ends with
`Please correct the following DeepSpeed config values that mismatch TrainingArguments values`.

It is an error where no number of ranks can put it right; a warning where transformers compares two numbers, and where
the command's ranks do not fit, as a script may change what it has read. Where fewer ranks would fit that the command's
are a multiple of, nothing is said: several may share a sample.

## Example
```json
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}
```

## Use instead
```json
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
```

## References
- [Batch size related parameters](https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters)
- [DeepSpeed with transformers](https://huggingface.co/docs/transformers/deepspeed)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.launch import deepspeed, records
from validate_ddp.launch.deepspeed import Named
from validate_ddp.launch.meaning import ranks
from validate_ddp.launch.project import started
from validate_ddp.launch.records import DeepSpeed, Launch, Start, Word
from validate_ddp.rules.launching import place, propose

LAUNCH_TRIGGER = records.Record
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "L"
FIX = "-"

VALID = (
    '# file: ds.json\n{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}\n',
    '# file: ds.json\n{"train_batch_size": "auto", "gradient_accumulation_steps": 2,\n'
    '"train_micro_batch_size_per_gpu": 3}\n',
    '# file: ds.json\n{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}\n',
    '# file: ds.json\n{"train_batch_size": 32, "elasticity": {"enabled": true},\n'
    '"train_micro_batch_size_per_gpu": 3}\n',
    "deepspeed --num_gpus 8 train.py --deepspeed_config no_such_file.json\n",
)
INVALID = (
    '# file: ds.json\n{"train_batch_size": 32,  # expect\n"train_micro_batch_size_per_gpu": 3,'
    ' "gradient_accumulation_steps": 4}\n',
    '# file: ds.json\n{\n  "train_micro_batch_size_per_gpu": 16,\n  "train_batch_size": 8  # expect\n}\n',
    '# file: ds.json\n{"zero_optimization": {"stage": 1},\n"gradient_accumulation_steps": 16,\n'
    '"train_batch_size": 24}  # expect\n',
)

_TOTAL, _MICRO, _TURNS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_OF_TRANSFORMERS = {_MICRO: "per_device_train_batch_size", _TURNS: "gradient_accumulation_steps"}
_ITS_ARGUMENTS = (b"TrainingArguments", b"HfArgumentParser", b"TrlParser")


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding a configuration, at the whole batch, and one a command, where it names the file."""
    for config in launch.facts(records.DeepSpeed):
        total, parts = _sizes(config)
        if total is not None and (total.number or 0) % _product(parts):
            message = f"{total.number} is no multiple of {_shown(parts)}, whatever the number of ranks"
            evidence = [place(launch, word, word.raw) for word in parts]
            yield propose(launch, total.span, total.span, ERROR, message, evidence=evidence)
    for start, named in deepspeed.named(launch):
        yield from _by_ranks(launch, start, named)
        yield from _by_transformers(launch, start, named)


def _by_ranks(launch: Launch, start: Start, named: Named) -> Iterator[Proposal]:
    count, (total, parts) = ranks(start, launch.job), _sizes(named.config)
    if not count or total is None or not total.number or len(parts) < 2 or total.number % _product(parts):
        return
    if count % (total.number // _product(parts)):
        message = f"the whole batch of {total.number} is not {_shown(parts)} on {count} ranks"
        evidence = [named.place(word, word.raw) for word in (total, *parts)]
        yield propose(launch, named.word.span, start.statement, WARNING, message, evidence=evidence)


def _by_transformers(launch: Launch, start: Start, named: Named) -> Iterator[Proposal]:
    for key, option in _OF_TRANSFORMERS.items():
        held, given = named.config.option(key), deepspeed.argument(start, option)
        if held is None or given is None or not held.number or not given.number or held.number == given.number:
            continue
        if any(_asks_transformers(script) for script in started(launch.path, start)):
            message = f"`--{option}` is {given.number}, and `{key}` of {named.path} is {held.number}: "
            message += "transformers refuses that"
            evidence = [named.place(held, str(held.number))]
            yield propose(launch, given.span, start.statement, WARNING, message, evidence=evidence)


def _asks_transformers(script: str) -> bool:
    """Whether a script may be one whose options are those of transformers."""
    try:
        with open(script, "rb") as stream:
            data = stream.read()
    except OSError:
        return False
    return any(word in data for word in _ITS_ARGUMENTS)


def _sizes(config: DeepSpeed) -> tuple[Word | None, list[Word]]:
    """The whole batch, and the numbers that it is a multiple of; none where DeepSpeed chooses them itself."""
    elastic = config.option("elasticity.enabled")
    if elastic is not None and elastic.only != "false":
        return None, []
    total, *parts = (config.option(name) for name in (_TOTAL, _MICRO, _TURNS))
    return total if total is not None and total.number else None, [word for word in parts if word and word.number]


def _product(parts: list[Word]) -> int:
    return math.prod(word.number or 1 for word in parts)


def _shown(parts: list[Word]) -> str:
    return " x ".join(str(word.number) for word in parts)
