// Many small pages on one sheet. A page is a pure function of its seed and of a level from 0 (a few large words) to 1 (full pages).
// `sheet({seeds, levels, base, columns, kind})` draws them side by side, `base` being the address of MiniWoB's html folder, whose style sheets and pictures the pages use; `kind` asks for pages of one kind alone, of those in ALONE.

// ---- chance
function chance(seed) {  // sfc32 over the seed
  let a = seed >>> 0, b = Math.floor(seed / 2 ** 32) >>> 0, c = 0x9e3779b9, d = 1;
  const next = () => {
    const t = (a + b + d) | 0;
    d = (d + 1) | 0; a = b ^ (b >>> 9); b = (c + (c << 3)) | 0; c = ((c << 21) | (c >>> 11)) + t | 0;
    return (t >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 15; i++) next();
  const R = {next, int: (lo, hi) => lo + Math.floor(next() * (hi - lo + 1)), real: (lo, hi) => lo + next() * (hi - lo), maybe: p => next() < p, pick: l => l[Math.floor(next() * l.length)]};
  R.some = (l, n) => { const o = [...l]; for (let i = 0; i < Math.min(n, o.length); i++) { const j = R.int(i, o.length - 1); [o[i], o[j]] = [o[j], o[i]] } return o.slice(0, n) };
  R.weighted = l => { let x = next() * l.reduce((s, o) => s + o[1], 0); for (const [v, w] of l) if ((x -= w) < 0) return v; return l[0][0] };
  R.times = (n, f) => Array.from({length: n}, (_, i) => f(i));
  return R;
}

// ---- words
const LOWER = 'abcdefghijklmnopqrstuvwxyz', UPPER = LOWER.toUpperCase(), DIGITS = '0123456789', MARKS = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~';
const FOREIGN = ['é', 'ü', 'ñ', 'ß', 'ø', 'ç', 'å', '€', '£', '¥', '°', '→', '←', '✓', '✗', '★', '☆', '♥', 'α', 'β', 'π', 'Ω', 'Ж', 'д', 'ю', '×', '÷', '…', '—', '•', '▲', '▼', '½', '©'];
const capital = s => s[0].toUpperCase() + s.slice(1);
const escape = s => String(s).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/"/g, '&quot;');
function random(R, n = R.int(2, 8)) {
  const set = R.weighted([[LOWER, 3], [UPPER, 1.5], [LOWER + UPPER, 2], [LOWER + UPPER + DIGITS, 3], [DIGITS, 1], [LOWER + UPPER + DIGITS + MARKS, 1.5]]);
  return R.times(n, () => R.pick(set)).join('');
}
function spoken(R) { return R.times(R.int(1, 4), () => R.pick('bcdfghjklmnpqrstvwxz') + R.pick('aeiouy') + (R.maybe(.3) ? R.pick('nrstlm') : '')).join('') }
const styled = (R, s) => R.weighted([[s, 5], [capital(s), 4], [s.toUpperCase(), 1]]);
const KINDS = [
  [R => styled(R, R.pick(WORDS)), 4], [random, 5], [R => styled(R, spoken(R)), 2], [R => R.pick(NAMES), 1], [R => String(R.int(-20, R.pick([9, 99, 999, 99999]))), 1],
  [R => `${R.int(1, 12)}/${R.int(1, 31)}/${R.int(1950, 2030)}`, .3], [R => `${R.int(0, 23)}:${String(R.int(0, 59)).padStart(2, '0')}`, .3], [R => `$${R.int(1, 999)}.${R.int(10, 99)}`, .3],
  [R => `@${spoken(R)}`, .3], [R => `${spoken(R)}@${spoken(R)}.com`, .15], [R => R.times(R.int(1, 3), () => R.pick(FOREIGN)).join(''), .25], [R => random(R, 1), .4], [R => R.pick(WORDS) + R.pick([',', '.', '!', '?', ':', ';']), .5]];
const token = R => R.weighted(KINDS)(R);
const phrase = (R, n) => R.times(n, () => token(R)).join(' ');
const sentence = (R, n) => R.maybe(.4) ? capital(R.times(n, () => R.pick(WORDS)).join(' ')) + '.' : phrase(R, n);
const title = R => R.maybe(.5) ? token(R) : phrase(R, 2);

// ---- colours
const COLOURS = ['red', 'green', 'blue', 'yellow', 'orange', 'purple', 'cyan', 'magenta', 'pink', 'black', 'white', 'grey', 'lime', 'olive', 'brown'];
const DARK = ['black', '#222', '#333', 'black', 'black', 'red', 'green', 'blue', 'purple', 'brown', '#00c', '#c00', '#070', '#555', '#000080', '#800000'];
const LIGHT = ['white', 'white', 'white', '#eee', '#fff8dc', '#f0f8ff', '#ffe', '#fee', '#efe', '#eef', '#ddd', '#ff0', '#cff', '#fcf'];
const shade = R => R.maybe(.75) ? R.pick(COLOURS) : `hsl(${R.pick([0, 120, 240])} ${R.int(60, 100)}% ${R.int(25, 70)}%)`;

// ---- how a page looks
const FAMILIES = [['Arial', 9], ['sans-serif', 2], ['serif', 1.5], ['Times New Roman', 1.5], ['monospace', 1.5], ['Courier New', 1], ['DejaVu Sans', 1], ['Liberation Sans Narrow', .5], ['Noto Sans Display', .5], ['DejaVu Serif', .5]];
function look(R, level) {
  const low = Math.round(8 + 8 * (1 - level)), high = Math.round(14 + 12 * (1 - level));
  return {level, family: R.weighted(FAMILIES), size: level > .8 && R.maybe(.55) ? R.pick([10, 10, 10, 11, 9, 12]) : R.int(low, high), low, high, ink: R.maybe(.75) ? 'black' : R.pick(DARK), paper: R.maybe(.75) ? 'white' : R.pick(LIGHT),
    link: R.pick(['blue', 'blue', '#0000ee', 'purple', 'green', 'red']), buttons: R.pick(['native', 'native', 'ui', 'ui', 'flat', 'input', 'mixed']), radius: R.pick([0, 0, 2, 4, 8]), tint: R.pick(DARK)};
}
const font = (R, L) => `font-family: ${R.maybe(.7) ? L.family : R.weighted(FAMILIES)}; font-size: ${R.maybe(.6) ? L.size : R.int(L.low, L.high)}px; ${R.maybe(.15) ? 'font-weight: bold;' : ''} ${R.maybe(.08) ? 'font-style: italic;' : ''}
  ${R.maybe(.06) ? 'text-decoration: underline;' : ''}`;
const tone = (R, L) => R.maybe(.08) ? (p => `color: ${R.pick(['white', '#ff0', '#eee'])}; background: ${p}; padding: 1px 3px`)(R.pick(DARK)) : R.maybe(.25) ? `color: ${R.pick(DARK)}` : '';

// ---- parts of a page; each gives HTML
function button(R, L, text = title(R), more = '') {
  const kind = L.buttons === 'mixed' ? R.pick(['native', 'ui', 'flat', 'input']) : L.buttons, off = R.maybe(.04) ? 'disabled' : '', size = `font-size: ${L.size}px`, pad = R.maybe(.3) ? `padding: ${R.int(1, 7)}px ${R.int(2, 24)}px;` : '';
  if (kind === 'input') return `<input type="button" ${off} value="${escape(text)}" style="${size}; ${pad} ${more}">`;
  if (kind === 'ui') return `<button class="ui-button ui-corner-all ui-widget" ${off} style="${size}; padding: ${R.int(1, 5)}px ${R.int(4, 12)}px; ${more}">${escape(text)}</button>`;
  if (kind === 'flat') return `<button ${off} style="${size}; ${pad} border: ${R.pick(['none', '1px solid #888', '2px solid black'])}; border-radius: ${L.radius}px; background: ${L.tint}; color: white; ${more}">${escape(text)}</button>`;
  return `<button ${off} style="${size}; ${pad} ${more}">${escape(text)}</button>`;
}
const link = (R, L, text = title(R), more = '') => `<a href="#" style="color: ${L.link}; ${R.maybe(.2) ? 'text-decoration: none;' : ''} ${more}">${escape(text)}</a>`;
const alink = (R, L, text = title(R)) => `<span class="alink" style="color: ${L.link}; text-decoration: underline">${escape(text)}</span>`;
const icon = (R, L, base) => `<span title="" class="${(L.icon = R.pick(ICONS))[0]}" style="content: url(${base}common/special/${L.icon[1]}); height: ${R.int(10, 16)}px; display: inline-block; margin: 1px 3px; vertical-align: middle"></span>`;
const ICONS = [['trash', 'email-inbox/delete.png'], ['forward', 'email-inbox/forward.png'], ['back', 'email-inbox/left-arrow.png'], ['reply', 'email-inbox/reply.png'], ['search', 'email-inbox/search.png'], ['send', 'email-inbox/send.png'],
  ['star-on', 'email-inbox/star-clicked.png'], ['star', 'email-inbox/star.png'], ['like', 'social-media/like.png'], ['more', 'social-media/more.png'], ['reply', 'social-media/reply.png'], ['retweet', 'social-media/retweet.png'], ['share', 'social-media/share.png'],
  ['o', 'tic-tac-toe/o.png'], ['x', 'tic-tac-toe/x.png']];
function choices(R, L, type = R.pick(['checkbox', 'checkbox', 'radio']), n = R.int(2, 7)) {
  const name = `g${R.int(0, 1e9)}`, on = type === 'radio' ? R.int(-1, n - 1) : -1, apart = R.maybe(.15), tail = R.maybe(.85) ? '<br>' : ' ';
  return R.times(n, i => {
    const text = escape(R.maybe(.8) ? token(R) : phrase(R, 2)), checked = (type === 'radio' ? i === on : R.maybe(.45)) ? 'checked' : '', off = R.maybe(.04) ? 'disabled' : '';
    const box = `<input type="${type}" name="${name}" ${checked} ${off} style="${R.maybe(.3) ? 'width: 20px;' : ''} ${R.maybe(.15) ? 'margin: 1px;' : ''}">`;
    return apart ? `<label>${text} ${box}</label>${tail}` : `<label>${box}${text}</label>${tail}`;
  }).join('');
}
function field(R, L) {
  const type = R.weighted([['text', 8], ['password', 1.2], ['number', .6], ['search', .4]]), value = R.maybe(.5) ? (type === 'number' ? R.int(0, 999) : title(R)) : '', hint = R.maybe(.25) ? title(R) : '';
  return `<input type="${type}" ${value !== '' ? `value="${escape(value)}"` : ''} ${hint ? `placeholder="${escape(hint)}"` : ''} style="width: ${R.int(40, 130)}px; font-size: ${L.size}px; ${R.maybe(.2) ? `border: 1px solid ${R.pick(DARK)};` : ''}
    ${R.maybe(.15) ? `padding: ${R.int(0, 4)}px;` : ''} ${R.maybe(.1) ? 'text-align: center;' : ''}" ${R.maybe(.04) ? 'disabled' : ''}>`;
}
const named = (R, L, what) => R.maybe(.25) ? what : R.maybe(.5) ? `<p><label class="bold" style="${R.maybe(.5) ? 'font-weight: bold' : ''}">${escape(capital(token(R)))}:</label>${R.maybe(.5) ? '<br>' : ' '}${what}</p>` : `<div><label>${escape(token(R))} ${what}</label></div>`;
const area = (R, L) => `<textarea style="width: ${R.int(60, 140)}px; height: ${R.int(22, 60)}px; font-size: ${L.size}px; ${R.maybe(.5) ? `font-family: ${L.family}` : ''}">${R.maybe(.7) ? escape(sentence(R, R.int(1, 9))) : ''}</textarea>`;
function list(R, L) {
  const n = R.int(2, 6), on = R.int(0, n - 1), tall = R.maybe(.2);
  return `<select ${tall ? `size="${R.int(3, 5)}"` : ''} style="font-size: ${L.size}px; ${R.maybe(.4) ? `min-width: ${R.int(50, 140)}px` : ''}">${R.times(n, i => `<option ${i === on && !(tall && R.maybe(.5)) ? 'selected' : ''}>${escape(title(R))}</option>`).join('')}</select>`;
}
function table(R, L) {
  const rows = R.int(2, 8), cols = R.int(2, 6), border = R.maybe(.7) ? `border: 1px solid ${R.pick(['#888', 'black', '#ccc', L.tint])};` : '', numbers = R.maybe(.6), head = R.maybe(.4), pad = R.int(0, 4);
  const fill = () => numbers ? R.int(0, R.pick([9, 99, 999])) : R.maybe(.9) ? token(R) : '';
  const mark = () => R.maybe(.06) ? `background: ${R.pick(LIGHT)};` : '';
  return `<table style="font-size: ${Math.max(8, L.size - R.int(0, 2))}px">${R.times(rows, i => `<tr>${R.times(cols, () => `<${head && !i ? 'th' : 'td'} style="${border} padding: ${pad}px; text-align: ${R.pick(['left', 'center'])}; ${mark()}">${escape(fill())}</${head && !i ? 'th' : 'td'}>`).join('')}</tr>`).join('')}</table>`;
}
function calendar(R, L) {
  const first = R.int(0, 6), days = R.int(28, 31), on = R.maybe(.5) ? R.int(1, days) : 0, cell = d => d < 1 || d > days ? '<td></td>' : `<td><a class="ui-state-default ${d === on ? 'ui-state-active' : ''}" href="#" style="padding: 1px">${d}</a></td>`;
  return `<div class="ui-datepicker ui-widget ui-widget-content ui-corner-all" style="display: block; width: 150px; padding: 1px; font-size: 9px; position: static"><div class="ui-datepicker-header ui-widget-header ui-corner-all"><a class="ui-datepicker-prev ui-corner-all" data-kind="button"><span class="ui-icon ui-icon-circle-triangle-w"></span></a>
    <a class="ui-datepicker-next ui-corner-all" data-kind="button"><span class="ui-icon ui-icon-circle-triangle-e"></span></a><div class="ui-datepicker-title">${R.pick('January February March April May June July August September October November December'.split(' '))} ${R.int(1990, 2030)}</div></div>
    <table class="ui-datepicker-calendar" style="margin: 0; font-size: 9px"><tr>${['Su', 'Mo', 'Tu', 'We', 'Th', 'Fr', 'Sa'].map(d => `<th style="padding: 0">${d}</th>`).join('')}</tr>${R.times(6, w => `<tr>${R.times(7, d => cell(w * 7 + d - first + 1)).join('')}</tr>`).join('')}</table></div>`;
}
function tabs(R, L) {
  const n = R.int(2, 4), on = R.int(0, n - 1);
  return `<div class="ui-tabs ui-corner-all ui-widget ui-widget-content" style="font-size: ${Math.min(L.size, 11)}px; width: ${R.int(120, 156)}px"><ul class="ui-tabs-nav ui-corner-all ui-helper-reset ui-helper-clearfix ui-widget-header" style="padding: 1px 1px 0">${R.times(n, i =>
    `<li class="ui-tabs-tab ui-corner-top ui-state-default ${i === on ? 'ui-tabs-active ui-state-active' : ''}" data-kind=""><a href="#" class="ui-tabs-anchor" style="padding: 2px ${R.int(3, 8)}px">${escape(R.maybe(.4) ? 'Tab #' + (i + 1) : token(R).slice(0, 6))}</a></li>`).join('')}</ul>
    <div class="ui-tabs-panel ui-corner-bottom ui-widget-content" style="padding: 3px">${prose(R, L, R.int(3, 14))}</div></div>`;
}
function sections(R, L) {
  const n = R.int(2, 5), on = R.int(-1, n - 1);
  return `<div class="ui-accordion ui-widget ui-helper-reset" style="font-size: ${Math.min(L.size, 11)}px">${R.times(n, i => `<h3 class="ui-accordion-header ui-corner-top ui-state-default ui-accordion-icons ${i === on ? 'ui-accordion-header-active ui-state-active' : 'ui-accordion-header-collapsed ui-corner-all'}" style="padding: 2px 3px 2px 18px">
    <span class="ui-accordion-header-icon ui-icon ui-icon-triangle-1-${i === on ? 's' : 'e'}"></span>${escape(R.maybe(.4) ? 'Section #' + (i + 1) : title(R))}</h3>${i === on ? `<div class="ui-accordion-content ui-corner-bottom ui-widget-content ui-accordion-content-active" style="padding: 3px">${prose(R, L, R.int(3, 10))}</div>` : ''}`).join('')}</div>`;
}
function dialog(R, L, free = true) {
  const w = R.int(80, 145), top = R.int(40, 110), left = R.int(0, 160 - w), ok = R.maybe(.5);
  return `<div class="ui-dialog ui-corner-all ui-widget ui-widget-content ui-front" style="${free ? `position: absolute; left: ${left}px; top: ${top}px` : 'position: relative'}; width: ${w}px; font-size: 10px; padding: 2px"><div class="ui-dialog-titlebar ui-corner-all ui-widget-header ui-helper-clearfix" style="padding: 2px 3px; height: 17px">
    <span class="ui-dialog-title" style="margin: 0">${R.maybe(.7) ? escape(title(R)) : '&nbsp;'}</span><button type="button" class="ui-button ui-corner-all ui-widget ui-button-icon-only ui-dialog-titlebar-close" title="Close"><span class="ui-button-icon ui-icon ui-icon-closethick"></span> Close</button></div>
    <div class="ui-dialog-content ui-widget-content" style="padding: 2px 5px; min-height: 20px">${prose(R, L, R.int(2, 10))}</div>${ok ? `<div style="padding: 2px; border-top: 1px solid #ccc">${R.times(R.int(1, 2), i => button(R, {...L, buttons: 'ui', size: 10}, R.maybe(.5) ? ['OK', 'Cancel'][i] : token(R))).join(' ')}</div>` : ''}</div>`;
}
const slider = (R, L) => R.maybe(.3) ? `<input type="range" value="${R.int(0, 100)}" style="width: ${R.int(60, 140)}px">`
  : `<div class="ui-slider ui-corner-all ui-slider-horizontal ui-widget ui-widget-content" style="width: ${R.int(60, 140)}px; margin: 6px 8px; font-size: ${R.int(8, 11)}px"><span class="ui-slider-handle ui-corner-all ui-state-default" style="left: ${R.int(0, 100)}%"></span></div>`;
const tree = (R, L, deep = 0) => `<ul style="list-style: none; padding-left: ${deep ? 12 : 4}px; margin: 1px 0">${R.times(R.int(2, deep ? 3 : 5), () => {
  const open = deep < 2 && R.maybe(.35);
  return `<li>${R.maybe(.8) ? `<span style="color: #555">${open ? '▼' : R.pick(['▶', '▶', '•'])}</span> ` : ''}<span>${escape(R.maybe(.5) ? R.pick(NAMES) : token(R))}</span>${open ? tree(R, L, deep + 1) : ''}</li>`;
}).join('')}</ul>`;
function prose(R, L, n) {
  return R.times(n, () => R.weighted([[() => escape(token(R)), 12], [() => R.maybe(.5) ? link(R, L, token(R)) : alink(R, L, token(R)), 1], [() => `<b>${escape(token(R))}</b>`, .6], [() => `<i>${escape(token(R))}</i>`, .4], [() => `<span style="color: ${R.pick(DARK)}">${escape(token(R))}</span>`, .5]])()).join(' ');
}
const paragraph = (R, L, n = R.int(3, 16)) => `<p style="${font(R, L)} ${tone(R, L)}">${prose(R, L, n)}</p>`;
const heading = (R, L) => { const n = R.int(1, 4); return `<h${n} style="font-size: ${Math.min(20, L.size + 5 - n)}px; margin: 2px 0; ${tone(R, L)}">${escape(title(R))}</h${n}>` };
const bullets = (R, L) => `<ul style="${R.maybe(.3) ? 'list-style: none; padding: 0' : ''}">${R.times(R.int(2, 6), () => `<li style="${R.maybe(.1) ? 'border-bottom: 1px solid #ccc' : ''}">${R.maybe(.3) ? link(R, L) : escape(title(R))}</li>`).join('')}</ul>`;
function menu(R, L) {
  const n = R.int(2, 6), on = R.int(-1, n - 1);
  return `<ul class="ui-menu ui-widget ui-widget-content" style="width: ${R.int(60, 140)}px; font-size: ${Math.min(L.size, 11)}px; position: static">${R.times(n, i => `<li class="ui-menu-item"><div class="ui-menu-item-wrapper ${i === on ? 'ui-state-active' : ''}" style="padding: 1px 6px">${escape(title(R))}</div></li>`).join('')}</ul>`;
}
function mail(R, L, base) {
  return `<div style="border: 1px solid #ccc; width: 155px"><div style="background: ${R.pick(['#F92525', '#0074D9', '#444', 'green'])}; color: #fff; height: 20px; line-height: 20px; padding: 0 5px; font-size: 12px">${escape(title(R))}<span style="float: right">${icon(R, L, base)}</span></div>${R.times(R.int(2, 4), () =>
    `<div style="border-bottom: 1px solid #c9c9c9; padding: 2px 5px; height: 38px; overflow: hidden"><div style="float: right">${icon(R, L, base)}${icon(R, L, base)}</div><div style="font-weight: bold; font-size: 11px">${R.pick(NAMES)}</div><div style="font-size: 10px; font-weight: ${R.pick(['bold', 'normal'])}; white-space: nowrap">${escape(sentence(R, 2))}</div>
    <div style="font-size: 9px; white-space: nowrap">${escape(sentence(R, 3))}</div></div>`).join('')}</div>`;
}
const feed = (R, L, base) => R.times(R.int(2, 4), () => `<div style="border: 1px solid #ddd; padding: 2px; margin: 1px 0"><span style="font-weight: bold">${R.pick(NAMES)}</span> <span style="color: #888">@${spoken(R)}</span> <span style="color: #aaa; float: right">${R.int(1, 59)}${R.pick(['m', 'h', 'd'])} ago</span><div>${escape(sentence(R, R.int(2, 8)))}</div>
  ${R.times(R.int(2, 4), () => icon(R, L, base)).join('')}</div>`).join('');
function squares(R, L) {
  const n = R.int(2, 8), side = R.int(8, 50), lined = R.maybe(.6) ? 'border: 1px solid black;' : '', same = R.maybe(.5);
  const colours = same ? R.some(COLOURS, n) : R.times(n, () => shade(R));
  return `<div>${colours.map(c => `<div style="display: inline-block; vertical-align: middle; width: ${side}px; height: ${R.maybe(.85) ? side : R.int(6, 50)}px; margin: ${R.int(1, 5)}px; background-color: ${c}; ${lined}"></div>`).join('')}</div>`;
}

// ---- drawings
function regular(n, x, y, r, turn) { return Array.from({length: n}, (_, i) => [x + r * Math.cos(turn + 2 * Math.PI * i / n), y + r * Math.sin(turn + 2 * Math.PI * i / n)].map(o => o.toFixed(1)).join(',')).join(' ') }
function figure(R, x, y, s, colour) {
  const edge = R.maybe(.15) ? 'stroke="black"' : '', paint = R.maybe(.93) ? `fill="${colour}" ${edge}` : `fill="none" stroke="${colour}" stroke-width="2"`;
  return R.weighted([
    [() => `<circle cx="${x}" cy="${y}" r="${s / 2}" ${paint}/>`, 3], [() => `<rect x="${x - s / 2}" y="${y - s / 2}" width="${s}" height="${s}" ${paint}/>`, 3],
    [() => `<rect x="${x - s / 2}" y="${y - s / 4}" width="${s}" height="${Math.max(4, s / 2)}" ${paint}/>`, 1], [() => `<polygon points="${x - s / 2},${y + s / 2} ${x},${y - s / 2} ${x + s / 2},${y + s / 2}" ${paint}/>`, 3],
    [() => `<polygon points="${regular(R.int(4, 8), x, y, s / 2, R.real(0, 6.3))}" ${paint}/>`, 1], [() => `<ellipse cx="${x}" cy="${y}" rx="${s / 2}" ry="${s / 3}" ${paint}/>`, .7]])();
}
function drawing(R, L, h = R.int(90, 150)) {
  const w = 156, cell = R.pick([20, 20, 20, 26, 32, 40]), cols = Math.floor(w / cell), rows = Math.floor(h / cell), all = cols * rows, n = Math.min(all, R.int(2, L.level < .3 ? 4 : 20));
  const palette = R.maybe(.3) ? R.some(COLOURS.filter(c => c !== 'white'), R.int(2, 4)) : COLOURS.filter(c => c !== 'white'), few = R.maybe(.3);
  return `<svg width="${w}" height="${h}" style="display: block; ${R.maybe(.3) ? 'border: 1px solid #888' : ''}; font-family: ${L.family}">${R.some([...Array(all).keys()], n).map(k => {
    const x = (k % cols + .5) * cell, y = (Math.floor(k / cols) + .5) * cell, s = R.pick([.5, 1]) * (cell - 1), colour = R.maybe(.9) ? R.pick(palette) : shade(R);
    if (!few && R.maybe(.45)) return `<text x="${x}" y="${y}" text-anchor="middle" dominant-baseline="central" font-size="${Math.max(10, s)}px" fill="${colour}">${R.pick(LOWER + UPPER + DIGITS)}</text>`;
    return figure(R, x, y, s, colour);
  }).join('')}${R.maybe(.1) ? `<line x1="${R.int(0, 150)}" y1="${R.int(0, h)}" x2="${R.int(0, 150)}" y2="${R.int(0, h)}" stroke="${R.pick(DARK)}" stroke-width="${R.int(1, 3)}"/>` : ''}</svg>`;
}
function bigShape(R) {
  const n = R.int(3, 9), x = R.int(50, 110), y = R.int(50, 90), r = R.int(12, 45);
  return `<svg width="156" height="150"><polygon points="${regular(n, x, y, r, R.real(0, 6.3))}" ${R.maybe(.5) ? `fill="${R.pick(COLOURS)}" stroke="black"` : `fill="none" stroke="${R.pick(DARK)}"`}/></svg>`;
}

// ---- whole pages
const BLOCKS = [[paragraph, 4], [heading, 1.5], [(R, L) => button(R, L), 2], [(R, L) => R.times(R.int(2, 5), () => button(R, L)).join(' '), 1.5], [(R, L) => choices(R, L), 3], [(R, L) => named(R, L, field(R, L)), 3], [(R, L) => named(R, L, area(R, L)), 1],
  [(R, L) => named(R, L, list(R, L)), 1.5], [bullets, 1], [table, 1.5], [calendar, .4], [tabs, 1], [sections, 1], [slider, .6], [tree, .8], [menu, .6], [mail, .7], [feed, .7], [squares, 1.5], [(R, L) => drawing(R, L, R.int(50, 110)), 1.5], [(R, L) => link(R, L), .7],
  [(R, L, base) => R.times(R.int(2, 7), () => icon(R, L, base)).join(''), .6]];
const block = (R, L, base) => `<div style="margin: ${R.int(0, 5)}px ${R.int(0, 6)}px">${R.weighted(BLOCKS)(R, L, base)}</div>`;
const ASK = ['Click on the', 'Select', 'Enter', 'Find the', 'Click button', 'Check', 'Choose', 'Type', 'Open', 'Expand the section', 'Switch between the tabs to find'];
const query = (R, L) => `<div id="query">${R.maybe(.6) ? R.pick(ASK) + ' ' : ''}${escape(sentence(R, R.int(1, 7)))}${R.maybe(.3) ? ` "<span class="bold">${escape(token(R))}</span>"` : ''}${R.maybe(.4) ? ' and click Submit.' : ''}</div>`;
const miniwob = (R, L, base) => `<div id="wrap">${query(R, L)}<div id="area" style="font-size: ${R.pick([10, 10, 10, 9, 11])}px">${R.times(R.int(1, 4), () => R.weighted(BLOCKS)(R, {...L, size: R.pick([13.333, 13.333, 10, 10, 11, 12])}, base)).join(R.maybe(.3) ? '<br>' : '')}
  ${R.maybe(.5) ? `<br><button class="secondary-action">${R.maybe(.7) ? 'Submit' : escape(token(R))}</button>` : ''}</div>${R.maybe(.2) ? dialog(R, L) : ''}</div>`;
const ordinary = (R, L, base) => `<div style="padding: ${R.int(0, 6)}px">${R.maybe(.3) ? `<div style="background: ${L.tint}; color: white; padding: 2px 4px">${escape(title(R))}</div>` : ''}${R.times(R.int(2, 7), () => block(R, L, base)).join('')}</div>${R.maybe(.12) ? dialog(R, L) : ''}`;
function scattered(R, L, base) {
  const n = Math.max(1, Math.round(R.real(.4, 1) * (2 + 14 * L.level))), asked = L.level > .5 && R.maybe(.5);
  const one = () => R.weighted([[() => `<span class="free" style="${font(R, L)} ${tone(R, L)}">${escape(R.maybe(.85) ? token(R) : phrase(R, 2))}</span>`, 6], [() => `<span class="free">${button(R, L, token(R), R.maybe(.3) ? `width: ${R.int(30, 60)}px; height: ${R.int(20, 44)}px; padding: 0` : '')}</span>`, 4 * L.level],
    [() => `<span class="free">${link(R, L, token(R), font(R, L))}</span>`, 1], [() => `<span class="free">${icon(R, L, base)}</span>`, .6], [() => `<div class="free" style="width: ${R.int(8, 44)}px; height: ${R.int(8, 44)}px; background-color: ${shade(R)}; ${R.maybe(.4) ? 'border: 1px solid black' : ''}"></div>`, 1.5],
    [() => `<span class="free"><label><input type="checkbox" ${R.maybe(.5) ? 'checked' : ''}>${escape(token(R))}</label></span>`, 1], [() => `<span class="free">${field(R, L)}</span>`, .8 * L.level]])();
  return `<div id="wrap">${asked ? query(R, L) : ''}${R.times(n, one).join('')}</div>`;
}
function coloured(R, L) {  // shapes of many colours, each of its own size
  const n = R.int(3, 10), palette = R.maybe(.6) ? R.some(COLOURS, n) : R.times(n, () => shade(R)), lined = R.maybe(.6) ? `border: ${R.int(1, 2)}px solid ${R.maybe(.8) ? 'black' : R.pick(DARK)};` : '', asked = L.level > .3 && R.maybe(.5);
  if (R.maybe(.5)) return `<div id="wrap">${asked ? query(R, L) : ''}${palette.map(c => `<div class="free" style="width: ${R.int(7, 44)}px; height: ${R.int(7, 44)}px; background-color: ${c}; ${lined}"></div>`).join('')}</div>`;
  const side = R.int(26, 42), cols = Math.floor(156 / side), rows = Math.floor(150 / side), places = R.some([...Array(cols * rows).keys()], Math.min(n, cols * rows));
  return `<div id="wrap">${asked ? query(R, L) : ''}<svg width="156" height="150">${places.map((k, i) => figure(R, (k % cols + .5) * side, (Math.floor(k / cols) + .5) * side, R.int(7, side - 6), palette[i] === 'white' ? 'red' : palette[i])).join('')}</svg></div>`;
}
const packed = (R, L) => `<div style="padding: 2px; line-height: ${R.pick(['normal', 'normal', 1.1, 1.4, 1.8])}; text-align: ${R.pick(['left', 'left', 'left', 'center', 'right', 'justify'])}">${R.times(R.int(1, 4), () => paragraph(R, L, R.int(6, 30))).join('')}</div>`;
const PAGES = [[miniwob, L => 8 * L], [ordinary, L => 4 * L], [scattered, L => 6 - 2 * L], [packed, L => 1.5 + L], [coloured, L => 2.5], [(R, L) => `<div id="wrap">${L.level > .3 && R.maybe(.6) ? query(R, L) : ''}${R.maybe(.9) ? drawing(R, L) : bigShape(R)}</div>`, L => 1.5], [(R, L) => `<div style="padding: 4px">${squares(R, L)}${R.maybe(.3) ? squares(R, L) : ''}</div>`, L => .7]];
// ---- pages of one kind: strings that nothing but reading can tell; and for probes, one thing asked of many alike
const CLEAR = (LOWER + UPPER).replace(/[lI]/g, '');
const four = R => R.times(4, () => R.pick(CLEAR)).join('');
const ALONE = {
  strings: (R, L) => {
    const set = R.weighted([[CLEAR, 6], [LOWER + UPPER + DIGITS, 2], [LOWER + UPPER + DIGITS + MARKS, 1]]), one = () => R.times(R.maybe(.5) ? 4 : R.int(1, 8), () => R.pick(set)).join('');
    const free = t => `<span class="free">${R.weighted([[() => `<span style="${font(R, L)} ${tone(R, L)}">${escape(t)}</span>`, 6], [() => button(R, L, t), 2], [() => link(R, L, t, font(R, L)), 1]])()}</span>`;
    const line = () => `<p style="margin: 1px 0; ${font(R, L)} ${tone(R, L)}">${escape(R.times(R.int(1, 6), one).join(' '))}</p>`;
    return R.maybe(.7) ? `<div id="wrap">${R.times(R.int(8, 30), () => free(one())).join('')}</div>` : `<div style="padding: 2px">${R.times(R.int(3, 12), line).join('')}</div>`;
  },
  words: (R, L) => `<div id="wrap">${R.times(R.int(6, 10), () => R.weighted([[t => `<span class="free" style="${font(R, L)} ${tone(R, L)}">${t}</span>`, 5], [t => `<span class="free">${button(R, L, t)}</span>`, 2], [t => `<span class="free">${link(R, L, t, font(R, L))}</span>`, 1]])(four(R))).join('')}</div>`,
  colours: (R, L) => R.maybe(.5) ? `<div id="wrap">${R.some(COLOURS, R.int(6, 9)).map(c => `<div class="free" style="width: ${R.int(10, 40)}px; height: ${R.int(10, 40)}px; background-color: ${c}; border: 1px solid black"></div>`).join('')}</div>`
    : `<svg width="156" height="200">${(cells => R.some(COLOURS.filter(c => c !== 'white'), R.int(6, 9)).map((c, i) => figure(R, 20 + cells[i] % 4 * 39, 20 + Math.floor(cells[i] / 4) * 39, R.int(12, 32), c)).join(''))(R.some([...Array(20).keys()], 9))}</svg>`,
  boxes: (R, L) => `<div id="wrap">${R.maybe(.5) ? query(R, L) : ''}<div id="area" style="font-size: ${R.int(9, 12)}px">${R.times(R.int(5, 7), () => `<label><input type="checkbox" ${R.maybe(.5) ? 'checked' : ''}>${four(R)}</label><br>`).join('')}</div></div>`};
function page(R, level, base, alone) {
  const L = look(R, level), kind = alone ? ALONE[alone] : R.weighted(PAGES.map(([f, w]) => [f, w(level)]));
  if (kind === miniwob && R.maybe(.8)) Object.assign(L, {family: 'Arial', ink: 'black', paper: 'white', size: 10});
  return [L, kind(R, L, base)];
}

// ---- the sheet
function settle(div, R, L) {  // give every free item a place of its own; what finds none leaves
  const taken = [], query = div.querySelector('#query'), top = query ? 46 : 1, close = R.maybe(.12) ? -4 : 2;
  return [...div.querySelectorAll('.free')].map(e => [e, e.offsetWidth, e.offsetHeight]).map(([e, w, h]) => {
    for (let k = 0; k < 25; k++) {
      const x = R.int(0, Math.max(0, 158 - w)), y = R.int(top, Math.max(top, 209 - h));
      if (y + h > 210 || taken.some(([a, b, c, d]) => x < c + close && a < x + w + close && y < d + close && b < y + h + close)) continue;
      taken.push([x, y, x + w, y + h]);
      return [e, x, y];
    }
    return [e];
  });
}
async function styles(base) {  // MiniWoB's own style sheets, once
  if (document.querySelector('link')) return;
  const load = href => new Promise((done, failed) => document.head.prepend(Object.assign(document.createElement('link'), {rel: 'stylesheet', href, onload: done, onerror: () => failed(new Error(`${href} could not be loaded`))})));
  await Promise.all([load(base + 'core/jquery-ui/jquery-ui.min.css'), load(base + 'core/core.css')]);
  await Promise.all(ICONS.map(([, path]) => Object.assign(new Image(), {src: `${base}common/special/${path}`}).decode()));
}
async function sheet({seeds, levels, base, columns = 10, kind = null}) {
  await styles(base);
  document.body.replaceChildren();
  const pages = seeds.map((seed, i) => {
    const div = document.createElement('div'), R = chance(seed), [L, html] = page(R, levels[i], base, kind);
    div.className = 'page';
    div.style.cssText = `left: ${i % columns * 160}px; top: ${Math.floor(i / columns) * 210}px; font-family: ${L.family}; font-size: ${L.size}px; color: ${L.ink}; background-color: ${L.paper}`;
    div.innerHTML = html;
    document.body.append(div);
    return [div, R, L];
  });
  for (const moves of pages.map(([div, R, L]) => settle(div, R, L)))
    for (const [e, x, y] of moves) if (x === undefined) e.remove(); else { e.style.left = x + 'px'; e.style.top = y + 'px' }
  await Promise.all([...document.images].map(o => o.decode()));
  return pages.map(([div], i) => labels(div, [i % columns * 160, Math.floor(i / columns) * 210, 160, 210]));
}
