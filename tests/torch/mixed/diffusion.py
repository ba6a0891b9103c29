"""A diffusion transformer: blocks take two tensors, the second from an embedding of time that all share."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.modulate = nn.Linear(d, 6 * d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x, c):
        a1, b1, g1, a2, b2, g2 = self.modulate(F.silu(c))[:, None].chunk(6, -1)
        y = F.layer_norm(x, x.shape[-1:]) * (1 + a1) + b1
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in self.qkv(y).chunk(3, -1))
        x = x + g1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) * self.scale
        return x + g2 * self.down(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]) * (1 + a2) + b2)))


class Transformer(nn.Module):
    def __init__(self, d, h, layers, channels):
        super().__init__()
        self.patch = nn.Conv2d(channels, d, 2, stride=2)
        self.time = nn.Sequential(nn.Linear(64, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.last = nn.Linear(d, 4 * channels)

    def forward(self, x, t):
        waves = torch.arange(32, device=t.device, dtype=t.dtype).exp()[None] * t[:, None]
        c = self.time(torch.cat([waves.cos(), waves.sin()], -1))
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, c)
        return self.last(x)


def build(d=160, h=5, layers=3, channels=4):
    return Transformer(d, h, layers, channels)


def batch(device, n=4, size=24, channels=4):
    return {"x": torch.empty(n, channels, size, size, device=device), "t": torch.empty(n, device=device),
            "target": torch.empty(n, size * size // 4, 4 * channels, device=device)}


def forward(model, b):
    return model(b["x"], b["t"])


def loss(out, b):
    return F.mse_loss(out.float(), b["target"])
