#!/usr/bin/env python3
"""Records training runs of transformers' models: what `tessera run` must compute, step by step.

    PYTHON record.py --out recorded [--model llama] [--text FILE]

Needs torch, numpy, safetensors and transformers. Writes, per model, the configuration, the
initial weights (bf16 values in bf16 files, trained in f32) and logits of these, and to curves.json the loss and the
norm of the gradient of every step and the held-out loss at the end. With --text FILE the token
files are made again from its bytes; otherwise those that are there are used.
"""
import argparse
import json
import math
import os
import struct

import numpy as np
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import order

SEQ, BATCH, SEED = 64, 8, 1
TRAIN_TOKENS, VAL_SAMPLES = 40000, 64
LR, WARMUP, MIN_LR = 1e-3, 20, 0.1
BETAS, EPS, DECAY, MAX_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
CURVES = {"40": (40, False), "200": (200, False), "40-bf16": (40, True)}   # steps, mixed precision

MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, dict(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, max_position_embeddings=128, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False)),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, dict(
        n_embd=64, n_layer=2, n_head=4, n_positions=64, vocab_size=256, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new", bos_token_id=None,
        eos_token_id=None)),
}


def write_tokens(path, data):
    """llm.c's file for GPT-2: 256 int32, then uint16."""
    head = struct.pack("<3i", 20240520, 1, len(data)).ljust(1024, b"\0")
    with open(path, "wb") as f:
        f.write(head + np.frombuffer(data, np.uint8).astype("<u2").tobytes())


def read_tokens(path):
    with open(path, "rb") as f:
        head = f.read(1024)
        tokens = np.frombuffer(f.read(), "<u2").astype(np.int64)
    assert struct.unpack("<3i", head[:12]) == (20240520, 1, len(tokens))
    return tokens


def windows(tokens, which):
    """Inputs and labels of samples: T + 1 tokens each, T apart."""
    rows = np.stack([tokens[i * SEQ:i * SEQ + SEQ + 1] for i in which])
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def factor(step, steps):
    """exec/train/train.h: warm-up, then cosine."""
    if step < WARMUP:
        return (step + 1) / (WARMUP + 1)
    p = min(1.0, (step + 1 - WARMUP) / (steps - WARMUP + 1))
    return MIN_LR + (1 - MIN_LR) * (1 + math.cos(math.pi * p)) / 2


def build(name):
    """A model whose values are exact in bf16; biases and norms are not those of a fresh model."""
    cls, config, fields = MODELS[name]
    torch.manual_seed(0)
    model = cls(config(attn_implementation="eager", **fields)).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.05)
            p.copy_(p.bfloat16().float())
    return model


def mixed(model):
    """FSDP2 on one rank: parameters and activations in bf16, gradients reduced in f32."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = model.model.layers if hasattr(model, "model") else model.transformer.h
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def loss_of(model, inputs, labels):
    logits = model(inputs, use_cache=False).logits
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                             labels.reshape(-1))


def held_out(model, tokens):
    """Mean over all samples, some at a time."""
    losses = []
    with torch.no_grad():
        for first in range(0, VAL_SAMPLES, BATCH):
            losses.append(loss_of(model, *windows(tokens, range(first, first + BATCH))).item())
    return sum(losses) / len(losses)


def optimizer_of(model):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)


def number(x):
    return round((x.full_tensor() if hasattr(x, "full_tensor") else x).item(), 7)


def train(model, steps, train_tokens, val_tokens):
    n = (len(train_tokens) - 1) // SEQ
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor(t, steps))
    curve = {"loss": [], "grad_norm": []}
    for step in range(steps):
        inputs, labels = windows(train_tokens, order.samples(n, SEED, step * BATCH, BATCH))
        loss = loss_of(model, inputs, labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        curve["loss"].append(number(loss))
        curve["grad_norm"].append(number(norm))
    curve["eval"] = round(held_out(model, val_tokens), 7)
    return curve


def save_initial(name, folder):
    model = build(name)
    config = dict(MODELS[name][2], model_type=name, architectures=[MODELS[name][0].__name__])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    state, seen = {}, set()
    for key, value in model.state_dict().items():
        if value.is_floating_point() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            state[key] = value.bfloat16().contiguous()
    save_file(state, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def save_logits(name, folder, tokens):
    """Of the initial model, for the first sample that is held out."""
    inputs, _ = windows(tokens, [0])
    with torch.no_grad():
        logits = build(name)(inputs, use_cache=False).logits[0]
    save_file({"tokens": inputs[0].contiguous(), "logits": logits.contiguous()},
              os.path.join(folder, "logits.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--text")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    files = [os.path.join(args.out, f) for f in ("train.bin", "val.bin")]
    if args.text:
        text = open(args.text, "rb").read()
        write_tokens(files[0], text[:TRAIN_TOKENS])
        write_tokens(files[1], text[TRAIN_TOKENS:TRAIN_TOKENS + VAL_SAMPLES * SEQ + 1])
    tokens = [read_tokens(f) for f in files]
    path = os.path.join(args.out, "curves.json")
    curves = json.load(open(path)) if os.path.exists(path) else {}
    curves["made_with"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name in MODELS:
        if args.model in (None, name):
            folder = os.path.join(args.out, name)
            save_initial(name, folder)
            save_logits(name, folder, tokens[1])
            curves[name] = {key: train(mixed(build(name)) if bf16 else build(name), steps, *tokens)
                            for key, (steps, bf16) in CURVES.items()}
    with open(path, "w") as f:
        json.dump(curves, f, indent=None, separators=(",", ":"), sort_keys=True)
        f.write("\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
