/* main.js: the page: its tabs, the table of a comparison, tables and pictures of other studies, keys, the theme. */

/* Columns of a comparison: what is shown at once, and all others when asked for. */
T.compareColumns = [
  { key: 'strategy', head: 'strategy', kind: 'text', name: true },
  { key: 'step_time_s', head: 'step', kind: 's' },
  { key: 'time_per_token_s', head: 'per token', kind: 'token_s', title: 'step time over the tokens of one GPU: what ranks strategies' },
  { key: 'tokens_per_s_per_gpu', head: 'tokens/s/GPU', kind: '1/s', best: 'high' },
  { key: 'mfu', head: 'MFU', kind: 'share', best: 'high' },
  { key: 'peak_allocated_bytes', head: 'peak', kind: 'bytes' },
  { key: 'peak_reserved_bytes', head: 'reserved', kind: 'bytes' },
  { key: 'needed_bytes', head: 'needed', kind: 'bytes', title: 'reserved at its most, context, libraries and NCCL' },
  { key: 'host_required_bytes_per_node', head: 'host of a node', kind: 'bytes', title: 'memory that the ranks of a node need on its host, at most' },
  { key: 'fits', head: 'fits', kind: 'flag', good: true },
  { key: 'exposed_communication_s', head: 'exposed', kind: 's' },
  { key: 'exposed_communication_share', head: 'exposed', kind: 'share' },
  { key: 'sent_inside_nodes_bytes_per_gpu', head: 'sent in node', kind: 'bytes' },
  { key: 'sent_between_nodes_bytes_per_gpu', head: 'sent between', kind: 'bytes' },
];

T.kindOf = function (key, value) {
  if (typeof value === 'boolean') return 'flag';
  if (typeof value === 'string') return 'text';
  if (key.endsWith('_s')) return 's';
  if (key.endsWith('_bytes') || key.endsWith('_bytes_per_node')) return 'bytes';
  if (key.endsWith('_share')) return 'share';
  return 'figure';
};

