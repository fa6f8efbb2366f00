// Wood blocks 3D: drag one of three wooden pieces onto an 8x8 board; full rows and columns vanish. Drawn with WebGL as
// boxes under an orthographic camera that looks down at the table, so places on the board follow from two divisions.
// A placed cell earns 10 points, a cleared row or column 100, times the number cleared at once.
'use strict'
const N = 8, CELL = 17, LEFT = 12, TOP = 28, TILT = .55   // the camera's tilt from above, in radians
const COS = Math.cos(TILT), SIN = Math.sin(TILT), THICK = 10, TRAY = 170
const WOODS = [[.80, .58, .36], [.70, .46, .26], [.88, .70, .45], [.60, .38, .22]]
const PIECES = [[[0, 0]], [[0, 0], [0, 1]], [[0, 0], [1, 0]], [[0, 0], [0, 1], [0, 2]], [[0, 0], [1, 0], [2, 0]], [[0, 0], [0, 1], [1, 0], [1, 1]],
  [[0, 0], [1, 0], [1, 1]], [[0, 1], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0]], [[0, 0], [0, 1], [1, 1]], [[0, 0], [0, 1], [0, 2], [0, 3]],
  [[0, 0], [1, 0], [2, 0], [3, 0]], [[0, 0], [1, 0], [2, 0], [2, 1]], [[0, 1], [1, 1], [2, 1], [2, 0]], [[0, 0], [0, 1], [0, 2], [1, 1]],
  [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]]

const fits = (board, piece, r, c) => PIECES[piece].every(([a, b]) => board[r + a]?.[c + b] === 0)
const deal = random => Array.from({length: 3}, () => random.int(PIECES.length))
const slot = i => [30 + 50 * i, TRAY + 14]
const span = (piece, k) => Math.max(...PIECES[piece].map(o => o[k])) + 1
const stuck = s => s.tray.every(piece => piece === null || !s.board.some((row, r) => row.some((_, c) => fits(s.board, piece, r, c))))

function put(s, i, r, c, random) {
  const piece = s.tray[i]
  for (const [a, b] of PIECES[piece]) s.board[r + a][c + b] = 1 + piece % WOODS.length
  s.score += 10 * PIECES[piece].length
  const rows = s.board.map((row, k) => row.every(Boolean) ? k : -1).filter(k => k >= 0)
  const columns = s.board.map((_, k) => s.board.every(row => row[k]) ? k : -1).filter(k => k >= 0)
  const n = rows.length + columns.length
  s.score += 100 * n * n
  for (const k of rows) s.board[k].fill(0)
  for (const k of columns) for (const row of s.board) row[k] = 0
  s.tray[i] = null
  if (s.tray.every(o => o === null)) s.tray = deal(random)
  s.over = stuck(s)
}
// the row and column under a point, of the cell where a held piece's middle would lie
const cell_at = (piece, x, y) => [Math.round((y - TOP) / (CELL * COS) - span(piece, 0) / 2), Math.round((x - LEFT) / CELL - span(piece, 1) / 2)]

