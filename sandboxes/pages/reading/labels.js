// What stands on a page: the box of every visible character, and the elements with their kind, text, colour, box and state.
// `labels(root, [x, y, width, height])` reads the part of the document under `root` that shows in the rectangle (CSS pixels of the viewport).
window.labels = (() => {
  const SKIP = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TITLE', 'OPTION', 'TEXTAREA', 'SELECT', 'INPUT', 'HEAD', 'TEMPLATE']);
  const SHAPES = {circle: 'circle', ellipse: 'ellipse', line: 'line', path: 'shape', polyline: 'line', image: 'icon'};
  const INPUTS = {checkbox: 'checkbox', radio: 'radio', submit: 'button', button: 'button', reset: 'button', image: 'button', range: 'slider', hidden: null};
  const TAGS = {BUTTON: 'button', TEXTAREA: 'textarea', SELECT: 'select', TD: 'cell', TH: 'cell', LI: 'item', H1: 'heading', H2: 'heading', H3: 'heading', H4: 'heading', IMG: 'icon',
    CANVAS: 'canvas', SUMMARY: 'section'};
  const CLASSES = [['ui-dialog-titlebar-close', 'close'], ['ui-tabs-anchor', 'tab'], ['ui-accordion-header', 'section'], ['ui-slider-handle', 'handle'], ['ui-slider', 'slider'],
    ['ui-dialog-titlebar', 'titlebar'], ['ui-dialog', 'dialog'], ['ui-menu-item', 'item'], ['ui-button', 'button'], ['ui-spinner-button', 'button'], ['alink', 'link']];
  const PAINTED = new Set(['IMG', 'CANVAS', 'VIDEO', 'INPUT', 'BUTTON', 'SELECT', 'TEXTAREA']);

  const meet = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const area = b => Math.max(0, b[2] - b[0]) * Math.max(0, b[3] - b[1]);
  const join = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[2], b[2]), Math.max(a[3], b[3])];
  const box = r => [r.left, r.top, r.right, r.bottom];
  const clean = s => (s || '').replace(/\s+/g, ' ').trim();
  const alpha = s => { const v = (s.match(/[\d.]+/g) || []).map(Number); return v.length < 3 ? 0 : v[3] ?? 1 };
  const rgb = s => alpha(s) > .8 ? s.match(/[\d.]+/g).slice(0, 3).map(Number) : null;
  const isSvg = e => e.namespaceURI.endsWith('svg') && e.tagName !== 'svg';

  function labels(root, [X, Y, W, H]) {
    const page = [X, Y, X + W, Y + H], styles = new Map(), clips = new Map(), seen = new Map();
    const style = e => styles.get(e) || (styles.set(e, getComputedStyle(e)), styles.get(e));
    const shown = e => { if (!seen.has(e)) seen.set(e, e.checkVisibility({opacityProperty: true, visibilityProperty: true})); return seen.get(e) };

    function clipOf(e) {  // what of `e`'s content its ancestors and itself let through
      if (!e || e === root || !root.contains(e)) return page;
      if (clips.has(e)) return clips.get(e);
      const s = style(e), position = s.position;
      let c = position === 'fixed' ? page : clipOf(position === 'absolute' ? e.offsetParent : e.parentElement);
      if (s.overflowX !== 'visible' && s.display !== 'inline' && !isSvg(e)) {
        const r = e.getBoundingClientRect(), x = r.left + e.clientLeft, y = r.top + e.clientTop;
        c = meet(c, [x, y, x + (e.clientWidth || r.width), y + (e.clientHeight || r.height)]);
      }
      clips.set(e, c);
      return c;
    }

    function opaque(e) {
      if (PAINTED.has(e.tagName)) return true;
      const s = style(e);
      return isSvg(e) ? s.fill !== 'none' && e.tagName !== 'g' : alpha(s.backgroundColor) > .5 || s.backgroundImage !== 'none';
    }
    const over = (top, e, text) => top.contains(e) || (e.contains(top) && !(text && top !== e && opaque(top)));
    const covers = [...root.querySelectorAll('*')].filter(e => e.tagName !== 'OPTION' && opaque(e)).map(e => [e, ...box(e.getBoundingClientRect())]);
    const covered = (e, x, y) => covers.some(([o, a, b, c, d]) => x >= a && x <= c && y >= b && y <= d && o !== e && !o.contains(e));
    function visible(e, x, y, text) {  // nothing that covers stands between the eye and `e` there
      if (!covered(e, x, y)) return true;
      const top = document.elementFromPoint(x, y);
      if (!top) return false;
      if (over(top, e, text) || style(e).pointerEvents === 'none') return true;
      for (const o of document.elementsFromPoint(x, y)) {
        if (over(o, e, text)) return true;
        if (opaque(o)) return false;
      }
      return true;
    }

    function ground(e) {  // the colour behind `e`
      for (let o = e.parentElement; o; o = o.parentElement) if (alpha(style(o).backgroundColor) > .5) return style(o).backgroundColor;
      return 'rgb(255, 255, 255)';
    }

    // ---- elements
    function boxed(e) {  // a plain coloured box
      if (e.tagName === 'svg' || e.childElementCount || clean(e.textContent)) return null;
      const s = style(e), c = alpha(s.backgroundColor) > .8 && s.backgroundColor, r = e.getBoundingClientRect();
      if (s.backgroundImage.startsWith('url') || s.content.startsWith('url')) return r.width <= 40 && r.height <= 40 && !e.closest('button, .ui-button') ? 'icon' : null;
      if (!c || r.width < 5 || r.height < 5 || r.width * r.height > .5 * W * H) return null;
      if (c === ground(e) && s.borderTopWidth === '0px') return null;
      return Math.abs(r.width - r.height) <= 1.5 ? 'square' : 'rectangle';
    }
    function kindOf(e) {
      if (e.dataset?.kind) return e.dataset.kind;
      const tag = e.tagName;
      if (e.id === 'query') return 'query';
      if (tag === 'INPUT') return e.type in INPUTS ? INPUTS[e.type] : 'field';
      if (isSvg(e)) {
        if (tag === 'rect') return Math.abs(e.width.baseVal.value - e.height.baseVal.value) <= 1.5 ? 'square' : 'rectangle';
        if (tag === 'polygon') return e.points.numberOfItems === 3 ? 'triangle' : 'polygon';
        return SHAPES[tag] || null;
      }
      for (const [name, kind] of CLASSES) if (e.classList.contains(name)) return kind;
      if (tag === 'A') return 'link';
      const role = e.getAttribute('role');
      if (role === 'button' || role === 'tab') return role;
      return TAGS[tag] || boxed(e);
    }
    const words = n => n ? clean(n.nodeType === 3 ? n.data : SKIP.has(n.tagName) ? '' : n.textContent) : '';
    function labelOf(e, kind) {
      const own = clean(e.labels?.[0]?.innerText);
      if (own) return own;
      if (kind === 'checkbox' || kind === 'radio') return words(e.nextSibling) || words(e.previousSibling);
      return words(e.previousSibling) || words(e.previousElementSibling) || clean(e.placeholder);
    }
    function statesOf(e, kind) {
      const s = [];
      if (e.checked) s.push('checked');
      if (e.disabled || e.classList.contains('ui-state-disabled')) s.push('disabled');
      if (e === document.activeElement && e !== document.body) s.push('focused');
      const tab = kind === 'tab' && (e.closest('.ui-tabs-active') || e.getAttribute('aria-selected') === 'true');
      if (tab || e.classList.contains('selected') || e.classList.contains('clicked')) s.push('selected');
      if (e.classList.contains('ui-accordion-header-active')) s.push('open');
      if (kind === 'checkbox' && e.indeterminate) s.push('mixed');
      return s;
    }
    function paint(e) {
      const s = style(e);
      if (!isSvg(e)) return rgb(s.backgroundColor);
      const filled = s.fill !== 'none' && alpha(s.fill) * s.fillOpacity > .8;
      return filled ? rgb(s.fill) : rgb(s.stroke);
    }
    function look(e, kind) {  // [clipped box, share of nine points that can be seen]
      const b = meet(box(e.getBoundingClientRect()), clipOf(e.parentElement));
      if (kind === 'line') { const w = +style(e).strokeWidth.replace('px', '') || 1; if (b[2] - b[0] < w) b[2] = b[0] + w; if (b[3] - b[1] < w) b[3] = b[1] + w }
      if (area(b) < 4 || !shown(e)) return [b, 0];
      let n = 0;
      for (const u of [.1, .5, .9]) for (const v of [.1, .5, .9]) n += visible(e, b[0] + u * (b[2] - b[0]), b[1] + v * (b[3] - b[1]));
      return [b, n / 9];
    }
    const elements = [], owner = new Map(), jobs = [];
    function add(e, kind, b, share, more = {}) {
      const states = more.s || statesOf(e, kind), cut = share < .99;
      if (cut) states.push('covered');
      owner.set(e, elements.length);
      elements.push({k: kind, t: '', l: '', c: paint(e), i: null, b, o: -1, s: states, ...more});
    }
    for (const e of root.querySelectorAll('*')) {
      if (SKIP.has(e.tagName) && !['INPUT', 'SELECT', 'TEXTAREA'].includes(e.tagName)) continue;
      const kind = kindOf(e);
      if (!kind || (kind === 'link' && e.closest('button')) || (isSvg(e) && style(e).fill === ground(e) && style(e).stroke === 'none')) continue;
      const [b, share] = look(e, kind);
      if (share < .2) continue;
      add(e, kind, b, share);
      const it = elements.at(-1), control = ['checkbox', 'radio', 'field', 'textarea', 'select', 'slider'].includes(kind);
      if (control) it.l = labelOf(e, kind);
      if (kind === 'icon') it.t = clean(e.alt || e.title || e.classList[0] || e.id);
      if (kind === 'polygon') it.t = String(e.points?.numberOfItems ?? e.dataset.sides ?? '');
      if (['INPUT', 'SELECT', 'TEXTAREA'].includes(e.tagName) && !['checkbox', 'radio', 'slider'].includes(kind)) jobs.push([e, it]);
    }
    const nearest = e => { for (let o = e; o && o !== root.parentElement; o = o.parentElement) if (owner.has(o)) return owner.get(o); return -1 };
    for (const [e, i] of owner) elements[i].o = e.parentElement ? nearest(e.parentElement) : -1;

    // ---- characters
    const chars = [], range = document.createRange();
    let run = null;
    function flush() { if (run && run.t) elements.push(run); run = null }
    function put(cp, r, clip, e, from, block) {  // one character; `e` is hit-tested, `from` is its own element
      const whole = box(r), b = meet(whole, clip), w = r.width, ok = area(b) >= .5 * area(whole) && b[2] - b[0] >= .6 * w && area(b) > 0;
      const inView = ok && visible(e, (b[0] + b[2]) / 2, (b[1] + b[3]) / 2, e === from);
      const middle = (whole[1] + whole[3]) / 2;
      if (!run || run.block !== block || middle < run.row[1] || middle > run.row[3] || whole[0] < run.row[0] - 1 || whole[0] - run.row[2] > 2.5 * r.height) {
        flush();
        const s = style(from);
        run = {k: 'text', t: '', l: '', c: null, i: rgb(isSvg(from) ? s.fill : s.color), b: null, o: nearest(from), s: [], block, gap: false, lost: false};
        if (+s.fontWeight >= 600) run.s.push('bold');
      }
      run.row = whole;
      if (!inView) { run.lost = true; return }
      if (run.lost && !run.s.includes('cut')) run.s.push('cut');
      chars.push(cp.codePointAt(0), ...b);
      run.t += (run.gap && run.t ? ' ' : '') + cp;
      run.b = run.b ? join(run.b, b) : b;
      run.gap = false;
    }
    const CASE = {uppercase: s => s.toUpperCase(), lowercase: s => s.toLowerCase()};
    function text(node, clip, e, from, block) {
      const s = style(from), turn = CASE[s.textTransform] || (o => o), data = node.data;
      if (parseFloat(s.fontSize) < 2 || alpha(isSvg(from) ? s.fill : s.color) < .2) return;
      for (let i = 0; i < data.length;) {
        const cp = String.fromCodePoint(data.codePointAt(i)), n = cp.length;
        if (/\s/.test(cp)) { if (run) run.gap = true; i += n; continue }
        range.setStart(node, i); range.setEnd(node, i + n); i += n;
        const r = range.getClientRects()[0];
        if (r && r.width > 0) put(turn(cp), r, clip, e, from, block);
        else if (run) run.lost = true;
      }
      if (run?.lost && run.t && !run.s.includes('cut')) run.s.push('cut');
    }
    const inline = e => style(e).display.startsWith('inline') && !isSvg(e) && e !== root && style(e).display === 'inline';
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      const e = node.parentElement;
      if (SKIP.has(e.tagName) || !clean(node.data)) { if (run) run.gap = true; continue }
      if (!shown(e)) continue;
      range.selectNodeContents(node);
      const clip = clipOf(e);
      if (!area(meet(box(range.getBoundingClientRect()), clip))) continue;
      let block = e;
      while (inline(block)) block = block.parentElement;
      text(node, clip, e, e, block);
    }
    flush();

    // ---- what stands inside of controls: laid out again in mirrors at the same place
    const stage = document.createElement('div');
    stage.style.cssText = 'position: absolute; left: 0; top: 0; visibility: hidden; pointer-events: none; z-index: -1';
    const mirrors = [];
    function mirror(e, it, words, at, how, from = e) {
      const s = style(from), m = document.createElement('div');
      m.style.cssText = `position: absolute; left: ${at[0] + scrollX}px; top: ${at[1] + scrollY}px; width: ${at[2] - at[0]}px; height: ${at[3] - at[1]}px; font: ${s.font}; letter-spacing: ${s.letterSpacing};
        color: ${s.color}; text-transform: ${s.textTransform}; text-align: ${s.textAlign}; line-height: ${how === 'lines' ? s.lineHeight : 'normal'}; text-indent: 0;
        white-space: ${how === 'lines' ? 'pre-wrap' : how === 'wrap' ? 'normal' : 'pre'}; overflow-wrap: break-word; ${how === 'lines' ? '' : `display: flex; align-items: center; justify-content: ${how === 'wrap' ? 'flex-start' : how}`}`;
      const span = how === 'lines' ? m : m.appendChild(document.createElement('span'));
      span.textContent = words;
      stage.append(m);
      mirrors.push([e, it, span, span.firstChild]);
    }
    const inside = e => {
      const r = e.getBoundingClientRect(), s = style(e), n = o => parseFloat(s[o]) || 0;
      return [r.left + n('borderLeftWidth') + n('paddingLeft'), r.top + n('borderTopWidth') + n('paddingTop'), r.right - n('borderRightWidth') - n('paddingRight'), r.bottom - n('borderBottomWidth') - n('paddingBottom')];
    };
    const align = s => ({center: 'center', right: 'flex-end', end: 'flex-end'})[s.textAlign] || 'flex-start';
    for (const [e, it] of jobs) {
      const at = inside(e), s = style(e);
      if (e.tagName === 'SELECT') {
        if (e.size > 1 || e.multiple) {
          for (const o of e.options) {
            const r = box(o.getBoundingClientRect()), b = meet(r, meet(clipOf(e.parentElement), at));
            if (area(b) < .5 * area(r) || !area(r)) continue;
            add(o, 'option', b, 1, {s: o.selected ? ['selected'] : [], c: null, o: elements.indexOf(it)});
            const pad = parseFloat(style(o).paddingLeft) || 2;
            mirror(e, elements.at(-1), o.label, [r[0] + pad, r[1], r[2], r[3]], 'flex-start', o);
          }
        } else {  // words beside an arrow of two ems; they wrap where the list is narrow
          const em = parseFloat(s.fontSize), wrap = at[3] - at[1] > 1.8 * em;
          mirror(e, it, e.selectedOptions[0]?.label || '', [at[0], at[1], wrap ? Math.max(at[0] + 1, at[2] - 2 * em) : at[2], at[3]], wrap ? 'wrap' : 'flex-start');
        }
        continue;
      }
      const button = ['submit', 'button', 'reset'].includes(e.type), value = e.type === 'password' ? '•'.repeat(e.value.length) : e.type === 'date' && !e.value ? 'mm/dd/yyyy' : e.value;
      const words = value || e.placeholder || (e.type === 'submit' ? 'Submit' : '');
      if (!value && e.placeholder) it.s.push('placeholder');
      if (!words || e.type === 'color' || e.type === 'file') continue;
      if (e.tagName === 'TEXTAREA') mirror(e, it, words, [at[0] - e.scrollLeft, at[1] - e.scrollTop, at[0] + e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight), at[3]], 'lines');
      else mirror(e, it, words, [at[0] - e.scrollLeft, at[1], at[2], at[3]], button ? 'center' : align(s));
    }
    if (mirrors.length) {
      document.body.append(stage);
      for (const [e, it, span, node] of mirrors) {
        if (!node) continue;
        const at = inside(e), bare = ['BUTTON', 'SELECT'].includes(e.tagName) ? at : [at[0], at[1] - 2, at[2], at[3] + 2];
        text(node, meet(clipOf(e.parentElement), bare), e, span, span);
        if (run) run.o = elements.indexOf(it);
        for (let more = elements.length - 1; more >= 0 && elements[more].block === span; more--) elements[more].o = elements.indexOf(it);
        flush();
      }
      stage.remove();
    }

    // ---- every element's visible words are those of the lines in it
    for (const line of elements) {
      if (line.k !== 'text') continue;
      for (let o = line.o; o >= 0; o = elements[o].o) {
        if (elements[o].k === 'icon') continue;
        elements[o].t = clean(elements[o].t + ' ' + line.t);
        elements[o].i ||= line.i;
      }
    }
    const round = b => [Math.round(b[0] - X), Math.round(b[1] - Y), Math.round(b[2] - X), Math.round(b[3] - Y)];
    const flat = [];
    for (let i = 0; i < chars.length; i += 5) flat.push(chars[i], ...round(chars.slice(i + 1, i + 5)));
    return {chars: flat, elements: elements.map(({k, t, l, c, i, b, o, s}) => ({k, t: t.slice(0, 200), l: l.slice(0, 80), c, i, b: round(b), o, s}))};
  }
  return labels;
})();
