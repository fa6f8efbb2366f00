// 2048, shared by `2048` and `lm/2048`: all tiles slide, equal ones merge once a move. Spawns 2 (90 %) or 4 (10 %). The
// score is the sum of merged tiles. With `patience`, the game also ends after so many moves in a row change nothing.
'use strict'
const Slide = (() => {
  const SIZE = 4, CELL = 36, GAP = 3, TOP = 40, LEFT = (Kit.WIDTH - SIZE * CELL - (SIZE - 1) * GAP) / 2
  const COLORS = {2: '#eee4da', 4: '#ede0c8', 8: '#f2b179', 16: '#f59563', 32: '#f67c5f', 64: '#f65e3b', 128: '#edcf72',
    256: '#edcc61', 512: '#edc850', 1024: '#edc53f', 2048: '#edc22e'}
  // the cell that lies `k` cells from the wall on line `i`
  const WAYS = {
    ArrowLeft: (i, k) => [i, k], ArrowRight: (i, k) => [i, SIZE - 1 - k],
    ArrowUp: (i, k) => [k, i], ArrowDown: (i, k) => [SIZE - 1 - k, i]}
  const lines = [0, 1, 2, 3]

  // where each tile goes: {value, from, to}; two that go to one place merge
  function paths(board, way) {
    const out = []
    for (const i of lines) {
      let k = -1, open = 0   // the last place taken, and the value there that can still merge
      for (const from of lines.map(o => WAYS[way](i, o))) {
        const value = board[from[0]][from[1]]
        if (!value) continue
        if (value === open) open = 0; else { k++; open = value }
        out.push({value, from, to: WAYS[way](i, k)})
      }
    }
    return out
  }
  // the board after a move, and its points
  function slide(board, way) {
    const out = lines.map(() => lines.map(() => 0))
    let gained = 0
    for (const {value, to: [r, c]} of paths(board, way)) {
      if (out[r][c]) gained += 2 * value
      out[r][c] += value
    }
    return [out, gained]
  }
  const same = (a, b) => lines.every(r => lines.every(c => a[r][c] === b[r][c]))
  const stuck = board => Object.keys(WAYS).every(way => same(slide(board, way)[0], board))

  function spawn(board, random) {
    const free = board.flatMap((row, r) => row.map((v, c) => v ? null : [r, c])).filter(Boolean)
    const [r, c] = random.pick(free)
    board[r][c] = random.next() < .9 ? 2 : 4
    return [r, c]
  }
  function move(s, way, random, patience) {
    const [board, gained] = slide(s.board, way)
    if (same(board, s.board)) { s.over ||= ++s.idle >= patience; return }
    const tiles = paths(s.board, way)
    Object.assign(s, {board, idle: 0, score: s.score + gained})
    Kit.animate(s, {tiles, fresh: spawn(board, random)}, 130)
    s.over = stuck(board)
  }

  function tile(g, v, x, y, size = 1) {
    const w = CELL * size, at = (CELL - w) / 2
    Kit.box(g, x + at, y + at, w, w, v ? COLORS[v] ?? '#3c3a32' : '#cdc1b4', 3)
    if (!v) return
    const height = (v < 100 ? 17 : v < 1000 ? 14 : 11) * size
    Kit.text(g, v, x + CELL / 2, y + CELL / 2 + 1, height, v < 8 ? '#776e65' : '#fff')
  }
  const place = ([r, c]) => [LEFT + c * (CELL + GAP), TOP + r * (CELL + GAP)]
  // first the old tiles slide, then merged and new ones pop up
  function board(g, s) {
    const {tiles, fresh} = s.motion ?? {}, done = 1 - Kit.left(s), sliding = tiles && done < .6
    s.board.forEach((row, r) => row.forEach((v, c) => tile(g, 0, ...place([r, c]))))
    if (sliding) for (const {value, from, to} of tiles) {
      const [a, b] = [place(from), place(to)]
      tile(g, value, ...a.map((o, k) => o + (b[k] - o) * done / .6))
    }
    else s.board.forEach((row, r) => row.forEach((v, c) => {
      const merged = tiles?.filter(o => o.to[0] === r && o.to[1] === c).length > 1
      const grown = fresh?.[0] === r && fresh[1] === c ? (done - .6) / .4 : merged ? 1.1 : 1
      if (v) tile(g, v, ...place([r, c]), grown)
    }))
  }
  const best = s => Math.max(...s.board.flat())

  const game = patience => ({
    background: '#faf8ef',
    begin(level, random) {
      const s = {board: lines.map(() => lines.map(() => 0)), score: 0, over: false, idle: 0, from: null, motion: null}
      spawn(s.board, random)
      spawn(s.board, random)
      return s
    },
    view: s => ({
      score: s.score, board: s.board, outcome: s.over ? (best(s) >= 2048 ? 'success' : 'fail') : null,
      reason: s.idle >= patience ? `${patience} moves changed nothing` : 'no move is left',
      progress: Math.min(1, Math.log2(best(s)) / 11)}),
    key(s, name, random) { if (name in WAYS) move(s, name, random, patience) },
    press(s, x, y) { s.from = [x, y] },
    release(s, x, y, random) {
      if (!s.from) return
      const way = Kit.swipe(s.from, [x, y])
      s.from = null
      if (way) move(s, way, random, patience)
    },
    draw(g, s) {
      Kit.bar(g, [['score', s.score]])
      Kit.text(g, 'best tile ' + best(s), Kit.WIDTH / 2, 25, 9, '#9a8f84')
      Kit.box(g, LEFT - 3, TOP - 3, Kit.WIDTH - 2 * LEFT + 6, Kit.WIDTH - 2 * LEFT + 6, '#bbada0', 4)
      board(g, s)
      if (s.over) Kit.banner(g, 'Game over')
    }
  })
  return {game}
})()
