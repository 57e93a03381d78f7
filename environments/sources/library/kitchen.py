"""Small functions about recipes, portions, ovens and shopping."""


def scale_recipe(recipe, portions, wanted):
    out = {}
    for name in recipe:
        out[name] = (recipe[name] * wanted + portions - 1) // portions
    return out


def preheat_minutes(temp, target):
    minutes = 0
    while temp < target:
        temp += 30 if target - temp > 50 else 10
        minutes += 1
    return minutes


def shopping_list(needed, pantry):
    out = []
    for item in sorted(needed):
        missing = needed[item] - pantry.get(item, 0)
        if missing > 0:
            out.append([item, missing])
    return out


def batches_possible(recipe, stock, trays):
    counts = [stock.get(name, 0) // recipe[name] for name in recipe]
    return min(min(counts), trays)


def boiled_egg(minutes, large):
    if large:
        minutes -= 2
    if minutes < 5:
        return "soft"
    return "hard" if minutes >= 9 else "medium"


def last_dish_done(dishes):
    free = 0
    for start, minutes in dishes:
        free = max(free, start) + minutes
    return free


def still_good(fridge, today):
    fresh = [name for name in fridge if fridge[name] >= today]
    return sorted(fresh, key=lambda name: (fridge[name], name))


def ingredient_text(amount, unit, name):
    if unit == "":
        return str(amount) + " " + name
    if amount > 1:
        unit += "s"
    return str(amount) + " " + unit + " of " + name


CASES = {
    "scale_recipe": (
        "return the amounts of a recipe for portions scaled to wanted portions, rounded up",
        [
            [{"egg": 2}, 2, 4], [{"egg": 3}, 2, 3], [{}, 2, 4], [{"egg": 1, "milk": 4}, 4, 2], [{"oil": 5}, 1, 3],
            [{"salt": 1}, 3, 1], [{"rice": 7}, 3, 5], [{"egg": 2, "flour": 9}, 3, 3], [{"tea": 0}, 2, 5],
        ],
    ),
    "preheat_minutes": (
        "return the minutes to target: 30 degrees each while more than 50 are missing, else 10",
        [
            [100, 100], [100, 110], [90, 95], [100, 151], [100, 150], [20, 180], [200, 180], [0, 80], [50, 131],
            [0, 52],
        ],
    ),
    "shopping_list": (
        "return [item, missing amount] by name for all that the pantry has too little of",
        [
            [{"egg": 3}, {"egg": 1}], [{"egg": 3}, {"egg": 3}], [{"egg": 1}, {"egg": 4}], [{}, {"egg": 2}],
            [{"tea": 1}, {}], [{"egg": 2, "milk": 3}, {"milk": 2}], [{"b": 2, "a": 4, "c": 1}, {"c": 1}],
            [{"oil": 2, "rice": 5}, {"oil": 1, "rice": 3}],
        ],
    ),
    "batches_possible": (
        "return how many times the stock is enough for the recipe, but at most trays",
        [
            [{"egg": 2}, {"egg": 6}, 5], [{"egg": 2}, {"egg": 7}, 2], [{"egg": 2}, {}, 4], [{"egg": 3}, {"egg": 2}, 1],
            [{"egg": 1, "oil": 4}, {"egg": 5, "oil": 8}, 9], [{"a": 2, "b": 1}, {"a": 4, "b": 3}, 3],
            [{"tea": 1}, {}, 5], [{"a": 1, "b": 1}, {"a": 7}, 2], [{"rice": 3}, {"rice": 11}, 8], [{"ham": 1}, {"ham": 9}, 4],
        ],
    ),
    "boiled_egg": (
        "return soft below 5 minutes, hard from 9, else medium; a large egg needs 2 minutes more",
        [
            [4, False], [5, False], [8, False], [9, False], [6, True], [7, True], [10, True], [11, True], [3, False],
            [12, False],
        ],
    ),
    "last_dish_done": (
        "return when all dishes [start, minutes] are baked one after the other, none before its start",
        [
            [[[0, 10]]], [[[5, 10]]], [[]], [[[0, 10], [5, 20]]], [[[0, 10], [15, 5]]], [[[2, 3], [5, 4]]],
            [[[1, 30], [2, 10], [50, 5]]], [[[0, 7], [1, 1], [2, 6]]],
        ],
    ),
    "still_good": (
        "return the names in fridge that are good until today or longer, the earliest day first",
        [
            [{"milk": 5}, 5], [{"milk": 4}, 5], [{"milk": 6}, 5], [{}, 1], [{"egg": 9, "ham": 3}, 2],
            [{"a": 2, "b": 2, "c": 1}, 2], [{"fig": 3, "jam": 9, "pie": 1}, 3], [{"d": 7, "e": 5, "f": 6}, 4],
            [{"x": 0, "y": 1}, 1],
        ],
    ),
    "ingredient_text": (
        "return a text like 2 cups of rice: unit with an s if amount is above 1, or 3 eggs without unit",
        [
            [2, "cup", "rice"], [1, "cup", "rice"], [3, "", "eggs"], [1, "", "egg"], [0, "spoon", "salt"],
            [10, "gram", "tea"], [2, "", "figs"], [1, "can", "beans"], [3, "slice", "ham"],
            [2, "bag", "nuts"],
        ],
    ),
}  # fmt: skip
