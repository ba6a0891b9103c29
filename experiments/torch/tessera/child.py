"""The child process: torch is loaded here, after the stand-in device, and the person's code runs here
and nowhere else. `python -m tessera.child OUT < REQUEST`."""

import json
import sys

from .errors import Refused


def source_of(request):
    from . import scenario, source
    if "scenario" in request:
        return scenario.Scenario(request["scenario"])
    dtypes = {"bf16": ("bfloat16", None), "fp16": ("float16", None), "fp32": (None, None),
              "autocast-bf16": (None, "bfloat16"), "autocast-fp16": (None, "float16")}
    import torch
    param, autocast = dtypes[request["dtype"]]
    return source.UserFile(
        request["target"], request["batch"], request["seq"], request["checkpoint"], request["blocks"],
        param_dtype=getattr(torch, param or "", None), autocast=getattr(torch, autocast or "", None),
        sdpa=request["sdpa"], readbacks=request["readbacks"], load_factor=request["load_factor"])


def main():
    request = json.load(sys.stdin)
    printed, sys.stdout = sys.stdout, sys.stderr   # what a person's file prints is not ours
    try:
        from . import file, tracer
        packed = file.pack(tracer.trace(source_of(request)))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    with open(sys.argv[1], "wb") as f:
        f.write(packed)
    sys.stdout = printed
    return 0


if __name__ == "__main__":
    sys.exit(main())
