"""Models, initial values, data and the training step of the baselines: plain modules in the style of common training code.
measure.py runs them; another program that follows fill() and batch_of() bit by bit can compare its losses."""
import contextlib, functools, math
import torch, torch.nn as nn, torch.nn.functional as F

BF, FP, DEV, MASK = torch.bfloat16, torch.float32, "cuda", 0xFFFFFFFF


def rms_hand(x, w, eps=1e-5):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * w


def rope_complex(x, freqs):                             # x [B, S, H, D]; freqs [S, D/2] complex
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * freqs.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def rope_real(x, cs):                                   # the same pairs, real arithmetic; cs [S, D/2, 2]
    y = x.float().reshape(*x.shape[:-1], -1, 2)
    c, s = cs[..., 0].view(1, x.shape[1], 1, -1), cs[..., 1].view(1, x.shape[1], 1, -1)
    a, b = y[..., 0], y[..., 1]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(3).type_as(x)


def rope_table(seq, d, theta):
    f = 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.float64)[: d // 2] / d)
    a = torch.outer(torch.arange(seq, dtype=torch.float64), f)
    return torch.stack((a.cos(), a.sin()), -1).float()


CONFIG = {
    "llama-8b-8L": dict(family="llama", dim=4096, ffn=14336, layers=8, heads=32, kv=8, vocab=128256, theta=5e5, tied=False),
    "llama-1b": dict(family="llama", dim=2048, ffn=8192, layers=16, heads=32, kv=8, vocab=128256, theta=5e5, tied=True),
    "gpt2-124M": dict(family="gpt2", dim=768, layers=12, heads=12, vocab=50304, tied=True),
    "gpt2-1558M": dict(family="gpt2", dim=1600, layers=48, heads=25, vocab=50304, tied=True),
    "tiny-llama": dict(family="llama", dim=128, ffn=256, layers=2, heads=4, kv=2, vocab=1000, theta=5e5, tied=False),
    "tiny-gpt2": dict(family="gpt2", dim=128, layers=2, heads=4, vocab=1000, tied=True),
}


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h, self.kv = c["dim"], c["heads"], c["kv"]
        self.hd = d // self.h
        self.wq, self.wk = nn.Linear(d, d, bias=False), nn.Linear(d, self.kv * self.hd, bias=False)
        self.wv, self.wo = nn.Linear(d, self.kv * self.hd, bias=False), nn.Linear(d, d, bias=False)
        self.rope = rope_complex if c["rope"] == "complex" else rope_real

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = self.rope(q.view(b, s, self.h, self.hd), self.freqs)
        k = self.rope(k.view(b, s, self.kv, self.hd), self.freqs)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.view(b, s, self.kv, self.hd).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.h)
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(i, o, bias=False) for i, o in ((c["dim"], c["ffn"]), (c["ffn"], c["dim"]), (c["dim"], c["ffn"])))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c["dim"], eps=1e-5), nn.RMSNorm(c["dim"], eps=1e-5)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.ModuleList(LlamaBlock(c) for _ in range(c["layers"]))
        self.norm, self.output = nn.RMSNorm(c["dim"], eps=1e-5), nn.Linear(c["dim"], c["vocab"], bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))

    def parts(self):
        return self.tok_embeddings, self.layers, [self.norm, self.output], self.output


