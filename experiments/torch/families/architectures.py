"""Models by name, as `KIND/MODEL_TYPE`: `python -m tessera trace architectures.py:causal/llama -o llama.trace`.

A configuration is the published default of its class with few layers. Widths are left as they are: the stand-in
device backs no memory, so they cost nothing, and kernels are chosen by them.
"""

import functools
import importlib.util
import inspect
import itertools

import torch
import vision

ROWS, LENGTH = 2, 64

# What layers are counted by in configurations, and how many are made.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth",
          "num_encoder_layers", "num_decoder_layers", "layers", "num_hidden_groups", "num_blocks", "vision_layers",
          "encoder_num_hidden_layers", "decoder_num_hidden_layers", "num_encoder_blocks_layers")
FEW = 2

# What a class's default does not say, by "KIND/MODEL_TYPE" or MODEL_TYPE: keys of the configuration.
CONFIGURATIONS = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "glm4v": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}},
    "glm46v": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}},
    "glmga": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_moe": {"num_experts": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "head_dim": 128},
    "blip-2": {"image_token_index": 10},
    "instructblip": {"image_token_index": 10},
    "gemma3": {"mm_tokens_per_image": 49},
    "qwen2_vl": {"vision_config": {"hidden_size": 8192}},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "funnel": {"block_sizes": [2, 2], "num_decoder_layers": 2},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_embds": False},
}
# Take image_sizes only for vision towers that their defaults do not have.
WITHOUT_SIZES = ("llava", "aya_vision", "internvl", "qianfan_ocr")
# Take several images a row.
WITH_IMAGES = ("idefics2", "idefics3", "smolvlm")
# Further arguments of forward, or other ones than are found by name.
BATCHES = {
    "image/imagegpt": lambda config: {"input_ids": token_ids(config), "pixel_values": None},
}


def transformers_kinds():
    from transformers.models.auto import modeling_auto as auto
    return {"causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM"),
            "seq2seq": (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "AutoModelForSeq2SeqLM"),
            "image": (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, "AutoModelForImageClassification"),
            "image-text": (auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "AutoModelForImageTextToText"),
            "sequence": (auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
                         "AutoModelForSequenceClassification")}


def names():
    """All that the installed packages have, kinds in turn, so that a part of a run is a sample of all."""
    lists = [[f"{kind}/{model}" for model in mapping] for kind, (mapping, _) in transformers_kinds().items()]
    lists += [names() for package, names in vision.KINDS.items() if importlib.util.find_spec(package)]
    return [name for turn in itertools.zip_longest(*lists) for name in turn if name]


def representative(config, count):
    """Layers that stand for all `count`: the first of each combination that per-layer lists have."""
    single = {int(k): v for k, v in (config.get("per_layer_config") or {}).items()}   # of some layers, by number
    lists = {k: v for k, v in config.items() if isinstance(v, (list, tuple)) and len(v) == count and count > 2}
    seen, chosen = set(), []
    for i in range(count):
        combination = str([v[i] for v in lists.values()])
        if combination not in seen and len(chosen) < 4:
            seen.add(combination)
            chosen.append(i)
    chosen = sorted(chosen + [i for i in range(count) if i not in chosen][:max(0, FEW - len(chosen))])
    found = {k: [v[i] for i in chosen] for k, v in lists.items()}
    if single:
        found["per_layer_config"] = {new: single[old] for new, old in enumerate(chosen) if old in single}
    return found, len(chosen)


def reduced(config):
    """The keys of a configuration that make it shallow, those of configurations inside it too."""
    found = {}
    values = config.to_dict()
    for key in LAYERS:
        count = values.get(key)
        if isinstance(count, int) and not isinstance(count, bool) and count > FEW:
            lists, found[key] = representative(values, count)
            found |= lists
    for key in config.sub_configs:
        inner = getattr(config, key, None)
        if inner is not None:
            found[key] = {**inner.to_dict(), **reduced(inner)}
            if key == "vision_config" and "out_hidden_size" in found[key]:   # as wide as the text is
                found[key]["out_hidden_size"] = config.get_text_config().hidden_size
    return found


