"""Records a scenario of kind `train` with rank 0 only, on a process group whose collectives do nothing.

Decisions never depend on values, so this gives the same layout, events and stream events as one thread per rank
(golden.py) in a fraction of the time; `check()` compares the two. Gradients, losses and final parameters are not computed.
"""
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import golden, models, record, run


class FastEngine(run.Engine):
    """The engine of one rank, without the parts that only numbers need."""

    numbers = False

    def snapshot(self, grad):
        return {}


def local_shapes(shape, dim, n):
    """Shapes of the pieces that torch.chunk makes, then empty ones, as [count, shape] runs."""
    pieces = [list(c.shape) for c in torch.chunk(torch.empty(shape, device="meta"), n, dim)]
    empty = list(shape)
    empty[dim] = 0
    return golden.rle(pieces + [empty] * (n - len(pieces)))


def layout_params(engine, n_shards):
    """The layout's `params` of all ranks from what rank 0 has."""
    lay, out = engine.params_layout, {}
    for name in list(engine.global_shape) + [x for x in lay if x not in engine.global_shape]:
        if name not in lay:
            out[name] = {"g": None, "shape": engine.global_shape[name],
                         "requires_grad": engine.requires_grad[name]}
            continue
        entry = dict(lay[name])
        if entry.pop("replicated"):
            entry["local"] = [[1, entry["local"]]]
            entry["shard_dim"] = None
        else:
            shapes = local_shapes(entry["shape"], entry["shard_dim"], n_shards)
            assert shapes[0][1] == entry["local"], name
            entry["local"] = shapes
        out[name] = entry
    return out


def train_result(sc):
    """(result, None) or (None, StageError)."""
    world = golden.mesh_world(sc)
    seed = sc["train"].get("seed", 0)
    record.use_stand_in(True)
    if any(w.get("offload") == "cpu_pinned" for w in sc["wrap"]):
        run.fake_pinning()
    dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())
    try:
        engine = FastEngine(sc, 0, models.init_params(sc["model"], seed), models.make_data(sc, 1))
        engine.run()
    except run.StageError as error:
        return None, error
    finally:
        dist.destroy_process_group()
        record.use_stand_in(False)
        run.real_pinning()
    return {"name": sc["name"], "kind": "train", "world": world,
            "torch": torch.__version__.split("+")[0],
            "process_groups": golden.process_groups(sc),
            "layout": {"groups": engine.groups_layout,
                       "params": layout_params(engine, golden.shard_size(sc))},
            "events": engine.events, "stream_events": engine.stream_events}, None
