#!/usr/bin/env python3
"""Traces and checks every architecture of the installed packages: `python table.py -o results.json`.

Each runs in a process of its own with limits of time and memory. What is in the results is not run again, except
with --again PATTERN, which matches verdicts or reasons. `--table` prints the table and runs nothing.
"""

import argparse
import collections
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "architectures.py")
FEATURES = re.compile(r"tokens: (\d+), features:? (\d+)|tokens: (\d+).*features: (\d+)", re.S)
# An error of the model's, and not of the trace: "layers.0.mlp: ValueError: ...".
OWN_ERROR = re.compile(r"^(?:(?:[\w.]+|the model)(?:, backward)?: )?(\w+(?:Error|Exception))\b")
# Of weights in bf16 beside buffers in fp32, and of operators that bf16 does not have.
WIDER = re.compile(r"same dtypes?,? but got|Input type .* should be the same|Unsupported dtype BFloat16|expected scalar type Float but found BFloat16")
STRATEGY = {"cluster": "dgx-h100-1", "strategies": {"fsdp": {"wrap": "block"}}}
# For batch normalization, which does not run with weights in bf16 and statistics in fp32.
FP32 = {"precision": {"param": "f32"}}


def fails_alone(target, dtype, said):
    """Whether the model ends in the error that the trace said without the tracer, too: what is published does not run."""
    import torch
    from tessera import source, tracer
    error = OWN_ERROR.match(said)
    if not error:
        return False

    def alone():
        try:
            with torch.device("cuda"):
                model, batch, loss = source.function(target)()
            model = model.to(torch.float32 if dtype == "fp32" else torch.bfloat16)
            batch = {k: source.to_device(v) for k, v in batch.items() if v is not None}
            loss(source.call(model, batch), batch).backward()
        except Exception as own:
            return type(own).__name__
        return None
    return tracer.in_process(alone) == error[1]


def trace_and_check(name):
    """One architecture, in a process that has the stand-in device: {"verdict", "reason", ...}."""
    from tessera import api, check, program
    target, options, dtype = f"{MODELS}:{name}", {}, "bf16"
    for last in (False, False, True):
        try:
            trace = api.trace(target, dtype)
            break
        except api.Refused as error:
            found = FEATURES.search(str(error))
            if "Expected running_mean" in str(error) and not options:
                options, dtype = FP32, "fp32"
            elif WIDER.search(str(error)) and not options:
                options, dtype = FP32, "fp32"
            elif found and not last and "@" not in target:
                target = f"{target}@{found[2] or found[4]}"
            else:
                return {"verdict": "no model" if fails_alone(target, dtype, str(error)) else "refused", "reason": str(error)}
    with tempfile.TemporaryDirectory() as folder:
        trace.save(os.path.join(folder, "model.trace"))
        experiment = os.path.join(folder, "experiment.yaml")
        with open(experiment, "w", encoding="utf-8") as f:
            json.dump({"model": {"trace": os.path.join(folder, "model.trace")}, **STRATEGY, **options}, f)
        about = {"class": trace.content["model"]["class"], "blocks": len(trace.content["model"]["blocks"])}
        try:
            program.run(["compare", experiment, "--no-traces", "--emit", "torch", folder])
            predicted, found = check.check(os.path.join(folder, "fsdp.py"), target, named=experiment)
        except api.Refused as error:
            return {"verdict": "refused", "reason": f"after tracing: {error}", **about}
        if not found:
            return {"verdict": "exact", "reason": "", **about}
        lines = check.report("", predicted, found)
        return {"verdict": "wrong", "reason": "; ".join(x.strip() for x in lines[1:3]),
                "figures": len(found), **about}


def serve():
    """Loads torch and transformers once; then forks for each name that comes in."""
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from tessera import child, start

    os.environ.pop("LD_PRELOAD", None)   # the program in C needs no device

    def ask(request):
        open(request["log"], "w", encoding="utf-8").close()
        pid = os.fork()
        if pid == 0:
            os._exit(child.answer(request))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    start._ask = ask
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(limited(request)), file=answers, flush=True)


def limited(request):
    began = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (int(request["gib"] * 2 ** 30),) * 2)
        try:
            answer = trace_and_check(request["name"])
        except BaseException as error:
            answer = {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    late = threading.Timer(request["seconds"], lambda: os.killpg(pid, signal.SIGKILL))
    late.start()
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    late.cancel()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    took = time.monotonic() - began
    if not text:
        text = json.dumps({"verdict": "refused", "reason": f"more than {request['seconds']} s"
                           if took >= request["seconds"] else f"ended with status {status}"})
    return {"name": request["name"], "seconds": round(took, 1), **json.loads(text)}


class Results:
    def __init__(self, path):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                self.rows = {row["name"]: row for row in json.load(f)}

    def add(self, row):
        with self.lock:
            self.rows[row["name"]] = row
            with open(self.path + ".tmp", "w", encoding="utf-8") as f:
                f.write("[\n" + ",\n".join(json.dumps(self.rows[n]) for n in sorted(self.rows)) + "\n]\n")
            os.replace(self.path + ".tmp", self.path)
            print(f"{row['name']}: {row['verdict']} {row['seconds']} s {row['reason'][:200]}", flush=True)


def worker(waiting, results, arguments):
    from tessera import standin
    cuda, _ = standin.check()
    server = subprocess.Popen([sys.executable, __file__, "--serve"], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, env=standin.environment(cuda),
                              stderr=None if arguments.loud else subprocess.DEVNULL)
    server.stdout.readline()
    while waiting:
        try:
            name = waiting.popleft()
        except IndexError:
            break
        server.stdin.write(json.dumps({"name": name, "seconds": arguments.seconds, "gib": arguments.gib}) + "\n")
        server.stdin.flush()
        results.add(json.loads(server.stdout.readline()))
    server.stdin.close()
    server.wait()


def table(rows):
    """Counts by kind as comments, then a line of tab-separated values for each architecture. Reasons are without
    folders, and without addresses, which differ from run to run."""
    counts = collections.Counter((row["name"].partition("/")[0], row["verdict"]) for row in rows)
    lines = []
    for kind in [*sorted({k for k, _ in counts}), "all"]:
        of = [f"{verdict} {sum(n for (k, v), n in counts.items() if v == verdict and kind in (k, 'all'))}"
              for verdict in ("exact", "refused", "wrong", "no model")]
        lines.append(f"# {kind}: {', '.join(of)}")
    lines.append("architecture\tverdict\treason")
    for row in sorted(rows, key=lambda r: r["name"]):
        reason = re.sub(r"\S*/([\w-]+\.(py|trace|yaml))", r"\1", " ".join(row["reason"].split()))
        lines.append(f"{row['name']}\t{row['verdict']}\t{reason[:240]}".rstrip())
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="KIND/MODEL", help="default: all")
    parser.add_argument("-o", "--out", default="results.json", metavar="RESULTS.json")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="limit of each")
    parser.add_argument("--gib", type=float, default=5, help="limit of a process's memory")
    parser.add_argument("--again", metavar="PATTERN")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    results = Results(arguments.out)
    if arguments.table:
        print(table(results.rows.values()))
        return
    sys.path.insert(0, HERE)
    import architectures
    wanted = arguments.names or architectures.names()
    again = re.compile(arguments.again) if arguments.again else None
    waiting = collections.deque(
        n for n in wanted if arguments.names or n not in results.rows
        or (again and again.search(results.rows[n]["verdict"] + ": " + results.rows[n]["reason"])))
    workers = [threading.Thread(target=worker, args=(waiting, results, arguments)) for _ in range(arguments.jobs)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


if __name__ == "__main__":
    main()
