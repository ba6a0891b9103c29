#!/usr/bin/env python3
"""block.py MODEL CHECKPOINT [--tp N] [--code]: what torch.compile makes of one transformer block, without a GPU.

    LD_PRELOAD=libfakecuda.so python block.py llama none          # ../mem/build.sh makes the stand-in CUDA runtime

MODEL: llama (torchtitan's block), gpt2 (plain LayerNorm, biased products, GELU), loss (cross-entropy of a vocabulary that
--tp cuts, under loss_parallel). CHECKPOINT: none, full, selective. --tp: tensor parallelism over a fake process group.
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


class Attention(nn.Module):
    """torchtitan's; the heads of this rank if wq, wk and wv are cut."""

    def __init__(self, dim, heads, kv_heads, head_dim):
        super().__init__()
        self.n, self.d = heads // kv_heads, head_dim
        self.wq = nn.Linear(dim, heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x, freqs):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, -1, self.d) for t in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = rotate(q, freqs), rotate(k, freqs)
        if self.n > 1:
            k, v = (t[:, :, :, None, :].expand(b, s, -1, self.n, self.d).reshape(b, s, -1, self.d) for t in (k, v))
        o = flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def rotate(x, freqs):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


class Llama(nn.Module):
    """torchtitan's TransformerBlock at the end of 2024."""

    def __init__(self, dim, heads, kv_heads, hidden, seq):
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(dim, heads, kv_heads, dim // heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.register_buffer("freqs", torch.empty(seq, dim // heads // 2, dtype=torch.complex64))

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x), self.freqs)
        return h + self.feed_forward(self.ffn_norm(h))


def make_mesh(size):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    return dist.init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))


def parallelize(block, size, plain):
    """As torchtitan's apply_tp: sequence parallel between the regions; plain: all-reduces."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, parallelize_module)
    mesh = make_mesh(size)
    out = Replicate() if plain else Shard(1)
    parts = {} if plain else {
        "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
    parallelize_module(block, mesh, parts | {
        "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=out),
        "feed_forward.w1": ColwiseParallel(), "feed_forward.w2": RowwiseParallel(output_layouts=out),
        "feed_forward.w3": ColwiseParallel()})


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
            torch.ops.aten._scaled_dot_product_flash_attention.default,
            torch.ops._c10d_functional.reduce_scatter_tensor.default}
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


def make_block(args):
    shape = dict(llama=(4096, 32, 8, 14336), gpt2=(1600, 25, 25, 6400))[args.model]
    batch, seq = (2, 8192) if args.model == "llama" else (4, 1024)
    with torch.device("cuda"):
        inner = (Llama if args.model == "llama" else Gpt2)(*shape, seq)
        if args.tp > 1:
            parallelize(inner, args.tp, args.plain)
        local = seq if args.plain else seq // args.tp
        return Checkpointed(inner, args.checkpoint), torch.empty(args.batch or batch, local, shape[0], requires_grad=True)


def cut_loss(tp, backend):
    """The loss of torchtitan, compiled, under loss_parallel: 128,256 words, 2 x 8192 tokens."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel
    mesh = make_mesh(tp)
    with torch.device("cuda"):
        logits = DTensor.from_local(torch.empty(2, 8192, 128256 // tp), mesh, [Shard(2)], run_check=False).requires_grad_()
        labels = torch.empty(2, 8192, dtype=torch.int64)

    def loss(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    with loss_parallel():
        torch.compile(loss, backend=backend, fullgraph=True)(logits, labels).backward()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["llama", "gpt2", "loss"])
    parser.add_argument("checkpoint", choices=["none", "full", "selective"])
    parser.add_argument("--code", action="store_true")
    parser.add_argument("--tp", type=int, default=1, help="ranks of tensor parallelism (llama)")
    parser.add_argument("--plain", action="store_true", help="tensor without sequence parallelism")
    parser.add_argument("--batch", type=int)
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
    torch.set_default_dtype(torch.bfloat16)
    if args.model == "loss":
        return cut_loss(args.tp, backend)
    block, x = make_block(args)
    y = torch.compile(block, backend=backend, fullgraph=True)(x)
    y.backward(torch.empty_like(y))


if __name__ == "__main__":
    main()
