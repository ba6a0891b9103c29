"""What FSDP2 does at a module, done to an unsharded model, with a marker at each point.

`fully_shard` casts a module's inputs, puts an identity node on inputs that need a gradient, hooks the
gradients of outputs and queues one callback for the end of backward. All of that changes what lives how
long and in which order gradients are summed, so it has to be in the run that is traced. In a
recomputation FSDP2 does none of it: the module is then in its backward.
"""

import contextlib
import functools

import torch
from torch.autograd import Variable
from torch.distributed.fsdp._fully_shard._fsdp_common import _cast_fp_tensor
from torch.distributed.utils import _apply_to_tensors
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


class _Identity(torch.autograd.Function):
    """The node on a module's inputs: its backward runs when all their gradients are there."""

    @staticmethod
    def forward(ctx, hooks, module, *inputs):
        ctx.hooks, ctx.module = hooks, module
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        ctx.hooks.mark("post_backward", ctx.module)
        return (None, None) + gradients


class Hooks:
    """Markers of one run, in order. `mark(kind, module, extra)` writes one down where the run stands."""

    def __init__(self, mark, param_dtype=None, cast_inputs=True, output_dtype=None, calls=()):
        """`calls`: lists of modules of one call. FSDP2 acts at the inputs of the one that runs first and at the outputs of the one that
        runs last."""
        self.mark = mark
        self.cast_to = param_dtype if cast_inputs else None
        self.output_dtype = output_dtype
        self.in_backward = set()  # modules between their pre-backward and the end of the whole backward, as FSDP2's training state
        self.callback_queued = False
        self.watch = None  # of pitfalls, in the instrumented run
        self.unsharded = set()   # hooked modules that are called
        self._given = {}
        # module -> modules of its call, and those of them that have yet to run
        self._calls = {index: call for call in ((members, set()) for members in calls) for index in call[0]}

    def attach(self, module, index, with_node=True):
        module.register_forward_pre_hook(
            functools.partial(self._before, index, with_node), prepend=True, with_kwargs=True)
        module.register_forward_hook(functools.partial(self._after, index), always_call=True)

    @contextlib.contextmanager
    def shards(self, dtypes, below):
        """While this is open, a parameter of a hooked module that is neither called nor in its backward has the dtype of its
        shard, as under fully_shard. dtypes: those dtypes by id, of parameters that are cast; below: hooked module -> ids."""
        owner = {p: i for i in sorted(below, key=lambda i: -len(below[i])) for p in below[i]}   # the innermost comes last

        def dtype(parameter):
            i = owner.get(id(parameter))
            is_shard = i is not None and id(parameter) in dtypes and i not in self.unsharded and i not in self.in_backward
            return dtypes[id(parameter)] if is_shard else torch.Tensor.dtype.__get__(parameter)
        torch.nn.Parameter.dtype = property(dtype)
        try:
            yield
        finally:
            del torch.nn.Parameter.dtype

    def _is_first(self, index):
        members, waiting = self._calls.get(index, ((), ()))
        first = not waiting
        if members and first:
            waiting.update(members)
        return first

    def _is_last(self, index):
        _, waiting = self._calls.get(index, ((), set()))
        waiting.discard(index)
        return not waiting

    def _runs_again(self, index):
        """In a recomputation: the call's state is that of a backward."""
        return any(i in self.in_backward for i in self._calls.get(index, ((index,), ()))[0])

    def _before(self, index, with_node, module, args, kwargs):
        first = self._is_first(index)
        self.unsharded.update(self._calls.get(index, ((index,), ()))[0])
        if self._runs_again(index):
            self.mark("recompute", index, 0)
            return args, kwargs
        if not first:
            self.mark("pre_forward", index, 0)
            return args, kwargs
        if self.cast_to:
            cast = functools.partial(_cast_fp_tensor, self.cast_to)
            args, kwargs = _apply_to_tensors(cast, args), _apply_to_tensors(cast, kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if torch.is_tensor(x) and x.requires_grad]
        wanted = bool(places) and with_node and torch.is_grad_enabled()
        self.mark("pre_forward", index, int(wanted))
        if wanted:
            outputs = _Identity.apply(self, index, *[leaves[i] for i in places])
            for i, output in zip(places, outputs):
                leaves[i] = output
            args, kwargs = tree_unflatten(leaves, tree)
        if self.watch:
            self._given[index] = self.watch.containers(index, args, kwargs)
        return args, kwargs

    def _after(self, index, module, args, output):
        last = self._is_last(index)
        if last:
            self.unsharded.difference_update(self._calls.get(index, ((index,), ()))[0])
        if self._runs_again(index):
            self.mark("post_forward", index, -1)
            return output
        if not last:
            self.mark("post_forward", index, 0)
            return output
        if self.watch:
            self.watch.changed(index, self._given.pop(index, ()))
        hooked = []
        if torch.is_grad_enabled():
            hooked = [t for t in tree_leaves(output) if torch.is_tensor(t) and t.requires_grad]
        self.mark("post_forward", index, len(hooked))
        for number, tensor in enumerate(hooked):
            tensor.register_hook(functools.partial(self._before_backward, index, number))
        if self.output_dtype:   # the hooks are on what was there before
            output = _apply_to_tensors(functools.partial(_cast_fp_tensor, self.output_dtype), output)
        return output

    def _before_backward(self, index, number, gradient):
        self.in_backward.add(index)
        if not self.callback_queued:
            self.callback_queued = True
            Variable._execution_engine.queue_callback(self._end_of_backward)
        self.mark("pre_backward", index, number)
        return gradient

    def _end_of_backward(self):
        self.mark("final", -1, 0)
        self.in_backward.clear()
        for _, waiting in self._calls.values():   # of modules that did not run
            waiting.clear()
        self.callback_queued = False
