"""A block that two parents share, a tied embedding, a 3-D convolution, batch norm, a part that nobody runs."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.a = nn.Linear(d, 4 * d)
        self.b = nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.ln(x))))


class Side(nn.Module):
    def __init__(self, common, d):
        super().__init__()
        self.common = common
        self.own = nn.Linear(d, d)

    def forward(self, x):
        return self.own(self.common(x))


class Net(nn.Module):
    def __init__(self, d=65, n=3, vocab=777):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.vol = nn.Conv3d(1, d, (1, 2, 2))
        self.bn = nn.BatchNorm1d(d)
        common = Block(d)
        self.left = Side(common, d)
        self.right = Side(common, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.head = nn.Linear(d, vocab, bias=True)
        self.head.weight = self.emb.weight
        self.unused = nn.Linear(d, 3)

    def forward(self, ids, v):
        x = self.emb(ids)
        y = self.vol(v).flatten(2).mean(-1)
        x = x + self.bn(y)[:, None]
        x = self.left(x) + self.right(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def build(**kw):
    return Net(**kw)


def batch(device, n=4, t=48):
    return {"ids": torch.zeros(n, t, dtype=torch.long, device=device), "v": torch.zeros(n, 1, 4, 4, 4, device=device)}


def forward(model, b):
    return model(b["ids"], b["v"])


def loss(out, b):
    return F.cross_entropy(out.flatten(0, 1).float(), b["ids"].flatten())
