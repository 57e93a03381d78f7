"""Small functions over points, boxes and grids with whole coordinates."""


def street_distance(ax, ay, bx, by):
    across = abs(ax - bx)
    along = abs(ay - by)
    return across + along


def inside_box(x, y, box):
    left, top, right, bottom = box
    return left <= x and x < right and top <= y and y < bottom


def box_area(x1, y1, x2, y2):
    width = abs(x2 - x1)
    height = abs(y2 - y1)
    return width * height


def path_length(points):
    total = 0
    for i in range(1, len(points)):
        total += abs(points[i][0] - points[i - 1][0])
        total += abs(points[i][1] - points[i - 1][1])
    return total


def quadrant(x, y):
    if x == 0 or y == 0:
        return 0
    if x > 0:
        return 1 if y > 0 else 4
    return 2 if y > 0 else 3


def scale_from(value, origin, factor):
    offset = (value - origin) * factor
    return origin + offset


def turn_left(dx, dy, times):
    for i in range(times % 4):
        dx, dy = -dy, dx
    return [dx, dy]


def bounding_box(points):
    xs = [p[0] for p in points]
    ys = [p[1] for p in points]
    return [min(xs), min(ys), max(xs), max(ys)]


def triangle_kind(a, b, c):
    if a == b and b == c:
        return "equilateral"
    if a == b or b == c or a == c:
        return "isosceles"
    return "scalene"


def fits_in(box, item):
    box = sorted(box)
    item = sorted(item)
    return item[0] <= box[0] and item[1] <= box[1]


def mirror_points(points, axis):
    out = []
    for p in points:
        out.append([2 * axis - p[0], p[1]])
    return out


def grid_neighbors(row, col, rows, cols):
    out = []
    for r, c in [(row - 1, col), (row, col + 1), (row + 1, col), (row, col - 1)]:
        if 0 <= r and r < rows and 0 <= c and c < cols:
            out.append([r, c])
    return out


def twice_area(points):
    total = 0
    for i in range(len(points)):
        a = points[i - 1]
        b = points[i]
        total += a[0] * b[1] - b[0] * a[1]
    return abs(total)


def king_moves(ax, ay, bx, by):
    dx = abs(ax - bx)
    dy = abs(ay - by)
    return max(dx, dy)


