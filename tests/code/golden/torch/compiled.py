# llama-3.1-8b with 2 layers on 8 GPUs of dgx-h100-1: strategy compiled of
#   experiment.yaml, written by tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cuda"); then initialise or load it, and make the optimizer.
# Not said: precision.linear=fp8_tensorwise: convert_to_float8_training() of torchao,
#   before apply().
# Not said: precision.fp8_gather=true:
#   Float8LinearConfig(enable_fsdp_float8_all_gather=True) of torchao.
# Yours, and part of the prediction: model.name=llama-3.1-8b, model.layers=2, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    blocks = model.model.layers
    for name, block in blocks.named_children():
        blocks.register_module(name, torch.compile(block))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in model.model.layers.children():
        shard(block)
    shard(model)
    return model
