#!/usr/bin/env python3
"""Strangers at the door of real jobs: noise, half messages, silence, floods, drips, wrong tokens,
recordings of ranks that were let in, and ranks that are too many. Round after round three ranks
train over TCP with a token, or without one over the Unix socket of the user; meanwhile strangers
knock wherever a rank listens. A round is well when every rank ends with status 0 and the losses of
an undisturbed job, listens nowhere but at 127.0.0.1, no stranger was let in, and rank 0 needed no
more memory than without strangers (and 64 MB).

    strangers.py TESSERA FOLDER [--seconds S] [--seed N]

FOLDER holds job.yaml (three ranks; tests/jobs/_faults.sh makes one). Exit status 1: a round was not
well; its seed is printed. This is a second implementation of exec/rendezvous/handshake.h."""

import argparse
import hashlib
import hmac
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

MAGIC, VERSION, SIZE = 0x56525354, 2, 3
MEET, MAIL = 1, 2
HELLO = struct.Struct('=6I32s')
CHALLENGE = struct.Struct('=II32s')
VERDICT = struct.Struct('=II32s216s')


def receive(s, n):
    data = b''
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            break
        data += more
    return data


def proof(token, hello, challenge):
    key = hashlib.sha256(b'tessera token'.ljust(16, b'\0') + token.encode()).digest() if token else bytes(32)
    return hmac.new(key, b'tessera asks'.ljust(16, b'\0') + hello + challenge, hashlib.sha256).digest()


class Round:
    def __init__(self, arguments, seed, replay, recorder=None):
        self.random = random.Random(seed)
        self.arguments, self.seed, self.recorder, self.replay = arguments, seed, recorder, replay
        self.local = recorder is None and seed % 4 == 3
        self.token = '' if self.local else 'a token that is long enough'
        self.port = free_port()
        self.over = threading.Event()
        self.wrong, self.knocks = [], {}
        self.lock = threading.Lock()

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)

    # ---- the job ----

    def start(self, rank, port):
        env = dict(os.environ, TSR_RANK=str(rank), TSR_LOCAL_RANK=str(rank), TSR_SIZE=str(SIZE), TSR_PORT=str(port),
                   TSR_ADDR='127.0.0.1', TSR_TOKEN=self.token, OPENBLAS_NUM_THREADS='1')
        transport = 'tcp' if self.seed % 2 == 0 else 'auto'
        out = open(os.path.join(self.folder, 'out.%d' % rank), 'wb')
        return subprocess.Popen(
            [self.arguments.tessera, 'run', os.path.join(self.arguments.folder, 'job.yaml'), '--on', 'host',
             '--strategy', 'fsdp', '--ranks', str(SIZE), '--transport', transport, '--timeout', '60',
             '--set', 'checkpoints.every=0', '--out', os.path.join(self.folder, 'run')],
            env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def run(self, strangers):
        self.folder = os.path.join(self.arguments.folder, 'round')
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        self.ranks, self.peak = [], 0
        threads = [threading.Thread(target=self.knock_until_over, daemon=True) for _ in range(strangers)]
        for rank in range(SIZE):
            port = self.recorder.port if self.recorder and rank == 1 else self.port
            if self.recorder and rank == 1:
                self.recorder.start(self.port)
            self.ranks.append(self.start(rank, port))
            if rank == 0:
                for t in threads:
                    t.start()
            time.sleep(self.random.random() * 0.3 if strangers else 0)
        while any(r.poll() is None for r in self.ranks):
            self.look()
            time.sleep(0.02)
        self.over.set()
        for t in threads:
            t.join(30)
        for rank, r in enumerate(self.ranks):
            if r.returncode != 0:
                with open(os.path.join(self.folder, 'out.%d' % rank), errors='replace') as f:
                    self.complain('rank %d ends with status %d: %s' % (rank, r.returncode, f.read()[-300:].strip()))
        return self.losses()

    def losses(self):
        try:
            with open(os.path.join(self.folder, 'run', 'metrics.jsonl')) as f:
                return re.findall(r'"loss": ([^,]+), "grad_norm": ([^,]+)', f.read())
        except OSError:
            return []

    # What each rank listens at, and how much memory rank 0 ever had.
    def look(self):
        try:
            with open('/proc/%d/status' % self.ranks[0].pid) as f:
                self.peak = max([self.peak] + [int(x) for x in re.findall(r'VmHWM:\s+(\d+) kB', f.read())])
        except OSError:
            pass
        for addr, port in self.listeners():
            if addr != '0100007F':
                self.complain('a rank listens at %s:%d' % (addr, port))

    def listeners(self):
        inodes, found = set(), []
        for r in self.ranks:
            folder = '/proc/%d/fd' % r.pid
            try:
                names = [os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)]
            except OSError:
                continue
            inodes.update(n[8:-1] for n in names if n.startswith('socket:['))
        for table in '/proc/net/tcp', '/proc/net/tcp6':
            try:
                with open(table) as f:
                    rows = [line.split() for line in f.readlines()[1:]]
            except OSError:
                continue
            found += [(r[1].split(':')[0], int(r[1].split(':')[1], 16)) for r in rows if r[3] == '0A' and r[9] in inodes]
        return found

    # ---- strangers ----

    def connect(self):
        if self.local:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.settimeout(3)
            s.connect('\0tessera/%d/%d' % (os.getuid(), self.port))
            return s
        ports = [port for _, port in self.listeners()] or [self.port]
        return socket.create_connection(('127.0.0.1', self.random.choice(ports)), timeout=3)

    def hello(self, rank=2, size=SIZE, purpose=MEET, version=VERSION):
        return HELLO.pack(MAGIC, version, purpose, rank, size, 0, self.random.randbytes(32))

    # A handshake; what the verdict says, or None when there is none.
    def shake(self, s, token, hello):
        s.sendall(hello)
        challenge = receive(s, CHALLENGE.size)
        if len(challenge) < CHALLENGE.size:
            return None
        s.sendall(proof(token, hello, challenge))
        verdict = receive(s, VERDICT.size)
        return VERDICT.unpack(verdict) if len(verdict) == VERDICT.size else None

    def expect_refused(self, verdict, who):
        if verdict is not None and verdict[1] == 0:
            self.complain('%s was let in' % who)
        if verdict is not None and verdict[2] != bytes(32):
            self.complain('%s got a proof of the other side' % who)

    def noise(self, s):
        s.sendall(self.random.randbytes(self.random.randrange(1, 4000)))

    def half(self, s):
        s.sendall(self.hello()[:self.random.randrange(1, HELLO.size)])
        self.over.wait(self.random.random())

    def silence(self, s):
        crowd = []
        for _ in range(50):
            crowd.append(self.connect())
        self.over.wait(self.random.random() * 3)
        for c in crowd:
            c.close()

    def flood(self, s):
        if self.random.random() < 0.5:
            s.sendall(self.hello())
        block = bytes(1 << 16)
        for _ in range(1024):
            s.sendall(block)
        self.complain('a flood of 64 MB was taken')

    def drip(self, s):
        for byte in self.hello():
            s.sendall(bytes([byte]))
            if self.over.wait(0.05):
                break

    def wrong_token(self, s):
        token = self.random.choice(['another token, long enough', 'tessera', '7'] + ([] if self.local else ['']))
        self.expect_refused(self.shake(s, token, self.hello(purpose=self.random.choice([MEET, MAIL]))), 'a wrong token')

    def wrong_rank(self, s):
        rank = self.random.choice([SIZE, 77, 2**31, 2**32 - 1])
        self.expect_refused(self.shake(s, self.token, self.hello(rank=rank)), 'rank %d' % rank)

    def wrong_version(self, s):
        self.expect_refused(self.shake(s, self.token, self.hello(version=1)), 'version 1')

    # What rank 1 said in another job with this token, bit for bit.
    def recording(self, s):
        if not self.replay:
            return
        s.sendall(self.replay[:HELLO.size])
        receive(s, CHALLENGE.size)
        s.sendall(self.replay[HELLO.size:])
        verdict = receive(s, VERDICT.size)
        if len(verdict) == VERDICT.size:
            self.expect_refused(VERDICT.unpack(verdict), 'a recording')

    def knock_until_over(self):
        ways = [self.noise, self.half, self.silence, self.flood, self.drip, self.wrong_token, self.wrong_rank,
                self.wrong_version, self.recording]
        while not self.over.is_set():
            way = self.random.choice(ways)
            try:
                with self.connect() as s:
                    with self.lock:
                        self.knocks[way.__name__] = self.knocks.get(way.__name__, 0) + 1
                    way(s)
            except OSError: # hung up on, or nobody there: all right
                self.over.wait(0.005)