T.ComparePage = class {
  constructor(study, open) {
    const rows = study.rows;
    rows.forEach((row, number) => Object.assign(row, { number, time_per_token_s: row.tokens_per_s_per_gpu > 0 ? 1 / row.tokens_per_s_per_gpu : null }));
    const known = new Set([...T.compareColumns.map((c) => c.key), 'command', 'on_front', 'is_best', 'measured', 'number']);
    const extra = Object.keys(rows[0] || {}).filter((key) => !known.has(key) && typeof (rows.find((r) => r[key] !== null) || {})[key] !== 'object')
      .map((key) => ({ key, head: key.replace(/_(s|bytes)$/, '').replace(/_bytes_per_node$/, '_per_node').replace(/_/g, ' '), kind: T.kindOf(key, (rows.find((r) => r[key] !== null) || {})[key]) }));
    const mark = (row) => [row.is_best && rows.length > 1 ? T.el('span.tag.good', {}, row.fits === true ? 'fastest that fits' : 'fastest') : null, row.on_front && !row.is_best && rows.length > 1 ? T.el('span.tag', {}, 'front') : null,
      row.verdict === 'retries' ? T.el('span.tag', { title: 'the allocator frees cached blocks and asks again' }, 'retries') : null,
      row.host_verdict === 'no' ? T.el('span.tag.bad', { title: this.host(row) }, 'host too small') : null,
      row.changes ? T.el('span.tag', { title: 'faster or not, it answers another question' }, `changes ${row.changes}`) : null,
      row.failure ? T.el('div.note', {}, row.failure) : null].filter(Boolean);
    this.table = new T.Table({ rows, columns: T.compareColumns, extra, mark, pick: (row) => open(row.number), canPick: (row) => T.sources.has(row.number), hover: (row) => { if (!this.one) this.scatter.mark(row); } });
    const limit = (rows.find((r) => r.usable_bytes) || {}).usable_bytes;
    /* A run on another machine is no point among what is simulated. */
    const points = (list) => list.filter((r) => !r.failure && !r.measured && r.time_per_token_s).map((r) => ({ x: r.peak_reserved_bytes, y: r.time_per_token_s, name: r.strategy, style: r.verdict === 'retries' ? 'retries' : r.fits === true ? r.changes ? 'changed' : 'good' : r.fits === false ? 'bad' : 'soft', front: r.on_front, best: r.is_best, row: r, more: [`step ${T.time(r.step_time_s)}`, `needed ${T.bytes(r.needed_bytes)}`] }));
    this.scatter = new T.Scatter({ x: { head: 'reserved memory', kind: 'bytes' }, y: { head: 'time per token and GPU', kind: 'token_s' }, points: points(rows), limit: limit ? { x: limit, name: `usable: ${T.bytes(limit)}` } : null, names: { good: 'fits', changed: 'fits, but other numbers or hardware (~ ^)', retries: 'fits with retries', bad: 'does not fit', soft: 'unknown whether it fits' }, pick: (row) => { if (T.sources.has(row.number)) open(row.number); } });
    this.table.listeners.push((shown) => { this.scatter.spec.points = points(shown); if (this.scatter.graph) this.scatter.draw(); });
    this.one = rows.length === 1;
    this.node = T.el('section', {}, this.verdict(rows), this.one ? null : this.scatter.node, this.table.node, this.notes(study));
  }

  host(row) {
    return `the ranks of node ${row.host_peak_node} need ${T.bytes(row.host_required_bytes_per_node)} on their host in ${row.host_peak_phase}, which has ${T.bytes(row.host_memory_bytes_per_node)}`;
  }

  verdict(rows) {
    const best = rows.find((r) => r.is_best), fits = rows.filter((r) => r.fits === true).length;
    if (!best) return T.el('p.verdict', {}, rows.length === 1 ? rows[0].failure || (rows[0].host_verdict === 'no' ? `${rows[0].strategy} does not fit: ${this.host(rows[0])}.` : '') || `${rows[0].strategy} does not fit: it needs ${T.bytes(rows[0].needed_bytes)}` + (rows[0].usable_bytes ? ` of ${T.bytes(rows[0].usable_bytes)}.` : '.') : `None of ${rows.length} strategies fits.`);
    if (rows.length === 1) return T.el('p.verdict', {}, T.el('b', {}, best.strategy), ` \u2014 step ${T.time(best.step_time_s)}, ${T.fixed(best.tokens_per_s_per_gpu, 0)} tokens/s/GPU, needs ${T.bytes(best.needed_bytes)}` + (best.usable_bytes ? ` of ${T.bytes(best.usable_bytes)}` : '') + (best.fits === true ? ': it fits.' : '; whether it fits is not known.'));
    return T.el('p.verdict', {}, best.fits === true ? 'Fastest that fits: ' : 'Fastest: ', T.el('b', {}, best.strategy), ` \u2014 step ${T.time(best.step_time_s)}, ${T.fixed(best.tokens_per_s_per_gpu, 0)} tokens/s/GPU, needs ${T.bytes(best.needed_bytes)}` +
      (best.usable_bytes ? ` of ${T.bytes(best.usable_bytes)}` : '') + `. ${fits} of ${rows.length} fit.`);
  }

  notes(study) {
    const lines = [`All times are ${study.times}${study.device_file ? `, for the device file ${study.device_file}` : ''}.`];
    if (study.rows.some((r) => r.measured)) lines.push('Rows named -measured are of a run on its own machine: they are in the table, and not in the picture of time.');
    if (study.time_sources) lines.push('Times come from ' + study.time_sources + '.');
    if (study.rows.some((row) => !row.failure && row.mfu > 1)) lines.push('MFU above 100 %: it counts causal attention in full (PaLM, arXiv 2204.02311), and kernels compute half of that.');
    for (const v of study.validated_error || []) lines.push(v.text);
    lines.push('peak, reserved: allocated and reserved memory of the fullest GPU; needed: with what lies outside the allocator; exposed: communication while no kernel runs; ?: unknown.');
    return T.el('div', {}, lines.map((line) => T.el('p.note', {}, line)));
  }

  draw() {
    if (!this.one) this.scatter.draw();
  }

  redraw() {
    this.draw();
  }

  key(key) {
    if (key !== '/') return false;
    this.table.input.focus();
    return true;
  }
};

/* Tables and pictures that a study describes itself. */
T.TablesPage = class {
  constructor(study) {
    this.plots = (study.plots || []).map((plot) => new T.Scatter({ ...plot, points: plot.points.map(([x, y, name, style, front, best, ...more]) => ({ x, y, name, style, front, best, more })) }));
    this.tables = (study.tables || []).map((table) => ({ title: table.title, it: new T.Table({ sort: table.sort, down: true, columns: table.columns.map((c, i) => ({ ...c, name: i === 0 || c.key === 'command' || c.key === 'settings' })), rows: table.rows.map((row) => Object.fromEntries(table.columns.map((c, i) => [c.key, row[i]]))) }) }));
    this.node = T.el('section', {}, (study.verdict || []).map((line) => T.el('p.verdict', {}, line)), this.plots.map((plot, i) => [study.plots[i].title ? T.el('h2', {}, study.plots[i].title) : null, plot.node]), this.tables.map((t) => [T.el('h2', {}, t.title), t.it.node]), (study.notes || []).map((line) => T.el('p.note', {}, line)));
  }

  draw() {
    for (const plot of this.plots) plot.draw();
  }

  redraw() {
    this.draw();
  }

  key(key) {
    if (key !== '/' || !this.tables.length) return false;
    this.tables[0].it.input.focus();
    return true;
  }
};

