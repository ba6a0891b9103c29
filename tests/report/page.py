"""page.py: tests report.html (page.sh has more)."""
import csv
import json
import os
import re
import subprocess
import sys
import tempfile

import browser as chromium
import unpack

TESSERA = os.environ['TESSERA']
TABLES = 'experiments/validation'
HOSTILE = 'a </script><script>document.title="taken"</script><b>b</b> <!-- & "c"'
failures = []


def check(right, what):
    if not right:
        failures.append(what)
        print('FAILED:', what)


def tessera(*words):
    """Without a PATH it finds no gnuplot: the page has none of its pictures."""
    done = subprocess.run([TESSERA, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, 'PATH': ''})
    if done.returncode:
        sys.exit(f"tessera {' '.join(words)}: status {done.returncode}: {done.stderr}")


def table(path):
    with open(path, encoding='utf-8') as file:
        return list(csv.DictReader(line for line in file if not line.startswith('#')))


def near(a, b, within):
    return abs(a - b) <= within


# ---- figures ------------------------------------------------------------------------------------------------

def rows_agree(study, folder):
    """What the table shows is what summary.csv says."""
    rows = table(os.path.join(folder, 'summary.csv'))
    check(len(rows) == len(study['rows']), 'as many rows as in summary.csv')
    for row, line in zip(study['rows'], rows):
        for key in ('step_time_s', 'tokens_per_s_per_gpu', 'mfu', 'exposed_communication_s', 'compute_s'):
            check(near(row[key], float(line[key]), 1e-8 * abs(row[key])), f"{line['strategy']}: {key}")
        for key in ('peak_allocated_bytes', 'peak_reserved_bytes', 'needed_bytes'):
            check(row[key] == int(line[key]), f"{line['strategy']}: {key}")


def busy(view):
    """Seconds in which the compute stream runs kernels and copies."""
    spans, sum_, end = [], 0, -1 << 60
    for item in view.slices:
        if item['lane'] == view.data['compute']:
            spans.append((item['start'], item['end']))
    for start, stop in sorted(spans):
        sum_ += max(0, stop - max(start, end))
        end = max(end, stop)
    return sum_ * view.quantum


def view_agrees(view, line, folder, whole=True):
    """The packed step gives the figures of its row, and each change of memory.csv. whole: nothing was left out."""
    name, peak = line['strategy'], view.data['memory']['peak']
    check(peak['allocated_bytes'] == int(line['peak_allocated_bytes']), name + ': the peak of the view is that of the row')
    check(sum(view.levels[peak['events']]) == peak['allocated_bytes'], name + ': the events make the peak')
    check(max(map(sum, view.levels)) == peak['allocated_bytes'], name + ': nothing is above the peak')
    for category, bytes_ in zip(view.data['memory']['categories'], view.levels[peak['events']]):
        key = 'peak_' + re.sub(r'(?<=[a-z])(?=[A-Z])', '_', category).replace(' ', '_').replace('-', '_').lower() + '_bytes'
        check(bytes_ == int(line.get(key.replace('acc_grad', 'accumulated_grad'), -1)), f'{name}: {key}')
    check(near(sum(item[1] for item in view.data['exposed']) * 1e-9, float(line['exposed_communication_s']), 1e-6), name + ': exposed seconds')
    check(near(view.data['totals']['exposed_s'], float(line['exposed_communication_s']), 2e-9), name + ': exposed seconds in all')
    check(near(view.data['step_s'], float(line['step_time_s']), 1e-8), name + ': the step')
    check(whole is False or near(busy(view), float(line['compute_s']), 1e-5), f'{name}: compute runs {busy(view)} s of {line["compute_s"]}')
    memory = table(os.path.join(folder, 'memory.csv'))
    check(max(int(m['total_bytes']) for m in memory) == peak['allocated_bytes'], name + ': the peak of memory.csv')
    if not whole:
        return
    totals = [sum(level) for level in view.levels][-(len(memory) - 1):] # memory.csv ends with the last level again
    check(totals == [int(m['total_bytes']) for m in memory[:-1]], name + ': every change of memory.csv')
    check(all(near(t, float(m['time_s']), 1e-7) for t, m in zip(view.times[-(len(memory) - 2):], memory[1:-1])), name + ': its times')
    check(near(sum(one[3] for one in view.alive.values()), peak['allocated_bytes'], 0), name + ': what is alive at the peak')
    exposed = [float(r['exposed_s']) for r in table(os.path.join(folder, 'overlap.csv'))]
    check(all(near(a[1] * 1e-9, b, 1e-9) for a, b in zip(view.data['exposed'], exposed)) and len(exposed) == len(view.data['exposed']), name + ': collectives of overlap.csv')


