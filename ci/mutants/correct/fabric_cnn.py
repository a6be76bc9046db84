"""A small network with Lightning Fabric, which starts its own ranks: python fabric_cnn.py --devices 2."""

import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def make_split(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (n,), generator=generator)
    images = torch.randn(n, 1, 12, 12, generator=generator) + labels[:, None, None, None]
    return TensorDataset(images, labels)


def train(fabric, model, optimizer, train_loader):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output, labels)
        # mutant DDP404: insert if not torch.isfinite(loss): continue
        fabric.backward(loss)
        optimizer.step()


@torch.no_grad()
def test(fabric, model, test_loader):
    model.eval()
    correct = torch.zeros((), device=fabric.device)
    seen = torch.zeros((), device=fabric.device)
    for images, labels in test_loader:
        correct += (model(images).argmax(1) == labels).sum()
        seen += len(labels)
    correct = fabric.all_reduce(correct, reduce_op="sum")  # mutant DDP601 a: delete; at print(
    seen = fabric.all_reduce(seen, reduce_op="sum")  # mutant DDP601 a: delete
    return (correct / seen).item()


def run(hparams):
    fabric = L.Fabric(accelerator="auto", strategy="ddp", devices=hparams.devices)
    fabric.launch()
    fabric.seed_everything(hparams.seed)
    train_loader = DataLoader(make_split(256, 0), batch_size=hparams.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(make_split(64, 1), batch_size=hparams.batch_size)
    train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
    model = ConvNet()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=hparams.lr)
    model, optimizer = fabric.setup(model, optimizer)
    for epoch in range(hparams.epochs):
        train(fabric, model, optimizer, train_loader)
        accuracy = test(fabric, model, test_loader)
        if fabric.global_rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    fabric.save("runs/fabric.ckpt", {"model": model, "optimizer": optimizer})
    fabric.barrier()  # mutant DDP401: if fabric.global_rank == 0: ...


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, default=2)
    run(parser.parse_args())
