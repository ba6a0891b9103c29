"""Where the time of a step goes, by kind: our profile (trace.json of `tessera run --profile`) and PyTorch's (kernels.csv of
measure.py) sorted alike, and the difference, which says what to tune first.

    kinds.py trace.json|kernels.csv...          prints it; of kernels.csv each case
"""
import csv, json, re, sys

KINDS = ("gemm", "attention", "elementwise", "loss", "optimizer", "copies", "exposed communication", "host")

# First match wins. Attention of cuDNN and FlashAttention has "gemm" or "cutlass" in some names.
PATTERNS = (
    ("communication", r"nccl"),
    ("attention", r"flash|fmha|sdpa|attention|bmm_(scores|values|grad_)|softmax_dq|dot_do_o|^elementwise_\w+\d_softmax"),
    ("gemm", r"gemm|nvjet|cutlass|xmma|cublas|splitk|\bgemv"),
    ("loss", r"nll|cross_entropy|softmax|count_labels"),
    ("optimizer", r"adam|foreach_norm|total_norm|norm_power|clip|multi_tensor_apply|lpnorm"),
    ("copies", r"memcpy|memset|_cast\b|param_copy|copy_in|split_with_sizes|chunk_cat|catarray|all_gather_c|device_copy|h2d|d2h|to_bucket|from_bucket|reduce_scatter_copy"),
)
PHASES = {"loss": "loss", "zero_grad": "optimizer", "clip": "optimizer", "optimizer": "optimizer"}


def kind_of(name, phase="", category=""):
    """category: gpu_memcpy and gpu_memset are copies wherever they are."""
    text = name.lower()
    found = next((kind for kind, pattern in PATTERNS if re.search(pattern, text)), None)
    if found == "communication" or category in ("gpu_memcpy", "gpu_memset"):
        return found or "copies"
    if PHASES.get(phase) == "optimizer":                # what it is made of does not matter
        return "optimizer"
    return found or PHASES.get(phase, "elementwise")


def covered(spans):
    """Length of the union of (start, end)."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(b - max(a, end), 0.0)
        end = max(end, b)
    return total


def by_kind(events, step_ms=None):
    """events: (name, phase, category, start us, us). Milliseconds of a step; step_ms: as it was timed without a profile, of
    which "host" is what no kernel explains (it may be below 0: a profile slows kernels down)."""
    sums, parts = dict.fromkeys(KINDS, 0.0), {}
    spans, others = [], []
    for name, phase, category, start, us in events:
        kind = kind_of(name, phase, category)
        spans.append((start, start + us))
        if kind != "communication":
            others.append(spans[-1])
            sums[kind] += us / 1e3
            parts.setdefault(kind, {}).setdefault(name[:80], [0, 0.0])
            parts[kind][name[:80]][0] += 1
            parts[kind][name[:80]][1] += us / 1e3
    busy = covered(spans) / 1e3
    sums["exposed communication"] = busy - covered(others) / 1e3
    whole = step_ms if step_ms is not None else (max((b for _, b in spans), default=0) - min((a for a, _ in spans), default=0)) / 1e3
    sums["host"] = whole - busy
    top = {kind: [dict(name=n, calls=c, ms=round(ms, 4)) for n, (c, ms) in sorted(names.items(), key=lambda x: -x[1][1])[:6]] for kind, names in parts.items()}
    return dict(step_ms=whole, busy_ms=busy, kernels=len(spans), ms={k: round(v, 4) for k, v in sums.items()}, top=top)


def of_trace(path, step_ms=None):
    """The last step of a profile of ours. ValueError: there is none in it."""
    with open(path) as f:
        events = [e for e in json.load(f)["traceEvents"] if e.get("ph") == "X"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    if not steps:
        raise ValueError(f"{path}: no step in it")
    step = max(steps, key=lambda e: e["ts"])
    a, b = step["ts"], step["ts"] + step["dur"]
    found = [(e["name"], e["args"].get("phase", ""), e["cat"], e["ts"], e["dur"]) for e in events
             if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and a <= e["ts"] <= b]
    return by_kind(found, step_ms)


def of_kernels(path, case=None, step_ms=None):
    """A case of measure.py's kernels.csv (the first); None: it is not there."""
    try:
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
    except OSError:
        return None
    case = case or next((r["case"] for r in rows), None)
    found = [(r["name"], r["phase"], r["category"], float(r["start_us"]), float(r["duration_us"])) for r in rows if r["case"] == case]
    return by_kind(found, step_ms) if found else None


def gap(ours, theirs):
    """Kinds by how much longer ours takes, longest first: what to tune in which order."""
    rows = [dict(kind=k, ours_ms=ours["ms"][k], pytorch_ms=theirs["ms"][k], gap_ms=round(ours["ms"][k] - theirs["ms"][k], 4)) for k in KINDS]
    return sorted(rows, key=lambda r: -r["gap_ms"])


def main():
    for path in sys.argv[1:]:
        found = of_trace(path) if path.endswith(".json") else of_kernels(path)
        print(f"{path}: {json.dumps(found, indent=1)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
