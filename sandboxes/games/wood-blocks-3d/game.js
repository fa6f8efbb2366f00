// Wood blocks 3D: drag one of three wooden pieces onto an 8x8 board; full rows and columns vanish. Drawn with WebGL as
// bevelled boxes in parallel projection: the camera looks down at the table from the front and the right, and heights
// move a point up and left, so places on the table's ground follow from two divisions. A placed cell earns 10 points, a
// cleared row or column 100, times the number cleared at once.
'use strict'
const N = 8, CELL = 17, LEFT = 12, TOP = 28, TILT = .55   // the camera's tilt from above, in radians
const COS = Math.cos(TILT), SIN = Math.sin(TILT), SLANT = .28, THICK = 11, TRAY = 170
const WOODS = [[.95, .78, .52], [.83, .55, .27], [.76, .38, .21], [.60, .42, .30]], FLOOR = [.27, .18, .12]
const PIECES = [
  [[0, 0]], [[0, 0], [0, 1]], [[0, 0], [1, 0]], [[0, 0], [0, 1], [0, 2]], [[0, 0], [1, 0], [2, 0]],
  [[0, 0], [0, 1], [1, 0], [1, 1]], [[0, 0], [1, 0], [1, 1]], [[0, 1], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0]],
  [[0, 0], [0, 1], [1, 1]], [[0, 0], [0, 1], [0, 2], [0, 3]], [[0, 0], [1, 0], [2, 0], [3, 0]],
  [[0, 0], [1, 0], [2, 0], [2, 1]], [[0, 1], [1, 1], [2, 1], [2, 0]], [[0, 0], [0, 1], [0, 2], [1, 1]],
  [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]]

const fits = (board, piece, r, c) => PIECES[piece].every(([a, b]) => board[r + a]?.[c + b] === 0)
const deal = random => Array.from({length: 3}, () => random.int(PIECES.length))
const slot = i => [30 + 50 * i, TRAY + 14]
const span = (piece, k) => Math.max(...PIECES[piece].map(o => o[k])) + 1
const stuck = s => s.tray.every(piece => piece === null
  || !s.board.some((row, r) => row.some((_, c) => fits(s.board, piece, r, c))))

function put(s, i, r, c, random) {
  const piece = s.tray[i]
  for (const [a, b] of PIECES[piece]) s.board[r + a][c + b] = 1 + piece % WOODS.length
  s.score += 10 * PIECES[piece].length
  const rows = s.board.map((row, k) => row.every(Boolean) ? k : -1).filter(k => k >= 0)
  const columns = s.board.map((_, k) => s.board.every(row => row[k]) ? k : -1).filter(k => k >= 0)
  const n = rows.length + columns.length
  s.score += 100 * n * n
  const cells = s.board.flatMap((row, a) => row.map((v, b) => [a, b, v]))
    .filter(([a, b]) => rows.includes(a) || columns.includes(b))
  if (n) Kit.animate(s, {cells}, 130)
  for (const k of rows) s.board[k].fill(0)
  for (const k of columns) for (const row of s.board) row[k] = 0
  s.tray[i] = null
  if (s.tray.every(o => o === null)) s.tray = deal(random)
  s.over = stuck(s)
}
// the row and column under a point, of the cell where a held piece's middle would lie
const cell_at = (piece, x, y) =>
  [Math.round((y - TOP) / (CELL * COS) - span(piece, 0) / 2), Math.round((x - LEFT) / CELL - span(piece, 1) / 2)]

// WebGL: one unit box with a bevel at its top, drawn once for each block. A vertex is a corner, a
// shift by the bevel and a normal.
const VERTEX = `attribute vec3 corner, shift, normal; uniform vec3 at, size; uniform vec4 view; uniform float bevel;
varying float light; varying vec3 spot;
void main() {
  vec3 p = spot = at + corner * size + shift * bevel;
  float x = p.x - p.z * view.z, y = p.y * view.x - p.z * view.y, depth = p.x * view.z + p.y * view.y / view.x + p.z;
  gl_Position = vec4(x / 80. - 1., 1. - y / 105., -depth / 600., 1.);
  light = .40 + .64 * max(0., dot(normal, normalize(vec3(-.5, .25, .83))));
}`
const FRAGMENT = `precision mediump float; uniform vec3 color; varying float light; varying vec3 spot;
void main() {
  float grain = 1. + .05 * sin(1.4 * spot.y + 1.2 * sin(.22 * spot.x) + .9 * spot.z);
  gl_FragColor = vec4(color * light * grain, 1.);
}`
const SQUARE = [[0, 0], [1, 0], [1, 1], [0, 1]]
const INNER = SQUARE.map(([x, y]) => [x, y, 1, 1 - 2 * x, 1 - 2 * y, 0])   // corners of the top face
const OUTER = SQUARE.map(([x, y]) => [x, y, 1, 0, 0, -1])                  // of the rim below it
const FOOT = SQUARE.map(([x, y]) => [x, y, 0, 0, 0, 0])
const FACES = [[...INNER, [0, 0, 1]], ...[[0, -.7, .7], [.7, 0, .7], [0, .7, .7], [-.7, 0, .7]].map((normal, k) =>
  [OUTER[k], OUTER[(k + 1) % 4], INNER[(k + 1) % 4], INNER[k], normal]),
  // front and right
  [FOOT[2], FOOT[3], OUTER[3], OUTER[2], [0, 1, 0]], [FOOT[1], FOOT[2], OUTER[2], OUTER[1], [1, 0, 0]]]

