"""What small tensors would hold on a real device.

The stand-in device has no values, but programs ask for some: are positions consecutive, how many tokens
go to this expert. Constants, indices and what follows from them are computed a second time on the CPU,
beside the traced run, and the host is given those values. Where a value depends on data (which experts
a router chooses) a stated distribution takes its place, and everything that follows from it is marked.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

LARGEST = 1 << 22  # elements of a tensor that has a shadow: masks of 2048 positions
FACTORIES = {"arange", "zeros", "ones", "full", "scalar_tensor", "eye", "linspace", "tril_indices",
             "triu_indices", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
CHOICES = {"topk": 1, "argmax": 0, "argmin": 0, "max.dim": 1, "min.dim": 1}  # where an operator returns the chosen indices


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


def place(tensor):
    """What a tensor is a view of. Autograd hands out what it saved as a new tensor of the same place."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(),
            tensor.dtype)


class _ByPlace:
    """Values of places in storages that live: a weak reference keeps a storage's address from being
    given to another, not its memory."""

    def __init__(self):
        self._entries = {}
        self._clean_at = 256

    def get(self, tensor):
        entry = self._entries.get(place(tensor))
        return None if entry is None or entry[0].expired() else entry[1]

    def __setitem__(self, tensor, value):
        if len(self._entries) >= self._clean_at:
            self.drop(lambda value: False)
            self._clean_at = 2 * len(self._entries) + 256
        self._entries[place(tensor)] = StorageWeakRef(tensor.untyped_storage()), value

    def drop(self, unwanted):
        """Forgets values that are unwanted or whose storage is gone."""
        self._entries = {k: e for k, e in self._entries.items()
                         if not e[0].expired() and not unwanted(e[1])}


class Shadows:
    def __init__(self, load_factor=1.0):
        self.load_factor = load_factor
        self._values = _ByPlace()

    def get(self, tensor):
        return tensor if tensor.device.type == "cpu" else self._values.get(tensor)

    def is_chosen(self, tensor):
        value = self._values.get(tensor)
        return getattr(value, "is_chosen", False)

    def set(self, tensor, value):
        if value is not None and not self._too_large(tensor):
            self._values[tensor] = value

    def follow(self, func, args, kwargs, output):
        """Called after an operator ran: computes its result beside it if everything is known."""
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        results = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_cuda]
        name = func.overloadpacket.__name__
        if not results or any(self._too_large(x) for x in results):
            self._forget(func, args, kwargs)
            return
        values = [self.get(x) for x in inputs]
        known = all(v is not None and v.device.type != "meta" for v in values)
        makes = name in FACTORIES
        if not (known and (inputs or makes)) and not makes:
            self._forget(func, args, kwargs)
            self._choose(func, args, kwargs, output)
            return
        if any(s in str(func) for s in ("rand", "dropout", "bernoulli", "multinomial", "empty")):
            return
        try:
            chosen = any(self.is_chosen(x) for x in inputs)
            host = self._on_host(func, args, kwargs)
        except Exception:   # no such operator on the CPU: the value stays unknown
            self._forget(func, args, kwargs)
            return
        for tensor, value in zip(results, [x for x in tree_leaves(host) if isinstance(x, torch.Tensor)]):
            self._values[tensor] = value
            if chosen:
                value.is_chosen = True   # it follows from the stated distribution

    def _too_large(self, tensor):
        """An expanded tensor is as large as what it repeats."""
        return min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size()) > LARGEST

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

    def _forget(self, func, args, kwargs):
        """A tensor that something unknown was written into is unknown, its views too."""
        if not func._schema.is_mutable:
            return
        written = [value for argument, value in [*zip(func._schema.arguments, args),
                                                 *((a, kwargs.get(a.name)) for a in func._schema.arguments)]
                   if argument.alias_info and argument.alias_info.is_write]
        values = [self._values.get(x) for x in tree_leaves(written) if isinstance(x, torch.Tensor)]
        lost = {v.untyped_storage().data_ptr() for v in values if v is not None}
        if lost:
            self._values.drop(lambda v: v.untyped_storage().data_ptr() in lost)

    def _choose(self, func, args, kwargs, output):
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name not in CHOICES or not args[0].is_floating_point() or args[0].dim() < 2:
            return
        indices = output if isinstance(output, torch.Tensor) else output[CHOICES[name]]
        k = indices.shape[-1] if name == "topk" else 1
        value = balanced(indices.numel() // k, k, args[0].shape[-1], self.load_factor)
        value = value.reshape(indices.shape).to(indices.dtype)
        self._values[indices] = value
        value.is_chosen = True
