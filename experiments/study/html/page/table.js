/* table.js: a table that sorts by its heads and shows the rows that match some words. */
T.Table = class {
  /* spec: {columns: [{key, head, kind, name?}], rows: [objects], pick?(row), mark?(row) -> nodes behind the name,
   * sort?: key, down?: bool, extra?: columns that are shown when asked for} */
  constructor(spec) {
    Object.assign(this, { spec, sort: spec.sort || null, down: !!spec.down, words: '', all: false, chosen: null });
    this.input = T.el('input', { type: 'search', placeholder: 'filter: words, -word, fits:yes, step<1100', 'aria-label': 'filter', size: 44, oninput: () => { this.words = this.input.value; this.draw(); } });
    this.count = T.el('span.soft');
    const more = spec.extra && T.el('label', {}, T.el('input', { type: 'checkbox', onchange: (e) => { this.all = e.target.checked; this.draw(); } }), 'all columns');
    this.bar = T.el('div.bar', {}, this.input, more, this.count, T.copyButton(() => this.tsv()));
    this.bar.hidden = spec.rows.length < 6 && !spec.extra;
    this.holder = T.el('div.scroll');
    this.node = T.el('div', {}, this.bar, this.holder);
    this.listeners = [];
    this.draw();
  }

  columns() {
    return this.all ? [...this.spec.columns, ...this.spec.extra] : this.spec.columns;
  }

  /* Whether a row has a word: "fits:no", "step<1000" in the unit that is shown, or a text anywhere. */
  matches(row, word) {
    if (word.startsWith('-') && word.length > 1) return !this.matches(row, word.slice(1));
    const test = /^([\w.]+)(:|<=|>=|<|>|=)(.+)$/.exec(word);
    const columns = [...this.spec.columns, ...(this.spec.extra || [])];
    const column = test && columns.find((c) => c.head.toLowerCase().replace(/\W+/g, '_').startsWith(test[1]) || c.key.startsWith(test[1]));
    if (column) {
      const shown = T.cell(column.kind, row[column.key]).toLowerCase(), a = parseFloat(shown), b = parseFloat(test[3]);
      if (test[2] === ':' || test[2] === '=') return shown.startsWith(test[3]);
      return test[2] === '<' ? a < b : test[2] === '>' ? a > b : test[2] === '<=' ? a <= b : a >= b;
    }
    return columns.some((c) => (c.kind === 'text' || c.kind === 'flag') && T.cell(c.kind, row[c.key]).toLowerCase().includes(word));
  }

  rows() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.spec.rows.filter((row) => words.every((word) => this.matches(row, word)));
    if (this.sort) {
      const key = this.sort, sign = this.down ? -1 : 1;
      rows.sort((a, b) => {
        const x = a[key], y = b[key];
        if (x === null || x === undefined || y === null || y === undefined) return (x ?? null) === (y ?? null) ? 0 : (x ?? null) === null ? 1 : -1;
        return sign * (typeof x === 'string' ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
      });
    }
    return rows;
  }

  tsv() {
    const columns = this.columns(), clean = (text) => text.replace(/[\t\n\r]/g, ' ');
    return [columns.map((c) => clean(T.head(c))).join('\t'), ...this.rows().map((row) => columns.map((c) => clean(T.cell(c.kind, row[c.key]))).join('\t'))].join('\n');
  }

  choose(row) {
    this.chosen = row;
    for (const node of this.holder.querySelectorAll('tbody tr')) node.classList.toggle('chosen', node.row === row);
  }

  head(column) {
    const now = this.sort === column.key;
    const button = T.el('button', { onclick: () => {
      this.down = now ? !this.down : column.kind !== 'text' && column.best === 'high';
      this.sort = column.key;
      this.draw();
      this.holder.querySelector('th[data-key="' + CSS.escape(column.key) + '"] button')?.focus();
    } }, T.head(column) + (now ? (this.down ? ' \u25bc' : ' \u25b2') : ''));
    return T.el('th' + (column.kind === 'text' || column.kind === 'flag' ? '.text' : ''), { 'data-key': column.key, title: column.title || '', 'aria-sort': now ? (this.down ? 'descending' : 'ascending') : 'none' }, button);
  }

  row(row, columns) {
    const pick = this.spec.pick && (!this.spec.canPick || this.spec.canPick(row));
    const node = T.el('tr' + (pick ? '.pick' : ''), pick ? { tabindex: 0, onclick: () => this.spec.pick(row), onkeydown: (e) => { if (e.key === 'Enter') this.spec.pick(row); } } : {});
    for (const column of columns) {
      const text = T.cell(column.kind, row[column.key]);
      const cell = T.el('td' + (text.length <= 28 ? '.short' : '') + (column.kind === 'text' ? '.text' : '') + (column.kind === 'flag' ? '.flag' : '') + (column.name ? '.name' : '') + (column.name && text.length > 32 ? '.long' : ''), {}, text);
      if (column.name && this.spec.mark) cell.append(...this.spec.mark(row));
      if (column.kind === 'flag' && column.good) cell.classList.add(row[column.key] === true ? 'good' : row[column.key] === false ? 'bad' : 'soft');
      node.append(cell);
    }
    node.row = row;
    if (row === this.chosen) node.classList.add('chosen');
    if (this.spec.hover) {
      node.addEventListener('mouseenter', () => this.spec.hover(row));
      node.addEventListener('mouseleave', () => this.spec.hover(null));
    }
    return node;
  }

  draw() {
    const columns = this.columns(), rows = this.rows();
    this.count.textContent = rows.length === this.spec.rows.length ? `${rows.length} rows` : `${rows.length} of ${this.spec.rows.length} rows`;
    const table = T.el('table', {}, T.el('thead', {}, T.el('tr', {}, columns.map((c) => this.head(c)))), T.el('tbody', {}, rows.map((row) => this.row(row, columns))));
    T.clear(this.holder, table);
    for (const listener of this.listeners) listener(rows);
  }
};
