"""Models of torchvision, timm and diffusers by name: one of each module of the first two, and of diffusers the
networks that are trained, with few layers where their constructors take a number.
"""

import contextlib
import importlib

import torch

ROWS = 2

# Here, and not where a model is made: a trace makes it many times, in forks of this process.
for package in ("diffusers", "timm", "torchvision"):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)

# The first name of a module of torchvision.models stands for it; these are not trained as they are (quantized), or
# take lists of images with boxes.
LEFT_OUT = ("quantiz", "detection", "optical_flow")


def torchvision_names():
    from torchvision import models
    first = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__
        if not any(word in module for word in LEFT_OUT):
            first.setdefault(module, name)
    return [f"torchvision/{name}" for name in first.values()]


def timm_names():
    import timm
    firsts = [timm.list_models(module=module)[:1] for module in timm.list_modules()]
    return [f"timm/{name}" for first in firsts for name in first]


# ---- diffusers ------------------------------------------------------------------------------------------------

def latents(*shape):
    return torch.empty(ROWS, *shape)


def steps():
    return torch.full((ROWS,), 10, device="cpu")


def _denoiser(sample, **more):
    """What a network takes that predicts the noise of `sample`."""
    return {"sample": sample, "timestep": steps(), **more}


def _transformer(hidden, **more):
    return {"hidden_states": hidden, "timestep": steps(), **more}


def _text(width, length=77):
    return latents(length, width)


def _all_of(length):
    """A mask that leaves nothing out, where its values are known."""
    return torch.ones(ROWS, length, dtype=torch.bool, device="cpu")


