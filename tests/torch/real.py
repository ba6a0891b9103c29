"""What the real FSDP2 does with the models of models.py, on the stand-in device and a fake process
group of 8 ranks: prints one line of JSON, {case: what happened}. Run with the stand-in preloaded."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import models

WRAPS = {"child_weight": ["blocks.0.down", "blocks.1.down", "blocks.2.down"]}


def happens(case):
    """The error's first line, "untied", or "works"."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cuda", (8,))
    with torch.device("meta"):
        model, batch, loss = getattr(models, case)()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    try:
        for name in WRAPS.get(case, ["blocks.0", "blocks.1", "blocks.2"]):
            fully_shard(model.get_submodule(name), mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if case == "tie" and model.head.weight is not model.blocks[0].down.weight:
            return "untied"
        model.to_empty(device="cuda")
        batch = {k: torch.empty_like(v, device="cuda") for k, v in batch.items()}
        loss(model(**batch), batch).backward()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "works"


def in_process(case):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, happens(case).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as pipe:
        return pipe.read()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({case: in_process(case) for case in sys.argv[1:]}))
