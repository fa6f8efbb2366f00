// A cube puzzle in the manner of Cubinko, whose exact rules we do not know: a cube with six coloured faces rolls over a
// board. Each coloured cell wants to be touched by the face of its colour; a level is solved when all cells are done.
'use strict'
const N = 5, TOP = 52
// top, bottom, north, south, west, east at the start
const COLORS = ['#e63946', '#ffb703', '#2a9d8f', '#4361ee', '#f8f9fa', '#9b5de5']
// faces [top, bottom, north, south, west, east] after a roll
const ROLLS = {
  ArrowUp: ([t, b, n, s, w, e]) => [s, n, t, b, w, e], ArrowDown: ([t, b, n, s, w, e]) => [n, s, b, t, w, e],
  ArrowLeft: ([t, b, n, s, w, e]) => [e, w, n, s, t, b], ArrowRight: ([t, b, n, s, w, e]) => [w, e, n, s, b, t]}
const WAYS = {ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1]}

function roll(s, name) {
  const [r, c] = [s.at[0] + WAYS[name][0], s.at[1] + WAYS[name][1]]
  if (s.floor[r]?.[c] !== 1) return
  Kit.animate(s, {from: s.at})
  s.at = [r, c]
  s.faces = ROLLS[name](s.faces)
  s.goals = s.goals.filter(o => o.r !== r || o.c !== c || o.color !== s.faces[1])
}
function level_of(level, random) {
  for (;;) {
    const floor = Array.from({length: N}, () => Array.from({length: N}, () => random.next() < .82 ? 1 : 0))
    floor[0][0] = 1
    const s = {floor, at: [0, 0], faces: [0, 1, 2, 3, 4, 5], goals: [], motion: null}
    const probe = structuredClone(s), wanted = Math.min(1 + Math.floor(level / 2), 4), goals = []
    for (let k = 0; k < 60 && goals.length < wanted; k++) {   // a random walk makes a level that can be solved
      roll(probe, random.pick(Object.keys(WAYS)))
      const [r, c] = probe.at
      if (k > 3 + level && (r || c) && !goals.some(o => o.r === r && o.c === c) && random.next() < .3)
        goals.push({r, c, color: probe.faces[1]})
    }
    if (goals.length === wanted) return {...s, goals, wanted}   // the walk moved `probe`, not `s`
  }
}
const X = (r, c) => Kit.WIDTH / 2 + (c - r) * 15, Y = (r, c) => TOP + 20 + (c + r) * 12   // isometric
function diamond(g, x, y, color, w = 15, h = 12) {
  g.beginPath()
  g.moveTo(x, y - h)
  g.lineTo(x + w, y)
  g.lineTo(x, y + h)
  g.lineTo(x - w, y)
  g.closePath()
  g.fillStyle = color
  g.fill()
  g.strokeStyle = '#33415c'
  g.lineWidth = .8
  g.stroke()
}
function face(g, points, color) {
  g.beginPath()
  points.forEach(p => g.lineTo(...p))
  g.closePath()
  g.fillStyle = color
  g.fill()
  g.stroke()
}

Kit.play({
  id: 'cubinko', title: 'Cube roll', levels: 50, background: '#e0e1dd',
  begin: (level, random) => level_of(level, random),
  view: s => ({score: s.goals.length ? 0 : 1, board: s, outcome: s.goals.length ? null : 'success',
    reason: 'all cells are done', progress: 1 - s.goals.length / s.wanted}),
  key(s, name) { if (name in WAYS) roll(s, name) },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['cells', s.goals.length], ['solved', carried]], '#1b263b')
    // the cube laid out: what its six faces are
    const [t, b, n, so, w, e] = s.faces.map(i => COLORS[i])
    const net = [[1, 0, n], [0, 1, w], [1, 1, t], [2, 1, e], [1, 2, so], [1, 3, b]]
    for (const [x, y, color] of net) {
      Kit.box(g, 6 + x * 9, 18 + y * 9, 8, 8, '#33415c', 1)
      Kit.box(g, 6.6 + x * 9, 18.6 + y * 9, 6.8, 6.8, color, 1)
    }
    s.floor.forEach((row, r) => row.forEach((on, c) => {
      if (!on) return
      diamond(g, X(r, c), Y(r, c), '#adb5bd')
      const goal = s.goals.find(o => o.r === r && o.c === c)
      if (goal) diamond(g, X(r, c), Y(r, c), COLORS[goal.color], 10, 8)
    }))
    const at = [X(...s.at), Y(...s.at)], from = s.motion?.from ?? s.at
    const [x, y0] = Kit.between(s, [X(...from), Y(...from)], at), u = 12, d = 9.6, h = 13
    const y = y0 - (s.motion?.from ? 4 * Math.sin(Math.PI * Kit.left(s)) : 0)   // it hops as it rolls
    diamond(g, x, y0, 'rgba(27, 38, 59, .35)', u + 1, d + .8)
    Object.assign(g, {strokeStyle: '#1b263b', lineWidth: 1, lineJoin: 'round'})
    face(g, [[x, y - h - d], [x + u, y - h], [x, y - h + d], [x - u, y - h]], t)
    face(g, [[x - u, y - h], [x, y - h + d], [x, y + d], [x - u, y]], so)
    face(g, [[x + u, y - h], [x, y - h + d], [x, y + d], [x + u, y]], e)
  }
})
