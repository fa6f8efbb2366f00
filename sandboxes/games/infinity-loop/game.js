// Infinity loop: every tile carries arms to some of its sides; a click turns a tile by a quarter. A level is solved
// when every arm meets an arm of the next tile, so that no line has a loose end.
'use strict'
const STEPS = [[-1, 0], [0, 1], [1, 0], [0, -1]]   // north, east, south, west: bit 1, 2, 4, 8
const turn = t => (t << 1 | t >> 3) & 15
const SIZES = [[3, 3], [3, 3], [4, 3], [4, 4], [5, 4], [5, 5], [6, 5]]   // rows and columns of the levels
const TOP = 26

function tilesOf(rows, columns, random) {
  const board = Array.from({length: rows}, () => Array(columns).fill(0))
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    if (c + 1 < columns && random.next() < .6) { board[r][c] |= 2; board[r][c + 1] |= 8 }
    if (r + 1 < rows && random.next() < .6) { board[r][c] |= 4; board[r + 1][c] |= 1 }
  }
  return board
}
function loose(board) {
  let n = 0
  board.forEach((row, r) => row.forEach((t, c) => STEPS.forEach(([dr, dc], k) => {
    const other = board[r + dr]?.[c + dc] ?? 0
    if (t >> k & 1 && !(other >> (k + 2) % 4 & 1)) n++
  })))
  return n
}
const arms = board => board.flat().reduce((n, t) => n + [0, 1, 2, 3].filter(k => t >> k & 1).length, 0)
const cell = s => Math.min((Kit.WIDTH - 8) / s.board[0].length, (Kit.HEIGHT - TOP - 8) / s.board.length)
const corner = s => [(Kit.WIDTH - cell(s) * s.board[0].length) / 2,
  TOP + (Kit.HEIGHT - TOP - cell(s) * s.board.length) / 2]

Kit.play({
  id: 'infinity-loop', title: 'Infinity loop', levels: 50, background: '#e8f1f2',
  begin(level, random) {
    const [rows, columns] = SIZES[Math.min(level, SIZES.length) - 1]
    const s = {board: [], motion: null}
    do s.board = tilesOf(rows, columns, random).map(row => row.map(t => {
      for (let k = random.int(4); k > 0; k--) t = turn(t)
      return t
    })); while (loose(s.board) < 4)
    return s
  },
  view: s => ({score: loose(s.board) ? 0 : 1, board: s.board, outcome: loose(s.board) ? null : 'success',
    reason: 'solved', progress: 1 - loose(s.board) / arms(s.board)}),
  press(s, x, y) {
    const [left, top] = corner(s), r = Math.floor((y - top) / cell(s)), c = Math.floor((x - left) / cell(s))
    if (s.board[r]?.[c] === undefined) return
    s.board[r][c] = turn(s.board[r][c])
    Kit.animate(s, {r, c}, 100)
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['solved', carried]], '#335c67')
    const [left, top] = corner(s), size = cell(s)
    s.board.forEach((row, r) => row.forEach((t, c) => {
      g.save()
      g.translate(left + (c + .5) * size, top + (r + .5) * size)
      if (s.motion?.r === r && s.motion.c === c) g.rotate(-Kit.left(s) * Math.PI / 2)
      Object.assign(g, {strokeStyle: loose(s.board) ? '#335c67' : '#2a9d8f', lineWidth: size / 7, lineCap: 'round'})
      STEPS.forEach(([dr, dc], k) => {
        if (!(t >> k & 1)) return
        g.beginPath()
        g.moveTo(0, 0)
        g.lineTo(dc * size * .48, dr * size * .48)
        g.stroke()
      })
      if ([1, 2, 4, 8].includes(t)) {
        g.beginPath()
        g.arc(0, 0, size / 5, 0, 7)
        g.fillStyle = '#e8f1f2'
        g.fill()
        g.lineWidth = size / 9
        g.stroke()
      }
      g.restore()
    }))
  }
})
