#!/usr/bin/env python3
"""Seeds of the fuzz targets, from files of the tree and from a run of two steps: nothing is committed twice.

Usage: corpus.py OUT TESSERA    makes OUT/TARGET/* (OUT must not exist)
"""
import glob, gzip, json, os, pickle, random, struct, subprocess, sys, tempfile

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
LONGEST = 24576


def short(value, n=3):
    """The same with at most n items of each list: long tables teach a fuzzer nothing."""
    if isinstance(value, list):
        return [short(v, n) for v in value[:n]]
    if isinstance(value, dict):
        return {k: short(v, n) for k, v in value.items()}
    return value


class Seeds:
    def __init__(self, out):
        self.out = out
        self.n = 0

    def put(self, target, data):
        if isinstance(data, str):
            data = data.encode()
        folder = os.path.join(self.out, target)
        os.makedirs(folder, exist_ok=True)
        self.n += 1
        with open(os.path.join(folder, 'seed-%04d' % self.n), 'wb') as file:
            file.write(data)

    def files(self, target, *patterns, most=200):
        for pattern in patterns:
            for path in sorted(glob.glob(os.path.join(TOP, pattern), recursive=True))[:most]:
                if os.path.getsize(path) <= LONGEST:
                    with open(path, 'rb') as file:
                        self.put(target, file.read())

    def shortened(self, target, *patterns, pick=lambda document: document):
        for pattern in patterns:
            for path in sorted(glob.glob(os.path.join(TOP, pattern))):
                with open(path) as file:
                    self.put(target, json.dumps(short(pick(json.load(file))), indent=1))

    def heads(self, target, *patterns, lines=6):
        for pattern in patterns:
            for path in sorted(glob.glob(os.path.join(TOP, pattern))):
                with open(path, 'rb') as file:
                    self.put(target, b''.join(file.readlines()[:lines]))


def texts(s):
    experiments = ['experiments/*/*.yaml', 'tests/exec/*.yaml', 'tests/bench/*.yaml', 'tests/oracle/train/*.yaml']
    trees = ['experiments/own-model/tree.yaml', 'experiments/models/*.yaml']
    s.files('yaml', *experiments, *trees, 'experiments/models/gpt2.json')
    s.put('yaml', 'd: &d {x: 1, y: 2}\ne:\n  <<: *d\n  y: 5\nf: [*d, *d]\ng: |\n  t\n  u\nh: >-\n  v\n')
    for line in ('a.b=3', 'a.c.d=[1, {x: 2}]', 'e=null', 'n.e.w="x"', 'a={<<: {b: 1}}'):
        s.put('set', line)
    s.files('experiment', *experiments)
    s.files('stack', 'experiments/stacks/*.yaml')
    s.put('stack', 'title: a\nsource: b\nmodel: {name: x}\n')
    s.files('hf_config', 'experiments/models/*.json', 'experiments/h200/*.json', 'tests/exec/*.json')
    s.files('tree', *trees)
    s.files('trace', 'tests/golden/scenarios/*.json', most=60)
    s.files('rules', 'experiments/validation/conditions.yaml')
    s.put('rules', 'llm_foundry:\n- when: {gpu: "a100*"}\n  set: {cluster: dgx-a100-16, batch: $microbatch_size}\n'
          '  model: {model_type: mpt, d_model: $d_model}\n  source: x\n- when: {pp: "[2-9]*"}\n  refuse: no\n')
    row = ('{"strategy":"a","failure":"no \u00ff","fits":-1,"trains":1,"mfu":"-0x1p+0","program_hash":-1,'
           '"steady":[{"step_s":"0x1.8p-3"}],"peak_by_category":[' + ','.join(['{"bytes":1}'] * 19) + '],'
           '"sections":[' + ','.join(['{"there":1,"module":"m"}'] * 6) + ']}')
    for whole in b'\0', b'\1':  # lines behind a first one that is right; files
        s.put('row_file', whole + row.encode())
        s.put('row_file', whole + b'{"strategy":"' + b'x' * 200 + b'"}\n')
        s.put('row_file', whole + b'{"format": "tessera.row.2", "digest": "0000000000000000", "check": "0"}\n{}\n')
        s.put('plan_resume', whole)
        s.put('plan_resume', whole + f'{{"index":1,"simulated":1,"m.key":5,"m.row":[{row}]}}\n{{"index":7}}\n'.encode())
        s.put('plan_resume', whole + b'{"format": "tessera.plan.2", "question": "0", "records": 1, "check": "0"}\n{}\n')
    for i, line in enumerate(('a.yaml --strategy fsdp --set batch=2', '--out x --jobs 3 y', '--help', '-o x -f md a b')):
        s.put('arguments', bytes([i]) + '\n'.join(line.split()).encode())


