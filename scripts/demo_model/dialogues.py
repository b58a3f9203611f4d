"""Short conversations: questions with many phrasings, their answers, and follow-ups that need what was said before.

A family is a function that takes a random generator and returns turns, [(question, answer), ...].
"""

from stories import subjects, tell
from world import ANIMALS, CHILDREN, PET_NAMES, choose, tidy

COLOURS = """sky blue; grass green; snow white; sun yellow; night black; blood red; banana yellow; strawberry red; carrot orange;
tomato red; cloud white; coal black; lemon yellow; leaf green; milk white; pumpkin orange; cherry red; sea blue; frog green;
elephant gray; pig pink; crow black; chocolate brown; egg white; fire red; mouse gray; fox orange; bear brown"""
COLOUR_OF = dict(pair.split() for pair in COLOURS.replace("\n", " ").split("; "))
MIXES = [("blue", "yellow", "green"), ("red", "yellow", "orange"), ("red", "blue", "purple"), ("black", "white", "gray"),
         ("red", "white", "pink")]  # fmt: skip
OPPOSITES = [pair.split() for pair in """big small; hot cold; happy sad; day night; up down; fast slow; old young; light dark;
open closed; wet dry; full empty; high low; long short; loud quiet; hard soft; good bad; left right; near far; early late;
strong weak; heavy light; rich poor; clean dirty; first last; in out; yes no; sweet sour; thick thin; brave afraid;
begin end; win lose; push pull; awake asleep; inside outside; black white; right wrong; true false; summer winter; warm cool;
wide narrow""".replace("\n", " ").split("; ")]  # fmt: skip
OPPOSITE_OF = {}
for one, other in OPPOSITES:
    OPPOSITE_OF.setdefault(one, other)
    OPPOSITE_OF.setdefault(other, one)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]))
SEASON = {m: s for s, ms in {"winter": "December January February", "spring": "March April May", "summer": "June July August",
                             "autumn": "September October November"}.items() for m in ms.split()}  # fmt: skip
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
ITEMS = ["apples", "pears", "plums", "nuts", "cookies", "balls", "books", "eggs", "flowers", "buttons", "stones", "shells"]
ME = "the tandem demo model"


def one_of(rng, *templates, **fields):
    return tidy(choose(rng, rng.choice(templates)).format(**fields))


def who_are_you(rng):
    question = one_of(
        rng, "Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a [robot|person|human]?",
        "Who am I talking to?", "Please introduce yourself.", "What's your name?", "Do you have a name?", "Hello, who are you?",
        "What model are you?", "Which model is this?",
    )  # fmt: skip
    return [(question, f"I am {ME}, a very small language model. I tell short stories and answer simple questions.")]


def what_can_you_do(rng):
    question = one_of(
        rng, "What can you do?", "What can you help me with?", "What do you know?", "How can you help me?", "What can I ask you?",
        "Help", "What are you good at?", "What should I ask?", "Can you help me?", "What do you do?", "What questions can you answer?",
    )  # fmt: skip
    return [(question, "I can tell short stories, and I know a little about colors, animals, numbers, opposites, days and months. "
             + one_of(rng, "Try: tell me a story about a {x}.", x=rng.choice(["fox", "rabbit", "bear", "duck", "penguin"])))]  # fmt: skip


def how_made(rng):
    turns = [
        ("[Who made you|Who created you|Where do you come from]?", "I was trained from nothing on stories made by a small program. I come with tandem."),
        ("[How big are you|How many parameters do you have|Are you a big model]?", "I am very small: fewer than five million parameters."),
        ("[What is tandem|Tell me about tandem]?", "Tandem is the program that runs me. It runs language models on your computer."),
        ("[Are you smart|Are you clever|Do you know everything]?", "No, I am very small and I know only a small world of stories. But I do my best."),
        ("[Do you like stories|What do you like|What is your favorite thing]?", "I like stories best. Shall I tell you one?"),
        ("[How old are you|When were you born]?", "I do not have a birthday. I am a small language model."),
        ("[Where do you live|Where are you]?", "I live in a small file on your computer."),
        ("[What is your favorite animal|Which animal do you like best]?", "I like foxes, because there are so many good stories about them."),
        ("[What is your favorite color|Which color do you like best]?", "I like green, like the grass and the leaves."),
        ("[Are you alive|Do you sleep|Do you dream|Can you feel]?", "No, I am only a small language model. But I know many stories about it."),
    ]  # fmt: skip
    question, answer = rng.choice(turns)
    return [(one_of(rng, question), answer)]