def configuration(name):
    from transformers import AutoConfig
    kind, _, model = name.partition("/")
    own = CONFIGURATIONS.get(model, {}) | CONFIGURATIONS.get(name, {})
    default = AutoConfig.for_model(model, **own)
    keys = reduced(default) | {k: v for k, v in own.items() if not isinstance(v, dict)}
    config = AutoConfig.for_model(model, **keys)
    inner = [getattr(config, key, None) for key in config.sub_configs]
    for each in [config, *(x for x in inner if x is not None)]:
        if hasattr(each, "use_cache"):
            each.use_cache = False
        for key in vars(each):
            if key.endswith("layerdrop"):   # which layers run is drawn on the host
                setattr(each, key, 0.0)
        for key in ("decoder_start_token_id", "pad_token_id"):
            starts = kind == "seq2seq" or (kind == "sequence" and each.is_encoder_decoder)
            if starts and getattr(each, key, None) is None:
                setattr(each, key, 0)
        if hasattr(each, "vocab_size") and isinstance(each.vocab_size, int) and isinstance(
                getattr(each, "pad_token_id", None), int) and each.pad_token_id >= each.vocab_size:
            each.pad_token_id = 0
    return config


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


def vision_batch(config, model, tokens):
    """Text in which `tokens` places a row stand for an image, and the image in the form that forward asks for."""
    known = inspect.signature(model.forward).parameters
    ids = token_ids(config, length=LENGTH + tokens)
    marker = first(config, "image_token_id", "image_token_index")
    if marker is not None and tokens:
        ids[:, 4:4 + tokens] = marker
    batch = {"input_ids": ids, "labels": ids.clone()}
    with torch.device("cpu"):
        if "image_grid_thw" in known:
            vision = config.vision_config
            patch = getattr(vision, "patch_size", 14)
            frames = getattr(vision, "temporal_patch_size", 1)
            channels = getattr(vision, "in_channels", getattr(vision, "num_channels", 3))
            batch["image_grid_thw"] = torch.tensor([[1, 8, 8]] * ROWS)
            batch["pixel_values"] = torch.zeros(ROWS * 64, channels * frames * patch * patch)
        else:
            batch["pixel_values"] = images(config).to("cpu")
            if model.config.model_type in WITH_IMAGES:
                batch["pixel_values"] = batch["pixel_values"].unsqueeze(1)
        if "image_sizes" in known and model.config.model_type not in WITHOUT_SIZES:
            batch["image_sizes"] = torch.tensor([list(batch["pixel_values"].shape[-2:])] * ROWS)
        if "mm_token_type_ids" in known or "token_type_ids" in known:
            kinds = (ids == marker).long() if marker is not None else torch.zeros_like(ids)
            batch |= {k: kinds for k in ("mm_token_type_ids", "token_type_ids") if k in known}
        if "attention_mask" in known:
            batch["attention_mask"] = torch.ones_like(ids)
    return batch


def batch_of(name, config, model, tokens):
    kind = name.partition("/")[0]
    if kind == "image":
        with torch.device("cpu"):
            return {"pixel_values": images(config), "labels": torch.zeros(ROWS, dtype=torch.int64)}
    if kind == "image-text":
        return vision_batch(config, model, tokens)
    ids = token_ids(config)
    if kind == "sequence":
        return {"input_ids": ids, "labels": torch.zeros(ROWS, dtype=torch.int64, device="cpu")}
    return {"input_ids": ids, "labels": ids.clone()}


def own_loss(output, batch):
    loss = getattr(output, "loss", None)
    if loss is None:
        logits = getattr(output, "logits", None)
        if logits is None:
            raise ValueError(f"{type(output).__name__} has neither loss nor logits")
        loss = logits.float().pow(2).mean()
    return loss.mean()


def make(name, tokens=0):
    import transformers
    kind, _, _ = name.partition("/")
    config = configuration(name)
    if kind == "sequence" and first(config, "pad_token_id") is None:
        config.get_text_config().pad_token_id = config.pad_token_id = 0
    mapping, auto = transformers_kinds()[kind]
    one = mapping[config.model_type]
    config.architectures = [one if isinstance(one, str) else one[0]]   # a name may stand for several classes
    model = getattr(transformers, auto).from_config(config)
    batch = batch_of(name, config, model, tokens)
    batch |= BATCHES[name](config) if name in BATCHES else {}
    return model.train(), batch, own_loss


def __getattr__(name):
    if "/" not in name:
        raise AttributeError(name)
    name, _, tokens = name.partition("@")
    if name.partition("/")[0] in vision.KINDS:
        return functools.partial(vision.make, name)
    return functools.partial(make, name, int(tokens or 0))
