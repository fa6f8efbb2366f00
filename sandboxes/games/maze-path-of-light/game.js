// Maze, path of light: a light runs through a maze until the next junction, wall or turn of your choice, and leaves a
// bright path. A level is solved when the light reaches the star.
'use strict'
const TOP = 26, SIDE = 152, LEFT = 4
const WAYS = {ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1]}
const SIZES = [4, 5, 6, 7, 8, 9, 10]

// depth-first search digs passages; `open[r][c]` holds the ways that lead out of a cell, as bits 1, 2, 4, 8
function dig(n, random) {
  const open = Array.from({length: n}, () => Array(n).fill(0)), seen = new Set(['0 0']), stack = [[0, 0]]
  const ways = Object.values(WAYS)
  while (stack.length) {
    const [r, c] = stack.at(-1)
    const next = ways.map(([a, b], k) => [r + a, c + b, k])
      .filter(([a, b]) => a >= 0 && b >= 0 && a < n && b < n && !seen.has(`${a} ${b}`))
    if (!next.length) { stack.pop(); continue }
    const [a, b, k] = random.pick(next)
    open[r][c] |= 1 << k
    open[a][b] |= 1 << (k + 2) % 4
    seen.add(`${a} ${b}`)
    stack.push([a, b])
  }
  return open
}
function go(s, k) {
  if (s.over) return
  const ways = Object.values(WAYS), before = s.path.length - 1
  for (;;) {
    const [r, c] = s.at
    if (!(s.open[r][c] >> k & 1)) break
    s.at = [r + ways[k][0], c + ways[k][1]]
    s.path.push(s.at)
    if (s.at[0] === s.goal[0] && s.at[1] === s.goal[1]) { s.over = true; break }
    const exits = s.open[s.at[0]][s.at[1]] & ~(1 << (k + 2) % 4)
    if (exits & ~(1 << k)) break   // another way leads off
  }
  if (s.path.length - 1 > before) Kit.animate(s, {before})
}
// cells on the way from one cell to another; the maze is a tree, so there is one way
function distance(open, from, to) {
  let cells = [from]
  const seen = new Set([`${from}`])
  for (let n = 0; cells.length; n++) {
    if (cells.some(o => `${o}` === `${to}`)) return n
    cells = cells.flatMap(([r, c]) => Object.values(WAYS).filter((_, k) => open[r][c] >> k & 1)
      .map(([a, b]) => [r + a, c + b])).filter(o => !seen.has(`${o}`))
    for (const o of cells) seen.add(`${o}`)
  }
}
const cell = s => SIDE / s.open.length

Kit.play({
  id: 'maze-path-of-light', title: 'Maze: path of light', levels: 50, background: '#10002b', repeats: true,
  begin(level, random) {
    const n = SIZES[Math.min(level, SIZES.length) - 1]
    return {open: dig(n, random), at: [0, 0], goal: [n - 1, n - 1], path: [[0, 0]], over: false, from: null,
      motion: null}
  },
  view: s => ({score: s.over ? 1 : 0, board: {open: s.open, at: s.at, goal: s.goal},
    outcome: s.over ? 'success' : null, reason: 'reached the star',
    progress: Math.max(0, 1 - distance(s.open, s.at, s.goal) / distance(s.open, [0, 0], s.goal))}),
  key(s, name) { if (name in WAYS) go(s, Object.keys(WAYS).indexOf(name)) },
  press(s, x, y) { s.from = [x, y] },
  release(s, x, y) {
    const way = s.from && Kit.swipe(s.from, [x, y], 10)
    s.from = null
    if (way) go(s, Object.keys(WAYS).indexOf(way))
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['solved', carried]], '#e0aaff')
    const w = cell(s), mid = ([r, c]) => [LEFT + (c + .5) * w, TOP + (r + .5) * w]
    Kit.box(g, LEFT, TOP, SIDE, SIDE, '#240046', 3)
    Object.assign(g, {strokeStyle: 'rgba(255, 214, 10, .65)', lineWidth: w / 3.2, lineCap: 'round', lineJoin: 'round'})
    const before = s.motion?.before ?? s.path.length - 1
    const at = Kit.between(s, mid(s.path[before]), mid(s.at))   // a run is straight
    g.beginPath()
    s.path.slice(0, before + 1).map(mid).forEach(([x, y], i) => i ? g.lineTo(x, y) : g.moveTo(x, y))
    g.lineTo(...at)
    g.stroke()
    Object.assign(g, {strokeStyle: '#9d4edd', lineWidth: 2})
    s.open.forEach((row, r) => row.forEach((o, c) => {
      const x = LEFT + c * w, y = TOP + r * w
      g.beginPath()
      if (!(o & 1)) g.moveTo(x, y), g.lineTo(x + w, y)
      if (!(o & 2)) g.moveTo(x + w, y), g.lineTo(x + w, y + w)
      if (!(o & 4)) g.moveTo(x, y + w), g.lineTo(x + w, y + w)
      if (!(o & 8)) g.moveTo(x, y), g.lineTo(x, y + w)
      g.stroke()
    }))
    Kit.text(g, '★', mid(s.goal)[0], mid(s.goal)[1] + 1, w * .7, '#ffd60a')
    g.beginPath()
    g.arc(...at, w / 3.4, 0, 7)
    g.fillStyle = '#fff3b0'
    g.fill()
  }
})
