"""Short conversations: questions with many phrasings (in questions.txt), their answers, and follow-ups that need the
earlier turns.

A family is a function that takes a random generator and returns turns, [(question, answer), ...].
"""

import pathlib

from stories import read_sentences, subjects, tell
from world import ANIMALS, CHILDREN, PET_NAMES, THING_COLOURS, THINGS, TREATS, choose, tidy

COLOUR_OF = dict(
    pair.split()
    for pair in """sky blue; grass green; snow white; sun yellow; night black; blood red; banana yellow; strawberry
    red; carrot orange; tomato red; cloud white; coal black; lemon yellow; leaf green; milk white;
    pumpkin orange; cherry red; sea blue; frog green; elephant gray; pig pink; crow black; chocolate
    brown; egg white; fire red; mouse gray; fox orange; bear brown""".split(";")
)
MIXES = [
    ("blue", "yellow", "green"),
    ("red", "yellow", "orange"),
    ("red", "blue", "purple"),
    ("black", "white", "gray"),
    ("red", "white", "pink"),
]
OPPOSITES = [
    pair.split()
    for pair in """big small; hot cold; happy sad; day night; up down; fast slow; old young; light dark; open closed;
    wet dry; full empty; high low; long short; loud quiet; hard soft; good bad; left right; near far;
    early late; strong weak; heavy light; rich poor; clean dirty; first last; in out; yes no; sweet
    sour; thick thin; brave afraid; begin end; win lose; push pull; awake asleep; inside outside; black
    white; right wrong; true false; summer winter; warm cool; wide narrow""".split(";")
]
OPPOSITE_OF = {}
for one, other in OPPOSITES:
    OPPOSITE_OF.setdefault(one, other)
    OPPOSITE_OF.setdefault(other, one)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]))
SEASON = {
    m: s
    for s, ms in {
        "winter": "December January February",
        "spring": "March April May",
        "summer": "June July August",
        "autumn": "September October November",
    }.items()
    for m in ms.split()
}
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
ITEMS = "apples pears plums nuts cookies balls books eggs flowers buttons stones shells".split()
ME = "the tandem demo model"
QUESTIONS, _ = read_sentences(pathlib.Path(__file__).with_name("questions.txt"))


def one_of(rng, *templates, **fields):
    return tidy(choose(rng, rng.choice(templates)).format(**fields))


def say(rng, name, **fields):
    return one_of(rng, *QUESTIONS[name], **fields)


def who_are_you(rng):
    question = say(rng, "who_are_you")
    return [(question, f"I am {ME}, a very small language model. I tell short stories and answer simple questions.")]


def what_can_you_do(rng):
    question = say(rng, "what_can_you_do")
    return [
        (
            question,
            "I can tell short stories, and I know a little about colors, animals, numbers, opposites, days and months. "
            + one_of(
                rng, "Try: tell me a story about a {x}.", x=rng.choice(["fox", "rabbit", "bear", "duck", "penguin"])
            ),
        )
    ]


def how_made(rng):
    question, answer = rng.choice(QUESTIONS["about_me"]).split(" => ")
    return [(one_of(rng, question), answer)]


def greeting(rng):
    question = say(rng, "greeting")
    if "how" in question.lower():
        return [
            (
                question,
                one_of(
                    rng, "I am [fine|well], thank you. [What would you like to know?|Would you like to hear a story?]"
                ),
            )
        ]
    if rng.random() < 0.3:
        return [(question, "Hello! Would you like to hear a story?"), (say(rng, "yes"), tell(rng)[0])]
    hello = next((w for w in ("Good morning", "Good evening", "Good day") if w in question), "Hello")
    return [
        (
            question,
            one_of(rng, hello + "! [What can I do for you?|How can I help you?|Would you like to hear a story?]"),
        )
    ]


def thanks(rng):
    question = say(rng, "thanks")
    return [(question, say(rng, "thanked"))]


def goodbye(rng):
    question = say(rng, "goodbye")
    if "night" in question:
        return [(question, "Good night! Sleep well.")]
    return [(question, one_of(rng, "Goodbye! [Come back soon.|See you next time.|It was nice to talk to you.]"))]


def with_article(thing):
    if thing in ("grass", "snow", "blood", "coal", "milk", "chocolate", "fire"):
        return thing
    return ("the " if thing in ("sky", "sun", "night", "sea") else "a ") + thing


def colour(rng):
    thing, shade = rng.choice(sorted(COLOUR_OF.items()))
    the = with_article(thing)
    return [(say(rng, "colour", x=the), tidy(f"{the} is {shade}."))]


