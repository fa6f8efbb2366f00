// Tiles master: tiles lie in layers; a click on a tile that nothing covers takes it to the tray of seven. Three equal
// tiles in the tray vanish. A level is solved when no tile is left, and lost when the tray is full.
'use strict'
const SIGNS = ['●', '■', '▲', '◆', '★', '✚', '♥', '☾', '♣']
const COLORS = ['#e63946', '#457b9d', '#2a9d8f', '#f77f00', '#9b5de5', '#118ab2', '#d62828', '#6c757d', '#2b9348']
const TILE = 24, TOP = 24, TRAY = 7

const covers = (a, b) => a.z > b.z && Math.abs(a.x - b.x) < TILE - 2 && Math.abs(a.y - b.y) < TILE - 2
const open = (s, t) => !s.tiles.some(o => covers(o, t))

function level_of(level, random) {
  const kinds = Math.min(2 + level, SIGNS.length), triples = Math.min(2 + 2 * level, 14)
  const bag = random.shuffle(Array.from({length: 3 * triples}, (_, i) => Math.floor(i / 3) % kinds))
  const tiles = []
  for (let z = 0; bag.length; z++) {
    const shift = z % 2 ? TILE / 2 : 0
    const places = random.shuffle(Array.from({length: 30},
      (_, i) => [8 + shift + (i % 6) * TILE, TOP + shift + Math.floor(i / 6) * TILE]))
      .filter(([x, y]) => x + TILE < Kit.WIDTH && y + TILE < 160)
    for (const [x, y] of places.slice(0, 9 + 3 * (z === 0))) if (bag.length) tiles.push({x, y, z, kind: bag.pop()})
  }
  return {tiles, tray: [], count: tiles.length, over: null, motion: null}
}

Kit.play({
  id: 'tiles-master', title: 'Tiles master', levels: 50, background: '#cfe8d5',
  begin: (level, random) => level_of(level, random),
  view: s => ({score: s.over === 'success' ? 1 : 0, board: s, outcome: s.over,
    reason: s.over === 'fail' ? 'the tray is full' : 'all tiles are gone',
    progress: 1 - (s.tiles.length + s.tray.length) / s.count}),
  press(s, x, y) {
    const hit = s.tiles.filter(t => x >= t.x && x < t.x + TILE && y >= t.y && y < t.y + TILE)
      .sort((a, b) => b.z - a.z)[0]
    if (!hit || !open(s, hit)) return
    s.tiles = s.tiles.filter(t => t !== hit)
    Kit.animate(s, {kind: hit.kind, from: [hit.x, hit.y], tray: [...s.tray]}, 130)
    s.tray.push(hit.kind)
    if (s.tray.filter(k => k === hit.kind).length === 3) s.tray = s.tray.filter(k => k !== hit.kind)
    if (!s.tiles.length && !s.tray.length) s.over = 'success'
    else if (s.tray.length >= TRAY) s.over = 'fail'
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['tiles', s.tiles.length], ['solved', carried]], '#1d3b2a')
    const sign = (kind, x, y, w) => Kit.text(g, SIGNS[kind], x + w / 2, y + w / 2 + 1, w * .62, COLORS[kind])
    for (const t of [...s.tiles].sort((a, b) => a.z - b.z)) {
      const free = open(s, t)
      Kit.box(g, t.x, t.y + 1.5, TILE - 1, TILE - 1, '#7f9f88', 4)
      Kit.box(g, t.x, t.y, TILE - 1, TILE - 1, free ? '#fffdf5' : '#c9cdbf', 4)
      sign(t.kind, t.x, t.y, TILE - 1)
      if (!free) Kit.box(g, t.x, t.y, TILE - 1, TILE - 1, 'rgba(120, 130, 110, .35)', 4)
    }
    Kit.box(g, 4, 180, 152, 26, '#8d6e63', 5)
    const place = i => [7 + i * 21, 182.5], tray = s.motion?.tray ?? s.tray
    const small = (kind, x, y) => { Kit.box(g, x, y, 20, 20, '#fffdf5', 4); sign(kind, x, y, 20) }
    for (let i = 0; i < TRAY; i++) Kit.box(g, ...place(i), 20, 20, '#bca08f', 4)
    tray.forEach((kind, i) => small(kind, ...place(i)))
    if (s.motion?.tray) small(s.motion.kind, ...Kit.between(s, s.motion.from, place(tray.length)))   // on its way
    if (s.over === 'fail') Kit.banner(g, 'Tray is full')
  }
})
