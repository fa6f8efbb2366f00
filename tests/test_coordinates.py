"The coordinate contract at every screen size and device scale."
import importlib, math

import pytest
from hypothesis import assume, example, given, strategies as st

from uitars_nb.core.coordinates import FACTOR, GRID, MAX_ASPECT, MAX_PIXELS, MIN_PIXELS
from uitars_nb.core.coordinates import grid_to_model, model_to_grid, smart_resize, to_grid, to_pixel

points = st.tuples(st.integers(0, GRID), st.integers(0, GRID))
sides = st.integers(1, 20_000)
sizes = st.tuples(sides, sides)
screens = sizes.filter(lambda s: max(s) <= MAX_ASPECT * min(s))
scales = st.sampled_from([.5, .75, 1, 1.25, 1.5, 1.75, 2, 2.625, 3, 3.5, 4]) | st.floats(.25, 8)
CORNERS = [(0, 0), (GRID, 0), (0, GRID), (GRID, GRID)]


@given(points, sizes)
@example((GRID, GRID), (1, 1))
def test_a_grid_point_comes_back_unchanged(point, size):
    assert to_grid(to_pixel(point, size), size) == point


@given(sizes, st.floats(0, 1), st.floats(0, 1))
def test_a_pixel_comes_back_within_half_a_cell(size, u, v):
    pixel = (u * size[0], v * size[1])
    back = to_pixel(to_grid(pixel, size), size)
    for x, y, side in zip(pixel, back, size): assert abs(x - y) <= side / GRID / 2 * (1 + 1e-9)


@given(points, sizes)
def test_every_point_lies_inside_of_the_screen(point, size):
    for x, side in zip(to_pixel(point, size), size): assert 0 <= x < side and math.floor(x) < side


@given(points, sizes, scales)
def test_device_scale_changes_nothing(point, size, scale):
    device = tuple(side * scale for side in size)
    css = to_pixel(point, size)
    assert to_pixel(point, device) == pytest.approx(tuple(x * scale for x in css), rel=1e-12)
    assert to_grid(tuple(x * scale for x in css), device) == point


@given(sizes, st.sampled_from([-1, 1, math.nan, math.inf]), st.integers(0, 1))
def test_off_the_screen_is_refused(size, by, axis):
    pixel = [size[0] / 2, size[1] / 2]
    pixel[axis] = -1 if by == -1 else size[axis] + by
    with pytest.raises(ValueError, match='off the screen'): to_grid(pixel, size)


def test_a_point_has_two_coordinates():
    with pytest.raises(ValueError): to_pixel((1, 2, 3), (100, 100))


def modules(*names):
    "Those of the modules that can be imported here."
    for name in names:
        try: yield importlib.import_module(name)
        except ImportError: pass


PEERS = {m.__name__: m.smart_resize for m in modules(
    'ui_tars.action_parser', 'transformers.models.qwen2_vl.image_processing_qwen2_vl', 'transformers.models.qwen2_vl.image_processing_pil_qwen2_vl')}


@pytest.mark.parametrize('peer', PEERS)
@given(screens)
@example((160, 210))
@example((14, 2800))
@example((42, 70))
@example((8509, 8509))
@example((20_000, 100))
def test_resizing_agrees_with(peer, size):
    assume(peer != 'ui_tars.action_parser' or min(size) > 14)  # it rounds half a patch up, the model's own preprocessing down
    height, width = PEERS[peer](size[1], size[0], factor=FACTOR, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
    assert smart_resize(size) == (width, height)


def test_there_is_a_peer_to_agree_with(): assert 'ui_tars.action_parser' in PEERS


@given(screens)
def test_a_resized_image_obeys_its_bounds(size):
    w, h = smart_resize(size)
    assert w % FACTOR == h % FACTOR == 0
    assert MIN_PIXELS <= w * h <= MAX_PIXELS


@given(sizes.filter(lambda s: max(s) > MAX_ASPECT * min(s)))
@example((1, 201))
def test_a_narrow_screen_is_refused(size):
    with pytest.raises(ValueError, match='aspect'): smart_resize(size)


@given(screens, st.floats(0, 1), st.floats(0, 1))
def test_a_model_pixel_is_within_half_a_cell_of_its_grid_point(size, u, v):
    image = smart_resize(size)
    pixel = (round(u * image[0]), round(v * image[1]))
    for g, x, side in zip(model_to_grid(pixel, size), pixel, image): assert abs(g / GRID - x / side) <= .5 / GRID * (1 + 1e-9)


@given(points, screens)
def test_a_grid_point_is_within_half_a_model_pixel(point, size):
    image = smart_resize(size)
    back = model_to_grid(grid_to_model(point, size), size)
    for g, h, side in zip(point, back, image):
        if side >= GRID: assert g == h
        assert abs(g - h) <= .5 * GRID / side + .5


@given(points, screens)
def test_a_model_pixel_comes_back_on_small_images(point, size):
    image = smart_resize(size)
    assume(max(image) < GRID)
    pixel = grid_to_model(point, size)
    assert grid_to_model(model_to_grid(pixel, size), size) == pixel


@given(screens)
def test_corners_are_corners_for_both(size):
    for corner in CORNERS: assert model_to_grid(grid_to_model(corner, size), size) == corner
