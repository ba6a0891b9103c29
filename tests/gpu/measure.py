#!/usr/bin/env python3
"""Calibration figures and PyTorch baselines of one GPU. README.md beside this file says what, how and in which units.

    python3 measure.py OUT [--seconds 540] [--parts gemm,attention,...] [--only REGEX] [--list] [--smoke]

Upper half: the scheduler (no torch): one child process per job, most valuable first, results merged into OUT every two
seconds, a child that outlasts its time is killed. Lower half: what the children measure.
"""
import argparse, csv, gzip, json, math, os, re, shutil, signal, subprocess, sys, tempfile, threading, time, traceback

# Job: (name = part[/scenario], seconds after which it starts no new case). The order is the order of value.
JOBS = [("gemm", 45), ("fsdp_compile/llama-8b-8L-b1", 60), ("attention", 40), ("memory_bound", 45), ("fsdp_compile/gpt2-124M-b64", 50),
        ("fsdp_eager/llama-8b-8L-b1", 45), ("optimizer", 25), ("launch", 25), ("fsdp_compile/llama-1b-b4", 50), ("nccl1", 12),
        ("fsdp_compile/plain-bf16-llama-8b-8L-b1", 50), ("fsdp_eager/llama-8b-8L-b2", 30), ("fsdp_eager/llama-8b-8L-b1-full", 25),
        ("fsdp_eager/llama-8b-8L-b1-selective", 25), ("fsdp_compile/llama-8b-8L-b2", 55), ("fsdp_eager/llama-1b-b4", 30),
        ("fsdp_eager/gpt2-124M-b64", 25), ("fsdp_compile/plain-gpt2-124M-b64", 45), ("fsdp_compile/plain-llama-1b-b4", 50),
        ("fsdp_compile/llama-8b-8L-b1-full", 50), ("fsdp_compile/llama-8b-8L-b1-selective", 55), ("fsdp_compile/gpt2-1558M-b16", 60),
        ("fsdp_eager/llama-8b-8L-b2-full", 30), ("fsdp_eager/llama-8b-8L-b2-selective", 30), ("fsdp_compile/llama-8b-8L-b2-full", 55),
        ("fsdp_compile/llama-8b-8L-b2-selective", 60), ("fsdp_compile/plain-llama-8b-8L-b1", 50),
        ("fsdp_compile/llama-8b-8L-b1-complex", 55), ("fsdp_compile/gpt2-124M-b64-v50257", 50), ("fsdp_eager/gpt2-1558M-b16", 40),
        ("fsdp_compile/llama-1b-b8", 55), ("fsdp_compile/gpt2-124M-b128", 50), ("fsdp_compile/gpt2-1558M-b24", 60),
        *((f"{part}/{case}", 50) for case in ("llama-1b-b2", "gpt2-124M-b32", "gpt2-1558M-b8") for part in ("fsdp_compile", "fsdp_eager")),
        ("fsdp_compile/tiny-llama-b2", 30), ("fsdp_eager/tiny-llama-b2", 20), ("fsdp_compile/tiny-gpt2-b2", 30), ("fsdp_eager/tiny-gpt2-b2", 20)]
PARTS = list(dict.fromkeys(n.split("/")[0] for n, _ in JOBS))
SMI = "clocks.sm,clocks.mem,temperature.gpu,power.draw,utilization.gpu,clocks_event_reasons.active"


