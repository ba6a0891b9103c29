"""Models for test_times.py: published widths, few layers."""

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSeq2SeqLM


def ids(batch, seq):
    return torch.empty(batch, seq, dtype=torch.int64)


def gpt2():
    config = AutoConfig.for_model("gpt2", n_layer=2, use_cache=False)
    return AutoModelForCausalLM.from_config(config), {"input_ids": ids(4, 512), "labels": ids(4, 512)}, None


def mixtral():
    config = AutoConfig.for_model("mixtral", num_hidden_layers=1, use_cache=False)
    return AutoModelForCausalLM.from_config(config), {"input_ids": ids(2, 1024), "labels": ids(2, 1024)}, None


def vit():
    config = AutoConfig.for_model("vit", num_hidden_layers=2, num_labels=1000)
    return AutoModelForImageClassification.from_config(config), {"pixel_values": torch.empty(16, 3, 224, 224),
                                                                 "labels": torch.empty(16, dtype=torch.int64)}, None


def t5():
    config = AutoConfig.for_model("t5", d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=2, num_decoder_layers=2,
                                  decoder_start_token_id=0, use_cache=False)
    return AutoModelForSeq2SeqLM.from_config(config), {"input_ids": ids(8, 512), "labels": ids(8, 128)}, None
