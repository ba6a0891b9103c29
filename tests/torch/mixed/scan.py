"""A cell that is called once for each step of time, and a head over all of its states."""
import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.input, self.state, self.gate = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(2 * d, d)

    def forward(self, x, h):
        g = torch.sigmoid(self.gate(torch.cat([x, h], -1)))
        return g * h + (1 - g) * torch.tanh(self.input(x) + self.state(h))


class Net(nn.Module):
    def __init__(self, d, layers):
        super().__init__()
        self.cells, self.heads = nn.ModuleList(Cell(d) for _ in range(layers)), nn.ModuleList(nn.Linear(d, d) for _ in range(2))

    def forward(self, x):
        for cell in self.cells:
            h, states = torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                h = cell(x[:, t], h)
                states.append(h)
            x = torch.stack(states, 1)
        return self.heads[1](self.heads[0](x).relu())


def build(d=64, layers=2):
    return Net(d, layers)


def batch(device, n=4, time=6):
    return {"x": torch.empty(n, time, 64, device=device)}


def forward(model, b):
    return model(b["x"])


def loss(out, b):
    return out.float().square().mean()
