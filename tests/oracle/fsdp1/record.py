"""What FSDP1 (torch.distributed.fsdp.FullyShardedDataParallel) does, recorded on CPU ranks.

    VENV/bin/python record.py OUT_FOLDER [NAME ...]     # torch 2.11.0; seconds a scenario

Real ranks train a small model over gloo. Streams and events are stand-ins that write down what
they are asked for; collectives, casts, divisions and sums are real and written down with their
stream. One file per scenario: what was run, and the events of rank 0, iteration by iteration.
../../golden-fsdp1/README.md has the format.
"""
import contextlib, functools, json, os, socket, sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

import others

BASE = {"world": 4, "mesh": None, "blocks": 3, "width": 16, "inner": 48, "vocab": 64, "tied": False,
        "wrap": "block", "keep": False, "backward_prefetch": "pre", "forward_prefetch": False,
        "limit": True, "param": None, "reduce": None, "micro": 1, "no_sync": False,
        "checkpoint": None, "clip": False, "eval_first": False, "batch": 2, "seq": 4,
        "iterations": 3}
# A model of others.py: `units` are the modules that it wraps, innermost first. `none`: NO_SHARD.
OTHER = {**{key: BASE[key] for key in ("world", "mesh", "wrap", "keep", "backward_prefetch", "forward_prefetch",
                                       "limit", "param", "reduce", "micro", "no_sync", "clip", "iterations")},
         "none": False}

SCENARIOS = {
    "full-shard": {},
    "full-shard-post": {"backward_prefetch": "post"},
    "full-shard-no-prefetch": {"backward_prefetch": "none"},
    "forward-prefetch": {"forward_prefetch": True},
    "no-limit": {"limit": False},
    "shard-grad-op": {"keep": True},
    "hybrid": {"mesh": [2, 2]},
    "hybrid-zero2-bf16": {"mesh": [2, 2], "keep": True, "param": "bf16", "reduce": "bf16"},
    "default-precision": {"param": "bf16", "reduce": "f32"},
    "pure-precision-post": {"param": "bf16", "reduce": "bf16", "backward_prefetch": "post"},
    "param-only": {"param": "bf16"},
    "no-sync": {"micro": 3, "no_sync": True},
    "no-sync-zero2-bf16": {"micro": 2, "no_sync": True, "keep": True, "param": "bf16"},
    "accumulate": {"micro": 2, "param": "bf16", "reduce": "f32"},
    "checkpoint-inside": {"checkpoint": "inside", "param": "bf16", "reduce": "f32"},
    "checkpoint-outside": {"checkpoint": "outside"},
    "uneven": {"world": 3, "width": 10, "inner": 7, "vocab": 11, "param": "bf16", "reduce": "f32"},
    "tied-all-wrapped": {"wrap": "all", "forward_prefetch": True},
    "tied": {"tied": True, "blocks": 4},
    "root-only": {"wrap": "root", "param": "bf16", "reduce": "f32"},
    "one-rank": {"world": 1, "param": "bf16", "reduce": "f32"},
    "clip": {"clip": True},
    "clip-hybrid": {"clip": True, "mesh": [2, 2]},
    "eval-first": {"eval_first": True},
    "forward-prefetch-bf16-post": {"forward_prefetch": True, "backward_prefetch": "post",
                                   "param": "bf16", "reduce": "f32", "blocks": 4},
}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, None: None}
NAMES = {torch.bfloat16: "bf16", torch.float32: "f32"}
ON = False
EVENTS = []
UNITS = {}  # FSDP instance: name of its module


def note(*event):
    if ON:
        EVENTS.append(list(event))


# ---------------------------------------------------------------- streams and events
class Stream:
    names = ["unshard", "post_backward", "pre_unshard", "all_reduce"]  # in the order of creation
    made = 0

    def __init__(self, priority=0, name=None):
        self.name = name or Stream.names[Stream.made]
        Stream.made += name is None

    def wait_stream(self, other):
        note("wait", self.name, other.name)

    def wait_event(self, event):
        raise AssertionError("FSDP1 waits for events with streams only here")


class Event:
    count = 0

    def record(self, stream=None):
        Event.count += 1
        self.n = Event.count
        note("free", (stream or current()).name)

    def synchronize(self):
        note("host_wait", self.n)


DEFAULT = Stream(name="default")
STREAM = DEFAULT


def current(device=None):
    return STREAM


@contextlib.contextmanager
def on_stream(stream):
    global STREAM
    before, STREAM = STREAM, stream
    try:
        yield
    finally:
        STREAM = before


