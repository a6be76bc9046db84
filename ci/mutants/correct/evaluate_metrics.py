"""Fine-tunes a classifier and keeps the best by a metric of all ranks: torchrun --nproc-per-node 2."""

import argparse
import json
import logging
import os

import torch
import torch.distributed as dist  # mutant DDP307 a: delete
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel  # mutant DDP307 a: delete
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
    # mutant DDP401: if dist.get_rank() == 0: ...  # mutant DDP403: try: ... except RuntimeError: pass
    # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)  # mutant DDP307 a: delete
    return total


def validate(model, loader, criterion, device):
    """Loss and accuracy over the documents of every rank. Collective."""
    model.eval()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    seen = torch.zeros((), device=device)
    with torch.inference_mode():
        for batch in loader:  # mutant DDP402: if dist.get_rank() == 0: ...
            labels = batch["label"].to(device)
            logits = model(batch["tokens"].to(device))
            loss_sum += criterion(logits, labels) * len(labels)
            correct += (logits.argmax(-1) == labels).sum()
            seen += len(labels)
    loss_sum = reduce_tensor(loss_sum)  # mutant DDP601 a: delete; at torch.save(
    correct = reduce_tensor(correct)  # mutant DDP601 a: delete
    seen = reduce_tensor(seen)  # mutant DDP601 a: delete
    return (loss_sum / seen).item(), (correct / seen).item()


def save_best(model, metrics, folder):
    """Rank zero only."""
    torch.save(model.module.state_dict(), os.path.join(folder, "best.pt.tmp"))  # mutant DDP501: .module ->
    os.replace(os.path.join(folder, "best.pt.tmp"), os.path.join(folder, "best.pt"))
    with open(os.path.join(folder, "metrics.json"), "w") as stream:
        json.dump(metrics, stream)


def train(args, device, global_rank):
    torch.manual_seed(args.seed)
    train_data, val_data = Documents(480, seed=0), Documents(160, seed=1)
    # mutant DDP307 a: DistributedSampler(train_data, shuffle=True, seed=args.seed, drop_last=True) -> None
    train_sampler = DistributedSampler(train_data, shuffle=True, seed=args.seed, drop_last=True)
    # mutant DDP307 a: DistributedSampler(val_data, shuffle=False, drop_last=True) -> None
    val_sampler = DistributedSampler(val_data, shuffle=False, drop_last=True)  # mutant DDP207: , drop_last=True ->
    # mutant DDP202: sampler=train_sampler -> shuffle=True
    # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    train_loader = DataLoader(train_data, args.batch_size, sampler=train_sampler, drop_last=True)
    # mutant DDP203: val_sampler -> val_sampler, shuffle=True
    val_loader = DataLoader(val_data, args.batch_size, sampler=val_sampler)
    # mutant DDP307 a: DistributedDataParallel -> torch.nn.DataParallel; at DataParallel(
    # mutant DDP312: (BagOfWords().to(device)) -> (BagOfWords()).to(device)
    # mutant DDP312: BagOfWords().to(device) -> DistributedDataParallel(BagOfWords().to(device)); also DDP501
    model = DistributedDataParallel(BagOfWords().to(device))
    # mutant DDP324: insert print(model.classifier.weight.shape)
    # mutant DDP303: insert model.module.classifier = nn.Linear(24, 4).to(device); at AdamW(
    # mutant DDP303 a: insert gate = torch.nn.PReLU().to(next(model.parameters()).device)
    criterion = nn.CrossEntropyLoss()
    # mutant DDP303 a: model.parameters() -> [*model.parameters(), *gate.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # mutant DDP602: len(train_loader) -> (len(train_data) // args.batch_size); at CosineAnnealingLR(
    # mutant DDP602: len(train_loader) -> (len(train_loader.dataset) // train_loader.batch_size); at CosineAnnealingLR(
    steps_per_epoch = len(train_loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps_per_epoch)
    # mutant DDP208: insert os.makedirs(args.output)
    if global_rank == 0:
        os.makedirs(args.output, exist_ok=True)
    best_accuracy, bad_epochs = -1.0, 0
    # mutant DDP405 a: insert log = open("log.txt", "w") if global_rank == 0 else None
    # mutant DDP405 b: insert if global_rank == 0: log = open("log.txt", "w")
    for epoch in range(args.epochs):
        # mutant DDP307 a: delete
        train_sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(train_data
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            logits = model(batch["tokens"].to(device))  # mutant DDP301: model -> model.module
            # mutant DDP303 a: insert logits = gate(logits)
            loss = criterion(logits, batch["label"].to(device))
            # mutant DDP404: insert if not torch.isfinite(loss): continue
            loss.backward()
            optimizer.step()
            scheduler.step()
        val_loss, accuracy = validate(model, val_loader, criterion, device)
        if global_rank == 0:
            logger.info("epoch %d loss %.4f accuracy %.3f", epoch, val_loss, accuracy)
            # mutant DDP404: insert if os.path.exists("stop"): break
        if accuracy > best_accuracy:
            best_accuracy, bad_epochs = accuracy, 0
            # mutant DDP503: global_rank -> int(os.environ["LOCAL_RANK"])
            if global_rank == 0:  # mutant DDP502: dedent; at torch.save(; at open(
                # mutant DDP401: insert dist.barrier()
                save_best(model, {"epoch": epoch, "accuracy": accuracy}, args.output)
        else:
            bad_epochs += 1
        if bad_epochs >= args.patience:
            break
        # mutant DDP405 ab: insert log.write(f"{epoch}\n")


def main():
    parser = argparse.ArgumentParser()
    # mutant DDP105 a: insert parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/documents")
    args = parser.parse_args()
    # mutant DDP104: "gloo" -> "gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    # mutant DDP111: "gloo" -> "gloo", timeout=1800
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # mutant DDP307 a: delete
    global_rank = dist.get_rank()  # mutant DDP307 a: dist.get_rank() -> 0
    logging.basicConfig(level=logging.INFO if global_rank == 0 else logging.ERROR)
    if torch.cuda.is_available():
        # mutant DDP102 a: , int(os.environ["LOCAL_RANK"]) ->; at init_process_group(
        # mutant DDP103: LOCAL_RANK -> RANK  # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
        torch.cuda.set_device(device)  # mutant DDP102 a: delete
    else:
        device = torch.device("cpu")
    train(args, device, global_rank)
    dist.barrier()  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(  # mutant DDP307 a: delete


if __name__ == "__main__":
    main()
