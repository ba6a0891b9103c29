"""Batches of the kind `image-text`: text in which some places stand for an image, and the image as a model's processor
gives it. Values that a model reads (grids, sizes, masks) are made on the CPU, where they are known."""

import inspect

import torch
from parts import LENGTH, ROWS, first, images, square, token_ids

PLACES = 8192   # of one row: a model that says more features than this counts their numbers

# Take image_sizes only for vision towers that their defaults do not have.
WITHOUT_SIZES = ("llava", "aya_vision", "internvl", "qianfan_ocr")
# Take several images a row.
WITH_IMAGES = ("idefics", "idefics2", "idefics3", "smolvlm", "granite_docling")
# Take pictures of any size: a smaller one than the largest.
SIZES = {"mistral3": 448, "lighton_ocr": 448, "mistral_large4": 448, "emu3": 256}
SIDE = 8   # patches of a picture's side, where a model takes patches


def rows_of(value):
    return torch.tensor([value] * ROWS)


def pictures(config, *before, size=None):
    size = size or square(first(config, "image_size"))
    return torch.ones(ROWS, *before, 3, size, size)   # some models leave out pictures of zeros


def tiles(config):
    """A picture of twice the vision tower's size: four tiles, and the whole picture before them."""
    size = square(config.vision_config.image_size)
    return {"pixel_values": pictures(config, 5, size=size), "image_sizes": rows_of([2 * size, 2 * size])}


def patches(config, side=16):
    """A sequence of flat patches a picture, with its grid and its mask."""
    vision = getattr(config, "vision_config", config)
    flat = torch.zeros(ROWS, side * side, 3 * vision.patch_size ** 2)
    return {"pixel_values": flat, "spatial_shapes": rows_of([side, side]),
            "pixel_attention_mask": torch.ones(ROWS, side * side, dtype=torch.int64)}


def positions(config, side=12):
    """A sequence of flat patches with the place of each."""
    at = torch.arange(side)
    vision = config.vision_config
    patch = getattr(vision, "model_patch_size", vision.patch_size)
    places = torch.stack([at.repeat(side), at.repeat_interleave(side)], -1)
    return {"pixel_values": torch.zeros(ROWS, side * side, 3 * patch ** 2),
            "image_position_ids": places.expand(ROWS, -1, -1).contiguous()}


