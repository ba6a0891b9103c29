# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy replicate_1 of experiment.yaml, written
#   by tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cpu"); then initialise or load it, and make the optimizer.
#   Buffers go to the GPU.
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.

from functools import partial

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    shard = partial(
        fully_shard, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)
    )
    for block in model.model.layers.children():
        shard(block)
    shard(model)
    blocks = model.model.layers
    for name, block in blocks.named_children():
        blocks.register_module(name, checkpoint_wrapper(block))
    return model


def tie(model):
    """After to_empty(): what was one parameter is two."""
    model.lm_head.weight = model.model.embed_tokens.weight
