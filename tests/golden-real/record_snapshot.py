"""A small Llama with fully_shard: three steps, recorded from the start ("whole")
or from the third ("late"); then a snapshot."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import models


def train(path, when):
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    if when == "whole":
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cuda", (4,))
    with torch.device("meta"):
        model = models.build(dict(models.LLAMA["llama-tiny"]))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.parts()[1]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(3):
        if when == "late" and step == 2:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        x = torch.empty(2, 64, dtype=torch.int64, device="cuda")
        y = torch.empty(2, 64, dtype=torch.int64, device="cuda")
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(0, 1))
        del logits
        loss.backward()
        del loss
        optimizer.step()
        del x, y
    torch.cuda.memory._dump_snapshot(path)


train(*sys.argv[1:])