DIFFUSERS = {
    "UNet2DModel": ({"sample_size": 64}, lambda: _denoiser(latents(3, 64, 64))),
    "UNet2DConditionModel": ({"sample_size": 64, "cross_attention_dim": 768},
                             lambda: _denoiser(latents(4, 64, 64), encoder_hidden_states=_text(768))),
    "UNet3DConditionModel": ({"layers_per_block": 1}, lambda: _denoiser(latents(4, 4, 32, 32), encoder_hidden_states=_text(1024))),
    "ControlNetModel": ({"cross_attention_dim": 768},
                        lambda: _denoiser(latents(4, 64, 64), encoder_hidden_states=_text(768),
                                          controlnet_cond=latents(3, 512, 512))),
    "UVit2DModel": ({"num_hidden_layers": 2},
                    lambda: {"input_ids": torch.zeros(ROWS, 16, 16, dtype=torch.int64), "encoder_hidden_states": _text(768),
                             "pooled_text_emb": latents(768), "micro_conds": latents(5)}),
    "AutoencoderKL": ({}, lambda: {"sample": latents(3, 64, 64)}),
    "AutoencoderKLTemporalDecoder": ({}, lambda: {"sample": latents(3, 64, 64), "num_frames": 1}),
    "AutoencoderTiny": ({}, lambda: {"sample": latents(3, 64, 64)}),
    "AutoencoderKLCogVideoX": ({}, lambda: {"sample": latents(3, 5, 64, 64)}),
    "AutoencoderDC": ({}, lambda: {"sample": latents(3, 64, 64)}),
    "VQModel": ({}, lambda: {"sample": latents(3, 64, 64)}),
    "DiTTransformer2DModel": ({"num_layers": 2}, lambda: _transformer(latents(4, 32, 32), class_labels=torch.zeros(
        ROWS, dtype=torch.int64))),
    "PixArtTransformer2DModel": ({"num_layers": 2, "sample_size": 64, "caption_channels": 4096},
                                 lambda: _transformer(latents(4, 64, 64), encoder_hidden_states=_text(4096),
                                                      added_cond_kwargs={})),
    "SD3Transformer2DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(16, 64, 64), encoder_hidden_states=_text(4096), pooled_projections=latents(2048))),
    "FluxTransformer2DModel": ({"num_layers": 1, "num_single_layers": 2}, lambda: _transformer(
        latents(256, 64), encoder_hidden_states=_text(4096), pooled_projections=latents(768), guidance=None,
        txt_ids=torch.zeros(77, 3), img_ids=torch.zeros(256, 3))),
    "PriorTransformer": ({"num_layers": 2}, lambda: _transformer(
        latents(768), proj_embedding=latents(768), encoder_hidden_states=_text(768))),
    "AuraFlowTransformer2DModel": ({"num_mmdit_layers": 1, "num_single_dit_layers": 2}, lambda: _transformer(
        latents(4, 64, 64), encoder_hidden_states=_text(2048))),
    "CogVideoXTransformer3DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(5, 16, 60, 90), encoder_hidden_states=_text(4096, 226))),
    "CogView3PlusTransformer2DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(16, 32, 32), encoder_hidden_states=_text(4096), original_size=latents(2), target_size=latents(2),
        crop_coords=latents(2))),
    "LatteTransformer3DModel": ({"num_layers": 2, "sample_size": 32, "patch_size": 2, "in_channels": 4,
                                 "caption_channels": 4096, "video_length": 4}, lambda: _transformer(
        latents(4, 4, 32, 32), encoder_hidden_states=_text(4096))),
    "LTXVideoTransformer3DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(128, 128), encoder_hidden_states=_text(4096), encoder_attention_mask=_all_of(77),
        num_frames=2, height=8, width=8)),
    "WanTransformer3DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(16, 4, 16, 16), encoder_hidden_states=_text(4096))),
    "SanaTransformer2DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(32, 32, 32), encoder_hidden_states=_text(2304))),
    "StableAudioDiTModel": ({"num_layers": 2}, lambda: _transformer(
        latents(64, 1024), encoder_hidden_states=_text(768, 128), global_hidden_states=latents(1, 1536),
        rotary_embedding=None)),
    "MochiTransformer3DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(12, 2, 16, 16), encoder_hidden_states=_text(4096), encoder_attention_mask=_all_of(77))),
    "Lumina2Transformer2DModel": ({"num_layers": 2, "num_refiner_layers": 1}, lambda: _transformer(
        latents(16, 32, 32), encoder_hidden_states=_text(1024), encoder_attention_mask=_all_of(77))),
    "QwenImageTransformer2DModel": ({"num_layers": 2}, lambda: _transformer(
        latents(256, 64), encoder_hidden_states=_text(3584), encoder_hidden_states_mask=None,
        img_shapes=[[(1, 16, 16)]] * ROWS)),
    "HunyuanDiT2DModel": ({"num_layers": 2, "activation_fn": "gelu-approximate"}, lambda: _transformer(
        latents(4, 32, 32), encoder_hidden_states=_text(1024), text_embedding_mask=_all_of(77),
        encoder_hidden_states_t5=_text(2048, 256), text_embedding_mask_t5=_all_of(256), image_meta_size=latents(6),
        style=torch.zeros(ROWS, dtype=torch.int64), image_rotary_emb=None)),
}


def diffusers_names():
    return [f"diffusers/{name}" for name in DIFFUSERS]


# ---- all ------------------------------------------------------------------------------------------------------

KINDS = {"torchvision": torchvision_names, "timm": timm_names, "diffusers": diffusers_names}


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def mean_square(output, batch):
    """A loss of whatever comes out: the sum over its tensors, the mean of their squares."""
    sample = getattr(output, "sample", None)
    return sum(tensor.float().pow(2).mean() for tensor in _tensors(output if sample is None else sample))


def _image(model, size):
    channels, height, width = size
    return model.train(), {"images": torch.empty(ROWS, channels, height, width)}, mean_square


class Positional(torch.nn.Module):
    """A model of images by its first argument, whatever that is called."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images)


def make(name):
    kind, _, model = name.partition("/")
    if kind == "diffusers":
        import diffusers
        keys, batch = DIFFUSERS[model]
        return getattr(diffusers, model)(**keys).train(), batch(), mean_square
    if kind == "timm":
        import timm
        made = timm.create_model(model)
        return _image(Positional(made), made.pretrained_cfg["input_size"])
    from torchvision import models
    module = models.get_model_builder(model).__module__
    backbone = {"weights_backbone": None} if "segmentation" in module else {}
    made = models.get_model(model, weights=None, **backbone)
    if ".video." in module:
        return Positional(made).train(), {"images": torch.empty(ROWS, 3, 16, 224, 224)}, mean_square
    return _image(Positional(made), (3, 299, 299) if model == "inception_v3" else (3, 224, 224))