def smi(fields):
    """Read-only query of the driver; None where nvidia-smi is missing."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10)
        if out.returncode:                              # a driver that lacks a field: the first ones alone
            return smi(",".join(fields.split(",")[:3])) if fields.count(",") > 2 else None
        return dict(zip(fields.split(","), [v.strip() for v in out.stdout.splitlines()[0].split(",")]))
    except Exception:
        return None


def write(path, text):
    with open(path + ".tmp", "w", newline="") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def write_csv(path, rows):
    cols = list(dict.fromkeys(k for r in rows for k, v in r.items() if not isinstance(v, dict)))
    with open(path + ".tmp", "w", newline="") as f:
        w = csv.DictWriter(f, cols, extrasaction="ignore", restval="")
        w.writeheader()
        w.writerows({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in r.items()} for r in rows)
    os.replace(path + ".tmp", path)


class Child:
    """A job in its own session and process group. It imports torch, then waits for one line with its budget."""
    def __init__(self, name, args, scratch, env):
        self.name, self.file = name, os.path.join(scratch, name.replace("/", "_") + ".json")
        cmd = [sys.executable, os.path.abspath(__file__), args.out, "--job", name, "--file", self.file, "--parent", str(os.getpid()), "--backend", args.backend,
               "--compile-backend", args.compile_backend, "--steps", str(args.steps), "--warm", str(args.warm), "--timed", str(args.timed)] + (["--smoke"] if args.smoke else [])
        self.proc = subprocess.Popen(cmd, stdin=subprocess.PIPE, text=True, start_new_session=True, env=env)

    def go(self, seconds):
        try:
            self.proc.stdin.write(f"{seconds:.1f}\n"); self.proc.stdin.flush()
        except OSError:
            pass

    def kill(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except OSError:
            pass
        self.proc.wait()

    def read(self):
        try:
            with open(self.file) as f:
                return json.load(f)
        except (OSError, ValueError):
            return {}


def schedule(args):
    start, out = time.time(), args.out
    end = start + args.seconds
    os.makedirs(out, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="measure-")
    env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(scratch, "inductor"), TRITON_CACHE_DIR=os.path.join(scratch, "triton"), PYTHONUNBUFFERED="1")
    jobs = [(n, args.budget or s) for n, s in JOBS if n.split("/")[0] in args.parts and re.search(args.only, n)]
    res = dict(format=1, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)), arguments=sys.argv[1:],
               driver=smi("name,driver_version,vbios_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.current,pcie.link.width.current,mig.mode.current,ecc.mode.current"),
               versions={}, jobs={n: dict(status="skipped") for n, _ in jobs}, samples=[], rows={})
    rows = {}                                           # job -> table -> rows

    def merge(child):
        got = child.read()
        if not got:
            return
        res["versions"].update(got.get("versions", {}))
        res["jobs"][child.name].update(got.get("job", {}))
        rows[child.name] = got.get("rows", {})

    def save():
        tables = {}
        for j in rows.values():
            for t, r in j.items():
                tables.setdefault(t, []).extend(r)
        for t, r in tables.items():
            write_csv(os.path.join(out, t + ".csv"), r)
        res["rows"] = {t: r for t, r in tables.items() if t != "kernels"}
        res["seconds"] = round(time.time() - start, 1)
        write(os.path.join(out, "results.json"), json.dumps(res, indent=1))

    stop = []
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: stop.append(1))
    waiting = Child(jobs[0][0], args, scratch, env) if jobs else None
    for i, (name, seconds) in enumerate(jobs):
        left = end - time.time()
        if stop or left < 15:
            break
        child, waiting = waiting, None
        j, t0 = res["jobs"][name], time.time()
        soft = min(seconds, left - 10) if not args.smoke else seconds
        j.update(status="running", budget_s=round(soft, 1), clocks_before=smi(SMI))
        child.go(soft)
        hard, sampled, merged = min(t0 + soft + 25, end - 2), t0, t0
        while child.proc.poll() is None and time.time() < hard and not stop:
            time.sleep(0.05)
            if waiting is None and i + 1 < len(jobs) and name != "launch" and time.time() > t0 + 1:
                waiting = Child(jobs[i + 1][0], args, scratch, env)      # imports torch while this job warms up; touches no GPU
            if time.time() > merged + 2:
                merge(child); save(); merged = time.time()
            if time.time() > sampled + 5:
                res["samples"].append(dict(t_s=round(time.time() - start, 1), job=name, **(smi(SMI) or {}))); sampled = time.time()
        timed_out = child.proc.poll() is None
        j["clocks_after"] = smi(SMI)
        child.kill()
        merge(child)
        if timed_out:
            j["status"] = "stopped" if stop else "timeout"
        elif child.proc.returncode != 0:
            j["status"] = "error"; j.setdefault("error", f"exit status {child.proc.returncode}")
        else:
            j["status"] = "ok" if not j.get("errors") else "partial"
        j["seconds"] = round(time.time() - t0, 1)
        save()
        print(f"{name:40s} {j['status']:8s} {j['seconds']:6.1f} s  rows {sum(map(len, rows.get(name, {}).values())):5d}  errors {len(j.get('errors', []))}", flush=True)
        if waiting is None and i + 1 < len(jobs) and end - time.time() > 15:
            waiting = Child(jobs[i + 1][0], args, scratch, env)
    if waiting:
        waiting.kill()
    save()
    shutil.rmtree(scratch, ignore_errors=True)
    for r in res["rows"].get("training", []):
        if r.get("tokens_per_s"):
            print(f"{r['case']:44s} {r['step_ms']:9.2f} ms {r['tokens_per_s']:10.0f} tok/s  MFU {100 * r['mfu']:5.1f} %  peak {r['peak_allocated'] / 2**30:6.2f} GiB", flush=True)
    print(f"{os.path.join(out, 'results.json')}: {res['seconds']} s", flush=True)
    return 0 if any(j["status"] in ("ok", "partial") for j in res["jobs"].values()) else 1


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", nargs="?", default=os.environ.get("OUT", "measured"), help="folder of the results (default: $OUT, else ./measured)")
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--parts", default=",".join(PARTS), type=lambda s: s, help="some of " + ",".join(PARTS))
    p.add_argument("--only", default="", help="regular expression over job names (--list shows them)")
    p.add_argument("--list", action="store_true")
    p.add_argument("--steps", type=int, default=20, help="training: steps of a case, whose losses are kept")
    p.add_argument("--warm", type=int, default=5, help="training: steps before those that are timed")
    p.add_argument("--timed", type=int, default=0, help="training: steps that are timed (default: all after the warm-up)")
    p.add_argument("--budget", type=float, default=0, help="seconds for each job, instead of its own")
    p.add_argument("--smoke", action="store_true", help="tiny sizes, one repeat: finds errors of the program; its figures mean nothing")
    p.add_argument("--backend", default="nccl", choices=["nccl", "fake"], help="fake: torch's communicator that moves nothing, for tests without NCCL")
    p.add_argument("--compile-backend", default="inductor", help="inductor, or aot_eager for tests without a code generator")
    p.add_argument("--job", help=argparse.SUPPRESS)
    p.add_argument("--file", help=argparse.SUPPRESS)
    p.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.parts = a.parts.split(",")
    if not 0 < a.warm < a.steps - 1 or not 0 <= a.timed <= a.steps - a.warm:
        p.error(f"--steps {a.steps} --warm {a.warm} --timed {a.timed}: at least one step of warm-up, two after it, and no more timed than those")
    for x in set(a.parts) - set(PARTS):
        p.error(f"--parts: '{x}' is none of {','.join(PARTS)}")
    return a


if __name__ == "__main__" and "--job" not in sys.argv:
    ARGS = arguments()
    if ARGS.list:
        print("\n".join(f"{n:40s} {s:4d} s" for n, s in JOBS)); sys.exit(0)
    sys.exit(schedule(ARGS))

# ---------------------------------------------------------------------------------------------------------------------
# What follows runs in the children only.
import contextlib, ctypes, gc, importlib, statistics
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from models import CONFIG, PHASES, batch_of, build, flops_per_token, loss_of, make_step, rms_hand, rope_complex, rope_real, rope_table

BF, FP = torch.bfloat16, torch.float32
SMOKE, DEV = False, "cuda"
PEAK = 989e12                                           # dense bf16 FLOP/s of H100 SXM and H200, the divisor of every MFU here


class Run:
    """Rows and errors of one job, saved as they come."""
    def __init__(self, name, file, seconds, args):
        self.name, self.file, self.args = name, file, args
        self.deadline, self.rows, self.job, self.saved = time.time() + seconds, {}, dict(errors=[]), 0.0
        self.versions, self.lock = {}, threading.Lock()

    def left(self):
        return self.deadline - time.time()

    def row(self, table, **kw):
        self.rows.setdefault(table, []).append({k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in kw.items()})
        if time.time() > self.saved + 1:
            self.save()
        return self.rows[table][-1]

    def save(self):
        with self.lock:
            write(self.file, json.dumps(dict(job=self.job, versions=self.versions, rows=self.rows)))
            self.saved = time.time()

    @contextlib.contextmanager
    def case(self, name):
        """Records an error and goes on, unless the device itself has failed."""
        try:
            yield
        except Exception as e:
            text = f"{type(e).__name__}: {e}".strip()
            self.job["errors"].append(dict(case=name, error=text[:600], where=traceback.format_exc(limit=-3)[-900:]))
            self.save()
            first = text.split("\n")[0]
            if re.search("illegal|misaligned|device-side assert|unspecified launch|ECC error|launch timed out", first) and "CUDA" in first:
                raise
            if "out of memory" in text.lower():
                gc.collect(); torch.cuda.empty_cache()

    def enough(self):
        if self.left() > 0:
            return False
        self.job["cut"] = True                          # budget used up before the last case
        return True


def event():
    return torch.cuda.Event(enable_timing=True)


def clamp(x, lo, hi):
    return max(lo, min(hi, x))


def bench(fn, sets, target_ms=30.0):
    """Device microseconds of one call: median over samples; a sample is a batch of calls between two events. Arguments
    rotate over sets. Where the host is slower than the device, a spin kernel runs first, so that the calls queue up
    behind it and the device never waits for the host. host_us: host time of issuing one call."""
    n = len(sets)
    for i in range(1 if SMOKE else 3):
        fn(*sets[i % n])
    torch.cuda.synchronize()
    a, b = event(), event()
    t0 = time.perf_counter()
    a.record()
    for i in range(3):
        fn(*sets[(i + 3) % n])
    b.record()
    host = (time.perf_counter() - t0) / 3 * 1e6
    torch.cuda.synchronize()
    est = max(a.elapsed_time(b) * 1000 / 3, 0.5)
    inner = 1 if SMOKE else clamp(int(1500 / est), 1, 40)
    samples = 1 if SMOKE else clamp(int(target_ms * 1000 / (inner * est)), 5, 25)
    spin = int(min(inner * host * 1.5 + 50, 20000) * 2000) if host > 0.4 * est and not SMOKE else 0   # cycles at about 2 GHz
    pairs, issue, k = [], [], 0
    for _ in range(samples):
        a, b = event(), event()
        if spin:
            torch.cuda._sleep(spin)
        t0 = time.perf_counter()
        a.record()
        for _ in range(inner):
            fn(*sets[k % n]); k += 1
        b.record()
        issue.append((time.perf_counter() - t0) / inner * 1e6)
        pairs.append((a, b))
        if spin:
            b.synchronize()
    torch.cuda.synchronize()
    t = [max(a.elapsed_time(b) * 1000 / inner, 1e-3) for a, b in pairs]
    return dict(us=statistics.median(t), us_min=min(t), us_max=max(t), host_us=min(issue), calls=samples * inner)


class Pool:
    """Random data cut into tensors one after another, so that consecutive calls read different memory."""
    def __init__(self, numel, dtype=BF):
        self.data, self.at = torch.empty(numel, dtype=dtype, device=DEV), 0
        for i in range(0, numel, 1 << 28):
            self.data[i:i + (1 << 28)].normal_()

    def take(self, *shape):
        n = math.prod(shape)
        if self.at + n > self.data.numel():
            self.at = 0
        t = self.data[self.at:self.at + n].view(shape)
        self.at += (n + 127) // 128 * 128
        return t

    def sets(self, *shapes, floor=256e6, most=256):
        """Argument tuples that together exceed the L2 cache (60 MB) several times."""
        n = 2 if SMOKE else clamp(math.ceil(floor / (sum(map(math.prod, shapes)) * self.data.element_size())), 2, most)
        return [tuple(self.take(*s) for s in shapes) for _ in range(n)]


# -- gemm ------------------------------------------------------------------------------------------------------------
LINEARS = {                                             # model -> linear -> (outputs n, inputs k)
    "llama-3-8b": dict(qkv=(6144, 4096), q_or_o=(4096, 4096), k_or_v=(1024, 4096), gate_or_up=(14336, 4096), gate_up=(28672, 4096), down=(4096, 14336), head=(128256, 4096)),
    "llama-3.2-1b": dict(qkv=(3072, 2048), q_or_o=(2048, 2048), k_or_v=(512, 2048), gate_or_up=(8192, 2048), gate_up=(16384, 2048), down=(2048, 8192), head=(128256, 2048)),
    "gpt2-124M": dict(qkv=(2304, 768), proj=(768, 768), fc=(3072, 768), down=(768, 3072), head=(50257, 768), head_padded=(50304, 768)),
    "gpt2-1558M": dict(qkv=(4800, 1600), proj=(1600, 1600), fc=(6400, 1600), down=(1600, 6400), head=(50257, 1600), head_padded=(50304, 1600)),
}


def part_gemm(run):
    pool = Pool(1 << 20 if SMOKE else 3 << 30)
    cases = [(m, name, t, n, k, w) for t in (8192, 16384, 4096, 2048, 1024) for m, ls in LINEARS.items() for name, (n, k) in ls.items() for w in ("forward", "dgrad", "wgrad")]
    sizes = [16384, 8192, 4096, 2048, 1024, 512]
    grid = sorted(((m, n, k) for m in sizes for n in sizes for k in sizes), key=lambda s: (len(set(s)), -min(s)))
    cases = cases[:99] + [("grid", "", m, n, k, "forward") for m, n, k in grid[:40]] + cases[99:] + [("grid", "", m, n, k, "forward") for m, n, k in grid[40:]]

    def one(model, name, t, n, k, what, dtype, pool, ms):
        if SMOKE:
            t, n, k = t // 256, n // 256, k // 256
        if what == "forward":                           # y[t,n] = x[t,k] w[n,k]^T
            r = bench(lambda x, w: torch.mm(x, w.t()), pool.sets((t, k), (n, k)), ms); shape = (t, n, k)
        elif what == "dgrad":                           # dx[t,k] = dy[t,n] w[n,k]
            r = bench(torch.mm, pool.sets((t, n), (n, k)), ms); shape = (t, k, n)
        else:                                           # dw[n,k] = dy[t,n]^T x[t,k]
            r = bench(lambda dy, x: torch.mm(dy.t(), x), pool.sets((t, n), (t, k)), ms); shape = (n, k, t)
        m, n, k = shape
        run.row("gemm", model=model, linear=name, what=what, dtype=dtype, m=m, n=n, k=k, tflops=2e-6 * m * n * k / r["us"], **r)

    for c in cases[::40] if SMOKE else cases:
        if run.left() < (0 if SMOKE else 4) and not run.job.get("cut"):
            run.job["cut"] = True
        if run.job.get("cut"):
            break
        with run.case(f"gemm {c}"):
            one(*c, "bf16", pool, 12)
    with run.case("sustained"):                         # two seconds of one product: the clock under load
        x, w = pool.take(*(2 * (64 if SMOKE else 8192,))), pool.take(*(2 * (64 if SMOKE else 8192,)))
        n, a, b = 2 if SMOKE else 1400, event(), event()
        a.record()
        for _ in range(n):
            torch.mm(x, w.t())
        b.record(); b.synchronize()
        us = max(a.elapsed_time(b) * 1000 / n, 1e-3)
        run.row("gemm", model="sustained", linear="", what="forward", dtype="bf16", m=8192, n=8192, k=8192, tflops=2e-6 * 8192**3 / us, us=us, calls=n)
    del pool; torch.cuda.empty_cache()
    pool = Pool(1 << 20 if SMOKE else 1 << 29, FP)
    for tf32 in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for s in (1024, 4096, 8192):
            with run.case(f"fp32 {s}"):
                one("grid", "", s, s, s, "forward", "tf32" if tf32 else "fp32", pool, 12)


# -- attention -------------------------------------------------------------------------------------------------------
def part_attention(run):
    from torch.nn.attention import sdpa_kernel, SDPBackend
    backs = dict(flash=SDPBackend.FLASH_ATTENTION, cudnn=SDPBackend.CUDNN_ATTENTION, efficient=SDPBackend.EFFICIENT_ATTENTION)
    heads = [("llama-3-8b", 32, 8, 128), ("llama-3.2-1b", 32, 8, 64), ("mha", 32, 32, 128), ("gpt2-124M", 12, 12, 64), ("gpt2-1558M", 25, 25, 64)]
    cases = [(h, s, back, causal) for causal in (True, False) for s in (8192, 4096, 1024, 2048, 16384) for h in heads for back in backs
             if causal or (h[0] in ("llama-3-8b", "gpt2-124M") and s in (1024, 4096))]
    failed = {}
    for (name, h, kv, d), s, back, causal in cases[::9] if SMOKE else cases:
        if run.enough():
            break
        if failed.get(back, 0) >= 3:
            continue
        b = max(1, 16384 // s)
        if SMOKE:
            s, b = s // 64, 1
        with run.case(f"{name} s={s} {back}"), sdpa_kernel([backs[back]]):
            repeat = back == "efficient" and kv != h    # this kernel has no grouped heads: key and value are expanded first
            mk = lambda n: torch.randn(b, s, n, d, device=DEV, dtype=BF).transpose(1, 2).requires_grad_()
            sets = [(mk(h), mk(h if repeat else kv), mk(h if repeat else kv)) for _ in range(2)]
            fn = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != h and not repeat)
            failed[back] = failed.get(back, 0) + 1
            flop = 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)
            f = bench(fn, sets, 12)
            key = dict(heads=name, backend=back, batch=b, q_heads=h, kv_heads=h if repeat else kv, head_dim=d, seq=s, causal=int(causal))
            run.row("attention", **key, what="forward", tflops=1e-6 * flop / f["us"], **f)
            outs = [(fn(*t), t, torch.randn(b, s, h, d, device=DEV, dtype=BF).transpose(1, 2)) for t in sets]
            g = bench(lambda o, t, g: torch.autograd.grad(o, t, g, retain_graph=True), outs, 15)
            run.row("attention", **key, what="backward", tflops=2.5e-6 * flop / g["us"], **g)
            failed[back] = 0
            del outs, sets


# -- memory-bound kernels -------------------------------------------------------------------------------------------
def part_memory_bound(run):
    pools = {BF: Pool(1 << 22 if SMOKE else 1 << 31), FP: Pool(1 << 22 if SMOKE else 1 << 30, FP)}

    def emit(op, what, r, nbytes, **kw):
        run.row("memory_bound", op=op, what=what, bytes=int(nbytes), gbps=nbytes / r["us"] * 1e-3, **kw, **r)

    def both(op, fn, shapes, nbytes_f, nbytes_b, dtype=BF, consts=(), **kw):
        """fn over differentiable inputs of the given shapes; bytes as (forward, backward)."""
        with run.case(f"{op} {shapes}"):
            sets = [tuple(t.detach().requires_grad_() for t in s) + tuple(consts) for s in pools[dtype].sets(*shapes, most=8)]
            emit(op, "forward", bench(fn, sets, 10), nbytes_f, **kw)
            outs = []
            for s in sets[:4]:
                o = fn(*s)
                outs.append((o, [t for t in s if t.requires_grad], torch.ones_like(o) if o.dim() == 0 else torch.randn_like(o)))
            emit(op, "backward", bench(lambda o, t, g: torch.autograd.grad(o, t, g, retain_graph=True), outs, 10), nbytes_b, **kw)

    for p in range(14, 31, 2):                          # 16 Ki to 1 Gi elements
        n = 1 << (p if not SMOKE else 8)
        for op, dt, fn, ins, per in (("copy", BF, lambda a: a.clone(), 1, 4), ("add", BF, torch.add, 2, 6), ("cast_fp32_bf16", FP, lambda a: a.to(BF), 1, 6),
                                     ("cast_bf16_fp32", BF, lambda a: a.to(FP), 1, 6), ("fill", BF, lambda a: torch.zeros_like(a), 1, 2), ("add_fp32", FP, torch.add, 2, 12)):
            if n * ins > pools[dt].data.numel() or run.enough():
                continue
            with run.case(f"{op} {n}"):
                emit(op, "forward", bench(fn, pools[dt].sets(*[(n,)] * ins), 8), n * per, elements=n)
    for model, d, f, h, hd, v, s in (("llama-3-8b", 4096, 14336, 32, 128, 128256, 8192), ("gpt2-124M", 768, 3072, 12, 64, 50257, 1024), ("llama-3.2-1b", 2048, 8192, 32, 64, 128256, 4096)):
        for t in (8192, 16384, 2048):
            if run.enough():
                break
            if SMOKE:
                t, d, f, v, s, h, hd = 64, 64, 128, 1000, 32, 2, 32
            e, kw = t * d * 2, dict(model=model, tokens=t)
            w = torch.randn(d, device=DEV, dtype=BF, requires_grad=True)
            both("rms_norm", lambda x, w: F.rms_norm(x, (d,), w, 1e-5), [(t, d)], 2 * e, 3 * e, consts=(w,), **kw)
            both("rms_norm_hand", rms_hand, [(t, d)], 2 * e, 3 * e, consts=(w,), **kw)
            both("layer_norm", lambda x, w, b: F.layer_norm(x, (d,), w, b, 1e-5), [(t, d)], 2 * e, 3 * e, consts=(w, w.detach().clone().requires_grad_()), **kw)
            both("silu_mul", lambda a, b: F.silu(a) * b, [(t, f), (t, f)], 3 * t * f * 2, 5 * t * f * 2, **kw)
            both("gelu_tanh", lambda a: F.gelu(a, approximate="tanh"), [(t, f)], 2 * t * f * 2, 3 * t * f * 2, **kw)
            both("residual_add", torch.add, [(t, d), (t, d)], 3 * e, 2 * e, **kw)
            s_, table = min(s, t), rope_table(min(s, t), hd, 5e5).to(DEV)
            both("rope_complex", rope_complex, [(t // s_, s_, h, hd)], 2 * t * h * hd * 2, 2 * t * h * hd * 2, consts=(torch.view_as_complex(table),), **kw)
            both("rope_real", rope_real, [(t // s_, s_, h, hd)], 2 * t * h * hd * 2, 2 * t * h * hd * 2, consts=(table,), **kw)
            with run.case("transpose"):
                emit("transpose_heads", "forward", bench(lambda x: x.transpose(1, 2).contiguous(), pools[BF].sets((t // s_, h, s_, hd), most=8), 8), 2 * t * h * hd * 2, **kw)
            with run.case(f"embedding {v}"):
                idx = [(torch.randint(0, v, (t,), device=DEV),) for _ in range(4)]
                table_ = torch.randn(v, d, device=DEV, dtype=BF, requires_grad=True)
                emit("embedding", "forward", bench(lambda i, rows=table_: F.embedding(i, rows), idx, 8), 2 * e + 8 * t, vocab=v, **kw)
                outs = [(F.embedding(i, table_), torch.randn(t, d, device=DEV, dtype=BF)) for i, in idx]
                emit("embedding", "backward", bench(lambda o, g, rows=table_: torch.autograd.grad(o, rows, g, retain_graph=True), outs, 10), e + v * d * 2 + 8 * t, vocab=v, **kw)
                del outs, table_
            if model == "llama-3.2-1b":
                continue                                # same vocabulary as the 8B shape
            with run.case(f"cross_entropy {v}"):        # logits bf16 -> fp32 -> loss; bytes: read bf16 once; backward: read and write bf16
                y = torch.randint(0, v, (t,), device=DEV)
                lg = [(torch.randn(t, v, device=DEV, dtype=BF).requires_grad_(),) for _ in range(2)]
                ce = lambda l: F.cross_entropy(l.float(), y)
                emit("cross_entropy", "forward", bench(ce, lg, 12), t * v * 2, vocab=v, **kw)
                outs = [(ce(l), l) for l, in lg]
                emit("cross_entropy", "backward", bench(lambda o, l: torch.autograd.grad(o, l, retain_graph=True), outs, 12), 2 * t * v * 2, vocab=v, **kw)
                del outs
                emit("softmax", "forward", bench(lambda l: F.softmax(l.detach(), -1), lg, 10), 2 * t * v * 2, vocab=v, **kw)
                del lg
        torch.cuda.empty_cache()
    d, kv, f = (64, 16, 128) if SMOKE else (4096, 1024, 14336)     # FSDP's own copies, one Llama-3-8B block on 8 ranks
    shapes = [(d, d), (kv, d), (kv, d), (d, d), (f, d), (d, f), (f, d), (d,), (d,)]
    full = [math.prod(s) for s in shapes]
    for world in (8, 64) if not SMOKE else (8,):
        with run.case(f"fsdp copies {world}"):
            importlib.import_module("torch.distributed.fsdp")     # registers torch.ops.fsdp
            cut = [n // world for n in full]
            total = sum(cut)
            src = [torch.randn(n, device=DEV, dtype=FP) for n in cut]
            buf = torch.empty(total * world, device=DEV, dtype=BF)
            emit("fsdp_all_gather_copy_in", "forward", bench(lambda: torch._foreach_copy_(list(buf[:total].split(cut)), src), [()], 10), total * 6, world=world)
            outs = [torch.empty(world, n, device=DEV, dtype=BF) for n in cut]
            emit("fsdp_all_gather_copy_out", "forward", bench(lambda: torch.ops.fsdp.split_with_sizes_copy(buf.view(world, -1), cut, dim=1, out=outs), [()], 10), 2 * total * world * 2, world=world)
            grads = [torch.randn(s, device=DEV, dtype=BF) for s in shapes]
            rs = torch.empty(world, total, device=DEV, dtype=FP)
            emit("fsdp_reduce_scatter_copy_in", "forward", bench(lambda: torch.ops.fsdp.chunk_cat(grads, dim=0, num_chunks=world, out=rs), [()], 10), total * world * 6, world=world)
    with run.case("overlap"):                           # a matrix product while copies run on another stream: how both slow down
        m, n = (64, 1 << 12) if SMOKE else (8192, 1 << 28)
        x, a = pools[BF].take(m, m), pools[BF].take(n)
        side, reps = torch.cuda.Stream(), 2 if SMOKE else 12
        y, c = torch.empty_like(x), torch.empty_like(a)

        def pair(gemms, copies):
            ev = [event() for _ in range(4)]
            torch.cuda.synchronize(); torch.cuda._sleep(2_000_000 if not SMOKE else 10); ev[0].record(); side.wait_event(ev[0])
            with torch.cuda.stream(side):
                ev[2].record(side)
                for _ in range(copies):
                    c.copy_(a)
                ev[3].record(side)
            for _ in range(gemms):
                torch.mm(x, x, out=y)
            ev[1].record(); torch.cuda.synchronize()
            return ev[0].elapsed_time(ev[1]) * 1e3 / max(gemms, 1), ev[2].elapsed_time(ev[3]) * 1e3 / max(copies, 1)
        pair(2, 2)
        for what, (g, k) in dict(gemm_alone=(reps, 0), copy_alone=(0, reps * 4), both=(reps * 2, reps * 8)).items():
            tg, tc = pair(g, k)
            run.row("small", kind="overlap", what=what, gemm_us=tg, copy_us=tc, gemm=m, copy_bytes=n * 4, us=max(tg, tc))


# -- launch, events, copies between host and device, allocation ------------------------------------------------------
def host_us(fn, n=300, repeats=7):
    """Host microseconds of one call: n calls issued without waiting, best of the repeats' medians is the median."""
    t = []
    n, repeats = (3, 1) if SMOKE else (n, repeats)
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        for _ in range(n):
            fn()
        t.append((time.perf_counter() - t0) / n * 1e6)
    torch.cuda.synchronize()
    return statistics.median(t[1:])


