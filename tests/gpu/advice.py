"""What a stage of first.sh saw, in five lines: the card, the figures, what failed first, known signs, the next call.

    advice.py STAGE RESULTS OUT     RESULTS: the folder of first.sh's results
"""
import glob, json, os, re, shlex, sys

# What is found in the logs, and what it means: the first that fits a line is told. In the order of their weight.
SIGNS = (
    (r"found no driver|found a driver and no GPU", "no GPU that this process may use"),
    (r"o->block", "memory of a test was refused: no kernel is wrong"),
    (r"attention.* runs in plain kernels", "cuDNN has no plan or no memory for a shape: `kernels-cudnn` says which"),
    (r"slow: \d+ |this is many times slower than usual", "a way that is many times slower was taken or refused: its line says which"),
    (r"cannot be captured|not all of a step runs as CUDA graphs", "graphs were refused: `--graphs off` has the same bits, and more host time"),
    (r"out of memory: .* free for a rank, predicted are", "the card is smaller than the job: no defect"),
    (r"illegal memory access|misaligned address|unspecified launch failure", "a kernel touched memory that is not its own: memcheck names it"),
    (r'"backend": "fake"', "PyTorch's NCCL found no interface: the ratio is void"),
)


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


def steps(results):
    """Name and status of each step of first.sh, in order; "interrupted": the command ended while it ran."""
    found = []
    for name, status in (("steps.txt", []), ("running.txt", ["interrupted"])):
        try:
            with open(os.path.join(results, name)) as f:
                found += [tuple(line.split() + status) for line in f]
        except OSError:
            pass
    return found


WORDS = {"0": "passed", "not-run": "not run", "124": "late", "137": "late", "missing": "missing", "interrupted": "interrupted"}


def card(parts):
    found = next((p["device"][0] for p in parts if p.get("device")), None)
    if not found:
        return "no GPU (nvidia-smi shows none)"
    return f"{found.get('name')}, {found.get('memory.total')} MiB, driver {found.get('driver_version')}" + "".join(f"; busy: {p['busy']}" for p in parts[:1] if p.get("busy"))


def ratios(parts):
    """Of each bench: the ratio of tokens/s, or why there is none."""
    said = []
    for part in parts:
        rows = part.get("table") or []
        if not part["part"].startswith("bench"):
            continue
        mine = (part.get("ours") or {}).get("fsdp")
        text = f"ours/PyTorch {rows[0]['ratio']:.3f}" if rows and rows[0].get("ratio") else f"void ({rows[0]['void']})" if rows else "no ratio"
        said.append(f"{part['part'][6:]} {text}" + (f", step {mine['step_ms']:.1f} ms" if mine else ""))
    return said


def first_failure(results, done, parts):
    """The first step or check that failed, and its last words. Without a GPU nothing else has a meaning."""
    no_gpu = next((sign for sign in signs(results) if sign.startswith(SIGNS[0][1])), None)
    if no_gpu:
        return no_gpu
    for part in parts:
        bad = next((c for c in part.get("checks", []) if c["status"] in ("failed", "timeout")), None)
        if bad:
            return f"{part['part']}: {bad['name']}: {bad['status']}: {' '.join(bad.get('reason', '').split())[-300:]}"
    for name, status in done:
        if status == "missing":
            return f"{name}: the pack has no gpu_test_{name.replace('-', '_')}"
        if status == "interrupted":
            return f"{name}: the command was ended while it ran"
        if status not in ("0", "not-run"):
            try:
                with open(os.path.join(results, name + ".txt"), errors="replace") as f:
                    lines = [line.strip() for line in f if re.search(r"ERROR|FAILED|CUDA says|Error|error", line)]
            except OSError:
                lines = []
            return f"{name}: status {status}: {lines[0][:300] if lines else 'no word of why'}"
    return None


def signs(results):
    seen = []
    for path in sorted(p for kind in ("json", "log", "txt") for p in glob.glob(os.path.join(results, "*." + kind))):
        if os.path.basename(path) == "advice.txt":      # what is being said
            continue
        with open(path, errors="replace") as f:
            text = f.read()
        seen += [f"{meaning} ({os.path.basename(path)})" for pattern, meaning in SIGNS if re.search(pattern, text) and not any(meaning in s for s in seen)]
    return seen


def next_call(stage, done, parts, out):
    """One command, from what was seen."""
    out = shlex.quote(out)
    bad = [name for name, status in done if status != "0"]
    kernels = next((n for n, status in done if n.startswith("kernels-") and status not in ("0", "missing", "interrupted", "not-run")), None)
    gpu = any(p.get("device") for p in parts) or any(c["status"] == "passed" for p in parts for c in p.get("checks", []) if c["name"] in ("gpu", "small"))
    if not gpu:
        return f"tests/gpu/first.sh {stage} {out}, on a machine with a GPU and its driver"
    if stage == "1" and kernels:
        return f". build-gpu/unpacked/env.sh; compute-sanitizer --kernel-regex kns=tsr_cuda build-gpu/unpacked/gpu_test_kernels_{kernels[8:]}"
    if stage == "1":
        return f"tests/gpu/first.sh {'2' if bad else '3'} {out}"
    if stage == "2" and bad:
        return f"tests/gpu/run.sh sanitize {out}; the failing check by hand, with --serial and with --graphs off, its words are in correct.log"
    if stage == "2":
        return f"tests/gpu/first.sh 3 {out}"
    return f"tests/gpu/first.sh 2 {out}, then tests/gpu/run.sh bench gpt2-1558m {out} and tests/gpu/run.sh calibrate {out}"


def main():
    stage, results, out = sys.argv[1:]
    done = steps(results)
    parts = [p for p in (load(os.path.join(results, name + ".json")) for name, _ in done) if p.get("part")]
    states = [f"{name} {WORDS.get(status, 'failed')}" for name, status in done]
    print(f"card: {card(parts)}")
    print(f"seen: {', '.join(states) or 'nothing has run'}{'; ' if ratios(parts) else ''}{'; '.join(ratios(parts))}")
    print(f"first failure: {first_failure(results, done, parts) or 'none'}")
    print(f"signs: {'; '.join(signs(results)) or 'none that is known'}")
    print(f"next call: {next_call(stage, done, parts, out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
