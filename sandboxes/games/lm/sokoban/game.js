// Sokoban: push boxes onto targets; six fixed levels in order. The score is the number of targets of finished levels
// plus the boxes on targets of the present one. The game ends after 5 actions without a change, or with the step
// budget.
'use strict'
const LEVELS = [
  ['######', '#    #', '# @$.#', '#    #', '######'],
  ['#######', '#  .  #', '#  $  #', '# .$@ #', '#     #', '#######'],
  ['#######', '#.   .#', '# $ $ #', '#  @  #', '#  #  #', '#######'],
  ['########', '#   #  #', '# $ $  #', '# .#. @#', '# $    #', '#  .   #', '########'],
  ['########', '#  #   #', '# $  $ #', '#.@ #. #', '#  $   #', '# #  . #', '########'],
  ['#########', '#   #   #', '# $ . $ #', '# #.@.# #', '# $ . $ #', '#   #   #', '#########']]
const WAYS = {ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1]}
const TOP = 26
const same = (a, b) => a[0] === b[0] && a[1] === b[1]
const find = (rows, sign) => rows.flatMap((row, r) => [...row].flatMap((o, c) => o === sign ? [[r, c]] : []))
const done = s => s.boxes.filter(b => s.targets.some(t => same(b, t))).length

function push(s, [dr, dc]) {
  const to = [s.at[0] + dr, s.at[1] + dc], beyond = [to[0] + dr, to[1] + dc]
  const wall = p => s.rows[p[0]][p[1]] === '#', box = p => s.boxes.findIndex(b => same(b, p))
  const i = box(to)
  if (wall(to) || i >= 0 && (wall(beyond) || box(beyond) >= 0)) { s.stuck ||= ++s.idle >= 5; return }
  s.idle = 0
  Kit.animate(s, {from: s.at, box: i}, 100)
  if (i >= 0) s.boxes[i] = beyond
  s.at = to
}

Kit.play({
  id: 'lm-sokoban', title: 'Sokoban (LMGame-Bench)', levels: LEVELS.length, seeded: false,
  background: '#fff1d0',
  begin(level) {
    const rows = LEVELS[level - 1]
    return {rows: rows.map(o => o.replace(/[@$.]/g, ' ')), at: find(rows, '@')[0], boxes: find(rows, '$'),
      targets: find(rows, '.'), idle: 0, stuck: false, motion: null}
  },
  view: s => ({score: done(s), board: s, outcome: done(s) === s.targets.length ? 'success' : s.stuck ? 'fail' : null,
    reason: s.stuck ? 'five actions changed nothing' : 'all boxes are on targets',
    progress: done(s) / s.targets.length}),
  key(s, name) { if (name in WAYS) push(s, WAYS[name]) },
  draw(g, s, {level, carried}) {
    Kit.bar(g, [['level', level], ['boxes', carried + done(s)]], '#5f0f40')
    const w = Math.min(152 / s.rows[0].length, 176 / s.rows.length)
    const left = (160 - w * s.rows[0].length) / 2, top = TOP + (180 - w * s.rows.length) / 2
    const at = ([r, c]) => [left + c * w, top + r * w], from = s.motion?.from ?? s.at
    const step = Kit.between(s, [from[0] - s.at[0], from[1] - s.at[1]], [0, 0])   // what is left of the last step
    const still = ([r, c]) => at([r + step[0], c + step[1]])
    s.rows.forEach((row, r) => [...row].forEach((o, c) =>
      Kit.box(g, ...at([r, c]), w - .6, w - .6, o === '#' ? '#9a6a4f' : '#ffe5b4', o === '#' ? 2 : 0)))
    for (const [x, y] of s.targets.map(at)) Kit.disc(g, x + w / 2, y + w / 2, w / 5, '#e36414')
    for (const [i, b] of s.boxes.entries()) {
      const [x, y] = s.motion?.box === i ? still(b) : at(b), on = s.targets.some(t => same(t, b))
      Kit.box(g, x + w * .1, y + w * .1, w * .8, w * .8, on ? '#2a9d8f' : '#c08552', 2)
      Object.assign(g, {strokeStyle: '#5e3023', lineWidth: 1.2})
      g.strokeRect(x + w * .2, y + w * .2, w * .6, w * .6)
    }
    const [x, y] = still(s.at)
    Kit.box(g, x + w * .2, y + w * .52, w * .6, w * .42, '#1d4e89', 4)
    Kit.disc(g, x + w / 2, y + w * .34, w * .27, '#f4c095')
    Kit.box(g, x + w * .22, y + w * .06, w * .56, w * .2, '#d1495b', 3)
    for (const d of [-.1, .1]) Kit.disc(g, x + w * (.5 + d), y + w * .37, w * .045, '#222')
    if (s.stuck) Kit.banner(g, 'Stuck')
  }
})