let gl = null, where = {}
function prepare(canvas) {
  gl = canvas.getContext('webgl', {preserveDrawingBuffer: true, antialias: true})
  const shader = (kind, source) => {
    const out = gl.createShader(kind)
    gl.shaderSource(out, source)
    gl.compileShader(out)
    return out
  }
  const program = gl.createProgram()
  gl.attachShader(program, shader(gl.VERTEX_SHADER, VERTEX))
  gl.attachShader(program, shader(gl.FRAGMENT_SHADER, FRAGMENT))
  gl.linkProgram(program)
  gl.useProgram(program)
  const data = FACES.flatMap(([a, b, c, d, n]) => [a, b, c, a, c, d].flatMap(p => [...p, ...n]))
  gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer())
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.STATIC_DRAW)
  for (const [k, name] of ['corner', 'shift', 'normal'].entries()) {
    const slot = gl.getAttribLocation(program, name)
    gl.enableVertexAttribArray(slot)
    gl.vertexAttribPointer(slot, 3, gl.FLOAT, false, 36, 12 * k)
  }
  for (const name of ['at', 'size', 'view', 'color', 'bevel']) where[name] = gl.getUniformLocation(program, name)
  gl.enable(gl.DEPTH_TEST)
}
function block(x, y, z, w, h, d, color, bevel = 0) {
  gl.uniform1f(where.bevel, bevel)
  gl.uniform3f(where.at, x, y, z)
  gl.uniform3f(where.size, w, h, d)
  gl.uniform3f(where.color, ...color)
  gl.drawArrays(gl.TRIANGLES, 0, 6 * FACES.length)
}
const ground = y => y / COS   // the table's y of a screen y, at height 0
const cell = (r, c, z, d, color, gap = .5, bevel = 0) =>
  block(LEFT + c * CELL + gap, ground(TOP) + r * CELL + gap, z, CELL - 2 * gap, CELL - 2 * gap, d, color, bevel)
const lit = (color, by) => color.map(o => o + (1 - o) * by)

function table(s) {
  const w = N * CELL, top = ground(TOP), wood = [.50, .33, .20]
  block(LEFT - 1, top - 1, -1, w + 2, w + 2, 1, FLOOR)
  for (const y of [top - 7, top + w + 1]) block(LEFT - 7, y, 0, w + 14, 6, 5, wood, 1)
  for (const x of [LEFT - 7, LEFT + w + 1]) block(x, top - 1, 0, 6, w + 2, 5, wood, 1)
  s.board.forEach((row, r) => row.forEach((v, c) => {
    cell(r, c, 0, .2, [.40, .28, .19], .9)
    if (v) block(LEFT + c * CELL + 3, top + r * CELL + 2, .2, CELL + 1.5, CELL, .1, [.17, .11, .07])   // its shadow
    if (v) cell(r, c, 0, THICK, WOODS[v - 1], .4, 2)
  }))
  for (const [r, c, v] of s.motion?.cells ?? []) if (!s.board[r][c])   // cleared blocks sink
    cell(r, c, 0, THICK * Kit.left(s) + .5, lit(WOODS[v - 1], .7), .4, .3)
}
function pieces(s) {
  s.tray.forEach((piece, i) => {
    const [x, y] = slot(i), held = s.held?.i === i
    block(x - 23, ground(y) - 24, -1, 46, 44, 1, FLOOR)
    if (piece === null) return
    const size = held ? CELL : 10, at = held ? [s.held.x, s.held.y] : [x, y], color = WOODS[piece % WOODS.length]
    const left = at[0] - span(piece, 1) / 2 * size, top = ground(at[1]) - span(piece, 0) / 2 * size
    for (const [r, c] of PIECES[piece])
      block(left + c * size + .4, top + r * size + .4, held ? 16 : 0, size - .8, size - .8, .62 * size, color, size / 9)
    if (!held) return
    const [a, b] = cell_at(piece, ...at)
    if (fits(s.board, piece, a, b)) for (const [r, c] of PIECES[piece]) cell(a + r, b + c, .2, .2, lit(color, .35), 2)
  })
}

Kit.play({
  id: 'wood-blocks-3d', title: 'Wood blocks 3D', background: '#3a2618',
  begin: (level, random) => ({
    board: Array.from({length: N}, () => Array(N).fill(0)), tray: deal(random),
    score: 0, over: false, held: null, motion: null}),
  view: s => ({score: s.score, board: {board: s.board, tray: s.tray}, outcome: s.over ? 'fail' : null,
    reason: 'no piece fits'}),
  ...Kit.dragging(Kit.slot_under(slot), (s, i, x, y, random) => {
    const [r, c] = cell_at(s.tray[i], x, y)
    if (fits(s.board, s.tray[i], r, c)) put(s, i, r, c, random)
  }),
  paint(canvas, s) {
    if (!gl) prepare(canvas)
    gl.viewport(0, 0, canvas.width, canvas.height)
    gl.clearColor(.23, .15, .09, 1)
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT)
    gl.uniform4f(where.view, COS, SIN, SLANT, 0)
    table(s)
    pieces(s)
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score]], '#f2e2c9')
    if (s.over) Kit.banner(g, 'No piece fits')
  }
})
