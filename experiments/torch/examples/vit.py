"""A vision transformer:
python -m tessera trace vit.py:make -o vit.trace --batch 16,32 --checkpoint none,full"""

import torch
from transformers import ViTConfig, ViTForImageClassification


def make(batch=32):
    config = ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                       num_labels=1000)
    images = torch.empty(batch, 3, 224, 224)
    labels = torch.empty(batch, dtype=torch.int64)
    return ViTForImageClassification(config), {"pixel_values": images, "labels": labels}, None