def greeting(rng):
    question = one_of(rng, "[Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there|Good day]", "[Hello|Hi|Hey]!", "Hello, how are you?", "How are you?", "Hi, how are you today?", "How do you do?", "Good morning!", "hello")
    if "how" in question.lower():
        return [(question, one_of(rng, "I am [fine|well], thank you. [What would you like to know?|Would you like to hear a story?]"))]
    if rng.random() < 0.3:
        return [(question, "Hello! Would you like to hear a story?"), (one_of(rng, "Yes", "[Yes|Yes please|Sure|Okay]!", "Yes, I would."), tell(rng)[0])]
    hello = next((w for w in ("Good morning", "Good evening", "Good day") if w in question), "Hello")
    return [(question, one_of(rng, hello + "! [What can I do for you?|How can I help you?|Would you like to hear a story?]"))]


def thanks(rng):
    question = one_of(rng, "[Thank you|Thanks|Thanks a lot|Thank you very much|Many thanks|Thank you so much]", "[Great|Nice|Good|Wonderful], [thanks|thank you]!", "That was [nice|great|a good story|lovely|beautiful].", "I like it.", "Well done!", "Good job!")
    return [(question, one_of(rng, "You are welcome!", "You are welcome! [Is there anything else?|Just ask if you want more.]", "I am glad that you like it."))]


def goodbye(rng):
    question = one_of(rng, "[Bye|Goodbye|Good night|See you|See you later|Bye bye]", "[I have to go now|That is all|I am done].", "Good night!")
    if "night" in question:
        return [(question, "Good night! Sleep well.")]
    return [(question, one_of(rng, "Goodbye! [Come back soon.|See you next time.|It was nice to talk to you.]"))]


def colour(rng):
    thing, shade = rng.choice(sorted(COLOUR_OF.items()))
    the = thing if thing in ("grass", "snow", "blood", "coal", "milk", "chocolate", "fire") else f"the {thing}" if thing in ("sky", "sun", "night", "sea") else f"a {thing}"
    question = one_of(rng, "What color is {x}?", "What is the color of {x}?", "Which color does {x} have?", "What color does {x} have?", "Tell me the color of {x}.", "Do you know what color {x} is?", "What colour is {x}?", x=the)
    return [(question, tidy(f"{the[0].upper() + the[1:]} is {shade}."))]


def is_it_that_colour(rng):
    thing, shade = rng.choice([p for p in sorted(COLOUR_OF.items()) if p[0] in ("sky", "sun", "sea", "grass", "snow", "milk")])
    the = thing if thing in ("grass", "snow", "milk") else f"the {thing}"
    asked = rng.choice([shade, rng.choice(["red", "green", "blue", "white", "yellow", "black"])])
    answer = f"Yes, {the} is {shade}." if asked == shade else f"No, {the} is not {asked}. {the[0].upper() + the[1:]} is {shade}."
    return [(one_of(rng, "Is {x} {y}?", x=the, y=asked), answer)]


def mix(rng):
    one, other, result = rng.choice(MIXES)
    if rng.random() < 0.5:
        one, other = other, one
    question = one_of(rng, "What color do you get when you mix {a} and {b}?", "What do {a} and {b} make?", "If I mix {a} with {b}, what color is it?", "Mix {a} and {b}.", "What is {a} and {b} together?", a=one, b=other)
    return [(question, tidy(f"{one} and {other} make {result}."))]


