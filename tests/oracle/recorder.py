"""Records scenarios with the real engine, many in one process, in children that a crash or a hang cannot hurt."""
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = 50
LIMIT_S = 60


def load():
    """Imports torch once, before any child is made."""
    import logging

    import torch
    import transformers

    from fsdp_oracle import record
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    record.install()


def describe(error):
    """An exception in the words of a scenario of kind `error`."""
    exc, stage = getattr(error, "exc", error), getattr(error, "stage", "?")
    return {"error": {"class": type(exc).__name__, "stage": stage, "message": str(exc)},
            "trace": "".join(traceback.format_exception(exc))[-3000:]}


def record_one(sc, all_ranks=False):
    """The result of one scenario in this process."""
    from fsdp_oracle import ddp, fast, golden, tp
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    if sc["kind"] == "tp_layout":
        result, error = tp.layout_result(sc)
    elif sc["kind"] == "ddp":
        result, error = ddp.bucket_result(sc)
    elif all_ranks:
        result, bad = golden.train_result({**sc, "reference": False}, "", write=False)
        error = bad[0][0] if bad else None
    else:
        result, error = fast.train_result(sc)
    return describe(error) if error else result


def child(scenarios, out, work):
    """Writes a line for each scenario; stops after the first refused one, whose leftovers may disturb the next."""
    sys.stderr = open(os.devnull, "w")
    with os.fdopen(out, "w") as f:
        for sc in scenarios:
            try:
                result = work(sc)
            except BaseException as error:  # noqa: B036: what the recorder cannot do is a result too
                result = {**describe(error), "recorder": True}
            f.write(json.dumps(result) + "\n")
            f.flush()
            if "error" in result:
                break


def lines(fd, pid):
    """Complete lines that come within the limit; kills the child that says nothing for too long."""
    buffer, last = b"", time.time()
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, last + LIMIT_S - time.time()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            return
        data = os.read(fd, 1 << 20)
        if not data:
            return
        buffer += data
        *whole, buffer = buffer.split(b"\n")
        for line in whole:
            last = time.time()
            yield json.loads(line)


def record_all(scenarios, all_ranks=False, work=None):
    """Yields one result per scenario, in order; work(scenario) makes it, by default the recorder."""
    done, work = 0, work or (lambda sc: record_one(sc, all_ranks))
    while done < len(scenarios):
        batch = scenarios[done:done + BATCH]
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(source)
            try:
                child(batch, sink, work)
            finally:
                os._exit(0)
        os.close(sink)
        n = 0
        last = None
        for last in lines(source, pid):
            n += 1
            yield last
        os.close(source)
        os.waitpid(pid, 0)
        if n < len(batch) and not (last and "error" in last):
            yield {"error": {"class": "Crash", "stage": "?", "message": "the process ended or hung"}, "recorder": True}
            n += 1
        done += n