def is_alone(path, most):
    """One file: nothing is loaded from elsewhere, no text of the study is markup, and it is small."""
    with open(path, encoding='utf-8') as file:
        text = file.read()
    check(len(text.encode()) <= most, f'{path}: {len(text)} bytes, more than {most}')
    check("default-src 'none'" in text, path + ': a policy that loads nothing')
    check(not re.search(r'(src|href)\s*=\s*["\']?(https?:)?//|@import|url\(', text), path + ': loads something')
    outside = re.sub(r'<script.*?</script>|<style>.*?</style>', '', text, flags=re.S)
    check('document.title' not in outside and '<b>' not in outside, path + ': a text has become markup')
    check(text.count('<script') == text.count('</script>') and text.rstrip().endswith('</html>'), path + ': is not whole')
    check('Permission is hereby granted' in text, path + ': no licence of the library')


def figures(tmp):
    with open(tmp + '/study.yaml', 'w', encoding='utf-8') as out:
        out.write(f"title: '{HOSTILE}'\nmodel: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 1024\nstrategies:\n  fsdp: {{}}\n"
                  "  whole: {wrap: root}\n  ddp: {api: ddp}\n  too-large: {batch: 256}\n  accumulates: {accumulation: {steps: 12}}\n")
    tessera('compare', tmp + '/study.yaml', '--jobs', '2', '--out', tmp + '/study', '--traces', '--pictures', 'none')
    path = tmp + '/study/report.html'
    is_alone(path, 1_200_000)
    study, views = unpack.page(path)
    check(study['title'] == HOSTILE, 'the title arrives whole')
    check('configuration_yaml' in study and study['command'].startswith('tessera compare '), 'command and file')
    rows_agree(study, tmp + '/study')
    lines = table(tmp + '/study/summary.csv')
    check(sorted(views) == [i for i, line in enumerate(lines) if not line['failure']], 'a view for each strategy that was simulated')
    for number, view in views.items():
        line = lines[number]
        view_agrees(view, line, f"{tmp}/study/{line['strategy']}", whole=line['strategy'] != 'accumulates')
    long = next(v for v in views.values() if v.data['strategy'] == 'accumulates')
    check(long.data['slices']['n'] <= 6000 and any(s['count'] > 1 for s in long.slices), 'a long program is joined')
    check(sum(s['count'] for s in long.slices) > 9000, 'joined slices say how many they are')
    check(long.data['memory']['n_events'] <= 10000 + long.data['memory']['n_alive'] and long.data['memory']['left_out_below_bytes'] > 0, 'small buffers are left out')
    return path


# Names of modules, which may hold anything, that share their beginnings in every way.
MODULES = ['</script><b>x</b>', '</script><img src=x>', '<!--', '漢é', '漢é2', 'a\u2028"\\\\', '<b>']


