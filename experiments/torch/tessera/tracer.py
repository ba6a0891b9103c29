"""Runs inside the child process: traces every variant of a source and makes the file."""

import collections
import contextlib
import gc
import importlib
import os
import pickle
import shlex
import signal
import sys
import traceback

import torch

from . import events, file, operators, passes
from .errors import Refused
from .model import dtype_name


def in_process(function, *arguments):
    """The result of a function that ran in a fork: it leaves nothing behind here."""
    return finished(*started(function, *arguments))


def each_in_process(calls):
    """The results of calls [(function, argument, ...), ...] in their order; some run at once, each in a fork of its own."""
    at_once = min(len(os.sched_getaffinity(0)), 8)
    running = collections.deque()
    for call in calls:
        if len(running) == at_once:
            yield finished(*running.popleft())
        running.append(started(*call))
    while running:
        yield finished(*running.popleft())


def started(function, *arguments):
    """A fork that computes the function's result: its process, and where the result comes out."""
    operators.set_running()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        gc.freeze()   # what was there before is not looked through again
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
    return pid, reading


def finished(pid, reading):
    """The result that a fork comes to."""
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not text:
        raise died(status, operators.running())
    kind, value = pickle.loads(text)
    if kind == "refused":
        raise Refused(value)
    if kind == "failed":
        if os.environ.get("TESSERA_TRACEBACK"):
            print(value[1])
        raise Refused(value[0].strip().splitlines()[0])
    return value


def died(status, where):
    """The refusal of a run that left no answer; `where`: "module: operator" that ran then, or nothing."""
    if -status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        return operators.needs_a_gpu(where or f"the traced run died with status {status}: it")
    return Refused(f"{where or 'the traced run'} ended the process with status {status}"
                   + (": the system killed it, most likely for its memory" if -status == signal.SIGKILL else ""))


def trace(source):
    """The content of the file."""
    writer, variants, first = file.Writer(), [], None
    for choice in source.choices():
        seen, plain, needs = hook(source, choice)
        first = first or plain
        if first["tables"] != plain["tables"]:
            raise Refused(f"{source.name}: makes another model for other inputs; trace them apart")
        variants.append(variant(source, choice, writer, plain, seen, needs))
    made_by = {"torch": torch.__version__.partition("+")[0], "cuda": torch.version.cuda,
               "transformers": transformers_version(), "capture": "device",
               "device": {"sm": 90, "multiprocessors": 132}}
    asked = source.asked()
    if asked:
        made_by["asked"] = asked
    about = {"source": source.name, "class": first["class"], "blocks": first["blocks"]}
    return file.content(made_by, about, first["tables"], writer, variants)


def hook(source, choice):
    """The instrumented and the plain run, hooked where that changes nothing or where a strategy is to wrap; and the
    modules whose hooks do change something: the trace is right only for strategies that wrap them.

    An identity node makes two tensors of one, and moves where gradients are summed: a model that asks whether key
    and value are the same tensor takes another path behind it."""
    seen = probe(source, choice)
    plain = play(source, choice, seen["hooked"], seen)
    if not source.strict:
        return seen, plain, []
    refuse_chance(source, choice, seen, plain)
    bare = allocations(source, choice, [0], seen)
    if contents(plain) == bare:
        return seen, plain, []
    kept = [i for i in seen["hooked"] if i in seen["kept"]]
    wrapped = allocations(source, choice, kept, seen)
    beside = [i for i in seen["hooked"] if i not in kept]
    alone = each_in_process([(allocations, source, choice, [*kept, i], seen) for i in beside])
    quiet = [i for i, found in zip(beside, alone) if found == wrapped]
    if allocations(source, choice, [*kept, *quiet], seen) != wrapped:
        quiet = []
    if quiet != beside:
        for i in sorted(set(beside) - set(quiet)):
            print(f"note: {seen['names'][i]}: the hooks of fully_shard change what is allocated, so this trace has none "
                  f"there; to wrap it: --wrap {shlex.quote(seen['names'][i])}", file=sys.stderr)
        cannot = seen["cannot"]
        seen = probe(source, choice, sorted([*kept, *quiet]))
        seen["cannot"] = cannot | seen["cannot"]   # what the first run found where there are no hooks now
        plain = play(source, choice, seen["hooked"], seen)
    return seen, plain, [] if wrapped == bare else [i for i in kept if i]


SEEDS = 1, 2, 3


def refuse_chance(source, choice, seen, plain):
    """Refuses a model that allocates other memory when random numbers of the host are others: no trace is right for
    more than one step of it."""
    if not seen["drew"] or all(allocations(source, choice, seen["hooked"], seen, number) == contents(plain)
                               for number in SEEDS):
        return
    names = ", ".join(seen["names"][i] or "the model" for i in seen["drew"][:3])
    raise Refused(f"{names}: draws random numbers on the host (random, numpy or torch on the CPU), and what is allocated "
                  "depends on them: trace the model without (layerdrop=0, for example)")


