"""Records a scenario of kind `ddp`: which buckets the DDP-based `replicate` reduces in each backward.

Rank 0 runs alone, on collectives that do nothing; a communication hook sees the buckets in the order of their reduction.
"""
import torch
import torch.distributed as dist
from torch.distributed._composable.replicate import replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import fast, golden, models, record, run
from .record import R, rec


class DdpEngine(fast.FastEngine):
    def wrap(self):
        self.stage = "wrap"
        names = {id(p): n for n, p in self.model.named_parameters()}
        replicate(self.model, **self.sc["ddp"])

        def hook(state, bucket):
            buffer = bucket.buffer()
            rec("bucket", index=bucket.index(), last=bucket.is_last(), numel=sum(p.numel() for p in bucket.parameters()),
                bytes=sum(p.numel() for p in bucket.parameters()) * buffer.element_size(),
                params=[names[id(p)] for p in bucket.parameters()])
            done = torch.futures.Future()
            done.set_result(buffer)
            return done
        self.model.register_comm_hook(None, hook)

    def groups(self):
        return []

    def call(self, c):
        assert c["fn"] == "set_requires_gradient_sync", c
        rec("call")
        self.model.set_requires_gradient_sync(c["args"]["value"])


def buckets(events):
    """One entry for each backward."""
    out = []
    for event in events:
        if event["e"] == "backward":
            out.append({"iter": event["i"], "micro": event["micro"][0], "buckets": []})
        elif event["e"] == "bucket":
            out[-1]["buckets"].append({k: event[k] for k in ("index", "last", "numel", "bytes", "params")})
    return out


def bucket_result(sc):
    """(result, None) or (None, StageError)."""
    world = golden.mesh_world(sc)
    seed = sc["train"].get("seed", 0)
    record.use_stand_in(False)
    dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())
    try:
        engine = DdpEngine(sc, 0, models.init_params(sc["model"], seed), models.make_data(sc, 1))
        engine.run()
    except run.StageError as error:
        return None, error
    finally:
        R.on = False
        dist.destroy_process_group()
    return {"name": sc["name"], "kind": "ddp", "world": world, "torch": torch.__version__.split("+")[0],
            "buckets": buckets(engine.events)}, None
