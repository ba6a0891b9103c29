"""Models of other families for record.py and trace.py, as small as their shape allows: each function gives
(model, names of the modules that are wrapped, innermost first, the batch, loss(output, batch))."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers


def words(n, length=6):
    return torch.arange(2 * length).reshape(2, length) % n


def token_loss(key):
    return lambda out, batch: F.cross_entropy(out.logits.float().flatten(0, 1), batch[key].flatten())


def vit():
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
                                    image_size=8, patch_size=4, num_labels=5, hidden_dropout_prob=0.0,
                                    attention_probs_dropout_prob=0.0)
    batch = {"pixel_values": torch.ones(2, 3, 8, 8)}
    model = transformers.ViTForImageClassification(config)
    return model, blocks(model), batch, lambda out, batch: F.cross_entropy(out.logits.float(), torch.zeros_like(
        out.logits[:, 0], dtype=torch.int64))


def gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=4, n_head=2, vocab_size=37, n_positions=8, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    return model, blocks(model), {"input_ids": words(37)}, token_loss("input_ids")


def bert():
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=20,
                                     vocab_size=31, max_position_embeddings=8, hidden_dropout_prob=0.0,
                                     attention_probs_dropout_prob=0.0)
    model = transformers.BertForMaskedLM(config)
    return model, blocks(model), {"input_ids": words(31)}, token_loss("input_ids")


class Half(nn.Module):
    def __init__(self, inner, size):
        super().__init__()
        self.down, self.inner, self.up = nn.Linear(size, size + 3), inner, nn.Linear(size + 3, size, bias=False)

    def forward(self, x):
        y = torch.relu(self.down(x))
        return self.up(y if self.inner is None else y + self.inner(y))


class Nested(nn.Module):
    """Halves inside of halves, as in a U-Net, and two results of which one is not used by the other."""
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(7))
        self.middle = Half(Half(Half(None, 13), 10), 7)
        self.first, self.second = nn.Linear(7, 3), nn.Linear(7, 2)

    def forward(self, x):
        y = self.middle(x * self.scale)
        return self.first(y), self.second(y)


def nested():
    return (Nested(), ["middle.inner.inner", "middle.inner", "middle"], {"x": torch.ones(2, 5, 7)},
            lambda out, batch: out[0].float().square().mean() + out[1].float().square().mean())


def lora():
    """Adapters beside linear modules, all of them trained."""
    model, names, batch, loss = gpt2()
    for block in model.transformer.h:
        layer = block.attn.c_proj
        block.attn.c_proj = Adapter(layer, 16, 2)
    return model, names, batch, loss


class Adapter(nn.Module):
    def __init__(self, inner, width, rank):
        super().__init__()
        self.inner, self.a, self.b = inner, nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.inner(x) + self.b(self.a(x)) * 0.5


def blocks(model):
    """Modules whose own place in a list is the only one on their path."""
    return [name for name, _ in model.named_modules()
            if name.rpartition(".")[2].isdigit() and sum(part.isdigit() for part in name.split(".")) == 1]


MODELS = {"vit": vit, "gpt2": gpt2, "bert": bert, "nested": nested, "lora": lora}
SCENARIOS = {
    "vit-bf16": {"model": "vit", "param": "bf16", "reduce": "f32"},
    "vit-no-sync-post": {"model": "vit", "micro": 3, "no_sync": True, "backward_prefetch": "post"},
    "gpt2-shard-grad-op": {"model": "gpt2", "keep": True, "param": "bf16", "reduce": "bf16"},
    "gpt2-no-shard": {"model": "gpt2", "none": True, "param": "bf16", "reduce": "f32"},
    "gpt2-no-shard-f32": {"model": "gpt2", "none": True, "micro": 2},
    "gpt2-no-shard-accumulate": {"model": "gpt2", "none": True, "micro": 2, "param": "bf16", "reduce": "f32"},
    "gpt2-no-shard-pure": {"model": "gpt2", "none": True, "micro": 3, "param": "bf16", "reduce": "bf16"},
    "bert-no-limit-post": {"model": "bert", "limit": False, "backward_prefetch": "post", "world": 3},
    "bert-root": {"model": "bert", "wrap": "root", "clip": True},
    "nested": {"model": "nested", "world": 3},
    "nested-ahead-post-bf16": {"model": "nested", "param": "bf16", "forward_prefetch": True, "backward_prefetch": "post"},
    "lora": {"model": "lora", "param": "bf16", "reduce": "f32", "clip": True},
}
