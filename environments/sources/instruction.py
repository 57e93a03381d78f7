"""Plain questions that a small chat model usually answers: what training must not make it forget. No code, no tool.

Every task is in the split `retention`. An answer counts when it contains the expected word.
"""

from __future__ import annotations

from schemas.task import Split, Task

SKILL = "instruction"
FILE = "answer.txt"

# (name, question, expected word, a wrong word)
QUESTIONS = [
    ("capital_france", "What is the capital of France?", "Paris", "Lyon"),
    ("capital_italy", "What is the capital of Italy?", "Rome", "Milan"),
    ("capital_japan", "What is the capital of Japan?", "Tokyo", "Osaka"),
    ("capital_germany", "What is the capital of Germany?", "Berlin", "Munich"),
    ("capital_spain", "What is the capital of Spain?", "Madrid", "Seville"),
    ("capital_england", "What is the capital of England?", "London", "Leeds"),
    ("capital_russia", "What is the capital of Russia?", "Moscow", "Kazan"),
    ("capital_china", "What is the capital of China?", "Beijing", "Shanghai"),
    ("capital_greece", "What is the capital of Greece?", "Athens", "Sparta"),
    ("capital_egypt", "What is the capital of Egypt?", "Cairo", "Luxor"),
    ("opposite_hot", "What is the opposite of hot?", "cold", "warm"),
    ("opposite_up", "What is the opposite of up?", "down", "over"),
    ("opposite_big", "What is the opposite of big?", "small", "tall"),
    ("opposite_day", "What is the opposite of day?", "night", "noon"),
    ("opposite_open", "What is the opposite of open?", "closed", "ajar"),
    ("opposite_fast", "What is the opposite of fast?", "slow", "quick"),
    ("opposite_left", "What is the opposite of left?", "right", "straight"),
    ("opposite_happy", "What is the opposite of happy?", "sad", "glad"),
    ("opposite_light", "What is the opposite of light, as a colour?", "dark", "pale"),
    ("opposite_black", "What is the opposite of black?", "white", "grey"),
    ("sky_colour", "What colour is the sky on a clear day?", "blue", "green"),
    ("grass_colour", "What colour is grass?", "green", "red"),
    ("snow_colour", "What colour is snow?", "white", "black"),
    ("banana_colour", "What colour is a ripe banana?", "yellow", "purple"),
    ("blood_colour", "What colour is human blood?", "red", "blue"),
    ("coal_colour", "What colour is coal?", "black", "white"),
    ("repeat_apple", "Repeat the word: apple", "apple", "pear"),
    ("repeat_river", "Repeat the word: river", "river", "lake"),
    ("repeat_window", "Repeat the word: window", "window", "door"),
    ("repeat_music", "Repeat the word: music", "music", "noise"),
    ("repeat_garden", "Repeat the word: garden", "garden", "field"),
    ("repeat_silver", "Repeat the word: silver", "silver", "gold"),
    ("add_two_two", "What is 2+2?", "4", "5"),
    ("add_one_one", "What is 1+1?", "2", "3"),
    ("add_five_five", "What is 5+5?", "10", "11"),
    ("add_three_four", "What is 3+4?", "7", "8"),
    ("week_days", "How many days are in a week?", "7", "8"),
    ("year_months", "How many months are in a year?", "12", "10"),
    ("hour_minutes", "How many minutes are in an hour?", "60", "50"),
    ("day_hours", "How many hours are in a day?", "24", "12"),
    ("after_monday", "Which day comes after Monday?", "Tuesday", "Sunday"),
    ("after_friday", "Which day comes after Friday?", "Saturday", "Thursday"),
    ("first_month", "What is the first month of the year?", "January", "June"),
    ("last_month", "What is the last month of the year?", "December", "May"),
    ("dog_sound", "Which animal barks?", "dog", "fish"),
    ("cat_sound", "Which pet animal says meow?", "cat", "horse"),
    ("cow_milk", "Which farm animal gives us milk?", "cow", "hen"),
    ("bee_honey", "Which insect makes honey?", "bee", "ant"),
    ("planet_home", "On which planet do we live?", "Earth", "Mars"),
    ("planet_largest", "What is the largest planet in our solar system?", "Jupiter", "Venus"),
    ("planet_red", "Which planet is called the red planet?", "Mars", "Saturn"),
    ("closest_star", "What is the closest star to the Earth?", "Sun", "Vega"),
    ("water_formula", "What is the chemical formula of water?", "H2O", "CO2"),
    ("water_freeze", "At how many degrees Celsius does water freeze?", "0", "50"),
    ("water_boil", "At how many degrees Celsius does water boil?", "100", "40"),
    ("frozen_water", "What is frozen water called?", "ice", "steam"),
    ("romeo_author", "Who wrote Romeo and Juliet?", "Shakespeare", "Dickens"),
    ("mona_lisa", "Who painted the Mona Lisa?", "Leonardo", "Monet"),
    ("gravity", "Which force pulls things towards the Earth?", "gravity", "friction"),
    ("largest_ocean", "What is the largest ocean?", "Pacific", "Arctic"),
    ("highest_mountain", "What is the highest mountain in the world?", "Everest", "Etna"),
    ("language_france", "Which language is spoken in France?", "French", "Dutch"),
    ("language_spain", "Which language is spoken in Spain?", "Spanish", "Danish"),
    ("pyramids", "In which country are the pyramids of Giza?", "Egypt", "Peru"),
    ("continent_kenya", "On which continent is Kenya?", "Africa", "Asia"),
    ("continent_france", "On which continent is France?", "Europe", "Africa"),
    ("plural_cat", "What is the plural of cat?", "cats", "caties"),
    ("plural_book", "What is the plural of book?", "books", "bookes"),
    ("sense_eyes", "What do we use our eyes for? Answer with one verb.", "see", "hear"),
    ("triangle_sides", "A triangle has how many sides?", "three", "nine"),
]


def instruction_tasks() -> list[Task]:
    """One task a question, sorted by id."""
    tasks = [
        Task(
            id=f"{SKILL}/{name}/0",
            kind="answer",
            family=SKILL,
            skill=SKILL,
            origin=name,
            split=Split.RETENTION,
            statement=question,
            files={},
            editable=[FILE],
            answer=expected,
            match="contains",
            gold={FILE: f"{expected}\n"},
            wrong={FILE: f"{wrong}\n"},
            made_by=f"list:{SKILL}",
        )
        for name, question, expected, wrong in QUESTIONS
    ]
    return sorted(tasks, key=lambda task: task.id)
