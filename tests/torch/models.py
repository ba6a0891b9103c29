"""Small models for the tests: each function makes (model, batch, loss function)."""

import os
import random
import signal

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH = 64


class Block(nn.Module):
    """A perceptron block; `kind` is what it does wrong."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, seen=None):
        if self.kind == "in_place":
            x.mul_(2)
        if self.kind == "mutated_list":
            seen.append(x.mean())
        if self.kind == "child_weight":
            return F.linear(F.relu(self.up(x)), self.down.weight)
        if self.kind == "scaled":
            x = _Scaled.apply(x, self.up.weight)
        return x + self.down(F.relu(self.up(x)))

    def other(self, x):
        return x + self.down(F.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, kind, layers):
        super().__init__()
        self.kind = kind
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(layers))
        if kind == "scalar":
            self.temperature = nn.Parameter(torch.tensor(1.0))
        if kind == "tie":
            self.head.weight = self.blocks[0].down.weight

    def forward(self, x):
        x, seen = self.first(x), []
        if self.kind == "asks_dtype":
            x = x.to(self.blocks[0].up.weight.dtype)
        for block in self.blocks:
            if self.kind == "mutated_list":
                x = block(x, seen)
                x = x * seen[-1]
            else:
                x = block.other(x) if self.kind == "other_method" else block(x)
        return self.head(torch.cat([x, x], -1))


def loss(output, batch):
    return output.float().pow(2).mean()


def net(kind, layers=3):
    return Net(kind, layers), {"x": torch.empty(8, WIDTH)}, loss


def ok(batch=8, seq=1):
    return Net("ok", 3), {"x": torch.empty(batch, seq, WIDTH)}, loss


def deep():
    return net("ok", 6)


class Outputs(nn.Module):
    """Several outputs, one of them without a gradient, of more bytes than one of PyTorch's small blocks, and buffers of three
    dtypes; one parameter is frozen, and the parameters are more than a buffer of a broadcast holds."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block("ok") for _ in range(2))
        self.norm, self.head, self.table = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 8192), nn.Linear(8192, 8192)
        self.register_buffer("scale", torch.ones(600_000))
        self.register_buffer("mask", torch.ones(8192, dtype=torch.bool))
        self.blocks[0].up.weight.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return {"loss": (x * self.mask).pow(2).mean() + self.table(x[:8]).mean(), "logits": x, "seen": x.detach(), "text": "as it is"}


def outputs(batch=128):
    return Outputs(), {"x": torch.empty(batch, WIDTH)}, None


class Keeps(nn.Module):
    """Keeps a tensor from step to step; its first step allocates otherwise."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block("ok") for _ in range(3))
        self.kept = [None] * 3

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = block(x) if self.kept[i] is None else block(x) + self.kept[i].mean(0)
            self.kept[i] = x.detach().clone()
        return x


def keeps():
    return Keeps(), {"x": torch.empty(80, WIDTH)}, loss


class Counts(nn.Module):
    """Reads values of the device in a list of tensors, which no operator shows."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, lengths):
        most = torch.tensor([row.max() + 1 for row in lengths], device=x.device)
        return self.first(x[:int(most[1])])


def counts():
    return Counts(), {"x": torch.empty(8, WIDTH), "lengths": torch.tensor([[1, 3], [2, 5]], device="cpu")}, loss


def counts_data():
    return Counts(), {"x": torch.empty(8, WIDTH), "lengths": torch.empty(2, 2)}, loss


class Attends(nn.Module):
    """Attention beside the blocks, which takes another path where key and value are one tensor."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block("ok") for _ in range(3))
        self.pool = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.pool(x[:, :1], x, x)[0]


class Pair(nn.Module):
    """A block that is given the same tensor twice, and asks whether it is."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        return self.down(self.up(x)) + (x if x is y else self.up(y) + y)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Pair() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, x)
        return x


class Shared(nn.Module):
    """One block in three places of a list; the last one is an attribute, too."""

    def __init__(self):
        super().__init__()
        block = Block("ok")
        self.blocks = nn.ModuleList([block, block, block, Block("ok"), Block("ok")])
        self.last = self.blocks[4]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Chance(nn.Module):
    """Leaves out a block where a number that the host draws is small; with `least` 0 it never is."""

    def __init__(self, draw, least):
        super().__init__()
        self.blocks = nn.ModuleList(Block("ok") for _ in range(6))
        self.chooser, self.first = Chooser(draw, least), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if self.chooser(x) else x
        return x


class Chooser(nn.Module):
    def __init__(self, draw, least):
        super().__init__()
        self.draw, self.least = draw, least

    def forward(self, x):
        return self.draw() >= self.least


def chance_of_python():
    return Chance(random.random, 0.5), {"x": torch.empty(8, WIDTH)}, loss


def chance_of_numpy():
    return Chance(numpy.random.rand, 0.5), {"x": torch.empty(8, WIDTH)}, loss