def part_launch(run):
    x, w, v = torch.randn(64, 64, device=DEV, dtype=BF), torch.randn(64, 64, device=DEV, dtype=BF), torch.randn(64, device=DEV, dtype=BF)
    xg = x.clone().requires_grad_()
    out = torch.empty_like(x)
    tens = [torch.randn(64, device=DEV) for _ in range(100)]

    def hooked(k):
        m = nn.Identity()
        for _ in range(k):
            m.register_forward_pre_hook(lambda *_: None); m.register_forward_hook(lambda *_: None)
        return m
    plain, hook1 = hooked(0), hooked(1)
    a, b = event(), event()
    side = torch.cuda.Stream()

    def chain(n=50):
        y = xg
        for _ in range(n):
            y = y * 1.5
        return y
    with torch.no_grad():
        for what, fn in dict(add_inplace=lambda: x.add_(1), add_out=lambda: torch.add(x, w, out=out), add=lambda: x + w, mm=lambda: torch.mm(x, w), linear=lambda: F.linear(x, w),
                             rms_norm=lambda: F.rms_norm(x, (64,), v, 1e-5), empty=lambda: torch.empty(4096, device=DEV), view=lambda: x.view(4096), foreach_add_100=lambda: torch._foreach_add_(tens, 1.0),
                             module_call=lambda: plain(x), module_call_with_2_hooks=lambda: hook1(x), event_record=lambda: a.record(), stream_wait_event=lambda: side.wait_event(a),
                             stream_switch=lambda: torch.cuda.stream(side).__enter__() or torch.cuda.set_stream(torch.cuda.default_stream()), event_query=lambda: a.query(),
                             event_create_record=lambda: event().record(), synchronize_idle=torch.cuda.synchronize).items():
            with run.case(what):
                run.row("small", kind="host", what=what, us=host_us(fn))
    with run.case("autograd"):
        f = host_us(lambda: chain(), 10)
        both = host_us(lambda: chain().backward(x), 10)
        run.row("small", kind="host", what="autograd_node_forward", us=f / 50)
        run.row("small", kind="host", what="autograd_node_backward", us=(both - f) / 50)
    with run.case("back to back"):                      # device time of a kernel that does nothing much, in a full queue
        r = bench(lambda: x.add_(1), [()], 20)
        run.row("small", kind="device", what="tiny_kernel_back_to_back", **r)
        n, g = 200, torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(n):
                x.add_(1)
        r = bench(g.replay, [()], 20)
        run.row("small", kind="device", what="tiny_kernel_in_graph", us=r["us"] / n, host_us=r["host_us"] / n)
    with run.case("events"):
        t = []
        for _ in range(2 if SMOKE else 200):
            a.record(); b.record(); b.synchronize(); t.append(a.elapsed_time(b) * 1e3)
        run.row("small", kind="device", what="two_events_nothing_between", us=statistics.median(t), us_min=min(t), us_max=max(t))
        t = []
        for _ in range(2 if SMOKE else 200):
            t0 = time.perf_counter(); x.add_(1); torch.cuda.synchronize(); t.append((time.perf_counter() - t0) * 1e6)
        run.row("small", kind="host", what="launch_and_synchronize", us=statistics.median(t), us_min=min(t), us_max=max(t))
        t = []
        for _ in range(2 if SMOKE else 100):
            t0 = time.perf_counter(); x[0, 0].item(); t.append((time.perf_counter() - t0) * 1e6)
        run.row("small", kind="host", what="item", us=statistics.median(t), us_min=min(t), us_max=max(t))
        main, n, t = torch.cuda.current_stream(), 2 if SMOKE else 100, []
        for _ in range(5):                              # a chain of waits between two streams
            torch.cuda._sleep(4_000_000 if not SMOKE else 10); a.record()
            for _ in range(n):
                e = torch.cuda.Event(); e.record(main); side.wait_event(e)
                e = torch.cuda.Event(); e.record(side); main.wait_event(e)
            b.record(); b.synchronize(); t.append(a.elapsed_time(b) * 1e3 / (2 * n))
        run.row("small", kind="device", what="wait_between_streams", us=statistics.median(t), us_min=min(t), us_max=max(t))
    for p in range(12, 31, 2):
        n = 1 << (p if not SMOKE else 12)
        with run.case(f"copies {n}"):
            d, h = torch.empty(n, dtype=torch.uint8, device=DEV), torch.randint(0, 255, (min(n, 1 << 24),), dtype=torch.uint8).repeat(max(1, n >> 24)).pin_memory()
            for what, fn in dict(h2d_pinned=lambda: d.copy_(h, non_blocking=True), d2h_pinned=lambda: h.copy_(d, non_blocking=True)).items():
                r = bench(fn, [()], 20)
                run.row("small", kind="copy", what=what, bytes=n, gbps=n / r["us"] * 1e-3, **r)
            if p in (20, 28):
                q = h.clone()
                for what, fn in dict(h2d_pageable=lambda: d.copy_(q), d2h_pageable=lambda: q.copy_(d)).items():
                    r = bench(fn, [()], 20)
                    run.row("small", kind="copy", what=what, bytes=n, gbps=n / r["us"] * 1e-3, **r)
    for mb in (2, 20, 64, 256, 1024, 4096, 16384) if not SMOKE else (2,):
        with run.case(f"malloc {mb}"):
            m, f, c = [], [], []
            for _ in range(5):
                torch.cuda.empty_cache(); torch.cuda.synchronize()
                t0 = time.perf_counter(); z = torch.empty(mb << 20, dtype=torch.uint8, device=DEV); t1 = time.perf_counter()
                del z; t2 = time.perf_counter(); torch.cuda.empty_cache(); t3 = time.perf_counter()
                m.append((t1 - t0) * 1e6); f.append((t3 - t2) * 1e6); c.append((t2 - t1) * 1e6)
            for what, t in (("cudaMalloc", m), ("cudaFree", f), ("free_to_cache", c)):
                run.row("small", kind="allocation", what=what, bytes=mb << 20, us=statistics.median(t), us_min=min(t), us_max=max(t))
            t = []
            for _ in range(3):
                t0 = time.perf_counter(); z = torch.empty(min(mb, 1024) << 20, dtype=torch.uint8).pin_memory(); t.append((time.perf_counter() - t0) * 1e6); del z
            run.row("small", kind="allocation", what="pin_memory_with_copy", bytes=min(mb, 1024) << 20, us=t[0], us_min=min(t), us_max=max(t))


