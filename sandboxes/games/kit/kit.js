// A frame for small canvas games: seeded randomness, one logical screen of 160x210 scaled to the window, mouse and
// keys, a fixed 60 Hz step, and `window.gameAPI` in the shape of GameWorld's browser games (schema 2.0).
//
// A game is one object of pure functions over a state that is plain JSON, so a checkpoint is the state itself:
//   begin(level, random) -> state        a new level
//   view(state) -> {score, lives, progress, outcome, reason, board}    what a verifier reads
//   draw(g, state, {level, carried})     onto a 2D context in logical units
//   paint(canvas, state)                 optional: onto a WebGL canvas of the same place below it
//   key(state, name, random)             'ArrowLeft', 'Enter', ' ', 'a' ...; optional, like the next four
//   press / move / release(state, x, y, random)   the left mouse button, in logical units
//   tick(state, random)                  one sixtieth of a second of a real-time game
// A game that is over and draws no `Kit.banner` gets one with the reason of its `view`.
// What only moves on the screen is a motion, `Kit.animate(state, facts, ms)`: the kit runs it down within `ms` of game
// time, `Kit.left(state)` is the share that is left (1 to 0), and `draw` shows it. Rules and scores never read it.
'use strict'
const Kit = (() => {
  const WIDTH = 160, HEIGHT = 210, FRAME = 1000 / 60
  let announced = false   // a banner stands on the screen

  // mulberry32: a generator whose whole state is one 32-bit number
  class Random {
    constructor(seed) { this.state = seed >>> 0 }
    next() {
      let t = this.state = (this.state + 0x6D2B79F5) >>> 0
      t = Math.imul(t ^ t >>> 15, t | 1)
      t ^= t + Math.imul(t ^ t >>> 7, t | 61)
      return ((t ^ t >>> 14) >>> 0) / 4294967296
    }
    int(n) { return Math.floor(this.next() * n) }
    pick(list) { return list[this.int(list.length)] }
    shuffle(list) {
      for (let i = list.length - 1; i > 0; i--) { const j = this.int(i + 1); [list[i], list[j]] = [list[j], list[i]] }
      return list
    }
  }

  function play(game) {
    const below = game.paint && document.body.appendChild(document.createElement('canvas'))
    const canvas = document.body.appendChild(document.createElement('canvas')), g = canvas.getContext('2d')
    const session = {seed: 0, level: 1, random: new Random(0), state: null, started: 0, steps: 0, carried: 0}
    let scale = 1, left = 0, top = 0, due = 0, asked = false, last = null

    const seeded = (seed, level) => new Random(Math.imul(seed ^ 0x9E3779B9, 2654435761) + level * 7919)
    function begin(seed, level) {
      Object.assign(session, {seed, level, random: seeded(seed, level), steps: 0, carried: 0, started: Date.now()})
      session.state = game.begin(level, session.random)
      due = performance.now()
      paint()   // before the first frame, so that the first screenshot shows the game
      show()
    }
    // a finished level is followed by the next one, which appears out of white; its score is carried
    function settle() {
      const v = game.view(session.state)
      if (v.outcome === 'success' && session.level < (game.levels ?? 1)) {
        const carried = session.carried + v.score
        session.random = seeded(session.seed, ++session.level)
        session.state = game.begin(session.level, session.random)
        session.carried = carried
        animate(session.state, {level: true})
      }
    }
    function act(e, name, ...args) {
      catch_up(Math.min(e.timeStamp, performance.now()))
      if (!game[name] || over()) return
      game[name](session.state, ...args, session.random)
      if (name === 'key' || name === 'press') session.steps++   // a drag is one move, as for the agent
      settle()
      show()
    }
    const over = () => game.view(session.state).outcome !== null

    function show() {
      if (!asked) { asked = true; last = null; requestAnimationFrame(frame) }
    }
    // the share of a motion that is left shrinks with game time, however many frames are drawn
    function run_down(now) {
      const {motion} = session.state
      if (!motion) return
      motion.left -= (last === null ? FRAME : now - last) / motion.ms
      if (motion.left <= 0) session.state.motion = null
    }
    // run the ticks that are due at a time, before each input too, so the times of frames do not matter; a page that slept
    // for a second goes on where it was
    function catch_up(now) {
      if (now - due > 1000) due = now
      for (; game.tick && due <= now + 1e-6 && !over(); due += FRAME) { game.tick(session.state, session.random); settle() }
    }
    function frame(now) {
      asked = false
      catch_up(now)
      if (game.tick && !over()) show()
      run_down(now)
      if (session.state.motion) show()
      last = now
      paint()
    }
    function paint() {
      g.setTransform(1, 0, 0, 1, 0, 0)
      g.clearRect(0, 0, canvas.width, canvas.height)
      announced = false
      if (below) game.paint(below, session.state)
      g.setTransform(scale * ratio(), 0, 0, scale * ratio(), left * ratio(), top * ratio())
      game.draw(g, session.state, {level: session.level, carried: session.carried})
      if (session.state.motion?.level) {
        g.fillStyle = `rgba(255, 255, 255, ${.8 * share(session.state)})`
        g.fillRect(0, 0, WIDTH, HEIGHT)
      }
      if (!announced) announce(game.view(session.state))
    }
    // say why the game is over
    function announce({outcome, reason}) {
      if (outcome === null) return
      const words = reason || 'game over'
      g.save()
      banner(g, words[0].toUpperCase() + words.slice(1))
      g.restore()
    }
    const ratio = () => window.devicePixelRatio || 1
    function fit() {
      scale = Math.min(innerWidth / WIDTH, innerHeight / HEIGHT)
      left = (innerWidth - WIDTH * scale) / 2
      top = (innerHeight - HEIGHT * scale) / 2
      Object.assign(canvas, {width: innerWidth * ratio(), height: innerHeight * ratio()})
      Object.assign(canvas.style, {position: 'fixed', left: 0, top: 0, width: '100vw', height: '100vh'})
      if (below) {
        Object.assign(below, {width: WIDTH * scale * ratio(), height: HEIGHT * scale * ratio()})
        const size = {width: `${WIDTH * scale}px`, height: `${HEIGHT * scale}px`}
        Object.assign(below.style, {position: 'fixed', left: `${left}px`, top: `${top}px`, ...size})
      }
      if (session.state) { paint(); show() }   // a new size clears the canvas
    }

    const at = e => [(e.clientX - left) / scale, (e.clientY - top) / scale]
    addEventListener('pointerdown', e => { if (e.button === 0) act(e, 'press', ...at(e)) })
    addEventListener('pointermove', e => { if (e.buttons & 1) act(e, 'move', ...at(e)) })
    addEventListener('pointerup', e => { if (e.button === 0) act(e, 'release', ...at(e)) })
    addEventListener('keydown', e => {
      if (/^(Arrow|Page|Home|End| $)/.test(e.key)) e.preventDefault()
      if (!e.repeat || game.repeats) act(e, 'key', e.key)
    })
    addEventListener('keyup', e => act(e, 'keyup', e.key))
    addEventListener('resize', fit)
    document.title = game.title
    const color = game.background ?? '#faf8ef'
    document.body.style.cssText = `margin:0;overflow:hidden;user-select:none;touch-action:none;background:${color}`
    fit()

    const capabilities = {
      seed: game.seeded ?? true, level: (game.levels ?? 1) > 1, difficulty: false, checkpoint: true, realTime: !!game.realTime}
    function getState() {
      const v = game.view(session.state), score = session.carried + v.score
      if (v.board === session.state) v.board = {...v.board, motion: undefined}
      return structuredClone({
        schemaVersion: '2.0', gameId: game.id, seed: session.seed, timestampMs: Date.now(),
        gameTimeMs: Date.now() - session.started,
        status: v.outcome === null ? 'playing' : 'terminal', is_actionable: v.outcome === null,
        terminal: {
          isTerminal: v.outcome !== null, outcome: v.outcome, reason: v.outcome === null ? null : v.reason ?? null},
        metrics: {
          primary_score: score, score, level: session.level, lives: v.lives ?? null, progress: v.progress ?? null,
          moves: session.steps},
        game_state: {
          score, level: session.level, lives: v.lives ?? null, completion_progress: v.progress ?? null,
          environment: v.board ?? null}})
    }
    async function init(options = {}) {
      const seed = (options?.seed ?? session.seed) >>> 0, wanted = options?.level ?? 1
      const level = Math.max(1, Math.min(game.levels ?? 1, Math.floor(wanted)))
      begin(seed, level)
      const notes = level === wanted ? [] : ['level_clamped']
      return {ok: true, accepted: {seed, level: wanted}, applied: {seed, level}, notes}
    }
    window.gameAPI = {
      version: '2.0', capabilities, getState, init,
      reset: options => init({seed: session.seed, level: session.level, ...options}),
      checkpoint: () => JSON.stringify(
        {...session, random: session.random.state, started: Date.now() - session.started}),
      restore(text) {
        const saved = JSON.parse(text)
        Object.assign(session, saved, {random: new Random(saved.random), started: Date.now() - saved.started})
        due = performance.now()
        paint()
        show()
      }
    }
    begin(0, 1)
  }

  // set what only moves on the screen; `ms` of game time, at most 130
  function animate(state, facts, ms = 110) { state.motion = {...facts, ms: Math.min(ms, 130), left: 1} }
  const share = state => state.motion ? Math.max(0, state.motion.left) : 0
  // a point on the way from one place to another: at the first while the whole motion is left
  const between = (state, [x, y], [a, b]) => [a + (x - a) * share(state), b + (y - b) * share(state)]

  // the arrow key that a drag stands for; null if it is short
  function swipe([x, y], [a, b], least = 15) {
    const [dx, dy] = [a - x, b - y]
    if (Math.max(Math.abs(dx), Math.abs(dy)) < least) return null
    return Math.abs(dx) > Math.abs(dy) ? (dx > 0 ? 'ArrowRight' : 'ArrowLeft') : (dy > 0 ? 'ArrowDown' : 'ArrowUp')
  }

  // press, move and release of a game whose pieces are dragged from slots: `find(state, x, y)` is the slot of the piece
  // under the mouse, `drop(state, slot, x, y, random)` puts it down; `state.held` is {i, x, y} in between
  const dragging = (find, drop) => ({
    press(s, x, y) {
      const i = find(s, x, y)
      s.held = i === undefined ? null : {i, x, y}
    },
    move(s, x, y) { if (s.held) Object.assign(s.held, {x, y}) },
    release(s, x, y, random) {
      if (!s.held) return
      const {i} = s.held
      s.held = null
      drop(s, i, x, y, random)
    }
  })
  // the slot of a tray of three whose piece lies within 24 units
  const slot_under = slot => (s, x, y) =>
    [0, 1, 2].find(k => s.tray[k] !== null && Math.hypot(slot(k)[0] - x, slot(k)[1] - y) < 24)

  // drawing helpers, in logical units
  function text(g, words, x, y, size = 12, color = '#222', align = 'center', weight = 'bold') {
    g.font = `${weight} ${size}px "DejaVu Sans", sans-serif`
    Object.assign(g, {textAlign: align, textBaseline: 'middle', fillStyle: color})
    g.fillText(words, x, y)
  }
  function box(g, x, y, w, h, color, radius = 2) {
    g.fillStyle = color
    g.beginPath()
    g.roundRect(x, y, w, h, radius)
    g.fill()
  }
  function polygon(g, x, y, r, n, turn, color) {   // regular, its first corner at angle `turn`
    g.beginPath()
    for (let k = 0; k < n; k++) {
      const angle = turn + k * 2 * Math.PI / n
      g.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle))
    }
    g.closePath()
    g.fillStyle = color
    g.fill()
  }
  function disc(g, x, y, r, color) {
    g.beginPath()
    g.arc(x, y, r, 0, 7)
    g.fillStyle = color
    g.fill()
  }
  // the line at the top: names and values, from left to right
  function bar(g, facts, color = '#776e65') {
    const each = WIDTH / facts.length
    facts.forEach(([name, value], i) => {
      text(g, `${name} ${value}`, each * (i + .5), 9, facts.length > 2 ? 9 : 11, color)
    })
  }
  function banner(g, words) {
    announced = true
    g.fillStyle = 'rgba(255, 255, 255, .75)'
    g.fillRect(0, 85, WIDTH, 40)
    g.font = 'bold 16px "DejaVu Sans", sans-serif'
    text(g, words, WIDTH / 2, 105, Math.min(16, 16 * (WIDTH - 8) / g.measureText(words).width), '#333')
  }
  return {
    WIDTH, HEIGHT, Random, play, animate, left: share, between, swipe, dragging, slot_under,
    text, box, polygon, disc, bar, banner}
})()
