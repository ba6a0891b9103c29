# llama-3.2-1b on 8 GPUs of dgx-h100-1: strategy acc of experiment.yaml, written by
#   tessera 0.1.0.
#
# Use: model = apply(model.cuda(), build_mesh()).
# Yours, and part of the prediction: model.name=llama-3.2-1b, seq=128,
#   accumulation.steps=2.
# Of the simulation alone: cluster.name=dgx-h100-1.
# Note: precision.param=bf16 is DDP's own mixed precision, with which PyTorch 2.11 takes
#   all parameters for unused where ddp.find_unused is true, and stops; autocast (of a
#   traced model) does not.

from contextlib import nullcontext

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision


def build_mesh(device="cuda"):
    return init_device_mesh(device, (8,), mesh_dim_names=("replicate",))


def apply(model, mesh):
    return DistributedDataParallel(
        model,
        device_mesh=mesh,
        bucket_cap_mb=12.5,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
        mixed_precision=_MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
    )


def micro_batch(model, last):
    """with micro_batch(model, i == n - 1): forward, backward"""
    return nullcontext() if last else model.no_sync()
