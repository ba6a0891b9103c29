"""Models by name, as `KIND/MODEL_TYPE`: `python -m tessera trace architectures.py:causal/llama -o llama.trace`.

A configuration is the published default of its class with few layers. Widths are left as they are: the stand-in
device backs no memory, so they cost nothing, and kernels are chosen by them.
"""

import functools
import importlib.util
import itertools

import image_text
import torch
import vision
from parts import ROWS, first, images, token_ids

# What layers are counted by in configurations, and how many are made.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth",
          "num_encoder_layers", "num_decoder_layers", "layers", "num_hidden_groups", "num_blocks", "vision_layers",
          "encoder_num_hidden_layers", "decoder_num_hidden_layers", "num_encoder_blocks_layers")
FEW = 2


def code(prefix, number):
    """What Chameleon's tokenizer calls an entry of the codebook: digits as letters."""
    return prefix + "".join(chr(ord("A") + int(digit)) for digit in str(number)) + "Z"


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
    "ovis2": {"hidden_size": 4096},
    "aria": {"vision_config": {"model_type": "idefics3_vision", "image_size": 490, "patch_size": 14}},
    "idefics3": {"vision_config": {"image_size": 364, "patch_size": 14}},
    "smolvlm": {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4},
    "llama4": {"vision_config": {"hidden_size": 1408, "image_size": 336, "vision_output_dim": 4096}},
    "mllama": {"vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 3840, "num_hidden_layers": 2,
                                 "num_global_layers": 2},
               "text_config": {"num_hidden_layers": 2, "cross_attention_layers": [1]}},
    "gemma4": {"vision_config": {"model_type": "gemma4_vision"}},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "granite4_vision": {"vision_config": {"model_type": "clip_vision_model", "hidden_size": 768, "image_size": 384, "patch_size": 16},
                        "image_grid_pinpoints": [[384, 768], [768, 384], [768, 768]], "downsample_rate": "4/8",
                        "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 8711, **{code("IMGIMG", i): 4 + i for i in range(8192)}}},
    "emu3": {"vocabulary_map": {"<image>": 151851, "<|extra_200|>": 151846,
                                **{f"<|visual token {i:06}|>": 151854 + i for i in range(32768)}}},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                        "mrope_section": [16, 16, 16, 16]}}},
    "vipllava": {"vision_feature_layer": [-2, -1, -2, -1, 1]},
    "glm4v_moe": {"text_config": {"head_dim": 128, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}}},
    "gemma4_unified": {"vision_config": {"model_type": "gemma4_unified_vision"}},
    "deepseek_vl_hybrid": {"high_res_vision_config": {"global_attn_indexes": [0, 1]}},
    "instructblipvideo": {"video_token_index": 10},
    "shieldgemma2": {"mm_tokens_per_image": 49},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 49}},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "deepseek_ocr2": {"vision_config": {"encoder_config": {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
                                                           "num_key_value_heads": 2}},
                      "text_config": {"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 6,
                                      "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408}},
    "perception_lm": {"vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": {
        "embed_dim": 1024, "img_size": [448, 448], "depth": 2, "global_pool": "", "use_post_transformer_norm": False,
        "init_values": 0.1, "ref_feat_shape": [32, 32]}}},
    "minicpmv4_6": {"image_token_id": 151859}, "minicpmv4_7": {"image_token_id": 151859}, "minicpm_ocr": {"image_token_id": 151859},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2]}},
    "pi0": {"vlm_config": {"model_type": "paligemma"}},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "udop": {"decoder_start_token_id": 0},
    "timm_wrapper": {"architecture": "resnet50"},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "xmod": {"default_language": "en_XX"},
    "vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True}, "decoder_start_token_id": 0,
                               "pad_token_id": 0},
    "funnel": {"block_sizes": [2, 2], "num_decoder_layers": 2},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_embds": False},
}
# Further arguments of forward, or other ones than are found by name.
BATCHES = {
    "causal/git": lambda config: {"pixel_values": image_text.pictures(config)},
    "image/siglip2": image_text.patches,
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
    keys = reduced(default) | {k: v for k, v in own.items() if k not in default.sub_configs}
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


def batch_of(name, config, model, features):
    kind = name.partition("/")[0]
    if kind == "image":
        with torch.device("cpu"):
            return {"pixel_values": images(config), "labels": torch.zeros(ROWS, dtype=torch.int64)}
    if kind == "image-text":
        return image_text.batch(config, model, features)
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


def make(name, features=0):
    import transformers
    kind, _, _ = name.partition("/")
    config = configuration(name)
    if kind == "sequence" and first(config, "pad_token_id") is None:
        config.get_text_config().pad_token_id = config.pad_token_id = 0
    mapping, auto = transformers_kinds()[kind]
    one = mapping[config.model_type]
    config.architectures = [one if isinstance(one, str) else one[0]]   # a name may stand for several classes
    model = getattr(transformers, auto).from_config(config)
    batch = batch_of(name, config, model, features)
    with torch.device("cpu"):
        batch |= BATCHES[name](config) if name in BATCHES else {}
    return model.train(), batch, own_loss


def __getattr__(name):
    if "/" not in name:
        raise AttributeError(name)
    name, _, features = name.partition("@")   # as many as the model says that its pictures make
    if name.partition("/")[0] in vision.KINDS:
        return functools.partial(vision.make, name)
    return functools.partial(make, name, int(features or 0))
