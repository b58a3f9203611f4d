"""The toy world (its characters, places and things) and the template language of its stories.

A template is a sentence with choices and fields: "[One day|That morning], {A} went {place.to}." Choices may be nested
and may be empty. All randomness comes from the generator passed in, so the same seed gives the same text.
"""

import re
from types import SimpleNamespace


def _list(text):
    return [" ".join(item.split()) for item in text.split(";")]


def _pairs(text):
    return [tuple(item.split()) for item in text.split(";")]


# Children and animals: name and pronoun.
CHILDREN = _pairs(
    """Mia she; Tom he; Lena she; Ben he; Nora she; Max he; Ella she; Sam he; Ida she; Leo he; Rosa she; Finn he;
    Anna she;
    Otto he; Clara she; Hugo he; Maya she; Noah he; Lily she; Paul he; Emma she; Jack he; Sofia she; Oscar he; Lucy she;
    Adam he"""
)
PET_NAMES = _pairs(
    """Pip he; Daisy she; Bruno he; Willow she; Rusty he; Hazel she; Toby he; Poppy she; Milo he; Ruby she; Felix he;
    Luna she; Oakley he; Tilly she; Bramble he; Pearl she; Gus he; Misty she; Nibbles he; Olive she"""
)

# Animal | its sound as a verb | the sound | where it lives | what it eats | legs | color | what it does well | young.
# Animals of the first group are also heroes and friends in stories.
_ANIMALS = """
fox | barks | yip | in a den under an old oak | berries and mice | 4 | orange | run | cub
rabbit | squeaks | squeak | in a burrow on a green hill | carrots and grass | 4 | brown | hop | kit
bear | growls | grrr | in a warm cave | honey and fish | 4 | brown | climb | cub
mouse | squeaks | squeak | in a hole behind a stone wall | seeds and cheese | 4 | gray | hide | pup
duck | quacks | quack | by a quiet pond | bread and water plants | 2 | white | swim | duckling
owl | hoots | hoo | in a hollow tree | mice | 2 | brown | see in the dark | owlet
squirrel | chatters | chit | in a tall tree | nuts | 4 | red | climb | kit
hedgehog | snuffles | snuff | under a pile of leaves | beetles and worms | 4 | brown | roll into a ball | hoglet
frog | croaks | croak | beside a green pond | flies | 4 | green | jump | tadpole
cat | meows | meow | in a cozy house | fish | 4 | black | climb | kitten
dog | barks | woof | in a little house by the gate | meat and bones | 4 | brown | run | puppy
goat | bleats | maa | on a steep hill | grass and leaves | 4 | white | climb | kid
pig | grunts | oink | on a small farm | apples and corn | 4 | pink | dig | piglet
horse | neighs | neigh | in a wooden stable | hay and apples | 4 | brown | gallop | foal
turtle | hisses | hiss | near a slow river | leaves | 4 | green | swim | hatchling
beaver | slaps the water | splash | in a lodge on the river | bark and leaves | 4 | brown | build | kit
penguin | honks | honk | on the cold ice | fish | 2 | black and white | swim | chick
deer | bleats | bleat | in the deep forest | leaves and grass | 4 | brown | leap | fawn

cow | moos | moo | on a farm | grass | 4 | black and white | make milk | calf
sheep | bleats | baa | in a meadow | grass | 4 | white | grow wool | lamb
hen | clucks | cluck | in a henhouse | corn | 2 | brown | lay eggs | chick
rooster | crows | cock-a-doodle-doo | on a farm | corn | 2 | red | wake everybody up | chick
lion | roars | roar | on the hot plain | meat | 4 | yellow | run | cub
elephant | trumpets | toot | on the wide plain | leaves and fruit | 4 | gray | carry heavy things | calf
monkey | chatters | oo-oo | in the jungle | bananas | 4 | brown | swing | baby monkey
wolf | howls | awoo | in the dark forest | meat | 4 | gray | hunt | pup
snake | hisses | hiss | in the long grass | mice | 0 | green | slide | hatchling
bee | buzzes | buzz | in a hive | nectar | 6 | yellow and black | make honey | larva
crow | caws | caw | in a high nest | seeds and worms | 2 | black | fly | chick
bird | chirps | tweet | in a nest | seeds and worms | 2 | blue | fly | chick
spider | makes no sound | nothing at all | in a web | flies | 8 | black | spin | spiderling
fish | makes no sound | nothing at all | in the water | small plants | 0 | silver | swim | baby fish
"""