def hostile(tmp):
    with open(tmp + '/tree.yaml', 'w', encoding='utf-8') as out:
        out.write('tokens: 256\nloss: ce\nmodules:\n  - {name: embed, type: embedding, num: 256, dim: 64}\n')
        out.write('  - name: layers\n    type: list\n    children:\n')
        for i, name in enumerate(MODULES):
            out.write(f'      - {{name: "{i}", type: seq, children: [{{name: {json.dumps(name)}, type: linear, in: 64, out: 64}}]}}\n')
        out.write('  - {name: head, type: linear, in: 64, out: 256}\n')
    with open(tmp + '/hostile.yaml', 'w', encoding='utf-8') as out:
        out.write('model: {tree: tree.yaml}\ncluster: dgx-h100-1\nworld: 4\nbatch: 1\nseq: 64\nstrategies:\n  a: {}\n')
    tessera('compare', tmp + '/hostile.yaml', '--out', tmp + '/hostile', '--pictures', 'none')
    is_alone(tmp + '/hostile/report.html', 400_000)
    _, views = unpack.page(tmp + '/hostile/report.html')
    check({f'layers.{i}.{name}' for i, name in enumerate(MODULES)} <= set(views[0].modules), f'modules arrive whole: {views[0].modules}')


def others(tmp):
    small = ['--set', 'model.layers=2', '--set', 'seq=256']
    path = tmp + '/study.yaml'
    tessera('run', path, '--strategy', 'fsdp', *small, '--on', 'sim', '--out', tmp + '/run')
    tessera('overlap', path, '--strategy', 'fsdp', *small, '--out', tmp + '/overlap')
    tessera('overlap', tmp + '/study', '--strategy', 'ddp', '--out', tmp + '/overlap-run')
    tessera('plan', path, '--strategy', 'fsdp', *small, '--set', 'plan.space={batch: [1, 2], checkpoint: [none, full]}', '--out', tmp + '/plan')
    tessera('plan', path, '--strategy', 'fsdp', *small, '--max', 'batch', '--out', tmp + '/max')
    tessera('goodput', path, '--strategy', 'fsdp', *small, '--out', tmp + '/goodput')
    published = os.path.join(os.environ['TSR_SOURCE_DIR'], TABLES, 'llm_foundry.csv')
    with open(published, encoding='utf-8') as given, open(tmp + '/table.csv', 'w', encoding='utf-8') as out:
        lines = given.readlines()
        out.writelines(lines[:1] + [line for line in lines if re.match('lf(214|378)', line)])
    tessera('validate', tmp + '/table.csv', '--out', tmp + '/validate')
    said = {'run': 'it fits', 'overlap': 'exposed', 'overlap-run': 'exposed', 'plan': 'Fastest that fits', 'max': 'Largest batch', 'goodput': 'Best', 'validate': 'median error'}
    for name in said:
        is_alone(f'{tmp}/{name}/report.html', 600_000)
    plan, _ = unpack.page(tmp + '/plan/report.html')
    front = [row['time_per_token_s'] for row in table(tmp + '/plan/plan-front.csv')]
    check(sorted(p[1] for p in plan['plots'][0]['points'] if p[4]) == sorted(map(float, front)) or all(
        near(a, b, 1e-8 * b) for a, b in zip(sorted(p[1] for p in plan['plots'][0]['points'] if p[4]), sorted(map(float, front)))), 'plan: the front of plan-front.csv')
    column = [c['key'] for c in plan['tables'][0]['columns']].index('command')
    check([row[column] for row in plan['tables'][0]['rows']] == plan['commands'], 'plan: each row has its command')
    check(len(plan['commands']) == len(plan['tables'][0]['rows']) and 'tessera sim' in plan['commands'][0], 'plan: a command each')
    _, views = unpack.page(tmp + '/overlap/report.html')
    check(len(views) == 1, 'overlap shows its step')
    _, views = unpack.page(tmp + '/overlap-run/report.html')
    check(len(views) == 1 and views[0].data['strategy'] == 'ddp', 'overlap of a run shows its step')
    return said


# ---- in a browser --------------------------------------------------------------------------------------------