def is_it_that_colour(rng):
    things = ["grass", "milk", "sea", "sky", "snow", "sun"]
    thing = rng.choice(things)
    the, shade = with_article(thing), COLOUR_OF[thing]
    asked = rng.choice([shade, rng.choice(["red", "green", "blue", "white", "yellow", "black"])])
    answer = f"Yes, {the} is {shade}." if asked == shade else f"No, {the} is not {asked}. {the} is {shade}."
    return [(one_of(rng, "Is {x} {y}?", x=the, y=asked), tidy(answer))]


def mix(rng):
    one, other, result = rng.choice(MIXES)
    if rng.random() < 0.5:
        one, other = other, one
    question = say(rng, "mix", a=one, b=other)
    return [(question, tidy(f"{one} and {other} make {result}."))]


def about_animal(a, kind):
    """The answer to a question of this kind about an animal."""
    legs = NUMBERS[int(a.legs)] if a.legs != "0" else "no"
    silent = "nothing" in a.sound
    answers = {
        "sound": f"A {a.noun} {a.verb} at all." if silent else f"A {a.noun} {a.verb}: {a.sound}!",
        "home": f"A {a.noun} lives {a.home}.",
        "food": f"A {a.noun} eats {a.food}.",
        "legs": f"A {a.noun} has {legs} legs.",
        "colour": f"A {a.noun} is {a.colour}.",
        "skill": f"A {a.noun} can {a.skill}.",
        "young": f"A young {a.noun} is called a {a.young}.",
        "about": f"A {a.noun} is an animal with {legs} legs. It lives {a.home} and eats {a.food}.",
    }
    return tidy(answers[kind])


def animal_fact(rng):
    a = rng.choice(ANIMALS)
    kind = rng.choice(["sound", "sound", "sound", "home", "food", "legs", "colour", "skill", "young", "about"])
    if kind == "colour" and a.noun in COLOUR_OF:
        kind = "home"
    turns = [(say(rng, "animal_" + kind, x=a.noun), about_animal(a, kind))]
    if kind in ("sound", "home", "food", "legs") and rng.random() < 0.3:
        b = rng.choice([other for other in ANIMALS if other.noun != a.noun])
        turns.append((say(rng, "and_animal", x=b.noun), about_animal(b, kind)))
    return turns


def which_animal(rng):
    a = rng.choice([a for a in ANIMALS if [b.sound for b in ANIMALS].count(a.sound) == 1 and "nothing" not in a.sound])
    question = say(rng, "which_animal", s=a.sound)
    return [(question, tidy(f"A {a.noun} says {a.sound}."))]


def add(rng):
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    minus = rng.random() < 0.35
    if minus:
        a, b = a + b, b
    result = a - b if minus else a + b
    sign, word = ("-", "minus") if minus else ("+", "plus")
    words = rng.random() < 0.35
    x, y, z = (NUMBERS[a], NUMBERS[b], NUMBERS[result]) if words else (a, b, result)
    question = say(rng, "add", x=x, y=y, w=word if words or rng.random() < 0.4 else sign)
    turns = [(question, tidy(f"{x} {word} {y} is {z}."))]
    if not words and rng.random() < 0.3 and result <= 10:
        more = rng.randint(1, 10)
        turns.append((say(rng, "add_more", m=more), f"{result} plus {more} is {result + more}."))
    return turns


def word_sum(rng):
    a, b, item = rng.randint(1, 9), rng.randint(1, 9), rng.choice(ITEMS)
    name, he = rng.choice(CHILDREN)
    if rng.random() < 0.5:
        question = say(rng, "word_sum", n=name, a=a, b=b, i=item, h=he)
        have = "There are" if "there" in question.split("How")[1] else f"{name} has"
        return [(question, f"{a} plus {b} is {a + b}. {have} {a + b} {item}.")]
    question = say(rng, "word_difference", n=name, a=a + b, b=b, i=item)
    left = f"{a} {item} are left" if a > 1 else f"1 {item[:-1]} is left"
    return [(question, f"{a + b} minus {b} is {a}. {left}.")]


def count(rng):
    n = rng.randint(3, 20)
    kind = rng.random()
    if kind < 0.45:
        question = say(rng, "count", n=rng.choice([n, NUMBERS[n]]))
        return [(question, ", ".join(NUMBERS[1 : n + 1]).capitalize() + ".")]
    if kind < 0.7:
        n = rng.randint(3, 10)
        question = say(rng, "count_down", n=rng.choice([n, NUMBERS[n]]))
        return [(question, ", ".join(NUMBERS[n:0:-1]).capitalize() + ".")]
    n = rng.randint(1, 19)
    if rng.random() < 0.6:
        return [(say(rng, "number_after", n=n), f"{n + 1} comes after {n}.")]
    return [(say(rng, "number_before", n=n), f"{n - 1} comes before {n}.")]


