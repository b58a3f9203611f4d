"""Short stories: an opening, a plot told beat by beat with pauses, an ending. The sentences are in plots.txt."""

import pathlib
from types import SimpleNamespace

from world import CHILDREN, HERO_ANIMALS, PLACES, THINGS, expand, fields_for, tidy


def read_sentences(path):
    """The groups of sentences and the plots, each by name."""
    sentences, plots = {}, {}
    for line in path.read_text().splitlines():
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if not text or line.startswith("#"):
            continue
        word, _, rest = text.partition(" ")
        if indent == 0 and word == "sentences":
            group = sentences[rest] = []
        elif indent == 0:
            plot = plots[rest] = SimpleNamespace(where=None, weather=None, links=[], beats=[], ending=[])
        elif indent == 2 and word in ("where", "weather"):
            setattr(plot, word, rest)
        elif indent == 2:
            group = {} if word == "link" else []
            if word == "ending":
                plot.ending = group
            else:
                (plot.links if word == "link" else plot.beats).append(group)
        elif isinstance(group, dict):
            name, _, value = text.partition(": ")
            group[name] = value
        else:
            group.append(None if text == "-" else text)
    return sentences, plots


SENTENCES, PLOTS = read_sentences(pathlib.Path(__file__).with_name("plots.txt"))


def tell(rng, about=None, plot_name=None, opening=True):
    """One story as text, and its fields (for questions about it). `about`: see world.fields_for. opening=False leaves
    out the opening."""
    about = dict(about or {})
    name = plot_name or rng.choice(sorted(PLOTS))
    if "thing" in about and plot_name is None:
        name = rng.choice(["lost", "quarrel", "birthday", "new_friend"])
    chosen = PLOTS[name]
    if chosen.where:
        about.setdefault("place", chosen.where)
    if chosen.weather:
        about.setdefault("weather", chosen.weather)
    fields = fields_for(rng, about)
    link = {key: expand(rng, text, fields) for key, text in (rng.choice(chosen.links) if chosen.links else {}).items()}
    fields["t"] = SimpleNamespace(**link, buy2=link.get("buy", "").capitalize(), a2=link.get("a", "").capitalize())
    fields.update(_small_fields(rng, fields, link))

    sentences = [expand(rng, rng.choice(SENTENCES["openings"]), fields)] if opening else []
    friend_came = False
    pauses = [
        p for p in SENTENCES["pauses"] if fields["sky"].season != "winter" or not ("butterfly" in p or "flower" in p)
    ]
    for ways in chosen.beats:
        way = rng.choice(ways)
        if way is None:
            continue
        fields["pause"] = expand(rng, rng.choice(pauses), fields) if rng.random() < 0.6 else ""
        friend = fields["B"].name if friend_came else fields["friend"]
        if "{friend" not in way and "{B.intro}" not in way:
            way = way.replace("{B}", "{friend}", 1)  # the first mention introduces the friend
        sentence = expand(rng, way, {**fields, "friend": friend, "friend2": friend[0].upper() + friend[1:]})
        friend_came = friend_came or fields["B"].name in sentence
        sentences.append(sentence)
    ends = [rng.choice(chosen.ending)] if rng.random() < 0.7 else []
    if not ends or rng.random() < 0.6:
        ends.append(rng.choice([e for e in SENTENCES["endings"] if friend_came or "{B}" not in e]))
    sentences += [expand(rng, e, fields) for e in ends]
    return tidy(_paragraphs(rng, sentences)), SimpleNamespace(plot=name, friend_came=friend_came, **fields)


def _small_fields(rng, fields, link):
    noise = link.get("noise", "")
    return {
        "morning": expand(rng, rng.choice(SENTENCES["mornings"]), fields),
        "when": rng.choice(["one day", "one morning", "this morning", "one evening"]),
        "noise": noise.capitalize(),
        "night": expand(
            rng,
            "[The air was cool and still|An owl called far away|Crickets sang|The stars were very bright].",
            fields,
        ),
        "how_q": rng.choice(["They were having fun.", "It was great fun.", ""]),
        "t2": rng.choice(["did not look where I was going", "was too curious", "ran too fast", "fell down"]),
        "food_of": rng.choice(["soup", "milk", "berries", "nuts"]),
        "n2": rng.choice(["Two", "Three", "Four"]),
        "weather_bad": rng.choice(["was raining", "began to rain", "was cold", "was getting dark"]),
    }


def _paragraphs(rng, sentences):
    """Most stories are one paragraph; some are split into two or three."""
    if rng.random() < 0.6:
        return " ".join(sentences)
    text = sentences[0]
    for i, sentence in enumerate(sentences[1:], 1):
        text += ("\n\n" if i in (2, len(sentences) - 2) else " ") + sentence
    return text


def subjects(rng):
    """A subject for a story: its name in a question, and `about` for tell()."""
    kind = rng.choice(["animal", "animal", "animal", "hero", "hero", "place", "thing", "plot", "weather"])
    if kind == "animal":
        noun = rng.choice(HERO_ANIMALS).noun
        return "a " + noun, {"animal": noun}, None
    if kind == "hero":
        name, pronoun = rng.choice(CHILDREN)
        return rng.choice([name, f"a {'girl' if pronoun == 'she' else 'boy'} named {name}"]), {"hero": name}, None
    if kind == "place":
        place = rng.choice([p for p in PLACES if p not in ("garden", "village")])
        return (
            "the " + place,
            {"place": place},
            rng.choice(["lost", "rescue", "sharing", "quarrel", "new_friend", "treasure"]),
        )
    if kind == "thing":
        thing = rng.choice(THINGS)
        return "a " + thing, {"thing": thing}, None
    if kind == "weather":
        return rng.choice(
            [
                ("snow", {"weather": "snowy"}, "winter"),
                ("winter", {"weather": "snowy"}, "winter"),
                ("rain", {}, "storm"),
                ("a storm", {}, "storm"),
                ("a rainbow", {}, "storm"),
            ]
        )
    return rng.choice(
        [
            ("a treasure", {}, "treasure"),
            ("a birthday", {}, "birthday"),
            ("a race", {}, "race"),
            ("friendship", {}, "new_friend"),
            ("friends", {}, "quarrel"),
            ("sharing", {}, "sharing"),
            ("a garden", {}, "garden"),
            ("a lost toy", {}, "lost"),
            ("the night", {}, "noise"),
            ("a song", {}, "song"),
            ("the market", {}, "market"),
            ("being brave", {}, "noise"),
            ("somebody who gets lost", {}, "way_home"),
            ("telling the truth", {}, "truth"),
            ("the moon", {}, "star"),
            ("a star", {}, "star"),
            ("a seed", {}, "garden"),
            ("cake", {}, "bakery"),
            ("an island", {}, "island"),
            ("the first day of school", {}, "school"),
            ("an egg", {}, "egg"),
            ("a letter", {}, "letter"),
            ("a wish", {}, "wish"),
            ("painting", {}, "paint"),
            ("colors", {}, "paint"),
            ("somebody who can not sleep", {}, "sleep"),
            ("school", {}, "school"),
        ]
    )
