#!/usr/bin/env python3
"""The parts of tests/gpu/run.sh: see README.md. run.sh finds the program and the tests, and calls this.

    parts.py smoke|correct|sanitize|calibrate|pairing OUT --program FILE --tests FOLDER [--seconds S] [--small]
    parts.py bench MODEL OUT --program FILE ...
"""
import argparse, functools, glob, json, os, shutil, subprocess, sys, tempfile

import bench
from result import Failed, Part, Skipped
from runs import TOP, agree, losses, metrics, train

SECONDS = 450                                           # of a part; eight minutes with the start of a machine


def tests_of(folder):
    """Programs of tests, with CUDA's libraries; folder may be a pattern instead."""
    pattern = os.path.join(folder, "gpu_test_*") if os.path.isdir(folder) else folder
    return sorted(f for f in glob.glob(pattern) if os.access(f, os.X_OK) and os.path.isfile(f))


def example(name):
    return os.path.join(TOP, "experiments", name)


# ---- smoke ---------------------------------------------------------------------------------------------------------

def room(folder):
    try:
        return round(shutil.disk_usage(folder).free / 2**30, 1)
    except OSError:
        return None


def machine(part):
    """What the other parts will find here."""
    with open("/proc/meminfo") as f:
        memory = {line.split(":")[0]: line.split()[1] for line in f}
    libraries = subprocess.run(["ldd", part.program], capture_output=True, text=True, timeout=30).stdout
    return dict(cores=os.cpu_count(), memory_gib=round(int(memory["MemTotal"]) / 2**20, 1), free_gib={f: room(f) for f in ("/dev/shm", tempfile.gettempdir(), part.out)},
                fast_folder=bench.fast_folder() or tempfile.gettempdir(), tools={t: shutil.which(t) for t in ("nvcc", "gcc", "g++", "cmake", "ninja", "compute-sanitizer", "nvidia-smi")},
                libraries=[" ".join(line.split()[:3]) for line in libraries.splitlines() if "cuda" in line or "cublas" in line or "cudnn" in line or "nccl" in line],
                torch=bench.has_torch(), kernel=os.uname().release)


def smoke(part, args, scratch):
    def version():
        _, text = part.command([part.program, "--version"], 30)
        return dict(text=text.strip())

    def gpu():
        if not part.result["device"]:
            raise Skipped("nvidia-smi shows no GPU")
        return dict(gpus=len(part.result["device"]))

    def small():
        file = example("h200/tiny-llama.yaml" if args.small else "small/llama.yaml")
        small = dict(batch=1, seq=16, model__layers=1) if args.small else {}
        steps = train(part, file, os.path.join(scratch, "small"), world=1, **small, data__train="null", data__val="null", eval__every=0, train__steps=3, train__warmup=0)
        if len(steps) != 3:
            raise Failed(f"{len(steps)} steps, not 3")
        return dict(losses=[x["loss"] for x in steps], step_s=[x["step_s"] for x in steps])
    def torch():
        if not bench.has_torch():
            raise Skipped("this Python has no PyTorch")
        words = "import torch, triton; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.nccl.version() if torch.cuda.is_available() else None, triton.__version__)"
        _, text = part.command([sys.executable, "-c", words], 120)
        return dict(torch_cuda_cudnn_nccl_triton=text.strip().split("\n")[-1])
    part.run([("machine", lambda: machine(part)), ("version", version), ("gpu", gpu), ("small", small), ("torch", torch)])


# ---- correct -------------------------------------------------------------------------------------------------------

def test_program(part, file):
    """Each recorded scenario is a process: all of them, and more time than a test of kernels."""
    golden = file.endswith("golden")
    _, text = part.command([file], 400 if golden else 200, env=dict(TSR_SOURCE_DIR=TOP, TESSERA=part.program, **(dict(TSR_THOROUGH="1") if golden else {})))
    return dict(tests=text.count("[       OK ]"), **(dict(as_recorded=text.count(": as recorded, ")) if golden else {}))


JOBS = {                                                # one strategy of each kind that a single GPU runs
    "plain": {}, "fused": dict(dialect="fused"), "bf16": dict(precision__param="bf16", precision__reduce="f32"),
    "checkpoint": dict(checkpoint="full", dialect="fused"), "accumulation": dict(accumulation__steps=2),
    "chunks": dict(loss__chunks=4, dialect="fused"), "offload": dict(offload="cpu_pinned", mirror="false", folded_scale="false"),
}
ROOM = {"bf16": 1e-2}                                   # else f32: 1e-4 after 20 steps
MODELS, STEPS = ("tiny-llama", "tiny-gpt2"), 20
SMALL = {}                                              # settings of --small


def job(part, scratch, model, name, on, *options, env=None, tag="", **more):
    folder = os.path.join(scratch, f"{model}-{name}-{on}{tag}")
    settings = dict(precision__param="none", precision__reduce="none", train__steps=STEPS, dialect="eager")
    settings.update(JOBS[name])
    settings.update(more)
    settings.update(SMALL)
    train(part, example(f"h200/{model}.yaml"), folder, *options, on=on, env=env, **settings)
    return losses(folder)


