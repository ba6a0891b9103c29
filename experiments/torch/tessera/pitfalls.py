"""What FSDP2 refuses or silently does wrong, found in the model or in its unsharded run.

Some pitfalls hold for any strategy and end the trace. Others hold for wrapping one module: these are
collected as {module: reason}; the trace carries them, and a strategy that wraps the module is refused.
"""

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from .errors import Refused


def check_model(tables):
    """Models that no strategy can shard, or that a trace cannot hold."""
    for name, module in zip(tables.names, tables.instances):
        where = name or "the model"
        if type(module).__module__.startswith("torch._dynamo"):
            raise Refused(f"{where}: is compiled: torch.compile is not supported, trace the module itself")
        if hasattr(module, "_get_fsdp_state") or type(module).__name__ in ("FullyShardedDataParallel",
                                                                           "DistributedDataParallel"):
            raise Refused(f"{where}: is sharded already: make() returns the plain module")
        if isinstance(module, torch.nn.RNNBase):
            raise Refused(f"{where}: {type(module).__name__} runs cuDNN's recurrent kernels, which need a "
                          "GPU: not supported")
        for attr, p in module._parameters.items():
            if p is None:
                continue
            if isinstance(p, DTensor):
                raise Refused(f"{where}: parameter {attr} is a DTensor: tensor parallelism is not traced")
            if p.dim() == 0:
                raise Refused(f"{where}: parameter {attr} is a scalar: fully_shard refuses it, make it "
                              f"one-dimensional: nn.Parameter(torch.empty(1))")
    if not any(p.requires_grad for p in tables.instances[0].parameters()):
        raise Refused("the model: no parameter needs a gradient")


def check_batch(tensors):
    for name, tensor in tensors:
        if tensor.is_nested or tensor.layout != torch.strided:
            raise Refused(f"batch: {name} is nested or sparse: not supported")


def ties(tables):
    """Modules that have a parameter which another module outside them has too: wrapped, FSDP2 makes it
    two parameters. A module that is used in two places is still one and causes nothing."""
    holders = {}
    for i, (_, _, parameters, _, _) in enumerate(tables.modules):
        for _, p in parameters:
            holders.setdefault(p, []).append(i)
    found = {}
    for p, modules in holders.items():
        if len(modules) < 2:
            continue
        for i in range(1, len(tables.modules)):
            inside = [m for m in modules if m in tables.inside(i)]
            if inside and len(inside) < len(modules):
                other = next(m for m in modules if m not in inside)
                found.setdefault(i, f"shares {tables.parameter_names[p]} with {tables.names[other]}: "
                                    "wrapped apart, fully_shard unties them; keep both in one group")
    return found


def has_forward(module):
    return getattr(type(module), "forward", None) is not torch.nn.Module.forward


def without_forward(tables):
    """Lists of modules: nobody calls them, so there is nothing to hook."""
    return {i: "has no forward: fully_shard refuses it, wrap its members"
            for i in range(1, len(tables.modules))
            if not has_forward(tables.instances[i]) and tables.below(i)}


class Watch:
    """Looks on in the instrumented run. `running()` is the stack of modules whose forward runs."""

    def __init__(self, tables, stack):
        self.tables, self.stack = tables, stack
        self.found, self.copied = {}, set()   # copied: modules that change a list or dictionary
        self.owners = {}    # parameter -> modules around it, without the model itself
        for i in range(1, len(tables.modules)):
            for p in tables.below(i) if has_forward(tables.instances[i]) else ():
                self.owners.setdefault(p, []).append(i)

    def reads(self, parameters, operator):
        """An operator of a forward read these parameters."""
        reader = self.stack[-1] if self.stack else 0
        for p in parameters:
            holds = any(p == q for _, q in self.tables.modules[reader][2])
            for i in self.owners.get(p, ()):
                if holds and reader not in self.tables.inside(i):
                    continue   # tied: `ties` finds it
                if i not in self.stack and i not in self.found:
                    user = self.tables.names[reader] or "the model"
                    self.found[i] = (
                        f"its parameter {self.tables.parameter_names[p]} is used by {user} "
                        f"({operator}) while it is not called: wrap the module around it, or call "
                        "register_fsdp_forward_method if a method other than forward does it")

    def containers(self, i, args, kwargs):
        """What a hooked module was given as lists and dictionaries: `changed` compares it afterwards."""
        return [(x, len(x)) for x in lists((args, kwargs))]

    def changed(self, i, before):
        if any(len(x) != n for x, n in before):
            self.copied.add(i)
            self.found.setdefault(i, "changes a list or dictionary that it is given: fully_shard passes a "
                                     "copy, so its caller sees nothing; return it instead")

    def uncast(self, i, args, kwargs, target):
        """Tensors inside objects that the input cast does not look into."""
        for x in tree_leaves((args, kwargs)):
            if not isinstance(x, torch.Tensor) and hasattr(x, "__dict__") and not isinstance(x, type):
                inner = [t for t in vars(x).values() if torch.is_tensor(t) and t.is_floating_point()]
                if any(t.dtype != target for t in inner):
                    return f"{self.tables.names[i] or 'the model'}: {type(x).__name__} is passed without " \
                           "the cast of the mixed precision policy: its tensors keep their dtype"
        return None


def lists(value):
    """The mutable containers in arguments, the innermost too."""
    found, open_ = [], [value]
    while open_:
        x = open_.pop()
        if isinstance(x, (list, dict)):
            found.append(x)
        if isinstance(x, (list, tuple)):
            open_ += x
        elif isinstance(x, dict):
            open_ += x.values()
    return [x for x in found if x is not value]


def in_place(error, stack):
    """The modules in which an operator wrote into an input, if that is what failed."""
    text = str(error)
    return list(stack) if "modified inplace" in text and "_Identity" in text else []
