// Merge and double: numbered blocks fall into five columns; steer the falling block and drop it. Equal blocks that
// touch merge into their double. The game runs in real time and gets faster. The score is the sum of merged values.
'use strict'
const COLUMNS = 5, ROWS = 7, CELL = 25, TOP = 30, LEFT = 17
const COLORS = {2: '#ffb4a2', 4: '#f28482', 8: '#b5838d', 16: '#6d6875', 32: '#83c5be', 64: '#006d77', 128: '#f4a261',
  256: '#e76f51', 512: '#9b5de5', 1024: '#0096c7'}
const LIGHT = new Set([2, 32, 128])   // with dark numbers

const top_of = (s, c) => s.board.findIndex(row => row[c]) < 0 ? ROWS : s.board.findIndex(row => row[c])
const speed = s => 1 / Math.max(25, 70 - s.landed)   // rows a frame

// merge the block at (r, c) with equal neighbours below and beside it until nothing changes
function merge(s, r, c) {
  for (let merged = false;; merged = true) {
    const v = s.board[r][c], near = [[r + 1, c], [r, c - 1], [r, c + 1]].filter(([a, b]) => s.board[a]?.[b] === v)
    if (!near.length && merged) Kit.animate(s, {r, c})
    if (!near.length) return
    for (const [a, b] of near) s.board[a][b] = 0
    s.board[r][c] = v * 2 ** near.length
    s.score += s.board[r][c]
    for (let b = 0; b < COLUMNS; b++) {
      const kept = s.board.map(row => row[b]).filter(Boolean)
      for (let a = 0; a < ROWS; a++) s.board[a][b] = kept[a - ROWS + kept.length] ?? 0
    }
    r = Math.max(r, s.board.findIndex(row => row[c]))
    if (!s.board[r][c]) return
  }
}
function land(s, random) {
  const r = top_of(s, s.falling.c) - 1
  if (r < 0) { s.over = true; return }
  s.board[r][s.falling.c] = s.falling.value
  merge(s, r, s.falling.c)
  s.landed++
  s.falling = {c: 2, y: 0, value: s.next}
  s.next = 2 ** (1 + random.int(Math.min(5, 2 + Math.floor(s.landed / 15))))
  if (top_of(s, 2) <= 0) s.over = true
}

Kit.play({
  id: 'merge-and-double', title: 'Merge and double', background: '#ffe5d9', realTime: true,
  begin(level, random) {   // two rows to start with
    const board = Array.from({length: ROWS},
      (_, r) => Array.from({length: COLUMNS}, () => r < ROWS - 2 ? 0 : 2 ** (1 + random.int(4))))
    return {board, score: 0, landed: 0, over: false, falling: {c: 2, y: 0, value: 2 ** (1 + random.int(2))},
      next: 2 ** (1 + random.int(2)),
      motion: null}
  },
  view: s => ({score: s.score, board: {board: s.board, falling: s.falling, next: s.next},
    outcome: s.over ? 'fail' : null, reason: 'the middle column is full',
    progress: Math.min(1, s.score / 5000)}),
  key(s, name, random) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[name], c = s.falling.c + by
    if (by && c >= 0 && c < COLUMNS && top_of(s, c) > Math.floor(s.falling.y)) s.falling.c = c
    if (name === 'ArrowDown') land(s, random)
  },
  press(s, x, y, random) {
    const c = Math.floor((x - LEFT) / CELL)
    if (c < 0 || c >= COLUMNS || top_of(s, c) <= Math.floor(s.falling.y)) return
    s.falling.c = c
    land(s, random)
  },
  tick(s, random) {
    s.falling.y += speed(s)
    if (s.falling.y >= top_of(s, s.falling.c) - 1) land(s, random)
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score], ['next', s.next]], '#6d6875')
    Kit.box(g, LEFT - 3, TOP - 3, COLUMNS * CELL + 6, ROWS * CELL + 6, '#fcd5ce', 4)
    const block = (v, x, y, more = 0) => {
      Kit.box(g, x + 1 - more, y + 1 - more, CELL - 2 + 2 * more, CELL - 2 + 2 * more, COLORS[v] ?? '#073b4c', 4)
      const size = v < 100 ? 12 : v < 1000 ? 10 : 8
      Kit.text(g, v, x + CELL / 2, y + CELL / 2 + .5, size, LIGHT.has(v) ? '#4a3b47' : '#fff')
    }
    const grown = (r, c) => s.motion?.r === r && s.motion.c === c ? 3 * Kit.left(s) : 0   // after a merge
    for (let c = 0; c < COLUMNS; c++)
      Kit.box(g, LEFT + c * CELL + 1, TOP, CELL - 2, ROWS * CELL, c % 2 ? '#fae1dd' : '#f8edeb', 2)
    s.board.forEach((row, r) => row.forEach((v, c) => {
      if (v) block(v, LEFT + c * CELL, TOP + r * CELL, grown(r, c))
    }))
    if (s.over) { Kit.banner(g, 'Game over'); return }
    const x = LEFT + s.falling.c * CELL
    Kit.box(g, x + 1, TOP, CELL - 2, top_of(s, s.falling.c) * CELL, 'rgba(109, 104, 117, .13)', 4)   // where it falls
    block(s.falling.value, x, TOP + s.falling.y * CELL)
  }
})
