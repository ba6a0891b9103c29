"""Records a scenario of kind `tp_layout`: where tensor parallelism and then FSDP put the elements of each parameter.

Nothing runs and nothing is sent: each rank in turn cuts parameters whose values are their own flat indices.
"""
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import golden, models, record, run
from .models import glob_re

STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel, "sequence": SequenceParallel}


def describe(placement):
    name = type(placement).__name__
    if name == "Replicate":
        return ["replicate"]
    if name == "_StridedShard":
        return ["strided_shard", placement.dim, placement.split_factor]
    return ["shard", placement.dim]


def runs(local):
    """[start, length] of consecutive indices, each as long as possible."""
    out = []
    for i in local.flatten().to(torch.int64).tolist():
        if out and out[-1][0] + out[-1][1] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return out


class TpEngine(run.Engine):
    """One rank: builds, cuts for tensor parallelism, then wraps."""

    def __init__(self, sc, rank):
        super().__init__({**sc, "tp_only": True}, rank, None, None, on=False)

    def cut(self):
        model = self.model
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.arange(p.numel()).view(p.shape))
        for name, module in list(model.named_modules()):
            for pattern, style in self.sc["tp"]:
                if glob_re(pattern).match(name):
                    parallelize_module(module, self.mesh["tp"], STYLES[style](), src_data_rank=None)
        self.tp_placements = {n: [describe(x) for x in p.placements] if isinstance(p, DTensor) else None
                              for n, p in model.named_parameters()}

    def run(self):
        self.stage = "mesh"
        self.mesh = self.make_mesh()
        try:
            self.stage = "build"
            self.model = models.build(self.sc["model"])
            self.shapes = {n: list(p.shape) for n, p in self.model.named_parameters()}
            self.cut()
            self.wrap()
        except Exception as error:
            raise run.StageError(self.stage, error) from error

    def params(self):
        return {n: p for n, p in self.model.named_parameters() if n in self.shapes}

    def layout(self):
        dims = self.sc["wrap"][-1]["mesh_dims"]
        return {n: {"shape": self.shapes[n], "tp_placements": self.tp_placements[n],
                    "mesh_dims": dims + ([] if self.tp_placements[n] is None else ["tp"]),
                    "placements": [describe(x) for x in p.placements]} for n, p in self.params().items()}

    def held(self):
        return {n: {"local": list(p._local_tensor.shape), "runs": runs(p._local_tensor)} for n, p in self.params().items()}


def layout_result(sc):
    """(result, None) or (None, StageError)."""
    world = golden.mesh_world(sc)
    record.use_stand_in(False)
    result = {"name": sc["name"], "kind": "tp_layout", "world": world, "torch": torch.__version__.split("+")[0], "ranks": []}
    for rank in range(world):
        dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())
        try:
            engine = TpEngine(sc, rank)
            engine.run()
            if rank == 0:
                result["params"] = engine.layout()
            result["ranks"].append({"rank": rank, "params": engine.held()})
        except run.StageError as error:
            return None, error
        finally:
            dist.destroy_process_group()
    return result, None
