"""Two towers, InfoNCE over the global batch by a differentiable gather: torchrun --nproc-per-node 2."""

import os
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    """Two noisy views of one latent vector."""

    def __init__(self, n=512):
        generator = torch.Generator().manual_seed(5)
        latent = torch.randn(n, 8, generator=generator)
        self.images = latent @ torch.randn(8, 24, generator=generator)
        self.texts = latent @ torch.randn(8, 16, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.texts[index]


class Towers(nn.Module):
    def __init__(self, embed_dim=16):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, embed_dim))
        self.textual = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, embed_dim))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        image_features = F.normalize(self.visual(images), dim=-1)
        text_features = F.normalize(self.textual(texts), dim=-1)
        return image_features, text_features, self.logit_scale.exp()


# mutant DDP302 abc: insert def gather_from_all(tensor):
# mutant DDP302 abc: insert     gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
# mutant DDP302 abc: insert     dist.all_gather(gathered, tensor)
# mutant DDP302 abc: insert     return gathered
class ClipLoss(nn.Module):
    """The loss of the own rows against the columns of all ranks. Collective."""

    def forward(self, image_features, text_features, logit_scale):
        # mutant DDP302 ac: torch.distributed.nn.all_gather -> gather_from_all
        all_images = torch.cat(torch.distributed.nn.all_gather(image_features))
        # mutant DDP302 bc: torch.distributed.nn.all_gather -> gather_from_all
        all_texts = torch.cat(torch.distributed.nn.all_gather(text_features))
        logits_per_image = logit_scale * image_features @ all_texts.T
        logits_per_text = logit_scale * text_features @ all_images.T
        own = torch.arange(len(image_features), device=image_features.device)
        labels = own + dist.get_rank() * len(image_features)
        return (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_text, labels)) / 2


def init_distributed_device():
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu"), None
    local_rank = int(os.environ["LOCAL_RANK"])  # mutant DDP103: LOCAL_RANK -> RANK; at device_ids=; at device =
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)  # mutant DDP102 a: delete
    # mutant DDP104: "nccl" -> "nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    # mutant DDP110: "nccl" -> "gloo"
    # mutant DDP109: insert os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl")  # mutant DDP111: "nccl" -> "nccl", timeout=1800
    # mutant DDP102 a: insert dist.barrier()
    # mutant DDP102 a: insert torch.cuda.set_device(device)
    return device, [local_rank]


def is_master():
    return dist.get_rank() == 0


def main(args):
    device, device_ids = init_distributed_device()
    torch.manual_seed(args.seed)
    dataset = Pairs()
    sampler = DistributedSampler(dataset, drop_last=True)
    # mutant DDP202: sampler=sampler -> shuffle=True  # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
    dataloader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = Towers().to(device)
    if args.pretrained:
        # mutant DDP504: , map_location="cpu" ->
        weights = torch.load(args.pretrained, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
    # mutant DDP312: model, -> nn.parallel.DistributedDataParallel(model),; also DDP501
    model = nn.parallel.DistributedDataParallel(model, device_ids=device_ids)
    criterion = ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
        meter = torch.zeros(2, device=device)
        for images, texts in dataloader:
            # mutant DDP301: model -> model.module
            image_features, text_features, logit_scale = model(images.to(device), texts.to(device))
            loss = criterion(image_features, text_features, logit_scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter += torch.stack([loss.detach(), torch.ones_like(loss)])
        # mutant DDP401: if dist.get_rank() == 0: ...  # mutant DDP403: try: ... except RuntimeError: pass
        dist.all_reduce(meter)  # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        if is_master():  # mutant DDP502: dedent  # mutant DDP503: is_master() -> int(os.environ["LOCAL_RANK"]) == 0
            # mutant DDP401: insert dist.barrier()
            print(f"epoch {epoch}: loss {(meter[0] / meter[1]).item():.3f}")
            os.makedirs(args.logs, exist_ok=True)
            # mutant DDP501: .module ->
            torch.save(model.module.state_dict(), os.path.join(args.logs, f"epoch_{epoch}.pt"))
            # mutant DDP404: insert if os.path.exists("stop"): break


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretrained", default="")
    parser.add_argument("--logs", default="runs/clip")
    main(parser.parse_args())
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(