def compare(rng):
    if rng.random() < 0.5:
        a, b = rng.sample(range(0, 21), 2)
        question = say(rng, "compare_numbers", a=a, b=b)
        if question.startswith("Is"):
            return [(question, f"Yes, {a} is bigger than {b}." if a > b else f"No, {b} is bigger than {a}.")]
        return [(question, f"{max(a, b)} is bigger than {min(a, b)}.")]
    sizes = ["bee", "mouse", "frog", "rabbit", "cat", "dog", "sheep", "pig", "cow", "elephant"]
    i, j = rng.sample(range(len(sizes)), 2)
    a, b = sizes[i], sizes[j]
    big, small = (a, b) if i > j else (b, a)
    question = say(rng, "compare_animals", a=a, b=b)
    answer = f"A {big} is bigger than a {small}."
    if question.startswith("Is"):
        answer = ("Yes, a " if big == a else "No, a ") + f"{big} is bigger than a {small}."
    return [(question, tidy(answer))]


def opposite(rng):
    word = rng.choice(sorted(OPPOSITE_OF))
    question = say(rng, "opposite", x=word)
    turns = [(question, f"The opposite of {word} is {OPPOSITE_OF[word]}.")]
    for _ in range(rng.choice([0, 0, 1, 2])):
        word = rng.choice(sorted(OPPOSITE_OF))
        turns.append((say(rng, "and_opposite", x=word), f"The opposite of {word} is {OPPOSITE_OF[word]}."))
    return turns


def calendar(rng):
    names = rng.choice([DAYS, MONTHS])
    word = "day" if names is DAYS else "month"
    i = rng.randrange(len(names))
    x, after, before = names[i], names[(i + 1) % len(names)], names[i - 1]
    choices = [
        ("calendar_after", f"After {x} comes {after}."),
        ("calendar_before", f"Before {x} comes {before}."),
    ]
    if names is DAYS:
        choices += [
            ("calendar_days_in_week", "A week has seven days."),
            ("calendar_days", "The days of the week are " + ", ".join(DAYS[:6]) + " and Sunday."),
            ("calendar_tomorrow", f"If today is {x}, tomorrow is {after}."),
            ("calendar_yesterday", f"If today is {x}, yesterday was {before}."),
            ("calendar_weekend", f"Yes, {x} is on the weekend." if i > 4 else f"No, {x} is a weekday."),
        ]
    else:
        choices += [
            ("calendar_months_in_year", "A year has twelve months."),
            ("calendar_months", "The months are " + ", ".join(MONTHS[:11]) + " and December."),
            ("calendar_month_days", f"{x} has {MONTH_DAYS[x]} days."),
            ("calendar_season", f"{x} is in {SEASON[x]}."),
            ("calendar_seasons", "There are four seasons: spring, summer, autumn and winter."),
            ("calendar_first_month", "The first month of the year is January."),
            ("calendar_last_month", "The last month of the year is December."),
        ]
    name, answer = rng.choice(choices)
    return [(say(rng, name, w=word, x=x), answer)]


def my_name(rng):
    name = rng.choice(CHILDREN + PET_NAMES)[0]
    first = (
        say(rng, "my_name", n=name),
        one_of(
            rng,
            "[Nice to meet you|Hello], {n}! "
            "[How can I help you?|What can I do for you?|Would you like to hear a story?]",
            n=name,
        ),
    )
    between = [] if rng.random() < 0.5 else rng.choice([colour, opposite, add, animal_fact])(rng)
    asked = (say(rng, "what_is_my_name"), f"Your name is {name}.")
    return [first] + between + ([asked] if rng.random() < 0.8 else [])


def unknown_name(rng):
    return [(say(rng, "unknown_name"), "I do not know your name yet. What is your name?")]


def unknown(rng):
    words = {
        "c": "France Germany China Spain Italy America India Paris London Brazil Japan Peru",
        "l": "Python Rust Java C Go",
        "t": "French German Spanish Latin Chinese",
        "s": "physics gravity history chemistry love music mathematics poetry biology",
        "m": "car computer phone plane train telephone television",
        "p": "moon sun mountain",
    }
    fields = {letter: rng.choice(some.split()) for letter, some in words.items()}
    return [(say(rng, "unknown", **fields), say(rng, "unknown_answer"))]


LISTS = {
    "animals": ["fox", "rabbit", "bear", "mouse", "duck", "owl", "frog", "cat", "dog", "horse", "cow", "sheep"],
    "colors": ["red", "blue", "green", "yellow", "white", "black", "purple", "orange"],
    "fruits": ["apples", "pears", "plums", "cherries", "bananas", "peaches", "strawberries"],
    "farm animals": ["cow", "pig", "hen", "sheep", "horse", "goat"],
    "birds": ["owl", "duck", "crow", "hen", "rooster", "penguin"],
}


