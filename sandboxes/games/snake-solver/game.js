// Snake solver: a snake moves one cell a key in a walled field, grows by one at each apple, and must leave through the exit
// that opens when all apples are eaten. It stops at walls and at itself; a level without a way out is lost.
'use strict'
const N = 8, CELL = 19, TOP = 40, LEFT = 4
const WAYS = {ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1]}
const same = (a, b) => a[0] === b[0] && a[1] === b[1]
const open = (s, r, c) => r >= 0 && c >= 0 && r < N && c < N && !s.walls.some(o => same(o, [r, c])) && !s.snake.slice(0, -1).some(o => same(o, [r, c]))
const free = (s, [r, c]) => open(s, r, c) && (s.apples.length === 0 || !same(s.exit, [r, c]))

function level_of(level, random) {
  for (;;) {
    const taken = random.shuffle(Array.from({length: N * N}, (_, i) => [Math.floor(i / N), i % N]))
    const s = {snake: [taken.pop()], walls: [], apples: [], exit: null, over: null}
    for (let i = 0; i < Math.min(3 + 2 * level, 16); i++) s.walls.push(taken.pop())
    for (let i = 0; i < Math.min(1 + level, 6); i++) s.apples.push(taken.pop())
    s.exit = taken.pop()
    // everything can be reached from the head
    const seen = new Set(), todo = [s.snake[0]]
    while (todo.length) {
      const [r, c] = todo.pop()
      if (seen.has(r * N + c) || r < 0 || c < 0 || r >= N || c >= N || s.walls.some(o => same(o, [r, c]))) continue
      seen.add(r * N + c)
      todo.push([r + 1, c], [r - 1, c], [r, c + 1], [r, c - 1])
    }
    if ([...s.apples, s.exit].every(([r, c]) => seen.has(r * N + c)) && Object.values(WAYS).filter(([a, b]) => free(s, [s.snake[0][0] + a, s.snake[0][1] + b])).length > 1) return s
  }
}
const step = (s, [dr, dc]) => {
  const to = [s.snake[0][0] + dr, s.snake[0][1] + dc]
  if (!free(s, to)) return
  const at = s.apples.findIndex(o => same(o, to))
  s.snake.unshift(to)
  if (at >= 0) s.apples.splice(at, 1); else s.snake.pop()
  if (same(to, s.exit)) s.over = 'success'
  else if (!Object.values(WAYS).some(([a, b]) => free(s, [to[0] + a, to[1] + b]))) s.over = 'fail'
}

Kit.play({
  id: 'snake-solver', title: 'Snake solver', levels: 50, background: '#d8f3dc', repeats: true,
  begin: (level, random) => level_of(level, random),
  view: s => ({score: s.over === 'success' ? 1 : 0, board: s, outcome: s.over, reason: s.over === 'fail' ? 'the snake is caught' : 'left through the exit'}),
  key(s, name) { if (name in WAYS) step(s, WAYS[name]) },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['solved', carried]], '#1b4332')
    Kit.text(g, s.apples.length ? `${s.apples.length} apples left` : 'to the exit', Kit.WIDTH / 2, 27, 9, '#40916c')
    const at = ([r, c]) => [LEFT + c * CELL, TOP + r * CELL]
    for (let r = 0; r < N; r++) for (let c = 0; c < N; c++) Kit.box(g, ...at([r, c]), CELL, CELL, (r + c) % 2 ? '#b7e4c7' : '#c7ecd4', 0)
    for (const o of s.walls) Kit.box(g, at(o)[0] + .5, at(o)[1] + .5, CELL - 1, CELL - 1, '#52796f', 3)
    Kit.box(g, at(s.exit)[0] + 1, at(s.exit)[1] + 1, CELL - 2, CELL - 2, s.apples.length ? '#6c757d' : '#4361ee', 8)
    for (const o of s.apples) {
      g.beginPath()
      g.arc(at(o)[0] + CELL / 2, at(o)[1] + CELL / 2 + 1, 6, 0, 7)
      g.fillStyle = '#e63946'
      g.fill()
      Kit.box(g, at(o)[0] + CELL / 2 - 1, at(o)[1] + 2, 2.5, 5, '#606c38', 1)
    }
    // one line from tail to head shows how the snake lies
    const mid = o => at(o).map(p => p + CELL / 2), [x, y] = mid(s.snake[0])
    Object.assign(g, {strokeStyle: '#2d9355', lineWidth: CELL - 7, lineCap: 'round', lineJoin: 'round'})
    g.beginPath()
    s.snake.map(mid).forEach((p, i) => i ? g.lineTo(...p) : g.moveTo(...p))
    g.lineTo(...mid(s.snake.at(-1)))
    g.stroke()
    Kit.box(g, x - 7.5, y - 7.5, 15, 15, '#14532d', 6)
    const neck = s.snake[1] ?? [s.snake[0][0] + 1, s.snake[0][1]], [dr, dc] = [s.snake[0][0] - neck[0], s.snake[0][1] - neck[1]]
    for (const side of [-3.5, 3.5]) {
      g.beginPath()
      g.arc(x + 2.5 * dc + side * dr, y + 2.5 * dr + side * dc, 1.9, 0, 7)
      g.fillStyle = '#fff'
      g.fill()
    }
    if (s.over === 'fail') Kit.banner(g, 'Caught')
  }
})
