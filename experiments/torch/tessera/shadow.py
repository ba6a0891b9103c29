"""What small tensors would hold on a real device.

The stand-in device has no values, but programs ask for some: are positions consecutive, how many tokens
go to this expert. Constants, indices and what follows from them are computed a second time on the CPU,
beside the traced run, and the host is given those values. Where a value depends on data (which experts
a router chooses) a stated distribution takes its place, and everything that follows from it is marked.
"""

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

LARGEST = 1 << 22        # elements of an integer tensor that has a shadow
LARGEST_FLOATS = 1 << 12
FACTORIES = {"arange", "zeros", "ones", "full", "scalar_tensor", "eye", "linspace", "tril_indices",
             "triu_indices", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
CHOICES = {"topk": 1, "argmax": 0, "max.dim": 1}  # where an operator returns the chosen indices


def balanced(rows, k, experts, load_factor):
    """Choices of `k` of the experts for each row; the first expert gets `load_factor` times the
    average, the others share the rest evenly. No expert is chosen twice in a row."""
    row = torch.arange(rows)
    if load_factor == 1 or experts <= k:
        return (row[:, None] * k + torch.arange(k)) % experts
    busy = min(rows, round(load_factor * rows * k / experts))
    slots = torch.full((rows,), k)
    slots[:busy] -= 1
    first = torch.cumsum(slots, 0) - slots
    rest = 1 + (first[:, None] + torch.arange(k)) % (experts - 1)
    rest[:busy, -1] = 0
    return rest


class Shadows:
    def __init__(self, load_factor=1.0):
        self.load_factor = load_factor
        self._values = WeakIdKeyDictionary()
        self._chosen = set()   # storages of shadows that follow from the stated distribution

    def get(self, tensor):
        return tensor if tensor.device.type == "cpu" else self._values.get(tensor)

    def is_chosen(self, tensor):
        value = self._values.get(tensor)
        return value is not None and value.untyped_storage().data_ptr() in self._chosen

    def follow(self, func, args, kwargs, output):
        """Called after an operator ran: computes its result beside it if everything is known."""
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        results = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_cuda]
        name = func.overloadpacket.__name__
        if not results or any(self._too_large(x) for x in results):
            self._forget(func, inputs)
            return
        values = [self.get(x) for x in inputs]
        known = all(v is not None and v.device.type != "meta" for v in values)
        makes = name in FACTORIES
        if not (known and (inputs or makes)) and not makes:
            self._forget(func, inputs)
            self._choose(func, args, kwargs, output)
            return
        if any(s in str(func) for s in ("rand", "dropout", "bernoulli", "multinomial", "empty")):
            return
        try:
            chosen = any(self.is_chosen(x) for x in inputs)
            host = self._on_host(func, args, kwargs)
        except Exception:   # no such operator on the CPU: the value stays unknown
            self._forget(func, inputs)
            return
        for tensor, value in zip(results, [x for x in tree_leaves(host) if isinstance(x, torch.Tensor)]):
            self._values[tensor] = value
            if chosen:
                self._chosen.add(value.untyped_storage().data_ptr())

    def _too_large(self, tensor):
        floating = tensor.is_floating_point() or tensor.is_complex()
        return tensor.numel() > (LARGEST_FLOATS if floating else LARGEST)

    def _on_host(self, func, args, kwargs):
        def host(x):
            if isinstance(x, torch.Tensor):
                value = self.get(x)
                return torch.empty_like(x, device="cpu") if value is None else value
            if isinstance(x, torch.device):
                return torch.device("cpu")
            return x
        args, kwargs = tree_map(host, (args, kwargs or {}))
        if "pin_memory" in kwargs:
            kwargs = dict(kwargs, pin_memory=None)
        result = func(*args, **kwargs)
        if not func._schema.is_mutable and func.overloadpacket.__name__ == "_to_copy":
            result = result.clone()   # a host tensor that the program may change later
        return result

    def _forget(self, func, inputs):
        """A tensor that something unknown was written into is unknown, its views too."""
        if not func._schema.is_mutable:
            return
        arguments = func._schema.arguments
        if not any(a.alias_info and a.alias_info.is_write for a in arguments):
            return
        lost = {self._values[x].untyped_storage().data_ptr() for x in inputs if x in self._values}
        for tensor in [t for t, v in self._values.items() if v.untyped_storage().data_ptr() in lost]:
            del self._values[tensor]

    def _choose(self, func, args, kwargs, output):
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name not in CHOICES or not args[0].is_floating_point() or args[0].dim() < 2:
            return
        indices = output if isinstance(output, torch.Tensor) else output[CHOICES[name]]
        k = indices.shape[-1] if name == "topk" else 1
        value = balanced(indices.numel() // k, k, args[0].shape[-1], self.load_factor)
        value = value.reshape(indices.shape).to(indices.dtype)
        self._values[indices] = value
        self._chosen.add(value.untyped_storage().data_ptr())