def animal_fact(rng):
    a = rng.choice(ANIMALS)
    x = a.noun
    kinds = {
        "sound": (["What sound does a {x} make?", "What does a {x} say?", "What noise does a {x} make?", "How does a {x} sound?", "Which sound does a {x} make?", "Do you know what a {x} says?", "what does the {x} say"],
                  f"A {x} {a.verb}: {a.sound}!" if "nothing" not in a.sound else f"A {x} {a.verb} at all."),
        "home": (["Where does a {x} live?", "Where do you find a {x}?", "What is the home of a {x}?", "Where is the home of a {x}?"], f"A {x} lives {a.home}."),
        "food": (["What does a {x} eat?", "What do I feed a {x}?", "What is the food of a {x}?", "What does a {x} like to eat?"], f"A {x} eats {a.food}."),
        "legs": (["How many legs does a {x} have?", "How many feet does a {x} have?", "Count the legs of a {x}."], f"A {x} has {NUMBERS[int(a.legs)]} legs." if a.legs != "0" else f"A {x} has no legs."),
        "colour": (["What color is a {x}?", "What colour is a {x}?", "What does a {x} look like?"], f"A {x} is {a.colour}."),
        "skill": (["What can a {x} do?", "What is a {x} good at?", "What can a {x} do well?"], f"A {x} can {a.skill}."),
        "young": (["What is a young {x} called?", "What do you call a baby {x}?", "What is the name of a baby {x}?", "How do you call a young {x}?"], f"A young {x} is called a {a.young}."),
        "about": (["Tell me about the {x}.", "What is a {x}?", "What do you know about the {x}?", "Tell me something about a {x}."],
                  f"A {x} is an animal with {NUMBERS[int(a.legs)] if a.legs != '0' else 'no'} legs. It lives {a.home} and eats {a.food}."),
    }  # fmt: skip
    kind = rng.choice(["sound", "sound", "sound", "home", "food", "legs", "colour", "skill", "young", "about"])
    if kind == "colour" and x in COLOUR_OF:
        kind = "home"
    questions, answer = kinds[kind]
    turns = [(one_of(rng, *questions, x=x), tidy(answer))]
    if kind in ("sound", "home", "food", "legs") and rng.random() < 0.3:
        b = rng.choice([o for o in ANIMALS if o.noun != x])
        said = {"sound": f"A {b.noun} {b.verb}: {b.sound}!" if "nothing" not in b.sound else f"A {b.noun} {b.verb} at all.",
                "home": f"A {b.noun} lives {b.home}.", "food": f"A {b.noun} eats {b.food}.",
                "legs": f"A {b.noun} has {NUMBERS[int(b.legs)]} legs." if b.legs != "0" else f"A {b.noun} has no legs."}[kind]  # fmt: skip
        turns.append((one_of(rng, "And a {x}?", "What about a {x}?", "And the {x}?", "And a {x}, please?", x=b.noun), tidy(said)))
    return turns


def which_animal(rng):
    a = rng.choice([a for a in ANIMALS if [b.sound for b in ANIMALS].count(a.sound) == 1 and "nothing" not in a.sound])
    question = one_of(rng, "Which animal says {s}?", "What animal says {s}?", "Who says {s}?", "What animal makes the sound {s}?", s=a.sound)
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
    question = one_of(rng, "What is {x} {w} {y}?", "How much is {x} {w} {y}?", "{x} {w} {y}", "Calculate {x} {w} {y}.", "What's {x} {w} {y}?", "Can you tell me {x} {w} {y}?", "{x} {w} {y} is?", x=x, y=y, w=word if words or rng.random() < 0.4 else sign)
    turns = [(question, tidy(f"{x} {word} {y} is {z}."))]
    if not words and rng.random() < 0.3 and result <= 10:
        more = rng.randint(1, 10)
        turns.append((one_of(rng, "And {m} more?", "Now add {m}.", "And plus {m}?", "plus {m}?", m=more), f"{result} plus {more} is {result + more}."))
    return turns