def against_host(part, scratch, model, name):
    return agree(f"{model} {name}: cuda against host", job(part, scratch, model, name, "cuda"), job(part, scratch, model, name, "host"), ROOM.get(name, 1e-4))


def own_plans(scratch, name):
    """Two runs have the same bits if they take the same algorithms: no other run may change their plans meanwhile."""
    return dict(XDG_CACHE_HOME=os.path.join(scratch, "plans-" + name))


def without_graphs(part, scratch, model):
    """Graphs change no bit."""
    env = own_plans(scratch, f"{model}-graphs")
    return agree(f"{model}: with graphs against without", job(part, scratch, model, "fused", "cuda", tag="-graphs", env=env),
                 job(part, scratch, model, "fused", "cuda", "--graphs", "off", tag="-direct", env=env), 0)


def loopback(part, scratch, model):
    """Four ranks on one GPU against four on the host."""
    ranks = ("--ranks", "4")
    return agree(f"{model}: four ranks on one GPU", job(part, scratch, model, "fused", "cuda", *ranks, "--comm", "loopback", tag="-4", cluster="dgx-h200-128"),
                 job(part, scratch, model, "fused", "host", *ranks, tag="-4", cluster="dgx-h200-128"), 1e-4)


def one_rank_nccl(part, scratch, model):
    """Communicators of one rank: split, registered memory, watchdog; the same bits as without NCCL. With ddp: fully_shard
    has no collectives on one rank."""
    env = own_plans(scratch, f"{model}-nccl")
    ddp = dict(api="ddp", mirror="false", folded_scale="false")
    return agree(f"{model}: --force-nccl", job(part, scratch, model, "fused", "cuda", "--force-nccl", tag="-nccl", env=env, **ddp),
                 job(part, scratch, model, "fused", "cuda", tag="-alone", env=env, **ddp), 0)


def correct(part, args, scratch):
    if args.small:
        SMALL.update(train__steps=4, batch=1, seq=16, model__layers=1)
    programs = tests_of(args.tests)
    checks = [(os.path.basename(p), functools.partial(test_program, part, p)) for p in programs]
    if not programs:
        def none():
            raise Failed(f"{args.tests}: no gpu_test_* there; tests/gpu/pack.sh makes them")
        checks.append(("tests", none))
    names = ["fused"] if args.small else list(JOBS)
    for model in MODELS[:1] if args.small else MODELS:
        checks += [(f"{model} {name}", functools.partial(against_host, part, scratch, model, name)) for name in names]
        checks += [(f"{model} graphs", functools.partial(without_graphs, part, scratch, model)),
                   (f"{model} loopback", functools.partial(loopback, part, scratch, model)),
                   (f"{model} one-rank NCCL", functools.partial(one_rank_nccl, part, scratch, model))]
    part.run(checks, at_once=args.at_once)


# ---- sanitize ------------------------------------------------------------------------------------------------------

def sanitized(part, tool, words, seconds, env=None):
    """Only kernels of ours are looked at: those of libraries are neither ours to mend nor worth the time."""
    if not shutil.which("compute-sanitizer"):
        raise Skipped("no compute-sanitizer on this machine")
    options = ["--tool", tool, "--kernel-regex", "kns=tsr_cuda", "--error-exitcode", "9", "--print-limit", "5"]
    status, text = part.command(["compute-sanitizer", *options, *words], seconds, env=env, cwd=TOP, may_fail=True)
    said = [line for line in text.split("\n") if line.startswith("=========")]
    if any("not supported" in line for line in said):
        raise Skipped("; ".join(said)[-300:])           # of the device, in a machine of this kind
    if status:
        raise Failed(f"status {status}: " + " ".join(said[:12] or [text[-600:]])[:1500])
    return dict(said=said[-1] if said else "")


def sanitize(part, args, scratch):
    checks = []
    for tool in ("memcheck", "synccheck", "racecheck"):
        for p in tests_of(args.tests):
            if "golden" in p:                           # starts other programs
                continue
            checks.append((f"{tool} {os.path.basename(p)}", functools.partial(sanitized, part, tool, [p], 150, env=dict(TSR_SOURCE_DIR=TOP))))
        for model in MODELS:
            run = [part.program, "run", example(f"h200/{model}.yaml"), "--strategy", "fsdp", "--on", "cuda", "--set", "train.steps=3"]
            checks.append((f"{tool} {model}", functools.partial(sanitized, part, tool, run, 150)))
    part.run(checks, at_once=args.at_once)


# ---- calibrate -----------------------------------------------------------------------------------------------------

def calibrate(part, args, scratch):
    """Our own measurements, as a cluster that `compare` takes (OUT/calibrate: names in it refer to each other), then PyTorch's,
    for the device file (README.md: use of the figures)."""
    def ours():
        folder = os.path.join(args.out, "calibrate")
        status, text = part.command([part.program, "calibrate", "--on", args.on, "--out", folder], max(part.left() - 130, 60), cwd=TOP, may_fail=True)
        if status == 2:
            raise Skipped(text.strip().split("\n")[-1])
        if status:
            raise Failed(text[-600:])
        return dict(files=sorted(os.listdir(folder)))

    def pytorch():
        got = bench.measure(part, args, scratch, "calibrate", ["--parts", "gemm,attention,memory_bound,launch,optimizer,nccl1"], part.left() - 12)
        return dict(jobs=got["jobs"], not_ok=got["not_ok"], late=got["late"], clocks=got["clocks"])
    part.run([("tessera calibrate", ours), ("measure.py", pytorch)])


