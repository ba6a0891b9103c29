"""What PyTorch computes for a scenario: losses, gradient norms, final parameters and states of the optimizer.

Also in float64, or from initial values that are moved a little: how far its own numbers are from each other.
"""
import contextlib
import copy
import functools
import json
import os
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fsdp_oracle import golden, models, run  # noqa: E402
import torch.testing._internal.distributed.multi_threaded_pg as pg  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

VERSIONS = {"torch": "2.11.0", "transformers": "5.23.0"}
STATES = {"adamw": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), "sgd": ("momentum_buffer",)}


def load():
    """Imports what models need, once, before any child is made. Other versions compute other scenarios: they end it."""
    import transformers
    there = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    if there != VERSIONS:
        sys.exit(f"the comparison is made with {VERSIONS}; found {there}")
    from torch.distributed._composable.replicate_with_fsdp import replicate  # noqa: F401
    size = {"vocab_size": 4, "max_position_embeddings": 4, "n_positions": 4}
    models.build({"kind": "llama", "config": {**size, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
                                              "num_attention_heads": 1, "num_key_value_heads": 1}})
    models.build({"kind": "gpt2", "config": {**size, "n_embd": 4, "n_layer": 1, "n_head": 1}})
    for family in ("llama", "gpt2"):
        module = sys.modules[f"transformers.models.{family}.modeling_{family}"]
        module.create_causal_mask = remembered(module.create_causal_mask)


def remembered(make):
    """Masks depend on shapes and dtypes only here; making one takes a fifth of the time of a tiny scenario."""
    known = {}

    def mask(**args):
        x = args["inputs_embeds"]
        key = (tuple(x.shape), x.dtype)
        if key not in known:
            known[key] = make(**args)
        return known[key]
    return mask


def plain(t):
    return t._local_tensor if isinstance(t, DTensor) else t


class LocalOptimizer:
    """Steps on the local parts: the numbers of a step on DTensors, without their dispatch (two thirds of the time)."""

    def __init__(self, spec, params):
        self.params = [p for p in params if p.requires_grad]
        self.parts = [torch.nn.Parameter(plain(p).detach()) for p in self.params]
        self.inner = models.make_optimizer(spec, self.parts)

    def step(self):
        for p, part in zip(self.params, self.parts):
            part.data = plain(p).detach()
            part.grad = None if p.grad is None else plain(p.grad)
        self.inner.step()

    def zero_grad(self, set_to_none):
        for p in self.params:
            p.grad = None

    def states(self, param):
        """{name: tensor}"""
        found = [part for p, part in zip(self.params, self.parts) if p is param]
        return self.inner.state.get(found[0], {}) if found else {}


class ValueEngine(run.Engine):
    """An engine that keeps the optimizer's state as well."""

    exact_products = False

    def make_optimizer(self):
        return LocalOptimizer(self.sc["train"]["optimizer"], self.model.parameters())

    def run(self):
        with ExactProducts() if self.exact_products else contextlib.nullcontext():
            super().run()
        names = STATES[self.sc["train"]["optimizer"]["name"]]
        params = {fqn: p.sharded_param for fqn, (_, _, p) in self.managed.items()}
        for n, p in self.model.named_parameters():
            if n not in params and not isinstance(p, DTensor) and id(p) in self.param_fqn:
                params[n] = p
        self.states = {}
        for fqn, p in params.items():
            for k, name in enumerate(names):
                t = self.opt.states(p).get(name)
                if t is not None:
                    self.states[f"state{k}.{fqn}"] = t.detach().clone()


def initial(sc):
    """({name: f32}, data) of a scenario."""
    return models.init_params(sc["model"], sc["train"]["seed"]), models.make_data(sc, golden.mesh_world(sc))


def moved(init, by, seed):
    """Every value times something within 1 +- by."""
    g = torch.Generator().manual_seed(seed)
    return {n: t * (1 + by * (2 * torch.rand(t.shape, generator=g) - 1)) for n, t in init.items()}


def doubled(sc):
    """The scenario with every dtype float64, gradients and casts included."""
    new = copy.deepcopy(sc)
    new["model"]["param_dtypes"] = [["**", "f64"]]
    for w in new["wrap"]:
        for key in ("param", "reduce", "output"):
            w.get("mp", {}).pop(key, None)
    return new


class Doubles:
    """Losses are computed in float64, too."""

    def __enter__(self):
        self.was = torch.Tensor.float
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *error):
        torch.Tensor.float = self.was


