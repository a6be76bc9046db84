"""What a launch file says of the script that it starts: evidence of several nodes, and of several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from validate_ddp import launches
from validate_ddp.cli import main
from validate_ddp.config import Settings
from validate_ddp.lint import check
from validate_ddp.rehearse.reading import read

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launch", "severity"),
    [
        ("torchrun --nnodes 2 --node_rank $R --master_addr $A --nproc_per_node 8 code/train.py\n", "error"),
        ("#SBATCH --nodes=4\nsrun torchrun --nnodes $SLURM_NNODES --rdzv_endpoint $A:$P code/train.py\n", "error"),
        ("torchrun --nnodes ${N:-2} --master_addr $A code/train.py\n", "warning"),
        ("torchrun --nnodes 1:4 --rdzv_endpoint $A:$P code/train.py\n", "warning"),
        ("torchrun --nnodes 2 --node_rank $R --master_addr $A code/other.py\n", "warning"),
        ("torchrun --nproc_per_node 8 code/train.py\n", "warning"),
    ],
)
def test_a_global_rank_as_device_is_an_error_where_several_nodes_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, severity: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(launch)
    for _ in range(2):  # the second time from the cache
        found = [each for each in check(["."], Settings()).findings if each.code == "DDP103"]
        assert [each.severity for each in found] == [severity]
        assert [place.path for place in found[0].evidence] == (["run.sh"] if severity == "error" else [])
    (tmp_path / "run.sh").unlink()
    assert [each.severity for each in check(["."], Settings()).findings if each.code == "DDP103"] == ["warning"]


SAVING = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(torch.nn.Linear(4, 4).cuda())
if local_rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launch", "severities"),
    [
        ("torchrun --nnodes 1 --nproc_per_node 8 code/train.py\n", []),
        ("torchrun --nnodes 1 code/train.py\ntorchrun --nnodes $N code/train.py\n", ["info"]),
        ("torchrun --nnodes 2 --node_rank $R --master_addr $A code/train.py\n", ["warning"]),
        ("python code/train.py\n", ["info"]),
    ],
)
def test_a_save_of_each_node_is_no_matter_where_one_node_is_all_that_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, severities: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _project(tmp_path, {"code/train.py": SAVING, "run.sh": launch})
    for _ in range(2):  # the second time from the cache
        assert [each.severity for each in check(["."], Settings()).findings if each.code == "DDP503"] == severities


def _project(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


NODES = "--nnodes 2 --node_rank $R --master_addr $A"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code/run.sh", f"torchrun {NODES} train.py\n"),
        ("run.sh", f"torchrun {NODES} code/train.py\n"),
        ("slurm/big/run.sbatch", f"torchrun {NODES} code/train.py\n"),
        ("jobs/run.sh", f"torchrun {NODES} -m code.train\n"),
        ("code/jobs/run.sh", f"python -m torch.distributed.run {NODES} --module code.train\n"),
        ("sky.yaml", f"run: |\n  torchrun {NODES} code/train.py\n"),
    ],
)
def test_a_named_script_is_read_with_the_launch_files_of_its_project_that_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    others = {"other.sh": "python -m torch.distributed.launch code/other.py\n", "code/other.py": SCRIPT}
    _project(tmp_path, {"pyproject.toml": "", "code/train.py": SCRIPT, name: text, **others})
    monkeypatch.chdir(tmp_path)
    outcome = check(["code/train.py"], Settings())
    device = [each for each in outcome.findings if each.code == "DDP103"]
    assert [(each.severity, [place.path for place in each.evidence]) for each in device] == [("error", [name])]
    assert outcome.files == 2 and str(tmp_path / name) in outcome.considered
    assert "DDP802" not in {each.code for each in outcome.findings}  # of the launch file of another script


def test_findings_in_the_launch_file_of_a_named_script_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "python -m torch.distributed.launch --nproc_per_node 2 train.py\n"
    (tmp_path / "more.sh").write_text("torchrun python -u -m train\n")
    files = {".git/HEAD": "", ".gitignore": "out\n", "out/run.sh": old, "run.sh": old, "train.py": SCRIPT}
    _project(tmp_path, files)
    monkeypatch.chdir(tmp_path)

    def told(*targets: str, **settings: object) -> list[str]:
        found = check(targets, Settings()._replace(**settings)).findings
        return [each.path for each in found if each.code == "DDP802"]

    assert [each.code for each in check(["train.py"], Settings()).findings if each.path == "more.sh"] == ["DDP801"]
    assert told("train.py") == told(".") == told("train.py", "run.sh") == ["run.sh"]
    assert told("train.py", extend_exclude=("*.sh",)) == told("train.py", per_file_ignores=(("*.sh", ("ALL",)),)) == []
    assert {each.path for each in read("train.py", Settings())} == {"train.py"}  # a rehearsal does not start it
    assert told("train.py", respect_gitignore=False) == ["out/run.sh", "run.sh"]


def test_a_baseline_knows_what_stands_in_the_launch_file_of_a_named_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "pyproject.toml": "",
        "code/train.py": "import torch.distributed\n",
        "run.sh": "torchrun python code/train.py\n",
    }
    _project(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    named = ["--no-cache", "code/train.py"]
    assert main(named) == 1
    assert main(["--no-cache", "--write-baseline", "."]) == main(named) == 0
    (tmp_path / "run.sh").write_text("torchrun code/train.py\n")
    capsys.readouterr()
    assert main(named) == 0
    assert "1 entry of .validate-ddp-baseline.json matches no longer" in capsys.readouterr().out
    assert main(["--write-baseline", *named]) == 0
    assert "0 known findings (0 new, 1 taken out)" in capsys.readouterr().out


def test_a_large_project_is_looked_through_in_part_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "python -m torch.distributed.launch --nproc_per_node 2 code/train.py\n"
    more = {f"far/{number}/data.txt": "" for number in range(30)}
    _project(tmp_path, {".git/HEAD": "", "run.sh": old, "code/train.py": SCRIPT, "far/29/run.sh": old, **more})
    monkeypatch.chdir(tmp_path)
    assert check(["code/train.py"], Settings()).notes == ()
    monkeypatch.setattr(launches, "_MOST_NAMES", 20)
    outcome = check(["code/train.py"], Settings())
    assert [each.path for each in outcome.findings if each.code == "DDP802"] == ["run.sh"]
    assert len(outcome.notes) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"cd ../code && torchrun {NODES} train.py\n",
        f"cd ../code\ntorchrun {NODES} train.py\n",
        f"(cd elsewhere && ls)\n(cd ../code && torchrun {NODES} train.py)\n",
        f'torchrun {NODES} $(dirname "$0")/../code/train.py\n',
        f'cd "$(dirname "${{BASH_SOURCE[0]}}")/.."\ntorchrun {NODES} code/train.py\n',
        'HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &> /dev/null && pwd)\n'
        f'torchrun {NODES} "$HERE"/../code/train.py\n',
        f'TOP="$(cd "$(dirname "$0")/.." && pwd)"\ncd $TOP/code && torchrun {NODES} train.py\n',
        f'DIR=$(dirname "$(readlink -f "$0")")\ntorchrun {NODES} ${{DIR}}/../code/train.py\n',
    ],
)
def test_a_script_is_found_from_the_folder_to_which_the_launch_file_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    _project(tmp_path, {"pyproject.toml": "", "code/train.py": SCRIPT, "jobs/run.sh": text, "train.py": ""})
    monkeypatch.chdir(tmp_path)
    found = check(["code/train.py"], Settings()).findings
    assert [each.severity for each in found if each.code == "DDP103"] == ["error"]


HOSTED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", num_train_epochs=1), train_dataset=data)
trainer.train()
model.save_pretrained("final")
"""
ITS_OWN = """
import torch
from project import train

torch.save(train().state_dict(), "final.pt")
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# file: run.sh\ntorchrun --nproc_per_node 8 code/train.py\n", True),
        ("# file: run.sh\nexport CUDA_VISIBLE_DEVICES=0,1\naccelerate launch code/train.py\n", True),
        ("# file: README.md\n```bash\ndeepspeed code/train.py\n```\n", True),
        ("# file: code/readme.md\n```\ntext\n```\n```sh\ntorchrun --nproc-per-node=$N train.py\n```\n", True),
        ("# file: run.sh\ntorchrun code/train.py\n", False),
        ("# file: run.sh\naccelerate launch --num_processes 1 code/train.py\n", False),
        ("# file: run.sh\nCUDA_VISIBLE_DEVICES=0 deepspeed code/train.py\n", False),
        ("# file: run.sh\npython code/train.py\n", False),
        ("# file: README.md\n```bash\ntorchrun --nproc_per_node 8 code/other.py\n```\n", False),
        ("# file: docs/README.md\n```bash\ntorchrun --nproc_per_node 8 code/train.py\n```\n", False),
    ],
)
def test_a_script_that_a_launch_file_or_a_readme_starts_on_several_ranks_is_one_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: bool
) -> None:
    name, _, body = text.removeprefix("# file: ").partition("\n")
    monkeypatch.chdir(tmp_path)
    for script, severity in ((HOSTED, "error"), (ITS_OWN, "warning")):
        _project(tmp_path, {"pyproject.toml": "", "code/train.py": script, name: body})
        for target in ("code/train.py", "."):
            found = check([target], Settings()).findings
            assert {each.path for each in found} <= {"code/train.py"}
            told = [(each.code, each.severity, [place.path for place in each.evidence]) for each in found]
            assert told == ([("DDP502", severity, [name])] if wanted else [])


def test_a_notebook_is_one_process_whatever_a_readme_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"cell_type": "code", "source": HOSTED, "metadata": {}, "outputs": [], "execution_count": None}
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    _project(
        tmp_path, {"pyproject.toml": "", "train.ipynb": notebook, "run.sh": "torchrun --nproc_per_node 8 train.ipynb\n"}
    )
    monkeypatch.chdir(tmp_path)
    assert [each for each in check(["."], Settings()).findings if each.path == "train.ipynb"] == []
