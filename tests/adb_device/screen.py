"What the simulated phone shows and how it answers to fingers and keys: a launcher and three small apps, drawn with PIL."
import copy
import functools
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

HOME, NOTES, SETTINGS, KEYBOARD = 'org.example.launcher', 'org.example.notes', 'com.android.settings', 'com.android.adbkeyboard'
BAR, TITLE, ROW, PAD = 24, 48, 56, 12          # heights in pixels, and a margin
SETTINGS_ROWS = ['Network', 'Connected devices', 'Apps', 'Notifications', 'Battery', 'Storage', 'Sound', 'Display', 'Wallpaper', 'Accessibility',
                 'Security', 'Privacy', 'Location', 'Safety', 'Passwords', 'Digital wellbeing', 'Google', 'System', 'Tips', 'About phone']


@dataclass
class Page:
    "One screen of an app, as data, so that a snapshot can copy it."
    name: str = 'main'
    arg: object = None
    offset: int = 0      # pixels scrolled
    focus: bool = False  # its text field has the keys


@dataclass
class State:
    "All that a snapshot keeps."
    size: tuple = (360, 640)   # in the natural orientation
    labels: dict = field(default_factory=lambda: {NOTES: 'Notes', SETTINGS: 'Settings'})   # package -> name under its icon
    own: set = field(default_factory=lambda: {NOTES})                                      # installed by a user
    data: dict = field(default_factory=dict)                                               # package -> what it keeps
    stacks: dict = field(default_factory=dict)                                             # package -> its pages
    front: str = HOME
    files: dict = field(default_factory=dict)
    settings: dict = field(default_factory=lambda: {('system', 'user_rotation'): '0', ('system', 'accelerometer_rotation'): '0',
        ('system', 'screen_brightness'): '100', ('secure', 'default_input_method'): 'org.example.latin/.Latin'})
    enabled: set = field(default_factory=set)   # input methods beside the ordinary one

    def copy(self): return copy.deepcopy(self)

    @property
    def rotation(self): return int(self.settings['system', 'user_rotation'])

    @property
    def screen(self): return self.size[::-1] if self.rotation % 2 else self.size

    @property
    def page(self): return self.stacks.setdefault(self.front, [Page()])[-1]

    def keep(self, package=None): return self.data.setdefault(package or self.front, {})

    def launch(self, package):
        self.front = package
        self.stacks.setdefault(package, [Page()])

    def open(self, name, arg=None, focus=False): self.stacks[self.front].append(Page(name, arg, 0, focus))

    def back(self):
        stack = self.stacks[self.front]
        if self.page.focus and self.front != HOME: self.page.focus = False; return
        if len(stack) > 1: stack.pop()
        elif self.front != HOME: self.stop(self.front)

    def stop(self, package):
        self.stacks.pop(package, None)
        if self.front == package: self.launch(HOME)

    def type(self, text):
        "Text at the end of the field that has the focus; lost where none has it."
        if self.page.focus and self.page.name == 'edit': self.keep(NOTES)['notes'][self.page.arg] += text

    def delete(self):
        notes = self.keep(NOTES).get('notes', [])
        if self.page.focus and self.page.name == 'edit': notes[self.page.arg] = notes[self.page.arg][:-1]


@dataclass
class Row:
    "One line of a page."
    text: str
    tap: object = None
    hold: object = None
    slide: object = None   # of a share 0-1 of the width
    level: float | None = None


def notes_main(s):
    notes = s.keep().setdefault('notes', [])
    def new():
        notes.append('')
        s.open('edit', len(notes) - 1, focus=True)
    rows = [Row(n.split('\n')[0] or '(empty)', lambda i=i: s.open('edit', i), lambda i=i: notes.pop(i)) for i, n in enumerate(notes)]
    return 'Notes', [Row('+ New note', new), *rows]


def notes_edit(s):
    page = s.page
    text = s.keep()['notes'][page.arg] + ('|' if page.focus else '')
    return 'Edit note', [Row(line, lambda: setattr(page, 'focus', True)) for line in text.split('\n')]


def settings_main(s): return 'Settings', [Row(name, lambda n=name: s.open(n)) for name in SETTINGS_ROWS]


def settings_display(s):
    def bright(x): s.settings['system', 'screen_brightness'] = str(round(255 * x))
    def turn(): s.settings['system', 'user_rotation'] = str((s.rotation + 1) % 4)
    level = int(s.settings['system', 'screen_brightness'])
    return 'Display', [Row('Rotate screen', turn), Row(f'Brightness {level}', slide=bright, level=level / 255)]


