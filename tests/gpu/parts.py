#!/usr/bin/env python3
"""The parts of tests/gpu/run.sh: see README.md. run.sh finds the program and the tests, and calls this.

    parts.py smoke|correct|sanitize|calibrate OUT --program FILE --tests FOLDER [--seconds S] [--small]
    parts.py bench MODEL OUT --program FILE ...
"""
import argparse, functools, glob, os, shutil, sys, tempfile

import bench
from result import Failed, Part, Skipped
from runs import TOP, agree, losses, train

SECONDS = 450                                           # of a part; eight minutes with the start of a machine


def tests_of(folder):
    """Programs of tests, with CUDA's libraries; folder may be a pattern instead."""
    pattern = os.path.join(folder, "gpu_test_*") if os.path.isdir(folder) else folder
    return sorted(f for f in glob.glob(pattern) if os.access(f, os.X_OK) and os.path.isfile(f))


def example(name):
    return os.path.join(TOP, "experiments", name)


# ---- smoke ---------------------------------------------------------------------------------------------------------

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
    part.run([("version", version), ("gpu", gpu), ("small", small)])


# ---- correct -------------------------------------------------------------------------------------------------------

def test_program(part, file, seconds):
    _, text = part.command([file], seconds, env=dict(TSR_SOURCE_DIR=TOP, TESSERA=part.program))
    return dict(tests=text.count("[       OK ]"))


JOBS = {                                                # one strategy of each kind that a single GPU runs
    "plain": {}, "fused": dict(dialect="fused"), "bf16": dict(precision__param="bf16", precision__reduce="f32"),
    "checkpoint": dict(checkpoint="full", dialect="fused"), "accumulation": dict(accumulation__steps=2),
    "chunks": dict(loss__chunks=4, dialect="fused"), "offload": dict(offload="cpu_pinned"),
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


def without_graphs(part, scratch, model):
    """Graphs change no bit."""
    return agree(f"{model}: with graphs against without", job(part, scratch, model, "fused", "cuda", tag="-graphs"),
                 job(part, scratch, model, "fused", "cuda", "--graphs", "off", tag="-direct"), 0)


def loopback(part, scratch, model):
    """Four ranks on one GPU against four on the host."""
    ranks = ("--ranks", "4")
    return agree(f"{model}: four ranks on one GPU", job(part, scratch, model, "fused", "cuda", *ranks, "--comm", "loopback", tag="-4", cluster="dgx-h200-128"),
                 job(part, scratch, model, "fused", "host", *ranks, tag="-4", cluster="dgx-h200-128"), 1e-4)


def one_rank_nccl(part, scratch, model):
    """Communicators of one rank: split, registered memory, watchdog; the same bits as without NCCL."""
    return agree(f"{model}: --force-nccl", job(part, scratch, model, "fused", "cuda", "--force-nccl", tag="-nccl"), job(part, scratch, model, "fused", "cuda"), 0)


def correct(part, args, scratch):
    if args.small:
        SMALL.update(train__steps=4, batch=1, seq=16, model__layers=1)
    programs = tests_of(args.tests)
    checks = [(os.path.basename(p), functools.partial(test_program, part, p, 200)) for p in programs]
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
    if not shutil.which("compute-sanitizer"):
        raise Skipped("no compute-sanitizer on this machine")
    options = ["--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
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
    """Our own measurements, then PyTorch's, for the device file (README.md: use of the figures)."""
    def ours():
        folder = os.path.join(scratch, "calibrate")
        status, text = part.command([part.program, "calibrate", "--on", "cuda", "--out", folder], 200, cwd=TOP, may_fail=True)
        if status == 2:
            raise Skipped(text.strip().split("\n")[-1])
        if status:
            raise Failed(text[-600:])
        for file in sorted(glob.glob(os.path.join(folder, "*.json"))):
            shutil.copy(file, os.path.join(args.out, "calibrate-" + os.path.basename(file)))
        return dict(files=sorted(os.listdir(folder)))

    def pytorch():
        return bench.measure(part, args, scratch, "calibrate", ["--parts", "gemm,attention,memory_bound,launch,optimizer,nccl1"], part.left() - 15)
    part.run([("tessera calibrate", ours), ("measure.py", pytorch)])


PARTS = dict(smoke=smoke, correct=correct, sanitize=sanitize, calibrate=calibrate, bench=bench.bench)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("part", choices=sorted(PARTS))
    p.add_argument("rest", nargs="+", metavar="[MODEL] OUT")
    p.add_argument("--program", required=True)
    p.add_argument("--tests", required=True, help="folder of gpu_test_*, or a pattern")
    p.add_argument("--seconds", type=float, default=SECONDS)
    p.add_argument("--at-once", type=int, default=4, help="checks that share the GPU, where no time is taken")
    p.add_argument("--small", action="store_true", help="a few short checks, to test the scripts")
    args = p.parse_args()
    if len(args.rest) != (2 if args.part == "bench" else 1):
        p.error(f"{args.part}: found {len(args.rest)} words; allowed: {'MODEL OUT' if args.part == 'bench' else 'OUT'}")
    args.out, args.model = args.rest[-1], args.rest[0]
    if args.part == "bench" and args.model not in bench.MODELS:
        p.error(f"bench: found {args.model}; allowed: {', '.join(bench.MODELS)}")
    args.out, args.program = os.path.abspath(args.out), os.path.abspath(args.program)
    part = Part(args.part + (f"-{args.model}" if args.part == "bench" else ""), args.out, args.seconds, args.program)
    scratch = tempfile.mkdtemp(prefix="tessera-", dir=bench.fast_folder())
    try:
        PARTS[args.part](part, args, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return part.finish()


if __name__ == "__main__":
    sys.exit(main())
