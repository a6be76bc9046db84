"""Files that libraries write beside checkpoints, runs in trackers, and where a write by all ranks is told."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
import cv2
import fsspec
import imageio
import matplotlib.pyplot as plt
import pandas
import tokenizers
import torchaudio
import torchvision
import wandb
from fvcore.common.checkpoint import Checkpointer, PeriodicCheckpointer
from omegaconf import OmegaConf
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(2, 2))
"""

WRITES = {
    "image of tensors": 'torchvision.utils.save_image(torch.ones(1), "PATH.png")',
    "image": 'Image.fromarray(torch.ones(1).numpy()).resize((2, 2)).save("PATH.png")',
    "image of OpenCV": 'cv2.imwrite("PATH.png", torch.ones(1).numpy())',
    "film": 'imageio.mimsave("PATH.gif", [])',
    "sound": 'torchaudio.save("PATH.wav", torch.ones(1), 16000)',
    "figure": 'plt.figure().savefig("PATH.png")',
    "plot": 'plt.savefig("PATH.png")',
    "table": 'pandas.DataFrame([]).to_csv("PATH.csv")',
    "configuration": 'OmegaConf.save({}, "PATH.yaml")',
    "tokenizer": 'tokenizers.Tokenizer.from_file("a.json").save("PATH.json")',
    "checkpointer": 'Checkpointer(model, "PATH").save("last")',
    "adapter": 'helper.load().save_lora_adapter("PATH")',
    "trace": 'torch.profiler.profile().export_chrome_trace("PATH.json")',
    "file elsewhere": 'fsspec.open("PATH.json", "w")',
    "tracker": 'wandb.init(name="PATH")',
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_what_a_library_writes_is_a_write_of_all_ranks_unless_the_path_or_a_guard_keeps_them_apart(
    write: str, lint: Any
) -> None:
    own = write.replace('"PATH', 'f"{rank}')
    assert len(lint.body(HEAD + write).of("DDP502")) == 1
    assert lint.body(HEAD + own).of("DDP502") == []
    assert lint.body(f"{HEAD}if rank == 0:\n    {write}").of("DDP502") == []


QUIET = {
    "no path, so a text": "text = pandas.DataFrame([]).to_json()",
    "a method of something unknown, which may guard itself": 'helper.Saver().save("a.png")',
    "a rank's own file, copied into one folder": 'import shutil\nshutil.copy(f"trace_{rank}.json", "traces")',
    "a rank by a variable of the job's own, else by torch": (
        'own = int(os.environ.get("FS_LOCAL_RANK") or rank)\nif own == 0:\n    torch.save({}, "a.pt")'
    ),
    "the nanosecond of each": 'import time\ntorch.save({}, f"{time.time_ns()}.pt")',
    "runs of a group": 'wandb.init(group="ours")',
    "a tracker that is off": 'wandb.init(mode="disabled")',
    "a tracker that is off on some ranks": 'wandb.init(mode="disabled" if rank else "online")',
    "a checkpointer that writes on rank zero": 'Checkpointer(model, "out", save_to_disk=rank == 0).save("last")',
}


@pytest.mark.parametrize("code", QUIET.values(), ids=QUIET.keys())
def test_what_may_be_right_is_left_alone(code: str, lint: Any) -> None:
    assert lint.body(f"import helper\n{HEAD}{code}").of("DDP502") == []


def test_a_periodic_checkpointer_saves_with_the_one_that_it_is_given(lint: Any) -> None:
    code = (
        HEAD
        + 'saver = PeriodicCheckpointer(Checkpointer(model, "out"), 10)\nfor step in range(9):\n    saver.step(step)'
    )
    (finding,) = lint.body(code).of("DDP502")
    assert "checkpoint" in finding.message


def test_the_places_where_ranks_use_one_event_writer_are_named(lint: Any) -> None:
    code = HEAD + 'writer = SummaryWriter("runs")\nwriter.add_scalar("loss", 1)\n'
    (finding,) = lint.body(code).of("DDP502")
    assert "every rank writes to it here" in [place.note for place in finding.evidence]


HELPER = """
import yaml

def dump(file, data):
    with open(file, "w") as stream:
        yaml.safe_dump(data, stream)
"""


def test_a_write_in_a_helper_of_another_file_is_told_where_it_is_called(lint: Any) -> None:
    lint.write({"files.py": HELPER})
    script = "import torch.distributed as dist\nfrom files import dump\n\ndist.init_process_group('gloo')\n"
    found = lint(script + "dump('a.yaml', {})\ndump('b.yaml', {})\n").of("DDP502")
    assert [(finding.path, finding.line) for finding in found] == [("train.py", 5), ("train.py", 6)]


def test_the_largest_of_many_is_the_same_for_all_ranks_and_an_item_of_a_loop_is_not(lint: Any) -> None:
    paths = 'import glob\npaths = glob.glob("out/*")\n'
    once = f"{HEAD}{paths}torch.save(model.module.state_dict(), max(paths) + '.pt')"
    each = f"{HEAD}{paths}for path in paths:\n    open(path + '.txt', 'w')"
    assert len(lint.body(once).of("DDP502")) == 1 and lint.body(each).of("DDP502") == []


def test_a_file_for_each_item_of_a_batch_is_the_ranks_own_and_one_for_each_item_of_a_list_is_not(lint: Any) -> None:
    each = "for name in helper.written():\n    torch.save({'name': 1}, name + '.pt')"
    batches = "for batch in DataLoader(range(8)):\n    helper.run(batch)\n    "
    head = f"import helper\n{HEAD}"
    assert len(lint.body(head + each).of("DDP502")) == 1
    assert lint.body(head + batches + each.replace("\n", "\n    ")).of("DDP502") == []
    epochs = "loader = DataLoader(range(8))\nfor epoch in range(9 // len(loader)):\n    for batch in loader:\n        "
    assert len(lint.body(head + epochs + "torch.save({'name': 1}, helper.written())").of("DDP502")) == 1
