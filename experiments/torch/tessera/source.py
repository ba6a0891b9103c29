"""Where a model comes from: a function of a person's file, or a recorded scenario."""

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
from collections import namedtuple

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils._pytree import tree_map

from . import model, pitfalls
from .errors import Refused

Choice = namedtuple("Choice", "batch seq checkpoint")  # one variant of a trace; None: as the file says
# `hooked`: modules at which FSDP2 is played; `kept`: those that must be, `blocks` the repeated ones; `groups`: lists of modules of one call;
# batch() makes a micro-batch on the device; `notes`: what a person should know of it.
Job = namedtuple("Job", "model tables hooked kept blocks checkpointed batch forward loss groups notes", defaults=((), ()))


def leave_forks_usable():
    """Asks in a fork how many devices there are, and answers with that from now on: torch refuses CUDA in the forks of a
    process that has asked itself, as files (and diffusers) do while they are loaded, and every run is a fork."""
    pid = os.fork()
    if pid == 0:
        count = 0
        try:
            count = torch.cuda.device_count()
        finally:
            os._exit(count)
    count = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    torch.cuda.device_count = lambda: count
    torch.cuda.is_available = lambda: count > 0


def load_file(path):
    """A person's Python file as a module."""
    name = os.path.basename(path)
    spec = importlib.util.spec_from_file_location("traced_" + name.removesuffix(".py"), path)
    if spec is None or not os.path.exists(path):
        raise Refused(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    was_there = torch.cuda.is_initialized()
    leave_forks_usable()
    spec.loader.exec_module(module)
    if torch.cuda.is_initialized() and not was_there:
        raise Refused(f"{path}: initialises CUDA while it is loaded: do that in the function that makes the model")
    return module


def function(target):
    """The function that `FILE.py:FUNCTION` names."""
    path, _, name = target.rpartition(":")
    if not path:
        raise Refused(f"{target}: name a function as FILE.py:FUNCTION")
    found = getattr(load_file(path), name, None)
    if not callable(found):
        raise Refused(f"{path}: has no function {name!r}")
    return found


class Source:
    strict = True  # whether pitfalls at blocks end the trace
    wrap = None    # patterns of what strategies will wrap, where that was said
    ddp = None     # "find_unused", "static_graph": the model's outputs are cloned as DDP does with this option

    def __init__(self, param_dtype=None, cast_inputs=True, output_dtype=None, autocast=None, sdpa="flash", read_bool=None,
                 readbacks=None, load_factor=1.0, name=""):
        self.param_dtype, self.cast_inputs, self.output_dtype = param_dtype, cast_inputs, output_dtype
        self.autocast, self.sdpa = autocast, sdpa
        self.read_bool, self.readbacks, self.load_factor = read_bool, readbacks or {}, load_factor
        self.name = name

    def asked(self):
        """None: no command line traces this."""
        return None


class UserFile(Source):
    """`FILE.py:FUNCTION`; the function returns a model, a batch and a loss function of (output, batch).
    It may take `batch` and `seq`."""

    def __init__(self, target, batches, seqs, checkpoints, blocks=None, wrap=None, ddp=None, **options):
        super().__init__(name=os.path.basename(target), **options)
        self.make = function(target)
        self.batches, self.seqs, self.checkpoints = batches or [None], seqs or [None], checkpoints
        if ddp and wrap not in (None, ["root"]):
            raise Refused(f"--wrap: found {wrap[0]} beside --ddp {ddp}; allowed: root, as DDP wraps the whole model")
        self.blocks, self.wrap, self.ddp = blocks, ["root"] if ddp else wrap, ddp

    def asked(self):
        """What a command that traces the model again must know: whether the function takes the sizes, and options."""
        given = [("--blocks", ",".join(self.blocks))] if self.blocks else []
        given += [("--wrap", pattern) for pattern in self.wrap or []]
        given += [("--sdpa", self.sdpa)] if self.sdpa != "flash" else []
        given += [("--readback", f"{place}={value}") for place, value in self.readbacks.items()]
        given += [("--load-factor", str(self.load_factor))] if self.load_factor != 1 else []
        return {"batch": self._takes("batch"), "seq": self._takes("seq"), "options": given}

    def _takes(self, name):
        known = inspect.signature(self.make).parameters
        return name in known or any(p.kind is p.VAR_KEYWORD for p in known.values())

    def choices(self):
        return [Choice(b, s, c) for b in self.batches for s in self.seqs for c in self.checkpoints]

    def prepare(self, choice):
        built, batch, loss = self.made(choice, (torch.device("meta"), contextlib.nullcontext()))
        tables = model.Tables(built)
        blocks = self._blocks(tables)
        if choice.checkpoint != "none" and not blocks:
            raise Refused(f"{self.name}: no repeated blocks to checkpoint; name them with "
                          "--blocks 'layers.*'")
        calls = [pattern.split("+") for pattern in self.wrap or []]   # a+b: both in one call
        wrapped = self._matching(tables, [part for parts in calls for part in parts]) if self.wrap else blocks
        groups = [self._matching(tables, parts) for parts in calls if len(parts) > 1]
        recomputed = model.checkpointed(choice.checkpoint, blocks)
        refuse_split(tables, groups, recomputed)
        return Job(built, tables, [0, *wrapped] if self.wrap else hooked(tables, blocks), [0, *wrapped], blocks,
                   recomputed, batch=lambda: tree_map(to_device, batch), loss=loss or own_loss, groups=groups,
                   forward=functools.partial(call, has_label=loss is not None), notes=label_notes(built, batch, loss))

    def made(self, choice, places):
        """What the function returns, made at the first of `places` (contexts) where it can be."""
        wanted = {k: v for k, v in choice._asdict().items() if k != "checkpoint" and v is not None}
        for key in wanted:
            if not self._takes(key):
                raise Refused(f"{self.name}: takes no parameter {key!r}, so --{key} cannot be given")
        made = None
        for context in places:
            torch.manual_seed(0)
            try:
                with context:
                    made = self.make(**wanted)
                break
            except (NotImplementedError, RuntimeError) as error:   # e.g. item() of a meta tensor
                failure = error
        if made is None:
            raise failure
        if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[0], torch.nn.Module):
            raise Refused(f"{self.name}: must return (model, batch, loss function), returned "
                          f"{type(made).__name__}")
        return made

    def _blocks(self, tables):
        return self._matching(tables, self.blocks) if self.blocks else model.blocks(tables)

    def _matching(self, tables, patterns):
        """`root` is the model itself, which is hooked in every trace."""
        from .scenario import matching
        for pattern in patterns:
            if pattern != "root" and not matching(tables.names[1:], [pattern]):
                raise Refused(f"{self.name}: no module is called {pattern!r}")
        return [tables.number[n] for n in matching(tables.names[1:], patterns)]


