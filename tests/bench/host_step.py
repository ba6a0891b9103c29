#!/usr/bin/env python3
"""host_step.py: a training step on one processor core, ours beside PyTorch's eager one; a benchmark, not a test.

    tests/bench/host_step.py [--torch PYTHON] [--core C] [--rounds R] [--precision f32,bf16] [--pytorch fsdp,autocast] [PROGRAM]

PYTHON (or $TESSERA_TORCH; default: the one that runs this) has PyTorch and numpy. PROGRAM: build/tessera, or $TESSERA.

A GPT-2 of 4 layers, 384 wide, 4 windows of 256 tokens, AdamW and clipping, from the same values and tokens as tests/gpu's
baselines. Both are pinned to one core and take turns, R rounds of them. In f32 PyTorch trains the plain model; in bf16 as
FSDP2's mixed precision with one rank does (parameters and products bf16, sums of gradients f32: what ours does), and under
autocast, which keeps more in f32. A step is processor time, which others on the machine disturb less than the clock on the
wall: of a run with more steps less that of a run with fewer. The ratio is the median over rounds.
"""
import argparse, json, os, resource, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GPU = os.path.join(ROOT, "tests", "gpu")
SHAPE = dict(family="gpt2", dim=384, layers=4, heads=6, vocab=4096, tied=True, seq=256, rope="real")
BATCH, WARM, TIMED = 4, 2, 6
MODEL = dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=SHAPE["dim"], n_layer=SHAPE["layers"], n_head=SHAPE["heads"],
             n_positions=SHAPE["seq"], n_ctx=SHAPE["seq"], vocab_size=SHAPE["vocab"], activation_function="gelu_new",
             layer_norm_epsilon=1e-5, tie_word_embeddings=True)
JOB = """model: model.json
cluster: node-single-h200
world: 1
batch: %d
seq: %d
clip: true
dialect: fused
mirror: %s
folded_scale: true
precision: {param: %s, reduce: %s}
optimizer: {name: adamw, variant: fused}
train: {steps: %d, lr: 0.0003, schedule: constant, weight_decay: 0.1, decay: all}
data: {order: sequential, train: train.bin}
checkpoints: {last: false}
strategies:
  fsdp: {}
"""


# ---- run by the Python that has PyTorch ------------------------------------------------------------------------------

def start(folder):
    """What both begin with."""
    sys.path.insert(0, GPU)
    import initial
    initial.write_weights(os.path.join(folder, "model.safetensors"), SHAPE, "cpu")
    initial.write_tokens(os.path.join(folder, "train.bin"), SHAPE["vocab"], (WARM + TIMED) * BATCH * SHAPE["seq"] + 1)


def pytorch(kind):
    """Prints processor seconds of every timed step, and the losses."""
    sys.path.insert(0, GPU)
    import time, torch, models
    torch.set_num_threads(1)
    wrap = dict(plain="f32", fsdp="fsdp", autocast="plain")[kind]
    if wrap == "fsdp":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    m = models.build(SHAPE, wrap, "none", False, "inductor", device="cpu")
    opt = torch.optim.AdamW(m.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    step = models.make_step(SHAPE, m, wrap, models.loss_of, opt, device="cpu")
    seconds, losses = [], []
    for i in range(WARM + TIMED):
        batch, before = models.batch_of(i, BATCH, SHAPE["seq"], SHAPE["vocab"]), time.process_time()
        losses.append(float(step(*batch)[0]))
        seconds.append(time.process_time() - before)
    json.dump(dict(seconds=seconds[WARM:], losses=losses), sys.stdout)


# ---- run by any ------------------------------------------------------------------------------------------------------

def command(words, core, **more):
    """Runs it on one core; its processor seconds and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    end = subprocess.run(words, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {core}), **more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if end.returncode:
        sys.exit(f"host_step.py: {' '.join(words)}: exit status {end.returncode}: {end.stderr.strip()[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, end.stdout


def ours_once(program, folder, precision, core, steps):
    bf16 = precision == "bf16"
    job, out = os.path.join(folder, f"{precision}-{steps}.yaml"), os.path.join(folder, f"{precision}-{steps}")
    with open(job, "w") as f:
        f.write(JOB % (BATCH, SHAPE["seq"], str(bf16).lower(), "bf16" if bf16 else "none", "f32" if bf16 else "none", steps))
    subprocess.run(["rm", "-rf", out], check=True)
    seconds, _ = command([program, "run", job, "--strategy", "fsdp", "--on", "host", "--out", out,
                          "--set", "model.weights=" + os.path.join(folder, "model.safetensors")], core)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        losses = [json.loads(line)["loss"] for line in f]
    with open(os.path.join(out, "run.json")) as f:
        return seconds, losses, json.load(f).get("host_products", "?")


def ours(program, folder, precision, core):
    few, _, _ = ours_once(program, folder, precision, core, WARM)
    many, losses, products = ours_once(program, folder, precision, core, WARM + TIMED)
    return (many - few) / TIMED, losses, products


def theirs(python, kind, core):
    _, text = command([python, __file__, "--worker", kind], core)
    result = json.loads(text[text.index('{"seconds"'):])
    return statistics.mean(result["seconds"]), result["losses"]


def compare(a, folder, precision, kind):
    rows = []
    for _ in range(a.rounds):
        mine, my_losses, products = ours(a.program, folder, precision, a.core)
        other, other_losses = theirs(a.torch, kind, a.core)
        rows.append((mine, other))
    off = max(abs(x - y) / y for x, y in zip(my_losses, other_losses))
    mine, other = (statistics.median(x) for x in zip(*rows))
    ratios = sorted(x / y for x, y in rows)
    print(f"{precision:<5} {kind:<9} ours {mine * 1e3:7.1f} ms   PyTorch {other * 1e3:7.1f} ms   ratio {statistics.median(ratios):.3f} "
          f"({ratios[0]:.3f} to {ratios[-1]:.3f})   losses differ by {off:.1e}   {products}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program", nargs="?", default=os.environ.get("TESSERA", os.path.join(ROOT, "build", "tessera")))
    p.add_argument("--torch", default=os.environ.get("TESSERA_TORCH", sys.executable), help="a Python with PyTorch ($TESSERA_TORCH)")
    p.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--precision", default="f32,bf16")
    p.add_argument("--pytorch", default="fsdp,autocast", help="what bf16 is compared with")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        return start(a.worker[6:]) if a.worker.startswith("start:") else pytorch(a.worker)
    a.program = os.path.abspath(a.program)
    if subprocess.run([a.torch, "-c", "import torch, numpy"], capture_output=True).returncode:
        sys.exit(f"host_step.py: {a.torch} has no PyTorch and numpy: --torch PYTHON, or TESSERA_TORCH, names one that has")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(f"load average {load}; core {a.core}; {a.rounds} rounds of {TIMED} steps", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "model.json"), "w") as f:
            json.dump(MODEL, f)
        command([a.torch, __file__, "--worker", "start:" + folder], a.core)
        for precision in a.precision.split(","):
            for kind in ["plain"] if precision == "f32" else a.pytorch.split(","):
                compare(a, folder, precision, kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
