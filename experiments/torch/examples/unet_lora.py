"""A U-Net whose convolutions are frozen but for low-rank adapters:
python -m tessera trace unet_lora.py:make -o unet.trace --dtype autocast-bf16"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Adapted(nn.Module):
    def __init__(self, i, o, rank=8):
        super().__init__()
        self.base = nn.Conv2d(i, o, 3, padding=1).requires_grad_(False)
        self.a, self.b = nn.Conv2d(i, rank, 3, padding=1, bias=False), nn.Conv2d(rank, o, 1, bias=False)

    def forward(self, x):
        return F.silu(self.base(x) + self.b(self.a(x)))


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(Adapted(i, o) for i, o in zip((3, *widths), widths))
        self.up = nn.ModuleList(Adapted(2 * o, i) for i, o in zip((3, *widths), widths))

    def forward(self, x):
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        for block in reversed(self.up):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return x


def make(batch=8):
    images = torch.empty(batch, 3, 64, 64)
    return UNet(), {"x": images}, lambda output, b: F.mse_loss(output.float(), b["x"])