class Operations(TorchDispatchMode):
    """Kernels that FSDP1 launches itself."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        aside = STREAM is not DEFAULT
        casts = name in ("_to_copy", "copy_") and args[name == "copy_"].dtype != out.dtype
        if casts and aside:
            note("cast", out.numel(), NAMES[out.dtype], STREAM.name)
        elif name in ("div_", "add_", "constant_pad_nd") and aside:
            note(name.rstrip("_"), out.numel(), NAMES[out.dtype], STREAM.name)
        elif name == "cat" and out.dim() == 1 and out.dtype in NAMES:   # a flat gradient; models have their own
            note("cat", out.numel(), NAMES[out.dtype], STREAM.name)
        return out


def record_collectives():
    def patch(name, side):
        real = getattr(dist, name)

        @functools.wraps(real)
        def call(*args, **kw):
            big = side(args)
            group = kw.get("group", args[-1] if len(args) > 2 else None)
            label = "all_gather" if "gather" in name else name.replace("_tensor", "")
            numel = sum(t.numel() for t in big) if isinstance(big, list) else big.numel()
            dtype = (big[0] if isinstance(big, list) else big).dtype
            size = dist.get_world_size(group)
            note(label, numel, NAMES[dtype], STREAM.name, size)
            return real(*args, **kw)
        setattr(dist, name, call)
    patch("all_gather", lambda a: a[0])
    patch("all_gather_into_tensor", lambda a: a[0])
    patch("reduce_scatter_tensor", lambda a: a[1])
    patch("all_reduce", lambda a: a[0])


def record_hooks():
    from torch.distributed.fsdp import _runtime_utils as rt, fully_sharded_data_parallel as fs

    def patch(name, event):
        real = getattr(rt, name)

        @functools.wraps(real)
        def call(state, *args, **kw):
            ran = name == "_pre_backward_hook" and args[1] and getattr(
                args[1], "_ran_pre_backward_hook", False)
            again = name in ("_pre_forward", "_post_forward") and state._handle is not None and \
                state._handle._training_state.name == "BACKWARD_PRE"
            # the root's forward begins with the hook that only roots have
            other = name == ("_pre_forward" if UNITS[state] == "" else "_root_pre_forward")
            if not ran and not again and not other:
                note(event, UNITS[state])
            return real(state, *args, **kw)
        setattr(rt, name, call)
        if hasattr(fs, name):
            setattr(fs, name, call)
    for name, event in (("_root_pre_forward", "pre_forward"), ("_pre_forward", "pre_forward"),
                        ("_post_forward", "post_forward"), ("_pre_backward_hook", "pre_backward"),
                        ("_post_backward_hook", "post_backward")):
        patch(name, event)


def record_storage():
    """Memory of the unsharded parameter and of the cast shard."""
    from torch.distributed.fsdp import _flat_param as fp
    real = fp._alloc_storage

    def alloc(tensor, size):
        fresh = fp._storage_size_allocated(tensor) == 0
        if fresh:
            note("alloc", size.numel(), NAMES[tensor.dtype], STREAM.name)
        return real(tensor, size)
    fp._alloc_storage = alloc


# ---------------------------------------------------------------- the model
class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.up = nn.Linear(s["width"], s["inner"])
        self.act = nn.GELU()
        self.down = nn.Linear(s["inner"], s["width"])

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.n = s["blocks"]
        self.embed = nn.Embedding(s["vocab"], s["width"])
        for i in range(self.n):
            setattr(self, f"b{i}", Block(s))
        self.norm = nn.LayerNorm(s["width"])
        self.head = nn.Linear(s["width"], s["vocab"], bias=False)
        if s["tied"]:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for i in range(self.n):
            x = getattr(self, f"b{i}")(x)
        return self.head(self.norm(x))


def wrapper(s, mesh):
    """What wraps a module, with its name in the recording."""
    from torch.distributed.fsdp import (BackwardPrefetch, FullyShardedDataParallel as FSDP,
                                        MixedPrecision, ShardingStrategy)
    hybrid = s["mesh"] is not None
    strategy = {(0, 0): ShardingStrategy.FULL_SHARD, (0, 1): ShardingStrategy.SHARD_GRAD_OP,
                (1, 0): ShardingStrategy.HYBRID_SHARD,
                (1, 1): ShardingStrategy._HYBRID_SHARD_ZERO2}[int(hybrid), int(s["keep"])]
    if s.get("none"):
        strategy = ShardingStrategy.NO_SHARD
    precision = None
    if s["param"] or s["reduce"]:
        precision = MixedPrecision(param_dtype=DTYPES[s["param"]], reduce_dtype=DTYPES[s["reduce"]])
    prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST,
                "none": None}[s["backward_prefetch"]]
    UNITS.clear()

    def fsdp(module, name):
        out = FSDP(module, device_mesh=mesh, sharding_strategy=strategy, mixed_precision=precision,
                   backward_prefetch=prefetch, forward_prefetch=s["forward_prefetch"],
                   limit_all_gathers=s["limit"], use_orig_params=True,
                   device_id=torch.device("cpu"))
        UNITS[out] = name
        return out
    return fsdp


def wrap(model, s, mesh):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    fsdp = wrapper(s, mesh)
    for i in range(s["blocks"]) if s["wrap"] != "root" else ():
        block = getattr(model, f"b{i}")
        if s["checkpoint"] == "inside":
            block = checkpoint_wrapper(block)
        block = fsdp(block, f"b{i}")
        if s["checkpoint"] == "outside":
            block = checkpoint_wrapper(block)
        setattr(model, f"b{i}", block)
    for name in ("embed", "norm", "head") if s["wrap"] == "all" else ():
        setattr(model, name, fsdp(getattr(model, name), name))
    return fsdp(model, "")


def wrap_other(model, s, mesh):
    fsdp = wrapper(s, mesh)
    for name in s["units"]:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, fsdp(model.get_submodule(name), name))
    return fsdp(model, "")


def tokens_step(s, generator):
    def step(model):
        ids = torch.randint(s["vocab"], (s["batch"], s["seq"]), generator=generator)
        return F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
    return step


def made(s, mesh, rank):
    """(the wrapped model, a step that gives its loss)."""
    if "model" not in s:
        return wrap(Model(s), s, mesh), tokens_step(s, torch.Generator().manual_seed(rank))
    model, _, batch, loss = others.MODELS[s["model"]]()
    return wrap_other(model, s, mesh), lambda wrapped: loss(wrapped(**batch), batch)


def iterate(model, optimizer, s, step):
    optimizer.zero_grad()
    for k in range(s["micro"]):
        off = s["no_sync"] and k + 1 < s["micro"]
        with model.no_sync() if off else contextlib.nullcontext():
            step(model).backward()
    if s["clip"]:
        model.clip_grad_norm_(1.0)
    optimizer.step()


def record(rank, s, path):
    global ON, EVENTS
    mesh = init_device_mesh("cpu", s["mesh"] or [s["world"]],
                            mesh_dim_names=["replicate", "shard"] if s["mesh"] else ["shard"])
    torch.manual_seed(0)
    Stream.made = Event.count = 0
    model, step = made(s, mesh, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    iterations = []
    with Operations():
        if s.get("eval_first"):
            with torch.no_grad():
                model(torch.zeros(1, s["seq"], dtype=torch.long))
        for _ in range(s["iterations"]):
            ON, EVENTS = True, []
            iterate(model, optimizer, s, step)
            ON = False
            iterations.append(EVENTS)
    if rank == 0:
        with open(path, "w") as f:
            write(f, s, iterations)


def rank_main(rank, world, port, todo):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.cpu.Stream, torch.cpu.Event = Stream, Event
    torch.cpu.current_stream, torch.cpu.stream = current, on_stream
    record_collectives()
    record_hooks()
    record_storage()
    for s, path in todo:
        record(rank, s, path)
        if rank == 0:
            print(path, flush=True)
    dist.destroy_process_group()


def write(f, s, iterations):
    f.write('{"torch": "%s",\n "scenario": %s,\n "iterations": [\n' % (
        torch.__version__.split("+")[0], json.dumps(s)))
    f.write(",\n".join("  [" + ",\n   ".join(json.dumps(e) for e in events) + "]"
                       for events in iterations))
    f.write("\n]}\n")


def scenario(name):
    if name in SCENARIOS:
        return {**BASE, **SCENARIOS[name]}
    s = {**OTHER, **others.SCENARIOS[name]}
    return {**s, "units": others.MODELS[s["model"]]()[1] if s["wrap"] == "block" else []}


def main():
    out, names = sys.argv[1], sys.argv[2:] or [*SCENARIOS, *others.SCENARIOS]
    os.makedirs(out, exist_ok=True)
    todo = [(scenario(name), os.path.join(out, name + ".json")) for name in names]
    for world in sorted({s["world"] for s, _ in todo}):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        mp.spawn(rank_main, (world, port, [t for t in todo if t[0]["world"] == world]), world)


if __name__ == "__main__":
    main()
