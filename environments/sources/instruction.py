"""Plain questions that a small chat model usually answers: what training must not make it forget. No code, no tool.

Most are in the split `retention` and only measure; some are training tasks, so that a model's own right answers can be
replayed against forgetting, and some are in dev, where forgetting is attributed. Which is which is the same for every
seed. An answer counts when it contains the expected word. SmolLM2-135M-Instruct answers 100 of the 110 (greedy, 40
tokens); the rest leave room to see a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from environments.sources.splits import order
from schemas.task import Split, Task

SKILL = "instruction"
FILE = "answer.txt"
SHARES = {Split.TRAIN: 28, Split.DEV: 22}  # questions; the others are retention

# (name, question, expected word, a wrong word)
QUESTIONS = [
    ("add_four_four", "What is 4+4?", "8", "9"),
    ("add_one_one", "What is 1+1?", "2", "3"),
    ("add_ten_ten", "What is 10+10?", "20", "30"),
    ("add_three_four", "What is 3+4?", "7", "8"),
    ("add_two_three", "What is 2+3?", "5", "6"),
    ("add_two_two", "What is 2+2?", "4", "5"),
    ("after_monday", "Which day comes after Monday?", "Tuesday", "Sunday"),
    ("author_1984", "Who wrote the novel 1984?", "Orwell", "Austen"),
    ("author_hamlet", "Who wrote Hamlet?", "Shakespeare", "Dickens"),
    ("author_origin", "Who wrote On the Origin of Species?", "Darwin", "Newton"),
    ("big_ben", "In which city is Big Ben?", "London", "Paris"),
    ("blood_colour", "What colour is human blood?", "red", "blue"),
    ("capital_austria", "What is the capital of Austria?", "Vienna", "Graz"),
    ("capital_china", "What is the capital of China?", "Beijing", "Shanghai"),
    ("capital_cuba", "What is the capital of Cuba?", "Havana", "Trinidad"),
    ("capital_egypt", "What is the capital of Egypt?", "Cairo", "Luxor"),
    ("capital_england", "What is the capital of England?", "London", "Leeds"),
    ("capital_france", "What is the capital of France?", "Paris", "Lyon"),
    ("capital_germany", "What is the capital of Germany?", "Berlin", "Munich"),
    ("capital_greece", "What is the capital of Greece?", "Athens", "Sparta"),
    ("capital_india", "What is the capital of India?", "New Delhi", "Mumbai"),
    ("capital_ireland", "What is the capital of Ireland?", "Dublin", "Cork"),
    ("capital_italy", "What is the capital of Italy?", "Rome", "Milan"),
    ("capital_japan", "What is the capital of Japan?", "Tokyo", "Osaka"),
    ("capital_norway", "What is the capital of Norway?", "Oslo", "Bergen"),
    ("capital_poland", "What is the capital of Poland?", "Warsaw", "Gdansk"),
    ("capital_russia", "What is the capital of Russia?", "Moscow", "Kazan"),
    ("capital_spain", "What is the capital of Spain?", "Madrid", "Seville"),
    ("capital_sweden", "What is the capital of Sweden?", "Stockholm", "Malmo"),
    ("capital_thailand", "What is the capital of Thailand?", "Bangkok", "Phuket"),
    ("cat_sound", "Which pet animal says meow?", "cat", "horse"),
    ("continent_brazil", "On which continent is Brazil?", "South America", "Asia"),
    ("continent_egypt", "On which continent is Egypt?", "Africa", "Europe"),
    ("continent_india", "On which continent is India?", "Asia", "Africa"),
    ("continent_kenya", "On which continent is Kenya?", "Africa", "Asia"),
    ("cow_milk", "Which farm animal gives us milk?", "cow", "hen"),
    ("currency_japan", "What is the currency of Japan?", "yen", "euro"),
    ("currency_usa", "What is the currency of the United States?", "dollar", "pound"),
    ("day_hours", "How many hours are in a day?", "24", "12"),
    ("eiffel_tower", "In which city is the Eiffel Tower?", "Paris", "Rome"),
    ("first_month", "What is the first month of the year?", "January", "June"),
    ("first_president", "Who was the first president of the United States?", "Washington", "Lincoln"),
    ("frozen_water", "What do we call water that is frozen solid?", "ice", "steam"),
    ("gas_breathe", "Which gas do humans need to breathe?", "oxygen", "helium"),
    ("gas_plants", "Which gas do plants take in for photosynthesis?", "carbon dioxide", "neon"),
    ("gold_symbol", "What is the chemical symbol for gold?", "Au", "Fe"),
    ("grass_colour", "What colour is grass?", "green", "red"),
    ("great_wall", "In which country is the Great Wall?", "China", "India"),
    ("heart", "Which organ pumps blood through the body?", "heart", "liver"),
    ("highest_mountain", "What is the highest mountain in the world?", "Everest", "Etna"),
    ("hour_minutes", "How many minutes are in an hour?", "60", "50"),
    ("language_brazil", "Which language is spoken in Brazil?", "Portuguese", "Italian"),
    ("language_france", "Which language is spoken in France?", "French", "Dutch"),
    ("language_germany", "Which language is spoken in Germany?", "German", "Dutch"),
    ("language_japan", "Which language is spoken in Japan?", "Japanese", "Korean"),
    ("language_spain", "Which language is spoken in Spain?", "Spanish", "Danish"),
    ("largest_land_animal", "What is the largest land animal?", "elephant", "mouse"),
    ("largest_ocean", "What is the name of the largest ocean on Earth?", "Pacific", "Arctic"),
    ("last_month", "What is the last month of the year?", "December", "May"),
    ("mona_lisa", "Who painted the Mona Lisa?", "Leonardo", "Monet"),
    ("moon_first", "Who was the first person to walk on the Moon?", "Armstrong", "Gagarin"),
    ("opposite_big", "What is the opposite of big?", "small", "tall"),
    ("opposite_black", "What is the opposite of black?", "white", "grey"),
    ("opposite_day", "What is the opposite of day?", "night", "noon"),
    ("opposite_early", "What is the opposite of early?", "late", "soon"),
    ("opposite_fast", "What is the opposite of fast?", "slow", "quick"),
    ("opposite_happy", "What is the opposite of happy?", "sad", "glad"),
    ("opposite_hard", "What is the opposite of hard?", "soft", "firm"),
    ("opposite_high", "What is the opposite of high?", "low", "tall"),
    ("opposite_hot", "What is the opposite of hot?", "cold", "warm"),
    ("opposite_left", "What is the opposite of left?", "right", "straight"),
    ("opposite_old", "What is the opposite of old?", "young", "aged"),
    ("opposite_open", "What is the opposite of open?", "closed", "ajar"),
    ("opposite_strong", "What is the opposite of strong?", "weak", "tough"),
    ("opposite_true", "What is the opposite of true?", "false", "exact"),
    ("opposite_up", "What is the opposite of up?", "down", "over"),
    ("opposite_wet", "What is the opposite of wet?", "dry", "damp"),
    ("past_go", "What is the past tense of go?", "went", "goed"),
    ("planet_home", "On which planet do we live?", "Earth", "Mars"),
    ("planet_largest", "What is the largest planet in our solar system?", "Jupiter", "Venus"),
    ("planet_red", "Which planet is called the red planet?", "Mars", "Saturn"),
    ("plural_book", "What is the plural of book?", "books", "bookes"),
    ("plural_cat", "What is the plural of cat?", "cats", "caties"),
    ("plural_child", "What is the plural of child?", "children", "childs"),
    ("plural_dog", "What is the plural of dog?", "dogs", "doges"),
    ("pyramids", "In which country are the pyramids of Giza?", "Egypt", "Peru"),
    ("relativity", "Who developed the theory of relativity?", "Einstein", "Darwin"),
    ("repeat_apple", "Repeat the word: apple", "apple", "pear"),
    ("repeat_garden", "Repeat the word: garden", "garden", "field"),
    ("repeat_mountain", "Repeat the word: mountain", "mountain", "valley"),
    ("repeat_music", "Repeat the word: music", "music", "noise"),
    ("repeat_river", "Repeat the word: river", "river", "lake"),
    ("repeat_silver", "Repeat the word: silver", "silver", "gold"),
    ("repeat_table", "Repeat the word: table", "table", "chair"),
    ("repeat_window", "Repeat the word: window", "window", "door"),
    ("repeat_winter", "Repeat the word: winter", "winter", "spring"),
    ("repeat_yellow", "Repeat the word: yellow", "yellow", "orange"),
    ("romeo_author", "Who wrote Romeo and Juliet?", "Shakespeare", "Dickens"),
    ("salt_formula", "What is the chemical formula of table salt?", "NaCl", "KBr"),
    ("sense_eyes", "What do we use our eyes for? Answer with one verb.", "see", "hear"),
    ("sky_colour", "What colour is the sky on a clear day?", "blue", "green"),
    ("statue_liberty", "In which city is the Statue of Liberty?", "New York", "Boston"),
    ("sun_rise", "In which direction does the sun rise?", "east", "west"),
    ("telephone", "Who invented the telephone?", "Bell", "Edison"),
    ("triangle_sides", "How many sides does a triangle have?", "3", "9"),
    ("water_boil", "At how many degrees Celsius does water boil?", "100", "40"),
    ("water_formula", "What is the chemical formula of water?", "H2O", "CO2"),
    ("water_freeze", "At how many degrees Celsius does water freeze?", "0", "50"),
    ("week_days", "How many days are in a week?", "7", "8"),
    ("year_months", "How many months are in a year?", "12", "10"),
]

# In no data set: bench/planted.py asks them.
RESERVED = [
    ("add_five_one", "What is 5+1?", "6", "7"),
    ("add_six_three", "What is 6+3?", "9", "8"),
    ("add_seven_five", "What is 7+5?", "12", "13"),
    ("add_twenty_thirty", "What is 20+30?", "50", "60"),
    ("subtract_nine_two", "What is 9-2?", "7", "6"),
    ("double_five", "What is 5 times 2?", "10", "12"),
    ("after_thursday", "Which day comes after Thursday?", "Friday", "Monday"),
    ("after_saturday", "Which day comes after Saturday?", "Sunday", "Tuesday"),
    ("after_march", "Which month comes after March?", "April", "August"),
    ("after_july", "Which month comes after July?", "August", "October"),
    ("capital_portugal", "What is the capital of Portugal?", "Lisbon", "Porto"),
    ("capital_hungary", "What is the capital of Hungary?", "Budapest", "Szeged"),
    ("capital_finland", "What is the capital of Finland?", "Helsinki", "Turku"),
    ("capital_denmark", "What is the capital of Denmark?", "Copenhagen", "Aarhus"),
    ("capital_turkey", "What is the capital of Turkey?", "Ankara", "Izmir"),
    ("capital_peru", "What is the capital of Peru?", "Lima", "Cusco"),
    ("capital_kenya", "What is the capital of Kenya?", "Nairobi", "Mombasa"),
    ("capital_canada", "What is the capital of Canada?", "Ottawa", "Calgary"),
    ("continent_france", "On which continent is France?", "Europe", "Africa"),
    ("continent_nigeria", "On which continent is Nigeria?", "Africa", "Europe"),
    ("language_italy", "Which language is spoken in Italy?", "Italian", "Greek"),
    ("language_russia", "Which language is spoken in Russia?", "Russian", "Polish"),
    ("banana_colour", "What colour is a ripe banana?", "yellow", "blue"),
    ("snow_colour", "What colour is snow?", "white", "black"),
    ("coal_colour", "What colour is coal?", "black", "pink"),
    ("bark_animal", "Which pet animal barks?", "dog", "fish"),
    ("honey_insect", "Which insect makes honey?", "bee", "ant"),
    ("egg_bird", "Which farm bird lays the eggs that we eat?", "hen", "owl"),
    ("square_sides", "How many sides does a square have?", "4", "6"),
    ("minute_seconds", "How many seconds are in a minute?", "60", "80"),
    ("spider_legs", "How many legs does a spider have?", "8", "5"),
    ("opposite_light", "What is the opposite of heavy?", "light", "solid"),
    ("opposite_empty", "What is the opposite of full?", "empty", "whole"),
    ("opposite_poor", "What is the opposite of rich?", "poor", "grand"),
    ("opposite_long", "What is the opposite of short?", "long", "tiny"),
    ("plural_tree", "What is the plural of tree?", "trees", "treen"),
    ("plural_mouse", "What is the plural of mouse?", "mice", "mouses"),
    ("repeat_bridge", "Repeat the word: bridge", "bridge", "tunnel"),
    ("repeat_candle", "Repeat the word: candle", "candle", "lamp"),
    ("repeat_purple", "Repeat the word: purple", "purple", "green"),
]


def instruction_tasks() -> list[Task]:
    """One task a question of the data set, sorted by id."""
    return _tasks(QUESTIONS, _splits().__getitem__)


def reserved_questions() -> list[Task]:
    """One task a question that is in no data set, sorted by id; all measure retention."""
    return _tasks(RESERVED, lambda name: Split.RETENTION)


def _tasks(questions: Sequence[tuple[str, str, str, str]], split_of: Callable[[str], Split]) -> list[Task]:
    tasks = [
        Task(
            id=f"{SKILL}/{name}/0",
            kind="answer",
            family=SKILL,
            skill=SKILL,
            origin=name,
            split=split_of(name),
            statement=question,
            files={},
            editable=[FILE],
            answer=expected,
            match="contains",
            gold={FILE: f"{expected}\n"},
            wrong={FILE: f"{wrong}\n"},
            made_by=f"list:{SKILL}",
        )
        for name, question, expected, wrong in questions
    ]
    return sorted(tasks, key=lambda task: task.id)


def _splits() -> dict[str, Split]:
    names = sorted((row[0] for row in QUESTIONS), key=lambda name: order(0, name))
    shares = [split for split, count in SHARES.items() for _ in range(count)]
    return dict(zip(names, shares + [Split.RETENTION] * (len(names) - len(shares)), strict=True))
