"""A decoder with learned positions, whose head may be the embedding's weight; its loss is inside."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.ln1, self.ln2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, d, h, layers, vocab, tied):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(1024, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def build(d=192, h=6, layers=3, vocab=777, tied=False):
    return GPT(d, h, layers, vocab, tied)


def batch(device, n=3, seq=80):
    return {k: torch.empty(n, seq, dtype=torch.int64, device=device) for k in ("ids", "labels")}


def forward(model, b):
    return model(b["ids"], b["labels"])


def loss(out, b):
    return out
