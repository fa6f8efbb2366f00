// 2048 as LMGame-Bench plays it: an illegal move costs a step and changes nothing; the game ends when no move is left or after
// ten observations without a change. The score is the sum of merged tiles; LMGame-Bench shows 10 log2 of it.
'use strict'
const SIZE = 4, CELL = 36, GAP = 3, TOP = 40, LEFT = (Kit.WIDTH - SIZE * CELL - (SIZE - 1) * GAP) / 2
const COLORS = {2: '#eee4da', 4: '#ede0c8', 8: '#f2b179', 16: '#f59563', 32: '#f67c5f', 64: '#f65e3b', 128: '#edcf72',
  256: '#edcc61', 512: '#edc850', 1024: '#edc53f', 2048: '#edc22e'}
const TURNS = {ArrowLeft: 0, ArrowDown: 1, ArrowRight: 2, ArrowUp: 3}   // clockwise quarter turns that make the move a slide to the left

const turned = b => b[0].map((_, c) => b.map(row => row[c]).reverse())

function slideRow(row) {
  const tiles = row.filter(Boolean), out = []
  let gained = 0
  while (tiles.length) {
    const tile = tiles.shift()
    if (tile === tiles[0]) { tiles.shift(); out.push(2 * tile); gained += 2 * tile } else out.push(tile)
  }
  return [[...out, ...Array(SIZE - out.length).fill(0)], gained]
}

function slide(board, way) {
  let b = board, gained = 0
  for (let i = 0; i < TURNS[way]; i++) b = turned(b)
  b = b.map(row => { const [moved, more] = slideRow(row); gained += more; return moved })
  for (let i = TURNS[way]; i % 4; i++) b = turned(b)
  return [b, gained]
}

function spawn(board, random) {
  const free = board.flatMap((row, r) => row.map((v, c) => v ? null : [r, c])).filter(Boolean)
  const [r, c] = random.pick(free)
  board[r][c] = random.next() < .9 ? 2 : 4
  return [r, c]
}

const stuck = board => Object.keys(TURNS).every(way => JSON.stringify(slide(board, way)[0]) === JSON.stringify(board))

function move(s, way, random) {
  const [board, gained] = slide(s.board, way)
  if (JSON.stringify(board) === JSON.stringify(s.board)) { s.over ||= ++s.idle >= 10; return }
  s.idle = 0
  s.board = board
  s.score += gained
  s.fresh = spawn(board, random)
  s.over = stuck(board)
}

Kit.play({
  id: 'lm-2048', title: '2048 (LMGame-Bench)', background: '#faf8ef',
  begin(level, random) {
    const s = {board: Array.from({length: SIZE}, () => Array(SIZE).fill(0)), score: 0, over: false, idle: 0, fresh: null, from: null}
    spawn(s.board, random)
    spawn(s.board, random)
    return s
  },
  view: s => ({
    score: s.score, board: s.board, outcome: s.over ? (Math.max(...s.board.flat()) >= 2048 ? 'success' : 'fail') : null,
    reason: s.idle >= 10 ? 'ten moves changed nothing' : 'no move is left', progress: Math.min(1, Math.log2(Math.max(...s.board.flat())) / 11)}),
  key(s, name, random) { if (name in TURNS) move(s, name, random) },
  press(s, x, y) { s.from = [x, y] },
  release(s, x, y, random) {
    if (!s.from) return
    const dx = x - s.from[0], dy = y - s.from[1]
    s.from = null
    if (Math.max(Math.abs(dx), Math.abs(dy)) < 15) return
    move(s, Math.abs(dx) > Math.abs(dy) ? (dx > 0 ? 'ArrowRight' : 'ArrowLeft') : (dy > 0 ? 'ArrowDown' : 'ArrowUp'), random)
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score]])
    Kit.text(g, 'best tile ' + Math.max(...s.board.flat()), Kit.WIDTH / 2, 25, 9, '#9a8f84')
    Kit.box(g, LEFT - 3, TOP - 3, Kit.WIDTH - 2 * LEFT + 6, Kit.WIDTH - 2 * LEFT + 6, '#bbada0', 4)
    s.board.forEach((row, r) => row.forEach((v, c) => {
      const x = LEFT + c * (CELL + GAP), y = TOP + r * (CELL + GAP)
      Kit.box(g, x, y, CELL, CELL, v ? COLORS[v] ?? '#3c3a32' : '#cdc1b4', 3)
      if (v) Kit.text(g, v, x + CELL / 2, y + CELL / 2 + 1, v < 100 ? 17 : v < 1000 ? 14 : 11, v < 8 ? '#776e65' : '#fff')
    }))
    if (s.over) Kit.banner(g, 'Game over')
  }
})
