"""DeepSpeed's own configuration beside the command or the script that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from validate_ddp.config import Settings
from validate_ddp.lint import check

THREE = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
OF_TRANSFORMERS = "from transformers import HfArgumentParser, TrainingArguments\nimport torch.distributed as dist\n"
GIVEN = "--deepspeed ds.json --per_device_train_batch_size"


@pytest.mark.parametrize(
    ("config", "command", "script", "found"),
    [
        (THREE, "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config=conf/ds.json", "", []),
        (THREE, "deepspeed --num_gpus 4 train.py --deepspeed_config conf/ds.json", "", [("run.sh", "warning")]),
        (THREE, "torchrun --nproc-per-node 6 --nnodes 2 train.py --deepspeed ds.json", "", [("run.sh", "warning")]),
        (THREE, "torchrun --nproc-per-node 8 --nnodes 2 train.py --deepspeed ds.json", "", []),
        (THREE, "deepspeed --num_gpus $N train.py --deepspeed_config ds.json", "", []),
        (THREE, "deepspeed --include localhost:0 train.py --deepspeed_config ds.json", "", []),
        (
            THREE,
            "accelerate launch --num_processes 3 --deepspeed_config_file ds.json train.py",
            "",
            [("run.sh", "warning")],
        ),
        (THREE, f"torchrun train.py {GIVEN} 8", OF_TRANSFORMERS, [("run.sh", "warning")]),
        (THREE, f"torchrun train.py {GIVEN} 4", OF_TRANSFORMERS, []),
        (THREE, f"torchrun train.py {GIVEN} 8", "", []),
        ({**THREE, "train_batch_size": "auto"}, "deepspeed --num_gpus 3 train.py --deepspeed ds.json", "", []),
        ({**THREE, "train_batch_size": 12}, "deepspeed train.py --deepspeed ds.json", "", [("conf/ds.json", "error")]),
        ({**THREE, "train_batch_size": 12}, "deepspeed train.py", "", []),
        (
            {**THREE, "train_batch_size": 12},
            "",
            'deepspeed.initialize(config="ds.json")\n',
            [("conf/ds.json", "error")],
        ),
    ],
)
def test_the_batch_is_compared_with_ranks_and_options_of_the_command_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: object, command: str, script: str, found: object
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ds.json").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text("import deepspeed\n" + script.replace("ds.json", "conf/ds.json"))
    (tmp_path / "run.sh").write_text(command.replace(" ds.json", " conf/ds.json") + "\n")
    rows = check(["train.py"], Settings()).findings
    assert [(each.path, each.severity) for each in rows if each.code == "DDP817"] == found
    for each in rows:
        named = {place.path for place in each.evidence}
        assert each.code != "DDP817" or named == {"conf/ds.json"}