// WebGL: one unit box, drawn once for each block
const VERTEX = `attribute vec3 corner, normal; uniform vec3 at, size; uniform vec2 tilt; varying float light;
void main() {
  vec3 p = at + corner * size;
  float y = p.y * tilt.x - p.z * tilt.y, depth = p.y * tilt.y + p.z * tilt.x;
  gl_Position = vec4(p.x / 80. - 1., 1. - y / 105., -depth / 400., 1.);
  light = .62 + .38 * max(0., dot(normal, normalize(vec3(-.35, .3, .9))));
}`
const FRAGMENT = 'precision mediump float; uniform vec3 color; varying float light; void main() { gl_FragColor = vec4(color * light, 1.); }'
const FACES = [[[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]], [[0, 1, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 0]],
  [[0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [-1, 0, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 0, 0]]]   // corners, then the normal

let gl = null, where = {}
function prepare(canvas) {
  gl = canvas.getContext('webgl', {preserveDrawingBuffer: true, antialias: true})
  const shader = (kind, source) => { const o = gl.createShader(kind); gl.shaderSource(o, source); gl.compileShader(o); return o }
  const program = gl.createProgram()
  gl.attachShader(program, shader(gl.VERTEX_SHADER, VERTEX))
  gl.attachShader(program, shader(gl.FRAGMENT_SHADER, FRAGMENT))
  gl.linkProgram(program)
  gl.useProgram(program)
  const data = FACES.flatMap(([a, b, c, d, n]) => [a, b, c, a, c, d].flatMap(p => [...p, ...n]))
  gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer())
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.STATIC_DRAW)
  for (const [name, at] of [['corner', 0], ['normal', 12]]) {
    const slot = gl.getAttribLocation(program, name)
    gl.enableVertexAttribArray(slot)
    gl.vertexAttribPointer(slot, 3, gl.FLOAT, false, 24, at)
  }
  for (const name of ['at', 'size', 'tilt', 'color']) where[name] = gl.getUniformLocation(program, name)
  gl.enable(gl.DEPTH_TEST)
}
function block(x, y, z, w, h, d, color) {
  gl.uniform3f(where.at, x, y, z)
  gl.uniform3f(where.size, w, h, d)
  gl.uniform3f(where.color, ...color)
  gl.drawArrays(gl.TRIANGLES, 0, 6 * FACES.length)
}
const ground = y => y / COS   // the table's y of a screen y, at height 0

Kit.play({
  id: 'wood-blocks-3d', title: 'Wood blocks 3D', background: '#3a2618',
  begin: (level, random) => ({board: Array.from({length: N}, () => Array(N).fill(0)), tray: deal(random), score: 0, over: false, held: null}),
  view: s => ({score: s.score, board: {board: s.board, tray: s.tray}, outcome: s.over ? 'fail' : null, reason: 'no piece fits'}),
  press(s, x, y) {
    const i = [0, 1, 2].find(k => s.tray[k] !== null && Math.hypot(slot(k)[0] - x, slot(k)[1] - y) < 24)
    s.held = i === undefined ? null : {i, x, y}
  },
  move(s, x, y) { if (s.held) Object.assign(s.held, {x, y}) },
  release(s, x, y, random) {
    if (!s.held) return
    const {i} = s.held, [r, c] = cell_at(s.tray[i], x, y)
    s.held = null
    if (fits(s.board, s.tray[i], r, c)) put(s, i, r, c, random)
  },
  paint(canvas, s) {
    if (!gl) prepare(canvas)
    gl.viewport(0, 0, canvas.width, canvas.height)
    gl.clearColor(.23, .15, .09, 1)
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT)
    gl.uniform2f(where.tilt, COS, SIN)
    block(LEFT - 5, ground(TOP) - 5, -14, N * CELL + 10, N * CELL + 10, 6, [.36, .24, .15])
    for (let r = 0; r < N; r++) for (let c = 0; c < N; c++) {
      const x = LEFT + c * CELL, y = ground(TOP) + r * CELL, v = s.board[r][c]
      block(x + .6, y + .6, -8, CELL - 1.2, CELL - 1.2, v ? 8 + THICK : 1, v ? WOODS[v - 1] : [.47, .33, .22])
    }
    s.tray.forEach((piece, i) => {
      if (piece === null) return
      const held = s.held?.i === i, size = held ? CELL : 10, [x, y] = held ? [s.held.x, s.held.y] : slot(i)
      for (const [r, c] of PIECES[piece])
        block(x + (c - span(piece, 1) / 2) * size + .5, ground(y) + (r - span(piece, 0) / 2) * size + .5, held ? 6 : 0, size - 1, size - 1, size / 2, WOODS[piece % WOODS.length])
    })
  },
  draw(g, s) {
    Kit.bar(g, [['score', s.score]], '#f2e2c9')
    if (s.over) Kit.banner(g, 'No piece fits')
  }
})
