"""What torch.optim's SGD and AdamW do in a step, by variant and option: operations, new tensors, tensors that go.

    optimizer_steps.py > ../../golden-memory/optimizers.txt

PyTorch 2.11.0, on the CPU: which operations Python calls, and which variables hold a tensor, is the same on any device. A line
is a case and a step (the first makes states); then, in order: +B a new tensor of B bytes, -B one that goes, an operation with
the roles of its tensors (of lists: of their first): p parameter, g gradient, m, v, x states (x: amsgrad's), s step counters, t another. Two
parameters, 24 and 8 bytes; `empty`: two more, of nothing and of 8 bytes. What goes at once is sorted. Left out: counters on the CPU (foreach, loop), and AdamW's addition of
eps in the loop, which the engine has within the division before it.
"""
import itertools
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

STATES = {"momentum_buffer": "m", "exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "x", "step": "s"}
VARIANTS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}


class Recorder(TorchDispatchMode):
    def __init__(self, optimizer, params):
        super().__init__()
        self.optimizer, self.params, self.said, self.momentums = optimizer, params, [], set()

    def role(self, x):
        for p in self.params:
            if x is p or x.data_ptr() == p.data_ptr():
                return "p"
            if p.grad is not None and x.data_ptr() == p.grad.data_ptr():
                return "g"
            for name, state in self.optimizer.state.get(p, {}).items():
                if torch.is_tensor(state) and x.data_ptr() == state.data_ptr():
                    return STATES[name]
        return "s" if x.numel() == 1 else "m" if x.data_ptr() in self.momentums else "t"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        roles = []
        for a in args:
            first = a[0] if isinstance(a, (list, tuple)) and a else a
            if torch.is_tensor(first):
                roles.append(self.role(first))
        out = func(*args, **(kwargs or {}))
        if args and torch.is_tensor(args[0]) and args[0].numel() == 0:
            return out  # an operation on nothing
        name = func._schema.name.split("::")[1]
        if func.namespace != "aten" or name in ("detach", "_local_scalar_dense", "item", "lift_fresh"):
            return out
        fused = self.optimizer.param_groups[0]["fused"]
        if not name.endswith("_") and (kwargs or {}).get("out") is None:
            for t in out if isinstance(out, (list, tuple)) else [out]:
                if t.numel() == 0:
                    continue
                if t.numel() > 1 or fused:
                    self.said.append(f"+{4 * t.numel()}")
                    weakref.finalize(t, self.said.append, f"-{4 * t.numel()}")
                    if name in ("clone", "empty_like"):  # they stay
                        self.momentums.add(t.data_ptr())
                    if name.startswith("zeros"):
                        self.said.append("fill")
                elif name not in ("zeros", "tensor"):
                    return out
        if (name, roles) == ("add_", ["t"]):
            return out
        if not name.startswith(("zeros", "empty")) and (roles[:1] != ["s"] or fused):
            self.said.append(f"{name}({','.join(roles)})")
        return out


def line_of(said):
    out, gone = [], []
    for word in [*said, ""]:
        if word.startswith("-"):
            gone.append(word)
            continue
        out += sorted(gone, key=int) + [word]
        gone = []
    return " ".join(out[:-1])


def case(cls, options, empty):
    shapes = [(2, 3), (2,)] + [(0, 4), (2, 1)] * empty
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    optimizer = cls(params, lr=0.1, **options)
    lines = []
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        with Recorder(optimizer, params) as r:
            optimizer.step()
        lines.append(line_of(r.said))
    return lines


def cases():
    for variant, how in VARIANTS.items():
        for momentum, nesterov, decay, maximize in itertools.product((0, 1), repeat=4):
            if nesterov and not momentum:
                continue
            options = {"momentum": 0.9 * momentum, "nesterov": bool(nesterov), "weight_decay": 0.1 * decay, "maximize": bool(maximize)}
            words = ["momentum"] * momentum + ["nesterov"] * nesterov + ["decay"] * decay + ["maximize"] * maximize
            yield f"sgd {variant}", words, torch.optim.SGD, {**how, **options}
    for variant, how in VARIANTS.items():
        for amsgrad, maximize in itertools.product((0, 1), repeat=2):
            options = {"amsgrad": bool(amsgrad), "maximize": bool(maximize)}
            yield f"adamw {variant}", ["amsgrad"] * amsgrad + ["maximize"] * maximize, torch.optim.AdamW, {**how, **options}


for name, words, cls, options in cases():
    for empty in (False, True):
        for i, line in enumerate(case(cls, options, empty)):
            print(" ".join([name, *words] + ["empty"] * empty) + f" {i + 1}: {line}")
