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


class ClipLoss(nn.Module):
    """The loss of the own rows against the columns of all ranks. Collective."""

    def forward(self, image_features, text_features, logit_scale):
        all_images = torch.cat(torch.distributed.nn.all_gather(image_features))
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
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device, [local_rank]


def is_master():
    return dist.get_rank() == 0


def main(args):
    device, device_ids = init_distributed_device()
    torch.manual_seed(args.seed)
    dataset = Pairs()
    sampler = DistributedSampler(dataset, drop_last=True)
    dataloader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = Towers().to(device)
    if args.pretrained:
        weights = torch.load(args.pretrained, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
    model = nn.parallel.DistributedDataParallel(model, device_ids=device_ids)
    criterion = ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        meter = torch.zeros(2, device=device)
        for images, texts in dataloader:
            image_features, text_features, logit_scale = model(images.to(device), texts.to(device))
            loss = criterion(image_features, text_features, logit_scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(meter)
        if is_master():
            print(f"epoch {epoch}: loss {(meter[0] / meter[1]).item():.3f}")
            os.makedirs(args.logs, exist_ok=True)
            torch.save(model.module.state_dict(), os.path.join(args.logs, f"epoch_{epoch}.pt"))


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretrained", default="")
    parser.add_argument("--logs", default="runs/clip")
    main(parser.parse_args())
    dist.barrier()
    dist.destroy_process_group()
