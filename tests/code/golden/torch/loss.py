# llama-3.1-8b with 2 layers on 8 GPUs of dgx-h100-1: strategy loss of experiment.yaml,
#   written by tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cuda"); then initialise or load it, and make the optimizer.
# You bring: compile.components=[model, loss]: your loss function is given to
#   torch.compile.
# Yours, and part of the prediction: stack=torchtitan-2026, model.name=llama-3.1-8b,
#   model.layers=2, model.names=torchtitan, model.norm=kernel, seq=128,
#   optimizer.variant=fused, clip=true, attention=flash, gqa_repeat=false.
# Of the simulation alone: cluster.name=dgx-h100-1, sim.attention_kernel=cudnn.

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    blocks = model.layers
    for name, block in blocks.named_children():
        blocks.register_module(name, torch.compile(block))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    shard(model.tok_embeddings, reshard_after_forward=True)
    for block in model.layers.children():
        shard(block, reshard_after_forward=True)
    shard([model.norm, model.output], reshard_after_forward=False)
    shard(model, reshard_after_forward=True)
    return model
