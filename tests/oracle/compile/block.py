#!/usr/bin/env python3
"""block.py MODEL CHECKPOINT [--code]: what torch.compile makes of one transformer block, without a GPU.

    LD_PRELOAD=libfakecuda.so python block.py llama none          # ../mem/build.sh makes the stand-in CUDA runtime

MODEL: llama (torchtitan's block), gpt2 (plain LayerNorm, biased products, GELU). CHECKPOINT: none, full, selective.
Traces the block with AOTAutograd, partitions it (min-cut), lowers both graphs by Inductor up to
the text of its kernels, and prints: saved tensors; every kernel and library call in order, with the operations that it
fuses. The Triton text is made, not compiled. Needs torch 2.11 with triton. engine/compile/COMPILE.md quotes the output.
"""
import argparse
import re
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn


# ---- blocks -------------------------------------------------------------------------------------
def flash(q, k, v):
    """As scaled_dot_product_attention(is_causal=True) with the flash back end."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, return_debug_mask=False)[0]


class Llama(nn.Module):
    """torchtitan's TransformerBlock at the end of 2024."""

    def __init__(self, dim, heads, kv_heads, hidden, seq):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, dim // heads
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.wq = nn.Linear(dim, heads * self.d, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.d, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.d, bias=False)
        self.wo = nn.Linear(heads * self.d, dim, bias=False)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.register_buffer("freqs", torch.empty(seq, self.d // 2, dtype=torch.complex64))

    def rotate(self, x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.freqs.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)

    def attend(self, x):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (t.view(b, s, -1, self.d) for t in (q, k, v))
        q, k = self.rotate(q), self.rotate(k)
        n = self.heads // self.kv_heads
        if n > 1:
            k, v = (t[:, :, :, None, :].expand(b, s, self.kv_heads, n, self.d).reshape(b, s, self.heads, self.d)
                    for t in (k, v))
        o = flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))

    def forward(self, x):
        h = x + self.attend(self.attention_norm(x))
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Gpt2(nn.Module):
    """nanoGPT's block with biases and the tanh GELU; MPT's is the same with an erf GELU."""

    def __init__(self, dim, heads, kv_heads, hidden, seq):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.c_fc, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def attend(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(d, dim=2))
        return self.c_proj(flash(q, k, v).transpose(1, 2).contiguous().view(b, s, d))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.down(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


# ---- checkpointing, as torchtitan's apply_ac ----------------------------------------------------
def policy_of():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    keep = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default,
            torch.ops.aten._scaled_dot_product_flash_attention.default}
    counts = {"forward": 0, "recompute": 0}

    def policy(ctx, func, *args, **kwargs):
        mode = "recompute" if ctx.is_recompute else "forward"
        product = func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        counts[mode] += product
        kept = func in keep and not (product and counts[mode] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)


class Checkpointed(nn.Module):
    def __init__(self, block, how):
        super().__init__()
        self.block, self.how = block, how

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        if self.how == "none":
            return self.block(x)
        extra = {"context_fn": policy_of} if self.how == "selective" else {}
        return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False, **extra)


# ---- compile ------------------------------------------------------------------------------------
def size(t):
    return "%-22s %-9s %8.1f MiB" % (tuple(t.shape), str(t.dtype)[6:], t.numel() * t.element_size() / 2**20)


def describe(code):
    """Kernels and library calls of Inductor's text, in order."""
    out = []
    call = code[code.index("def call("):] if "def call(" in code else code
    comment = ""
    for line in call.splitlines():
        text = line.strip()
        m = re.match(r"# Topologically Sorted Source Nodes: \[.*?\], Original ATen: \[(.*?)\]", text)
        if m:
            comment = m.group(1)
        elif ".run(" in text:
            out.append("kernel  %-28s %s" % (re.sub(r"triton_(\w{3}).*", r"triton_\1", text.split(".run")[0]), comment))
        elif "extern_kernels." in text or re.match(r"buf\d+ = torch.ops", text) or ".default(" in text:
            name = re.search(r"(extern_kernels\.\w+|torch\.ops\.[\w.]+)", text)
            out.append("library %s" % (name.group(1) if name else text))
        elif re.match(r"buf\d+ = empty", text):
            out.append("  alloc  " + text)
        elif text.startswith("del "):
            out.append("  free   " + text)
        elif "# reuse" in text:
            out.append("  reuse  " + text)
    return out


def lower(gm, inputs, forward, args):
    from torch._guards import detect_fake_mode
    from torch._inductor.graph import GraphLowering
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp
    from torch._inductor.virtualized import V
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.compile_fx import view_to_reshape
    view_to_reshape(gm)
    with V.set_fake_mode(detect_fake_mode(inputs)):
        FakeTensorProp(gm, mode=detect_fake_mode(inputs)).propagate(*inputs)
        post_grad_passes(gm, not forward)
    graph = GraphLowering(gm, example_inputs=inputs, is_inference=False, is_backward=not forward)
    with V.set_fake_mode(detect_fake_mode(inputs)), V.set_graph_handler(graph), V.set_debug_handler(mock.MagicMock()):
        graph.run(*inputs)
        code, _ = graph.codegen()
    code = code.value if hasattr(code, "value") else code
    if args.code:
        print(code)
    for line in describe(code):
        print("   ", line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["llama", "gpt2"])
    parser.add_argument("checkpoint", choices=["none", "full", "selective"])
    parser.add_argument("--code", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    args = parser.parse_args()
    import torch._inductor.config as config
    config.fx_graph_cache = False
    config.compile_threads = 1
    from torch._dynamo.backends.common import aot_autograd
    import torch.utils._triton  # asks the driver only for a hash
    torch.utils._triton.triton_hash_with_backend = lambda: "none"
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    torch.set_default_dtype(torch.bfloat16)
    shape = dict(llama=(4096, 32, 8, 14336), gpt2=(1600, 25, 25, 6400))[args.model]
    batch, seq = (2, 8192) if args.model == "llama" else (4, 1024)
    with torch.device("cuda"):
        block = Checkpointed((Llama if args.model == "llama" else Gpt2)(*shape, seq), args.checkpoint)
        x = torch.empty(batch, seq, shape[0], requires_grad=True)

    def compiler(forward, gm, inputs):
        print("forward graph" if forward else "backward graph")
        if args.graphs:
            print(gm.code)
        if forward:
            outputs = [n for n in gm.graph.nodes if n.op == "output"][0].args[0]
            print("  saved:")
            for n in outputs[1:]:
                v = n.meta["val"]
                print("    %-28s %s" % (n.name, size(v) if isinstance(v, torch.Tensor) else v))
        print("  kernels:")
        lower(gm, inputs, forward, args)
        return gm.forward

    backend = aot_autograd(fw_compiler=partial(compiler, True), bw_compiler=partial(compiler, False),
                           partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table())
    y = torch.compile(block, backend=backend, fullgraph=True)(x)
    y.backward(torch.empty_like(y))


if __name__ == "__main__":
    main()
