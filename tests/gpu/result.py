"""The result of a part: a JSON file that is replaced whole after every check, so that a part that is cut short leaves what it
had. And how checks run: commands with a deadline, several at a time, the card's clocks beside them.
"""
import concurrent.futures, json, os, re, signal, subprocess, sys, tempfile, threading, time

SMI = "name,uuid,driver_version,memory.total,memory.used,compute_cap,clocks.max.sm,clocks.max.mem,power.limit,power.default_limit,pstate,clocks.sm,clocks.mem,temperature.gpu,utilization.gpu"
SAMPLE = "clocks.sm,clocks.mem,power.draw,temperature.gpu,pstate,clocks_event_reasons.active"
TAIL = 2000                                             # bytes of a failed command's output that are kept
MOST_SAID, MOST_LOG = 200_000, 12 << 20                 # of a command in the log, and the log: what comes back is limited
GRACE = 4.0                                             # seconds between "stop" and "kill": measure.py ends its children
IDLE_MIB = 1500                                         # in use before anything of ours runs; more: somebody else is there


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def say(text):
    """To who reads along; that nobody does ends nothing."""
    try:
        print(text, flush=True)
    except OSError:
        pass


def first_line(command):
    """First line of what a command prints; None if it cannot be run or fails."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return out.stdout.strip().split("\n")[0] if out.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def smi(query, fields):
    """Rows of nvidia-smi: dicts by field; [] without it. A driver that lacks a field is asked for each of the others."""
    try:
        out = subprocess.run(["nvidia-smi", f"--query-{query}=" + fields, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    if out.returncode and "," in fields and "not a valid field" in out.stdout.lower():
        single = [smi(query, f) for f in fields.split(",")]
        return [{k: v for one in row for k, v in one.items()} for row in zip(*(s for s in single if s))]
    if out.returncode:
        return []
    return [dict(zip(fields.split(","), (v.strip() for v in line.split(",")))) for line in out.stdout.splitlines() if line.strip()]


def devices():
    """The GPUs as nvidia-smi has them; [] without it."""
    return smi("gpu", SMI)


def others(attempts=5):
    """Why figures of this card are nobody's: programs or memory that are not ours; None: it is idle. What has just ended may
    still be there."""
    for i in range(attempts):
        found = others_now()
        if not found:
            return None
        if i + 1 < attempts:
            time.sleep(2)
    return found


def others_now():
    apps = [f"{a['process_name']} ({a['pid']}, {a['used_memory']} MiB)" for a in smi("compute-apps", "pid,process_name,used_memory")]
    used = [d.get("memory.used", "") for d in devices()[:1]]
    if apps:
        return "other programs on the GPU: " + ", ".join(apps)[:300]
    if used and used[0].isdigit() and int(used[0]) > IDLE_MIB:
        return f"{used[0]} MiB of the GPU's memory are in use before anything of ours runs; allowed: up to {IDLE_MIB}"
    return None


def compiler():
    """Release of nvcc, the last line but one of what it says."""
    try:
        out = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release [\d.]+, V([\d.]+)", out)
    return found[1] if found else None


def manifest(program):
    """What pack.sh says of its programs (commit, architectures, attention); {}: they are not packed."""
    try:
        with open(os.path.join(os.path.dirname(program), "MANIFEST")) as f:
            lines = [line.split(None, 1) for line in f]
    except OSError:
        return {}
    return {a: b.strip() for a, b in (line for line in lines if len(line) == 2) if a in ("commit", "architectures", "attention")}


class Part:
    """The checks of a part, in the order in which they were declared. seconds count from `start` (time.time())."""

    def __init__(self, name, out, seconds, program, start=None):
        self.out, self.path = out, os.path.join(out, name + ".json")
        self.start, self.program = start or time.time(), program
        self.end = self.start + seconds
        self.lock, self.running, self.stopped, self.logged, self.on_save = threading.RLock(), {}, False, 0, None
        os.makedirs(out, exist_ok=True)
        self.log = open(os.path.join(out, name + ".log"), "w")
        self.result = dict(part=name, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), status="running", seconds=0.0, budget_s=seconds,
                           device=devices(), busy=others(2 if seconds < 60 else 5), built=manifest(program),
                           versions=dict(tessera=first_line([program, "--version"]), nvcc=compiler(), python=sys.version.split()[0]), checks=[])
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(s, lambda *_: self.stop())
        self.save()

    def left(self):
        return self.end - time.time()

    def stop(self):
        """Ends what runs; what has not run is "not run"."""
        self.stopped, self.end = True, time.time()      # those who wait look at it

    def save(self):
        with self.lock:
            if self.on_save:
                try:
                    self.on_save()
                    self.result.pop("summary_failed", None)
                except Exception as e:                  # a defect of a summary is no reason to lose what it is of
                    self.result["summary_failed"] = f"{type(e).__name__}: {e}"
            self.result["seconds"] = round(time.time() - self.start, 1)
            with open(self.path + ".tmp", "w") as f:
                json.dump(self.result, f, indent=1)
                f.write("\n")
            os.replace(self.path + ".tmp", self.path)

    def wait(self, process, end, tick):
        """To the end of the process, or of the time. tick() every few seconds."""
        ticked = time.time()
        while process.poll() is None:
            if time.time() >= min(end, self.end):
                finish(process)
                return True
            time.sleep(0.02)
            if tick and time.time() > ticked + 5:
                tick()
                ticked = time.time()
        return False

    def command(self, words, seconds, env=None, cwd=None, may_fail=False, tick=None):
        """Runs a command to its end: exit status and output. Failed: another status than 0 (unless may_fail), or too slow. What
        it prints goes through a file: who is left behind by it may hold a pipe open for ever."""
        begin = time.time()
        end = min(begin + seconds, self.end)
        if end <= begin:
            raise TimeoutError
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, cwd=cwd,
                                       start_new_session=True)
            late = self.wait(process, end, tick)
            said.seek(0)
            text = said.read(64 << 20).decode(errors="replace")
        self.note(f"$ {' '.join(words)}\n{shortened(text)}{'(stopped: too slow)' if late else f'(status {process.returncode})'} {time.time() - begin:.1f} s\n")
        if late:
            raise TimeoutError(f"{time.time() - begin:.0f} s: {text[-TAIL:]}")
        if process.returncode and not may_fail:
            raise Failed(f"{os.path.basename(words[0])}: status {process.returncode}: {text[-TAIL:]}")
        return process.returncode, text

    def note(self, text):
        with self.lock:
            if self.logged > MOST_LOG:
                return
            self.logged += len(text)
            self.log.write(text if self.logged <= MOST_LOG else "(no more: the log is full)\n")
            self.log.flush()

    def check(self, entry, run, always=False):
        """run() returns figures (a dict or None), or raises. always: it only looks at what others found."""
        begin = time.time()
        if self.left() <= 0 and not always:
            return self.tell(entry)                     # "not run"
        entry["status"] = "running"
        self.save()
        try:
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
        entry["seconds"] = round(time.time() - begin, 1)
        return self.tell(entry)

    def tell(self, entry):
        self.save()
        reason = entry.get("reason", "").split("\n")[0][:100]
        say(f"{entry['name']:44s} {entry['status']:8s} {entry.get('seconds', 0.0):6.1f} s  {reason}")

    def run(self, checks, at_once=1):
        """checks: (name, function[, always]) in order."""
        entries = [dict(name=c[0], status="not run") for c in checks]
        self.result["checks"] += entries
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda pair: self.check(pair[0], pair[1][1], len(pair[1]) > 2 and pair[1][2]), zip(entries, checks)))

    def finish(self):
        """Exit status: 0 if something passed and nothing failed or was late."""
        states = [c["status"] for c in self.result["checks"]]
        bad = [s for s in states if s in ("failed", "timeout", "not run")] + ["failed"] * ("summary_failed" in self.result)
        self.result["status"] = "stopped" if self.stopped else "failed" if bad else "passed" if "passed" in states else "skipped"
        self.save()
        self.log.close()
        say(f"{self.path}: {self.result['status']}: {states.count('passed')} passed, {states.count('skipped')} skipped, {len(bad)} not, {self.result['seconds']} s")
        return 0 if self.result["status"] == "passed" else 1


def shortened(text):
    half = MOST_SAID // 2
    return text if len(text) <= MOST_SAID else f"{text[:half]}\n... ({len(text) - 2 * half} characters left out)\n{text[-half:]}"


def finish(process):
    """Asks the process to end, then kills it and its group."""
    for signal_, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, signal_)
        except OSError:
            pass
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:               # it may hang in the driver
            continue
        break
    try:
        os.killpg(process.pid, signal.SIGKILL)          # of its group; it is ours while somebody is in it
    except OSError:
        pass


class Clocks:
    """The card while a command runs: call it now and then."""

    def __init__(self):
        self.rows = []

    def __call__(self):
        self.rows += smi("gpu", SAMPLE)[:1]

    def figures(self):
        """Least, median and most of what is a number; every other value that was seen."""
        out = {}
        for key in self.rows[0] if self.rows else ():
            seen = [r.get(key, "") for r in self.rows]
            try:
                numbers = sorted(float(v) for v in seen)
                out[key] = [numbers[0], numbers[len(numbers) // 2], numbers[-1]]
            except ValueError:
                out[key] = sorted(set(seen))
        return out