# -- optimizer and norms ---------------------------------------------------------------------------------------------
def part_optimizer(run):
    block = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (14336, 4096), (4096,), (4096,)]
    gpt = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)] * 12 + [(50304, 768), (1024, 768), (768,), (768,)]
    sets = {"llama-3-8b-2-blocks": block * 2, "gpt2-124M": gpt, "one-tensor-256Mi": [(1 << 28,)], "1000-tensors-of-4096": [(4096,)] * 1000}
    for name, shapes in sets.items():
        if run.enough():
            return
        if SMOKE:
            shapes = [tuple(max(1, n // 256) for n in s) for s in shapes]
        numel = sum(map(math.prod, shapes))
        for dt in (FP, BF):
            params = [nn.Parameter(torch.randn(s, device=DEV, dtype=dt) * 0.02) for s in shapes]
            for p in params:
                p.grad = torch.randn_like(p)
            key = dict(kind="optimizer", tensors=len(params), numel=numel, set=name, dtype=str(dt)[6:])

            def emit(what, r, per):
                run.row("small", what=what, **key, ns_per_parameter=r["us"] * 1e3 / numel, bytes=numel * per, gbps=numel * per / r["us"] * 1e-3, **r)
            e = dt.itemsize
            for what, kw in dict(adamw_fused=dict(fused=True), adamw_foreach=dict(foreach=True), adamw_loop=dict(foreach=False, fused=False)).items():
                if dt == BF and what == "adamw_loop" or what == "adamw_loop" and len(params) > 500:
                    continue
                with run.case(f"{name} {what} {dt}"):
                    opt = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **kw)
                    emit(what, bench(opt.step, [()], 40), 7 * e)
                    del opt
            with run.case(f"{name} norms {dt}"):
                grads = [p.grad for p in params]
                emit("total_norm_foreach", bench(lambda: torch.nn.utils.get_total_norm(grads, foreach=True), [()], 20), e)
                total = torch.nn.utils.get_total_norm(grads, foreach=True)
                emit("clip_scale_foreach", bench(lambda of=params: torch.nn.utils.clip_grads_with_norm_(of, 1.0, total, foreach=True), [()], 20), 2 * e)
                emit("zero_foreach", bench(lambda: torch._foreach_zero_(grads), [()], 15), e)
            del params
            torch.cuda.empty_cache()


# -- communicator of one rank ----------------------------------------------------------------------------------------
def init_dist(run):
    """One-process group. Where NCCL does not start, torch's fake group stands in (copies only), and the rows say so."""
    errors = []
    tries = [("nccl", {}), ("nccl", dict(NCCL_SOCKET_IFNAME="lo"))] if run.args.backend == "nccl" else []
    for backend, env in tries:
        try:
            os.environ.update(env)
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
            dist.all_reduce(torch.ones(1, device=DEV)); torch.cuda.synchronize()
            run.versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            return backend
        except Exception as e:
            errors.append(dict(case="init nccl", error=f"{type(e).__name__}: {e}"[:500]))
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
    run.job["errors"] += errors
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    return "fake"


def part_nccl1(run):
    t0 = time.perf_counter()
    backend = init_dist(run)
    run.row("small", kind="nccl1", what="init_and_first_all_reduce", us=(time.perf_counter() - t0) * 1e6, backend=backend)
    used = torch.cuda.mem_get_info()
    run.row("small", kind="nccl1", what="device_bytes_outside_the_allocator", bytes=used[1] - used[0] - torch.cuda.memory_reserved(), us=0.0, backend=backend)
    for p in (10, 16, 20, 22, 24, 26, 28, 30):
        n = 1 << (p if not SMOKE else 10)
        if run.enough():
            return
        a, b = torch.randn(n // 4, device=DEV), torch.empty(n // 4, device=DEV)
        for what, fn in dict(all_gather=lambda: dist.all_gather_into_tensor(b, a), reduce_scatter=lambda: dist.reduce_scatter_tensor(b, a), all_reduce=lambda: dist.all_reduce(a),
                             reduce_scatter_avg=lambda: dist.reduce_scatter_tensor(b, a, op=dist.ReduceOp.AVG), broadcast=lambda: dist.broadcast(a, 0),
                             all_gather_async_wait=lambda: dist.all_gather_into_tensor(b, a, async_op=True).wait()).items():
            with run.case(f"{what} {n}"):
                r = bench(fn, [()], 10)
                run.row("small", kind="nccl1", what=what, bytes=n, gbps=n / r["us"] * 1e-3, backend=backend, **r)


# -- training steps ---------------------------------------------------------------------------------------------------
def timing(c, batch, flop, flop_causal, marks, host, wall):
    """Figures of the timed steps: marks, their events by phase; host and wall, milliseconds of the host a step."""
    tokens, times = batch * c["seq"], [max(a[0].elapsed_time(b), 1e-3) for a, b in zip(marks, [e[0] for e in marks[1:]] + [marks[-1][-1]])]
    ms, p90 = statistics.median(times), sorted(times)[math.ceil(0.9 * len(times)) - 1]
    return dict(timed_steps=len(marks), step_ms=ms, step_ms_min=min(times), step_ms_max=max(times), step_ms_p90=p90, wall_ms=wall,
                host_ms=statistics.median(host), tokens_per_s=tokens / ms * 1e3, mfu=flop * tokens / ms * 1e3 / PEAK, mfu_causal=flop_causal * tokens / ms * 1e3 / PEAK,
                **{p + "_ms": statistics.median(e[k].elapsed_time(e[k + 1]) for e in marks) for k, p in enumerate(PHASES)}, step_times_ms=[round(t, 3) for t in times])


def memory():
    free, whole = torch.cuda.mem_get_info()
    return dict(peak_allocated=torch.cuda.max_memory_allocated(), peak_reserved=torch.cuda.max_memory_reserved(), device_used=whole - free, device_total=whole,
                outside_allocator=whole - free - torch.cuda.memory_reserved(), alloc_retries=torch.cuda.memory_stats().get("num_alloc_retries", 0))


def curves(out):
    return dict(steps=len(out), losses=[float(l) for l, _ in out], grad_norms=[float(g) for _, g in out])


def train(run, part, scenario):
    f = re.fullmatch(r"(plain-bf16-|plain-)?(llama-8b-8L|llama-1b|gpt2-124M|gpt2-1558M|tiny-llama|tiny-gpt2)-b(\d+)(-full|-selective|-complex|-v50257)*", scenario)
    wrap, name, batch = (f[1] or "fsdp-")[:-1], f[2], int(f[3])
    ac = next((a for a in ("full", "selective") if a in scenario), "none")
    compiled = part == "fsdp_compile"
    c = dict(CONFIG[name], seq={"llama-8b-8L": 8192, "llama-1b": 4096, "tiny-llama": 64, "tiny-gpt2": 64}.get(name, 1024), rope="complex" if not compiled or "complex" in scenario else "real")
    if "v50257" in scenario:
        c["vocab"] = 50257
    if SMOKE:
        c.update(dim=c["heads"] * 32, layers=2, vocab=1000, seq=64, **(dict(ffn=512) if c["family"] == "llama" else {}))
        batch = min(batch, 2)
    steps, warm, timed = (4, 2, 2) if SMOKE else (run.args.steps, run.args.warm, run.args.timed or run.args.steps - run.args.warm)
    backend = init_dist(run) if wrap == "fsdp" else ""
    from torch.nn.attention import sdpa_kernel, SDPBackend as S
    order = [S.CUDNN_ATTENTION, S.FLASH_ATTENTION, S.EFFICIENT_ATTENTION, S.MATH] if compiled and not SMOKE else [S.FLASH_ATTENTION]
    t0 = time.perf_counter()
    m = build(c, wrap, ac, compiled, run.args.compile_backend)
    total, n, flop, flop_causal = flops_per_token(c, m)
    opt = torch.optim.AdamW(m.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    step = make_step(c, m, wrap, torch.compile(loss_of, backend=run.args.compile_backend, dynamic=False) if compiled else loss_of, opt)
    torch.cuda.synchronize()
    row = run.row("training", case=f"{part}/{scenario}", model=name, wrap=wrap, compiled=int(compiled), ac=ac, rope=c["rope"] if c["family"] == "llama" else "none",
                  attention=order[0].name.split("_")[0].lower() + (" first" if len(order) > 1 else ""), backend=backend, batch=batch, seq=c["seq"], vocab=c["vocab"], layers=c["layers"],
                  parameters=total, parameters_in_products=n, flop_per_token=flop, init_s=time.perf_counter() - t0)
    row["allocated_after_init"], row["reserved_after_init"] = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    run.save()
    host_data = [[t.pin_memory() for t in batch_of(i, batch, c["seq"], c["vocab"])] for i in range(steps)]
    batch_at = lambda i: [t.to(DEV, non_blocking=True) for t in host_data[i]]
    out, marks, host = [], [], []

    def one(i):
        x, y = batch_at(i)
        ev, h0 = [], time.perf_counter()

        def mark(phase):
            e = event(); e.record(); ev.append(e)
        out.append(step(x, y, mark)); marks.append(ev); host.append((time.perf_counter() - h0) * 1e3)

    with sdpa_kernel(order, set_priority=len(order) > 1):
        for i in range(warm):
            h0 = time.perf_counter(); one(i)
            if i == 0:
                torch.cuda.synchronize(); row["first_step_s"] = time.perf_counter() - h0
        torch.cuda.synchronize(); w0 = time.perf_counter(); torch.cuda.reset_peak_memory_stats()
        for i in range(warm, warm + timed):
            if run.left() < -5 and i > warm + 3:
                break
            one(i)
        torch.cuda.synchronize()
        row.update(timing(c, batch, flop, flop_causal, marks[warm:], host[warm:], (time.perf_counter() - w0) / (len(out) - warm) * 1e3))
        row.update(memory(), **curves(out))
        run.save()
        del marks[:], host[:]
        while len(out) < steps and run.left() > -5:      # the rest is for the losses
            one(len(out))
        row.update(**curves(out))
        run.save()
        with run.case("memory by phase"):
            last, mem = [None], torch.cuda.memory_stats

            def phase(p):
                s = mem()
                if last[0]:
                    row.update({f"{last[0]}_peak_allocated": s["allocated_bytes.all.peak"], f"{last[0]}_end_allocated": s["allocated_bytes.all.current"], f"{last[0]}_peak_reserved": s["reserved_bytes.all.peak"]})
                torch.cuda.reset_peak_memory_stats(); last[0] = p
            step(*batch_at(0), phase); torch.cuda.synchronize()
            run.save()
        if run.left() > 3 or (not compiled and ac == "none"):
            with run.case("kernels"):
                kernels(run, f"{part}/{scenario}", lambda mark: step(*batch_at(1), mark))


def kernel_rows(run, case, text):
    """Rows of the device's activities in a trace of torch.profiler; start_us counts from the start of the step's first phase on the host."""
    ev = [e for e in json.loads(text)["traceEvents"] if e.get("ph") == "X" and "ts" in e]
    ops = {}
    for e in ev:
        if e.get("cat") == "cpu_op":
            ops.setdefault(e["args"].get("External id"), e["name"])
    launch = {e["args"].get("correlation"): e["ts"] for e in ev if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    phases = [(e["ts"], e["ts"] + e["dur"], e["name"][6:]) for e in ev if e.get("cat") == "user_annotation" and e["name"].startswith("phase.")]
    dev = sorted((e for e in ev if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda e: e["ts"])
    zero = min([p[0] for p in phases] + [e["ts"] for e in dev[:1]], default=0)
    for i, e in enumerate(dev):
        a = e["args"]
        h = launch.get(a.get("correlation"))
        run.rows.setdefault("kernels", []).append(dict(
            case=case, index=i, phase=next((n for s, t, n in phases if h is not None and s <= h < t), ""), start_us=round(e["ts"] - zero, 3), duration_us=round(e["dur"], 3), stream=a.get("stream"),
            category=e["cat"], launched_us=round(h - zero, 3) if h is not None else "", op=ops.get(a.get("External id"), ""), grid=a.get("grid", ""), block=a.get("block", ""), bytes=a.get("bytes", ""), name=e["name"][:200]))
    return dev


def kernels(run, case, step):
    """One profiled step: every kernel, copy and fill with its stream, the operator that launched it and the host's launch time."""
    from torch.profiler import profile, ProfilerActivity, record_function
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        open_ = []

        def mark(phase):
            if open_:
                open_.pop().__exit__(None, None, None)
            if phase:
                open_.append(record_function("phase." + phase)); open_[0].__enter__()
        step(mark)
        torch.cuda.synchronize()
    path = run.file + ".trace"
    prof.export_chrome_trace(path)
    with open(path) as f:
        text = f.read()
    trace = os.path.join(run.args.out, "trace.json.gz")
    if case.startswith("fsdp_eager/llama-8b-8L-b1") and case.endswith("b1"):
        with gzip.open(trace + ".tmp", "wt", 6) as f:
            f.write(text)
        os.replace(trace + ".tmp", trace)
    os.remove(path)
    dev = kernel_rows(run, case, text)
    busy = {}
    for e in dev:
        busy[str(e["args"].get("stream"))] = busy.get(str(e["args"].get("stream")), 0) + e["dur"]
    run.row("small", kind="profile", what="device_busy_by_stream", case=case, calls=len(dev), us=float(sum(busy.values())), streams={k: round(v, 1) for k, v in busy.items()})
    run.save()


def follow(parent):
    """A child whose parent is gone ends at once: it has a session of its own, and would keep the GPU."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def child():
    global SMOKE
    args = arguments()
    follow(args.parent)
    SMOKE = args.smoke
    for x in ("torch.distributed.fsdp", "torch.distributed.device_mesh", "torch._dynamo") if "/" in args.job else ():
        importlib.import_module(x)
    line = sys.stdin.readline()
    if not line:
        return 0
    run = Run(args.job, args.file, float(line), args)
    try:
        torch.cuda.set_device(0)
        p = torch.cuda.get_device_properties(0)
        import triton
        run.versions.update(python=sys.version.split()[0], torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version() if not SMOKE else None, triton=triton.__version__,
                            device=p.name, sms=p.multi_processor_count, capability=f"{p.major}.{p.minor}", l2_bytes=p.L2_cache_size, device_bytes=p.total_memory, host_cpus=os.cpu_count(),
                            cpu=next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), ""))
        torch.manual_seed(1234)
        part, _, scenario = args.job.partition("/")
        train(run, part, scenario) if scenario else globals()["part_" + part](run)
    except BaseException as e:
        run.job["error"] = f"{type(e).__name__}: {e}"[:1500]
        run.job["where"] = traceback.format_exc()[-3000:]
        print(run.job["where"], file=sys.stderr, flush=True)
        run.save()
        os._exit(1)
    run.save()
    sys.stdout.flush()
    os._exit(0)                                         # no tear-down that could hang


if __name__ == "__main__":
    child()