def about(s): return s.page.name, [Row('Model: Simulated phone'), Row('Android version 14')]


def launcher(s): return '', [Row(label, lambda p=p: s.launch(p)) for p, label in sorted(s.labels.items(), key=lambda o: o[1])]


def plain(s): return s.labels[s.front], [Row('This app does nothing.')]


PAGES = {(HOME, 'main'): launcher,
         (NOTES, 'main'): notes_main, (NOTES, 'edit'): notes_edit, (SETTINGS, 'main'): settings_main, (SETTINGS, 'Display'): settings_display}


def contents(s):
    "Title and rows of the page in front."
    return PAGES.get((s.front, s.page.name), about if s.front == SETTINGS else plain)(s)


def keyboard_height(s): return s.screen[1] // 3 if s.page.focus else 0


def boxes(s, rows):
    "Where each row stands: x0, y0, x1, y1."
    width, top = s.screen[0], BAR + (TITLE if s.front != HOME else ROW)
    if s.front != HOME: return [(0, y := top + i * ROW - s.page.offset, width, y + ROW) for i in range(len(rows))]
    cell = width // 3
    return [(x := i % 3 * cell, y := top + i // 3 * 96, x + cell, y + 96) for i in range(len(rows))]


def row_at(s, x, y):
    _, rows = contents(s)
    if not BAR + (TITLE if s.front != HOME else 0) <= y < s.screen[1] - keyboard_height(s): return None
    return next((r for r, (x0, y0, x1, y1) in zip(rows, boxes(s, rows)) if x0 <= x < x1 and y0 <= y < y1), None)


def tap(s, x, y):
    if (row := row_at(s, x, y)) and row.tap: row.tap()


def swipe(s, x1, y1, x2, y2, ms):
    "A finger that moves: a long press where it stays, else a slider or the list."
    row = row_at(s, x1, y1)
    still = max(abs(x2 - x1), abs(y2 - y1)) < 8
    if still: return row.hold() if row and row.hold and ms >= 400 else tap(s, x1, y1)
    if row and row.slide: return row.slide(min(1, max(0, x2 / s.screen[0])))
    _, rows = contents(s)
    most = max(0, len(rows) * ROW + BAR + TITLE - s.screen[1])
    if s.front != HOME: s.page.offset = int(min(most, max(0, s.page.offset + y1 - y2)))


@functools.cache
def font(size):
    try: return ImageFont.truetype('DejaVuSans.ttf', size)
    except OSError: return ImageFont.load_default(size)


def draw(s):
    "The screen as uint8 (height, width, 3)."
    (w, h), (title, rows) = s.screen, contents(s)
    image = Image.new('RGB', (w, h), '#26426b' if s.front == HOME else '#fafafa')
    d = ImageDraw.Draw(image)
    for row, box in zip(rows, boxes(s, rows)): (draw_icon if s.front == HOME else draw_row)(d, row, box)
    if s.front != HOME:
        d.rectangle((0, 0, w, BAR + TITLE), '#3f51b5')
        d.text((PAD, BAR + TITLE // 2), title, 'white', font(20), 'lm')
    d.rectangle((0, 0, w, BAR), '#1a237e')
    d.text((w - PAD, BAR // 2), '12:00', 'white', font(13), 'rm')
    if k := keyboard_height(s): draw_keyboard(d, w, h, k)
    return np.asarray(image)


def draw_row(d, row, box):
    x0, y0, x1, y1 = box
    d.text((x0 + PAD, (y0 + y1) // 2 - (8 if row.level is not None else 0)), row.text, '#202020', font(16), 'lm')
    d.line((x0, y1, x1, y1), '#d8d8d8')
    if row.level is not None: d.line((x0, y1 - 10, x0 + (x1 - x0) * row.level, y1 - 10), '#3f51b5', 4)


def draw_icon(d, row, box):
    x, y = (box[0] + box[2]) // 2, box[1] + 32
    d.rounded_rectangle((x - 24, y - 24, x + 24, y + 24), 12, '#ffb300')
    d.text((x, y), row.text[:1], 'white', font(24), 'mm')
    d.text((x, y + 38), row.text, 'white', font(13), 'mm')


def draw_keyboard(d, w, h, k):
    d.rectangle((0, h - k, w, h), '#cfd8dc')
    for i, line in enumerate(('qwertyuiop', 'asdfghjkl', 'zxcvbnm')):
        for j, letter in enumerate(line): d.text(((j + .5) * w / len(line), h - k + (i + .5) * k / 3), letter, '#263238', font(16), 'mm')