CASES = {
    "street_distance": (
        "return the distance from (ax, ay) to (bx, by) along a street grid",
        [
            [0, 0, 3, 4], [3, 4, 0, 0], [1, 1, 1, 1], [-2, 5, 2, 5], [0, 0, 0, 7], [1, 2, 3, 1], [-1, -1, -4, -5],
            [5, 0, 0, 0],
        ],
    ),
    "inside_box": (
        "return True if (x, y) is in the box [left, top, right, bottom], right and bottom excluded",
        [
            [1, 1, [0, 0, 2, 2]], [0, 0, [0, 0, 2, 2]], [2, 1, [0, 0, 2, 2]], [1, 2, [0, 0, 2, 2]],
            [-1, 1, [0, 0, 2, 2]], [1, -1, [0, 0, 2, 2]], [5, 6, [5, 5, 9, 7]], [9, 9, [0, 0, 2, 2]],
            [3, 1, [2, 1, 4, 3]],
        ],
    ),
    "box_area": (
        "return the area of the box with the corners (x1, y1) and (x2, y2)",
        [
            [0, 0, 2, 3], [2, 3, 0, 0], [1, 1, 1, 5], [-1, -1, 1, 1], [0, 3, 4, 1], [5, 5, 5, 5], [1, 2, 4, 8],
            [10, 0, 0, 1],
        ],
    ),
    "path_length": (
        "return the length of the path over points, along a street grid",
        [
            [[[0, 0], [3, 4]]], [[[0, 0]]], [[]], [[[0, 0], [0, 2], [5, 2]]], [[[1, 1], [1, 1]]],
            [[[2, 3], [0, 0], [2, 3]]], [[[-1, 0], [1, -1]]], [[[0, 0], [1, 0], [1, 1], [0, 1]]],
        ],
    ),
    "quadrant": (
        "return the quadrant 1 to 4 of (x, y), 0 on an axis",
        [
            [1, 1], [-1, 1], [-1, -1], [1, -1], [0, 3], [3, 0], [0, 0], [5, -2], [-4, 6], [-7, 0],
        ],
    ),
    "scale_from": (
        "return value moved away from origin so that its distance is multiplied by factor",
        [
            [5, 1, 2], [1, 1, 9], [0, 0, 3], [4, 2, 1], [4, 2, 0], [3, 5, 2], [-2, 1, 3], [10, 4, -1],
        ],
    ),
    "turn_left": (
        "return the direction (dx, dy) turned left by 90 degrees, times times",
        [
            [1, 0, 1], [1, 0, 2], [0, 1, 1], [1, 0, 0], [2, 3, 1], [2, 3, 4], [1, 2, 3], [-1, 0, 5],
        ],
    ),
    "bounding_box": (
        "return [smallest x, smallest y, largest x, largest y] of points",
        [
            [[[1, 2], [3, 0]]], [[[5, 5]]], [[[0, 0], [-1, 4], [2, -3]]], [[[1, 9], [9, 1]]], [[[2, 2], [2, 7]]],
            [[[4, 1], [6, 1]]], [[[-5, -6], [-7, -8]]], [[[0, 3], [1, 2], [2, 1]]],
        ],
    ),
    "triangle_kind": (
        "return equilateral, isosceles (two equal sides) or scalene for a triangle",
        [
            [3, 3, 3], [3, 3, 2], [2, 3, 3], [3, 2, 3], [3, 4, 5], [1, 1, 1], [5, 5, 8], [7, 8, 9], [6, 4, 4],
        ],
    ),
    "fits_in": (
        "return True if the rectangle item, turned or not, fits in the rectangle box",
        [
            [[3, 5], [2, 4]], [[3, 5], [5, 3]], [[3, 5], [4, 4]], [[3, 5], [6, 1]], [[5, 3], [3, 5]],
            [[2, 2], [2, 2]], [[2, 2], [3, 1]], [[9, 4], [4, 9]], [[4, 6], [5, 5]],
        ],
    ),
    "mirror_points": (
        "return points mirrored at the vertical line x = axis",
        [
            [[[1, 2]], 0], [[[1, 2]], 1], [[], 5], [[[0, 0], [4, 1]], 2], [[[-3, 7]], 1], [[[5, 5]], -2],
            [[[1, 0], [2, 0], [3, 0]], 3], [[[6, 2]], 4],
        ],
    ),
    "grid_neighbors": (
        "return the cells above, right, below and left of (row, col) that are on the grid",
        [
            [0, 0, 3, 3], [1, 1, 3, 3], [2, 2, 3, 3], [0, 2, 3, 3], [0, 0, 1, 1], [1, 0, 2, 2], [0, 1, 1, 3],
            [2, 0, 4, 1],
        ],
    ),
    "twice_area": (
        "return twice the area of the polygon with these corners",
        [
            [[[0, 0], [4, 0], [0, 3]]], [[[0, 0], [2, 0], [2, 2], [0, 2]]], [[[0, 0], [0, 3], [4, 0]]], [[]],
            [[[1, 1]]], [[[1, 1], [3, 1], [1, 4]]], [[[0, 0], [5, 5], [10, 10]]], [[[2, 1], [6, 2], [5, 7], [1, 4]]],
        ],
    ),
    "king_moves": (
        "return how many moves a chess king needs from (ax, ay) to (bx, by)",
        [
            [0, 0, 3, 3], [0, 0, 3, 1], [0, 0, 1, 5], [4, 4, 4, 4], [7, 0, 0, 0], [0, 7, 0, 0], [2, 5, 6, 1],
            [1, 1, 2, 4],
        ],
    ),
}  # fmt: skip
