#!/usr/bin/env python3
"""The baseline of a tiny model on processor cores: its losses, for `run.sh pairing`, which compares them with ours. The same
build(), make_step(), values and tokens as measure.py's, FSDP2 with one rank; no GPU.

    pairing.py MODEL FILE.json --batch B --seq S --steps N [--precision bf16|f32] [--ac none|full|selective] [--compiled]
"""
import argparse, json, sys

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from models import CONFIG, batch_of, build, flops_per_token, loss_of, make_step


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", choices=sorted(CONFIG))
    p.add_argument("file")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--precision", default="bf16", choices=["bf16", "f32"], help="f32: without FSDP, which casts to bf16")
    p.add_argument("--ac", default="none", choices=["none", "full", "selective"])
    p.add_argument("--compiled", action="store_true", help="as fsdp_compile is: each block, and the loss")
    p.add_argument("--rope", default="real", choices=["real", "complex"])
    a = p.parse_args()
    torch.set_num_threads(1)
    c = dict(CONFIG[a.model], seq=a.seq, rope=a.rope)
    wrap = "fsdp" if a.precision == "bf16" else "f32"
    if wrap == "fsdp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    m = build(c, wrap, a.ac, a.compiled, "inductor", device="cpu")
    _, _, flop, _ = flops_per_token(c, m)
    opt = torch.optim.AdamW(m.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    step = make_step(c, m, wrap, torch.compile(loss_of, dynamic=False) if a.compiled else loss_of, opt, device="cpu")
    losses, norms = [], []
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        for i in range(a.steps):
            loss, norm = step(*batch_of(i, a.batch, a.seq, c["vocab"]))
            losses.append(float(loss))
            norms.append(float(norm))
    with open(a.file, "w") as f:
        json.dump(dict(model=a.model, precision=a.precision, ac=a.ac, losses=losses, grad_norms=norms, flop_per_token=flop), f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
