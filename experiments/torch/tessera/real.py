"""Training steps with the real FSDP2, FSDP1 or DDP on the stand-in device and a fake process group: what the caching
allocator holds, phase by phase. The truth that predictions are checked against."""

import collections
import contextlib
import functools
import gc
import inspect

import torch
import torch.distributed as dist
import torch._dynamo  # as in a trace: imported inside a forward it would keep tensors alive
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import device, passes, source, tracer
from .errors import Refused
from .model import materialise

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "none": None,
          "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, None: None}
VARIANTS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, lr=1e-3),
              "sgd_momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)}


class Phases:
    """The allocator's own peaks between one phase's beginning and the next one's."""

    def __init__(self):
        self.rows, self._running = [], None

    def begin(self, iteration, name):
        statistics = torch._C._cuda_memoryStats(0)
        if self._running:
            row = {"iter": self._running[0], "phase": self._running[1]}
            for when, key in (("peak", "peak"), ("end", "current")):
                for what in ("allocated", "requested", "reserved"):
                    row[f"{when}_{what}"] = statistics[f"{what}_bytes"]["all"][key]
            self.rows.append({**row, "num_alloc_retries": statistics["num_alloc_retries"]})
        torch.cuda.reset_peak_memory_stats()
        self._running = (iteration, name)


def groups_of(model):
    """FSDP2's parameter groups in module order."""
    found = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            if group and group not in found:
                found.append(group)
    return found


def tie(model):
    """to_empty() makes two of what was one parameter."""
    for group in groups_of(model):
        for p in group.fsdp_params:
            info = p._module_info
            one = getattr(info.module, info.param_name)
            for module, name in zip(info.shared_modules, info.shared_param_names):
                module._parameters[name] = one


def on_meta(model):
    """Parameters of torch.FloatTensor(...) ignore torch.device("meta"): they would be moved to the device one by one as
    they are sharded, and leave other segments. So would buffers of a model that reads values as it is made and is therefore
    made on the host, parameters and all."""
    moved = {}
    is_on_host = not any(p.is_meta for p in model.parameters())
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if is_on_host and buffer is not None:
                module._buffers[name] = buffer.to("meta")
        for name, p in module._parameters.items():
            if p is not None and not p.is_meta:
                moved.setdefault(p, torch.nn.Parameter(p.detach().to("meta"), p.requires_grad))
                module._parameters[name] = moved[p]


def sharded(job, strategy, mesh, offload):
    """The model as fully_shard or replicate leave it, made on the meta device and materialised."""
    on_meta(job.model)
    model = strategy.apply(job.model, mesh)
    model.to_empty(device="cpu" if offload else "cuda")
    if offload:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.cuda()
    getattr(strategy, "tie", tie)(model)
    model._get_fsdp_state()._lazy_init()   # so that paddings' copies belong to no iteration
    return model


class Done(dist._Work):
    """A collective that is over, with a future, which DDP reads gradients from and the fake group's lacks."""

    def __init__(self, tensors):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(tensors)

    def wait(self, *timeout):
        return True

    def get_future(self):
        return self.future


class Alone(dist.ProcessGroup):
    """One rank of many, whose collectives leave their tensors as they are. The reducer broadcasts the order of its
    buckets as integers and reads them back, which the stand-in device has to be told."""

    group_name = "alone"
    there = None

    def getBackendName(self):
        return self.group_name

    def allreduce(self, tensors, options=None):
        return Done(tensors)

    def broadcast(self, tensors, options=None):
        values = self.there.copied(tensors[0]) if self.there and tensors[0].dtype == torch.int32 else None
        if values is not None:
            self.there.answer(values.numpy().tobytes())
        return Done(tensors)

    def allgather(self, outputs, inputs, options=None):
        return Done(outputs)


