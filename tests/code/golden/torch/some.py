# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy some of experiment.yaml, written by
#   tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cuda"); then initialise or load it, and make the optimizer.
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.

from functools import partial

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    blocks = model.model.layers
    for i in (1, 3, 6, 8, 11, 13):
        block = blocks.get_submodule(str(i))
        blocks.register_module(str(i), checkpoint_wrapper(block))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in model.model.layers.children():
        shard(block)
    shard(model)
    return model


def tie(model):
    """After to_empty(): what was one parameter is two."""
    model.lm_head.weight = model.model.embed_tokens.weight
