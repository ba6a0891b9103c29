"""A decoder of transformers: python -m tessera trace llama.py:make -o llama.trace --seq 1024,2048"""

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM


def make(batch=1, seq=2048):
    config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True, use_cache=False)
    ids = torch.empty(batch, seq, dtype=torch.int64)
    return LlamaForCausalLM(config), {"input_ids": ids, "targets": ids}, loss


def loss(output, batch):
    return F.cross_entropy(output.logits.flatten(0, 1).float(), batch["targets"].flatten())
