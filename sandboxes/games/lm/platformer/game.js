// A side-scrolling platformer, in place of Super Mario Bros. of LMGame-Bench: run and jump to the right over pits,
// steps and walkers. The score is the distance in pixels, as there. One life; a fall, a walker or the flag at the end
// ends the game.
'use strict'
const UNIT = 16, LENGTH = 220, FLOOR = 10, GRAVITY = .42, JUMP = -6.2, RUN = 2.2   // units, rows, pixels a frame
const KINDS = ['flat', 'flat', 'pit', 'step', 'walker', 'pit', 'step']

function land(random) {
  const height = [], walkers = []
  let h = 2
  for (let x = 0; x < LENGTH;) {
    const kind = x < 8 || x > LENGTH - 12 ? 'flat' : random.pick(KINDS)
    const n = kind === 'pit' ? 1 + random.int(2) : 3 + random.int(4)
    if (kind === 'step') h = Math.max(1, Math.min(4, h + random.pick([-1, 1, 1])))
    if (kind === 'walker') walkers.push({
      x: (x + 1 + random.int(n)) * UNIT, y: 0, way: -1, alive: true, from: x * UNIT, to: (x + n) * UNIT})
    for (let k = 0; k < n; k++) height.push(kind === 'pit' ? 0 : h)
    x += n
    if (kind === 'pit') { for (let k = 0; k < 3; k++) height.push(h); x += 3 }
  }
  for (const w of walkers) w.y = (FLOOR - height[Math.floor(w.x / UNIT)]) * UNIT
  return {height, walkers}
}
const ground = (s, x) => { const h = s.height[Math.floor(x / UNIT)] ?? 2; return h ? (FLOOR - h) * UNIT : 999 }

Kit.play({
  id: 'lm-platformer', title: 'Platformer', background: '#8ecae6', realTime: true,
  begin(level, random) {
    return {...land(random), x: 40, y: 120, vx: 0, vy: 0, far: 0, held: {}, down: {}, over: null, reason: null}
  },
  view: s => ({score: Math.floor(s.far), lives: s.over === 'fail' ? 0 : 1,
    board: {x: s.x, y: s.y, vy: s.vy, height: s.height, walkers: s.walkers},
    outcome: s.over, reason: s.reason, progress: Math.min(1, s.far / ((LENGTH - 8) * UNIT))}),
  key(s, name) {
    s.held[name] = 10   // a tap counts for ten frames
    s.down[name] = true
    if (name === 'ArrowUp' || name === ' ') if (s.y >= ground(s, s.x) - 1) s.vy = JUMP
  },
  keyup(s, name) { delete s.down[name] },
  tick(s) {
    const on = name => s.down[name] || --s.held[name] > 0 ? 1 : 0
    s.vx = RUN * (on('ArrowRight') - on('ArrowLeft'))
    const x = Math.max(8, s.x + s.vx)
    if (ground(s, x + 5 * Math.sign(s.vx)) >= s.y - 3) s.x = x   // a step higher than the feet is a wall
    s.vy += GRAVITY
    s.y += s.vy
    const floor = Math.min(ground(s, s.x - 4), ground(s, s.x + 4))
    if (s.y >= floor && s.y - s.vy <= floor + 4) { s.y = floor; s.vy = 0 }
    for (const w of s.walkers) {
      if (!w.alive || Math.abs(w.x - s.x) > 300) continue
      w.x += .6 * w.way
      if (w.x < w.from + 6 || w.x > w.to - 6) w.way = -w.way
      if (Math.abs(w.x - s.x) > 11 || Math.abs(w.y - s.y) > 12) continue
      if (s.vy > 0 && s.y < w.y - 3) { w.alive = false; s.vy = JUMP / 1.6 }
      else { s.over = 'fail'; s.reason = 'caught by a walker' }
    }
    s.far = Math.max(s.far, s.x - 40)
    if (s.y > FLOOR * UNIT + 60) { s.over = 'fail'; s.reason = 'fell into a pit' }
    if (s.x > (LENGTH - 5) * UNIT) { s.over = 'success'; s.reason = 'reached the flag' }
  },
  draw(g, s) {
    const left = Math.max(0, s.x - 60), shift = 36
    for (let k = 0; k < 4; k++) for (const [dx, dy, w] of [[-13, 3, 8], [0, 0, 12], [14, 3, 9]]) {
      Kit.disc(g, ((k * 97 - left * .3) % 230 + 230) % 230 - 30 + dx, 44 + 13 * (k % 3) + dy, w, '#d6ecff')
    }
    // a stretch of ground of one height is one box, so it has no seams
    for (let i = Math.floor(left / UNIT), end; i <= (left + 170) / UNIT; i = end) {
      const h = s.height[i] ?? 2
      for (end = i + 1; (s.height[end] ?? 2) === h && end <= (left + 170) / UNIT;) end++
      if (!h) continue
      const x = i * UNIT - left, y = (FLOOR - h) * UNIT + shift, w = (end - i) * UNIT
      Kit.box(g, x, y, w, 210 - y, '#7f5539', 0)
      Kit.box(g, x, y, w, 5, '#55a630', 0)
    }
    const flag = (LENGTH - 5) * UNIT - left
    Kit.box(g, flag, 60 + shift, 2, 70, '#333', 0); Kit.box(g, flag + 2, 60 + shift, 16, 11, '#d00000', 0)
    for (const w of s.walkers) if (w.alive) {
      Kit.box(g, w.x - left - 6, w.y - 11 + shift, 12, 11, '#6a040f', 5)
      for (const d of [-3, 3]) Kit.disc(g, w.x - left + d, w.y - 7 + shift, 1.6, '#fff')
    }
    const x = s.x - left, y = s.y + shift, way = s.vx < 0 ? -1 : 1
    Kit.box(g, x - 5, y - 11, 10, 9, '#e63946', 3)
    for (const d of [-3.5, .5]) Kit.box(g, x + d, y - 3, 3.5, 3, '#3d2c2e', 1)
    Kit.box(g, x - 4.5, y - 18, 9, 8, '#ffcb77', 3)
    Kit.box(g, x - 5, y - 19, 10, 3, '#e63946', 1)
    Kit.box(g, x + 1.5 * way - .8, y - 15, 1.6, 2, '#222', 0)
    Kit.bar(g, [['distance', Math.floor(s.far)]], '#023047')
    if (s.over) Kit.banner(g, s.over === 'success' ? 'The flag!' : 'Game over')
  }
})