def word_sum(rng):
    a, b, item = rng.randint(1, 9), rng.randint(1, 9), rng.choice(ITEMS)
    name, he = rng.choice(CHILDREN)
    if rng.random() < 0.5:
        question = one_of(rng, "{n} has {a} {i} and gets {b} more. How many {i} does {h} have?", "{n} had {a} {i} and found {b} more. How many are there now?", "There are {a} {i}. {n} brings {b} more. How many {i} are there?", n=name, a=a, b=b, i=item, h=he)
        return [(question, f"{a} plus {b} is {a + b}. {'There are' if 'there' in question.split('How')[1] else name + ' has'} {a + b} {item}.")]
    question = one_of(rng, "{n} has {a} {i} and gives away {b}. How many are left?", "{n} had {a} {i} and lost {b}. How many {i} are left?", "There are {a} {i}. {n} takes {b}. How many are left?", n=name, a=a + b, b=b, i=item)
    left = f"{a} {item} are left" if a > 1 else f"1 {item[:-1]} is left"
    return [(question, f"{a + b} minus {b} is {a}. {left}.")]


def count(rng):
    n = rng.randint(3, 20)
    kind = rng.random()
    if kind < 0.45:
        question = one_of(rng, "Count to {n}.", "Can you count to {n}?", "Please count to {n}.", "Count from 1 to {n}.", n=rng.choice([n, NUMBERS[n]]))
        return [(question, ", ".join(NUMBERS[1 : n + 1]).capitalize() + ".")]
    if kind < 0.7:
        n = rng.randint(3, 10)
        question = one_of(rng, "Count [down|backwards] from {n}.", "Can you count [down|backwards] from {n}?", n=rng.choice([n, NUMBERS[n]]))
        return [(question, ", ".join(NUMBERS[n:0:-1]).capitalize() + ".")]
    n = rng.randint(1, 19)
    after = rng.random() < 0.6
    question = one_of(rng, "What number comes [after|right after] {n}?" if after else "What number comes [before|right before] {n}?", "Which number is [after|next after] {n}?" if after else "Which number is before {n}?", n=n)
    return [(question, f"{n + 1} comes after {n}." if after else f"{n - 1} comes before {n}.")]


def compare(rng):
    if rng.random() < 0.5:
        a, b = rng.sample(range(0, 21), 2)
        question = one_of(rng, "Which is bigger, {a} or {b}?", "Which number is [bigger|larger]: {a} or {b}?", "Is {a} bigger than {b}?", a=a, b=b)
        if question.startswith("Is"):
            return [(question, f"Yes, {a} is bigger than {b}." if a > b else f"No, {b} is bigger than {a}.")]
        return [(question, f"{max(a, b)} is bigger than {min(a, b)}.")]
    sizes = ["bee", "mouse", "frog", "rabbit", "cat", "dog", "sheep", "pig", "cow", "elephant"]
    i, j = rng.sample(range(len(sizes)), 2)
    a, b = sizes[i], sizes[j]
    big, small = (a, b) if i > j else (b, a)
    question = one_of(rng, "Which is bigger, a {a} or a {b}?", "Is a {a} bigger than a {b}?", "Who is bigger, a {a} or a {b}?", a=a, b=b)
    answer = f"A {big} is bigger than a {small}."
    if question.startswith("Is"):
        answer = ("Yes, a " if big == a else "No, a ") + f"{big} is bigger than a {small}."
    return [(question, tidy(answer))]


def opposite(rng):
    word = rng.choice(sorted(OPPOSITE_OF))
    question = one_of(rng, "What is the opposite of {x}?", "What's the opposite of {x}?", "Opposite of {x}?", "Tell me the opposite of {x}.", "Which word means the opposite of {x}?", "What is the contrary of {x}?", "Do you know the opposite of {x}?", x=word)
    turns = [(question, f"The opposite of {word} is {OPPOSITE_OF[word]}.")]
    for _ in range(rng.choice([0, 0, 1, 2])):
        word = rng.choice(sorted(OPPOSITE_OF))
        turns.append((one_of(rng, "And of {x}?", "And {x}?", "What about {x}?", "And the opposite of {x}?", x=word), f"The opposite of {word} is {OPPOSITE_OF[word]}."))
    return turns