T.FilePage = class {
  constructor(study) {
    const block = (title, text, wrap) => (text ? [T.el('h2', {}, title, ' ', T.copyButton(() => text)), T.el('pre' + (wrap ? '.wrap' : ''), {}, text)] : []);
    const commands = (study.rows || []).filter((row) => row.command).map((row) => row.command).concat(study.commands || []);
    const versions = Object.entries(study.versions || { tessera: study.tessera }).map(([name, version]) => `${name} ${version}`).join(', ');
    this.node = T.el('section', {}, block('The command', study.command, true), commands.length && commands[0] !== study.command ? block('One strategy each', commands.join('\n'), true) : [], block('The resolved file', study.configuration_yaml), T.el('p.note', {}, versions + '.'));
  }

  draw() {}
  redraw() {}
  key() { return false; }
};

T.start = function () {
  T.load();
  const study = T.study, root = document.getElementById('page'), pages = [];
  const name = (number) => (study.rows ? study.rows[number].strategy : (study.view_names || [])[number]) || T.view(number).strategy;
  const strategies = [...T.sources.keys()].sort((a, b) => a - b).map((number) => ({ number, name: name(number) }));
  let now = 0;
  const address = () => {
    const words = [pages[now].id];
    if (pages[now].id === 'step') words.push('s=' + pages[now].page.number);
    if (pages[now].id === 'two') words.push('a=' + pages[now].page.a, 'b=' + pages[now].page.b);
    history.replaceState(null, '', '#' + words.join('&'));
  };
  const say = () => { if (pages[now] && pages[now].made) address(); };
  const open = (number) => {
    const at = pages.findIndex((p) => p.id === 'step');
    if (at < 0) return;
    show(at);
    pages[at].page.choose(number);
  };
  pages.push(study.kind === 'compare' ? { id: 'table', title: study.rows.length > 1 ? 'Strategies' : 'Strategy', page: new T.ComparePage(study, open) } : { id: 'table', title: 'Tables', page: new T.TablesPage(study) });
  const best = Math.max(0, strategies.findIndex((s) => study.rows && study.rows[s.number].is_best));
  if (strategies.length) pages.push({ id: 'step', title: 'Memory and streams', page: new T.StepPage(strategies, say), first: (page) => page.choose(strategies[best].number) });
  if (strategies.length > 1) pages.push({ id: 'two', title: 'Two strategies', page: new T.PairPage(strategies, say), first: (page) => page.choose(strategies[best].number, strategies[best === 0 ? 1 : 0].number) });
  pages.push({ id: 'file', title: 'Command and file', page: new T.FilePage(study) });
  const tabs = T.el('nav', { role: 'tablist' }, pages.map((p, i) => (p.tab = T.el('button', { role: 'tab', title: `key ${i + 1}`, onclick: () => show(i) }, p.title))));
  const main = T.el('main');
  const theme = T.el('button', { title: 'dark or light (t)', onclick: () => setTheme(T.isDark() ? 'light' : 'dark') }, 'dark / light');
  const subtitle = study.subtitle || `${study.model} on ${study.cluster}, ${study.world_size} ${study.times === 'measured' ? 'ranks' : 'GPUs'}${study.gpu ? ' ' + study.gpu : ''}`;
  document.title = (study.title || study.model || study.kind) + ' \u2014 tessera';
  T.clear(root, T.el('header', {}, T.el('div.title', {}, T.el('h1', {}, study.title || subtitle), study.title ? T.el('span.soft', {}, subtitle) : null), T.el('span.noprint', {}, theme, ' ', T.el('button', { title: 'keys and help (?)', onclick: () => help.showModal() }, '?'))), tabs, main, T.el('div.noprint'));
  const help = T.help();
  root.append(help);
  T.pages = pages;

  function show(i) {
    now = i;
    T.tip.hide();
    pages.forEach((p, k) => p.tab.setAttribute('aria-selected', String(k === i)));
    T.clear(main, pages[i].page.node);
    if (!pages[i].made) {
      pages[i].made = true;
      if (pages[i].first) pages[i].first(pages[i].page);
      pages[i].page.draw && pages[i].page.draw();
      pages[i].width = main.clientWidth;
    } else if (pages[i].width !== main.clientWidth || pages[i].theme !== document.documentElement.dataset.theme) {
      pages[i].page.redraw();
      pages[i].width = main.clientWidth;
    }
    pages[i].theme = document.documentElement.dataset.theme;
    address();
  }
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem('tessera-theme', theme); } catch (error) { /* files may have no storage */ }
    if (pages[now] && pages[now].made) { pages[now].page.redraw(); pages[now].theme = theme; }
  }
  let stored = null;
  try { stored = localStorage.getItem('tessera-theme'); } catch (error) { /* as above */ }
  const asked = matchMedia('(prefers-color-scheme: dark)');
  setTheme(stored || (asked.matches ? 'dark' : 'light'));
  asked.addEventListener('change', (e) => setTheme(e.matches ? 'dark' : 'light'));

  const go = () => {
    const words = location.hash.slice(1).split('&'), at = pages.findIndex((p) => p.id === words[0]), value = (key) => {
      const word = words.find((w) => w.startsWith(key + '='));
      const number = word ? Number(word.slice(2)) : NaN;
      return T.sources.has(number) ? number : null;
    };
    if (at >= 0 && words[0] === 'step' && value('s') !== null) pages[at].first = (page) => page.choose(value('s'));
    if (at >= 0 && words[0] === 'two' && value('a') !== null && value('b') !== null) pages[at].first = (page) => page.choose(value('a'), value('b'));
    show(Math.max(0, at));
  };
  go();
  addEventListener('hashchange', () => { for (const p of pages) if (p.id === location.hash.slice(1).split('&')[0]) p.made = false; go(); });

  /* The width of the page, not of the window, decides: a scroll bar or a larger font changes only the first. */
  new ResizeObserver(() => {
    if (pages[now].made && pages[now].width !== main.clientWidth) {
      pages[now].page.redraw();
      pages[now].width = main.clientWidth;
    }
  }).observe(main);
  /* Paper is light. */
  let before = null;
  addEventListener('beforeprint', () => { before = document.documentElement.dataset.theme; if (before === 'dark') setTheme('light'); });
  addEventListener('afterprint', () => { if (before === 'dark') setTheme('dark'); });
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const number = Number(event.key);
    if (event.key === '?') help.showModal();
    else if (event.key === 't') setTheme(T.isDark() ? 'light' : 'dark');
    else if (event.key === 'Escape') T.tip.hide();
    else if (number >= 1 && number <= pages.length) show(number - 1);
    else if (!pages[now].page.key(event.key)) return;
    event.preventDefault();
  });
};

