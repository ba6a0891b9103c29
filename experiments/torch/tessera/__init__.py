"""Traces any PyTorch model without a GPU; tessera predicts each sharding strategy's memory and time.

    import tessera
    trace = tessera.trace("train.py:make", dtype="bf16")   # make() -> model, batch, loss function
    plan = trace.plan(cluster="p5en-4", memory="70 GiB")
    print(plan)

Torch is not imported here: the model runs in a child process, beside the stand-in for a GPU.
"""

from .errors import Refused, TraceError
from .api import Trace, load, trace
from .measured import measure
from .configs import accelerate, deepspeed, torchtitan

__all__ = ["Refused", "Trace", "TraceError", "accelerate", "deepspeed", "load", "measure", "torchtitan", "trace"]