def hardware(s):
    clusters = 'experiments/clusters/'
    s.files('cluster', clusters + 'cluster-*.json', clusters + 'node-*.json')
    s.files('device', clusters + 'gpu-*.json')
    s.shortened('kernels', clusters + 'kernels-*.json')
    for target in ('xml', 'nccl_topology'):
        s.files(target, clusters + 'nccl-*.xml')
    for target in ('xml', 'platform'):
        s.files(target, clusters + 'platform-*.xml')


def recordings(s):
    s.shortened('memory', 'tests/golden-memory/tiny-*.json', 'tests/golden-memory/*8ranks*.json',
                pick=lambda d: {'name': d['name'], 'scenario': d['scenario']} if 'scenario' in d else d)
    for path in sorted(glob.glob(os.path.join(TOP, 'tests/golden-bridge/*-tiny-*.trace'))):
        with open(path, 'rb') as file:
            packed = file.read()
        s.put('traced', packed)
        s.put('traced', gzip.decompress(packed)[:LONGEST])
    # TRACE, STRATEGY, then of each edit: place and other place in three bytes each, kind, value (traced.c)
    numbers = random.Random(7)
    for kind in range(24):
        edit = [bytes((numbers.randrange(1 << 8) for _ in range(6))) + bytes((kind % 8, kind)) for _ in range(kind // 8)]
        s.put('traced_edits', bytes((kind, kind)) + b''.join(edit))
    for path in sorted(glob.glob(os.path.join(TOP, 'tests/golden-memory/tiny-*.timeline.json.gz')))[:8]:
        with gzip.open(path) as file:
            line = json.load(file)
        line['events'] = line['events'][:40]
        text = json.dumps(line).encode()
        s.put('recording', text)
        s.put('recording', gzip.compress(text, mtime=0))


def snapshots(s):
    with gzip.open(os.path.join(TOP, 'tests/golden-real/snapshot-late.pickle.gz')) as file:
        whole = pickle.load(file)
    for first, n in ((0, 12), (300, 30)):
        part = dict(whole, segments=whole['segments'][:2], device_traces=[whole['device_traces'][0][first:first + n]],
                    external_annotations=whole['external_annotations'][:6])
        for protocol in (2, 4, 5):
            s.put('snapshot', pickle.dumps(part, protocol))
    s.put('snapshot', pickle.dumps(os.getcwd))
    s.put('snapshot', pickle.dumps([(), (1,), (1, 2), {'a': [None, True, False, -1, 1 << 40, 0.5]}], 3))


def traces(s):
    with open(os.path.join(TOP, 'tests/golden-real/kineto-gpu.json')) as file:
        whole = json.load(file)
    for first in (0, 6, 14):
        part = json.dumps(dict(whole, traceEvents=whole['traceEvents'][first:first + 9])).encode()
        s.put('kineto', part)
        s.put('kineto', gzip.compress(part, mtime=0))


def tables(s):
    validation = 'experiments/validation/'
    s.heads('published', validation + '*.csv', 'experiments/published-peaks/*.csv')
    s.heads('csv', validation + '*.csv')
    s.put('csv', '\ufeffa,b\r\n# no\r\n"x, ""y""","2\n3"\r\n')
    s.heads('kernels_csv', validation + 'kernels/*.csv')
    ranks = ''.join('#  Rank  %d Group  0 Pid  %d on      node1 device  %d [0x0%d] NVIDIA H100 80GB HBM3\n'
                    % (i, 100 + i, i, i) for i in range(4))
    s.put('nccl_log', '# nThread 1\n' + ranks + '#       size         count\n'
          '     1048576        262144     float     sum      -1    52.05   20.15   37.78      0    51.66   20.30   38.06      0\n'
          '# Avg bus bandwidth    : 37.9\n')


def tokens(s):
    for magic, version, code in ((20240520, 1, 'H'), (20240801, 7, 'I')):
        s.put('tokens', struct.pack('<III', magic, version, 5).ljust(1024, b'\0') + struct.pack('<5' + code, 1, 2, 3, 4, 5))
    text = open(os.path.join(TOP, 'README.md')).read()[:3000]
    s.put('corpus', text)
    s.put('corpus', text + text)


def wire(s):
    hello = struct.pack('=6I', 0x56525354, 2, 2, 1, 2, 3) + b'n' * 32
    for who in (0, 3):
        speaks = bytes([14 << 4 | 1 << 2 | who]) + hello
        s.put('door', bytes([who]) + speaks + bytes([2 << 2 | who, 3 << 2 | who]))
        s.put('door', bytes([who]) + speaks + bytes([8 << 4 | 1 << 2 | who]) + b'p' * 32)
    challenge = struct.pack('=2I', 0x56525354, 2) + b'n' * 32
    for status in (0, 2):
        s.put('welcome', challenge + struct.pack('=2I', 0x56525354, status) + b'c' * 32 + b'another job'.ljust(216, b'\0'))
    def frame(op, key, value):
        return struct.pack('=IBBHIIq', 0x56525354, op, 0, len(key), len(value), 0, 7) + key + value
    s.put('rendezvous', b'\x07' + frame(1, b'tcp/0', b'x' * 68) + frame(2, b'tcp/0', b'') + frame(6, b'', b''))
    sig = struct.pack('=BBBBIIIQd', 1, 1, 0, 0, 2, 1, 0, 8, 1.0)
    s.put('mail', b'\x0b' + struct.pack('=IIIHHQQ', 0x4c4d5354, 1, 0, 0, 0, 1, 8).ljust(32, b'\0') + sig + b'y' * 8)


def a_run(s, tessera):
    """What a run of two steps on the host leaves, and what sim does."""
    recorded = os.path.join(TOP, 'tests/oracle/train/recorded')
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, 'e.yaml')
        with open(path, 'w') as file:
            file.write('model: {name: %s/llama/config.json}\ncluster: dgx-h100-1\nworld: 2\nbatch: 1\nseq: 64\noptimizer: {name: adamw}\n'
                       'data: {train: %s/train.bin, val: %s/val.bin}\ntrain: {steps: 2}\nstrategies: {fsdp: {}}\n' % ((recorded,) * 3))
        out = os.path.join(tmp, 'run')
        subprocess.run([tessera, 'run', path, '--strategy', 'fsdp', '--on', 'host', '--out', out, '--profile'],
                       check=True, stdout=subprocess.DEVNULL)
        def all_of(name):
            return sorted(glob.glob(os.path.join(out, '**', name), recursive=True))
        for target, name in (('metrics', 'metrics.jsonl'), ('run_json', 'run.json'), ('row', 'summary.json'), ('meta', 'meta.json')):
            for found in all_of(name):
                s.put(target, open(found).read())
        for found in all_of('COMMIT'):
            s.put('commit', ''.join(open(found).readlines()[:-1]))
        def head(name):
            return ''.join(open(all_of(name)[0]).readlines()[:12])
        for target in ('memory', 'streams', 'phases'):
            if all_of(target + '.csv'):
                s.put(target + '_csv', head(target + '.csv'))
        if all_of('overlap.csv'):
            s.put('overlap_csv', head('overlap-frame.csv') + head('overlap.csv'))


def weights(s):
    def safetensors(header, data):
        text = json.dumps(header).encode()
        text += b' ' * (-len(text) % 8)
        return struct.pack('<Q', len(text)) + text + data
    s.files('safetensors', 'tests/golden/tensors/*.safetensors', most=12)
    s.put('safetensors', safetensors({'__metadata__': {'a': 'b'}, 'x': {'dtype': 'BF16', 'shape': [2, 2], 'data_offsets': [0, 8]},
                                      'y': {'dtype': 'F32', 'shape': [], 'data_offsets': [8, 12]}}, bytes(12)))
    s.put('weights_index', json.dumps({'metadata': {'total_size': 24}, 'weight_map': {'a.weight': 'model-00001-of-00002.safetensors'}}))
    s.put('weights_index', json.dumps({'weight_map': {'a.weight': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'}}))


def main():
    out, tessera = sys.argv[1:3]
    os.makedirs(out)
    s = Seeds(out)
    for part in (texts, hardware, recordings, snapshots, traces, tables, tokens, wire, weights):
        part(s)
    a_run(s, tessera)


main()
