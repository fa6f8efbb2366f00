"A window that fills its display without a frame and writes down every event that reaches it, a line of JSON each."
import json
import sys

from Xlib import X
from Xlib.display import Display

display = Display()
screen = display.screen()
events = X.ButtonPressMask | X.ButtonReleaseMask | X.PointerMotionMask | X.KeyPressMask | X.KeyReleaseMask | X.ExposureMask
box = (0, 0, screen.width_in_pixels, screen.height_in_pixels, 0)
window = screen.root.create_window(*box, screen.root_depth, background_pixel=screen.white_pixel, event_mask=events, override_redirect=True)
window.map()
window.set_input_focus(X.RevertToParent, X.CurrentTime)
display.sync()
names = {X.ButtonPress: 'down', X.ButtonRelease: 'up', X.MotionNotify: 'move', X.KeyPress: 'key', X.KeyRelease: 'keyup', X.Expose: 'shown'}
with open(sys.argv[1], 'w', buffering=1) as out:
    while True:
        e = display.next_event()
        if e.type == X.MappingNotify: display.refresh_keyboard_mapping(e); continue
        if e.type not in names: continue
        row = dict(what=names[e.type])
        if e.type == X.Expose: window.set_input_focus(X.RevertToParent, X.CurrentTime); display.sync()
        else: row |= dict(at=[e.root_x, e.root_y], detail=e.detail, state=e.state)
        if e.type in (X.KeyPress, X.KeyRelease):
            shifted = int(bool(e.state & X.ShiftMask))
            row['keysym'] = display.keycode_to_keysym(e.detail, shifted) or display.keycode_to_keysym(e.detail, 0)
        out.write(json.dumps(row) + '\n')
