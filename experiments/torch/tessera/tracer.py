"""Runs inside the child process: traces every variant of a source and makes the file."""

import os
import pickle
import traceback

import torch

from . import events, file, passes
from .errors import Refused
from .model import dtype_name


def in_process(function, *arguments):
    """The result of a function that ran in a fork: it leaves nothing behind here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = "ok", function(*arguments)
        except Refused as error:
            answer = "refused", str(error)
        except BaseException as error:
            answer = "failed", (f"{type(error).__name__}: {error}", traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe, protocol=4)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    kind, value = pickle.loads(text) if text else ("refused", "the traced run died")
    if kind == "refused":
        raise Refused(value)
    if kind == "failed":
        if os.environ.get("TESSERA_TRACEBACK"):
            print(value[1])
        raise Refused(value[0].strip().splitlines()[0])
    return value


def trace(source):
    """The content of the file."""
    writer, variants, tables, kind = file.Writer(), [], None, None
    for choice in source.choices():
        seen = in_process(passes.run, source, choice, True)
        answers = [value for _, _, value in seen["reads"]]
        plain = in_process(passes.run, source, choice, False, seen["hooked"], answers)
        if tables is not None and tables != plain["tables"]:
            raise Refused(f"{source.name}: makes another model for other inputs; trace them apart")
        tables, kind = plain["tables"], plain["class"]
        variants.append(variant(source, choice, writer, plain, seen))
    made_by = {"torch": torch.__version__.partition("+")[0], "cuda": torch.version.cuda,
               "transformers": transformers_version(), "capture": "device",
               "device": {"sm": 90, "multiprocessors": 132}}
    return file.content(made_by, {"source": source.name, "class": kind}, tables, writer, variants)


def variant(source, choice, writer, plain, seen):
    memory, instrumented = events.steps(plain), events.steps(seen)
    events.merge(memory, instrumented)
    batch, seq = choice.batch or plain["batch"], choice.seq or plain["seq"]
    name = f"b{batch}" + (f"-s{seq}" if seq else "") + f"-{choice.checkpoint}"
    result = {"name": name, "batch": batch, "seq": seq, "checkpoint": choice.checkpoint,
              "conditions": conditions(source, plain, seen), "inputs": plain["inputs"],
              "tokens": plain["tokens"], "iterations": writer.steps(memory)}
    alone = writer_steps_equal(memory, instrumented)
    if not alone:
        result["instrumented"] = writer.steps(instrumented)
    return result


def writer_steps_equal(a, b):
    """Whether two runs are the same, event by event; storages are numbered in order in both."""
    return all(x.events == y.events for xs, ys in zip(a, b) for x, y in zip(xs, ys))


def conditions(source, plain, seen):
    def name(dtype):
        return dtype_name(dtype) if dtype else None
    reads = {(module, operator, int.from_bytes(value[:8], "little", signed=True))
             for module, operator, value in seen["reads"]}
    return {"param_dtype": name(source.param_dtype), "cast_inputs": source.cast_inputs,
            "autocast": name(source.autocast), "checkpointed": plain["checkpointed"], "sdpa": source.sdpa,
            "train": plain["train"], "hooked": plain["hooked"], "casts": seen["casts"],
            "readbacks": sorted(map(list, reads)),
            "routing": {"distribution": "balanced" if source.load_factor == 1 else "one busy expert",
                        "load_factor": str(source.load_factor)} if seen["routed"] else None}


def transformers_version():
    import sys
    module = sys.modules.get("transformers")
    return getattr(module, "__version__", None)
