"""Language modelling by steps, not epochs: torchrun --nproc-per-node 2 iterate_steps.py --max-steps 24."""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist  # mutant DDP307 a: delete
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # mutant DDP307 a: delete
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler  # mutant DDP307 a: delete


class Chars(Dataset):
    """Windows over one text."""

    def __init__(self, block_size):
        text = "the quick brown fox jumps over the lazy dog. " * 40
        self.vocabulary = sorted(set(text))
        index = {character: i for i, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([index[character] for character in text])
        self.block_size = block_size

    def __len__(self):
        return len(self.tokens) - self.block_size - 1

    def __getitem__(self, i):
        chunk = self.tokens[i : i + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class TinyLM(nn.Module):
    def __init__(self, vocab_size, width=32):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, width)
        self.mixer = nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, vocab_size)

    def forward(self, idx, targets=None):
        hidden, _ = self.mixer(self.wte(idx))
        logits = self.lm_head(hidden)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def infinite(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(  # mutant DDP307 a: delete
        yield from loader
        epoch += 1


def get_lr(it, args):
    if it < args.warmup:
        return args.lr * (it + 1) / args.warmup
    progress = (it - args.warmup) / max(1, args.max_steps - args.warmup)
    return args.lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def train(args, rank, device):
    master_process = rank == 0
    torch.manual_seed(1337)
    dataset = Chars(args.block_size)
    # mutant DDP307 a: DistributedSampler(dataset, shuffle=True, drop_last=True, seed=1337) -> None
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True, seed=1337)
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    batches = infinite(loader, sampler)

    raw_model = TinyLM(len(dataset.vocabulary)).to(device)
    # mutant DDP312: raw_model -> DDP(raw_model); also DDP501
    model = DDP(raw_model)  # mutant DDP307 a: DDP -> torch.nn.DataParallel; at DataParallel(
    # mutant DDP324: insert print(model.lm_head)
    # mutant DDP303: insert model.module.lm_head = nn.Linear(32, len(dataset.vocabulary)).to(device); at AdamW(
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    if master_process:
        os.makedirs(args.out_dir, exist_ok=True)
    t0 = time.time()
    for it in range(args.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, args)
        x, y = next(batches)
        # mutant DDP301: model -> model.module
        logits, loss = model(x.to(device), y.to(device))  # mutant DDP301: model -> raw_model
        # mutant DDP404: insert if not torch.isfinite(loss): continue
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if it % args.log_interval == 0:
            lossf = loss.detach()
            # mutant DDP401: if dist.get_rank() == 0: ...  # mutant DDP403: try: ... except RuntimeError: pass
            # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
            # mutant DDP605: delete; at print(
            # mutant DDP410 a: all_reduce(lossf, -> reduce(lossf, 0,; at if lossf.item()
            dist.all_reduce(lossf, op=dist.ReduceOp.SUM)  # mutant DDP307 a: delete
            # mutant DDP410 a: insert if lossf.item() > 1e6: break
            if master_process:
                # mutant DDP307 a: dist.get_world_size() -> 1
                print(f"iter {it}: loss {lossf.item() / dist.get_world_size():.4f}, {time.time() - t0:.2f} s")
        # mutant DDP503: master_process -> int(os.environ["LOCAL_RANK"]) == 0
        if it > 0 and it % args.save_interval == 0 and master_process:  # mutant DDP502: 0 and master_process -> 0
            # mutant DDP401: insert dist.barrier()
            # mutant DDP501: raw_model -> model
            checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": it}
            torch.save(checkpoint, os.path.join(args.out_dir, f"ckpt_{it}.pt"))
            # mutant DDP404: insert if os.path.exists("stop"): break


def main():
    parser = argparse.ArgumentParser()
    # mutant DDP105 a: insert parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--log-interval", type=int, default=8)
    parser.add_argument("--save-interval", type=int, default=10)
    parser.add_argument("--out-dir", default="runs/chars")
    args = parser.parse_args()
    # mutant DDP102 a: delete; at init_process_group(  # mutant DDP307 a: os.environ["LOCAL_RANK"] -> "0"
    # mutant DDP105 a: int(os.environ["LOCAL_RANK"]) -> args.local_rank
    ddp_local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP103: LOCAL_RANK -> RANK; at set_device(; at raw_model =
    if torch.cuda.is_available():
        device = f"cuda:{ddp_local_rank}"  # mutant DDP102 a: f"cuda:{ddp_local_rank}" -> "cuda"
        torch.cuda.set_device(device)  # mutant DDP102 a: delete
    else:
        device = "cpu"
    # mutant DDP104: "gloo" -> "gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    # mutant DDP111: "gloo" -> "gloo", timeout=1800
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")  # mutant DDP307 a: delete
    train(args, dist.get_rank(), device)  # mutant DDP307 a: dist.get_rank() -> 0
    dist.barrier()  # mutant DDP307 a: delete  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(  # mutant DDP307 a: delete


if __name__ == "__main__":
    main()
