"""Configurations of other tools."""

import os

from ..errors import Refused
from .accelerate import accelerate
from .common import document, report
from .deepspeed import deepspeed
from .torchtitan import torchtitan

__all__ = ["accelerate", "deepspeed", "read", "report", "torchtitan"]


def read(path, cluster, target=None, batch=None, seq=None):
    """The configuration in a file, whose keys say whose it is. `target`, batch, seq: of a model that is traced."""
    if os.path.splitext(path)[1] == ".toml":
        if (target, batch, seq) != (None, None, None):
            raise Refused(f"{path}: torchtitan's file names the model and its sizes itself; allowed: no FILE.py:FUNCTION, --batch, --seq")
        return torchtitan(path, cluster)
    keys = document(path)
    reader = accelerate if "distributed_type" in keys else deepspeed if "zero_optimization" in keys else None
    if not reader:
        raise Refused(f"{path}: found neither distributed_type, as Accelerate has it, nor zero_optimization, as DeepSpeed; allowed: "
                      "a configuration of one of them, or torchtitan's in TOML")
    if target is None:
        raise Refused(f"{path}: names no model; allowed: FILE.py:FUNCTION behind it, which makes the model")
    return reader(path, target, cluster, batch, seq)
