"""Runs one training scenario on the real engine with one thread per rank."""
import math
import threading
import traceback

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup, _install_threaded_pg, _uninstall_threaded_pg)
import torch.distributed.fsdp._fully_shard._fsdp_state as stmod

from . import models, record
from .models import DT, DTN, glob_any, glob_re
from .record import R, rec


def replicate_fsdp():
    from torch.distributed._composable.replicate_with_fsdp import replicate
    return replicate


def get_state(mod):
    return stmod._get_module_fsdp_state(mod)


class StageError(Exception):
    def __init__(self, stage, exc):
        self.stage, self.exc = stage, exc


class Engine:
    """Everything one rank does for a scenario."""

    numbers = True  # the optimizer really steps

    def __init__(self, sc, rank, init, data, on=True):
        self.sc, self.rank, self.init, self.data = sc, rank, init, data
        self.stage = "mesh"
        self.clock = models.Clock()
        self.handles = {}
        R.reset()
        R.on = on

    # -- setup
    def make_mesh(self):
        spec = self.sc["mesh"]
        shape = tuple(spec["shape"])
        names = tuple(spec["dim_names"]) if spec.get("dim_names") else None
        if len(shape) > 1 and names is None:
            n = math.prod(shape)
            return DeviceMesh("cpu", torch.arange(n).view(shape))
        return init_device_mesh("cpu", shape, mesh_dim_names=names)

    def name_pgs(self, mesh):
        names = {}
        if mesh.ndim == 1:
            names[mesh.get_group(0).group_name] = "replicate" if all(w.get("api") == "replicate" for w in self.sc["wrap"]) else "shard"
        elif mesh.ndim == 2:
            names[mesh.get_group(0).group_name] = "replicate"
            names[mesh.get_group(1).group_name] = "shard"
        return names

    def build(self):
        sc = self.sc
        self.stage = "build"
        self.model = m = models.build(sc["model"], self.clock, device="meta" if sc["model"].get("meta") else None)
        if not sc["model"].get("meta"):
            models.load_init(m, self.init)
        for pat in sc["model"].get("noncontiguous", []):
            for n, p in m.named_parameters():
                if glob_re(pat).match(n):
                    p.data = p.data.t().contiguous().t()
        self.param_fqn = {}
        for n, p in m.named_parameters():
            self.param_fqn[id(p)] = n
        self.global_shape = {n: list(p.shape) for n, p in m.named_parameters()}
        self.requires_grad = {n: p.requires_grad for n, p in m.named_parameters()}
        self.mod_name = {id(mod): n for n, mod in m.named_modules()}
        self.aliases = {}
        first = {}
        for n, p in m.named_parameters(remove_duplicate=False):
            if id(p) in first:
                self.aliases.setdefault(first[id(p)], []).append(n)
            else:
                first[id(p)] = n

    def name_groups(self):
        for n, mod in self.model.named_modules():
            st = get_state(mod)
            if st is None or hasattr(st, "_oracle_name"):
                continue
            st._oracle_name = ", ".join(sorted_names(self.model, st._modules))
            if st._fsdp_param_group:
                st._fsdp_param_group._oracle_name = st._oracle_name

    def wrap(self):
        m, sc = self.model, self.sc
        models.apply_checkpoint(m, sc.get("ac", []), "inside")
        self.stage = "wrap"
        for w in sc["wrap"]:
            fqn_of_param = {id(p): n for n, p in m.named_parameters()}
            mp = w.get("mp", {})
            policy = MixedPrecisionPolicy(
                param_dtype=DT[mp["param"]] if mp.get("param") else None,
                reduce_dtype=DT[mp["reduce"]] if mp.get("reduce") else None,
                output_dtype=DT[mp["output"]] if mp.get("output") else None,
                cast_forward_inputs=mp.get("cast_inputs", True))
            off = w.get("offload")
            offload = {None: OffloadPolicy(), "cpu": CPUOffloadPolicy(pin_memory=False),
                       "cpu_pinned": CPUOffloadPolicy(pin_memory=True)}[off]
            kw = dict(mesh=self.sub_mesh(w), mp_policy=policy, offload_policy=offload)
            if w.get("ignored"):
                kw["ignored_params"] = {p for n, p in m.named_parameters() if glob_any(w["ignored"], n)}
            if w["api"] == "fully_shard":
                if "reshard_after_forward" in w:
                    kw["reshard_after_forward"] = w["reshard_after_forward"]
                if w.get("shard_dim"):
                    rules = w["shard_dim"]

                    def placement(p, _r=rules, _f=fqn_of_param):
                        for pat, dim in _r:
                            if glob_re(pat).match(_f.get(id(p), "?")):
                                return Replicate() if dim == "replicate" else Shard(dim)
                        return None
                    kw["shard_placement_fn"] = placement
                fn = fully_shard
            elif w["api"] == "replicate":
                fn = replicate_fsdp()
            else:
                raise ValueError(w["api"])
            mods = [mod for n, mod in m.named_modules() if glob_any(w["modules"], n)]
            assert mods or w.get("group"), w
            if w.get("group"):
                fn(mods, **kw)
            else:
                for mod in mods:
                    fn(mod, **kw)
        if sc.get("tp_only"):
            return
        self.name_groups()
        models.apply_checkpoint(m, sc.get("ac", []), "outside")
        record.instrument(m)

    def sub_mesh(self, w):
        if w.get("mesh_dims"):
            return self.mesh[tuple(w["mesh_dims"])] if len(w["mesh_dims"]) > 1 else self.mesh[w["mesh_dims"][0]]
        return self.mesh

    def groups(self):
        seen, out = set(), []
        for _, mod in self.model.named_modules():
            st = get_state(mod)
            if st is not None and id(st) not in seen:
                seen.add(id(st))
                out.append(st)
        return out

    def tag_params(self):
        self.managed = {}
        for st in self.groups():
            g = st._fsdp_param_group
            if not g:
                continue
            for p in g.fsdp_params:
                mi = p._module_info
                mod = self.mod_name[id(mi.module)]
                fqn = f"{mod}.{mi.param_name}" if mod else mi.param_name
                p._oracle_fqn = fqn
                p._oracle_aliases = [f"{self.mod_name[id(sm)]}.{sn}" for sm, sn in zip(mi.shared_modules, mi.shared_param_names)]
                self.managed[fqn] = (st, g, p)

    # -- calls
    def run_calls(self, when, i=None, k=None):
        for c in self.sc.get("calls", []):
            at = c["at"]
            if at["when"] != when:
                continue
            if "iter" in at and at["iter"] != i:
                continue
            if "micro" in at and at["micro"] != k:
                continue
            self.stage = f"call {c['fn']}"
            self.call(c)

    def call(self, c):
        m, fn, a = self.model, c["fn"], dict(c.get("args", {}))
        name = c.get("module", "")
        mod = m.get_submodule(name)
        rec("call", fn=fn, module=name, args=c.get("args", {}))
        if fn in ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"):
            getattr(mod, fn)([m.get_submodule(x) for x in a["modules"]])
        elif fn == "unshard":
            h = mod.unshard(async_op=a.get("async", False))
            self.handles[name] = h
        elif fn == "wait_unshard_handle":
            self.handles.pop(name).wait()
        elif fn == "reshard":
            mod.reshard()
        elif fn == "set_unshard_async_op":
            mod._set_unshard_async_op(a["value"])
        elif fn == "set_is_last_backward":
            mod.set_is_last_backward(a["value"])
        elif fn in ("set_requires_gradient_sync", "set_requires_all_reduce", "set_reshard_after_backward"):
            getattr(mod, fn)(a["value"], recurse=a.get("recurse", True))
        elif fn == "set_reshard_after_forward":
            mod.set_reshard_after_forward(a["value"], recurse=a.get("recurse", True))
        elif fn in ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms", "set_unshard_in_backward"):
            if a.get("recurse"):
                for mm in mod.modules():
                    if get_state(mm) is not None:
                        getattr(mm, fn)(a["value"])
            else:
                getattr(mod, fn)(a["value"])
        elif fn == "set_post_optim_event":
            mod.set_post_optim_event(record.cur().record_event())
        elif fn == "forward":
            mod(self.data["input.0.0"][self.rank])
        elif fn == "state_dict":
            mod.state_dict()
        elif fn == "materialize":
            m.to_empty(device="cpu")
        elif fn == "deepcopy":
            import copy
            copy.deepcopy(mod)
        elif fn == "register_fsdp_forward_method":
            from torch.distributed.fsdp import register_fsdp_forward_method
            register_fsdp_forward_method(mod, a["name"])
        elif fn == "share_comm_ctx":
            from torch.distributed.fsdp import share_comm_ctx
            share_comm_ctx([m.get_submodule(x) for x in a["modules"]])
        elif fn == "set_all_reduce_hook":
            def hook(t, _n=name):
                rec("all_reduce_hook", g=get_state(m.get_submodule(_n))._oracle_name, n=t.numel(), dtype=DTN[t.dtype], stream=record.cur().name)
            stream = torch.cpu.Stream() if a.get("stream") else None
            if isinstance(stream, record.RStream):
                stream.name = "user"
            mod.set_all_reduce_hook(hook, stream=stream)
        elif fn == "set_custom_all_gather_then_pg_alloc":
            class AG:
                def __call__(self, *x, **y):
                    return None
            mod.set_custom_all_gather(AG())
            mod.set_allocate_memory_from_process_group_for_comm(True)
        elif fn == "set_custom_reduce_scatter_then_pg_alloc":
            class RS:
                def __call__(self, *x, **y):
                    return None
            mod.set_custom_reduce_scatter(RS())
            mod.set_allocate_memory_from_process_group_for_comm(True)
        elif fn == "wrap":
            kw = {"mesh": self.mesh}
            if "reshard_after_forward" in a:
                kw["reshard_after_forward"] = a["reshard_after_forward"]
            (fully_shard if a["api"] == "fully_shard" else replicate_fsdp())(mod, **kw)
        else:
            raise ValueError(fn)

    # -- training
    def make_optimizer(self):
        return models.make_optimizer(self.sc["train"]["optimizer"], self.model.parameters())

    def train(self):
        sc, tr = self.sc, self.sc["train"]
        micro = tr.get("micro", 1)
        m = self.model
        self.opt = opt = self.make_optimizer() if "optimizer" in tr else None
        self.losses, self.grads = [], []
        self.run_calls("after_wrap")
        for i in range(tr["iters"]):
            self.clock.iter = i
            rec("iter", i=i)
            pend, row = {}, [None] * micro
            ops = tr.get("schedule") or [x for k in range(micro) for x in (f"F{k}", f"B{k}")]
            entry = tr.get("entry_at", {}).get(str(i))
            nograd = i in tr.get("no_grad_iters", [])
            for op in ops:
                if op[0] == "F":
                    k = int(op[1:])
                    self.run_calls("before_forward", i, k)
                    rec("forward", i=i, micro=k)
                    self.stage = "forward"
                    with torch.set_grad_enabled(not nograd):
                        loss = models.compute_loss(sc, m, self.data, i, k, self.rank, entry)
                    row[k] = loss.item() if self.numbers else None
                    pend[k] = loss / micro
                    self.run_calls("after_forward", i, k)
                elif nograd:
                    pend.clear()
                else:
                    ks = list(pend) if op == "BS" else [int(op[1:])]
                    self.run_calls("before_backward", i, ks[0])
                    rec("backward", i=i, micro=ks)
                    self.stage = "backward"
                    tot = sum(pend.pop(k) for k in ks)
                    tot.backward()
                    self.run_calls("after_backward", i, ks[0])
            self.losses.append(row)
            self.stage = "step"
            self.grads.append(self.snapshot(grad=True))
            if opt is not None and not nograd:
                rec("optim_step", i=i)
                R.on, on = False, R.on
                if self.numbers:
                    opt.step()
                opt.zero_grad(set_to_none=True)
                R.on = on
            self.run_calls("after_step", i)
        R.on = False

    def snapshot(self, grad):
        out = {}
        for fqn, (st, g, p) in self.managed.items():
            t = p.sharded_param.grad if grad else p.sharded_param
            out[fqn] = None if t is None else (t._local_tensor if isinstance(t, DTensor) else t).detach().clone()
        for n, p in self.model.named_parameters():
            if n not in self.managed and not isinstance(p, DTensor) and id(p) in self.param_fqn:
                t = p.grad if grad else p
                out[n] = None if t is None else t.detach().clone()
        return out

    def layout(self):
        groups, params = [], {}
        for st in self.groups():
            g = st._fsdp_param_group
            d = {"g": st._oracle_name, "modules": sorted_names(self.model, st._modules),
                 "api": "replicate" if type(st).__name__ == "_ReplicateState" else "fully_shard",
                 "params": [] if not g else [p._oracle_fqn for p in g.fsdp_params]}
            if g:
                d["shard_numel"] = sum(p._sharded_param_data.numel() for p in g.fsdp_params)
            groups.append(d)
        for fqn, (st, g, p) in self.managed.items():
            params[fqn] = {"g": st._oracle_name, "shape": list(p._orig_size), "shard_dim": p.fsdp_placement.dim,
                           "local": list(p.sharded_size), "padded": list(p.padded_sharded_param_size),
                           "dtype": DTN[p.sharded_param.dtype], "requires_grad": p.sharded_param.requires_grad,
                           "replicated": not hasattr(g.mesh_info, "shard_mesh_rank")}
            if p._oracle_aliases:
                params[fqn]["aliases"] = p._oracle_aliases
            if hasattr(p, "param_dtype"):
                params[fqn]["param_dtype"] = DTN[p.param_dtype] if p.param_dtype else None
                params[fqn]["reduce_dtype"] = DTN[p.reduce_dtype] if p.reduce_dtype else None
        return groups, params

    def run(self):
        try:
            self.mesh = self.make_mesh()
            R.pg_names = self.name_pgs(self.mesh) if self.mesh.ndim <= 2 else {}
            self.stage = "build"
            self.build()
            self.wrap()
            self.tag_params()
            self.post_forward_names()
            self.train()
            self.groups_layout, self.params_layout = self.layout()
            self.final = self.snapshot(grad=False)
            self.events, self.stream_events = R.events, R.streams
        except Exception as exc:
            self.events, self.stream_events = R.events, R.streams
            raise StageError(self.stage, exc) from exc
        finally:
            R.on = False

    def post_forward_names(self):
        for st in self.groups():
            g = st._fsdp_param_group
            if g and g.post_forward_mesh_info is not None and g.post_forward_mesh_info is not g.mesh_info:
                pf = g.post_forward_mesh_info
                R.pg_names.setdefault(pf.shard_process_group.group_name, f"post_forward_{pf.shard_mesh_size}")


