// Snake solver: a snake moves one cell a key in a walled field, grows by one at each apple, and must leave through the
// exit that opens when all apples are eaten. It stops at walls and at itself; a snake that cannot move has lost.
'use strict'
const N = 8, CELL = 19, TOP = 40, LEFT = 4
const WAYS = {ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1]}
const same = (a, b) => a[0] === b[0] && a[1] === b[1]
const open = (s, r, c) => r >= 0 && c >= 0 && r < N && c < N &&
  ![...s.walls, ...s.snake.slice(0, -1)].some(o => same(o, [r, c]))
const free = (s, [r, c]) => open(s, r, c) && (s.apples.length === 0 || !same(s.exit, [r, c]))

// the shortest way of a snake to a cell; its body counts as if it stayed where it is
function route(snake, walls, to) {
  const id = ([r, c]) => r * N + c, blocked = new Set([...walls, ...snake.slice(0, -1)].map(id))
  const from = new Map([[id(snake[0]), null]])
  for (let front = [snake[0]]; front.length;) {
    const next = []
    for (const at of front) for (const [dr, dc] of Object.values(WAYS)) {
      const o = [at[0] + dr, at[1] + dc]
      if (o.some(p => p < 0 || p >= N) || blocked.has(id(o)) || from.has(id(o))) continue
      from.set(id(o), at)
      next.push(o)
    }
    front = next
  }
  if (!from.has(id(to))) return null
  const path = []
  for (let o = to; !same(o, snake[0]); o = from.get(id(o))) path.unshift(o)
  return path
}
// a probe snake runs from one random cell to the next; these become the apples and the exit, so every level has
// a solution
function level_of(level, random) {
  for (;;) {
    const cells = random.shuffle(Array.from({length: N * N}, (_, i) => [Math.floor(i / N), i % N]))
    const start = cells.pop(), walls = cells.splice(0, Math.min(3 + 2 * level, 16)), wanted = Math.min(1 + level, 6)
    const probe = [start], seen = [start], goals = []
    for (const to of cells) {
      const path = seen.some(o => same(o, to)) ? null : route(probe, walls, to)
      if (!path || goals.length > wanted) continue
      for (const o of path) { probe.unshift(o); seen.push(o); if (o !== to) probe.pop() }
      goals.push(to)
    }
    if (goals.length > wanted) return {snake: [start], walls, exit: goals.pop(), apples: goals, wanted: goals.length, over: null}
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
  view: s => ({score: s.over === 'success' ? 1 : 0, board: s, outcome: s.over,
    reason: s.over === 'fail' ? 'the snake is caught' : 'left through the exit',
    progress: 1 - s.apples.length / s.wanted}),
  key(s, name) { if (name in WAYS) step(s, WAYS[name]) },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['solved', carried]], '#1b4332')
    Kit.text(g, s.apples.length ? `${s.apples.length} apple${s.apples.length > 1 ? 's' : ''} left` : 'to the exit', Kit.WIDTH / 2, 27, 9, '#40916c')
    const at = ([r, c]) => [LEFT + c * CELL, TOP + r * CELL]
    for (let r = 0; r < N; r++) for (let c = 0; c < N; c++)
      Kit.box(g, ...at([r, c]), CELL, CELL, (r + c) % 2 ? '#b7e4c7' : '#c7ecd4', 0)
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
    const neck = s.snake[1] ?? [s.snake[0][0] + 1, s.snake[0][1]]
    const [dr, dc] = [s.snake[0][0] - neck[0], s.snake[0][1] - neck[1]]
    for (const side of [-3.5, 3.5]) {
      Kit.disc(g, x + 2.5 * dc + side * dr, y + 2.5 * dr + side * dc, 1.9, '#fff')
    }
    if (s.over === 'fail') Kit.banner(g, 'Caught')
  }
})
