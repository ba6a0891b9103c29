"""A model's kernels, timed on this machine: forward and backward run in a process of their own under PyTorch's profiler, and the
program makes of the profile (`tessera calibrate`) the files of a cluster, which `compare` and `plan` take. Torch is imported in
that process only."""

import json
import os
import subprocess
import sys
import tempfile

from . import api, program
from .errors import Refused

DEVICES = ("cuda", "cpu")
WARM = 3  # steps that are not profiled: libraries load, and choose their kernels
TRACED = {"bfloat16": "bf16", "float16": "fp16", None: "none"}


def measure(target, out, dtype="bf16", batch=None, seq=None, device="cuda", steps=5):
    """Times the kernels of a model's forward and backward on this machine, and leaves the files of a cluster of such devices in the
    folder `out`. Returns the path that is a cluster for `plan` and `compare`.

    target: FILE.py:FUNCTION as trace() takes it, or a Trace, whose file must be in this folder, with its sizes and dtype.
    dtype, batch, seq: as trace() takes them, one of each.
    device: cuda; cpu for processors. steps: that are profiled; times are medians.
    The model with its activations must fit on the device: blocks that are alike are timed by one of them."""
    if hasattr(target, "content"):
        target, dtype, batch, seq = asked(target)
    api.one_of("device", device, DEVICES)
    api.one_of("dtype", dtype, api.DTYPES)
    for name, value in (("batch", batch), ("seq", seq)):
        if len(api.numbers(name, value)) > 1:
            raise Refused(f"{name}: {value!r} is not one number")
    if not isinstance(steps, int) or not 1 <= steps <= 1000:
        raise Refused(f"steps: {steps!r} is not within 1 and 1000")
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile.json")
        request = {"target": target, "dtype": dtype, "batch": one(batch), "seq": one(seq), "device": device, "steps": steps, "profile": profile}
        done = subprocess.run([sys.executable, "-c", "from tessera import measured; measured.child()"], input=json.dumps(request), text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = [line for line in done.stderr.splitlines() if line.strip()]
        if done.returncode:
            raise Refused(said[-1] if said else f"the process that measures ended with status {done.returncode}")
        program.run(["calibrate", profile, "--out", out])
    clusters = [os.path.join(out, name) for name in os.listdir(out) if name.startswith("cluster-") and name.endswith(".json")]
    return os.path.abspath(max(clusters, key=os.path.getmtime))  # other cards' may lie there; plans, which lie elsewhere, name it


def one(value):
    return api.several(value)[0] if value is not None else None


def asked(trace):
    """What a trace was made of: its function, and the dtype and sizes of its first variant."""
    first = trace.content["variants"][0]
    conditions = first["conditions"]
    kind = TRACED[conditions["param_dtype"]] if not conditions["autocast"] else "autocast-" + TRACED[conditions["autocast"]]
    return trace.content["model"]["source"], kind, first["batch"], first["seq"]


# ---- the process that measures ----------------------------------------------------------------------------------------------------


def child():
    """Profiles what standard input asks for. Ends with status 2 and one line where that cannot be."""
    request = json.load(sys.stdin)
    try:
        profiled(**request)
    except Refused as error:
        sys.exit(str(error))
    except Exception as error:   # of the person's file, or of the device
        sys.exit(f"{request['target']}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def profiled(target, dtype, batch, seq, device, steps, profile):
    import torch
    from torch.profiler import ProfilerActivity
    from torch.utils._pytree import tree_map

    from . import child as tracing, source
    if device == "cuda" and not torch.cuda.is_available():
        raise Refused("device: found cuda, and torch sees no GPU here; allowed: cpu")
    param, autocast = tracing.DTYPES[dtype]
    user = source.UserFile(target, None, None, ["none"])
    model, batch, loss = user.made(source.Choice(batch, seq, "none"), [torch.device(device)])
    model.to(device)

    def cast(x):
        return x.to(param) if param and x.is_floating_point() else x

    for p in model.parameters():   # as FSDP2's policy casts them; buffers stay
        p.data = cast(p.data)
    batch = tree_map(lambda x: cast(x.to(device)) if isinstance(x, torch.Tensor) else x, batch)

    def step():
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            result = (loss or source.own_loss)(source.call(model, batch, has_label=loss is not None), batch)
        result.backward()
        model.zero_grad()

    def end():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM):
        step()
    end()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(steps):
            step()
        end()
    profiler.export_chrome_trace(profile)
