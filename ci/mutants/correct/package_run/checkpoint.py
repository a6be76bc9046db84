"""Files of weights and state."""

import os

import torch


def unwrap(model):
    return model.module if hasattr(model, "module") else model


def save_checkpoint(path, model, optimizer, epoch, best):
    """Rank zero only."""
    state = {
        "model": unwrap(model).state_dict(),  # mutant DDP501: unwrap(model) -> model
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
        "best": best,
    }
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def load_checkpoint(path, model, optimizer):
    """Every rank, before the model is wrapped."""
    state = torch.load(path, map_location="cpu")  # mutant DDP504: , map_location="cpu" ->
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1, state["best"]
