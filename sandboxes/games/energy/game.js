// Energy: hexagonal tiles carry wires; a click turns a tile by a sixth. A level is solved when every lamp is joined by
// wires to the source. Wires may end loose: only lamps count.
'use strict'
const STEPS = [[1, 0], [0, 1], [-1, 1], [-1, 0], [0, -1], [1, -1]]   // axial q, r; in clockwise order from east
const TOP = 24
const RADII = [1, 1, 2, 2, 2, 2, 3]

const turn = t => (t << 1 | t >> 5) & 63
const key = (q, r) => `${q},${r}`
const find = (s, q, r) => s.tiles.find(t => t.q === q && t.r === r)
const size = s => 74 / (Math.sqrt(3) * (s.radius + .5))
const mid = (s, t) => [Kit.WIDTH / 2 + size(s) * Math.sqrt(3) * (t.q + t.r / 2), TOP + 92 + size(s) * 1.5 * t.r]

function lit(s) {
  const seen = new Set(), todo = [s.tiles[s.source]]
  while (todo.length) {
    const t = todo.pop()
    if (seen.has(key(t.q, t.r))) continue
    seen.add(key(t.q, t.r))
    STEPS.forEach(([dq, dr], k) => {
      const other = t.wires >> k & 1 && find(s, t.q + dq, t.r + dr)
      if (other && other.wires >> (k + 3) % 6 & 1) todo.push(other)
    })
  }
  return seen
}
const dark = s => { const on = lit(s); return s.tiles.filter(t => t.lamp && !on.has(key(t.q, t.r))).length }

function level_of(level, random) {
  const radius = RADII[Math.min(level, RADII.length) - 1], places = []
  for (let q = -radius; q <= radius; q++)
    for (let r = Math.max(-radius, -q - radius); r <= Math.min(radius, -q + radius); r++) places.push([q, r])
  for (;;) {
    const s = {radius, tiles: places.map(([q, r]) => ({q, r, wires: 0, lamp: false})),
      source: random.int(places.length)}
    const wanted = Math.min(4 + 2 * level, places.length), inside = [s.tiles[s.source]]
    for (let tries = 0; inside.length < wanted && tries < 500; tries++) {   // a tree that grows from the source
      const t = random.pick(inside), k = random.int(6), other = find(s, t.q + STEPS[k][0], t.r + STEPS[k][1])
      if (!other || inside.includes(other)) continue
      t.wires |= 1 << k
      other.wires |= 1 << (k + 3) % 6
      inside.push(other)
    }
    s.tiles.forEach((t, i) => { t.lamp = i !== s.source && [1, 2, 4, 8, 16, 32].includes(t.wires) })
    for (const t of s.tiles) for (let k = random.int(6); k > 0; k--) t.wires = turn(t.wires)
    if (dark(s) > Math.min(level, 3)) return s
  }
}

Kit.play({
  id: 'energy', title: 'Energy', levels: 50, background: '#14213d',
  begin: (level, random) => level_of(level, random),
  view: s => ({score: dark(s) ? 0 : 1, board: s, outcome: dark(s) ? null : 'success', reason: 'all lamps are lit',
    progress: 1 - dark(s) / s.tiles.filter(t => t.lamp).length}),
  press(s, x, y) {
    const near = s.tiles.map(t => [Math.hypot(mid(s, t)[0] - x, mid(s, t)[1] - y), t]).sort((a, b) => a[0] - b[0])[0]
    if (near[0] >= size(s) * .87) return
    near[1].wires = turn(near[1].wires)
    Kit.animate(s, {q: near[1].q, r: near[1].r}, 100)
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['unlit', dark(s)], ['solved', carried]], '#e5e5e5')
    const on = lit(s), w = size(s)
    for (const t of s.tiles) Kit.polygon(g, ...mid(s, t), .94 * w, 6, Math.PI / 6, '#22345c')
    s.tiles.forEach((t, i) => {
      const [x, y] = mid(s, t), bright = on.has(key(t.q, t.r))
      g.save()
      g.translate(x, y)
      if (s.motion?.q === t.q && s.motion.r === t.r) g.rotate(-Kit.left(s) * Math.PI / 3)
      Object.assign(g, {strokeStyle: bright ? '#fca311' : '#8d99ae', lineWidth: w / 6, lineCap: 'round'})
      STEPS.forEach(([dq, dr], k) => {
        if (!(t.wires >> k & 1)) return
        const [dx, dy] = [Math.sqrt(3) * (dq + dr / 2), 1.5 * dr]
        g.beginPath()
        g.moveTo(0, 0)
        g.lineTo(dx * w * .46, dy * w * .46)
        g.stroke()
      })
      g.restore()
      if (t.lamp || i === s.source) {
        g.beginPath()
        g.arc(x, y, w * .36, 0, 7)
        g.fillStyle = i === s.source ? '#e63946' : bright ? '#ffe066' : '#495057'
        g.fill()
        Object.assign(g, {strokeStyle: '#e5e5e5', lineWidth: 1})
        g.stroke()
        if (i === s.source) Kit.text(g, '⚡', x, y + .5, w * .5, '#fff')
      }
    })
  }
})
