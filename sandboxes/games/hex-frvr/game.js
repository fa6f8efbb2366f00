// Hex: drag one of three pieces onto a hexagonal board of 61 cells. Full lines in any of the three directions vanish.
// A placed cell earns 1 point, a line of n cells n x 2 points times the lines cleared at once.
'use strict'
const RADIUS = 4, W = 9.6, TOP = 88, TRAY = 184
const STEPS = [[1, 0], [0, 1], [-1, 1], [-1, 0], [0, -1], [1, -1]]
const COLORS = ['#ffadad', '#ffd6a5', '#caffbf', '#9bf6ff', '#a0c4ff', '#bdb2ff', '#ffc6ff']
const PIECES = [
  [[0, 0]], [[0, 0], [1, 0], [2, 0], [-1, 0]], [[0, 0], [0, 1], [0, -1], [0, 2]], [[0, 0], [1, -1], [-1, 1], [2, -2]],
  [[0, 0], [1, 0], [0, 1], [1, -1]], [[0, 0], [1, 0], [0, 1]], [[0, 0], [-1, 0], [0, -1]], [[0, 0], [1, 0], [-1, 0]],
  [[0, 0], [0, 1], [0, -1]],
  [[0, 0], [1, -1], [-1, 1]], [[0, 0], [1, -1], [0, -1], [-1, 0]], [[0, 0], [-1, 1], [0, 1], [-1, 0]]]

const inside = ([q, r]) => Math.max(Math.abs(q), Math.abs(r), Math.abs(q + r)) <= RADIUS
const places = []
for (let r = -RADIUS; r <= RADIUS; r++) for (let q = -RADIUS; q <= RADIUS; q++) if (inside([q, r])) places.push([q, r])
const AXES = [([q, r]) => q, ([q, r]) => r, ([q, r]) => q + r]   // constant along a line of each direction
const LINES = AXES.flatMap(axis =>
  Array.from({length: 2 * RADIUS + 1}, (_, i) => places.filter(p => axis(p) === i - RADIUS)))
const mid = ([q, r]) => [Kit.WIDTH / 2 + W * Math.sqrt(3) * (q + r / 2), TOP + 1.5 * W * r]
const fits = (filled, piece, [q, r]) =>
  PIECES[piece].every(([a, b]) => inside([q + a, r + b]) && !(`${q + a},${r + b}` in filled))
const slot = i => [30 + 50 * i, TRAY]
const nearest = (x, y) => {
  const r = (y - TOP) / (1.5 * W), q = (x - Kit.WIDTH / 2) / (W * Math.sqrt(3)) - r / 2
  return places.map(p => [(p[0] - q) ** 2 + (p[1] - r) ** 2 + (p[0] - q) * (p[1] - r), p])
    .sort((a, b) => a[0] - b[0])[0]
}
const deal = random => Array.from({length: 3}, () => random.int(PIECES.length))
const stuck = s => s.tray.every(piece => piece === null || !places.some(p => fits(s.filled, piece, p)))

function put(s, i, place, random) {
  const piece = s.tray[i]
  for (const [a, b] of PIECES[piece]) s.filled[`${place[0] + a},${place[1] + b}`] = piece % COLORS.length
  s.score += PIECES[piece].length
  const full = LINES.filter(line => line.every(p => p.join() in s.filled))
  for (const line of full) s.score += 2 * line.length * full.length
  for (const line of full) for (const p of line) delete s.filled[p.join()]
  if (full.length) Kit.animate(s, {cells: full.flat()}, 130)
  s.tray[i] = null
  if (s.tray.every(o => o === null)) s.tray = deal(random)
  s.over = stuck(s)
}
const hex = (g, x, y, w, color) => Kit.polygon(g, x, y, w, 6, Math.PI / 6, color)

Kit.play({
  id: 'hex-frvr', title: 'Hex', background: '#22223b',
  begin: (level, random) => ({filled: {}, tray: deal(random), score: 0, over: false, held: null, motion: null}),
  view: s => ({score: s.score, board: {filled: s.filled, tray: s.tray}, outcome: s.over ? 'fail' : null,
    reason: 'no piece fits'}),
  ...Kit.dragging(Kit.slot_under(slot), (s, i, x, y, random) => {
    const [d, place] = nearest(x, y)
    if (d < 1 && fits(s.filled, s.tray[i], place)) put(s, i, place, random)
  }),
  draw(g, s) {
    Kit.bar(g, [['score', s.score]], '#f2e9e4')
    for (const p of places) hex(g, ...mid(p), W * .93, p.join() in s.filled ? COLORS[s.filled[p.join()]] : '#4a4e69')
    for (const p of s.motion?.cells ?? []) hex(g, ...mid(p), W * .93, `rgba(255, 255, 255, ${Kit.left(s)})`)
    s.tray.forEach((piece, i) => {
      if (piece === null) return
      const held = s.held?.i === i, w = held ? W : 5.6, [x, y] = held ? [s.held.x, s.held.y] : slot(i)
      for (const [q, r] of PIECES[piece])
        hex(g, x + w * Math.sqrt(3) * (q + r / 2), y + 1.5 * w * r, w * .93, COLORS[piece % COLORS.length])
    })
    if (s.over) Kit.banner(g, 'No piece fits')
  }
})
