"""One traced run: two iterations of the unsharded model on the stand-in device.

Memory is traced without a dispatch mode, because PyTorch sums gradients in place only where nothing
looks on; operators are traced in a second run with one. Each runs in a process of its own, so that
lazily made workspaces and buffers appear in iteration 0 as they would in a job.
"""

import bisect
import contextlib
import functools
import gc
import random
import sys

import torch
import torch.nn as nn
import torch._dynamo  # imported late, inside a forward, it keeps frames and their tensors alive
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from . import device, model, pitfalls
from .errors import Refused
from .hooks import Hooks
from .operators import Operators
from .shadow import Shadows

ITERATIONS = 2


class Running:
    """Which modules' forwards run, also in a recomputation; kept in the instrumented run only."""

    def __init__(self, tables):
        self.numbers = {id(m): i for i, m in enumerate(tables.instances)
                        if not isinstance(m, CheckpointWrapper)}
        self.names, self.stack, self.changes, self.failed_in = tables.names, [], [], []
        self.nodes = [(0, 0)]   # sequence numbers of autograd, and the module whose forward makes nodes from there on
        self.failed_behind = None   # the module whose backward failed
        self.backward, self.drew, self.host = False, set(), drawn()
        nn.modules.module.register_module_forward_pre_hook(self._enter)
        nn.modules.module.register_module_forward_hook(self._leave, always_call=True)

    def __call__(self):
        return self.stack[-1] if self.stack else 0

    def name(self):
        return self.names[self()] or "the model"

    def in_forward(self):
        return not self.backward   # a recomputation calls the block alone

    def note_failure(self):
        """Notes which module's forward made the node of autograd whose backward failed."""
        node = torch._C._current_autograd_node()
        if node and not self.stack:
            self.failed_behind = self.nodes[bisect.bisect_right(self.nodes, (node._sequence_nr(), len(self.names))) - 1][1]

    def failed(self):
        """Where the run ended, in words."""
        if self.failed_in or self.failed_behind is None:
            return self.names[self.failed_in[-1] if self.failed_in else 0] or "the model"
        return f"{self.names[self.failed_behind] or 'the model'}, backward"

    def note_nodes(self):
        if not self.backward:
            self.nodes.append((torch._C._autograd._get_sequence_nr(), self()))

    def note_draws(self):
        """Blames the innermost module that runs for random numbers that were drawn on the host since the last call."""
        now = drawn()
        if self.stack and now != self.host:
            self.drew.add(self())
        self.host = now

    def _enter(self, module, args):
        if id(module) in self.numbers:
            self.note_draws()
            self.stack.append(self.numbers[id(module)])
            self.note_nodes()
            self.changes.append((device.position(), bool(self.stack)))

    def _leave(self, module, args, output):
        if id(module) in self.numbers:
            if sys.exc_info()[0] and not self.failed_in:
                self.failed_in = list(self.stack)   # hooks run as the error goes up
            self.note_draws()
            self.stack.pop()
            self.note_nodes()
            self.changes.append((device.position(), bool(self.stack)))


class GivenReads:
    """Values for reads that no shadow knows: by module and operator from the person who traces. With
    `boolean` set (recorded scenarios), any unknown Boolean is that and everything else is zero."""

    def __init__(self, values, names, boolean=None):
        self.values, self.names, self.boolean = values, names, boolean
        self.zeros = boolean is not None

    def __call__(self, module, operator, is_boolean):
        value = self.values.get(f"{self.names[module] or 'the model'}:{operator}")
        if value is None and is_boolean and self.zeros:
            value = int(self.boolean)
        return None if value is None else int(value).to_bytes(8, "little", signed=True)


