"""Scripts whose training loop is a library's: what it calls of the program is code of every rank, and what it does by
itself is no defect."""

from __future__ import annotations

from typing import Any

import pytest

LIGHTNING = """
import torch
import pytorch_lightning as pl
import torch.distributed as dist

class Net(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        {step}

    def train_dataloader(self):
        return torch.utils.data.DataLoader(range(8), shuffle=True)

class Dump(pl.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        {callback}

def main():
    model = Net()
    {before}
    trainer = pl.Trainer({trainer}, callbacks=[Dump()])
    trainer.fit(model)
    {after}

if __name__ == "__main__":
    main()
"""


def lightning(
    step: str = "pass",
    callback: str = "pass",
    before: str = "pass",
    after: str = "pass",
    trainer: str = 'devices=2, strategy="ddp"',
) -> str:
    return LIGHTNING.format(step=step, callback=callback, before=before, after=after, trainer=trainer)


SAVE = 'torch.save({}.state_dict(), "out.pt")'


@pytest.mark.parametrize(
    "parts", [{"step": SAVE.format("self")}, {"callback": SAVE.format("pl_module")}, {"after": SAVE.format("model")}]
)
def test_what_lightning_calls_and_what_follows_it_is_code_of_every_rank(parts: dict[str, str], lint: Any) -> None:
    assert lint(lightning(**parts)).told == [("DDP502", "error")]


def test_what_stands_ahead_of_lightning_is_done_by_the_first_rank_and_again_by_the_others(lint: Any) -> None:
    assert lint(lightning(before=SAVE.format("model"))).told == [("DDP502", "warning")]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"step": f"if self.global_rank == 0: {SAVE.format('self')}"},
        {"step": f"if self.trainer.is_global_zero: {SAVE.format('self')}"},
        {"callback": f"if trainer.is_global_zero: {SAVE.format('pl_module')}"},
        {"step": SAVE.format("self"), "trainer": "devices=1"},
        {"step": SAVE.format("self"), "trainer": "max_epochs=1"},
        {"step": SAVE.format("self"), "trainer": "gpus=[0]"},
        {"after": SAVE.format("model"), "trainer": 'devices=2, strategy="ddp_spawn"'},  # only `fit` runs on many
        {"step": 'self.log("loss", batch, sync_dist=True)'},
        {"step": 'if self.global_rank == 0: self.log("size", len(batch), sync_dist=True, rank_zero_only=True)'},
        {"after": 'trainer.save_checkpoint("out.ckpt")'},
    ],
)
def test_what_lightning_does_by_itself_or_one_rank_does_is_no_defect(parts: dict[str, str], lint: Any) -> None:
    assert lint(lightning(**parts)) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"step": 'if self.global_rank == 0: self.log("loss", batch, sync_dist=True)'},
        {"step": "if self.trainer.is_global_zero: dist.barrier()"},
        {"after": 'if trainer.is_global_zero: trainer.save_checkpoint("out.ckpt")'},
    ],
)
def test_ranks_that_meet_within_lightning_are_not_to_be_parted(parts: dict[str, str], lint: Any) -> None:
    assert lint(lightning(**parts)).told == [("DDP401", "error")]


def test_what_only_another_branch_runs_comes_before_its_own_run(lint: Any) -> None:
    after = 'if model.mode == "test":\n        torch.save(model.state_dict(), "out.pt")\n        trainer.test(model)'
    other = lightning(after=after).replace(
        "    trainer.fit(model)\n    if", "    if model.mode == 1:\n        pass\n    elif"
    )
    assert lint(other) == []
    assert lint(lightning(after='torch.save(model.state_dict(), "out.pt"); trainer.test(model)')).codes == {"DDP502"}


def test_what_stands_behind_a_run_of_one_branch_is_not_ahead_of_the_next_run(lint: Any) -> None:
    fit, save = "trainer.fit(model)", SAVE.format("model")
    ahead, behind = (f"if model.mode:\n        {a}\n        {b}\n    {fit}" for a, b in ((save, fit), (fit, save)))
    assert lint(lightning().replace(fit, ahead)) == []
    assert lint(lightning().replace(fit, behind)).codes == {"DDP502"}


HUGGING_FACE = """
import torch
import torch.distributed as dist
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

class Own(Trainer):
    def {hook}(self, *args, **kwargs):
        {body}

class Dump(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        {callback}

def main():
    {args}
    trainer = Own(model=None, args=args, callbacks=[Dump()])
    {before}
    trainer.train()
    {after}

if __name__ == "__main__":
    main()
"""
PARSED = "(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()"


def hugging_face(
    hook: str = "compute_loss",
    body: str = "pass",
    callback: str = "pass",
    before: str = "pass",
    after: str = "pass",
    args: str = PARSED,
) -> str:
    return HUGGING_FACE.format(hook=hook, body=body, callback=callback, before=before, after=after, args=args)


