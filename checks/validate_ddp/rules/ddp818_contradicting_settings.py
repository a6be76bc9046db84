"""A setting of DeepSpeed's configuration rules another one out.

## What it does
Looks in a configuration of DeepSpeed, and in one that a command names, for both `fp16` and `bf16` enabled, and for
`offload_param` with a stage of ZeRO below 3.

## Why is this bad?
With both precisions DeepSpeed ends with `bfloat16 and fp16 modes cannot be simultaneously enabled`. Parameters are only
partitioned, and so only offloaded, by stage 3: below it the memory that was to be saved is not.

## Example
```json
{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
```

## Use instead
```json
{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
```

## References
- [ZeRO optimizations](https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training)
"""

from __future__ import annotations

from collections.abc import Iterator

from validate_ddp.findings import ERROR, WARNING, Proposal
from validate_ddp.launch import records
from validate_ddp.launch.records import Launch
from validate_ddp.rules.launching import place, propose

LAUNCH_TRIGGER = records.DeepSpeed
SEVERITIES = (ERROR, WARNING)
EVIDENCE = "L"
FIX = "-"

VALID = (
    '# file: ds.json\n{"fp16": {"enabled": "auto"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}\n',
    '# file: ds.json\n{"fp16": {"enabled": false}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}\n',
    '# file: ds.json\n{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}\n',
    '# file: ds.json\n{"zero_optimization": {"stage": 2, "offload_param": {"device": "none"},\n'
    '"offload_optimizer": {"device": "cpu"}}}\n',
)
INVALID = (
    '# file: ds.json\n{"zero_optimization": {"stage": 2},\n"fp16": {"enabled": true},\n'
    '"bf16": {"enabled": true}}  # expect\n',
    '# file: ds.json\n{"zero_optimization": {"stage": 2,\n"offload_param": {"device": "cpu"}}}  # expect\n',
    '# file: ds.json\n{"zero_optimization": {\n"offload_param": {"device": "nvme"},  # expect\n"stage": 1}}\n',
)


def check_launch(launch: Launch) -> Iterator[Proposal]:
    """One finding for each such pair, at the setting that does nothing or is refused."""
    for config in launch.facts(records.DeepSpeed):
        half, brain = config.option("fp16.enabled"), config.option("bf16.enabled", "bfloat16.enabled")
        if half is not None and brain is not None and half.only == brain.only == "true":
            message = "bf16 and fp16 are both enabled, which DeepSpeed refuses"
            yield propose(launch, brain.span, brain.span, ERROR, message, evidence=[place(launch, half, "fp16")])
        device, stage = (
            config.option("zero_optimization.offload_param.device"),
            config.option("zero_optimization.stage"),
        )
        if device is None or stage is None or device.only not in ("cpu", "nvme") or stage.number not in (0, 1, 2):
            continue
        message = f"parameters are offloaded by stage 3 alone: at stage {stage.number} this does nothing"
        yield propose(launch, device.span, device.span, WARNING, message, evidence=[place(launch, stage, "the stage")])
