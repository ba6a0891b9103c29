"""What batches are made of: their sizes, keys of configurations, tokens and pictures."""

import torch

ROWS, LENGTH = 2, 64


def first(config, *keys):
    """The first of these keys that the configuration or one inside it has."""
    for each in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        for key in keys:
            value = getattr(each, key, None)
            if value is not None:
                return value
    return None


def square(size, default=224):
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    if isinstance(size, (list, tuple)):
        size = size[0]
    return size or default


def token_ids(config, rows=ROWS, length=LENGTH):
    """Made where values are known: programs look for padding and for separators."""
    with torch.device("cpu"):
        ids = torch.arange(rows * length).reshape(rows, length) % 50 + 20
    end = first(config, "eos_token_id")
    if isinstance(end, int) and end < (first(config, "vocab_size") or 0):
        ids[:, -1] = end
    return ids


def images(config, rows=ROWS):
    size = square(first(config, "image_size", "input_size"))
    return torch.empty(rows, first(config, "num_channels", "in_channels", "in_chans") or 3, size, size)