@pytest.mark.parametrize(
    "parts",
    [
        {"body": SAVE.format("self.model")},
        {"hook": "save_model", "body": SAVE.format("self.model")},
        {"callback": SAVE.format("kwargs['model']")},
        {"after": SAVE.format("trainer.model")},
        {"after": SAVE.format("trainer.model"), "args": 'args = TrainingArguments("out", deepspeed="zero.json")'},
    ],
)
def test_what_a_trainer_calls_and_what_follows_it_is_code_of_every_rank(parts: dict[str, str], lint: Any) -> None:
    assert lint(hugging_face(**parts)).told == [("DDP502", "error")]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"hook": "_save", "body": SAVE.format("self.model")},  # `save_model` calls it where it should save
        {"body": f"if self.is_world_process_zero(): {SAVE.format('self.model')}"},
        {"body": f"if self.args.should_save: {SAVE.format('self.model')}"},
        {"callback": f"if state.is_world_process_zero: {SAVE.format('model')}"},
        {"callback": f"if args.process_index == 0: {SAVE.format('model')}"},
        {"before": f"with args.main_process_first(): {SAVE.format('trainer.model')}"},
        {"after": 'trainer.save_model("out"); trainer.save_state(); trainer.evaluate()'},
        {"after": 'if trainer.args.should_save: trainer._save("out")'},
        {"after": SAVE.format("trainer.model"), "args": 'args = TrainingArguments("out")'},
        {"hook": "training_step", "body": "self.accelerator.backward(1)", "args": 'args = TrainingArguments("out")'},
    ],
)
def test_what_a_trainer_does_by_itself_or_one_rank_does_is_no_defect(parts: dict[str, str], lint: Any) -> None:
    assert lint(hugging_face(**parts)) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"after": "if trainer.is_world_process_zero(): trainer.evaluate()"},
        {"body": "if self.is_world_process_zero(): dist.all_reduce(args[0])"},
        {"callback": "if state.is_world_process_zero: dist.barrier()"},
    ],
)
def test_ranks_that_meet_within_a_trainer_are_not_to_be_parted(parts: dict[str, str], lint: Any) -> None:
    assert lint(hugging_face(**parts)).told == [("DDP401", "error")]


LOGGED = """
import torch
import lightning
from torchmetrics import MeanMetric

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.mean_loss = torch.nn.Linear(1, 1), MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).sum()
        {train}
        return loss

    def validation_step(self, batch, batch_idx):
        loss = self.net(batch).sum()
        {validate}

lightning.Trainer(devices=2, strategy="ddp").fit(Net(), {loaders})
"""
LOADERS = "torch.utils.data.DataLoader(torch.ones(8, 1), shuffle=True), torch.utils.data.DataLoader(torch.ones(8, 1))"


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"train": 'self.log("train/loss", loss)'}, ["info"]),
        ({"train": 'self.log_dict({"loss": loss}, sync_dist=False)'}, ["info"]),
        ({"train": 'self.log("loss", loss, sync_dist=True, rank_zero_only=True)'}, ["info"]),
        ({"train": 'self.log("loss", loss, sync_dist=True)'}, []),
        ({"train": 'self.log("loss", loss, sync_dist=self.trainer.world_size > 1)'}, []),
        ({"validate": 'self.log("val/loss", loss)'}, ["warning"]),
        ({"validate": 'self.log("val/loss", loss, sync_dist=True)'}, []),
        ({"validate": 'self.log("val/loss", self.all_gather(loss).mean())'}, []),
        ({"validate": 'self.mean_loss(loss); self.log("val/loss", self.mean_loss)'}, []),
    ],
)
def test_a_loss_that_lightning_logs_unsynced_is_that_of_the_first_rank(
    parts: dict[str, str], wanted: list[str], lint: Any
) -> None:
    filled = {"train": "pass", "validate": "pass", "loaders": LOADERS, **parts}
    assert lint(LOGGED.format(**filled)).told == [("DDP601", severity) for severity in wanted]


COMMAND_LINE = """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI

class Net(LightningModule):
    def __init__(self, width=1):
        super().__init__()
        self.net = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        if self.global_rank == 0:
            torch.distributed.barrier()
        return self.net(batch).sum()

class Own(LightningCLI):
    pass

{start}
"""


@pytest.mark.parametrize(
    ("start", "wanted"),
    [("LightningCLI(Net)", True), ("Own(model_class=Net)", True), ("LightningCLI(Net, run=False)", False)],
)
def test_what_lightning_s_command_line_runs_is_code_of_every_rank(start: str, wanted: bool, lint: Any) -> None:
    assert lint(COMMAND_LINE.format(start=start)).told == [("DDP401", "error")] * wanted


def test_what_a_module_of_another_file_logs_is_told_where_it_logs_it(lint: Any) -> None:
    text = COMMAND_LINE.replace("if self.global_rank == 0:", "if True:").replace(
        "torch.distributed.barrier()", 'loss = self.net(batch).sum(); self.log("x", loss)'
    )
    lint.write(net=text.format(start=""), train="import lightning\nfrom net import Own, Net\nOwn(Net)\n")
    assert [(each.code, each.path, each.line) for each in lint.run("train.py")] == [("DDP601", "net.py", 13)]
