#!/usr/bin/env python3
"""Models that `tessera` trained and exported, in transformers; and models of transformers in `tessera`.

    PYTHON compare.py --tessera BUILD/tessera --logits BUILD/tests/train_test_logits

Needs torch, safetensors and transformers. Exit status 0: all figures are within their limits.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "train"))
import record

RECORDED = os.path.join(HERE, "..", "train", "recorded")
TRAIN, VAL = (os.path.join(RECORDED, f) for f in ("train.bin", "val.bin"))
LOGITS, LOSS = 1e-5, 1e-6   # allowed: absolute, relative

# Name of the model (families() has their configurations), names of modules, strategy on 4 ranks,
# strategy on 2 ranks that go on with it
TRIPS = (("llama", "hf", "batch: 2", "batch: 4, api: ddp"),
         ("llama", "hf", "batch: 4, tp: 2", "batch: 4"),
         ("llama", "torchtitan", "batch: 2, mesh: {replicate: 2, shard: 2}",
          "batch: 4, offload: cpu"),
         ("llama-tied", "torchtitan", "batch: 1, accumulation: {steps: 2}",
          "batch: 4, dialect: fused"),
         ("qwen2", "hf", "batch: 2, reshard_after_forward: 2", "batch: 8, tp: 2"),
         ("qwen3", "torchtitan", "batch: 2, api: ddp", "batch: 4, wrap: root"),
         ("gpt2", "hf", "batch: 2", "batch: 4, api: replicate"),
         ("gpt2", "torchtitan", "batch: 2, reshard_after_forward: false",
          "batch: 4, checkpoint: full"))

bad = 0


def check(what, value, allowed):
    global bad
    bad += not value <= allowed
    print(f"{what}: {value:.1e}{'' if value <= allowed else '  TOO MUCH'}", flush=True)


def call(*words):
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}")


def experiment(path, model, four="batch: 2", two="batch: 4"):
    with open(path, "w") as f:
        f.write(f"""model: {model}
seq: {record.SEQ}
clip: true
precision: {{param: none, reduce: none}}
optimizer: {{name: adamw}}
train: {{lr: 0.001, warmup: 5}}
data: {{train: {TRAIN}, val: {VAL}}}
eval: {{every: 100000, batches: {record.VAL_SAMPLES}}}
strategies:
  four: {{world: 4, {four}}}
  two: {{world: 2, {two}}}
""")


def eval_loss(run):
    with open(os.path.join(run, "metrics.jsonl")) as f:
        return [json.loads(x)["eval_loss"] for x in f if "eval_loss" in x][-1]


def load(folder):
    """As a user does; every tensor of the file is one of the model, and the other way round."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    check("  keys that miss, are unknown or do not fit", sum(map(len, info.values())), 0)
    return model.eval()


def compare(program, folder, names, loss, tmp):
    """A model of files: logits of ours and of transformers', and its held-out loss."""
    tokens = record.read_tokens(VAL)
    model = load(folder)
    out = os.path.join(tmp, "logits.safetensors")
    call(program, folder, names, VAL, record.SEQ, out)
    with torch.no_grad():
        inputs, _ = record.windows(tokens, [0])
        theirs = model(inputs, use_cache=False).logits[0]
    ours = load_file(out)["logits"]
    print(f"  logits from {theirs.min():.2f} to {theirs.max():.2f}")
    check("  largest difference of a logit", (ours - theirs).abs().max().item(), LOGITS)
    reference = record.held_out(model, tokens)
    print(f"  held-out loss {loss:.8f}, transformers' {reference:.8f}")
    check("  relative difference of the loss", abs(loss - reference) / reference, LOSS)


def out_of_here(args, tmp):
    configs = dict(families())
    for i, (name, names, four, two) in enumerate(TRIPS):
        yaml, run, folder, config = (os.path.join(tmp, f"trip-{i}{x}")
                                     for x in (".yaml", "-run", "-model", "-config.json"))
        configs[name].initializer_range = 0.02
        with open(config, "w") as f:
            json.dump(configs[name].to_dict(), f)
        experiment(yaml, f"{{name: {config}, names: {names}}}", four, two)
        common = (args.tessera, "run", yaml, "--on", "host")
        half = args.steps // 2
        call(*common, "--strategy", "four", "--set", f"train.steps={half}", "--out", run)
        call(*common, "--strategy", "two", "--set", f"train.steps={args.steps}", "--resume", run)
        call(args.tessera, "export", run, "--out", folder)
        print(f"{name} ({names}): {half} steps on 4 ranks ({four}), {half} on 2 ({two})")
        compare(args.logits, folder, names, eval_loss(run), tmp)


def fresh(config):
    """A model with weights large enough that attention and rotation matter, not exact in bf16."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.1 if p.dim() > 1 else 0.3))
    return model.eval()


def families():
    llama = dict(record.MODELS["llama"][2], initializer_range=0.1)
    gpt2 = dict(record.MODELS["gpt2"][2], initializer_range=0.1)
    scaling = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=32)
    grouped = {k: v for k, v in llama.items() if k != "rope_theta"}
    yield "llama", transformers.LlamaConfig(**llama)
    yield "llama-tied", transformers.LlamaConfig(**dict(llama, tie_word_embeddings=True))
    yield "llama-stretched", transformers.LlamaConfig(**grouped, rope_parameters=scaling)
    yield "mistral", transformers.MistralConfig(**grouped, sliding_window=None)
    yield "qwen2", transformers.Qwen2Config(**grouped)
    yield "qwen3", transformers.Qwen3Config(**grouped, head_dim=32)
    yield "gpt2", transformers.GPT2Config(**gpt2)
    yield "gpt2-narrow", transformers.GPT2Config(**gpt2, n_inner=96)


def saved(name, model, tmp):
    """The same model as files of several kinds."""
    folders = {kind: os.path.join(tmp, f"{name}-{kind}") for kind in ("whole", "parts", "bf16")}
    model.save_pretrained(folders["whole"])
    model.save_pretrained(folders["parts"], max_shard_size="100KB")
    assert os.path.exists(os.path.join(folders["parts"], "model.safetensors.index.json"))
    model.bfloat16().save_pretrained(folders["bf16"])
    return folders.values()


def into_here(args, tmp):
    for name, config in families():
        for folder in saved(name, fresh(config), tmp):
            reference = record.held_out(load(folder), record.read_tokens(VAL))
            for names in ("hf", "torchtitan"):
                yaml, run = folder + ".yaml", folder + "-run-" + names
                experiment(yaml, f"{{name: {folder}/config.json, weights: {folder}, names: {names}}}")
                call(args.tessera, "run", yaml, "--strategy", "two", "--on", "host", "--set",
                     "train.steps=1", "--set", "train.warmup=0", "--set", "train.lr=0", "--out", run)
                loss = eval_loss(run)
                print(f"{os.path.basename(folder)} as {names}: held-out loss {loss:.8f}, "
                      f"transformers' {reference:.8f}")
                check("  relative difference of the loss", abs(loss - reference) / reference, LOSS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True, type=os.path.abspath)
    parser.add_argument("--logits", required=True, type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as tmp:
        into_here(args, tmp)
        out_of_here(args, tmp)
    print("all well" if not bad else f"{bad} figures are too large")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
