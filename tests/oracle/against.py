"""Runs `tessera trace` on a scenario and compares what it says with what the real engine did."""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import compare as golden  # noqa: E402

KEYS = {"train": ("process_groups", "layout", "events", "stream_events"), "ddp": ("buckets",),
        "tp_layout": ("params", "ranks")}

# What a message must say (the words of a refusal that is part of the semantics), found in the real engine's message.
WORDS = ["out of bounds for storage of size 0", "have the same dtype, but got", "got mixed torch.Tensor and DTensor",
         "FSDP expects uniform original parameter dtype but got", "FSDP expects uniform reduce dtype but got",
         "requires a single root module but got",
         "FSDP state has already been lazily initialized for", "FSDP requires running forward through the root module first",
         "does not support uneven sharding on dim", "is invalid for", "should be a factor of", "cannot be set when using native HSDP",
         "Expects FSDPModule but got", "Expects list of FSDPModules but got", "once", "more than once",
         "has no attribute", "reshard_after_forward should be a bool"]

# Refusals that are limits of the CPU, of the recorder or of a rule the engine leaves out on purpose (README.md).
NOT_COMPARED = [
    ("CheckpointError", "", "Q4: recomputation does not cast inputs in 2.11"),
    ("RuntimeError", "does not require grad", "nothing to differentiate"),
    ("RuntimeError", "backward through the graph a second time", "the scenario itself is wrong"),
    ("RuntimeError", "not implemented for", "a CPU kernel for this dtype is missing"),
    ("RuntimeError", "INTERNAL ASSERT FAILED", "PyTorch itself fails, with ranks as threads of one interpreter"),
    ("ValueError", "optimizer got an empty parameter list", "nothing to train"),
    ("AttributeError", "'NoneType' object has no attribute 'wait'", "a handle that is not there"),
    ("RuntimeError", "must match the size of tensor b", "Q10: partial sums of backwards with different gradients"),
    ("IndexError", "list index out of range", "2.11: a smaller group and a shard dim other than 0"),
    ("AttributeError", "'FSDPParam' object has no attribute '_unsharded_param'", "Q15: no-sync and a group that never ran"),
    ("AttributeError", "has no attribute 'all_gather_copy_in_stream'", "2.11: a shared context that nobody initialised"),
]


def trace(tessera, sc):
    """(result, None) or (None, message)"""
    with tempfile.TemporaryDirectory() as tmp:
        path, out = os.path.join(tmp, "scenario.json"), os.path.join(tmp, "result.json")
        with open(path, "w") as f:
            json.dump(sc, f)
        run = subprocess.run([tessera, "trace", path, "-o", out], capture_output=True, text=True, timeout=60)
        if run.returncode != 0:
            return None, f"status {run.returncode}: {run.stderr.strip()[-600:]}"
        with open(out) as f:
            result = json.load(f)
    if "stream_events" in result:
        result["stream_events"] = without_host_waits(result["stream_events"])
    return result, None


def without_host_waits(events):
    """Our stream events without those that PyTorch does not have (Q21): the host waits for an all-gather that nobody
    used, for which the compute stream has just begun to wait."""
    return [e for i, e in enumerate(events)
            if not (e["e"] == "synchronize_event" and i > 0 and events[i - 1]["e"] == "wait_event"
                    and [events[i - 1][k] for k in ("at", "event")] == [e["at"], e["event"]])]


def excuse(sc, error):
    """Why a refusal of the real engine is not compared, or None."""
    if "storage" in error["message"] and "out of bounds for storage of size" in error["message"] and not error[
            "message"].endswith("of size 0"):
        return "Q6: metadata of an uneven shard on a smaller group is larger than its data"
    dtypes_clash = any(w in error["message"] for w in ("same dtype", "mixed dtype", "expected scalar type"))
    if error["stage"] == "backward" and dtypes_clash and sc.get("ac"):
        return "Q4: recomputation does not cast inputs in 2.11"
    waits = {c["module"] for c in sc.get("calls", []) if c["fn"] == "wait_unshard_handle"}
    if error["class"] == "KeyError" and error["message"].strip("'") in waits:
        return "a handle that is not there"
    for cls, words, why in NOT_COMPARED:
        if error["class"] == cls and words in error["message"]:
            return why
    return None


def compare_error(tessera, sc, error):
    mine, failure = trace(tessera, {**sc, "kind": "error"})
    if failure:
        return [f"real: {error['class']} at {error['stage']}: {error['message'][:200]}; ours: {failure}"]
    got = mine.get("error")
    if got and "overlapping meshes" in got["message"] and set(sc["mesh"]["shape"]) == {1}:
        return []  # on one rank PyTorch only finds out in the forward
    if not got:
        return [f"real: {error['class']} at {error['stage']}: {error['message'][:200]}; ours: no error"]
    out = [f"error.{k}: real {error[k]!r}, ours {got[k]!r}: {error['message'][:160]!r}, ours {got['message'][:160]!r}"
           for k in ("class", "stage") if error[k] != got[k]]
    for words in WORDS:
        if words in error["message"] and words not in got["message"]:
            out.append(f"error.message: {words!r} is missing in {got['message'][:200]!r}")
    return out[:1]


def first_difference(key, real, mine):
    """A few lines about the first difference."""
    out = []
    if isinstance(real, list):
        golden.diff_list(key, real, mine, out)
        return "\n".join(out[:1] + out[1:4])
    a, b = dict(golden.flat(real)), dict(golden.flat(mine))
    bad = [x for x in [*a, *(y for y in b if y not in a)] if x not in a or x not in b or not golden.same(a[x], b[x])]
    if not bad:
        return f"{key}: empty entries differ: {json.dumps(real)[:300]} / {json.dumps(mine)[:300]}"
    return f"{key}{bad[0]}: golden {a.get(bad[0], 'absent')}, candidate {b.get(bad[0], 'absent')} ({len(bad)} differ)"


def compare(tessera, sc, real):
    """The differences, as texts; none: they agree."""
    if "error" in real:
        return compare_error(tessera, sc, real["error"])
    mine, failure = trace(tessera, sc)
    if failure:
        return [f"real: fine; ours: {failure}"]
    for key in KEYS[sc["kind"]]:
        if key not in mine:
            return [f"{key} is missing"]
        if not golden.same(real[key], mine[key]):
            return [first_difference(key, real[key], mine[key])]
    return []


def shape_of(difference):
    """A difference without names and numbers, to tell one kind from another."""
    text = re.sub(r'"(g|p|m|target|frees|module|modules|params|accumulate)": ("[^"]*"|\[[^\]]*\])', r'"\1"', difference.split("before:")[0])
    return re.sub(r"\s+", " ", re.sub(r"-?\d+(\.\d+)?", "N", text))[:300]
