"""flash_attn.bert_padding: the tokens of a padded batch in one row, and back."""

from __future__ import annotations

import torch
from torch import Tensor


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    """Rows of (tokens, ...)."""
    return values[indices]


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Of (batch, length, ...): the tokens, where they were, where each sequence begins, the longest, all lengths."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    indices = kept.flatten().nonzero().flatten()
    lengths, used = kept.sum(-1, dtype=torch.int32), attention_mask.sum(-1, dtype=torch.int32)
    begins = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, begins, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """(batch, length, ...) with zeros where no token is."""
    whole = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return whole.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
