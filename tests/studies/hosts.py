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


def levels(strategy, world, rank, iterations):
    """Bytes of the process in each program, by what happens: pageable buffers that live, and all that was page-locked."""
    pageable, locked, out = 0, 0, []
    for iteration in iterations:
        kinds, curve = [], [pageable + locked]
        for line in program(strategy, world, rank, iteration):
            kind, block = line.split()[1], int(re.search(r' block=(\d+)', line).group(1))
            if kind == 'pin':
                locked += block
            elif ' host "' in line:  # blocks of pinned buffers are in what was locked
                pageable += block if kind == 'host_alloc' else -block
            kinds.append(kind)
            curve.append(pageable + locked)
        out.append((kinds, curve))
    return out


def bounds(ranks):
    """The least and the most that ranks hold together in a program: the same where they do the same."""
    if all(kinds == ranks[0][0] for kinds, _ in ranks):
        most = max(map(sum, zip(*(curve for _, curve in ranks))))
        return most, most
    fullest = max(range(len(ranks)), key=lambda r: max(ranks[r][1]))
    least = max(ranks[fullest][1]) + sum(min(curve) for r, (_, curve) in enumerate(ranks) if r != fullest)
    return max(least, sum(curve[-1] for _, curve in ranks)), sum(max(curve) for _, curve in ranks)


def check(row, world):
    sections = row['peak_bytes_by_section']
    steps = list(range(row['iterations']))
    names = ['init'] + ['load'] * ('load' in sections) + steps + [s for s in ('eval', 'save') if s in sections]
    index = {'step1': 1 + ('load' in sections), 'step2': 2 + ('load' in sections), **{n: i for i, n in enumerate(names)}}
    ranks = [levels(row['strategy'], world, r, names) for r in range(world)]
    nodes = [[bounds([rank[i] for rank in ranks[first:first + GPUS]]) for i in range(len(names))] for first in range(0, world, GPUS)]
    most = [[max(node[i][k] for node in nodes) for i in range(len(names))] for k in (0, 1)]
    where = f'{row["strategy"]}, {world} ranks'

    def expect(what, value, i):
        assert most[0][i] <= value <= most[1][i], (where, what, value, most[0][i], most[1][i])

    required = row['host_required_bytes_per_node']
    expect('required', required, index[row['host_peak_phase']])
    assert max(most[0]) <= required, (where, required, most[0])
    expect('steady', row['host_steady_bytes_per_node'], index[steps[-1]])
    for name, section in sections.items():
        expect(name, section['host_bytes_per_node'], index[name])
    assert row['host_verdict'] == 'unknown' and row['host_memory_bytes_per_node'] is None and row['fits'] is True, where
    # One rank is less than the node, where that has several.
    assert (required > row['host_bytes']) == (world > 1) or world == 1, where


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for one in [pool.submit(check, json.load(open(f'{FOLDER}/rows-{world}.json'))['rows'][0], world) for world in (1, 5, 7)]:
        one.result()
