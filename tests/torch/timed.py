"""Models for test_times.py: published widths, few layers."""

import importlib.util
import os

import torch
import torch.nn.functional as F
from torch import nn


def ids(batch, seq):
    return torch.empty(batch, seq, dtype=torch.int64)


def images():
    return {"pixel_values": torch.empty(16, 3, 224, 224), "labels": torch.empty(16, dtype=torch.int64)}


def made(kind, head, **config):
    import transformers
    return getattr(transformers, f"AutoModelFor{head}").from_config(transformers.AutoConfig.for_model(kind, **config))


def gpt2():
    return made("gpt2", "CausalLM", n_layer=2, use_cache=False), {"input_ids": ids(4, 512), "labels": ids(4, 512)}, None


def mixtral():
    return made("mixtral", "CausalLM", num_hidden_layers=1, use_cache=False), {"input_ids": ids(2, 1024), "labels": ids(2, 1024)}, None


def vit():
    return made("vit", "ImageClassification", num_hidden_layers=2, num_labels=1000), images(), None


def t5():
    model = made("t5", "Seq2SeqLM", d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=2, num_decoder_layers=2,
                 decoder_start_token_id=0, use_cache=False)
    return model, {"input_ids": ids(8, 512), "labels": ids(8, 128)}, None


def resnet():
    config = {"embedding_size": 64, "hidden_sizes": [256], "depths": [1], "num_labels": 1000}
    return made("resnet", "ImageClassification", **config), images(), None


class Up(nn.Module):
    """A block of a U-Net: group norm, activation, convolution with bias, twice; then twice as large."""

    def __init__(self, channels):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)

    def forward(self, x):
        y = x
        for norm, convolution in zip(self.norms, self.convolutions):
            y = convolution(F.silu(norm(y)))
        return self.up(x + y)


def unet_block():
    return nn.Sequential(nn.Conv2d(320, 320, 1, bias=False), Up(320)), (torch.empty(8, 320, 64, 64),), lambda y, _: y.pow(2).sum()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(512, 1024)

    def forward(self, x):
        state = None
        for now in x.unbind():
            state = self.cell(now, state)
        return state


def gru():
    return Recurrent(), (torch.empty(6, 256, 512),), lambda y, _: y.pow(2).sum()


def mlp():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    return model, (torch.empty(2048, 1024), torch.empty(2048, 1024)), lambda y, batch: F.mse_loss(y, batch[1])


def unet():
    """The U-Net of golden-bridge: skips, transposed convolutions, a time."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden-bridge", "models", "unet.py")
    spec = importlib.util.spec_from_file_location("golden_unet", place)
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    return golden.build(), golden.batch(torch.empty(0).device), golden.loss