def name_some(rng):
    kind, n = rng.choice(sorted(LISTS)), rng.randint(2, 4)
    chosen = rng.sample(LISTS[kind], n)
    if "animals" in kind or kind == "birds":
        chosen = ["a " + word for word in chosen]
    question = say(rng, "name_some", n=rng.choice([n, NUMBERS[n]]), k=kind)
    return [(question, tidy(", ".join(chosen[:-1]) + " and " + chosen[-1] + "."))]


def feeling(rng):
    if rng.random() < 0.5:
        question = say(rng, "sad")
        return [
            (
                question,
                one_of(rng, "I am sorry to hear that. [Would you like to hear a story?|Shall I tell you a story?]"),
            )
        ]
    question = say(rng, "happy")
    return [(question, one_of(rng, "I am glad to hear that! [What can I do for you?|Would you like to hear a story?]"))]


def joke(rng):
    return [(say(rng, "joke"), rng.choice(QUESTIONS["jokes"]))]


def poem(rng):
    x = rng.choice(["fox", "duck", "frog", "bear", "owl", "cat", "mouse", "rabbit"])
    lines = [line.split(" => ") for line in QUESTIONS["rhymes"]]
    (a, b), (c, d) = rng.sample(lines, 2)
    text = one_of(rng, f"A {{x}} {a},\n{b}.\nThe {{x}} {c},\n{d}.", x=x)
    question = say(rng, "poem", x=x)
    return [(question, text)] if rng.random() < 0.8 else [(say(rng, "any_poem"), text)]


def repeat(rng):
    """Copying tasks. They teach the model to look back, which it also needs for names in stories."""
    nouns = [a.noun for a in ANIMALS] + THINGS + TREATS + THING_COLOURS + NUMBERS
    words = " ".join(rng.sample([word for word in nouns if " " not in word], rng.randint(1, 8)))
    return [(say(rng, "repeat", w=words), words.capitalize() + ".")]


def story(rng):
    wanted, about, plot_name = subjects(rng)
    if rng.random() < 0.2:
        question, about, plot_name = say(rng, "any_story"), {}, None
    else:
        question = say(rng, "story_about", x=wanted)
    text, facts = tell(rng, about, plot_name)
    turns = [(question, text)]
    if rng.random() < 0.5:
        turns += about_the_story(rng, facts)
    if rng.random() < 0.15:
        turns.append((say(rng, "another_story"), tell(rng)[0]))
    return turns


def about_the_story(rng, facts):
    A, B, C = facts.A, facts.B, facts.C
    asks = [
        ("story_who", f"The story is about {A.name}, a {A.kind}."),
        ("story_where", f"{A.name} lived {A.home}."),
    ]
    if facts.friend_came:
        asks.append(("story_friend", f"{A.name}'s friend is {B.name}."))
    if A.kind not in ("girl", "boy"):
        asks.append(("story_animal", f"{A.name} is a {A.kind}."))
    turns = []
    for name, answer in rng.sample(asks, rng.choice([1, 1, 2])):
        turns.append((say(rng, name, a=A.name), tidy(answer)))
    return turns


FAMILIES = [
    (story, 14),
    (animal_fact, 16),
    (add, 10),
    (opposite, 9),
    (calendar, 10),
    (colour, 7),
    (is_it_that_colour, 2),
    (mix, 3),
    (count, 6),
    (word_sum, 6),
    (compare, 4),
    (which_animal, 3),
    (who_are_you, 5),
    (what_can_you_do, 4),
    (how_made, 4),
    (greeting, 5),
    (thanks, 4),
    (my_name, 8),
    (unknown_name, 1),
    (unknown, 7),
    (name_some, 4),
    (feeling, 3),
    (joke, 2),
    (poem, 3),
    (repeat, 14),
]
SYSTEMS = [
    "You are a helpful assistant.",
    f"You are {ME}.",
    "You are a friendly storyteller.",
    "Answer in short sentences.",
]


def as_typed(rng, question):
    """Varies a question the way people type."""
    if rng.random() < 0.25:
        question = question.lower()
    if rng.random() < 0.2:
        question = question.rstrip(".?!")
    elif rng.random() < 0.06 and question.endswith("?"):
        question = rng.choice(["Can you tell me: ", "I have a question. ", "Hm. ", "Okay. "]) + question
    return question


def converse(rng):
    """One conversation, as chat messages."""
    messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.15 else []
    families, weights = zip(*FAMILIES)
    turns = greeting(rng) if rng.random() < 0.1 else []
    for family in rng.choices(families, weights, k=rng.choice([1, 1, 2, 3, 4, 6])):
        turns += family(rng)
    if rng.random() < 0.1:
        turns += goodbye(rng)
    for question, answer in turns:
        messages += [{"role": "user", "content": as_typed(rng, question)}, {"role": "assistant", "content": answer}]
    return messages
