# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy fsdp1 of experiment.yaml, written by
#   tessera 0.1.0.
#
# Use: model = apply(model.cuda(), build_mesh()).
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128.
# Of the simulation alone: cluster.name=dgx-h100-1.
# train.decay: matrices: FSDP1's shards have one dimension: an optimizer that is made
#   after wrapping, by p.dim() > 1, decays nothing (train.decay: all).

from functools import partial

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("shard",))


def apply(model, mesh):
    blocks = model.model.layers
    for name, block in blocks.named_children():
        blocks.register_module(name, checkpoint_wrapper(block))
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = partial(
        FullyShardedDataParallel,
        device_mesh=mesh,
        mixed_precision=policy,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=False,
        limit_all_gathers=True,
        use_orig_params=True,
    )
    blocks = model.model.layers
    for name, block in blocks.named_children():
        blocks.register_module(
            name, shard(block, sharding_strategy=ShardingStrategy.FULL_SHARD)
        )
    return shard(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
