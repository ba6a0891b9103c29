"""A Llama as training programs write it, with the module names of transformers: what a built-in model is."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, turns):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = turn(q.unflatten(-1, (-1, self.size)), turns)   # what was not turned is given back here, before k's
        k = turn(k.unflatten(-1, (-1, self.size)), turns)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.unflatten(-1, (-1, self.size)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.o_proj(y.transpose(1, 2).contiguous().flatten(2))


def turn(x, turns):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width, inner, heads, kv_heads):
        super().__init__()
        self.self_attn = Attention(width, heads, kv_heads)
        self.mlp = FeedForward(width, inner)
        self.input_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, turns):
        x = x + self.self_attn(self.input_layernorm(x), turns)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, width, inner, heads, kv_heads, layers, words):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, inner, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, ids, turns):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, turns)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, width, words, heads, positions, **sizes):
        super().__init__()
        self.model = Model(width=width, words=words, heads=heads, **sizes)
        self.register_buffer("turns", torch.empty(positions, width // heads // 2, dtype=torch.complex64),
                             persistent=False)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        return self.lm_head(self.model(ids, self.turns[:ids.shape[1]]))


def loss(logits, batch):
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())


def tokens(batch, seq):
    return {name: torch.empty(batch, seq, dtype=torch.int64) for name in ("ids", "labels")}


def llama_8b_2_layers(batch=1, seq=8192):
    """Llama-3.1-8B with two of its 32 layers."""
    model = Llama(width=4096, inner=14336, heads=32, kv_heads=8, layers=2, words=128256, positions=131072)
    return model, tokens(batch, seq), loss


def tiny(batch=2, seq=64):
    model = Llama(width=128, inner=192, heads=4, kv_heads=2, layers=3, words=500, positions=256)
    return model, tokens(batch, seq), loss
