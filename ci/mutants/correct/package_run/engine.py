"""One epoch of training, and evaluation."""

import torch
import torch.nn.functional as F
from distributed import reduce_sum


def train_one_epoch(model, loader, optimizer, scheduler, device, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    for batch in loader:
        signal = batch["signal"].to(device, non_blocking=True)
        mask = batch["mask"].to(device, non_blocking=True)
        logits = model(signal)
        loss = F.binary_cross_entropy_with_logits(logits, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def evaluate(model, loader, device):
    """Intersection over union on the whole validation set. Collective."""
    model.eval()
    overlap = torch.zeros(2, device=device)
    with torch.no_grad():
        for batch in loader:
            mask = batch["mask"].to(device) > 0.5
            predicted = model(batch["signal"].to(device)) > 0
            overlap[0] += (predicted & mask).sum()
            overlap[1] += (predicted | mask).sum()
    reduce_sum(overlap)
    return (overlap[0] / overlap[1]).item()