T.help = function () {
  const keys = [['1 2 3 4', 'the tabs'], ['/', 'filter or find'], ['w s', 'closer, farther, around the cursor'], ['a d', 'earlier, later; also the arrows'], ['0', 'the whole step'], ['p', 'to the peak of memory'], ['n', 'to the next exposed collective'],
    ['y', 'the height of what is seen, or from 0'], ['j k', 'the next strategy, the one before'], ['x', 'A and B the other way round'], ['t', 'dark or light'], ['?', 'this'], ['Esc', 'leave a field']];
  const licence = T.el('pre.wrap', { hidden: true }, document.getElementById('licence').textContent.trim());
  const dialog = T.el('dialog', { 'aria-label': 'keys and help' }, T.el('h2', {}, 'Keys'), T.el('div.keys', {}, keys.map(([key, text]) => [T.el('div', {}, key.split(' ').map((k) => [T.el('kbd', {}, k), ' '])), T.el('div', {}, text)])),
    T.el('p', {}, 'With a pointer: drag to look closer, two clicks for all, shift and drag to move, ctrl and wheel to zoom. A click holds the cursor, another lets it go.'),
    T.el('p', {}, 'The filter of a table takes words that a row must have, -word for what it must not have, and figures in the unit that is shown: fits:yes, step<1100, reserved>=70.'),
    T.el('p', {}, 'Everything is in this one file: nothing is loaded from elsewhere, and nothing leaves it. Plots are drawn by dygraphs (MIT).'),
    T.el('div.bar', {}, T.el('button', { onclick: () => { licence.hidden = !licence.hidden; } }, 'its licence'), T.el('button', { onclick: () => dialog.close() }, 'close')), licence);
  return dialog;
};

T.start();