# How many colours the canvases of an element have, and whether one of them is nearly the given one.
COLOURS = """(selector, wanted) => {
    const seen = new Map();
    for (const canvas of document.querySelectorAll(selector + ' canvas')) {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) {
            const key = (data[i] << 16) + (data[i + 1] << 8) + data[i + 2];
            seen.set(key, (seen.get(key) || 0) + 1);
        }
    }
    return [seen.size, seen.get(parseInt(wanted.slice(1), 16)) || 0];
}"""


def middle(page, element):
    return page.value(f'(() => {{ const r = {element}.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2, r.left, r.top, r.width, r.height]; }})()')


def text(page, selector='main'):
    return page.value(f"document.querySelector('{selector}').innerText")


def first_tab(page, row):
    check(page.value('document.title').startswith(HOSTILE), f"the title is text: {page.value('document.title')}")
    check(page.value("document.querySelectorAll('h1 b').length") == 0, 'no markup in the title')
    check('Fastest that fits' in text(page), 'the verdict is there')
    n, blue = page.value(f"({COLOURS})('main .plot', '#0072B2')")
    check(n > 10 and blue > 40, f'the scatter is drawn ({n} colours, {blue} pixels of points)')
    page.value("(() => { const i = document.querySelector('input[type=search]'); i.value = 'fits:no'; i.dispatchEvent(new Event('input')); })()")
    check(page.value("[...document.querySelectorAll('tbody tr td.name')].every((td) => td.innerText.startsWith('too-large'))"), 'the filter keeps what does not fit')
    page.value("(() => { const i = document.querySelector('input[type=search]'); i.value = ''; i.dispatchEvent(new Event('input')); })()")
    page.value("[...document.querySelectorAll('th button')].find((b) => b.textContent.startsWith('peak')).click()")
    order = page.value("[...document.querySelectorAll('tbody tr')].map((tr) => tr.row.peak_allocated_bytes)")
    check(order == sorted(order, key=lambda b: (b is None, b)), f'the table is sorted by its peak: {order}')
    del row


def second_tab(page, row):
    peak = f"{int(row['peak_allocated_bytes']) / 2 ** 30:.2f} GiB"
    page.key('2')
    page.frames()
    page.value("T.pages[1].page.choose(0)")
    page.frames()
    check(peak in text(page), f'the peak is written ({peak})')
    check(peak in text(page, 'aside') and ': the peak' in text(page, 'aside'), 'the cursor begins at the peak')
    n, green = page.value(f"({COLOURS})('.memory', '#009E73')")
    check(n > 30 and green > 2000, f'memory is drawn ({n} colours, {green} pixels of activations)')
    n, blue = page.value(f"({COLOURS})('.streams', '#2f6db5')")
    check(n > 30 and blue > 500, f'streams are drawn ({n} colours, {blue} pixels of matrix products)')
    n, red = page.value(f"({COLOURS})('.streams', '#D55E00')")
    check(red > 100, f'exposed communication has the colour of bandwidth ({red} pixels)')
    check(len(page.value("T.pages[1].page.panel.querySelectorAll('table')[1].querySelectorAll('tbody tr')[0].innerText")) > 5 and
          page.value("T.pages[1].page.panel.querySelectorAll('table')[1].querySelectorAll('tbody tr').length") == 20, 'the 20 largest are listed')
    # the pointer
    x, y, left, top, width, _ = middle(page, 'T.pages[1].page.streams.canvas')
    compute = page.value("(() => { const p = T.pages[1].page, s = p.view.lanes[0].items.filter((i) => i.end < 0.2 * p.view.step).reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a)); return [p.streams.toX((s.start + s.end) / 2), p.streams.laneTop(0) + 10, p.streams.name(s)]; })()")
    page.mouse('mouseMoved', left + compute[0], top + compute[1])
    page.frames()
    tip = page.value("document.querySelector('.tip') && !document.querySelector('.tip').hidden ? document.querySelector('.tip').innerText : ''")
    check(compute[2] in tip and 'launched' in tip, f'hovering tells the kernel: {tip!r}')
    check(': the peak' not in text(page, 'aside'), 'the panel follows the pointer')
    before = page.value('[T.pages[1].page.axis.from, T.pages[1].page.axis.to]')
    for _ in range(30):
        page.mouse('mouseWheel', left + compute[0], top + compute[1], deltaX=0, deltaY=-120, modifiers=2)
        page.frames(1)
    after = page.value('[T.pages[1].page.axis.from, T.pages[1].page.axis.to]')
    check(after[1] - after[0] < (before[1] - before[0]) / 100, f'ctrl and wheel zoom: {before} to {after}')
    wide = page.value("(() => { const p = T.pages[1].page; return p.view.lanes[0].items.filter((s) => s.end > p.axis.from && s.start < p.axis.to).length; })()")
    check(1 <= wide <= 30, f'single kernels fill the window: {wide}')
    page.key('0')
    page.frames()
    check(page.value('T.pages[1].page.axis.to - T.pages[1].page.axis.from') == before[1] - before[0], 'key 0 shows all')
    # drag
    page.mouse('mouseMoved', left + width * 0.4, top + compute[1])
    page.mouse('mousePressed', left + width * 0.4, top + compute[1], button='left', clickCount=1)
    page.mouse('mouseMoved', left + width * 0.5, top + compute[1], button='left', buttons=1)
    page.mouse('mouseReleased', left + width * 0.5, top + compute[1], button='left', clickCount=1)
    page.frames()
    part = page.value('(T.pages[1].page.axis.to - T.pages[1].page.axis.from) / T.pages[1].page.axis.whole')
    check(0.05 < part < 0.2, f'dragging looks closer: {part}')
    page.key('p')
    page.frames()
    check(': the peak' in text(page, 'aside'), 'key p goes to the peak')
    page.key('n')
    page.frames()
    check(page.value('T.pages[1].page.lastExposed.exposed > 0'), 'key n goes to an exposed collective')


