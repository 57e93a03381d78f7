"""Small functions over amounts of money in whole cents or whole units."""


def discount_price(price, percent):
    off = price * percent // 100
    return max(price - off, 0)


def with_tax(amounts, percent):
    total = sum(amounts)
    return total + total * percent // 100


def interest_years(start, goal, percent):
    years = 0
    while start < goal:
        start += start * percent // 100
        years += 1
    return years


def split_bill(total, people):
    base = total // people
    extra = total % people
    return [base + 1] * extra + [base] * (people - extra)


def make_change(amount, coins):
    used = []
    for coin in coins:
        while amount >= coin:
            used.append(coin)
            amount -= coin
    return used


def balance_after(balance, moves):
    for move in moves:
        if balance + move >= 0:
            balance += move
    return balance


def tiered_fee(amount):
    if amount < 100:
        return 5
    if amount < 1000:
        return 10
    return amount // 100


def shipping_cost(weight, express):
    cost = 4 + weight * 2
    if express:
        cost += 10
    return cost


def profit_of(buys, sells):
    profit = 0
    for i in range(len(buys)):
        profit += sells[i] - buys[i]
    return profit


def best_gain(prices):
    best = 0
    low = prices[0]
    for price in prices:
        low = min(low, price)
        best = max(best, price - low)
    return best


def loyalty_points(spent, member):
    points = spent // 10
    if member and spent >= 50:
        points = points * 2
    return points


def overdraft_days(balances, limit):
    days = 0
    for balance in balances:
        if balance < -limit:
            days += 1
    return days


def commission(sales, target):
    if sales <= target:
        return sales * 5 // 100
    return target * 5 // 100 + (sales - target) * 10 // 100


def months_to_save(goal, start, monthly):
    months = 0
    while start < goal:
        start += monthly
        months += 1
    return months


def withdraw(balance, amount):
    if amount <= 0 or amount > balance:
        raise ValueError("not possible")
    return balance - amount


CASES = {
    "discount_price": (
        "return price less percent of it, never below 0",
        [
            [200, 10], [100, 0], [100, 100], [99, 50], [100, 150], [0, 20], [250, 20], [1, 1], [80, 25],
        ],
    ),
    "with_tax": (
        "return the sum of amounts plus percent tax on it",
        [
            [[100, 200], 10], [[100], 0], [[], 5], [[50, 50], 20], [[99], 10], [[10, 20, 30], 50], [[1000], 19],
            [[1, 1], 100],
        ],
    ),
    "interest_years": (
        "return the years until start has grown to goal at percent a year",
        [
            [100, 200, 10], [100, 100, 5], [100, 110, 10], [100, 111, 10], [500, 1000, 50], [200, 150, 3],
            [1000, 1300, 20], [100, 400, 100],
        ],
    ),
    "split_bill": (
        "return the shares of total for people, the first ones pay one more if it does not divide",
        [
            [10, 2], [10, 3], [11, 3], [0, 2], [2, 3], [7, 1], [100, 8], [9, 4],
        ],
    ),
    "make_change": (
        "return the coins for amount, taking as many of each coin as possible in the given order",
        [
            [8, [5, 2, 1]], [0, [5, 1]], [10, [5, 2, 1]], [3, [2, 1]], [4, [5, 2]], [30, [25, 10, 1]], [7, [7]],
            [1, [5, 1]],
        ],
    ),
    "balance_after": (
        "return balance after all moves, a move that would make it negative is skipped",
        [
            [10, [5, -3]], [10, [-11]], [10, [-10]], [0, []], [5, [-6, 2]], [1, [-1, -1, 4]], [20, [-5, -20, -15]],
            [0, [0, 3]],
        ],
    ),
    "tiered_fee": (
        "return 5 below 100, 10 below 1000, else one percent of amount",
        [
            [50], [99], [100], [999], [1000], [5000], [0], [1999], [500],
        ],
    ),
    "shipping_cost": (
        "return 4 plus 2 for each unit of weight, and 10 more for express",
        [
            [1, False], [1, True], [0, False], [0, True], [5, False], [5, True], [10, False], [3, True],
        ],
    ),
    "profit_of": (
        "return the sum of what each sell brings over its buy",
        [
            [[1, 2], [3, 5]], [[5], [3]], [[], []], [[4, 4], [4, 4]], [[10, 1], [1, 20]], [[7], [9]],
            [[1, 1, 1], [2, 3, 4]], [[6, 2], [8, 1]],
        ],
    ),
    "best_gain": (
        "return the largest gain from buying once and selling later, 0 if there is none",
        [
            [[1, 5]], [[5, 1]], [[3]], [[2, 9, 1, 4]], [[7, 6, 4]], [[3, 1, 6, 2]], [[4, 4]], [[1, 2, 3, 10]],
            [[9, 2, 5, 1, 3]],
        ],
    ),
    "loyalty_points": (
        "return one point for each 10 spent, twice that for members who spend at least 50",
        [
            [100, True], [100, False], [50, True], [49, True], [9, True], [0, True], [55, False], [10, False],
            [40, True],
        ],
    ),
    "overdraft_days": (
        "return on how many days the balance is more than limit below zero",
        [
            [[5, -5, -20], 10], [[-10], 10], [[-11], 10], [[], 5], [[-1, -2], 0], [[0], 0], [[-30, 30, -31], 30],
            [[-9, -8, -3], 5],
        ],
    ),
    "commission": (
        "return 5 percent of sales up to target and 10 percent of what is above",
        [
            [100, 200], [200, 200], [300, 200], [0, 100], [1000, 500], [100, 0], [240, 200], [60, 40],
        ],
    ),
    "months_to_save": (
        "return the months until start plus monthly payments reaches goal",
        [
            [100, 0, 10], [100, 100, 10], [100, 95, 10], [100, 0, 30], [50, 60, 5], [10, 0, 1], [90, 30, 20],
            [7, 0, 7],
        ],
    ),
    "withdraw": (
        "return balance less amount, ValueError if amount is not positive or above balance",
        [
            [10, 3], [10, 10], [10, 11], [10, 0], [5, -1], [1, 1], [0, 1], [100, 99], [20, 5],
        ],
    ),
}  # fmt: skip