def play(source, choice, hooked, seen, number=0):
    answers = [value for _, _, value in seen["reads"]]
    return in_process(passes.run, source, choice, False, hooked, answers, number)


def allocations(source, choice, hooked, seen, number=0):
    """What a run with these hooks allocates, frees and finishes; None: it asks the device for other values."""
    try:
        return contents(play(source, choice, sorted(hooked), seen, number))
    except Refused:
        return None


def contents(result):
    return [[e for step in steps for e in step.events] for steps in events.steps(result)]


def load(names):
    """Imports what a run has imported to make its model, so that later runs, which are forks of this process, need not. What
    forwards import is left to them, as it may keep their tensors alive."""
    for name in names:
        with contextlib.suppress(Exception):   # a file may change the path for its imports
            importlib.import_module(name)


def probe(source, choice, hooked=None):
    """The instrumented run, hooked wherever somebody may wrap: not where that changes the run (a cast)
    or cannot work, unless it is a block, which then ends the trace."""
    cannot = {}
    while True:
        seen = in_process(passes.run, source, choice, True, hooked)
        load(seen["loaded"])
        if "written" in seen:
            around = [i for i in seen["written"] if i in seen["hooked"]]
            inner = [i for i in around if i not in seen["kept"]] or around
            wrong = {inner[-1]: "writes into an input: fully_shard passes a view that must not be "
                                "changed in place"}
        else:
            wrong = seen.get("copied") or {i: reason for i, reason in seen["cannot"].items() if i in seen["hooked"]}
        for i, reason in wrong.items():
            if i in seen["kept"] and (source.strict or "cannot" not in seen):
                raise Refused(f"{seen['names'][i] or 'the model'}: {reason}")
        wrong = {i: r for i, r in wrong.items() if i not in seen["kept"]}
        cannot |= wrong
        casting = {row[0] for row in seen.get("casts", [])} - set(seen["kept"])
        hooked = [i for i in seen["hooked"] if i not in wrong and i not in casting]
        if hooked == seen["hooked"]:
            cannot = {**seen["cannot"], **cannot}
            seen["cannot"] = {i: reason for i, reason in cannot.items()
                              if source.strict or i not in seen["kept"]}
            for note in seen["notes"]:
                print(f"note: {note}", file=sys.stderr)
            return seen


def variant(source, choice, writer, plain, seen, needs):
    memory, instrumented = events.steps(plain), events.steps(seen)
    events.merge(memory, instrumented)
    batch, seq = choice.batch or plain["batch"], choice.seq or plain["seq"]
    name = f"b{batch}" + (f"-s{seq}" if seq else "") + f"-{choice.checkpoint}"
    result = {"name": name, "batch": batch, "seq": seq, "checkpoint": choice.checkpoint,
              "conditions": conditions(source, plain, seen) | ({"needs": needs} if needs else {}),
              "inputs": plain["inputs"],
              "tokens": plain["tokens"], "iterations": writer.steps(memory)}
    if not equal(memory, instrumented):
        result["instrumented"] = writer.steps(instrumented)
    return result


def equal(a, b):
    """Whether two runs are the same, event by event; storages are numbered in order in both."""
    return all(x.events == y.events for xs, ys in zip(a, b) for x, y in zip(xs, ys))


def conditions(source, plain, seen):
    def name(dtype):
        return dtype_name(dtype) if dtype else None
    reads = {(module, operator, int.from_bytes(value[:8], "little", signed=True))
             for module, operator, value in seen["reads"]}
    return {"param_dtype": name(source.param_dtype), "cast_inputs": source.cast_inputs,
            "autocast": name(source.autocast), "checkpointed": plain["checkpointed"], "sdpa": source.sdpa,
            **({"output_dtype": name(source.output_dtype)} if source.output_dtype else {}),
            **({"ddp_outputs": source.ddp} if source.ddp else {}),
            **({"groups": plain["groups"]} if plain["groups"] else {}), "train": plain["train"], "hooked": plain["hooked"], "casts": seen["casts"],
            "cannot": sorted([i, printable(reason)] for i, reason in seen["cannot"].items()),
            "readbacks": sorted(map(list, reads)),
            "routing": {"distribution": "balanced" if source.load_factor == 1 else "one busy expert",
                        "load_factor": str(source.load_factor)} if seen["routed"] else None}


def printable(text):
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def transformers_version():
    module = sys.modules.get("transformers")
    return getattr(module, "__version__", None)
