#!/usr/bin/env python3
"""Writes the kernel tables of the simulator, ../../clusters/kernels-*.json, from the measured files
beside this script, and the constants of the models (constants.json, which fit.py finds). `--check`
compares the tables with what is there and writes nothing.

Where only forward and backward together are published, the two are split in the proportion that
FlashAttention-2 has on an H100 at the same head size and length; the sum is the published figure.
Triton's kernel is split as Triton's own tutorial of that time, whose backward is much slower.
"""
import csv
import json
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTERS = os.path.join(HERE, "..", "..", "clusters")
FLASH = "Dao-AILab/flash-attention 0251105a, labels of assets/"
XLA = ("XLA matmul_perf_table_gen (tensorflow fork, matmul_interpolator_data.h, 802a41cf): "
       "short runs, idle card")
H100, A100, H200 = "H100 80GB SXM5", "A100 80GB SXM4", "NVIDIA H200"

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]


def constants():
    with open(os.path.join(HERE, "constants.json")) as file:
        return json.load(file)


def rows_of(name):
    with open(os.path.join(HERE, name), newline="") as file:
        return list(csv.DictReader(file))


# ---- matrix products ---------------------------------------------------------------------------

def matmul_grid(dtype, column, fitted):
    rows = [r for r in rows_of("gemm.csv") if r["dtype"] == column and "sm_90" in r["gpu"]]
    axes = [sorted({int(r[a]) for r in rows}) for a in ("m", "n", "k", "batch")]
    rate = {tuple(int(r[a]) for a in ("m", "n", "k", "batch")): float(r["tflops"]) for r in rows}
    grid = {"dtype": dtype, "source": XLA, **fitted["matmul"][dtype]}
    grid.update(zip(("m", "n", "k", "batch"), axes))
    grid["tflops"] = [rate.get((m, n, k, b)) for m in axes[0] for n in axes[1] for k in axes[2]
                      for b in axes[3]]
    return grid


# ---- attention ---------------------------------------------------------------------------------

def published():
    """{(kernel, gpu, pass, causal, head size): {length: TFLOP/s}} of both files."""
    out = {}
    for r in rows_of("flash_attention.csv") + rows_of("attention_labels.csv"):
        windowed = "sliding window none" not in r.get("note", "") and "cudnn-front" in r.get("note", "")
        if windowed or r["dtype"] == "fp8" or float(r["tflops"]) <= 0.0:
            continue
        key = (r["kernel"], r["gpu"], r["pass"], r["causal"] == "yes", int(r["head_dim"]))
        out.setdefault(key, {})[int(r["seq_len"])] = float(r["tflops"])
    return out


def interpolated(curve, shape):
    """Missing lengths take the shape of another curve, scaled at the nearest length that is there."""
    full = dict(curve)
    for s in LENGTHS:
        if s not in full:
            near = min(curve, key=lambda t: abs(math.log2(t / s)))
            full[s] = curve[near] * shape[s] / shape[near] if s in shape else curve[near]
    return full


def flash2_on_h100(data):
    """{(causal, head size): (forward, backward)}: a causal backward is solved from
    3.5/both = 1/forward + 2.5/backward."""
    out = {}
    for causal in (True, False):
        for head in (64, 128):
            fwd = data[("FlashAttention-2", H100, "fwd", causal, head)]
            both = data[("FlashAttention-2", H100, "fwd+bwd", causal, head)]
            bwd = data.get(("FlashAttention-2", H100, "bwd", causal, head))
            if not bwd:
                bwd = {s: 2.5 / (3.5 / both[s] - 1 / fwd[s]) for s in fwd}
            out[causal, head] = (fwd, bwd)
    return out


def split(both, reference):
    """Forward and backward of a curve of both, in the proportion of `reference`."""
    fwd, bwd = {}, {}
    for s, rate in both.items():
        a, b = 1 / reference[0][s], 2.5 / reference[1][s]
        total = 3.5 / rate
        fwd[s], bwd[s] = 1 / (total * a / (a + b)), 2.5 / (total * b / (a + b))
    return fwd, bwd


def triton_split():
    """{length: forward}, {length: backward} of Triton's tutorial; 512 as 1024."""
    rates = {"fwd": {}, "bwd": {}}
    for r in rows_of("triton_tutorial.csv"):
        rates[r["pass"]][int(r["seq_len"])] = float(r["tflops"])
    for both in rates.values():
        both[512] = both[1024]
    return rates["fwd"], rates["bwd"]


def curve(kernel, direction, causal, head, rates, source):
    lengths = sorted(rates)
    return {"kernel": kernel, "pass": direction, "causal": causal, "head_size": head,
            "source": source, "seq": lengths, "tflops": [round(rates[s], 2) for s in lengths]}


def pair(kernel, causal, head, both, source):
    return [curve(kernel, name, causal, head, rates, source)
            for name, rates in zip(("forward", "backward"), both)]