def join(api, rank, world, there):
    if api != "ddp":
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    if api == "fsdp1":
        wires = collections.defaultdict(torch.cuda.Stream)
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
            setattr(dist, name, with_work(getattr(dist, name), there, wires))
    if api != "ddp":
        return
    dist.Backend.register_backend("alone", lambda store, rank, size, timeout: Alone(rank, size), devices=["cpu", "cuda"])
    dist.init_process_group("alone", store=FakeStore(), rank=rank, world_size=world)
    torch._C._distributed_c10d._register_process_group("alone", dist.group.WORLD)   # a mesh looks it up by name


def with_work(collective, there, wires):
    """In place of a collective that FSDP1 waits for, a piece of work: NCCL runs those of a communicator in the order of
    issue, whatever streams they are for. `wires`: a stream of each group, which has that order."""
    @functools.wraps(collective)
    def run_one(*arguments, **options):
        wire = wires[options.get("group", arguments[-1])]
        wire.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(wire):
            there.work()
        torch.cuda.current_stream().wait_stream(wire)
    return run_one


def flattened(job, strategy, mesh):
    """The model as FullyShardedDataParallel leaves it: wrapped on the host, so that shards are all that comes to the device."""
    materialise(job.model, None, "cpu")
    return strategy.apply(job.model, mesh).cuda()


def copied(job, strategy, mesh, answer):
    """The model as DistributedDataParallel leaves it: whole on the device before it is wrapped. Its first act, to
    compare what all ranks have, needs ranks and values: it is left out, and nothing that it allocates stays.
    `answer`: of the model's own reads, which come after those of the reducer in a forward."""
    materialise(job.model, None)
    job.model.register_forward_pre_hook(answer)
    torch.nn.parallel.distributed._verify_param_shape_across_processes = lambda *arguments, **options: True
    return strategy.apply(job.model, mesh)


