"""A very small U-Net over signals."""

import torch
from torch import nn


class UNet1d(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.down = nn.Conv1d(1, channels, 3, padding=1)
        self.middle = nn.Conv1d(channels, channels, 3, padding=1)
        self.head = nn.Conv1d(2 * channels, 1, 1)

    def forward(self, signal):
        early = torch.relu(self.down(signal))
        coarse = torch.relu(self.middle(nn.functional.avg_pool1d(early, 2)))
        late = nn.functional.interpolate(coarse, scale_factor=2)
        return self.head(torch.cat([early, late], 1))
