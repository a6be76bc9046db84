"""Fine-tunes a classifier and keeps the best by a metric of all ranks: torchrun --nproc-per-node 2."""

import argparse
import json
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

logger = logging.getLogger("finetune")


class Documents(Dataset):
    def __init__(self, n, seed, words=50, length=12):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(words, (n, length), generator=generator)
        self.labels = (self.tokens < words // 5).sum(1).clamp(max=3)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"tokens": self.tokens[i], "label": self.labels[i]}


class BagOfWords(nn.Module):
    def __init__(self, words=50, width=24, classes=4):
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.classifier(self.dropout(self.embedding(tokens)))


def reduce_tensor(tensor):
    """Sum over all ranks."""
    total = tensor.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


def validate(model, loader, criterion, device):
    """Loss and accuracy over the documents of every rank. Collective."""
    model.eval()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    seen = torch.zeros((), device=device)
    with torch.inference_mode():
        for batch in loader:
            labels = batch["label"].to(device)
            logits = model(batch["tokens"].to(device))
            loss_sum += criterion(logits, labels) * len(labels)
            correct += (logits.argmax(-1) == labels).sum()
            seen += len(labels)
    loss_sum = reduce_tensor(loss_sum)
    correct = reduce_tensor(correct)
    seen = reduce_tensor(seen)
    return (loss_sum / seen).item(), (correct / seen).item()


def save_best(model, metrics, folder):
    """Rank zero only."""
    torch.save(model.module.state_dict(), os.path.join(folder, "best.pt.tmp"))
    os.replace(os.path.join(folder, "best.pt.tmp"), os.path.join(folder, "best.pt"))
    with open(os.path.join(folder, "metrics.json"), "w") as stream:
        json.dump(metrics, stream)


def train(args, device, global_rank):
    torch.manual_seed(args.seed)
    train_data, val_data = Documents(480, seed=0), Documents(160, seed=1)
    train_sampler = DistributedSampler(train_data, shuffle=True, seed=args.seed, drop_last=True)
    val_sampler = DistributedSampler(val_data, shuffle=False)
    train_loader = DataLoader(train_data, args.batch_size, sampler=train_sampler, drop_last=True)
    val_loader = DataLoader(val_data, args.batch_size, sampler=val_sampler)
    model = DistributedDataParallel(BagOfWords().to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps_per_epoch = len(train_loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps_per_epoch)
    if global_rank == 0:
        os.makedirs(args.output, exist_ok=True)
    best_accuracy, bad_epochs = -1.0, 0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            logits = model(batch["tokens"].to(device))
            loss = criterion(logits, batch["label"].to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()
        val_loss, accuracy = validate(model, val_loader, criterion, device)
        if global_rank == 0:
            logger.info("epoch %d loss %.4f accuracy %.3f", epoch, val_loss, accuracy)
        if accuracy > best_accuracy:
            best_accuracy, bad_epochs = accuracy, 0
            if global_rank == 0:
                save_best(model, {"epoch": epoch, "accuracy": accuracy}, args.output)
        else:
            bad_epochs += 1
        if bad_epochs >= args.patience:
            break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/documents")
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    global_rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if global_rank == 0 else logging.ERROR)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    train(args, device, global_rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