def attention_h100(data):
    out, flash2 = [], flash2_on_h100(data)
    for (causal, head), both in sorted(flash2.items()):
        source = FLASH + ("flash2_h100_fwd_bwd and FlashAttention-3 charts; causal backward solved "
                          "from forward and both")
        out += pair("flash2", causal, head, both, source)
    for name, kernel in (("FlashAttention-3", "flash3"), ("cuDNN", "cudnn")):
        for direction, word in (("fwd", "forward"), ("bwd", "backward")):
            for causal in (True, False):
                for head in (64, 128, 256):
                    out += one_of(data, name, kernel, direction, word, causal, head)
    for head in (64, 128):
        fa1 = data[("FlashAttention-1", H100, "fwd+bwd", True, head)]
        both = flash2[True, head]
        source = FLASH + "flash2_h100_fwd_bwd, split as flash2"
        out += pair("flash1", True, head, split(fa1, both), source)
        triton = data[("FlashAttention-1 Triton", A100, "fwd+bwd", True, head)]
        old = data[("FlashAttention-1", A100, "fwd+bwd", True, head)]
        scaled = {s: triton[s] * fa1[s] / old[s] for s in LENGTHS}
        source = ("A100 labels times FlashAttention-1's H100/A100 ratio, split as "
                  "triton-lang/triton#1917")
        out += pair("flash1_triton", True, head, split(scaled, triton_split()), source)
        for causal in (True, False):
            plain = data[("PyTorch standard", H100, "fwd+bwd", causal, head)]
            source = FLASH + "flash2_h100_fwd_bwd (PyTorch standard), split as flash2"
            out += pair("math", causal, head, split(interpolated(plain, {}), flash2[causal, head]),
                        source)
    return out


def one_of(data, name, kernel, direction, word, causal, head):
    """A published curve of one pass. A causal backward that nobody has published for a kernel takes
    that kernel's full one times flash2's causal-to-full ratio."""
    flash2 = flash2_on_h100(data)
    source = FLASH + "flash3 charts"
    rates = data.get((name, H100, direction, causal, head))
    full = data.get((name, H100, direction, False, head))
    if not rates and full and causal:
        a, b = flash2[True, head][1], flash2[False, head][1]
        rates = {s: full[s] * a[s] / b[s] for s in full}
        source += ", full attention times flash2's ratio of causal to full"
    return [curve(kernel, word, causal, head, rates, source)] if rates else []


def attention_a100(data):
    out, reference = [], flash2_on_h100(data)
    for head in (64, 128):
        for causal in (True, False):
            shape = data[("FlashAttention-2", H100, "fwd+bwd", causal, head)]
            both = interpolated(data[("FlashAttention-2", A100, "fwd+bwd", causal, head)], shape)
            source = FLASH + "flash2_a100_fwd_bwd, split as on an H100; hidden labels as there"
            out += pair("flash2", causal, head, split(both, reference[causal, head]), source)
        for name, kernel in (("FlashAttention-1", "flash1"),
                             ("FlashAttention-1 Triton", "flash1_triton")):
            both = data[(name, A100, "fwd+bwd", True, head)]
            triton = kernel == "flash1_triton"
            source = FLASH + "flash2_a100_fwd_bwd, split as " + (
                "triton-lang/triton#1917" if triton else "flash2 on an H100")
            shape = triton_split() if triton else reference[True, head]
            out += pair(kernel, True, head, split(both, shape), source)
    return out


def attention_h200(data):
    source = "NVIDIA/cudnn-frontend 1.19.0 benchmark, published csv: llama3.1 shape, bf16"
    return [curve("cudnn", word, causal, 128,
                  data[("cuDNN SDPA llama3.1 shape", H200, direction, causal, 128)], source)
            for causal in (True, False)
            for direction, word in (("fwd", "forward"), ("bwd", "backward"))]


# ---- norms -------------------------------------------------------------------------------------

def norms(fitted):
    out = []
    for name, backend in (("pytorch", "eager"), ("torch_compile", "compiled"), ("cudnn", "cudnn")):
        for column, word, moved in (("fwd", "forward", 4), ("bwd", "backward", 6)):
            points = {}
            for r in rows_of("norms_h200.csv"):
                if r["backend"] != name or float(r[column + "_GBps"]) <= 0.0:
                    continue
                shape = int(r["rows_N"]), int(r["cols_C"])
                us = moved * shape[0] * shape[1] / float(r[column + "_GBps"]) / 1e3
                points.setdefault(shape, []).append(us)
            shapes = sorted(points)
            out.append({"backend": backend, "pass": word, **fitted["norms"][f"{backend} {word}"],
                        "bytes_per_element": moved,
                        "source": "NVIDIA/cudnn-frontend 3929da2e, benchmark/norms, bf16",
                        "rows": [s[0] for s in shapes], "columns": [s[1] for s in shapes],
                        "us": [round(sum(points[s]) / len(points[s]), 3) for s in shapes]})
    return out


# ---- files -------------------------------------------------------------------------------------

def tables(fitted):
    data = published()
    return {
        "sm90": {"kind": "kernels", "name": "sm90", "gpu": "h100-sxm5-80g",
                 "description": "H100 class: matrix products, attention",
                 "matmul": [matmul_grid("bf16", "bf16", fitted), matmul_grid("tf32", "f32", fitted)],
                 "attention": attention_h100(data)},
        "sm80": {"kind": "kernels", "name": "sm80", "gpu": "a100-sxm4-80g",
                 "description": "A100 SXM4 80 GB: attention", "attention": attention_a100(data)},
        "h200": {"kind": "kernels", "name": "h200", "gpu": "h200-sxm",
                 "description": "H200: cuDNN attention, norms", "attention": attention_h200(data),
                 "norms": norms(fitted)},
    }


def text_of(table):
    """JSON with one object of a list per line."""
    out = []
    for key, value in table.items():
        if isinstance(value, list):
            items = ",\n".join("    " + json.dumps(v) for v in value)
            out.append(f"  {json.dumps(key)}: [\n{items}\n  ]")
        else:
            out.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(out) + "\n}\n"


def main():
    differs = False
    for name, table in tables(constants()).items():
        path = os.path.join(CLUSTERS, f"kernels-{name}.json")
        if "--check" in sys.argv[1:]:
            with open(path) as file:
                same = file.read() == text_of(table)
            differs |= not same
            print(f"{os.path.basename(path)}: {'as made' if same else 'differs from the data'}")
            continue
        with open(path, "w") as file:
            file.write(text_of(table))
        print("wrote", os.path.relpath(path))
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
