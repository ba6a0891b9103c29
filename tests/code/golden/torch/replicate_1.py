# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy replicate@1 of experiment.yaml, written
#   by tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cuda"); then initialise or load it, and make the optimizer.
# Not said: dialect=fused: kernels of tessera's own, which PyTorch has not.
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.

from functools import partial

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("replicate",))


def apply(model, mesh):
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    shard = partial(replicate, mesh=mesh, mp_policy=policy)
    shard(model)
    model.set_reshard_after_backward(False)
    return model


def tie(model):
    """After to_empty(): what was one parameter is two."""
    model.lm_head.weight = model.model.embed_tokens.weight