def _animals():
    keys = ["noun", "verb", "sound", "home", "food", "legs", "colour", "skill", "young"]
    heroes, others = [], []
    for group, lines in zip((heroes, others), _ANIMALS.strip().split("\n\n")):
        for line in lines.splitlines():
            group.append(SimpleNamespace(**dict(zip(keys, line.split(" | ")))))
    return heroes, heroes + others


HERO_ANIMALS, ANIMALS = _animals()

# Place: where a character is, where a character goes, the sights.
PLACES = {
    "forest": (
        "in the forest",
        "to the forest",
        "Tall trees [stood all around|whispered in the wind|made cool shade].",
    ),
    "beach": ("on the beach", "to the beach", "The waves [rolled in and out|were blue and white|sang softly]."),
    "river": ("by the river", "to the river", "The water was [clear and cold|fast and bright|full of little fish]."),
    "park": (
        "in the park",
        "to the park",
        "[Children laughed on the swings|The grass was soft and green|Birds sang in the trees].",
    ),
    "meadow": (
        "in the meadow",
        "to the meadow",
        "[Yellow flowers grew everywhere|Bees flew from flower to flower|The grass was tall].",
    ),
    "hill": (
        "on the hill",
        "up the hill",
        "From the top [you could see the whole village|the houses looked very small].",
    ),
    "lake": ("by the lake", "to the lake", "The lake was [as smooth as glass|blue and deep|quiet and still]."),
    "garden": (
        "in the garden",
        "into the garden",
        "[Red roses|Tall sunflowers|Green beans] grew [along the fence|in neat rows].",
    ),
    "farm": ("on the farm", "to the farm", "[The hens clucked|The cows stood in the shade|It smelled of hay]."),
    "village": (
        "in the village",
        "to the village",
        "[The little houses had red roofs|Smoke rose from the chimneys|The bell in the tower rang].",
    ),
}
# Weather: as an adjective, as a sentence.
WEATHERS = {
    "sunny": ("[sunny|warm|bright]", "The sun [was shining|shone brightly] and the sky was [blue|clear]."),
    "windy": ("[windy|breezy]", "The wind [blew through the trees|pushed the clouds along|played with the leaves]."),
    "rainy": ("[rainy|gray|wet]", "[Rain fell from the gray sky|Little drops of rain tapped on the leaves]."),
    "snowy": (
        "[snowy|cold|white]",
        "[Soft snow covered the ground|Snow fell slowly and quietly|Everything was white with snow].",
    ),
    "foggy": ("[foggy|misty|quiet]", "[A thin fog lay over the fields|The hills were hidden in the mist]."),
    "fine": (
        "[fine|lovely|beautiful|quiet]",
        "[The air was fresh|Everything smelled of flowers|A few white clouds sailed by].",
    ),
}

# Small things to carry, their colors, food, and people.
THINGS = _list(
    """ball; kite; hat; scarf; book; drum; bell; lantern; spoon; basket; blanket; whistle; button; key; boat; doll;
    wagon;
    flute; cup; umbrella; mitten; ribbon; marble; feather"""
)
THING_COLOURS = _list("""red; blue; green; yellow; white; purple; orange; golden; silver; brown; pink""")
FOODS = _list(
    """apple pie; honey cake; carrot cake; warm bread; pumpkin pie; cheese bread; plum cake; berry pie; nut bread; pear
    cake"""
)
TREATS = _list("""apple; pear; plum; cookie; pancake; peach; berry tart; carrot; bun; muffin""")
TRAITS = _list("""kind; brave; curious; shy; clever; cheerful; gentle; busy; friendly; quiet; playful""")
ELDERS = _pairs("mother she; father he; grandmother she; grandfather he; aunt she; uncle he")

_FORMS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}


class Person:
    """A person in a story: {A} is the name, {A.he} {A.him} {A.his} {A.himself} the pronouns, {A.He} and {A.His} the
    same at the start of a sentence, {A.intro} and {A.home} phrases for an opening."""

    def __init__(self, name, pronoun, kind, intro="", home=""):
        self.name, self.kind, self.intro, self.home = name, kind, intro, home
        self.he, self.him, self.his, self.himself = _FORMS[pronoun]
        self.kind_of = intro.split(" named ")[0].split(" called ")[0]
        self.He, self.His, self.Name = self.he.capitalize(), self.his.capitalize(), name[0].upper() + name[1:]

    def __format__(self, spec):
        return self.name


