"""The model of a trace: its tables, and the same model with parameters on the stand-in device."""

import torch
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from . import pitfalls
from .errors import Refused


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


class Tables:
    """Modules in the order of `named_modules`, parameters in that of `named_parameters`; a shared one
    is listed once, under its first name. Taken before anything is wrapped or moved."""

    def __init__(self, model):
        self.names = [name for name, _ in model.named_modules()]
        self.instances = [module for _, module in model.named_modules()]
        self._inside = {}
        self.number = {name: i for i, name in enumerate(self.names)}
        index = {id(module): i for i, module in enumerate(self.instances)}
        self.parameter_names = [name for name, _ in model.named_parameters()]
        parameter = {id(p): i for i, (_, p) in enumerate(model.named_parameters())}
        self.params = [[name, list(p.shape), dtype_name(p.dtype), p.requires_grad]
                       for name, p in model.named_parameters()]
        self.modules = [
            [name, type(module).__name__,
             [[attr, parameter[id(p)]] for attr, p in module._parameters.items() if p is not None],
             [[attr, list(b.shape), dtype_name(b.dtype), attr not in module._non_persistent_buffers_set]
              for attr, b in module._buffers.items() if b is not None],
             [[attr, index[id(child)]] for attr, child in module._modules.items() if child is not None]]
            for name, module in zip(self.names, self.instances)]

    def content(self):
        return {"modules": self.modules, "params": self.params}

    def inside(self, i):
        """A module and all inside it."""
        if i not in self._inside:
            self._inside[i] = {i}.union(*(self.inside(child) for _, child in self.modules[i][4]))
        return self._inside[i]

    def below(self, i):
        """Parameters of a module and of all inside it."""
        return {p for m in self.inside(i) for _, p in self.modules[m][2]}


def blocks(tables):
    """The repeated parts: members of the outermost lists that hold two or more of one class. Members that are never
    called, as they have no forward (`stages.*` that are lists, or plain modules that hold others), give way to their own."""
    found = []

    def walk(i):
        children = [child for _, child in tables.modules[i][4]]
        is_list = isinstance(tables.instances[i], (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        classes = [tables.modules[child][1] for child in children]
        repeated = [child for child in children
                    if classes.count(tables.modules[child][1]) > 1
                    and tables.modules[child][4] and tables.below(child)
                    and pitfalls.has_forward(tables.instances[child])]
        for child in children:
            if is_list and child in repeated:
                if child not in found:
                    found.append(child)
            else:
                walk(child)
    walk(0)
    return sorted(found)


def selective_policy():
    """Keeps attention's results and every second matrix product, recomputes the rest."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    products = {aten.mm.default, aten.addmm.default}
    kept = {aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default}

    def contexts():
        seen = {False: 0, True: 0}

        def policy(ctx, func, *args, **kwargs):
            if func in products:
                seen[ctx.is_recompute] += 1
                keep = seen[ctx.is_recompute] % 2 == 1
            else:
                keep = func in kept
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
        return create_selective_checkpoint_contexts(policy)
    return contexts


def checkpointed(kind, candidates):
    """Which of the candidates a kind of checkpointing wraps."""
    return candidates[::2] if kind == "every2" else [] if kind == "none" else list(candidates)


def put_checkpoints(model, tables, chosen, kind):
    """Puts wrappers in, as written code does before sharding. Returns the module to hook per number."""
    instances = list(tables.instances)
    for i in chosen:
        wrapper = checkpoint_wrapper(tables.instances[i],
                                     **({"context_fn": selective_policy()} if kind == "selective" else {}))
        for parent in tables.instances:
            for attr, child in parent._modules.items():
                if child is tables.instances[i]:
                    parent._modules[attr] = wrapper
        if i == 0:
            raise Refused("the model itself cannot be checkpointed: name its blocks with --blocks")
        instances[i] = wrapper
    return instances


def materialise(model, param_dtype, device="cuda"):
    """Parameters (each once, in the dtype they are computed in) and buffers on the device, no values."""
    new = {}
    for module in model.modules():
        for attr, p in module._parameters.items():
            if p is None:
                continue
            if id(p) not in new:
                dtype = param_dtype if param_dtype and p.is_floating_point() else p.dtype
                data = torch.empty_like(p, device=device, dtype=dtype)
                new[id(p)] = p, nn.Parameter(data, requires_grad=p.requires_grad)
            module._parameters[attr] = new[id(p)][1]
        for attr, b in module._buffers.items():
            if b is not None:
                module._buffers[attr] = torch.empty_like(b, device=device)