def questions(config, *frames):
    ids = torch.arange(16).expand(ROWS, -1) + 20
    return {"pixel_values": pictures(config, *frames), "qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}


def strip(config, side=16):
    """All pictures' patches beside each other, as the MiniCPM models take them."""
    patch = config.vision_config.patch_size
    return {"pixel_values": torch.zeros(1, 3, patch, ROWS * side * side * patch), "target_sizes": rows_of([side, side])}


def mllama(config):
    counts = {"aspect_ratio_ids": torch.ones(ROWS, 1, dtype=torch.int64), "aspect_ratio_mask": torch.ones(ROWS, 1, 4, dtype=torch.int64)}
    return {"pixel_values": pictures(config, 1, 4), "cross_attention_mask": torch.ones(ROWS, LENGTH, 1, 4, dtype=torch.int64), **counts}


def kosmos2(config):
    length = LENGTH + config.latent_query_num
    mask = torch.zeros(ROWS, length, dtype=torch.int64)
    mask[:, 1:1 + config.latent_query_num] = 1
    ids = token_ids(config, length=length)
    return {"input_ids": ids, "labels": ids.clone(), "image_embeds_position_mask": mask, "attention_mask": torch.ones_like(ids)}


def robot(config):
    actions = torch.zeros(ROWS, config.chunk_size, config.max_action_dim)
    size = config.vlm_config.vision_config.image_size
    return {"state": torch.zeros(ROWS, config.max_state_dim), "actions": actions, "noise": torch.zeros_like(actions),
            "timestep": torch.zeros(ROWS), "pixel_values": pictures(config, 1, size=size),
            "pixel_attention_mask": torch.ones(ROWS, 1, dtype=torch.bool)}


def molmo2(config):
    vision, side = config.vision_config, 12
    crops = torch.zeros(ROWS, (378 // vision.patch_size) ** 2, 3 * vision.patch_size ** 2)
    return {"pixel_values": crops, "image_token_pooling": torch.arange(ROWS * side * side * 4).reshape(-1, 4),
            "image_grids": rows_of([side, side, 0, 0]), "image_num_crops": torch.ones(ROWS, dtype=torch.int64)}


def udop(config):
    return {"bbox": torch.zeros(ROWS, LENGTH, 4), "pixel_values": pictures(config)}


# The rest of a batch, by model, in place of what its forward's names say; a number is that of its pixels' dimensions.
FORMS = {
    "llava_next": tiles, "llava_onevision": tiles, "llava_next_video": tiles, "granite4_vision": tiles,
    "lfm2_vl": patches, "siglip2": patches,
    "gemma4": positions, "gemma4_unified": positions, "diffusion_gemma": positions,
    "instructblip": questions, "instructblipvideo": lambda config: questions(config, 4),
    "minicpmv4_6": strip, "minicpmv4_7": strip, "minicpm_ocr": strip,
    "mllama": mllama, "kosmos-2": kosmos2, "pi0": robot, "udop": udop,
    "granite_docling": lambda config: {"pixel_attention_mask": torch.ones(ROWS, 1, dtype=torch.bool)},
    "video_llama_3": lambda config: {"image_merge_sizes": torch.ones(ROWS, dtype=torch.int64)},
    "deepseek_vl_hybrid": lambda config: {"high_res_pixel_values": pictures(config, size=1024)},
    "fuyu": lambda config: {"pixel_values": torch.zeros(ROWS, 100, 3 * config.patch_size ** 2)},
    "perception_lm": lambda config: {"pixel_values": pictures(config, 1, size=config.vision_config.model_args["img_size"][0])},
    "paddleocr_vl": lambda config: {"pixel_values": torch.zeros(ROWS * SIDE * SIDE, 3, 14, 14)},
    "kimi_k25": lambda config: {"pixel_values": torch.zeros(ROWS * SIDE * SIDE, 3, 14, 14)},
    "inkling2": lambda config: {"pixel_values": torch.zeros(ROWS * SIDE * SIDE, 40, 40, 3)},
    "idefics": lambda config: {"image_attention_mask": torch.ones(ROWS, LENGTH, 1, dtype=torch.int64)},
    "nemotron_h_omni": lambda config: {"image_grid_hw": rows_of([SIDE, SIDE]), "pixel_values": torch.zeros(ROWS * SIDE * SIDE, 768)},
    "molmo2": molmo2,
    "pix2struct": lambda config: {"input_ids": None, "flattened_patches": torch.zeros(ROWS, 128, 770),
                                  "attention_mask": torch.ones(ROWS, 128, dtype=torch.int64)},
}


def places(config, features):
    """Places a row for as many features as the model says that it has: of the batch, or all their numbers."""
    a_row = features // ROWS
    return a_row if a_row <= PLACES else a_row // config.get_text_config().hidden_size


def pixels(config, known):
    """Patches of all pictures one behind the other, or pictures."""
    if "image_grid_thw" not in known:
        size = SIZES.get(config.model_type)
        one = [1] if config.model_type in WITH_IMAGES else []
        return {"pixel_values": pictures(config, *one, size=size) if size or one else images(config).to("cpu")}
    vision = config.vision_config
    patch = getattr(vision, "patch_size", 14)
    frames = getattr(vision, "temporal_patch_size", getattr(vision, "patch_temporal", 1))
    channels = getattr(vision, "in_channels", getattr(vision, "num_channels", 3))
    return {"image_grid_thw": rows_of([1, SIDE, SIDE]),
            "pixel_values": torch.zeros(ROWS * SIDE * SIDE, channels * frames * patch * patch)}


def batch(config, model, features):
    known = inspect.signature(model.forward).parameters
    count = places(config, features) or getattr(config, "num_query_tokens", 0)
    ids = token_ids(config, length=LENGTH + count)
    marker = first(config, "image_token_id", "image_token_index")
    if marker is not None:
        ids[ids == marker] = 20
        ids[:, 4:4 + count] = marker
    made = {"input_ids": ids, "labels": ids.clone()}
    with torch.device("cpu"):
        made |= pixels(config, known)
        if "image_sizes" in known and config.model_type not in WITHOUT_SIZES:
            made["image_sizes"] = rows_of(list(made["pixel_values"].shape[-2:]))
        if "mm_token_type_ids" in known or "token_type_ids" in known:
            kinds = (ids == marker).long() if marker is not None else torch.zeros_like(ids)
            made |= {k: kinds for k in ("mm_token_type_ids", "token_type_ids") if k in known}
        if "attention_mask" in known:
            made["attention_mask"] = torch.ones_like(ids)
        if config.model_type in FORMS:
            made |= FORMS[config.model_type](config)
    return made