def run(source, choice, instrumented, hooked=None, answers=(), number=0):
    """`choice` is one of the source's variants; `number` seeds what is drawn on the host. Returns what happened, as
    plain data."""
    if not torch.cuda.is_available():
        raise Refused("this torch was built without CUDA, or the stand-in device is not loaded")
    torch.set_num_threads(1)
    sdpa(source.sdpa)
    torch.cuda.init()
    there = device.Device()
    seed(0)
    there_before = set(sys.modules)
    job = source.prepare(choice)
    loaded = [name for name in list(sys.modules) if name not in there_before]
    tables = job.tables
    pitfalls.check_model(tables)
    hooked = job.hooked if hooked is None else hooked
    instances = model.put_checkpoints(job.model, tables, job.checkpointed, choice.checkpoint)
    shells = instances[0]
    made_as = [p.dtype for _, p in shells.named_parameters()]   # the dtype of shards
    model.materialise(shells, source.param_dtype)
    held = {t.untyped_storage().data_ptr(): name for name, t in [*shells.named_parameters(), *shells.named_buffers()]}
    log = []

    def mark(kind, index=-1, extra=0):
        log.append((device.position(), kind, index, extra))

    hooks = Hooks(mark, source.param_dtype, source.cast_inputs, source.output_dtype, job.groups)
    inside = set().union(*(tables.below(i) for i in hooked if i))
    for i in hooked:
        hooks.attach(instances[i], i, with_node=i != 0 or bool(tables.below(0) - inside))
    parameters = [p for _, p in shells.named_parameters()]
    shards = hooks.shards({id(p): dtype for p, dtype in zip(parameters, made_as) if p.dtype != dtype},
                          {i: [id(parameters[p]) for p in tables.below(i)] for i in hooked if i})
    for i, p in enumerate(parameters):
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda q, i=i: mark("grad", i, q.grad.untyped_storage().data_ptr()))
    mode, running = contextlib.nullcontext(), None
    if instrumented:
        running = Running(tables)
        hooks.watch = pitfalls.Watch(tables, running.stack)
        watch_casts(hooks, instances, source)
        where = {p.untyped_storage().data_ptr(): i for i, p in enumerate(parameters)}
        given = GivenReads(source.readbacks, tables.names, source.read_bool)
        mode = Operators(log, there, Shadows(source.load_factor), where, running, given, hooks.watch)
    for value in answers:
        there.answer(value)
    if number:
        seed(number)
    base = device.start_recording()
    gc.collect()
    gc.disable()
    facts = {}
    try:
        with mode, shards, mode.watch_lists() if instrumented else mode:
            for i in range(ITERATIONS):
                clones = source.ddp == "find_unused" or (source.ddp == "static_graph" and i == 0)
                iteration(source, job, shells, mark, facts, running, cloned if clones else lambda output: output)
    except Exception as error:
        if not instrumented or isinstance(error, Refused):
            raise
        about = {"names": tables.names, "loaded": loaded, "kept": sorted(job.kept), "hooked": sorted(hooked)}
        modules = pitfalls.in_place(error, running.failed_in)
        if modules:
            return {"written": modules, **about}
        copied = hooks.watch.copied & set(hooked)   # the hooks pass copies: most likely why it failed
        if copied:
            return {"copied": {i: hooks.watch.found[i] for i in copied}, **about}
        raise Refused(f"{running.failed()}: {type(error).__name__}: {first_line(error)}") from error
    mark("stop")
    history = device.recorded()
    if not instrumented and (there.waiting() or there.unanswered()):
        raise Refused("the two runs of the model read different values from the device: it is not "
                      "deterministic")
    result = {"tables": tables.content(), "names": tables.names, "hooked": sorted(hooked), "base": base,
              "kept": sorted(job.kept), "groups": job.groups, "blocks": job.blocks, "checkpointed": sorted(job.checkpointed),
              "train": shells.training, "class": type(job.model).__name__, "log": log,
              "history": history, "held": held, "reads": [], "routed": False, "running": [], **facts}
    if instrumented:
        result |= {"casts": sorted([i, *what] for i, what in hooks.casts.items()), "reads": mode.reads,
                   "routed": mode.routed, "running": running.changes, "notes": sorted({*hooks.notes, *job.notes}),
                   "drew": sorted(running.drew), "loaded": loaded,
                   "cannot": {**hooks.watch.found, **ties(source, job), **pitfalls.without_forward(tables)}}
    return result


def ties(source, job):
    """Those of modules that are not asked for: a strategy that wraps the others apart is refused where it does so."""
    return {i: reason for i, reason in pitfalls.ties(job.tables).items() if not (source.wrap and i in job.kept)}