class Recorder:
    """Stands between rank 1 and rank 0, and notes what rank 1 says."""

    def __init__(self):
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.port, self.heard = self.listener.getsockname()[1], b''

    def start(self, to):
        threading.Thread(target=self.serve, args=(to,), daemon=True).start()

    def serve(self, to):
        here, _ = self.listener.accept()
        while True:
            try:
                there = socket.create_connection(('127.0.0.1', to))
                break
            except OSError:
                time.sleep(0.02)
        threading.Thread(target=self.pass_on, args=(there, here, False), daemon=True).start()
        self.pass_on(here, there, True)

    def pass_on(self, a, b, note):
        while True:
            try:
                data = a.recv(65536)
                b.sendall(data)
            except OSError:
                data = b''
            if not data:
                break
            if note:
                self.heard += data
        for s in a, b:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as s:
        return s.getsockname()[1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument('tessera')
    p.add_argument('folder')
    p.add_argument('--seconds', type=float, default=10)
    p.add_argument('--seed', type=int, default=1)
    arguments = p.parse_args()

    recorder = Recorder()
    first = Round(arguments, 0, b'', recorder)
    want, peak = first.run(0), first.peak
    if first.wrong or len(want) < 5 or len(recorder.heard) < HELLO.size + 32:
        print('\n'.join(first.wrong) or 'the job without strangers fails')
        return 1
    deadline, rounds, knocks = time.time() + arguments.seconds, 0, {}
    while time.time() < deadline or rounds < 2:
        r = Round(arguments, arguments.seed + rounds, recorder.heard)
        got = r.run(6)
        if got != want:
            r.wrong.append('other losses than without strangers: %s' % got[:2])
        if r.peak > peak + 65536:
            r.wrong.append('rank 0 needed %d kB, without strangers %d kB' % (r.peak, peak))
        for way, n in r.knocks.items():
            knocks[way] = knocks.get(way, 0) + n
        if r.wrong:
            print('seed %d:' % r.seed)
            print('\n'.join(sorted(set(r.wrong))))
            return 1
        rounds += 1
    print('%d jobs, %d strangers (%s): well' % (rounds, sum(knocks.values()), ', '.join(
        '%s %d' % item for item in sorted(knocks.items()))))
    return 0


sys.exit(main())