def chance_of_torch():
    return Chance(lambda: torch.rand([], device="cpu"), 0.5), {"x": torch.empty(8, WIDTH)}, loss


def no_chance():
    return Chance(lambda: random.random() + torch.rand([], device="cpu"), 0.0), {"x": torch.empty(8, WIDTH)}, loss


def shared():
    return Shared(), {"x": torch.empty(8, WIDTH)}, loss


def attends():
    return Attends(), {"x": torch.empty(4, 8, WIDTH)}, loss


def pairs():
    return Pairs(), {"x": torch.empty(8, WIDTH)}, loss


def deeper():
    return net("ok", 10)


def scalar():
    return net("scalar")


def in_place():
    return net("in_place")


def mutated_list():
    return net("mutated_list")


def child_weight():
    return net("child_weight")


def asks_dtype():
    """Casts its input to the dtype of a block's weight, which is that of a shard: the real run has fp32 there."""
    return net("asks_dtype")


class _Scaled(torch.autograd.Function):
    """Reads the dtype of a saved weight in its backward, as fused kernels do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight[:1, :x.shape[-1]]

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        scaled = torch.zeros_like(weight)
        scaled[:1, :x.shape[-1]] = (gradient * x).sum(0).to(weight.dtype)
        return (gradient * weight[:1, :x.shape[-1]]).to(weight.dtype), scaled


def asks_dtype_in_backward():
    return net("scaled")


def other_method():
    return net("other_method")


def tie():
    return net("tie")


def compiled():
    model, batch, measure = net("ok")
    model.first = torch.compile(model.first)
    return model, batch, measure


def frozen():
    model, batch, measure = net("ok")
    return model.requires_grad_(False), batch, measure


def no_scalar_loss():
    return Net("ok", 2), {"x": torch.empty(8, WIDTH)}, lambda output, batch: output


class Asks(nn.Module):
    """Goes one way or the other by what the device says; `of` is what it asks about."""

    def __init__(self, of):
        super().__init__()
        self.of = of
        self.embed, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x = self.embed(ids)
        steps = torch.arange(ids.shape[1], device=ids.device)
        known = ((steps[1:] - steps[:-1]) == 1).all()
        if known if self.of == "positions" else (x.sum() > 0):
            x = x + torch.zeros_like(x)
        return self.head(x)


def ids(batch=2, seq=16):
    return torch.zeros(batch, seq, dtype=torch.int64)


def entropy(output, batch):
    return F.cross_entropy(output.flatten(0, 1).float(), batch["ids"].flatten())


def asks_positions():
    return Asks("positions"), {"ids": ids()}, entropy


def asks_data():
    return Asks("data"), {"ids": ids()}, entropy


class Values(nn.Module):
    """Sizes and choices that follow from the batch's integers, asked for by several operators."""

    def __init__(self, of):
        super().__init__()
        self.of = of
        self.embed, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x = self.embed(ids)
        marked = ids == 7
        if self.of == "filled":     # runs as masked_fill, which counts nothing
            x = x.clone()
            x[marked] = 0.0
        elif self.of == "scattered":
            x = x.masked_scatter(marked[..., None].expand_as(x), self.embed(ids + 1))
        elif self.of == "repeated":
            x = torch.repeat_interleave(x[0], ids[0] % 3, dim=0)[None, :ids.shape[1]]
        elif self.of == "product":   # a kernel that PyTorch compiles at run time
            x = x[:, :int(ids[:, 1:3].prod(-1).sum())]
        elif self.of == "mask":
            if torch.where(ids[:, :, None] > ids[:, None], 0.0, 1.0).any():
                x = x + 1
        elif self.of == "unique":
            x = x[:, :torch.unique_consecutive(marked.sum(1)).shape[0]]
        return self.head(x)


def values(of, batch=2, seq=16):
    with torch.device("cpu"):
        ids = torch.arange(batch * seq).reshape(batch, seq) % 8
    return Values(of), {"ids": ids}, loss


def filled():
    return values("filled")


def scattered():
    """The mask is larger than what has values beside the run, what it repeats is not."""
    return values("scattered", seq=65536)


def repeated():
    return values("repeated")


def product():
    return values("product")


def unique():
    return values("unique")


def mask():
    """Attention's mask over 1024 positions, in floats."""
    return values("mask", seq=1024)