def hooked(tables, blocks):
    """Where FSDP2 is played: the model, its blocks, and what has parameters beside them. Inside a block and
    around several, the node that FSDP2 puts on inputs would change where gradients are summed."""
    inside = set().union(*map(tables.inside, blocks))
    return [i for i, module in enumerate(tables.instances)
            if i == 0 or i in blocks or (i not in inside and tables.below(i) and pitfalls.has_forward(module)
                                         and not tables.inside(i) & inside)]


def refuse_split(tables, groups, recomputed):
    """Refuses calls of which a part is recomputed without the rest: where their hooks run then, a trace does not say."""
    for group in groups:
        regions = {next((r for r in recomputed if m != r and m in tables.inside(r)), None) for m in group}
        if len(regions) > 1:
            raise Refused("--wrap " + "+".join(tables.names[m] for m in group) + ": modules of one call are recomputed apart from each "
                          "other; allowed: modules of one checkpointed block, or outside of all")


def to_device(x):
    if not isinstance(x, torch.Tensor):
        return x
    return x.to("cuda", non_blocking=True) if x.device.type == "cpu" else torch.empty_like(x, device="cuda")


def call(module, batch, has_label=False):
    """The model's forward with what it takes of the batch. The last part of a tuple that has a label is the loss function's,
    where forward can do without it."""
    if isinstance(batch, dict):
        known = taken(module)
        everything = any(p.kind is p.VAR_KEYWORD for p in known.values())
        return module(**{k: v for k, v in batch.items() if everything or k in known})
    if isinstance(batch, (tuple, list)):
        return module(*batch[:-1 if has_label and leaves_label(module, batch) else places(module)])
    return module(batch)


def leaves_label(module, batch):
    """Whether a tuple's last part would be given to an argument of forward that has a default."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(p.kind in positional and p.default is inspect.Parameter.empty for p in taken(module).values())
    return len(batch) > max(needed, 1) and len(batch[:places(module)]) == len(batch)


def label_notes(module, batch, loss):
    if loss is None or not isinstance(batch, (tuple, list)) or not leaves_label(module, batch):
        return ()
    return ("the last part of the batch is taken for the label, and only the loss function gets it; a batch that is a dictionary "
            "says by name what forward gets",)


def taken(module):
    """Parameters of a model's forward; that of the class around it in DDP and FSDP1 takes anything."""
    inner = module.module if isinstance(module, (torch.nn.parallel.DistributedDataParallel, FullyShardedDataParallel)) else module
    return inspect.signature(inner.forward).parameters


def places(module):
    """How many arguments by place a module's forward takes; None: any number."""
    known = [p.kind for p in taken(module).values()]
    if inspect.Parameter.VAR_POSITIONAL in known:
        return None
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
               for kind in known)


def own_loss(output, batch):
    """For models that compute their loss themselves."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is None and isinstance(output, torch.Tensor):
        loss = output
    if loss is None:
        raise Refused("make() returned no loss function and the model's output has no `loss`")
    return loss
