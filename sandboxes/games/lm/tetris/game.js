// Tetris as LMGame-Bench plays it: 10x20, pieces from a shuffled bag of seven, four previews, no wall kicks. Every
// action lets the piece fall by one row; the hard drop puts it down. 1 point a piece, 10 a line.
'use strict'
const W = 10, H = 20, CELL = 9, TOP = 22, LEFT = 6
const SHAPES = {I: ['....', 'XXXX', '....', '....'], O: ['XX', 'XX'], T: ['.X.', 'XXX', '...'],
  S: ['.XX', 'XX.', '...'], Z: ['XX.', '.XX', '...'], J: ['X..', 'XXX', '...'], L: ['..X', 'XXX', '...']}
const COLORS = {I: '#48cae4', O: '#ffd60a', T: '#b5179e', S: '#70e000', Z: '#ef233c', J: '#4361ee', L: '#fb8500'}

const grid = kind => SHAPES[kind].map(row => [...row].map(o => o === 'X'))
const turned = shape => shape[0].map((_, c) => shape.map(row => row[c]).reverse())
const clear = (board, {shape, r, c}) =>
  shape.every((row, a) => row.every((on, b) => !on || board[r + a]?.[c + b] === ''))
const bag = random => random.shuffle(Object.keys(SHAPES))

function next(s, random) {
  while (s.queue.length < 5) s.queue.push(...bag(random))
  const kind = s.queue.shift(), shape = grid(kind)
  s.piece = {kind, shape, r: kind === 'I' ? -1 : 0, c: Math.floor((W - shape[0].length) / 2)}
  if (!clear(s.board, s.piece)) s.over = true
}
function lock(s, random) {
  const {kind, shape, r, c} = s.piece
  shape.forEach((row, a) => row.forEach((on, b) => { if (on) s.board[r + a][c + b] = kind }))
  const left = s.board.filter(row => row.some(o => !o)), lines = H - left.length
  if (lines) Kit.animate(s, {rows: s.board.flatMap((row, a) => row.every(Boolean) ? [a] : [])})
  s.board = [...Array.from({length: lines}, () => Array(W).fill('')), ...left]
  s.score += 1 + 10 * lines
  s.lines += lines
  next(s, random)
}
const shifted = (s, dr, dc) => ({...s.piece, r: s.piece.r + dr, c: s.piece.c + dc})
function fall(s, random) {
  if (clear(s.board, shifted(s, 1, 0))) { s.piece.r++; return true }
  lock(s, random)
  return false
}

Kit.play({
  id: 'lm-tetris', title: 'Tetris (LMGame-Bench)', background: '#1b1b2f',
  begin(level, random) {
    const s = {board: Array.from({length: H}, () => Array(W).fill('')), queue: [], piece: null, score: 0, lines: 0,
      over: false, motion: null}
    next(s, random)
    return s
  },
  view: s => ({score: s.score, board: {board: s.board, piece: s.piece, queue: s.queue.slice(0, 4)},
    outcome: s.over ? 'fail' : null, reason: 'the stack reached the top'}),
  key(s, name, random) {
    if (name === ' ') { while (fall(s, random)); return }
    const tried = {ArrowLeft: () => shifted(s, 0, -1), ArrowRight: () => shifted(s, 0, 1), ArrowDown: () => s.piece,
      ArrowUp: () => ({...s.piece, shape: turned(s.piece.shape)}),
      z: () => ({...s.piece, shape: turned(turned(turned(s.piece.shape)))})}[name]
    if (!tried) return
    const to = tried()
    if (clear(s.board, to)) s.piece = to
    fall(s, random)
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score], ['lines', s.lines]], '#e0e0e0')
    Kit.box(g, LEFT - 2, TOP - 2, W * CELL + 4, H * CELL + 4, '#3f3f5a', 2)
    Kit.box(g, LEFT, TOP, W * CELL, H * CELL, '#0f0f1e', 0)
    const cell = (r, c, kind) => Kit.box(g, LEFT + c * CELL + .5, TOP + r * CELL + .5, CELL - 1, CELL - 1,
      COLORS[kind], 1.5)
    s.board.forEach((row, r) => row.forEach((o, c) => { if (o) cell(r, c, o) }))
    if (!s.over) s.piece.shape.forEach((row, a) =>
      row.forEach((on, b) => { if (on) cell(s.piece.r + a, s.piece.c + b, s.piece.kind) }))
    for (const r of s.motion?.rows ?? [])
      Kit.box(g, LEFT, TOP + r * CELL, W * CELL, CELL, `rgba(255, 255, 255, ${Kit.left(s)})`, 0)
    Kit.text(g, 'next', 130, 30, 9, '#e0e0e0')
    s.queue.slice(0, 4).forEach((kind, i) => grid(kind).forEach((row, a) => row.forEach((on, b) => {
      if (on) Kit.box(g, 114 + b * 8, 40 + i * 36 + a * 8, 7, 7, COLORS[kind], 1)
    })))
    if (s.over) Kit.banner(g, 'Game over')
  }
})