class Stages(nn.Module):
    """Lists of lists, which are never called."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.stages = nn.ModuleList(nn.ModuleList(Block("ok") for _ in range(2)) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return x


def stages():
    return Stages(), {"x": torch.empty(8, WIDTH)}, loss


class Levels(nn.Module):
    """Modules that only hold others, as image tokenizers have them, and codes of a codebook that the host reads."""

    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList()
        for _ in range(2):
            level = nn.Module()
            level.block = nn.ModuleList(Block("ok") for _ in range(2))
            self.levels.append(level)
        self.codes = nn.Embedding(16, WIDTH)

    def forward(self, x):
        for level in self.levels:
            for block in level.block:
                x = block(x)
        nearest = (x[:, None] - self.codes.weight).pow(2).sum(-1).argmin(-1)
        return x + self.codes(nearest.cpu().to(x.device))


def levels():
    return Levels(), {"x": torch.empty(8, WIDTH)}, loss


class Replaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.inner.register_buffer("table", torch.zeros(1))

    def forward(self, x):
        if self.inner.table.numel() == 1:
            self.inner.table = torch.zeros(WIDTH, device=x.device)
        return self.inner(x) + self.inner.table


def replaces():
    return Replaces(), {"x": torch.empty(8, WIDTH)}, loss


class Collect(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, seen):
        seen.append(self.down(x))


class Collects(nn.Module):
    """A module beside the blocks appends to a list that it is given."""

    def __init__(self):
        super().__init__()
        self.blocks, self.collect = nn.ModuleList(Block("ok") for _ in range(2)), Collect()

    def forward(self, x):
        seen = []
        for block in self.blocks:
            x = block(x)
            self.collect(x, seen)
        return torch.cat(seen, -1)


def collects():
    return Collects(), {"x": torch.empty(8, WIDTH)}, loss


class Fails(nn.Module):
    """Attention reads its output's weight itself, which is no reason for the mistake that follows."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4)

    def forward(self, x):
        x = self.attention(x, x, x)[0]
        raise ValueError("a mistake of its own")


def fails():
    return Fails(), {"x": torch.empty(8, WIDTH)}, loss


class Experts(nn.Module):
    """Each expert takes the tokens that the router gives it: shapes depend on data."""

    def __init__(self, experts=4, k=2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))

    def forward(self, x):
        weights, chosen = torch.topk(self.router(x).softmax(-1), self.k)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == i)
            y = y.index_add(0, row, expert(x[row]) * weights[row, slot, None])
        return y


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.moe = nn.Linear(WIDTH, WIDTH), Experts()

    def forward(self, x):
        return self.moe(self.first(x))


def mixture():
    return Mixture(), {"x": torch.empty(64, WIDTH)}, loss


def pair():
    """As most loops have it: what the model takes, and the label, which only the loss takes."""
    batch = torch.empty(8, WIDTH), torch.zeros(8, dtype=torch.int64)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)), batch, \
        lambda output, batch: F.cross_entropy(output.float(), batch[1])


class Masked(nn.Module):
    """Takes a mask where a batch of (input, label) has the label."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x, mask=None):
        return self.head(x if mask is None else x * mask)


def pair_beside_mask():
    return Masked(), *pair()[1:]


def masked():
    """The model computes its loss: nothing of the batch is a label."""
    model, batch = Masked(), (torch.empty(8, WIDTH), torch.empty(8, WIDTH))
    model.register_forward_hook(lambda module, args, output: {"loss": output.mean()})
    return model, batch, None


def low_precision():
    model, batch, measure = net("ok")
    return model.to(torch.bfloat16), batch, measure


class Apply(nn.Module):
    """A layer, then a function inside a module of its own."""

    class Inner(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    def __init__(self, function):
        super().__init__()
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), self.Inner(function)

    def forward(self, x):
        return self.inner(self.first(x).float())


def applied(function, batch=2, size=WIDTH):
    return Apply(function), {"x": torch.empty(batch, size, WIDTH)}, lambda output, batch: output.abs().float().mean()


def solve(x):
    return torch.linalg.solve_triangular((x @ x.transpose(1, 2)).tril(), x, upper=False)


def triangular():
    return applied(solve)


def triangular_batched():
    return applied(solve, batch=16)


def triangular_large():
    return applied(solve, batch=16, size=600)


def grid():
    return applied(lambda x: F.grid_sample(x[:, None], x.new_zeros(2, 8, 8, 2), align_corners=True))


def fourier():
    return applied(torch.fft.rfft)


def orthogonal():
    return applied(lambda x: torch.linalg.qr(x)[0])


def factored():
    return applied(lambda x: torch.linalg.cholesky(x @ x.transpose(1, 2)))


def inverse():
    return applied(torch.linalg.inv)


def connectionist():
    return applied(lambda x: F.ctc_loss(x.transpose(0, 1).log_softmax(-1), torch.ones(6, dtype=torch.int32),
                                        (WIDTH, WIDTH), (3, 3)))


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.first(x)).relu()


def normalized():
    """Weights in bf16 beside statistics in fp32: the forward pass works."""
    return Normalized(), {"x": torch.empty(8, 3, 8, 8)}, loss


def bessel():
    return applied(lambda x: x * torch.special.bessel_j0(x))


@torch.library.custom_op("tests::dies", mutates_args=())
def dies_op(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x.clone()


def dies():
    return applied(lambda x: x + dies_op(x.detach()))


def leaves():
    return applied(lambda x: os._exit(3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.memory(x)[0]


def recurrent():
    return Recurrent(), {"x": torch.empty(2, 8, WIDTH)}, loss