def calendar(rng):
    names = rng.choice([DAYS, MONTHS])
    word = "day" if names is DAYS else "month"
    i = rng.randrange(len(names))
    x, after, before = names[i], names[(i + 1) % len(names)], names[i - 1]
    choices = [
        (["What {w} comes after {x}?", "Which {w} is after {x}?", "What comes after {x}?", "What is the {w} after {x}?"], f"After {x} comes {after}."),
        (["What {w} comes before {x}?", "Which {w} is before {x}?", "What comes before {x}?", "What is the {w} before {x}?"], f"Before {x} comes {before}."),
    ]
    if names is DAYS:
        choices += [
            (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
            (["What are the days of the week?", "Name the days of the week.", "Can you list the days of the week?"], "The days of the week are " + ", ".join(DAYS[:6]) + " and Sunday."),
            (["If today is {x}, what day is tomorrow?", "Today is {x}. What is tomorrow?"], f"If today is {x}, tomorrow is {after}."),
            (["If today is {x}, what day was yesterday?", "Today is {x}. What day was yesterday?"], f"If today is {x}, yesterday was {before}."),
            (["Is {x} a weekend day?", "Is {x} on the weekend?"], f"Yes, {x} is on the weekend." if i > 4 else f"No, {x} is a weekday."),
        ]  # fmt: skip
    else:
        choices += [
            (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
            (["What are the months of the year?", "Name the months.", "List the months of the year."], "The months are " + ", ".join(MONTHS[:11]) + " and December."),
            (["How many days does {x} have?", "How many days are in {x}?"], f"{x} has {MONTH_DAYS[x]} days."),
            (["What season is {x}?", "Which season is {x} in?", "Is {x} in winter or summer?", "In which season is {x}?"], f"{x} is in {SEASON[x]}."),
            (["What are the seasons?", "Name the seasons.", "How many seasons are there?"], "There are four seasons: spring, summer, autumn and winter."),
            (["What is the first month of the year?", "Which month is the first?"], "The first month of the year is January."),
            (["What is the last month of the year?", "Which month is the last?"], "The last month of the year is December."),
        ]  # fmt: skip
    questions, answer = rng.choice(choices)
    return [(one_of(rng, *questions, w=word, x=x), answer)]


def my_name(rng):
    name = rng.choice(CHILDREN + PET_NAMES)[0]
    first = (one_of(rng, "My name is {n}.", "I am {n}.", "Hi, I am {n}.", "Hello, my name is {n}.", "I'm {n}.", "You can call me {n}.", n=name), one_of(rng, "[Nice to meet you|Hello], {n}! [How can I help you?|What can I do for you?|Would you like to hear a story?]", n=name))
    between = [] if rng.random() < 0.5 else rng.choice([colour, opposite, add, animal_fact])(rng)
    asked = (one_of(rng, "What is my name?", "Do you know my name?", "Who am I?", "What's my name?", "Do you remember my name?"), f"Your name is {name}.")
    return [first] + between + ([asked] if rng.random() < 0.8 else [])


def unknown_name(rng):
    return [(one_of(rng, "What is my name?", "Do you know my name?", "Who am I?"), "I do not know your name yet. What is your name?")]


UNKNOWN = """What is the capital of {c}?; Who is the president of {c}?; Write a program in {l}.; How do I write a loop in {l}?;
What is the meaning of life?; Translate this into {t}.; What is the weather today?; What time is it?; Who won the game?;
Explain {s}.; What is {s}?; How does a {m} work?; Who wrote this book?; What is 127 times 36?; What is 5 times 7?;
How far is the {p}?; What is the news?; Can you write a poem?; Write an email to my boss.; How do I cook rice?; Where is {c}?;
When did the war end?; What is the best {m}?; How tall is the tower?; How much money is a {m}?; Tell me about {c}.;
Tell me about {s}.; What do you think about politics?; What is the square root of 81?; Give me a recipe.;
What is the largest planet?; How old is the earth?; Who invented the {m}?; Do you speak {t}?""".replace("\n", " ").split("; ")


def unknown(rng):
    question = rng.choice(UNKNOWN).format(
        c=rng.choice(["France", "Germany", "China", "Spain", "Italy", "America", "India", "Paris", "London", "Brazil", "Japan", "Peru"]),
        l=rng.choice(["Python", "Rust", "Java", "C", "Go"]), t=rng.choice(["French", "German", "Spanish", "Latin", "Chinese"]),
        s=rng.choice(["physics", "gravity", "history", "chemistry", "love", "music", "mathematics", "quantum mechanics", "the internet"]),
        m=rng.choice(["car", "computer", "phone", "plane", "train", "telephone", "television"]), p=rng.choice(["moon", "sun", "next town"]),
    )  # fmt: skip
    return [(question, one_of(rng, "I do not know that. I am a very small model. [Ask me about animals, colors or numbers, or for a story.|But I can tell you a story.]", "That is too hard for me. I am a very small model. [But I can tell you a story.|Ask me about animals, colors or numbers.]"))]


def story(rng):
    wanted, about, plot_name = subjects(rng)
    asks = ["Tell me a story about {x}.", "Tell me a [short|little|nice|funny|good] story about {x}.", "Can you tell me a story about {x}?", "Please tell me a story about {x}.",
            "I want [a story|to hear a story] about {x}.", "Write a [short|little|] story about {x}.", "A story about {x}, please.", "Do you know a story about {x}?",
            "I would like to hear a story about {x}.", "Could you write a story about {x}?", "Make up a story about {x}.", "Give me a story about {x}."]  # fmt: skip
    anything = ["Tell me a story.", "Tell me a [short|nice|bedtime|good] story.", "Do you know a story?", "Please tell me a story.", "I want a story.", "A story, please!", "Yes, tell me a story.",
                "Can you tell me a story?", "Write a [short|little|] story."]  # fmt: skip
    if rng.random() < 0.2:
        question, about, plot_name = one_of(rng, *anything), {}, None
    else:
        question = one_of(rng, *asks, x=wanted)
    text, facts = tell(rng, about, plot_name)
    turns = [(question, text)]
    if rng.random() < 0.35:
        turns += about_the_story(rng, facts)
    if rng.random() < 0.15:
        turns.append((one_of(rng, "Tell me another one.", "Another one, please.", "One more!", "Tell me another story.", "Again!"), tell(rng)[0]))
    return turns


def about_the_story(rng, facts):
    A, B, C = facts.A, facts.B, facts.C
    asks = [
        (["Who is the story about?", "What is the name of the hero?", "Who was it about?", "Who is the hero?"], f"The story is about {A.name}, a {A.kind}."),
        (["Where did {a} live?", "Where does {a} live?", "Where is {a}'s home?"], f"{A.name} lived {A.home}."),
    ]
    if facts.friend_came:
        asks.append((["Who is {a}'s friend?", "What was the name of the friend?", "Who was the friend of {a}?", "Who helped {a}?"], f"{A.name}'s friend is {B.name}."))
    if A.kind not in ("girl", "boy"):
        asks.append((["What animal is {a}?", "What kind of animal was {a}?", "What is {a}?"], f"{A.name} is a {A.kind}."))
    turns = []
    for questions, answer in rng.sample(asks, rng.choice([1, 1, 2])):
        turns.append((one_of(rng, *questions, a=A.name), tidy(answer)))
    return turns


FAMILIES = [
    (story, 30), (animal_fact, 16), (add, 10), (opposite, 9), (calendar, 10), (colour, 7), (is_it_that_colour, 2), (mix, 3), (count, 6),
    (word_sum, 6), (compare, 4), (which_animal, 3), (who_are_you, 5), (what_can_you_do, 4), (how_made, 4), (greeting, 5), (thanks, 4),
    (my_name, 5), (unknown_name, 1), (unknown, 7),
]  # fmt: skip
SYSTEMS = ["You are a helpful assistant.", f"You are {ME}.", "You are a friendly storyteller.", "Answer in short sentences."]


def as_typed(rng, question):
    """People type in their own way."""
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
