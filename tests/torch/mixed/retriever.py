"""Two towers over bags of words, which share the embedding of words."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))).square())


class Towers(nn.Module):
    def __init__(self, d, layers, vocab):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, d, mode="sum")
        self.query = nn.Sequential(*(Layer(d) for _ in range(layers)))
        self.passage = nn.Sequential(*(Layer(d) for _ in range(layers)))

    def forward(self, query, passage):
        q, p = self.query(self.words(query)), self.passage(self.words(passage))
        return F.normalize(q.float(), dim=-1) @ F.normalize(p.float(), dim=-1).T


def build(d=224, layers=2, vocab=3000):
    return Towers(d, layers, vocab)


def batch(device, n=24, words=20):
    return {"query": torch.empty(n, words, dtype=torch.int64, device=device), "passage": torch.empty(n, 4 * words, dtype=torch.int64, device=device),
            "labels": torch.empty(n, dtype=torch.int64, device=device)}


def forward(model, b):
    return model(b["query"], b["passage"])


def loss(out, b):
    return F.cross_entropy(out, b["labels"])
