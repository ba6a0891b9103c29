"""Replays what every rank holds on its host, from the instructions that `tessera program` prints, sums it by node, and
compares with the rows of `tessera compare`. Arguments: tessera, the study, a folder with rows-WORLD.json."""
import concurrent.futures
import json
import re
import subprocess
import sys

TESSERA, STUDY, FOLDER = sys.argv[1:]
GPUS = 4  # of a node


def program(strategy, world, rank, iteration):
    command = [TESSERA, 'program', STUDY, '--strategy', strategy, '--set', f'world={world}', '--rank', str(rank), '--iteration', str(iteration)]
    done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    return [line for line in done.stdout.splitlines() if re.match(r'\d+ (host_alloc|host_free|pin) ', line)]


def peaks(strategy, world, rank, iterations):
    """Most bytes of the process in each program: pageable buffers that live, and all that was page-locked."""
    pageable, locked, out = 0, 0, []
    for iteration in iterations:
        most = pageable + locked
        for line in program(strategy, world, rank, iteration):
            kind, block = line.split()[1], int(re.search(r' block=(\d+)', line).group(1))
            if kind == 'pin':
                locked += block
            elif ' host "' in line: # blocks of pinned buffers are in what was locked
                pageable += block if kind == 'host_alloc' else -block
            most = max(most, pageable + locked)
        out.append(most)
    return out


def check(row, world):
    sections = row['peak_bytes_by_section']
    steps = list(range(row['iterations']))
    iterations = ['init'] + ['load'] * ('load' in sections) + steps + [s for s in ('eval', 'save') if s in sections]
    ranks = [peaks(row['strategy'], world, r, iterations) for r in range(world)]
    nodes = [[sum(rank[i] for rank in ranks[first:first + GPUS]) for i in range(len(iterations))] for first in range(0, world, GPUS)]
    required = max(max(node) for node in nodes)
    where = f'{row["strategy"]}, {world} ranks'
    assert row['host_required_bytes_per_node'] == required, (where, row['host_required_bytes_per_node'], required)
    steady = iterations.index(steps[-1])
    assert row['host_steady_bytes_per_node'] == max(node[steady] for node in nodes), where
    for name, section in sections.items():
        i = iterations.index({'step1': 0, 'step2': 1}.get(name, name))
        assert section['host_bytes_per_node'] == max(node[i] for node in nodes), (where, name)
    assert nodes[row['host_peak_node']][iterations.index({'step1': 0, 'step2': 1}.get(row['host_peak_phase'], row['host_peak_phase']))] == required, where
    assert row['host_verdict'] == 'unknown' and row['host_memory_bytes_per_node'] is None and row['fits'] is True, where
    # One rank is less than the node, where that has several and they hold something.
    assert world == 1 or required > row['host_bytes'] or not required, where


# One rank; a node of four and one of one, uneven shards and a rank 0 that differs; nothing but inputs and norms.
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for one in [pool.submit(check, json.load(open(f'{FOLDER}/rows-{world}.json'))['rows'][0], world) for world in (1, 5, 7)]:
        one.result()