class ExactSums:
    """Collectives that add in float64 and round once. The stand-in's add rank after rank, in the dtype that travels."""

    @staticmethod
    @torch.no_grad()
    def scatter(self, data):
        for i in range(len(data)):
            total = torch.stack([source[1][0][i] for source in data]).double().sum(0)
            mean = total / len(data) if self.op == torch.distributed.ReduceOp.AVG else total
            data[i][0][0].detach().copy_(mean)

    @staticmethod
    def reduce(tensors, op):
        return op(torch.stack(tensors).double(), dim=0).to(tensors[0].dtype)

    def __enter__(self):
        self.was = pg.ReduceScatter.work, dict(pg._reduce_ops)
        pg.ReduceScatter.work = self.scatter
        for key, op in ((torch.distributed.ReduceOp.SUM, torch.sum), (torch.distributed.ReduceOp.AVG, torch.mean)):
            pg._reduce_ops[key] = functools.partial(self.reduce, op=op)

    def __exit__(self, *error):
        pg.ReduceScatter.work = self.was[0]
        pg._reduce_ops.update(self.was[1])


class ExactProducts(TorchDispatchMode):
    """The result of every operation that adds or calls a function is rounded once, from float64. Backward is not changed."""

    names = ("mm", "addmm", "bmm", "baddbmm", "_softmax", "_log_softmax", "gelu", "silu", "tanh", "rsqrt", "mean", "sum", "pow",
             "native_layer_norm", "_scaled_dot_product_flash_attention_for_cpu")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, (tuple, list)) else out
        if func._schema.name.partition("::")[2] not in self.names or isinstance(first, DTensor) or not first.is_floating_point():
            return out
        wide = lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t  # noqa: E731
        kwargs = {k: v for k, v in (kwargs or {}).items() if k != "dtype"}
        double = func(*tree_map(wide, args), **tree_map(wide, kwargs))
        first.copy_(double[0] if isinstance(double, (tuple, list)) else double)
        return out


def whole(parts, lay, name):
    """A tensor from its parts on the ranks of the first shard group."""
    fqn = name.partition(".")[2] if name.startswith("state") else name
    return golden.assemble(parts, lay, fqn).double().flatten()


def values_of(engines, n_shards):
    """{name: float64 vector}: loss.I, norm.I (NaN: no gradient), parameters, states; grad.I.NAME, for the measure only."""
    first, out = engines[0], {}
    lay = first.params_layout
    for i, row in enumerate(first.losses):
        each = [e.losses[i][m] for e in engines for m in range(len(row))]
        out[f"loss.{i}"] = torch.tensor([float("nan") if v is None else v for v in each], dtype=torch.float64)
    for i, grads in enumerate(first.grads):
        norms = []
        for n in sorted(grads):
            t = golden.assemble([e.grads[i].get(n) for e in engines[:n_shards]], lay, n)
            norms.append(float("nan") if t is None else t.double().norm().item())
            if t is not None:
                out[f"grad.{i}.{n}"] = t.double().flatten()
        out[f"norm.{i}"] = torch.tensor(norms, dtype=torch.float64)
    for n in first.final:
        out[n] = whole([e.final[n] for e in engines[:n_shards]], lay, n)
    for n in first.states:
        out[n] = whole([e.states.get(n) for e in engines[:n_shards]], lay, n)
    return out


def compute(sc, init, data):
    """Values; run.StageError: PyTorch refuses the scenario."""
    was = run.Engine
    run.Engine = ValueEngine
    try:
        engines, errors = run.run_threads(sc, golden.mesh_world(sc), init, data)
    finally:
        run.Engine = was
    bad = [e[0] for e in errors if e is not None]
    for error in sorted(bad, key=lambda e: not isinstance(e, run.StageError)):
        raise error
    return values_of(engines, golden.shard_size(sc))


def compute_double(sc, init, data):
    with Doubles():
        return compute(doubled(sc), init, {n: t.double() if t.is_floating_point() else t for n, t in data.items()})


def compute_exact(sc, init, data):
    with ExactSums():
        return compute(sc, init, data)


def first_loss_exactly(sc, init, data):
    """The losses of the first iteration, as far as sums in float64 change them."""
    one = copy.deepcopy(sc)
    one["train"]["iters"] = 1
    ValueEngine.exact_products = True
    try:
        return compute(one, init, data)["loss.0"]
    finally:
        ValueEngine.exact_products = False


def write(sc, init, data, folder):
    """The scenario and its tensors as files for `tessera trace`; the scenario's path."""
    os.makedirs(os.path.join(folder, "scenarios"), exist_ok=True)
    os.makedirs(os.path.join(folder, "tensors"), exist_ok=True)
    names = {k: f"tensors/{sc['name']}.{k}.safetensors" for k in ("init", "data")}
    save_file({n: t.contiguous() for n, t in init.items()}, os.path.join(folder, names["init"]))
    save_file({n: t.contiguous() for n, t in data.items()}, os.path.join(folder, names["data"]))
    path = os.path.join(folder, "scenarios", sc["name"] + ".json")
    with open(path, "w") as f:
        json.dump({**sc, "tensors": names}, f)
    return path