class GPT2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h = c["dim"], c["heads"]
        self.ln_1, self.c_attn, self.attn_proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln_2, self.c_fc, self.mlp_proj = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.h, d // self.h).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(d, dim=2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(o.transpose(1, 2).contiguous().view(b, s, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["vocab"], c["dim"]), nn.Embedding(c["seq"], c["dim"])
        self.h, self.ln_f = nn.ModuleList(GPT2Block(c) for _ in range(c["layers"])), nn.LayerNorm(c["dim"])
        self.lm_head = nn.Linear(c["dim"], c["vocab"], bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def parts(self):
        return self.wte, self.h, [self.ln_f, self.lm_head], self.lm_head


def mix(x):
    """A 32-bit hash (murmur3's finaliser) on int64 tensors or Python ints; easily repeated in C."""
    x = x ^ (x >> 16); x = (x * 0x85EBCA6B) & MASK
    x = x ^ (x >> 13); x = (x * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)


def fill(t, index, std=0.02):
    """Parameter number index, flattened: element i = (2u - 1) std sqrt(3), u = (h >> 8) 2^-24, h = mix(mix(i) ^ mix(index + 1))."""
    flat, key = t.view(-1), mix(index + 1)
    for a in range(0, flat.numel(), 1 << 25):
        i = torch.arange(a, min(a + (1 << 25), flat.numel()), device=t.device)
        flat[a:a + i.numel()] = (((mix(mix(i) ^ key) >> 8).float() * 2.0**-23 - 1.0) * torch.tensor(std * math.sqrt(3), dtype=FP, device=t.device)).to(t.dtype)


def token(i, vocab):
    """Token number i (an int64 tensor) of an endless text, from the same hash: u as above with key mix(0x10000), token =
    floor(vocab u^3) in doubles (frequent and rare tokens, as in text)."""
    u = (mix(mix(i) ^ mix(0x10000)) >> 8).double() * 2.0**-24
    return (u * u * u * vocab).long().clamp_(max=vocab - 1)


def batch_of(step, b, s, vocab):
    """Tokens of a step: row r of it is tokens (step b + r) s ... of the text, s + 1 of them; the labels are the next tokens.
    So a file of the text, read in order in windows of s + 1, gives the same batches."""
    t = token(torch.arange(step * b * s, (step + 1) * b * s + 1), vocab)
    return t[:-1].view(b, s), t[1:].view(b, s)


def selective():
    """Operator-level checkpointing: attention and every second matrix product are kept, the rest is recomputed."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    save = {aten.mm.default, aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_cudnn_attention.default}
    count = dict(forward=0, recompute=0)

    def policy(ctx, func, *a, **k):
        if func == aten.mm.default:
            mode = "recompute" if ctx.is_recompute else "forward"
            count[mode] += 1
            if count[mode] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in save else CheckpointPolicy.PREFER_RECOMPUTE

    def make():
        count.update(forward=0, recompute=0)
        return create_selective_checkpoint_contexts(policy)
    return make


def build(c, wrap, ac, compiled, compile_backend, device=None):
    """Module of config c: checkpointing, then compilation block by block, then FSDP2; parameters by fill()."""
    device = device or DEV
    with torch.device("meta"):
        m = Llama(c) if c["family"] == "llama" else GPT2(c)
    emb, blocks, tail, head = m.parts()
    if ac != "none":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        for i, b in enumerate(blocks):
            blocks[i] = checkpoint_wrapper(b, preserve_rng_state=False, **(dict(context_fn=selective()) if ac == "selective" else {}))
    if compiled:
        for i, b in enumerate(blocks):
            blocks[i] = torch.compile(b, backend=compile_backend, fullgraph=True, dynamic=False)
    if c["tied"]:
        head.weight = emb.weight
    if wrap == "fsdp":
        from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
        from torch.distributed.device_mesh import init_device_mesh
        kw = dict(mesh=init_device_mesh(device, (1,)), mp_policy=MixedPrecisionPolicy(param_dtype=BF, reduce_dtype=FP))
        if not c["tied"]:
            fully_shard(emb, reshard_after_forward=True, **kw)
        for b in blocks:
            fully_shard(b, reshard_after_forward=True, **kw)
        if not c["tied"]:
            fully_shard(tail, reshard_after_forward=False, **kw)
        fully_shard(m, **kw)
    elif wrap == "plain-bf16":
        m.to(BF)
    m.to_empty(device=device)
    if c["tied"]:
        if wrap == "fsdp":                              # to_empty breaks the tie; FSDP knows one parameter with two places
            head._parameters["weight"] = emb._parameters["weight"]
        else:
            head.weight = emb.weight
    norms = {id(p) for x in m.modules() if isinstance(x, (nn.RMSNorm, nn.LayerNorm)) for p in [x.weight]}
    with torch.no_grad():
        for i, (n, p) in enumerate(m.named_parameters()):
            t = p.to_local() if hasattr(p, "to_local") else p
            if id(p) in norms:
                t.fill_(1.0)
            elif n.endswith("bias"):
                t.zero_()
            else:
                fill(t, i)
        if c["family"] == "llama":
            table = rope_table(c["seq"], c["dim"] // c["heads"], c["theta"]).to(device)
            for x in m.modules():
                if isinstance(x, Attention):
                    x.register_buffer("freqs", torch.view_as_complex(table) if c["rope"] == "complex" else table, persistent=False)
    return m


def flops_per_token(c, m):
    """6 N + 12 L H D S: N counts the parameters of matrix products (embedding tables left out, the head kept), attention not halved."""
    emb, blocks, _, head = m.parts()
    total = sum(p.numel() for p in m.parameters())
    n = total - emb.weight.numel() + (emb.weight.numel() if c["tied"] else 0) - (m.wpe.weight.numel() if c["family"] == "gpt2" else 0)
    return total, n, 6 * n + 12 * c["layers"] * c["dim"] * c["seq"], 6 * n + 6 * c["layers"] * c["dim"] * c["seq"]


PHASES = ["zero_grad", "forward", "loss", "backward", "clip", "optimizer"]


def make_step(c, m, wrap, loss_fn, opt, device=None):
    params = list(m.parameters())
    cast = functools.partial(torch.autocast, device or DEV, dtype=BF) if wrap == "plain" else contextlib.nullcontext

    def step(x, y, mark=lambda phase: None):
        """mark(phase) is called at the start of each phase."""
        mark("zero_grad"); opt.zero_grad(set_to_none=True)
        mark("forward")
        with cast():
            logits = m(x)
        mark("loss")
        loss = loss_fn(logits, y)
        del logits
        mark("backward"); loss.backward()
        mark("clip")
        total = torch.nn.utils.get_total_norm([p.grad for p in params], foreach=True)
        total = total.full_tensor() if hasattr(total, "full_tensor") else total
        torch.nn.utils.clip_grads_with_norm_(params, 1.0, total, foreach=True)
        mark("optimizer"); opt.step()
        mark(None)
        return loss.detach(), total.detach()
    return step


def loss_of(logits, y):
    return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(0, 1))
