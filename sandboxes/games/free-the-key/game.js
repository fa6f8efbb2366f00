// Free the key: blocks slide along their length on a 6x6 board; the key leaves through the gap at the right.
'use strict'
const N = 6, CELL = 25, TOP = 40, LEFT = 5, ROW = 2   // the key's row
const WOOD = ['#c68b59', '#b5773f', '#a9683a', '#d19a66']

// a block: row, column, length, down (true: vertical); block 0 is the key
const cells = b => Array.from({length: b.n}, (_, i) => b.down ? [b.r + i, b.c] : [b.r, b.c + i])
function grid(blocks) {
  const out = Array.from({length: N}, () => Array(N).fill(-1))
  blocks.forEach((b, i) => cells(b).forEach(([r, c]) => { out[r][c] = i }))
  return out
}
// how far block i can go back (negative) and forth
function reach(blocks, i) {
  const taken = grid(blocks), b = blocks[i], free = (r, c) => taken[r]?.[c] === -1
  const far = sign => {
    let k = 0
    for (;;) {
      const step = sign > 0 ? b.n + k : -1 - k
      if (!free(b.down ? b.r + step : b.r, b.down ? b.c : b.c + step)) return k
      k++
    }
  }
  return [-far(-1), far(1)]
}
const moved = (blocks, i, by) => blocks.map((b, k) => k !== i ? b : b.down ? {...b, r: b.r + by} : {...b, c: b.c + by})
const solved = blocks => blocks[0].c === N - 2

// fewest moves to free the key, by breadth-first search; Infinity if it cannot be freed within `most` positions. A
// position is one number, the places of the blocks as digits to the base N, so a slide by a cell adds a constant.
function distance(blocks, most = 1500) {
  const base = blocks.map((_, i) => N ** i), step = blocks.map(b => b.down ? N : 1)
  const line = blocks.map(b => b.down ? b.c : b.r * N)   // the first cell of a block that lies at place 0
  const start = blocks.reduce((sum, b, i) => sum + base[i] * (b.down ? b.r : b.c), 0)
  const seen = new Set([start]), at = new Uint8Array(blocks.length), taken = new Uint8Array(N * N)
  const load = position => {
    taken.fill(0)
    for (let i = 0, rest = position; i < blocks.length; i++) {
      at[i] = rest % N
      rest = Math.floor(rest / N)
      for (let k = 0; k < blocks[i].n; k++) taken[line[i] + (at[i] + k) * step[i]] = 1
    }
  }
  for (let front = [start], depth = 0; front.length; depth++) {
    if (front.some(o => o % N === N - 2)) return depth   // the key is block 0
    const next = []
    const reach = o => { if (!seen.has(o)) { seen.add(o); next.push(o) } }
    for (const o of front) {
      load(o)
      for (let i = 0; i < blocks.length; i++) {
        const free = place => !taken[line[i] + place * step[i]]
        for (let p = at[i] - 1; p >= 0 && free(p); p--) reach(o + (p - at[i]) * base[i])
        for (let p = at[i] + blocks[i].n; p < N && free(p); p++) reach(o + (p - blocks[i].n + 1 - at[i]) * base[i])
      }
      if (seen.size > most) return Infinity
    }
    front = next
  }
  return Infinity
}
function level_of(level, random) {
  const wanted = Math.min(1 + level, 8)
  let best = null, most = 0
  for (let tries = 0; tries < 24; tries++) {
    const blocks = [{r: ROW, c: random.int(2), n: 2, down: false}]
    for (let i = 0; i < 40 && blocks.length < 6 + Math.min(level, 6); i++) {
      const down = random.next() < .6, n = random.next() < .7 ? 2 : 3
      const b = {r: random.int(down ? N - n + 1 : N), c: random.int(down ? N : N - n + 1), n, down}
      if (!down && b.r === ROW) continue
      const taken = grid(blocks)
      if (cells(b).every(([r, c]) => taken[r][c] === -1)) blocks.push(b)
    }
    const d = distance(blocks)
    if (d !== Infinity && d > most) { best = blocks; most = d }
    if (most >= wanted) break
  }
  return best
}

Kit.play({
  id: 'free-the-key', title: 'Free the key', levels: 50, background: '#f3e9dc',
  begin: (level, random) => ({blocks: level_of(level, random), held: null}),
  view: s => ({score: solved(s.blocks) ? 1 : 0, board: s.blocks, outcome: solved(s.blocks) ? 'success' : null,
    reason: 'freed'}),
  press(s, x, y) {
    const r = Math.floor((y - TOP) / CELL), c = Math.floor((x - LEFT) / CELL), i = grid(s.blocks)[r]?.[c] ?? -1
    s.held = i < 0 ? null : {i, x, y, by: 0}
  },
  move(s, x, y) {
    if (!s.held) return
    const [back, forth] = reach(s.blocks, s.held.i), b = s.blocks[s.held.i]
    s.held.by = Math.max(back, Math.min(forth, Math.round((b.down ? y - s.held.y : x - s.held.x) / CELL)))
  },
  release(s, x, y) {
    if (!s.held) return
    this.move(s, x, y)
    s.blocks = moved(s.blocks, s.held.i, s.held.by)
    s.held = null
  },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['freed', carried]], '#6f4518')
    Kit.box(g, LEFT - 4, TOP - 4, N * CELL + 8, N * CELL + 8, '#8b5e34', 5)
    Kit.box(g, LEFT, TOP, N * CELL, N * CELL, '#e6ccb2', 2)
    Kit.box(g, LEFT + N * CELL - 1, TOP + ROW * CELL, 10, CELL, '#f3e9dc', 0)
    const shown = s.held ? moved(s.blocks, s.held.i, s.held.by) : s.blocks
    shown.forEach((b, i) => {
      const x = LEFT + b.c * CELL + 1.5, y = TOP + b.r * CELL + 1.5
      const [w, h] = b.down ? [1, b.n] : [b.n, 1]
      Kit.box(g, x, y, w * CELL - 3, h * CELL - 3, i ? WOOD[i % WOOD.length] : '#ffd166', 4)
      if (i) return
      Object.assign(g, {strokeStyle: '#6f4518', lineWidth: 2.5, lineCap: 'round'})
      g.beginPath()
      g.arc(x + 10, y + 11, 5, 0, 7)
      g.moveTo(x + 15, y + 11)
      g.lineTo(x + 38, y + 11)
      g.lineTo(x + 38, y + 16)
      g.moveTo(x + 32, y + 11)
      g.lineTo(x + 32, y + 15)
      g.stroke()
    })
  }
})