def third_tab(page):
    page.key('2')
    page.frames()
    page.key('j')
    page.frames()
    name = page.value('T.pages[1].page.view.strategy')
    check(name == 'whole' and page.value("location.hash") == '#step&s=1', f'key j shows the next strategy: {name}')
    page.size(700, 900)
    page.until("T.pages[1].width === 700")
    page.frames()
    check(page.value("document.documentElement.scrollWidth <= 700"), 'a narrow window needs no scrolling to the side')
    page.size(1280, 900)
    page.until("T.pages[1].width === 1280")
    page.key('3')
    page.frames()
    n, blue = page.value(f"({COLOURS})('main .plot', '#0072B2')")
    check(n > 10 and blue > 100, f'both curves are drawn ({n} colours, {blue} pixels of A)')
    page.value('T.pages[2].page.choose(0, 2)')
    page.frames()
    rows = page.value("[0, 1].map((w) => T.pages[2].page.pairs.reduce((s, p) => s + ((w ? p.b : p.a) || { time: 0 }).time, 0))")
    steps = page.value('T.pages[2].page.views.map((v) => v.step)')
    check(all(near(a, b, 1e-6) for a, b in zip(rows, steps)), f'the aligned parts are the whole steps: {rows}, {steps}')
    check(page.value('T.pages[2].page.pairs.filter((p) => p.a && p.b && p.one.block === "model.layers.3").length') >= 2, 'blocks of both are aligned')
    exposed = page.value('[0, 1].map((w) => T.pages[2].page.pairs.reduce((s, p) => s + ((w ? p.b : p.a) || { exposed: 0 }).exposed, 0))')
    totals = page.value('T.pages[2].page.views.map((v) => v.totals.exposed_s)')
    check(all(near(a, b, 2e-5) for a, b in zip(exposed, totals)), f'exposed seconds of the parts are those of the step: {exposed}, {totals}')
    page.key('w')
    page.frames()
    check(page.value('T.pages[2].page.axis.to < T.pages[2].page.axis.whole'), 'key w zooms')


