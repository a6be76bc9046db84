"""Segmentation of toy signals, in several modules: torchrun --nproc-per-node 2 package_run/train.py."""

import argparse
from pathlib import Path

import torch
from checkpoint import load_checkpoint, save_checkpoint
from data import build_loader
from distributed import cleanup, init_distributed, is_main, world_size
from engine import evaluate, train_one_epoch
from network import UNet1d
from torch.nn.parallel import DistributedDataParallel


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--batch", default=16, type=int)
    parser.add_argument("--lr", default=1e-2, type=float)
    parser.add_argument("--seed", default=42, type=int)
    parser.add_argument("--resume", default=None, type=Path)
    parser.add_argument("--out", default=Path("runs/segment"), type=Path)
    return parser.parse_args()


def main(args):
    device, local_rank = init_distributed()
    torch.manual_seed(args.seed)
    train_loader = build_loader("train", args.batch, training=True)
    val_loader = build_loader("val", args.batch, training=False)

    model = UNet1d().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    first_epoch, best = 0, 0.0
    if args.resume is not None:
        first_epoch, best = load_checkpoint(args.resume, model, optimizer)
    # mutant DDP312: model -> DistributedDataParallel(model); also DDP501
    net = DistributedDataParallel(model, device_ids=None if local_rank is None else [local_rank])
    # mutant DDP602: len(train_loader) -> (len(train_loader.dataset) // train_loader.batch_size); at OneCycleLR(
    num_steps = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=num_steps)

    if is_main():
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"{world_size()} ranks, {num_steps} steps")
    for epoch in range(first_epoch, args.epochs):
        train_one_epoch(net, train_loader, optimizer, scheduler, device, epoch)
        iou = evaluate(net, val_loader, device)
        if is_main():  # mutant DDP502: dedent; at torch.save(
            print(f"epoch {epoch} iou {iou:.3f}")
            if iou >= best:
                best = iou
                save_checkpoint(args.out / "best.pt", net, optimizer, epoch, best)


if __name__ == "__main__":
    main(get_args())
    cleanup()  # mutant DDP101: delete; at init_process_group(
