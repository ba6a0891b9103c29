'use strict';
/* base.js: elements, numbers as people read them, colours. Texts of a study only ever become text nodes. */
const T = {};

/* el('div.note', {title: 'x', onclick: f}, 'text', node, [nodes]) */
T.el = function (what, attributes, ...children) {
  const [tag, ...classes] = what.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style') Object.assign(node.style, value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
};
T.clear = function (node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
};

/* ---- numbers ---- */

T.GIB = 1073741824;
T.fixed = function (value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace('-', '') : text;
};
/* Seconds in the unit that suits `span`, the length that is looked at. */
T.time = function (seconds, span) {
  const s = span === undefined ? Math.abs(seconds) : span;
  if (seconds === 0 && span === undefined) return '0 ms';
  if (s >= 172800) return T.fixed(seconds / 86400, 1) + ' days';
  if (s >= 72 * 3600) return T.fixed(seconds / 86400, 2) + ' days';
  if (s >= 7200) return T.fixed(seconds / 3600, 2) + ' h';
  if (s >= 600) return T.fixed(seconds / 60, 1) + ' min';
  if (s >= 10) return T.fixed(seconds, 2) + ' s';
  if (s >= 0.02) return T.fixed(seconds * 1e3, 2) + ' ms';
  if (s >= 1e-4) return T.fixed(seconds * 1e3, 3) + ' ms';
  return T.fixed(seconds * 1e6, 1) + ' \u00b5s';
};
T.bytes = function (bytes) {
  const size = Math.abs(bytes);
  if (size >= 0.1 * T.GIB) return T.fixed(bytes / T.GIB, 2) + ' GiB';
  if (size >= 1048576 / 10) return T.fixed(bytes / 1048576, 2) + ' MiB';
  if (size >= 1024) return T.fixed(bytes / 1024, 1) + ' KiB';
  return bytes + ' B';
};
T.signed = function (text, value) {
  return value > 0 ? '+' + text : text;
};
/* How a column of a kind is shown: [unit, factor, digits]. */
T.units = {
  s: ['ms', 1e3, 2], long_s: ['min', 1 / 60, 1], hours: ['h', 1 / 3600, 2], days: ['days', 1 / 86400, 2], bytes: ['GiB', 1 / T.GIB, 2],
  share: ['%', 100, 1], error: ['%', 100, 2], 1: ['', 1, 0], '1/s': ['/s', 1, 0],
  figure: ['', 1, null], token_s: ['\u00b5s', 1e6, 3],
};
T.cell = function (kind, value) {
  if (value === null || value === undefined) return '?';
  if (kind === 'text') return String(value);
  if (kind === 'flag') return value ? 'yes' : 'no';
  const unit = T.units[kind] || T.units.figure;
  return unit[2] === null ? String(Number(value.toPrecision(5))) : T.fixed(value * unit[1], unit[2]);
};
T.head = function (column) {
  const unit = (T.units[column.kind] || [''])[0];
  return unit && unit !== '/s' ? column.head + ', ' + unit : column.head;
};

/* Ticks at round numbers of a unit: [{v, label}] */
T.ticks = function (from, to, most, factor, suffix) {
  const span = (to - from) * factor;
  if (!(span > 0)) return [];
  const raw = span / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= raw) || 10 * power;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const out = [];
  for (let k = Math.ceil(from * factor / step - 1e-9); k * step <= to * factor + 1e-9 * span; k++) {
    out.push({ v: k * step / factor, label: T.fixed(k * step, digits) + (suffix || '') });
  }
  return out;
};
T.byteTicks = function (from, to, most) {
  const size = Math.max(Math.abs(from), Math.abs(to));
  return size < 0.5 * T.GIB ? T.ticks(from, to, most, 1 / 1048576, ' MiB') : T.ticks(from, to, most, 1 / T.GIB, ' GiB');
};
/* Round numbers of a logarithmic axis: 1, 2, 5 of each decade; only powers if there are many. */
T.logTicks = function (from, to, factor) {
  const out = [], decades = Math.log10(to / from);
  for (let p = Math.floor(Math.log10(from * factor)); p <= Math.log10(to * factor) + 1; p++) {
    for (const m of decades > 4 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) {
      const v = m * 10 ** p / factor;
      if (v >= from && v <= to) out.push({ v, label: String(Number((m * 10 ** p).toPrecision(3))) });
    }
  }
  return out;
};

/* ---- names ---- */

/* "model.layers.5" of what lies in a block; else all of it. */
T.block = function (module) {
  const match = /^(.*?\.\d+)(\.|$)/.exec(module);
  return match ? match[1] : module;
};
T.short = function (module) {
  return module.replace(/^model\./, '').replace(/\.(self_attn|mlp|attn)(?=\.)/, '');
};
T.cut = function (text, most) {
  return text.length <= most ? text : text.slice(0, Math.ceil(most * 0.6)) + '\u2026' + text.slice(-Math.floor(most * 0.4) + 1);
};

/* ---- colours ---- */

/* Okabe and Ito's, which are told apart with the common kinds of colour blindness. */
T.reasonColours = ['#E69F00', '#CC79A7', '#F0E442', '#009E73', '#56B4E9', '#D55E00'];
T.classes = [
  ['matrix products', '#2f6db5', '#5b9be0'], ['attention', '#17406e', '#8cc4ff'], ['norms, losses', '#7fa8d6', '#3c6ea5'],
  ['pointwise', '#a9b8c8', '#56677a'], ['optimizer', '#6b5b95', '#a594d4'], ['copies', '#c9b48f', '#8a7750'],
  ['all-gather', '#8a8f96', '#8a939e'], ['reduce-scatter', '#6d737b', '#a7b0bb'], ['all-reduce', '#565c64', '#c0c8d1'],
  ['messages', '#9aa0a6', '#79828d'], ['host waits', '#d08f8f', '#8c5252'], ['launches', '#c9d1d9', '#444d57'],
];
T.isDark = function () {
  return document.documentElement.dataset.theme === 'dark';
};
T.classColour = function (c) {
  return T.classes[c][T.isDark() ? 2 : 1];
};
/* T.categoryColours, by the name of a category, is made of plots/style.gp: pictures and page have one palette. */

@categories

T.categoryColour = function (name) {
  if (T.categoryColours[name]) return T.categoryColours[name];
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.charCodeAt(0)) % 360;
  return `hsl(${hash}, 35%, 55%)`;
};
T.css = function (name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
};
T.swatch = function (colour, line) {
  return T.el('span.swatch' + (line ? '.line' : ''), { style: line ? { borderTopColor: colour, borderTopStyle: line } : { background: colour } });
};

/* ---- a box at the pointer ---- */

T.tip = {
  node: null,
  show(event, ...children) {
    if (!this.node) document.body.append(this.node = T.el('div.tip', { role: 'tooltip' }));
    T.clear(this.node, ...children).hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - 12 - box.height : event.clientY + 16;
    this.node.style.left = Math.max(4, left) + 'px';
    this.node.style.top = Math.max(4, top) + 'px';
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

/* A canvas that is as sharp as the screen; returns its context in CSS pixels. */
T.canvas = function (canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
};

T.copyButton = function (text) {
  const button = T.el('button.noprint', { onclick: async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(text());
      done = true;
    } catch (error) { /* pages that are files may not: the old way */
      const area = T.el('textarea', { style: { position: 'fixed', opacity: 0 } });
      area.value = text();
      document.body.append(area);
      area.select();
      done = document.execCommand('copy');
      area.remove();
    }
    button.textContent = done ? 'copied' : 'select and copy it';
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  } }, 'copy');
  return button;
};