def make_optimizer(name, parameters, weight_decay=None, options=None, decay="all"):
    """`name`: a key of OPTIMIZERS, then a variant ("adamw_fused"; without: foreach); or none. A decay that is
    not 0 makes temporaries; without one it is PyTorch's default. `options`: further arguments (amsgrad).
    `decay`: "matrices": what has fewer dimensions than two is a group of its own that does not decay;
    of SGD, whose decay makes temporaries. AdamW's is in place, and its programs are those of one list."""
    if name == "none":
        return None
    kind, _, variant = name.rpartition("_")
    if variant not in VARIANTS:
        kind, variant = name, "foreach"
    if decay == "matrices" and weight_decay and kind.startswith("sgd"):
        groups = [{"params": [p for p in parameters if p.dim() > 1]},
                  {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
        parameters = [group for group in groups if group["params"]]
    decays = {} if weight_decay is None else {"weight_decay": weight_decay}
    return OPTIMIZERS[kind](parameters, **VARIANTS[variant], **decays, **(options or {}))


def mesh_of(strategy, world, is_other):
    """The strategy's mesh; for another number of ranks (--world) one of its kind."""
    if not is_other:
        mesh = strategy.build_mesh()
        if mesh.size() != world:
            raise Refused(f"build_mesh(): a mesh of {mesh.size()} ranks, the strategy has {world}")
        return mesh
    make = strategy.init_device_mesh

    def other(kind, shape, **options):
        if len(shape) != 1:
            raise Refused(f"--world: a mesh of {' x '.join(map(str, shape))} has no other size; one of one "
                          "dimension has")
        return make(kind, (world,), **options)
    strategy.init_device_mesh = other
    return strategy.build_mesh()


def run(job, strategy, recipe, reads=()):
    """`strategy` has build_mesh() and apply(model, mesh), and may have tie() and before_micro_batch().
    `recipe`: world, rank, offload, optimizer and its options, micro_batches, clip, autocast, sdpa, iterations. `reads`:
    what the program reads from the device in one micro-batch. One run a process."""
    torch.set_num_threads(1)
    passes.sdpa(recipe.get("sdpa", "flash"))
    torch.cuda.init()
    Alone.there = device.Device()

    def answer(*_):
        for value in reads:
            Alone.there.answer(value)
    join(recipe.get("api"), recipe["rank"], recipe["world"], Alone.there)
    mesh = mesh_of(strategy, recipe["world"], recipe.get("world_given"))
    is_ddp = recipe.get("api") == "ddp"
    if is_ddp:
        model = copied(job, strategy, mesh, answer)
    elif recipe.get("api") == "fsdp1":
        model = flattened(job, strategy, mesh)
    else:
        model = sharded(job, strategy, mesh, recipe.get("offload"))
    optimizer = make_optimizer(recipe["optimizer"], [p for p in model.parameters() if p.requires_grad],
                               recipe.get("weight_decay"), recipe.get("optimizer_options"), recipe.get("decay", "all"))
    phases = Phases()
    gc.collect()
    gc.disable()
    if recipe.get("api") == "fsdp1":
        Alone.there.lag()
    for i in range(recipe.get("iterations", 2)):
        iteration(i, phases, job, model, strategy, optimizer, recipe, (lambda: None) if is_ddp else answer)
    phases.begin(None, None)
    return phases.rows


def iteration(i, phases, job, model, strategy, optimizer, recipe, before):
    cast = contextlib.nullcontext
    if recipe.get("autocast"):
        def cast():
            return torch.autocast("cuda", recipe["autocast"])
    n = recipe.get("micro_batches", 1)
    phases.begin(i, "inputs")
    data = [job.batch() for _ in range(n)]
    phases.begin(i, "zero_grad")
    if optimizer:
        optimizer.zero_grad(set_to_none=True)
    else:
        for p in model.parameters():
            p.grad = None
    for k in range(n):
        if hasattr(strategy, "before_micro_batch"):
            strategy.before_micro_batch(model, k == n - 1)
        before()
        part = strategy.micro_batch(model, k == n - 1) if hasattr(strategy, "micro_batch") else contextlib.nullcontext()
        phases.begin(i, f"forward{k if n > 1 else ''}")   # no_sync() of FSDP1 does what the first forward does
        with part:
            micro_batch(i, str(k) if n > 1 else "", phases, job, model, data[k], cast)
    if recipe.get("clip"):
        phases.begin(i, "clip")
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    phases.begin(i, "optimizer")
    if optimizer:
        optimizer.step()
    phases.begin(i, "end")
    del data


def micro_batch(i, tail, phases, job, model, data, cast):
    with cast():
        output = job.forward(model, data)
    phases.begin(i, "loss" + tail)
    with cast():
        loss = job.loss(output, data)
    del output
    phases.begin(i, "backward" + tail)
    loss.backward()


# ---- written code ------------------------------------------------------------------------------------------


def written(path):
    strategy = source.load_file(path)
    for name in ("build_mesh", "apply"):
        if not callable(getattr(strategy, name, None)):
            raise Refused(f"{path}: has no function {name!r}")
    return strategy


def check(request):
    """Figures by phase of `check.check`'s request."""
    user = user_file(request)
    choice = user.choices()[0]
    reads = tracer.probe(user, choice)["reads"]
    first = reads[:len(reads) // 2]   # a trace has two iterations
    if [value for _, _, value in reads[len(first):]] != [value for _, _, value in first]:
        raise Refused(f"{user.name}: reads other values from the device in each step: it cannot be checked")
    return tracer.in_process(run_written, user, choice, request, [value for _, _, value in first])


def run_written(user, choice, request, reads):
    strategy = written(request["strategy"])
    return run(user.prepare(choice), strategy, {**request, "autocast": user.autocast}, reads)


def user_file(request):
    """The person's model in the strategy's sizes, where its function takes them."""
    param = DTYPES[request["param_dtype"]]
    user = source.UserFile(request["target"], [], [], ["none"], param_dtype=param,
                           output_dtype=DTYPES[request["output"]], autocast=DTYPES[request["autocast"]], sdpa=request["sdpa"])
    known = inspect.signature(user.make).parameters
    user.batches, user.seqs = ([request[name] if name in known else None] for name in ("batch", "seq"))
    return user
