"""What a file defines and nobody in sight calls, and what lies behind a wrapper."""

from __future__ import annotations

from typing import Any

HEAD = "import torch\nimport torch.distributed as dist\n"
LIBRARY = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, loader):
        dist.init_process_group("nccl")
        self.model, self.loader = DDP(model), loader

    def fit(self, epochs):
        for epoch in range(epochs):
            self.epoch()
        torch.save(self.model.state_dict(), "model.pt")

    def epoch(self):
        for batch in self.loader:
            self.model(batch).sum().backward()

    def export(self):
        torch.save(self.model.state_dict(), "exported.pt")
"""


def test_what_nobody_in_sight_calls_is_walked_where_it_trains_and_is_no_error(lint: Any) -> None:
    found = lint(HEAD + LIBRARY).of("DDP501", "DDP502")
    assert {finding.severity for finding in found} <= {"warning", "info"}
    assert {(HEAD + LIBRARY).splitlines()[finding.line - 1].strip() for finding in found} == {
        'torch.save(self.model.state_dict(), "model.pt")'
    }


def test_what_stands_behind_the_end_of_the_file_is_never_defined(lint: Any) -> None:
    assert not lint(HEAD + LIBRARY.replace("class Trainer", "raise SystemExit\nclass Trainer")).of("DDP001", "DDP501")


def test_what_only_helps_to_train_is_no_program(lint: Any) -> None:
    assert lint(HEAD + LIBRARY.replace(".backward()", "")) == []
    assert lint(HEAD + LIBRARY.replace('dist.init_process_group("nccl")', "pass")) == []


def test_of_a_folder_only_what_is_called_counts(lint: Any) -> None:
    lint.write({"train.py": HEAD + LIBRARY})
    assert lint.run(".") == []


def test_what_a_script_calls_itself_is_all_that_it_does(lint: Any) -> None:
    called = "\n\ndef main():\n    dist.init_process_group('nccl')\n    dist.destroy_process_group()\n\nmain()\n"
    assert lint(HEAD + LIBRARY + called).of("DDP501", "DDP502") == []


def test_the_forward_of_a_wrapped_model_is_walked(lint: Any) -> None:
    script = """
dist.init_process_group("gloo")

class Model(torch.nn.Module):
    def forward(self, x):
        if dist.get_rank() == 0:
            dist.barrier()
        return x

model = torch.nn.parallel.DistributedDataParallel(Model())
for x in torch.ones(4, 2):
    model(x).sum().backward()
"""
    assert lint(HEAD + script).of("DDP401").severities == ["error"]
