// Shapes: a picture of triangles is cut into square tiles. A click turns a tile by a quarter; a level is solved when
// the large picture equals the small one at the top. The rule of the original is known from descriptions only.
'use strict'
const KINDS = 4          // drawings of a tile: triangle, half, diamond corner, stripe
const COLORS = ['#e76f51', '#2a9d8f', '#e9c46a', '#264653']
const SIZES = [2, 2, 3, 3, 3, 4, 4, 4, 5]
const TOP = 62

const size = s => Math.min(144, Kit.HEIGHT - TOP - 4) / s.tiles.length
const left = s => (Kit.WIDTH - size(s) * s.tiles.length) / 2

function drawTile(g, x, y, w, {kind, color, angle}) {
  g.save()
  g.translate(x + w / 2, y + w / 2)
  g.rotate(angle * Math.PI / 2)
  g.fillStyle = COLORS[color]
  g.beginPath()
  const h = w / 2
  if (kind === 0) g.moveTo(-h, -h), g.lineTo(h, -h), g.lineTo(-h, h)
  if (kind === 1) g.rect(-h, -h, w, h)
  if (kind === 2) g.moveTo(-h, -h), g.arc(-h, -h, w, 0, Math.PI / 2)
  if (kind === 3) g.moveTo(-h, -h), g.lineTo(h, -h), g.lineTo(0, 0)
  g.closePath()
  g.fill()
  g.restore()
}
const wrong = s => s.tiles.flat().filter(t => t.angle % 4 !== t.target).length

Kit.play({
  id: 'shapes', title: 'Shapes', levels: 50, background: '#fdf6ec',
  begin(level, random) {
    const n = SIZES[Math.min(level, SIZES.length) - 1], mirrored = random.next() < .7
    const s = {tiles: Array.from({length: n}, () => Array.from({length: n}, () => ({
      kind: random.int(KINDS), color: random.int(COLORS.length), target: random.int(4), angle: 0}))), motion: null}
    if (mirrored) for (const row of s.tiles) for (let c = 0; c < n / 2; c++)
      Object.assign(row[n - 1 - c], {kind: row[c].kind, color: row[c].color})
    do for (const t of s.tiles.flat()) t.angle = random.int(4); while (wrong(s) < n)
    return s
  },
  view: s => ({score: wrong(s) ? 0 : 1, board: s.tiles, outcome: wrong(s) ? null : 'success', reason: 'solved',
    progress: 1 - wrong(s) / s.tiles.flat().length}),
  press(s, x, y) {
    const r = Math.floor((y - TOP) / size(s)), c = Math.floor((x - left(s)) / size(s)), tile = s.tiles[r]?.[c]
    if (!tile) return
    tile.angle = (tile.angle + 1) % 4
    Kit.animate(s, {r, c}, 100)
  },
  draw(g, s, {level, carried}) {
    Kit.text(g, `level ${level}`, 30, 14, 10, '#264653')
    Kit.text(g, `solved ${carried}`, 30, 30, 10, '#264653')
    const n = s.tiles.length, small = 48 / n
    Kit.box(g, 98, 4, 52, 52, '#fff', 3)
    s.tiles.forEach((row, r) => row.forEach((t, c) =>
      drawTile(g, 100 + c * small, 6 + r * small, small, {...t, angle: t.target})))
    Kit.box(g, left(s) - 2, TOP - 2, n * size(s) + 4, n * size(s) + 4, '#fff', 3)
    s.tiles.forEach((row, r) => row.forEach((t, c) => {
      const still = s.motion?.r === r && s.motion.c === c ? Kit.left(s) : 0
      drawTile(g, left(s) + c * size(s), TOP + r * size(s), size(s), {...t, angle: t.angle - still})
    }))
    Object.assign(g, {strokeStyle: '#d9cfc1', lineWidth: .8})
    for (let i = 0; i <= n; i++) {
      g.beginPath()
      g.moveTo(left(s) + i * size(s), TOP)
      g.lineTo(left(s) + i * size(s), TOP + n * size(s))
      g.moveTo(left(s), TOP + i * size(s))
      g.lineTo(left(s) + n * size(s), TOP + i * size(s))
      g.stroke()
    }
  }
})
