"""The result of a part: a JSON file that is replaced whole after every check, so that a part that is cut short leaves what it
had. And how checks run: commands with a deadline, several at a time.
"""
import concurrent.futures, json, os, re, signal, subprocess, sys, threading, time

SMI = "name,uuid,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.mem,power.limit,clocks.sm,temperature.gpu"
TAIL = 2000                                             # bytes of a failed command's output that are kept


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def first_line(command):
    """First line of what a command prints; None if it cannot be run or fails."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return out.stdout.strip().split("\n")[0] if out.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def devices():
    """The GPUs as nvidia-smi has them; [] without it."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=" + SMI, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    if out.returncode:
        return []
    return [dict(zip(SMI.split(","), (v.strip() for v in line.split(",")))) for line in out.stdout.splitlines() if line]


def compiler():
    """Release of nvcc, the last line but one of what it says."""
    try:
        out = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release [\d.]+, V([\d.]+)", out)
    return found[1] if found else None


class Part:
    """The checks of a part, in the order in which they were declared."""

    def __init__(self, name, out, seconds, program):
        self.path, self.log_path = os.path.join(out, name + ".json"), os.path.join(out, name + ".log")
        self.start, self.end, self.program = time.time(), time.time() + seconds, program
        self.lock, self.running, self.stopped = threading.Lock(), set(), False
        os.makedirs(out, exist_ok=True)
        self.log = open(self.log_path, "w")
        self.result = dict(part=name, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), status="running", seconds=0.0, budget_s=seconds,
                           device=devices(), versions=dict(tessera=first_line([program, "--version"]), nvcc=compiler(), python=sys.version.split()[0]), checks=[])
        for s in (signal.SIGTERM, signal.SIGINT):
            signal.signal(s, lambda *_: self.stop())
        self.save()

    def left(self):
        return self.end - time.time()

    def stop(self):
        """Ends what runs; what has not run is "not run"."""
        self.stopped, self.end = True, time.time()
        for process in list(self.running):
            kill(process)

    def save(self):
        with self.lock:
            self.result["seconds"] = round(time.time() - self.start, 1)
            with open(self.path + ".tmp", "w") as f:
                json.dump(self.result, f, indent=1)
                f.write("\n")
            os.replace(self.path + ".tmp", self.path)

    def command(self, words, seconds, env=None, cwd=None, may_fail=False):
        """Runs a command to its end: exit status and output. Failed: another status than 0 (unless may_fail), or too slow."""
        seconds = min(seconds, self.left())
        if seconds <= 0:
            raise TimeoutError
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
                                   env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True)
        self.running.add(process)
        try:
            text, _ = process.communicate(timeout=seconds)
            late = False
        except subprocess.TimeoutExpired:
            kill(process)
            text, _ = process.communicate()
            late = True
        finally:
            self.running.discard(process)
        self.note(f"$ {' '.join(words)}\n{text}{'(stopped: too slow)' if late else f'(status {process.returncode})'}\n")
        if late or self.stopped:
            raise TimeoutError(f"{seconds:.0f} s: {text[-TAIL:]}")
        if process.returncode and not may_fail:
            raise Failed(f"{os.path.basename(words[0])}: status {process.returncode}: {text[-TAIL:]}")
        return process.returncode, text

    def note(self, text):
        with self.lock:
            self.log.write(text)
            self.log.flush()

    def check(self, entry, run):
        """run() returns figures (a dict or None), or raises."""
        begin = time.time()
        entry["status"] = "running"
        self.save()
        try:
            if self.left() <= 0:
                entry["status"] = "not run"
                return
            entry.update(run() or {})
            entry["status"] = "passed"
        except Skipped as e:
            entry.update(status="skipped", reason=str(e))
        except Failed as e:
            entry.update(status="failed", reason=str(e))
        except TimeoutError as e:
            entry.update(status="not run" if not e.args else "timeout", reason=str(e))
        except Exception as e:                          # a defect of a check is no reason to lose the others
            entry.update(status="failed", reason=f"{type(e).__name__}: {e}")
        finally:
            entry["seconds"] = round(time.time() - begin, 1)
            self.save()
            reason = entry.get("reason", "").split("\n")[0][:100]
            print(f"{entry['name']:44s} {entry['status']:8s} {entry['seconds']:6.1f} s  {reason}", flush=True)

    def run(self, checks, at_once=1):
        """checks: (name, function) in order."""
        entries = [dict(name=name, status="not run") for name, _ in checks]
        self.result["checks"] += entries
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda pair: self.check(pair[0], pair[1][1]), zip(entries, checks)))

    def finish(self):
        """Exit status: 0 if something passed and nothing failed or was late."""
        states = [c["status"] for c in self.result["checks"]]
        bad = [s for s in states if s in ("failed", "timeout", "not run")]
        self.result["status"] = "stopped" if self.stopped else "failed" if bad else "passed" if "passed" in states else "skipped"
        self.save()
        self.log.close()
        print(f"{self.path}: {self.result['status']}: {states.count('passed')} passed, {states.count('skipped')} skipped, {len(bad)} not, {self.result['seconds']} s")
        return 0 if self.result["status"] == "passed" else 1


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
