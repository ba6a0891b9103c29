"""Llama with low-rank adapters by peft:
python -m tessera trace lora_peft.py:make -o lora.trace --checkpoint none,full"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def make(batch=1, seq=1024):
    config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, use_cache=False)
    adapters = LoraConfig(r=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
    ids = torch.empty(batch, seq, dtype=torch.int64)
    return get_peft_model(LlamaForCausalLM(config), adapters), {"input_ids": ids, "labels": ids}, None
