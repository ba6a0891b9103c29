# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy sel of experiment.yaml, written by
#   tessera 0.1.0.
#
# Use: build the model on the meta device; model = apply(model, build_mesh());
#   model.to_empty(device="cpu"); then initialise or load it, and make the optimizer.
#   Buffers go to the GPU.
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.

from collections import Counter
from functools import partial

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def keep_every_second_product():
    """Kept of a block: attention, what was reduced, and its products 1, 3, 5, ..."""
    aten = torch.ops.aten
    products = (aten.mm.default, aten.addmm.default)
    kept = (
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    )
    count = Counter()

    def policy(ctx, op, *args, **kwargs):
        if op in products:
            count[ctx.is_recompute] += 1
        if op in kept or (op in products and count[ctx.is_recompute] % 2):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply(model, mesh):
    blocks = model.model.layers
    for name, block in blocks.named_children():
        blocks.register_module(
            name, checkpoint_wrapper(block, context_fn=keep_every_second_product)
        )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    shard = partial(
        fully_shard, mesh=mesh, mp_policy=policy, offload_policy=CPUOffloadPolicy()
    )
    for block in model.model.layers.children():
        shard(block, reshard_after_forward=4)
    shard(
        [model.model.norm, model.lm_head, model.model.embed_tokens],
        reshard_after_forward=4,
    )
    shard(model, reshard_after_forward=4)
    return model


def tie(model):
    """After to_empty(): what was one parameter is two."""
    model.lm_head.weight = model.model.embed_tokens.weight
