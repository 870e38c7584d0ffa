"""Down-closed polygons by hand: corners, faces, extreme points, loads and weights."""

from fractions import Fraction

import pytest

from queuetheory_llm.exact.hull import DownClosedPolygon, upper_right

ONE = Fraction(1)


def polygon(*points):
    return DownClosedPolygon(tuple((Fraction(x), Fraction(y)) for x, y in points))


def chain(*points):
    return [points[index] for index in upper_right(points)]


def test_no_points_make_no_corners():
    assert upper_right([]) == []


def test_corners_run_from_the_x_axis_to_the_y_axis():
    points = [(0, 4, 1), (4, 0, 1), (3, 3, 1), (1, 1, 1), (2, 2, 1)]
    assert chain(*points) == [(4, 0, 1), (3, 3, 1), (0, 4, 1)]


def test_collinear_points_are_no_corners():
    assert chain((4, 0, 1), (3, 1, 1), (2, 2, 1), (0, 4, 1)) == [(4, 0, 1), (0, 4, 1)]


def test_dominated_ends_are_no_corners():
    # (3, 0) has the same y as (4, 0); (0, 3) lies under (1, 3).
    assert chain((3, 0, 1), (4, 0, 1), (1, 3, 1), (0, 3, 1)) == [(4, 0, 1), (1, 3, 1)]
    assert chain((4, 0, 1), (4, 2, 1)) == [(4, 2, 1)]


def test_equal_rates_keep_the_last_point_given():
    assert upper_right([(1, 1, 1), (2, 2, 2), (3, 3, 3)]) == [2]


def test_rates_are_compared_exactly_beyond_floating_point():
    huge = 10**30
    # x/t differ by 1e-60 relative; as floats they are equal.
    assert upper_right([(huge, 0, huge + 1), (huge - 1, 0, huge)]) == [0]
    # A point 1e-30 above the segment from (1, 0) to (0, 1) is a corner, one on it is not.
    assert len(upper_right([(1, 0, 1), (0, 1, 1), (huge + 1, huge + 1, 2 * huge + 1)])) == 3
    assert len(upper_right([(1, 0, 1), (0, 1, 1), (huge, huge, 2 * huge)])) == 2


def test_the_triangle():
    triangle = polygon((3, 0), (0, 3))
    (face,) = triangle.faces
    assert (face.prefill / face.bound, face.decode / face.bound) == (Fraction(1, 3), Fraction(1, 3))
    assert [point for point, _ in triangle.extreme_points] == [(0, 0), (3, 0), (0, 3)]
    assert triangle.weights((ONE, ONE)) == {0: Fraction(1, 3), 1: Fraction(1, 3)}
    assert triangle.binding_face((ONE, Fraction(2)))[1] == 1
    assert triangle.weights((Fraction(0), Fraction(0))) == {}


def test_a_rectangle_has_extreme_points_that_a_corner_dominates():
    box = polygon((2, 3))
    assert box.extreme_points == (((0, 0), None), ((2, 0), 0), ((2, 3), 0), ((0, 3), 0))
    assert {(f.prefill, f.decode, f.bound) for f in box.faces} == {(1, 0, 2), (0, 1, 3)}
    assert box.binding_face((ONE, ONE))[1] == Fraction(1, 2)
    assert box.weights((ONE, ONE)) == {0: Fraction(1, 2)}


@pytest.mark.parametrize(("point", "other"), [((5, 0), (0, 1)), ((0, 5), (1, 0))])
def test_a_segment_on_an_axis(point, other):
    segment = polygon(point)
    assert [p for p, _ in segment.extreme_points] == [(0, 0), point]
    assert segment.weights((Fraction(point[0], 2), Fraction(point[1], 2))) == {0: Fraction(1, 2)}
    with pytest.raises(ZeroDivisionError):
        segment.binding_face((Fraction(other[0]), Fraction(other[1])))


def test_faces_parallel_to_an_axis_stand_beside_sloped_ones():
    shape = polygon((4, 1), (1, 2))
    assert [(f.prefill, f.decode, f.bound, f.ends) for f in shape.faces] == [
        (1, 0, 4, (0, 0)),
        (1, 3, 7, (0, 1)),
        (0, 1, 2, (1, 1)),
    ]
    assert [p for p, _ in shape.extreme_points] == [(0, 0), (4, 0), (4, 1), (1, 2), (0, 2)]
    # Beyond a face parallel to an axis, and beyond a sloped one.
    assert shape.binding_face((Fraction(8), ONE))[1] == 2
    assert shape.binding_face((Fraction(7), Fraction(7)))[1] == 4
    assert shape.weights((Fraction(7), Fraction(7))) == {0: 1, 1: 3}
