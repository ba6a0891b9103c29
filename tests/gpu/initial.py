#!/usr/bin/env python3
"""Gives `tessera run` the same start as the baselines of measure.py have: initial values and data.

    initial.py MODEL FOLDER --batch B --seq S --steps N [--device cuda]

MODEL is one of models.py's CONFIG. Writes FOLDER/model.safetensors (Hugging Face's names, fp32; models.py's fill()) and
FOLDER/train.bin (tokens of all steps in order, as llm.c writes them; models.py's token()). Needs PyTorch.
"""
import argparse, json, os, struct, sys

import numpy as np
import torch

from models import CONFIG, GPT2, Llama, fill, token

LLAMA = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
         "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
         "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
GPT = {"attn_proj": "attn.c_proj", "mlp_proj": "mlp.c_proj", "c_attn": "attn.c_attn", "c_fc": "mlp.c_fc"}


def hf_name(family, name):
    """What a parameter of models.py is called in files of Hugging Face."""
    module, _, leaf = name.rpartition(".")
    head, _, rest = module.partition(".")
    if family == "gpt2":
        if head != "h":
            return f"transformer.{name}"
        number, _, inner = rest.partition(".")
        return f"transformer.h.{number}.{GPT.get(inner, inner)}.{leaf}"
    if head != "layers":
        return f"{LLAMA[module]}.{leaf}"
    number, _, inner = rest.partition(".")
    return f"model.layers.{number}.{LLAMA[inner]}.{leaf}"


def as_in_files(c, name, t):
    """The values as they lie in files of Hugging Face: rows of q and k for pairs (i, i + D/2) instead of neighbours; Conv1D's
    [in, out]."""
    if c["family"] == "llama" and (".wq." in name or ".wk." in name):
        d = c["dim"] // c["heads"]
        return t.view(-1, d // 2, 2, t.shape[1]).transpose(1, 2).reshape(t.shape)
    if c["family"] == "gpt2" and name.startswith("h.") and t.dim() == 2:
        return t.t().contiguous()
    return t


def parameters(c):
    """Name, shape and place in named_parameters() of every parameter, as build() numbers them."""
    with torch.device("meta"):
        m = Llama(c) if c["family"] == "llama" else GPT2(c)
    if c["tied"]:
        emb, _, _, head = m.parts()
        head.weight = emb.weight
    return [(i, name, p.shape) for i, (name, p) in enumerate(m.named_parameters())]


def initial_value(index, name, shape, device):
    if len(shape) == 1:                                 # of norms and biases
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, device=device)
    t = torch.empty(shape, device=device)
    fill(t, index)
    return t


def write_weights(path, c, device):
    """In the order of names, which safetensors' own writer has for one dtype."""
    entries = sorted((hf_name(c["family"], name), index, name, shape) for index, name, shape in parameters(c))
    header, at = {}, 0
    for hf, _, name, shape in entries:
        n = 4 * shape.numel()
        turned = list(shape)[::-1] if c["family"] == "gpt2" and name.startswith("h.") and len(shape) == 2 else list(shape)
        header[hf] = dict(dtype="F32", shape=turned, data_offsets=[at, at + n])
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, index, name, shape in entries:
            f.write(memoryview(as_in_files(c, name, initial_value(index, name, shape, device)).cpu().numpy()).cast("B"))
    os.replace(path + ".tmp", path)
    return at


def write_tokens(path, vocab, n):
    """llm.c's two kinds: 16 bits for GPT-2's vocabulary, 32 for Llama-3's."""
    small = vocab <= 1 << 16
    header = np.zeros(256, dtype="<i4")
    header[:3] = (20240520, 1, n) if small else (20240801, 7, n)
    with open(path + ".tmp", "wb") as f:
        f.write(header.tobytes())
        for a in range(0, n, 1 << 22):
            f.write(token(torch.arange(a, min(a + (1 << 22), n)), vocab).numpy().astype("<u2" if small else "<u4").tobytes())
    os.replace(path + ".tmp", path)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", choices=sorted(CONFIG))
    p.add_argument("folder")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="that computes the values")
    a = p.parse_args()
    c = dict(CONFIG[a.model], seq=a.seq, rope="real")
    os.makedirs(a.folder, exist_ok=True)
    n = write_weights(os.path.join(a.folder, "model.safetensors"), c, a.device)
    write_tokens(os.path.join(a.folder, "train.bin"), c["vocab"], a.steps * a.batch * a.seq + 1)
    print(f"{a.folder}: {n / 2**30:.2f} GiB of parameters, {a.steps * a.batch * a.seq + 1} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
