// Yarn untangle: knots on a table are joined by threads. Drag knots until no two threads cross.
'use strict'
const TOP = 24, SIDE = 152, LEFT = 4, HEIGHT = 180
const COLORS = ['#e63946', '#457b9d', '#2a9d8f', '#f4a261', '#9b5de5', '#ef476f', '#118ab2', '#8ac926']

function cross([a, b], [c, d]) {
  const side = (p, q, r) => Math.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))
  return side(a, b, c) * side(a, b, d) < 0 && side(c, d, a) * side(c, d, b) < 0
}
const TOUCH = 4   // a thread that comes so near to a knot lies on it
function gap(p, [a, b]) {   // from a point to a thread
  const [x, y] = [b[0] - a[0], b[1] - a[1]], long = x * x + y * y
  const t = long ? Math.max(0, Math.min(1, ((p[0] - a[0]) * x + (p[1] - a[1]) * y) / long)) : 0
  return Math.hypot(p[0] - a[0] - t * x, p[1] - a[1] - t * y)
}
const disjoint = (t, u) => !t.some(o => u.includes(o))
const ends = (knots, thread) => thread.map(i => knots[i])
const crossed = (knots, t, u) => disjoint(t, u) && cross(ends(knots, t), ends(knots, u))
const under = (knots, t) => knots.filter((p, i) => !t.includes(i) && gap(p, ends(knots, t)) < TOUCH).length
// pairs of threads that cross, and threads that lie on a knot of others
function crossings({knots, threads}) {
  return threads.reduce((n, t, i) =>
    n + threads.slice(0, i).filter(u => crossed(knots, t, u)).length + under(knots, t), 0)
}
const far = (list, p) => list.every(q => Math.hypot(q[0] - p[0], q[1] - p[1]) > 22)
const spot = random => [LEFT + 10 + random.int(SIDE - 20), TOP + 10 + random.int(HEIGHT - 20)]

function level_of(level, random) {
  const n = Math.min(4 + level, 12)
  const home = []
  for (let tries = 0; home.length < n; tries++) {
    const p = spot(random)
    if (far(home, p) || tries > 4000) home.push(p)
  }
  const threads = []
  const pairs = random.shuffle(home.flatMap((_, a) => home.slice(0, a).map((_, b) => [a, b])))
  const long = ([a, b]) => Math.hypot(home[a][0] - home[b][0], home[a][1] - home[b][1])
  pairs.sort((p, q) => long(p) - long(q))
  for (const [a, b] of pairs) {
    if (threads.length >= 2 * n - 4) break
    if (!under(home, [a, b]) && !threads.some(t => crossed(home, [a, b], t))) threads.push([a, b])
  }
  const s = {knots: [], threads, home, held: null}
  do s.knots = random.shuffle(home.slice()); while (crossings(s) < Math.min(level, 6))
  return s
}

Kit.play({
  id: 'yarn-untangle', title: 'Yarn untangle', levels: 50, background: '#f7ede2',
  begin: (level, random) => level_of(level, random),
  view(s) {
    const n = crossings(s), clear = n === 0 && s.held === null
    return {score: clear ? 1 : 0, board: s, outcome: clear ? 'success' : null, reason: 'untangled',
      progress: 1 / (1 + n)}
  },
  press(s, x, y) {
    const near = s.knots.map(([a, b], i) => [Math.hypot(a - x, b - y), i]).sort((p, q) => p[0] - q[0])[0]
    s.held = near[0] < 12 ? near[1] : null
  },
  move(s, x, y) {
    if (s.held === null) return
    s.knots[s.held] = [Math.max(LEFT, Math.min(LEFT + SIDE, x)), Math.max(TOP, Math.min(TOP + HEIGHT, y))]
  },
  release(s, x, y) {
    if (s.held === null) return
    this.move(s, x, y)
    s.held = null
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['cross', crossings(s)], ['solved', carried]], '#6d597a')
    s.threads.forEach(([a, b], i) => {
      const bad = under(s.knots, [a, b]) || s.threads.some(t => crossed(s.knots, [a, b], t))
      Object.assign(g, {strokeStyle: bad ? COLORS[i % COLORS.length] : '#adb5bd', lineWidth: bad ? 2.5 : 1.6,
        lineCap: 'round'})
      g.beginPath()
      g.moveTo(...s.knots[a])
      g.lineTo(...s.knots[b])
      g.stroke()
    })
    s.knots.forEach(([x, y], i) => {
      g.beginPath()
      g.arc(x, y, 6.5, 0, 7)
      g.fillStyle = i === s.held ? '#ffb703' : '#6d597a'
      g.fill()
      Object.assign(g, {strokeStyle: '#fff', lineWidth: 1.2})
      g.beginPath()
      g.arc(x, y, 3.5, .5, 4)
      g.stroke()
    })
  }
})