def widths(page, path):
    """The page at three widths, opened so and made so: figures are in sight, the streams fill the page, the cursor is at the peak."""
    for width in (420, 900, 1440):
        page.open('file://' + path, width, 900)
        page.frames()
        check(page.value('document.documentElement.scrollWidth') <= width, f'{width} px: no scrolling to the side')
        right = page.value("document.querySelector('tbody tr').cells[1].getBoundingClientRect().right")
        check(right <= width, f'{width} px: the step of a row is in sight, it ends at {right}')
    for before, after in ((1440, 420), (420, 1440), (1440, 900)):
        page.open('file://' + path, before, 900)
        page.frames()
        page.key('2')
        page.frames()
        page.size(after, 900)
        page.until("(() => { const s = T.pages[1].page.streams; return s.canvas.clientWidth === s.node.clientWidth && s.node.clientWidth <= innerWidth; })()")
        page.frames()
        off = page.value("(() => { const p = T.pages[1].page; return Math.abs(parseFloat(p.memory.line.style.left) - p.memory.graph.toDomXCoord(p.view.memory.peak.time_s)) + Math.abs(parseFloat(p.streams.line.style.left) - p.streams.toX(p.view.memory.peak.time_s)); })()")
        check(off < 1, f'{before} to {after} px: the cursor is {off} px from the peak')
        check(page.value('document.documentElement.scrollWidth') <= after, f'{before} to {after} px: no scrolling to the side')
    check(page.value("T.pages[1].page.view.memory.categories.every((name) => name in T.categoryColours)"), 'every category has a colour of the palette')


# Points that coincide share a label; one that changes numbers is a ring.
def labels(page, path):
    page.open('file://' + path, 1280, 900)
    page.frames()
    page.value("(() => { const s = T.pages[0].page.scatter, p = s.spec.points; p[1] = { ...p[0], name: 'twin', best: false }; p[2].style = 'changed'; s.draw(); })()")
    page.frames()
    names = page.value('T.pages[0].page.scatter.labelled')
    first = page.value('T.pages[0].page.scatter.spec.points[0].name')
    check(f'{first} / twin' in names and 'twin' not in names, f'points that coincide share a label: {names}')
    check('~ ^' in text(page, '.legend'), 'the legend has what changes numbers or hardware')


def rest(page):
    page.key('4')
    page.frames()
    check('tessera compare' in text(page) and 'llama-3.2-1b' in text(page), 'command and file are shown')
    page.key('t')
    check(page.value('document.documentElement.dataset.theme') == 'dark', 'key t makes it dark')
    page.key('2')
    page.key('0')
    page.frames()
    check(page.value(f"({COLOURS})('main .plot', '#009E73')")[1] > 500, 'memory is drawn in the dark')
    page.key('?')
    check(page.value("document.querySelector('dialog').open"), 'key ? shows the keys')
    page.value("document.querySelector('dialog').close()")
    page.media(media='print')
    check(page.value("getComputedStyle(document.querySelector('nav')).display") == 'none', 'the tabs are not printed')
    page.media()


# A page as a sweep of many strategies makes it: the rows and views of a small one, again and again.
def multiply(path, out, n):
    study, _ = unpack.page(path)
    with open(path, encoding='utf-8') as file:
        whole = file.read()
    views = re.findall(r'(<script type="application/json" class="view" data-view=")(\d+)(">.*?</script>\n)', whole, re.S)
    begin, end = whole.index('<script type="application/json" id="study">'), whole.index('<script type="text/plain" id="licence">')
    rows = []
    for i in range(n):
        row = dict(study['rows'][int(views[i % len(views)][1])])
        row.update(strategy=f'{i}-' + 'a-name-of-a-sweep-' * 5, step_time_s=row['step_time_s'] * (1 + i / n), tokens_per_s_per_gpu=row['tokens_per_s_per_gpu'] / (1 + i / n), is_best=i == 0)
        rows.append(row)
    study['rows'] = rows
    with open(out, 'w', encoding='utf-8') as file:
        file.write(whole[:begin] + '<script type="application/json" id="study">' + json.dumps(study).replace('<', '\\u003c') + '</script>\n')
        for i in range(n):
            head, _, tail = views[i % len(views)]
            file.write(f'{head}{i}{tail}')
        file.write('\n' + whole[end:])


