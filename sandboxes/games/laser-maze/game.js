// Laser maze: a beam leaves the source, is turned by mirrors and stopped by walls. A click turns a mirror by a quarter.
// A level is solved when the beam has passed every target.
'use strict'
const STEPS = [[-1, 0], [0, 1], [1, 0], [0, -1]]
const N = 6, CELL = 25, TOP = 40, LEFT = 5
const MIRROR = {'/': [1, 0, 3, 2], '\\': [3, 2, 1, 0]}   // direction after the mirror

function trace(board, source) {
  let [r, c] = source.at, way = source.way
  const path = [[r, c]], seen = new Set()
  for (;;) {
    r += STEPS[way][0]
    c += STEPS[way][1]
    const what = board[r]?.[c]
    if (what === undefined || what === '#' || seen.has(`${r} ${c} ${way}`)) break
    seen.add(`${r} ${c} ${way}`)
    path.push([r, c])
    if (what in MIRROR) way = MIRROR[what][way]
  }
  return {path, end: [r, c]}
}
function hit(s) {
  // the path begins at the source, which lies outside the board
  const lit = new Set(trace(s.board, s.source).path.slice(1).map(([r, c]) => r * N + c))
  return s.targets.filter(([r, c]) => lit.has(r * N + c)).length
}

// whether all targets can be hit with at most so many clicks
function solvable(s, mirrors, clicks) {
  if (hit(s) === s.targets.length) return true
  return clicks > 0 && mirrors.some(([r, c], i) => {
    const before = s.board[r][c]
    s.board[r][c] = before === '/' ? '\\' : '/'
    const found = solvable(s, mirrors.slice(i + 1), clicks - 1)
    s.board[r][c] = before
    return found
  })
}
// a random walk of mirrors from the source makes a solvable level: targets lie on the beam, then the mirrors are turned
function level_of(level, random) {
  const mirrors = Math.min(2 + level, 8), targets = Math.min(1 + Math.floor(level / 2), 4)
  for (;;) {
    const board = Array.from({length: N}, () => Array(N).fill('.'))
    const source = {at: [random.int(N), -1], way: 1}
    for (let i = 0; i < mirrors; i++) board[random.int(N)][random.int(N)] = random.pick(['/', '\\'])
    for (let i = random.int(4); i > 0; i--) {
      const [r, c] = [random.int(N), random.int(N)]
      if (board[r][c] === '.') board[r][c] = '#'
    }
    const lit = trace(board, source).path.slice(1)
    const free = lit.filter(([r, c]) => board[r][c] === '.'), turns = lit.filter(([r, c]) => board[r][c] !== '.').length
    const places = random.shuffle(free.slice(Math.floor(free.length / 2)))
    const distinct = [...new Set(places.map(String))].slice(0, targets).map(o => o.split(',').map(Number))
    if (turns < Math.min(1 + level, 4) || distinct.length < targets) continue
    const s = {board, source, targets: distinct}
    const turning = board.flatMap((row, r) => row.map((_, c) => [r, c])).filter(([r, c]) => board[r][c] in MIRROR)
    for (const [r, c] of turning) if (random.next() < .6) board[r][c] = board[r][c] === '/' ? '\\' : '/'
    if (!solvable(s, turning, Math.min(Math.floor(level / 2), 2))) return s   // needs more clicks than these
  }
}

Kit.play({
  id: 'laser-maze', title: 'Laser maze', levels: 50, background: '#1d1f2b',
  begin: (level, random) => level_of(level, random),
  view(s) {
    const n = hit(s), all = n === s.targets.length
    return {score: all ? 1 : 0, board: s, outcome: all ? 'success' : null, reason: 'solved',
      progress: n / s.targets.length}
  },
  press(s, x, y) {
    const r = Math.floor((y - TOP) / CELL), c = Math.floor((x - LEFT) / CELL), what = s.board[r]?.[c]
    if (!(what in MIRROR)) return
    s.board[r][c] = what === '/' ? '\\' : '/'
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['solved', carried]], '#c7cbe0')
    const mid = ([r, c]) => [LEFT + (c + .5) * CELL, TOP + (r + .5) * CELL]
    const lit = new Set(trace(s.board, s.source).path.map(String))
    s.board.forEach((row, r) => row.forEach((what, c) => {
      const color = what === '#' ? '#7a5c58' : '#2b2e40'
      Kit.box(g, LEFT + c * CELL + .5, TOP + r * CELL + .5, CELL - 1, CELL - 1, color, 3)
    }))
    const {path, end} = trace(s.board, s.source)
    Object.assign(g, {strokeStyle: '#ff4d5e', lineWidth: 2.5, lineJoin: 'round'})
    g.beginPath()
    path.map(mid).forEach(([x, y], i) => i ? g.lineTo(x, y) : g.moveTo(Math.max(0, x), y))
    const [x, y] = mid(end), [px, py] = mid(path.at(-1))
    g.lineTo((x + px) / 2, (y + py) / 2)
    g.stroke()
    s.targets.forEach(([r, c]) => {
      const [x, y] = mid([r, c])
      g.beginPath()
      g.arc(x, y, 7, 0, 7)
      g.fillStyle = lit.has(`${r},${c}`) ? '#7bed9f' : '#57606f'
      g.fill()
      Object.assign(g, {strokeStyle: '#7bed9f', lineWidth: 1.5})
      g.stroke()
    })
    Object.assign(g, {strokeStyle: '#a5d8ff', lineWidth: 3.5, lineCap: 'round'})
    s.board.forEach((row, r) => row.forEach((what, c) => {
      if (!(what in MIRROR)) return
      const [x, y] = mid([r, c]), d = what === '/' ? -8 : 8
      g.beginPath()
      g.moveTo(x - 8, y - d)
      g.lineTo(x + 8, y + d)
      g.stroke()
    }))
    const [, sy] = mid([s.source.at[0], 0])
    Kit.box(g, 0, sy - 6, 6, 12, '#ff4d5e', 2)
  }
})