def sorted_names(model, mods):
    ids = {id(x) for x in mods}
    return [n for n, x in model.named_modules() if id(x) in ids]


_pin = (torch.Tensor.pin_memory, torch.Tensor.is_pinned)


def fake_pinning():
    """No accelerator here: pinning is a no-op, but the pinned code path runs."""
    torch.Tensor.pin_memory = lambda self, *a, **k: self
    torch.Tensor.is_pinned = lambda self, *a, **k: True


def real_pinning():
    torch.Tensor.pin_memory, torch.Tensor.is_pinned = _pin


def run_threads(sc, world, init, data, use_streams=True, timeout=240):
    record.use_stand_in(use_streams)
    if any(w.get("offload") == "cpu_pinned" for w in sc["wrap"]):
        fake_pinning()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = dist.HashStore()
    engines, errors = [None] * world, [None] * world

    def worker(rank):
        torch.set_num_threads(1)
        dist.init_process_group(backend="threaded", rank=rank, world_size=world, store=store)
        try:
            engines[rank] = Engine(sc, rank, init, data)
            engines[rank].run()
        except BaseException as exc:  # noqa: B036
            errors[rank] = (exc, traceback.format_exc())
            ProcessLocalGroup.exception_handle(exc)
        finally:
            R.on = False
            try:
                dist.destroy_process_group()
            except Exception:
                pass

    threads = [threading.Thread(target=worker, args=(r,), daemon=True) for r in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout)
    dead = any(t.is_alive() for t in threads)
    ProcessLocalGroup.reset()
    _uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    record.use_stand_in(False)
    real_pinning()
    if dead:
        raise RuntimeError("ranks hang")
    return engines, errors


def threads_map(world, body):
    """Run body(rank) on every rank of a threaded world and return the results in rank order."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store = dist.HashStore()
    out, errs = [None] * world, []

    def worker(rank):
        dist.init_process_group(backend="threaded", rank=rank, world_size=world, store=store)
        try:
            out[rank] = body(rank)
        except BaseException as exc:  # noqa: B036
            errs.append((rank, exc))
            ProcessLocalGroup.exception_handle(exc)
        finally:
            try:
                dist.destroy_process_group()
            except AttributeError:
                pass

    ts = [threading.Thread(target=worker, args=(r,), daemon=True) for r in range(world)]
    for t in ts:
        t.start()
    for t in ts:
        t.join(120)
    ProcessLocalGroup.reset()
    _uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    if errs:
        raise errs[0][1]
    return out
