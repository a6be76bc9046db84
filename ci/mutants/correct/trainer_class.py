"""A Trainer class with snapshots: torchrun --nproc-per-node 2 trainer_class.py."""

import os

import torch
import torch.distributed as dist  # mutant DDP307 a: delete
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group  # mutant DDP307 a: delete
from torch.nn.parallel import DistributedDataParallel as DDP  # mutant DDP307 a: delete
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # mutant DDP307 a: delete


def ddp_setup():
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        # mutant DDP103: LOCAL_RANK -> RANK  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # mutant DDP102 a: delete; at init_process_group(
    # mutant DDP104: "gloo" -> "gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    # mutant DDP307 a: delete
    init_process_group(backend="nccl" if use_cuda else "gloo")  # mutant DDP111: "gloo" -> "gloo", timeout=1800


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        # mutant DDP103: LOCAL_RANK -> RANK; at torch.device(  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        self.local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP102 a: delete
        self.global_rank = int(os.environ["RANK"])  # mutant DDP307 a: os.environ["RANK"] -> "0"
        self.use_cuda = torch.cuda.is_available()
        # mutant DDP102 a: f"cuda:{self.local_rank}" -> "cuda"
        self.device = torch.device(f"cuda:{self.local_rank}" if self.use_cuda else "cpu")
        self.model = model.to(self.device)
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        # mutant DDP102 a: , device_ids=[self.local_rank] if self.use_cuda else None ->
        # mutant DDP307 a: DDP -> torch.nn.DataParallel; at DataParallel(
        # mutant DDP307 a: , device_ids=[self.local_rank] if self.use_cuda else None ->
        # mutant DDP312: self.model, -> DDP(self.model),; also DDP501
        self.model = DDP(self.model, device_ids=[self.local_rank] if self.use_cuda else None)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path, map_location=self.device)  # mutant DDP504: , map_location=self.device ->
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)  # mutant DDP301: model -> model.module
        loss = F.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch):
        # mutant DDP201: delete; at DistributedSampler(
        self.train_data.sampler.set_epoch(epoch)  # mutant DDP202 a: delete  # mutant DDP307 a: delete
        total = torch.zeros((), device=self.device)
        for source, targets in self.train_data:
            total += self._run_batch(source.to(self.device), targets.to(self.device))
        # mutant DDP403: try: ... except RuntimeError: pass
        # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        dist.all_reduce(total)  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
        if self.global_rank == 0:
            # mutant DDP307 a: dist.get_world_size() -> 1
            mean = total.item() / (len(self.train_data) * dist.get_world_size())
            print(f"epoch {epoch} | steps {len(self.train_data)} | loss {mean:.4f}")

    def _save_snapshot(self, epoch):
        snapshot = {
            "MODEL_STATE": self.model.module.state_dict(),  # mutant DDP501: .module ->
            "OPTIMIZER_STATE": self.optimizer.state_dict(),
            "EPOCHS_RUN": epoch + 1,
        }
        torch.save(snapshot, self.snapshot_path + ".part")
        os.replace(self.snapshot_path + ".part", self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            # mutant DDP502: self.global_rank == 0 and epoch -> epoch; at torch.save(
            # mutant DDP503: self.global_rank -> int(os.environ["LOCAL_RANK"])
            if self.global_rank == 0 and epoch % self.save_every == 0:
                # mutant DDP401: insert dist.barrier()
                self._save_snapshot(epoch)
                # mutant DDP404: insert if os.path.exists("stop"): break


def load_train_objs():
    torch.manual_seed(7)
    x = torch.randn(256, 20)
    y = x @ torch.randn(20, 1)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    return TensorDataset(x, y), model, optimizer


def prepare_dataloader(dataset, batch_size):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=False,  # mutant DDP202 a: False -> True  # mutant DDP203: False -> True
        # mutant DDP202 a: sampler=DistributedSampler(dataset, drop_last=True), ->
        # mutant DDP307 a: DistributedSampler(dataset, drop_last=True) -> None
        sampler=DistributedSampler(dataset, drop_last=True),
        drop_last=True,
    )


def main(save_every, total_epochs, batch_size, snapshot_path="snapshot.pt"):
    dataset, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(dataset, batch_size)
    trainer = Trainer(model, train_data, optimizer, save_every, snapshot_path)
    trainer.train(total_epochs)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("--total-epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    ddp_setup()
    main(args.save_every, args.total_epochs, args.batch_size)
    dist.barrier()  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    destroy_process_group()  # mutant DDP101: delete; at init_process_group(  # mutant DDP307 a: delete
