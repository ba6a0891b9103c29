"""A small model on a processor core, two steps under torch.profiler."""
import sys

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = torch.nn.RMSNorm(d)
        self.up = torch.nn.Linear(d, 4 * d, bias=False)
        self.down = torch.nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self, v, d, n):
        super().__init__()
        self.emb = torch.nn.Embedding(v, d)
        self.layers = torch.nn.ModuleList(Block(d) for _ in range(n))
        self.head = torch.nn.Linear(d, v, bias=False)

    def forward(self, t):
        x = self.emb(t)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.set_num_threads(1)
model = Net(256, 64, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randint(0, 256, (2, 32)), torch.randint(0, 256, (2, 32))


def step():
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten(0, 1)).backward()
    optimizer.step()


step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    for _ in range(2):
        with record_function("##step##"):
            step()
p.export_chrome_trace(sys.argv[1])
