"""What Accelerate does to a model before it is sharded. Runs where the model is made, beside torch."""

import functools

import torch
from torch.utils._pytree import tree_map

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def accelerate(make, dtype):
    """`make` with trained weights in float32, its model's forward under autocast and its output in float32."""
    @functools.wraps(make)
    def made(*sizes, **named):
        model, batch, loss = make(*sizes, **named)
        for p in model.parameters():
            if p.requires_grad and p.dtype != torch.float32:
                p.data = p.data.to(torch.float32)
        model.forward = widened(model.forward, DTYPES[dtype])
        return model, batch, loss
    return made


def widened(forward, dtype):
    @functools.wraps(forward)
    def call(*inputs, **named):
        with torch.autocast("cuda", dtype):
            output = forward(*inputs, **named)
        return tree_map(widen, output)
    return call


def widen(x):
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x


def groups(make):
    """What Accelerate 1.15 makes groups of, beside the classes of blocks: names of the input embedding, unless its weight is
    the head's, and of what ends the model."""
    with torch.device("meta"):
        model = make()[0]
    names = {id(module): name for name, module in model.named_modules()}

    def name(module):
        return names.get(id(module)) if module is not None else None
    inner, outer = (getattr(model, f"get_{kind}_embeddings", lambda: None)() for kind in ("input", "output"))
    tied = getattr(inner, "weight", None) is not None and getattr(inner, "weight", None) is getattr(outer, "weight", None)
    tail = [name(m) for m in (final_norm(model), inner if tied else None, outer) if name(m)]
    return {"modules": [[n, type(m).__name__] for n, m in model.named_modules()],
            "no_split": list(getattr(model, "_no_split_modules", None) or []),
            "embedding": None if tied else name(inner), "tail": tail}


def final_norm(model):
    """The last norm among the children of the base model."""
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else model
    children = [m for m in base.children() if "Norm" in type(m).__name__] if isinstance(base, torch.nn.Module) else []
    return children[-1] if children else None