_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def choose(rng, template):
    """Makes a template's choices at random."""
    while True:
        found = _CHOICE.search(template)
        if not found:
            return template
        template = template[: found.start()] + rng.choice(found.group(1).split("|")) + template[found.end() :]


def tidy(text):
    """Fixes spaces, "an" before a vowel, and the capital at the start of each sentence."""
    text = re.sub(r" {2,}", " ", text)
    text = re.sub(r" +([.,!?\n])", r"\1", text).strip()
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return re.sub(r'((?:^|[.!?] |\n|\." )"?)([a-z])', lambda m: m.group(1) + m.group(2).upper(), text)


def expand(rng, template, fields):
    """Makes a template's choices and fills in its fields; a field may contain choices and fields too."""
    text = choose(rng, template)
    for _ in range(4):
        if "{" not in text:
            break
        text = choose(rng, text.format(**fields))
    return text


def child(rng, without=()):
    name, pronoun = rng.choice([c for c in CHILDREN if c[0] not in without])
    kind = "girl" if pronoun == "she" else "boy"
    trait = rng.choice(TRAITS)
    intro = rng.choice(
        [
            f"a {kind} named {name}",
            f"a {trait} {kind} named {name}",
            f"a little {kind} called {name}",
            f"a {trait} little {kind} called {name}",
        ]
    )
    home = choose(
        rng,
        "in a [small|little|white|yellow|stone] house [near the forest|by the sea|on a hill|at the end of "
        "the road|in the village|by the river]",
    )
    return Person(name, pronoun, kind, intro, home)


def animal(rng, without=(), noun=None):
    name, pronoun = rng.choice([c for c in PET_NAMES if c[0] not in without])
    beast = rng.choice([a for a in HERO_ANIMALS if noun in (None, a.noun)])
    adjective = rng.choice(["small", "little", "young"] + TRAITS)
    intro = rng.choice(
        [
            f"a {adjective} {beast.noun} named {name}",
            f"a {beast.noun} called {name}",
            f"a {adjective} {beast.noun} called {name}",
        ]
    )
    return Person(name, pronoun, beast.noun, intro, beast.home)


def fields_for(rng, about):
    """The people, places and things of one story. `about` fixes some: hero (a name), animal, place, weather, thing."""
    if "animal" in about or ("hero" not in about and rng.random() < 0.5):
        A = animal(rng, noun=about.get("animal"))
    else:
        A = child(rng)
        while about.get("hero", A.name) != A.name:
            A = child(rng)
    child_hero = A.kind in ("girl", "boy")
    B = child(rng, [A.name]) if child_hero and rng.random() < 0.7 else animal(rng, [A.name])
    D = animal(rng, [A.name, B.name])  # met on the way
    while D.kind in (A.kind, B.kind):
        D = animal(rng, [A.name, B.name])
    elder, pronoun = rng.choice(ELDERS)
    C = Person(f"{A.his} {elder}", pronoun, elder)
    friend = rng.choice([f"{A.his} friend {B.name}", f"{A.his} best friend {B.name}", f"{A.his} good friend {B.name}"])
    if B.kind not in ("girl", "boy"):
        friend = f"{A.his} friend {B.name} the {B.kind}"
    spot = about.get("place") or rng.choice(list(PLACES))
    sky = about.get("weather") or rng.choice(list(WEATHERS))
    season = rng.choice(
        ["winter", "January", "December"] if sky == "snowy" else ["spring", "autumn", "May", "September", "April"]
    )
    numbers = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return {
        "A": A,
        "B": B,
        "C": C,
        "D": D,
        "friend": friend,
        "place": SimpleNamespace(the="the " + spot, at=PLACES[spot][0], to=PLACES[spot][1], sight=PLACES[spot][2]),
        "sky": SimpleNamespace(adj=choose(rng, WEATHERS[sky][0]), line=choose(rng, WEATHERS[sky][1]), season=season),
        "thing": about.get("thing") or rng.choice(THINGS),
        "colour": rng.choice(THING_COLOURS),
        "food": rng.choice(FOODS),
        "treat": rng.choice(TREATS),
        "n": rng.choice(numbers[:5]),
        "m": rng.choice(numbers[3:]),
    }