def seed(number):
    """What a model draws on the host (layers that are dropped, masks) is the same in every run with this number."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def drawn():
    """The states of the generators of Python and numpy; that of torch is watched where its operators run."""
    numpy = sys.modules.get("numpy")
    _, words, place, *_ = numpy.random.get_state() if numpy else (0, b"", 0)
    return random.getstate(), bytes(words), place


class _Clones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *leaves):
        ctx.set_materialize_grads(False)
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in leaves)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def cloned(output):
    """The model's outputs behind the node that DDP puts there (_DDPSink), which clones them; what needs no gradient is
    cloned, too, and its clone is dropped."""
    leaves, tree = tree_flatten(output)
    clones = _Clones.apply(*leaves)
    return tree_unflatten([x if isinstance(x, torch.Tensor) and x.grad_fn is None else clone
                           for x, clone in zip(leaves, clones)], tree)


def iteration(source, job, shells, mark, facts, running, behind):
    cast = contextlib.nullcontext
    if source.autocast:
        def cast():
            return torch.autocast("cuda", source.autocast)
    if running:
        running.backward = False
    mark("inputs")
    data = job.batch()
    facts.update(describe(data))
    mark("zero_grad")
    for p in shells.parameters():
        p.grad = None
    mark("forward")
    with cast():
        output = behind(job.forward(shells, data))
    mark("loss")
    with cast():
        loss = job.loss(output, data)
    del output
    mark("backward")
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
        raise Refused(f"the loss is {summary(loss)}: it must be one number that needs a gradient")
    if running:
        running.backward = True
    loss.backward()
    del loss
    mark("optimizer")
    mark("end")
    del data


def first_line(error):
    return (str(error).strip().splitlines() or [""])[0]


def summary(value):
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {list(value.shape)}" + ("" if value.requires_grad else " without a gradient")


def sdpa(kind):
    """Attention's backends down to the one named; cuDNN's needs a real cuDNN."""
    backends = torch.backends.cuda
    backends.enable_cudnn_sdp(False)
    backends.enable_flash_sdp(kind == "flash")
    backends.enable_mem_efficient_sdp(kind != "math")


def describe(data):
    """Inputs of a micro-batch by name, and what throughput counts: elements of labels or ids."""
    found = named_tensors("", data)
    if not found:
        raise Refused("the batch has no tensor")
    pitfalls.check_batch(found)
    ids = [(n, t) for n, t in found if not t.is_floating_point() and t.dtype != torch.bool and t.dim() == 2]
    labels = [t for n, t in ids if n.rpartition(".")[2] in ("labels", "targets")]
    counted = next(iter(labels or [t for _, t in ids]), None)
    batch = found[0][1].shape[0] if found[0][1].dim() else 1
    return {"inputs": [[n, list(t.shape), model.dtype_name(t.dtype)] for n, t in found], "batch": batch,
            "tokens": counted.numel() if counted is not None else batch,
            "seq": counted.shape[1] if counted is not None else None}


def named_tensors(name, value):
    """A module's function, not one inside another that calls itself: that would be a cycle, and with the
    collector off it would keep the batch."""
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    parts = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, (list, tuple)) else ()
    return [x for key, part in parts for x in named_tensors(f"{name}.{key}" if name else str(key), part)]


def watch_casts(hooks, instances, source):
    """Notes where hooking a module casts floats of another dtype, or would if it were hooked."""
    hooks.casts, hooks.notes = {}, set()
    target = source.param_dtype

    def cast(i, values, dtype):
        other = [x for x in tree_leaves(values) if torch.is_tensor(x) and x.is_floating_point() and x.dtype != dtype]
        if other and i not in hooks.in_backward:
            size = sum(x.numel() * dtype.itemsize for x in other)
            hooks.casts.setdefault(i, [model.dtype_name(other[0].dtype), size])

    def look(i, module, args, kwargs):
        cast(i, (args, kwargs), target)
        note = hooks.watch.uncast(i, args, kwargs, target) if i not in hooks.in_backward else None
        if note:
            hooks.notes.add(note)

    def behind(i, module, args, output):
        cast(i, output, source.output_dtype)
    for i, module in enumerate(instances):
        if target and source.cast_inputs:
            module.register_forward_pre_hook(functools.partial(look, i), prepend=True, with_kwargs=True)
        if source.output_dtype:
            module.register_forward_hook(functools.partial(behind, i), prepend=True)
