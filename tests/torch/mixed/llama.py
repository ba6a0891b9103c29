"""A small Llama of transformers, whose heads share keys and values."""
import torch
import torch.nn.functional as F


def build(layers=2, tied=False, hidden=128):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(hidden_size=hidden, intermediate_size=344, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                                        vocab_size=1000, max_position_embeddings=512, tie_word_embeddings=tied, use_cache=False))


def batch(device, n=2, seq=64):
    return {k: torch.empty(n, seq, dtype=torch.int64, device=device) for k in ("ids", "labels")}


def forward(model, b):
    return model(b["ids"]).logits


def loss(out, b):
    return F.cross_entropy(out.flatten(0, 1).float(), b["labels"].flatten())