# ---- pairing -------------------------------------------------------------------------------------------------------

def paired(part, args, scratch, model, precision, ac, strategy, allowed):
    """The baseline and our run of it on processor cores: that nothing but kernels can tell them apart on a GPU."""
    if not bench.has_torch():
        raise Skipped("this Python has no PyTorch")
    of, steps, name = bench.MODELS[model], 5 if args.small else 200, f"{model}-{precision}-{ac}"
    sizes = ["--batch", str(of["batch"]), "--seq", str(of["seq"]), "--steps", str(steps)]
    start, theirs, folder = os.path.join(scratch, name + "-start"), os.path.join(scratch, name + ".json"), os.path.join(scratch, name)
    here = os.path.dirname(os.path.abspath(__file__))
    part.command([sys.executable, os.path.join(here, "initial.py"), of["config"], start, *sizes, "--device", "cpu"], 60)
    part.command([sys.executable, os.path.join(here, "pairing.py"), of["config"], theirs, *sizes, "--precision", precision, "--ac", ac], 200)
    with open(theirs) as f:
        want = json.load(f)
    if want["flop_per_token"] != bench.flop_per_token(model):
        raise Failed(f"FLOP of a token: {bench.flop_per_token(model)}, models.py has {want['flop_per_token']}")
    more = {} if precision == "bf16" else dict(precision__param="none", precision__reduce="none", mirror="false")
    train(part, example(f"h200/{model}.yaml"), folder, "--strategy", strategy, on="host", train__steps=steps, model__weights=os.path.join(start, "model.safetensors"),
          data__train=os.path.join(start, "train.bin"), **more)
    norms = sorted(abs(x["grad_norm"] - y) / y for x, y in zip(metrics(folder), want["grad_norms"]))
    if not norms[len(norms) // 2] <= allowed:           # the median: a few steps amplify what bf16 rounds away
        raise Failed(f"{name}: norms of gradients: median of the relative differences {norms[len(norms) // 2]:.3g}; allowed: {allowed:g}")
    return dict(agree(f"{name}: losses", losses(folder), want["losses"], allowed), norms_differ=norms[len(norms) // 2])


def pairing(part, args, scratch):
    cases = [(model, precision, ac, strategy, room) for model in MODELS
             for precision, ac, strategy, room in (("f32", "none", "fsdp", 1e-4), ("bf16", "none", "fsdp", 1e-2), ("bf16", "full", "fsdp-full", 1e-2))]
    part.run([(f"{m} {p} {ac}", functools.partial(paired, part, args, scratch, m, p, ac, s, room)) for m, p, ac, s, room in cases], at_once=2)


PARTS = dict(smoke=smoke, correct=correct, sanitize=sanitize, calibrate=calibrate, pairing=pairing, bench=bench.bench)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("part", choices=sorted(PARTS))
    p.add_argument("rest", nargs="+", metavar="[MODEL] OUT")
    p.add_argument("--program", required=True)
    p.add_argument("--tests", required=True, help="folder of gpu_test_*, or a pattern")
    p.add_argument("--seconds", type=float, default=SECONDS)
    p.add_argument("--started", type=float, help="when the part began (time.time()): what was built or unpacked counts")
    p.add_argument("--only", default="", help="bench: checks by a regular expression of their names")
    p.add_argument("--on", default="cuda", choices=["cuda", "host"], help="bench: host, to test the scripts")
    p.add_argument("--measure", default="", help="further options of measure.py, to test the scripts")
    p.add_argument("--at-once", type=int, default=4, help="checks that share the GPU, where no time is taken")
    p.add_argument("--small", action="store_true", help="a few short checks, to test the scripts")
    args = p.parse_args()
    if len(args.rest) != (2 if args.part == "bench" else 1):
        p.error(f"{args.part}: found {len(args.rest)} words; allowed: {'MODEL OUT' if args.part == 'bench' else 'OUT'}")
    args.out, args.model = args.rest[-1], args.rest[0]
    if args.part == "bench" and args.model not in bench.MODELS:
        p.error(f"bench: found {args.model}; allowed: {', '.join(bench.MODELS)}")
    args.out, args.program = os.path.abspath(args.out), os.path.abspath(args.program)
    part = Part(args.part + (f"-{args.model}" if args.part == "bench" else ""), args.out, args.seconds, args.program, args.started)
    scratch = tempfile.mkdtemp(prefix=f"tessera-gpu-{os.getpid()}-", dir=bench.fast_folder())
    try:
        PARTS[args.part](part, args, scratch)
    except Exception as e:                              # what has run counts all the same
        part.result["checks"].append(dict(name=args.part, status="failed", reason=f"{type(e).__name__}: {e}"))
    status = part.finish()
    shutil.rmtree(scratch, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
