"""The child process: torch is loaded here, after the stand-in device. A person's code runs in a fork of
it, one a request, and nowhere else."""

import json
import os
import sys

import torch

from . import file, real, scenario, source, tracer
from .configs import prepared
from .errors import Refused

# The command line's dtypes: what parameters are computed in, and what autocast casts to.
DTYPES = {"bf16": (torch.bfloat16, None), "fp16": (torch.float16, None), "fp32": (None, None), "none": (None, None),
          "autocast-bf16": (None, torch.bfloat16), "autocast-fp16": (None, torch.float16)}


def source_of(request):
    if "scenario" in request:
        return (scenario.AsTraced if request.get("as_traced") else scenario.Scenario)(request["scenario"])
    param, autocast = DTYPES[request["dtype"]]
    return source.UserFile(
        request["target"], request["batch"], request["seq"], request["checkpoint"], request["blocks"],
        param_dtype=param, output_dtype=scenario.DTYPES.get(request["output"]), autocast=autocast, sdpa=request["sdpa"], readbacks=request["readbacks"],
        load_factor=request["load_factor"], wrap=request["wrap"], ddp=None if request["ddp"] == "none" else request["ddp"])


def answer(request):
    """Exit status of a request; what is printed goes to its log, the last line says what is wrong."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(request["folder"])
    try:
        if "check" in request:
            packed = json.dumps(real.check(request["check"])).encode()
        elif "groups" in request:
            packed = json.dumps(prepared.groups(source.function(request["groups"]))).encode()
        else:
            packed = file.pack(tracer.trace(source_of(request)))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:   # of the person's file, before anything ran
        print(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)
        return 2
    with open(request["out"], "wb") as f:
        f.write(packed)
    return 0


def main():
    for line in sys.stdin:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 4
            try:
                status = answer(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
