// Gem 11: a click on a group of equal gems merges it into one gem of the next kind at the clicked place; gems above
// fall, new ones drop in. The score is the value of every merged gem. The game ends when no two equal gems touch.
'use strict'
const N = 5, CELL = 30, TOP = 44, LEFT = 5
const COLORS = ['', '#74c0fc', '#8ce99a', '#ffd43b', '#ff922b', '#ff6b6b', '#da77f2', '#9775fa', '#d8c3a5', '#15aabf',
  '#f783ac', '#ffffff']

function group(board, r, c) {
  const found = new Set(), todo = [[r, c]]
  while (todo.length) {
    const [a, b] = todo.pop()
    if (found.has(a * N + b)) continue
    found.add(a * N + b)
    for (const [dr, dc] of [[-1, 0], [0, 1], [1, 0], [0, -1]])
      if (board[a + dr]?.[b + dc] === board[r][c]) todo.push([a + dr, b + dc])
  }
  return [...found]
}
const stuck = board => board.every((row, r) => row.every((v, c) => v !== board[r + 1]?.[c] && v !== row[c + 1]))
const gem = (board, random) =>
  Math.min(1 + Math.floor(random.next() ** 2 * Math.max(3, Math.max(...board.flat()) - 2)), 7)

Kit.play({
  id: 'gem-11', title: 'Gem 11', background: '#343a40',
  begin(level, random) {
    const s = {board: Array.from({length: N}, () => Array(N).fill(1)), score: 0, over: false, motion: null}
    do s.board = s.board.map(row => row.map(() => 1 + random.int(3))); while (stuck(s.board))
    return s
  },
  view: s => ({score: s.score, board: s.board, progress: Math.max(...s.board.flat()) / 11,
    outcome: Math.max(...s.board.flat()) >= 11 ? 'success' : s.over ? 'fail' : null,
    reason: s.over ? 'no equal gems touch' : 'gem 11'}),
  press(s, x, y, random) {
    const r = Math.floor((y - TOP) / CELL), c = Math.floor((x - LEFT) / CELL)
    if (s.board[r]?.[c] === undefined) return
    const cells = group(s.board, r, c), kind = s.board[r][c]
    if (cells.length < 2) return
    s.score += kind * cells.length
    for (const o of cells) s.board[Math.floor(o / N)][o % N] = 0
    s.board[r][c] = kind + 1
    const fell = s.board.map(row => row.map(() => 0))   // rows that each gem has fallen
    for (let b = 0; b < N; b++) {
      const rows = s.board.flatMap((row, a) => row[b] ? [a] : []), kept = rows.map(a => s.board[a][b])
      const lacking = N - kept.length
      for (let k = 0; k < lacking; k++) kept.unshift(gem(s.board, random))
      kept.forEach((v, a) => {
        s.board[a][b] = v
        fell[a][b] = a < lacking ? lacking : a - rows[a - lacking]
      })
    }
    s.over = stuck(s.board)
    Kit.animate(s, {fell}, 130)
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score], ['best', Math.max(...s.board.flat())]], '#f1f3f5')
    Kit.text(g, 'merge equal gems, up to 11', Kit.WIDTH / 2, 28, 8, '#adb5bd')
    g.save()
    g.beginPath()
    g.rect(0, TOP, Kit.WIDTH, N * CELL)
    g.clip()
    s.board.forEach((row, r) => row.forEach((v, c) => {
      const up = (s.motion?.fell?.[r][c] ?? 0) * Kit.left(s), x = LEFT + (c + .5) * CELL, y = TOP + (r + .5 - up) * CELL
      Kit.polygon(g, x, y, 13.5, 8, Math.PI / 8, COLORS[v])
      Kit.text(g, v, x, y + .5, 14, '#212529')
    }))
    g.restore()
    if (s.over) Kit.banner(g, 'No moves left')
  }
})