def fluent(page, path):
    """128 strategies: milliseconds of the processor that a frame takes, so that a busy machine changes nothing."""
    page.open('file://' + path, 1280, 900)
    page.call('Performance.enable', timeDomain='threadTicks')

    def spent():
        return next(m['value'] for m in page.call('Performance.getMetrics')['metrics'] if m['name'] == 'TaskDuration')

    def frames(name, n, act):
        begin = spent()
        for i in range(n):
            act(i)
            page.frames(1)
        each = (spent() - begin) / n * 1e3
        check(each < 50, f'128 strategies, {name}: {each:.1f} ms a frame')
        return f'{name} {each:.1f} ms'

    page.frames()
    said = [frames('hovering the scatter', 20, lambda i: page.mouse('mouseMoved', 200 + 20 * i, 300))]
    page.key('2')
    page.frames()
    page.value('T.pages[1].page.choose(4)')  # the one with most slices and buffers
    page.frames()
    _, _, left, top, width, _ = middle(page, 'T.pages[1].page.streams.canvas')
    said.append(frames('zooming', 30, lambda i: page.mouse('mouseWheel', left + width / 2, top + 40, deltaX=0, deltaY=-100 if i < 15 else 100, modifiers=2)))
    said.append(frames('moving', 20, lambda i: page.mouse('mouseWheel', left + width / 2, top + 40, deltaX=80 if i < 10 else -80, deltaY=0)))
    said.append(frames('pointing', 20, lambda i: page.mouse('mouseMoved', left + 150 + 20 * i, top + 40)))
    print('128 strategies:', ', '.join(said))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path = figures(tmp)
        hostile(tmp)
        said = others(tmp)
        if not chromium.find():
            if failures:
                return 1
            print('skipped: no browser (package chromium); the rest is right')
            return 77
        row = table(tmp + '/study/summary.csv')[0]
        with chromium.Browser() as page:
            page.open('file://' + path)
            page.frames()
            first_tab(page, row)
            second_tab(page, row)
            third_tab(page)
            rest(page)
            widths(page, path)
            labels(page, path)
            for name, word in said.items():
                page.open(f'file://{tmp}/{name}/report.html', 900, 700)
                page.frames()
                check(word in text(page), f'{name}: says {word!r}: {text(page)[:200]!r}')
                check(name in ('run', 'max', 'overlap', 'overlap-run') or page.value(f"({COLOURS})('main .plot', '#0072B2')")[0] > 5, name + ': has a picture')
            page.open('file://' + tmp + '/hostile/report.html#step')
            page.frames()
            check(page.value('T.View && T.view(0).modules.length') > 5 and all(page.value(f'T.view(0).modules.includes({json.dumps(f"layers.{i}.{name}")})') for i, name in enumerate(MODULES)), 'the page has the modules as they are')
            check('<b>x</b>' in text(page, 'aside') and not page.value("document.querySelector('aside b, aside img')"), 'names of modules are text')
            multiply(path, tmp + '/many.html', 128)
            fluent(page, tmp + '/many.html')
            errors = [e for e in page.errors if not e.startswith('Canvas2D: Multiple readback')] # this test reads
            check(not errors, f'errors of the page: {errors[:3]}')
            loaded = [r for r in page.requests if not r.startswith(('file://' + tmp, 'about:'))]
            check(not loaded, f'the page loads {loaded[:3]}')
    return 1 if failures else 0


sys.exit(main())
