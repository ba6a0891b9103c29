#!/usr/bin/env python3
"""Traced models through the program: TESSERA and TSR_SOURCE_DIR are in the environment.

Damaged traces are made from one of tests/golden-bridge; a mutation that should be refused must end with
exit status 2 and one line that names the file, one that should not must not.
"""
import copy
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

TESSERA, SOURCE = os.environ["TESSERA"], os.environ["TSR_SOURCE_DIR"]
GOLDEN = os.path.join(SOURCE, "tests", "golden-bridge")
NAME = "vit-tiny-8ranks"
failures, checks = [], 0


def load(name=NAME):
    with gzip.open(os.path.join(GOLDEN, name + ".trace")) as f:
        return json.load(f)


def pack(document, rehash=True):
    if rehash:
        said = {k: v for k, v in document.items() if k not in ("made_by", "sha256")}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        document = dict(document, sha256=hashlib.sha256(text.encode()).hexdigest())
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def run(*arguments):
    done = subprocess.run([TESSERA, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def check(what, ok, said=""):
    global checks
    checks += 1
    if not ok:
        failures.append(f"{what}: {said[-400:]}")


def refused(what, data, *words):
    """The trace is refused in one line that has the words."""
    path = os.path.join(folder, "damaged.trace")
    with open(path, "wb") as f:
        f.write(data)
    status, out, err = run("memory", os.path.join(GOLDEN, NAME + ".json"), "--trace", path)
    fits = status == 2 and not out and err.count("\n") == 1 and "damaged.trace" in err
    check(what, fits and all(w in err for w in words), f"exit status {status}: {err}")


def changed(what, change, *words):
    document = load()
    change(document)
    refused(what, pack(document), *words)


# ---- files -------------------------------------------------------------------------------------

def set_in(*path, value):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value
    return change


def drop(*path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]
    return change


def first(document, kind, size=0):
    """The first event of a kind, and its segment."""
    for s, events in enumerate(document["segments"]):
        for i, event in enumerate(events):
            if event[0] == kind and len(event) >= size:
                return s, i
    raise LookupError(kind)


def event(kind, size, put):
    def change(document):
        s, i = first(document, kind, size)
        put(document["segments"][s], i)
    return change


def twice(events, i):
    events.insert(i, list(events[i]))


def step_of(document, kind):
    steps = document["variants"][0]["iterations"][1]
    return next(i for i, step in enumerate(steps) if step[0] == kind), steps


def swap(kind):
    def change(document):
        i, steps = step_of(document, kind)
        steps[i], steps[i + 1] = steps[i + 1], steps[i]
    return change


def freeze(document):
    for param in document["params"]:
        param[3] = False


def cycle(document):
    document["modules"][2][4].append(["again", 1])


def twice_named(document):
    module = next(m for m in document["modules"] if len(m[4]) > 1)
    module[4].append([module[4][0][0], module[4][1][1]])


def files():
    whole = pack(load())
    refused("an empty file", b"")
    refused("half a file", whole[:len(whole) // 2])
    refused("a bomb", gzip.compress(b" " * (100 << 20), mtime=0), "more than 100 times")
    refused("deep nesting", gzip.compress(b"[" * 100000 + b"]" * 100000, mtime=0))
    refused("a list", gzip.compress(b"[]", mtime=0), "is no trace")
    refused("not UTF-8", gzip.compress(b'{"tessera_trace": "\xff"}', mtime=0))
    document = load()
    document["params"][0][1][0] += 1
    refused("another hash", pack(document, rehash=False), "sha256")
    changed("another version", set_in("tessera_trace", value=2), "version 1")
    for key in ("variants", "modules", "params", "ops", "segments", "classes"):
        changed(f"no {key}", drop(key), key)
        changed(f"{key} of another type", set_in(key, value={"a": 1}), key)
    changed("an unknown key", set_in("surprise", value=1), "surprise")
    changed("an unknown condition", set_in("variants", 0, "conditions", "surprise", value=1), "surprise")
    changed("no variant", set_in("variants", value=[]), "variants")
    changed("a name for a terminal", set_in("variants", 0, "checkpoint", value="\x1b[2J"), "\\u001B")
    for size in (0, -1, 1 << 53, (1 << 63) - 1, 1.5, "1", None):
        changed(f"an allocation of {size}", event(0, 2, lambda events, i: events[i].__setitem__(1, size)))
    changed("a number of 20 digits", event(0, 2, lambda events, i: events[i].__setitem__(1, 10 ** 20)))
    changed("an unknown event", event(0, 2, lambda events, i: events.insert(i, [9, 1])), "segments")
    changed("another stream", event(0, 2, lambda events, i: events[i].__setitem__(slice(2, None), [3])))
    changed("a free twice", event(1, 2, twice), "gone")
    changed("a free of nothing", event(1, 2, lambda events, i: events.insert(i, [1, 100000])))
    changed("a free of another class", event(1, 3, lambda events, i: events[i].__setitem__(2, 10 ** 6)))
    changed("a free too far back", event(1, 3, lambda events, i: events[i].__setitem__(slice(3, None), [999])), "gone")
    changed("a kernel that is not there", event(2, 2, lambda events, i: events[i].__setitem__(1, 10 ** 6)), "ops")
    changed("a parameter that is not there", event(2, 3, lambda events, i: events[i].__setitem__(2, [10 ** 5])))
    changed("a gradient of a frozen parameter", freeze, "gradient")
    changed("a gradient twice", event(3, 3, twice))
    changed("another class", set_in("classes", -1, value=0), "class")
    changed("a class of later", set_in("classes", 0, value=3))
    changed("a cycle of modules", cycle)
    changed("a module without a parent", lambda d: d["modules"][1][4].pop())
    changed("the root as a child", lambda d: d["modules"][1][4].append(["r", 0]))
    changed("a child of another name", lambda d: d["modules"][0][4][0].__setitem__(0, "renamed"), "module 1", "place")
    changed("a module of another name", set_in("modules", 2, 0, value="elsewhere"), "module 2", "place")
    changed("a root with a name", set_in("modules", 0, 0, value="root"), "module 0")
    changed("a parameter of another name", set_in("params", 1, 0, value="elsewhere.weight"), "parameter 1", "place")
    changed("an attribute twice", twice_named, "twice")
    changed("a name with a dot", lambda d: d["modules"][1][4][0].__setitem__(0, "a.b"))
    changed("seven dimensions", set_in("params", 0, 1, value=[1] * 7), "params")
    changed("a size of 2^63", set_in("params", 0, 1, value=[(1 << 63) - 1]), "params")
    changed("sizes that overflow", set_in("params", 0, 1, value=[1 << 39, 1 << 39]), "params")
    changed("a dtype that nobody has", set_in("params", 0, 2, value="float7"), "params")
    changed("phases in another order", swap("forward"), "step")
    changed("a call that does not end", lambda d: d["variants"][0]["iterations"][1].pop(step_of(d, "post_forward")[0]))
    changed("a backward in forward", lambda d: d["variants"][0]["iterations"][1].insert(3, ["pre_backward", 0, 0, 1, 0]))
    changed("an unknown mark", lambda d: d["variants"][0]["iterations"][1][3].__setitem__(0, "before"), "mark")
    changed("a mark without hooks", set_in("variants", 0, "conditions", "hooked", value=[0]), "hooks")
    for asked, words in (([], "made_by.asked"), ({}, "made_by.asked"), ({"batch": 1, "seq": True, "options": []}, "true or false"),
                         ({"batch": True, "seq": True, "options": [["--out", "x"]]}, "--blocks, --wrap"),
                         ({"batch": True, "seq": True, "options": [["--wrap"]]}, "list"),
                         ({"batch": True, "seq": True, "options": [["--wrap", "x"]] * 65}, "64")):
        changed(f"asked for with {asked}", set_in("made_by", "asked", value=asked), words)
    changed("one iteration", lambda d: d["variants"][0]["iterations"].pop(), "variants")


# ---- experiments -------------------------------------------------------------------------------

BASE = {"title": "t", "cluster": "dgx-h100-1", "precision": {"param": "bf16", "reduce": "f32"},
        "strategies": {"fsdp": {"api": "fully_shard", "wrap": [{"modules": ["vit.layers.*"]}, {"modules": [""]}]}}}


def asked(name, how=None, source="train.py:make", sizes=()):
    """The trace, as if a function had been asked for it, and for other batches."""
    document = load(name)
    document["model"]["source"] = source
    if how:
        document["made_by"]["asked"] = how
    document["variants"] += [dict(document["variants"][0], name=f"b{n}", batch=n) for n in sizes]
    path = os.path.join(folder, name + ".trace")
    with open(path, "wb") as f:
        f.write(pack(document))
    return path


def experiment(change=None, name=NAME):
    document = copy.deepcopy(BASE)
    document["model"] = {"trace": asked(name)}
    document.update(change or {})
    path = os.path.join(folder, "study.yaml")
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def strategy(**keys):
    return {"strategies": {"fsdp": {**BASE["strategies"]["fsdp"], **keys}}}


def misfit(what, change, *words):
    status, out, err = run("compare", experiment(change))
    fits = status == 2 and err.count("\n") == 1
    check(what, fits and all(w in err for w in words), f"exit status {status}: {err or out}")


def older():
    """FSDP1 beside a trace (conformance.fsdp1 has what PyTorch recorded): every command takes it, and what it lacks is said."""
    older = {"strategies": {name: {"api": "fsdp1", "wrap": wrap} for name, wrap in (("blocks", "block"), ("fsdp", "root"))}}
    for command in (["compare"], ["plan"], ["explain", "--strategy", "fsdp"], ["check", "--strategy", "blocks"]):
        status, out, err = run(command[0], experiment(older), *command[1:])
        check(f"FSDP1: {command[0]}", status == 0 and out, err)
    for name, words in (("lora-tiny-8ranks", "is frozen, which fsdp1 does not model"),
                        ("mamba2-tiny-2ranks", "its inputs were cast by hooks of fully_shard")):
        status, out, err = run("compare", experiment(older, name=name))
        check(f"FSDP1: {name}", status == 2 and words in err and err.count("\n") == 1, err or out)


def experiments():
    anew = "python -m tessera trace"
    misfit("another dtype", {"precision": {"param": "none"}}, "precision.param", anew, "--dtype")
    misfit("weights in bf16", {"precision": {"master": "bf16", "param": "none"}}, "precision.master", "model.to(torch.bfloat16)")
    proposals()
    commands()
    misfit("another batch", {"batch": 3}, "batch: found 3", anew, "--batch 8,3")
    misfit("another checkpointing", {"checkpoint": "full"}, anew, "--checkpoint none,full")
    misfit("a choice that traces lack", {"checkpoint": 3}, "checkpoint", "allowed")
    misfit("a variant that is not there", {"model": {"trace": os.path.join(GOLDEN, NAME + ".trace"), "variant": "b9"}}, "b9")
    misfit("tensor parallelism", {"tp": 2}, "tp: found 2")
    misfit("another dialect", {"dialect": "compile"}, "dialect")
    misfit("a loss in chunks", {"loss": {"chunks": 8}}, "loss.chunks")
    older()
    misfit("an evaluation", {"phases": ["init", "step", "eval"]}, "phases")
    misfit("a sequence of a model that has none", strategy(seq=77), "seq: found 77", "does not read")
    status, out, err = run("compare", experiment({"seq": 77}))
    check("a file's sequence beside a model that has none", status == 0 and f"model {NAME} does not read seq\n" in err, err)
    written_to = os.path.join(folder, "accelerate")
    status, out, err = run("compare", experiment({"strategies": {**BASE["strategies"], "ddp": {"api": "ddp"}}}), "--emit", "accelerate", written_to)
    written = {name: open(os.path.join(written_to, f"{name}.yaml")).read() for name in ("fsdp", "ddp")} if status == 0 else {}
    check("Accelerate is told the class of the blocks", 'fsdp_transformer_layer_cls_to_wrap: "ViTLayer"\n' in written.get("fsdp", ""), err or written)
    check("DDP of Accelerate is autocast", "Accelerate computes under autocast" in " ".join(written.get("ddp", "").split()), err or written)
    misfit("two models", {"model": {"trace": "a.trace", "name": "llama-3.1-8b"}}, "one of them")
    misfit("a file that is not there", {"model": {"trace": "nowhere.trace"}}, "nowhere.trace")
    status, out, err = run("compare", experiment(strategy(wrap=[{"modules": ["vit.layers.0.attention"]}, {"modules": [""]}])))
    check("a module without hooks", "had no hooks" in out + err and anew in out + err, err or out)
    for command in (["compare"], ["plan"], ["explain", "--strategy", "fsdp"], ["overlap", "--strategy", "fsdp"],
                    ["check", "--strategy", "fsdp"], ["inspect"], ["program", "--strategy", "fsdp"]):
        status, out, err = run(command[0], experiment(), *command[1:])
        check(" ".join(command), status == 0 and out, err)
    status, out, err = run("inspect", os.path.join(GOLDEN, NAME + ".trace"))
    check("inspect of a trace", status == 0 and load()["sha256"] in out and load()["variants"][0]["name"] in out, err or out)
    both = dict(strategies={**BASE["strategies"], "replicate": {"api": "replicate", "wrap": "block"},
                            "hsdp": {"api": "fully_shard", "wrap": "block", "mesh": {"replicate": 2, "shard": 4}}})
    status, out, err = run("diff", experiment(both) + ":fsdp", experiment(both) + ":replicate")
    check("diff", status in (0, 1) and out, err)
    written_again()
    utilisation()
    unknown_kernels()
    owners()
    for api in ("replicate", "hsdp"):
        status, out, err = run("check", experiment(both), "--strategy", api)
        check(f"check of {api}", status == 0 and "nothing found" in out, err or out)


def commands():
    """The command of a refusal makes the trace that serves, and nothing that was traced is lost."""
    def said(what, trace, keys, *words, lacks=()):
        path = write("asked.yaml", {"cluster": "dgx-h100-1", "model": {"trace": trace}, "precision": {"param": "bf16"},
                                    "strategies": {"fsdp": {"wrap": "root"}}, **keys})
        status, out, err = run("compare", path)
        right = status == 2 and err.count("\n") == 1 and all(w in err for w in words) and not any(w in err for w in lacks)
        check(what, right, err or out)
    every = {"batch": True, "seq": False, "options": [["--blocks", "vit.layers.*"], ["--readback", "a b:item=3"]]}
    here = os.path.join(folder, "train.py")
    said("a recorded scenario", asked(NAME, source=NAME + ".json"), {"batch": 3}, "or another trace\n", lacks=["python -m"])
    said("a function without batch", asked(NAME, {"batch": False, "seq": True, "options": []}), {"batch": 3},
         "train.py:make has no parameter `batch`", lacks=["python -m"])
    said("its file is elsewhere", asked(NAME, every), {"batch": 3}, "(where train.py is: python -m tessera trace train.py:make ")
    open(here, "w").close()
    tail = f"--blocks 'vit.layers.*' --readback 'a b:item=3' --dtype bf16 -o {NAME}-2.trace)\n"
    said("all of it", asked(NAME, every, sizes=[16]), {"batch": 3}, f"(python -m tessera trace {here}:make --batch 8,16,3 {tail}")
    said("checkpointing, too", asked(NAME, every, sizes=[16]), {"batch": 16, "checkpoint": "full"},
         f"--batch 8,16 --checkpoint none,full {tail}")
    with_wrap = dict(every, options=[["--wrap", "vit.layers.*"], ["--load-factor", "2.0"]])
    said("another wrap", asked(NAME, with_wrap), {"strategies": {"fsdp": {"wrap": [{"modules": ["vit.layers.0.attention"]}, {"modules": [""]}]}}},
         f"--batch 8 --load-factor 2.0 --wrap vit.layers.0.attention --dtype bf16 -o {NAME}-2.trace")
    os.unlink(here)
    at = os.getcwd()
    os.chdir(folder)
    for name in ("train.py", NAME + "-2.trace"):
        open(name, "w").close()
    said("files that are there", asked(NAME, every), {"batch": 3}, f"python -m tessera trace train.py:make --batch 8,3 ", f"-o {NAME}-3.trace")
    os.unlink("train.py")
    os.chdir(at)


def proposals():
    """The command that a line proposes has a dtype that the tracer takes, and keeps autocast."""
    with open(os.path.join(SOURCE, "experiments", "torch", "tessera", "api.py")) as f:
        known = re.search(r'^DTYPES = \((.*)\)', f.read(), re.M).group(1)
    autocast = "t5-tiny-2ranks-autocast-dropout"
    for name, param, wanted in ((NAME, "none", "none"), (NAME, "f32", "fp32"), (NAME, "f16", "fp16"),
                                (autocast, "bf16", "bf16"), (autocast, "none", "autocast-bf16")):
        keys = {"precision": {"param": param}, "strategies": {"fsdp": {}}, "batch": 99}
        status, _, err = run("compare", experiment(keys, name))
        found = re.search(r"--dtype (\S+)", err)
        check(f"a command for {param}", status == 2 and found and found.group(1) == wanted and f'"{wanted}"' in known, err)


def written_again():
    """experiment.yaml of a study runs again and gives the same rows: the trace keeps its own batch, one that is given stays."""
    plain = dict(BASE, model={"trace": os.path.join(GOLDEN, NAME + ".trace")},
                 strategies={**BASE["strategies"], "gpt2": {"model": {"name": "gpt2", "layers": 1}, "batch": 1, "seq": 64}})
    variant = load()["variants"][0]
    for name, keys in (("left open", plain), ("given", dict(plain, batch=variant["batch"]))):
        out = os.path.join(folder, "again " + name)
        status, first, err = run("compare", write("once.yaml", keys), "--out", out, "--pictures", "none", "--format", "csv")
        check(f"a batch {name}", status == 0, err)
        status, second, err = run("compare", os.path.join(out, "experiment.yaml"), "--format", "csv")
        check(f"a batch {name}, again", status == 0 and second == first, err)


def utilisation():
    """Under autocast products run in bf16; what is faster than the card's peak is an error."""
    autocast = dict(experiment_keys("t5-tiny-2ranks-autocast-dropout"), precision={"param": "none", "reduce": "none"})
    status, out, err = run("compare", write("autocast.yaml", autocast), "--format", "json")
    row = json.loads(out)["rows"][0] if status == 0 else {}
    at_peak = row.get("mfu", 0) * row.get("step_time_s", 0) * 989e12
    check("MFU under autocast", at_peak and abs(at_peak / row["model_flop_per_gpu"] - 1) < 1e-6, err or str(row))
    fast = {"model": "llama-3.2-1b", "seq": 4096, "cluster": {"nodes": 1, "gpus": 1, "gpu": "h100-sxm5-80g"},
            "strategies": {"fsdp": {}}, "sim": {"slow_factor": 0.1}}
    status, out, err = run("compare", write("fast.yaml", fast), "--format", "json")
    check("a card that is sped up", status == 0 and json.loads(out)["rows"][0]["mfu"] is None, err or out)
    with open(os.path.join(SOURCE, "experiments", "clusters", "gpu-h100-sxm5-80g.json")) as f:
        card = json.load(f)
    for key in ("kernels", "achievable_matmul_flop_per_s", "achievable_matmul_shape"):
        del card[key]
    card["calibration"] = {f"{what}_sustained": {"value": 1.5, "source": "a mistake"}
                           for what in ("matmul", "backward", "attention")}
    card["peak_dense_flop_per_s"]["bf16"] = 1e9
    write("gpu-slow.json", card)
    slow = dict(autocast, model="llama-3.2-1b", seq=4096, precision={"param": "bf16"},
                cluster={"nodes": 1, "gpus": 8, "gpu": "gpu-slow.json"})
    status, out, err = run("compare", write("slow.yaml", slow))
    check("a step faster than the peak", status == 2 and err.count("\n") == 1 and "peak_dense_flop_per_s" in err, err or out)


def unknown_kernels():
    """An operator without a rule in the cost model is said: a column where there is any, its time in JSON."""
    keys = experiment_keys(NAME)
    shares = []
    for renamed in ([], ["aten.gelu.default"], ["aten.gelu.default", "aten.gelu_backward.default"]):
        document = load()
        rows = [op for op in document["ops"] if op[0] in renamed]
        check(f"{renamed} in the trace", {op[0] for op in rows} == set(renamed))
        for op in rows:
            op[0] = "mine.mystery.default"
        path = os.path.join(folder, "unknown.trace")
        with open(path, "wb") as f:
            f.write(pack(document))
        file = write("unknown.yaml", dict(keys, model={"trace": path}))
        status, out, err = run("compare", file, "--format", "json")
        row = json.loads(out)["rows"][0] if status == 0 else {}
        shares.append(row.get("unknown_kernels_share", -1))
        check(f"their share, {renamed}", row and abs(shares[-1] - row.get("unknown_kernels_s", -1) / row["step_time_s"]) < 1e-12, err or out)
        status, out, err = run("compare", file)
        check(f"their column, {renamed}", status == 0 and ("| unknown % |" in out) == ("`unknown`:" in out) == bool(renamed), err or out)
    check("shares grow", 0 == shares[0] < shares[1] < shares[2], str(shares))


def owners():
    """What becomes the gradient of a parameter, and what is added up to it, is of the module that has the parameter."""
    sizes = {"float32": 4, "bfloat16": 2}
    for name, tied in (("bert-tiny-8ranks-reshard2", True), ("vit-tiny-8ranks", False)):
        document = load(name)
        has = {}
        for module, _, places, *_ in document["modules"]:
            for _, i in places:
                shape, dtype = document["params"][i][1:3]
                elements = 1
                for size in shape:
                    elements *= size
                has.setdefault(module or "(root)", set()).update(elements * b for b in sizes.values())
        keys = dict(experiment_keys(name), precision={"param": "bf16", "reduce": "f32"}, strategies={"s": {"wrap": "root"}})
        status, out, err = run("program", write("owners.yaml", keys), "--strategy", "s")
        grads = re.findall(r'^\d+ alloc \S+ \S+ \S+ \S+ \S+ "Unsharded Grad" bytes=(\d+) \| (\S+) ', out, re.M)
        wrong = [(size, owner) for size, owner in grads if int(size) not in has.get(owner, ())]
        check(f"{name}: owners of gradients", status == 0 and len(grads) > 10 and not wrong, err or str(wrong or grads))
        word = re.findall(r'"(Temp|Unsharded Grad)" bytes=\d+ \| \S*word_embeddings ', out)
        check(f"{name}: a tied parameter", sorted(set(word)) == (["Temp", "Unsharded Grad"] if tied else []), str(word))


def write(name, document):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def experiment_keys(name):
    return {"model": {"trace": os.path.join(GOLDEN, name + ".trace")}, "cluster": "dgx-h100-1",
            "strategies": {"fsdp": {"wrap": "root"}}}


probe = run("memory", os.path.join(GOLDEN, NAME + ".json"), "--trace", os.path.join(GOLDEN, NAME + ".trace"))
if "built without zlib" in probe[2]:
    sys.exit(77)
check("a trace as it is", probe[0] == 0 and probe[1], probe[2])
with tempfile.TemporaryDirectory() as folder:
    files()
    experiments()
for failure in failures:
    print("FAILED:", failure)
print(f"{checks - len(failures)} of {checks} checks")
sys.exit(1 if failures or not checks else 0)
