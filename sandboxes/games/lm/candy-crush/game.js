// Candy crush as LMGame-Bench plays it: 8x8 candies of four colours, 50 swaps. Runs of three or more vanish, candies
// above fall, new ones drop in, cascades count. A swap that makes no run is undone but uses a move. The score counts
// candies.
'use strict'
const N = 8, CELL = 19, TOP = 36, LEFT = 4, MOVES = 50
const COLORS = ['#ef476f', '#06d6a0', '#118ab2', '#ffd166'], EDGES = ['#b5179e', '#048a81', '#023e8a', '#e09f3e']

function runs(board) {
  const out = new Set()
  for (let r = 0; r < N; r++) for (let c = 0; c < N; c++) for (const [dr, dc] of [[0, 1], [1, 0]]) {
    const line = [0, 1, 2].map(k => [r + k * dr, c + k * dc])
    if (line.every(([a, b]) => board[a]?.[b] !== undefined && board[a][b] === board[r][c]))
      line.forEach(([a, b]) => out.add(a * N + b))
  }
  return [...out]
}
// all cascades; the rows that each candy has fallen in them
function crush(s, random) {
  const fell = s.board.map(row => row.map(() => 0))
  for (let found = runs(s.board); found.length; found = runs(s.board)) {
    s.score += found.length
    for (const o of found) s.board[Math.floor(o / N)][o % N] = -1
    for (let c = 0; c < N; c++) {
      const kept = s.board.map((row, r) => ({v: row[c], r, fell: fell[r][c]})).filter(o => o.v >= 0)
      const lacking = N - kept.length
      for (let k = 0; k < lacking; k++) kept.unshift({v: random.int(4), r: -1 - k, fell: 0})
      kept.forEach((o, r) => { s.board[r][c] = o.v; fell[r][c] = o.fell + r - o.r })
    }
  }
  return fell
}
function swap(s, [r, c], [a, b], random) {
  if (s.board[a]?.[b] === undefined || Math.abs(r - a) + Math.abs(c - b) !== 1) return
  const flip = () => { [s.board[r][c], s.board[a][b]] = [s.board[a][b], s.board[r][c]] }
  s.left--
  flip()
  if (runs(s.board).length) Kit.animate(s, {fell: crush(s, random)}, 130)
  else { flip(); Kit.animate(s, {back: [[r, c], [a, b]]}) }
}
const at = (x, y) => [Math.floor((y - TOP) / CELL), Math.floor((x - LEFT) / CELL)]

Kit.play({
  id: 'lm-candy-crush', title: 'Candy crush (LMGame-Bench)', background: '#ffe5ec',
  begin(level, random) {
    const s = {board: [], score: 0, left: MOVES, from: null, motion: null}
    s.board = Array.from({length: N}, () => Array.from({length: N}, () => random.int(4)))
    crush(s, random)
    s.score = 0
    return s
  },
  view: s => ({score: s.score, board: {board: s.board, left: s.left}, outcome: s.left ? null : 'success',
    reason: 'no swap is left', progress: 1 - s.left / MOVES}),
  press(s, x, y, random) {
    const to = at(x, y)
    if (s.board[to[0]]?.[to[1]] === undefined) { s.from = null; return }
    if (!s.from || Math.abs(s.from[0] - to[0]) + Math.abs(s.from[1] - to[1]) !== 1) { s.from = to; return }
    swap(s, s.from, to, random)
    s.from = null
  },
  release(s, x, y, random) {
    const to = at(x, y)
    if (!s.from || s.from[0] === to[0] && s.from[1] === to[1]) return
    swap(s, s.from, to, random)
    s.from = null
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score], ['swaps', s.left]], '#9d0208')
    Kit.box(g, LEFT - 2, TOP - 2, N * CELL + 4, N * CELL + 4, '#ffc2d1', 4)
    g.save()
    g.beginPath()
    g.rect(0, TOP - 2, Kit.WIDTH, N * CELL + 4)
    g.clip()
    const {fell, back} = s.motion ?? {}, left = Kit.left(s)
    s.board.forEach((row, r) => row.forEach((v, c) => {
      const up = (fell?.[r][c] ?? 0) * left, shaken = back?.some(o => o[0] === r && o[1] === c)
      const shake = shaken ? 2 * Math.sin(12 * left) : 0
      const x = LEFT + (c + .5) * CELL + shake, y = TOP + (r + .5 - up) * CELL
      if (s.from?.[0] === r && s.from[1] === c) Kit.box(g, x - CELL / 2, y - CELL / 2, CELL, CELL, '#fff', 3)
      g.beginPath()
      if (v === 0) g.arc(x, y, 7, 0, 7)
      if (v === 1) g.rect(x - 6.5, y - 6.5, 13, 13)
      if (v === 2) g.moveTo(x, y - 8), g.lineTo(x + 8, y), g.lineTo(x, y + 8), g.lineTo(x - 8, y)
      if (v === 3) g.moveTo(x, y - 8), g.lineTo(x + 8, y + 6), g.lineTo(x - 8, y + 6)
      g.closePath()
      Object.assign(g, {fillStyle: COLORS[v], strokeStyle: EDGES[v], lineWidth: 1.2})
      g.fill()
      g.stroke()
    }))
    g.restore()
    if (!s.left) Kit.banner(g, 'No swap is left')
  }
})
