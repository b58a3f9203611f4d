"""Short stories: an opening, a plot made of beats, sometimes a pause to look around, and an ending.

A plot is a list of beats; a beat is a list of ways to say it. What one beat decides and a later one needs (what was
broken, what helps) is drawn once, from the plot's `links`, so that causes and effects agree. Fields are those of
world.fields_for: {A} the hero, {B} the friend ({friend} where the friend first appears), {C} a grown-up of the
family, {D} an animal met on the way.
"""

from types import SimpleNamespace

from world import PLACES, THINGS, expand, fields_for, tidy

OPENINGS = [
    "Once upon a time, [there was|there lived] {A.intro}. {A.He} lived {A.home}.",
    "Once upon a time there was {A.intro}, who lived {A.home}.",
    "Once upon a time, {A.home}, there lived {A.intro}.",
    "Long ago, {A.intro} lived {A.home}.",
    "There once was {A.intro}. {A.His} home was {A.home}.",
    "{A.intro} lived {A.home}. [Everybody there knew {A.him}.|{A.He} liked it there.|It was a good place to live.]",
    "Far away, {A.home}, lived {A.intro}.",
    "This is the story of {A.intro}. {A.He} lived {A.home} [with {C}|and loved stories|and was never bored].",
    "Once there was {A.intro}. {A} lived {A.home} with {C}.",
]
MORNINGS = [
    "One {sky.adj} [morning|day|afternoon],", "On a {sky.adj} [morning|day|afternoon],", "One day,",
    "It was a {sky.adj} [morning|day]. {sky.line} That day,", "Early one morning,", "{sky.line} That [morning|day],",
    "One {sky.adj} day in {sky.season},",
]  # fmt: skip
PAUSES = [
    "{place.sight}",
    "{sky.line}",
    "A [little|yellow|blue] bird sang [a song|in a tree|on a branch].",
    "{A} [hummed|whistled|sang] a little song.",
    "A [butterfly|bee|ladybug] flew past {A.his} nose.",
    "It was so quiet that {A} could hear {A.his} own [steps|heart].",
    "{A} took a deep breath.",
    "{A} stopped to smell a [red|yellow|white|blue] flower.",
]
ENDINGS = [
    "{A} was very [happy|glad|proud].",
    "From that day on, {A} and {B} were [the best of friends|always together|good friends].",
    "That night, {A} [fell asleep with a smile|slept very well|dreamed of new adventures].",
    "When the stars came out, {A} [went home|walked home slowly] and [told {C} everything|went to bed].",
    "It was the [best|finest|nicest] day of the [year|week|summer].",
    "And they all lived happily ever after.",
    "The end.",
    "{A} never forgot that day.",
    '"What a [day|lovely day|wonderful day]!" said {A}.',
    '"I am so [proud of you|glad that you are here]," said {C}, and gave {A.him} a big hug.',
    "Then they all [ate {food}|had {food} and warm milk] and laughed [until the moon came up|together].",
    "{A} looked up at the moon and smiled.",
]


def plot(beats, ending, links=(), where=None, weather=None, thing=None):
    """beats: ways to say each; one that starts with None may be left out. ending: what was learned, used half the time."""
    return SimpleNamespace(beats=beats, ending=ending, links=list(links), where=where, weather=weather, thing=thing)


PLOTS = {}

PLOTS["lost"] = plot(
    links=[
        dict(spot="under a [big leaf|bush]", why="It must have fallen from {A.his} bag"),
        dict(spot="[high up in a tree|on a branch]", why="The wind must have carried it there"),
        dict(spot="behind [an old log|a gray stone]", why="It must have rolled there"),
        dict(spot="in {D}'s nest of leaves", why='"I am sorry," said {D}, "I thought that it was nobody\'s"'),
    ],
    beats=[
        ["{A} had a {colour} {thing}. It was {A.his} favorite thing in the whole world.",
         "{A} loved {A.his} {colour} {thing} more than anything.",
         "{C.Name} had given {A.him} a {colour} {thing}, and {A} took it everywhere."],
        ["{morning} {A} could not find it. {A.He} looked under the bed and behind the door, but the {thing} was gone.",
         "{morning} {A} went {place.to} to play. When {A.he} came home, the {thing} was gone.",
         "But {when} the {thing} was not in its place. {A} looked everywhere and [found nothing|began to cry]."],
        ['"Where is my {thing}?" [cried|asked] {A}. {A.He} was very sad.', "{A} sat down and felt very sad.",
         '"Oh no," said {A}. "I have lost my {thing}!"'],
        ['{friend} came by. "[Do not cry|Do not worry|Do not be sad]," said {B}. "I will help you [look for it|find it]."',
         '{friend} heard about it and came at once. "Let us look together," said {B}.',
         'Then {A} met {friend}. "Four eyes see more than two," said {B}.'],
        ["They went {place.to} and looked [behind every stone|in the grass|under every bush]. {pause}",
         "They walked all the way {place.to}. {pause}",
         'First they looked by the gate. Nothing. Then they looked {place.at}. "[Look there|Over there|I see something]!" '
         "called {B}."],
        ["At last they found the {thing} {t.spot}. {t.why}.", "And there it was, {t.spot}! {t.why}.",
         "Something {colour} was {t.spot}. It was the {thing}! {t.why}."],
        ['"Thank you, {B}," said {A}. "[Without you I would never have found it|You are a true friend]."',
         "{A} hugged the {thing}, and then {A.he} hugged {B}.",
         '{A} laughed and jumped for joy. "[Now you may play with it too|Come, let us play with it together]!" {A.he} said.'],
    ],
    ending=["{A} learned that [things are easier with a friend|a good friend is worth more than a {thing}].",
            "After that, {A} always [took good care of|kept an eye on] {A.his} {thing}."],
)  # fmt: skip

PLOTS["rescue"] = plot(
    links=[
        dict(what="stuck in the mud", do="found a long branch and pulled {D.him} out", sign="could not move {D.his} feet"),
        dict(what="with a thorn in {D.his} paw", do="held {D.him} gently and pulled the thorn out", sign="could not walk"),
        dict(what="caught in an old net", do="bit and pulled until the net fell apart", sign="could not get free"),
        dict(what="under a fallen branch", do="lifted the heavy branch with all {A.his} strength",
             sign="could not get up"),
        dict(what="in a deep hole", do="let down a rope made of grass", sign="could not climb out"),
    ],
    beats=[
        ["{morning} {A} went for a walk {place.at}. {pause}", "{morning} {A} walked {place.to} to [pick berries|pick flowers|look for nuts].",
         "{morning} {A} was on the way home {place.at}."],
        ['Suddenly {A.he} heard a small voice. "[Help|Please help me]!" it [called|cried].',
         "Then {A.he} heard somebody crying.", "All at once there was a strange sound behind a bush."],
        ["It was a {D.kind} {t.what}. The poor {D.kind} {t.sign}.", "{A} ran to look. There was a {D.kind}, {t.what}.",
         "{A} looked closer and saw a little {D.kind} {t.what}. [It looked very scared|The {D.kind} {t.sign}]."],
        ['"[Do not be afraid|Keep still|Stay calm]," said {A}. "I will help you."', '"What happened?" asked {A}. "I {t2}," said the {D.kind}.',
         "At first {A} was [afraid|scared] too. But {A.he} wanted to help."],
        ["{A} {t.do}.", "{A} thought for a moment. Then {A.he} {t.do}.", "It was not easy, but {A} {t.do}."],
        ['"Thank you!" said the {D.kind}. "My name is {D}. [I will never forget this|Now you are my friend]."',
         'The {D.kind} was free! "I am {D}," {D.he} said. "You [saved me|are so kind]."',
         "The {D.kind} smiled. {D.His} name was {D}, and {D.he} thanked {A} again and again."],
        [None, "A few days later, {A} lost the way in the fog. It was {D} who found {A.him} and took {A.him} home.",
         "The next morning, there was a basket of {treat}s at {A}'s door. {D} had brought it.",
         "{D} showed {A} a secret place [where the sweetest berries grew|full of flowers]."],
    ],
    ending=["{A} learned that [a kind deed comes back|helping others makes you happy|even a small helper can do great things].",
            "{A} and {D} [became good friends|met every day after that|played together until sunset]."],
)  # fmt: skip

PLOTS["storm"] = plot(
    weather="sunny",
    links=[
        dict(dry="a big hollow tree", do="told each other stories"), dict(dry="a small cave", do="sang songs"),
        dict(dry="an old barn", do="counted the drops that fell from the roof"),
        dict(dry="a wooden bridge", do="guessed riddles"),
    ],
    beats=[
        ["{morning} {A} and {friend} wanted to have a picnic {place.at}. They packed {food} and {n} {treat}s.",
         '"Let us have a picnic!" said {A} one morning. So {A} and {friend} packed a basket with {food} and went {place.to}.'],
        ["They had just [sat down|put down the blanket] when [a dark cloud came over the hill|the sky turned gray].",
         "But soon [the wind began to blow|big dark clouds covered the sun]."],
        ["Plip, plop! The first drops fell. Then it [rained and rained|began to pour].",
         "There was a flash and a loud boom. It was a storm!", "Then the rain came down, harder and harder."],
        ['"[Our picnic is ruined|Everything will get wet]!" cried {A}. "[Quick|Hurry]," said {B}, "[over there|follow me]!"',
         "{A} was afraid of the thunder. {B} took {A.his} hand and they ran.", "They grabbed the basket and ran as fast as they could."],
        ["They hid in {t.dry}. It was dry inside, and they {t.do}.", "They found {t.dry} and sat close together. To pass the time, they {t.do}.",
         "In {t.dry}, it was warm and dry. They ate the {food} and {t.do}."],
        ["After a while, the rain stopped. The sun came out, and there was a rainbow [over the hill|in the sky]!",
         'At last the storm went away. "Look!" said {B}. A [great|beautiful] rainbow stood over the [hills|fields].'],
        ['"[I am glad that it rained|Without the rain there would be no rainbow]," said {A}.',
         "They jumped in every puddle on the way home.", "They counted the colors: red, orange, yellow, green, blue and purple."],
    ],
    ending=["{A} learned that a rainy day can be a good day too.", "After that, {A} was not afraid of storms anymore."],
)  # fmt: skip

PLOTS["sharing"] = plot(
    beats=[
        ["{morning} {C} made {food}. It smelled wonderful. {A} got the biggest piece.",
         "{morning} {A} found {n} ripe {treat}s in a basket. \"They are all mine!\" {A.he} said.",
         "{morning} {A} had {food} for lunch and took it {place.to}."],
        ["{A} sat down [under a tree|on a bench|on a stone] to eat. {pause}", "{A} looked for a quiet spot {place.at}."],
        ["Then {friend} came by. {B.He} looked [very hungry|tired and hungry]. {B.His} basket was empty.",
         "There was {friend}, who had nothing to eat. {B.He} had [dropped {B.his} lunch in the river|forgotten {B.his} lunch at home]."],
        ["{A} looked at the food. {A.He} wanted to eat it all. But then {A.he} looked at {B}.",
         '"[That smells good|That looks good]," said {B} [quietly|in a small voice]. {A} thought about it.'],
        ['"[Here|Come and sit with me]," said {A}. "[Half of it is for you|There is enough for two]."',
         "{A} [cut it in two|made two parts] and gave {B} the bigger one.", '"Would you like some?" asked {A}. "[Oh yes, please|Really? Thank you]!" said {B}.'],
        ["They ate together and talked [about the clouds|about everything]. It tasted even better that way.",
         "They ate every crumb. {A} was surprised: food tastes better with a friend."],
        [None, "The next day, {B} came with a big bag of nuts. \"Today I share with you,\" {B.he} said.",
         "A week later, {A} was hungry and {B} shared {B.his} {treat} with {A.him}."],
    ],
    ending=["{A} learned that sharing makes [a small meal big|everything better|two people happy].",
            "From then on, {A} always [took a little more, for a friend|shared {A.his} food]."],
)  # fmt: skip

PLOTS["noise"] = plot(
    links=[
        dict(noise="scratch, scratch", was="{D} the {D.kind}, who wanted to come in from the cold"),
        dict(noise="tap, tap, tap", was="only a branch that knocked on the window"),
        dict(noise="hoo, hoo", was="only an old owl on the roof, singing to the moon"),
        dict(noise="thump, thump", was="{friend}, who could not sleep either"),
        dict(noise="squeak, squeak", was="a tiny mouse with a piece of cheese"),
    ],
    beats=[
        ["One night, {A} was in bed. It was very dark.", "It was late, and {A} could not sleep. The moon [was behind a cloud|shone into the room].",
         "{A} was afraid of the dark. Every night {A.he} asked {C} to leave a light on."],
        ['Then {A.he} heard something. {noise}!', 'Suddenly there was a noise: {noise}!', "{noise}! What was that?"],
        ["{A} [pulled the blanket over {A.his} head|held {A.his} breath]. [Was it a monster|Who could it be]?",
         '"Who is there?" whispered {A}. Nobody answered.', "{A}'s heart beat fast."],
        ["{noise}! There it was again. {A} took {A.his} lantern. \"I am [brave|not afraid],\" {A.he} told {A.himself}.",
         '{A} thought: "If I do not look, I will never know." So {A.he} got up, very slowly.'],
        ["Step by step, {A.he} went to the [door|window] and opened it. It was {t.was}!",
         "{A} held up the light and looked. It was {t.was}!"],
        ["{A} laughed and laughed. [How silly it was to be afraid|There was no monster at all]!",
         '"So it was you!" said {A}, and {A.he} had to laugh.'],
        ["{A} went back to bed and slept until morning.", "In the morning, {A} told {C} the whole story. \"That was very brave,\" said {C}.",
         "{A} put out the light. The dark was not so dark anymore."],
    ],
    ending=["After that night, {A} was not afraid of the dark.", "{A} learned that [things look bigger in the dark|being brave means to look]."],
)  # fmt: skip

PLOTS["build"] = plot(
    links=[
        dict(thing="tree house", of="old boards", fail="the first board broke", fix="Put the thick boards at the bottom", end="they sat in it and looked far over the land"),
        dict(thing="boat", of="wood and string", fail="it sank at once", fix="Fill the holes with wax", end="it sailed across the water like a swan"),
        dict(thing="kite", of="paper and sticks", fail="it fell on its nose", fix="Give it a longer tail", end="it flew higher than the tallest tree"),
        dict(thing="bridge", of="stones", fail="the water washed it away", fix="Use the big flat stones", end="everybody could cross with dry feet"),
        dict(thing="snowman", of="snow", fail="the head rolled off", fix="Make the bottom bigger", end="he stood there with a carrot nose and a {colour} scarf"),
        dict(thing="sandcastle", of="sand", fail="a wave took it away", fix="Build it farther from the water", end="it had {n} towers and a little flag"),
        dict(thing="birdhouse", of="thin boards", fail="the roof fell off", fix="Use more nails", end="a family of birds moved in the next day"),
    ],
    beats=[
        ["{morning} {A} had an idea. \"I will build a {t.thing}!\" {A.he} said.", "{A} had always wanted a {t.thing}. {morning} {A.he} began to build one.",
         '"What are you doing?" asked {C}. "I am building a {t.thing}," said {A}.'],
        ["{A.He} worked all morning with {t.of}.", "{A.He} took {t.of} and started to work.", "All it needed was {t.of} and a lot of time."],
        ["But {t.fail}. \"Oh no!\" cried {A}.", "It looked good, but then {t.fail}. {A} was [sad|angry|very disappointed]."],
        ["{A} tried again, but it was no use. \"I [give up|will never do it],\" {A.he} said.", "{A} wanted to [give up|go home]."],
        ['Then {friend} came along. "[I have an idea|Let me see]," said {B}. "{t.fix}."',
         '{friend} looked at it for a long time. "{t.fix}," {B.he} said.', '{C.Name} smiled. "{t.fix}," {C.he} said, "and try once more."'],
        ["So {A} started again, [slowly and carefully|step by step].", "They worked together until [the sun went down|it was done]."],
        ["This time it worked: {t.end}!", "And look: {t.end}!", "When it was ready, {t.end}."],
        ['"We did it!" shouted {A}.', '"[Good work|You did not give up|That is a fine {t.thing}]," said {C}.', None],
    ],
    ending=["{A} learned that you must [try again when something goes wrong|not give up too soon].", "{A} was proud of {A.his} {t.thing}."],
)  # fmt: skip

PLOTS["learn"] = plot(
    links=[
        dict(skill="swim", first="swallowed a lot of water", tip="Kick with your legs and look ahead", end="swam all the way to the other side", at="at the lake"),
        dict(skill="whistle", first="only blew air", tip="Make your lips round and small", end="whistled a whole song", at="in the garden"),
        dict(skill="dance", first="fell over {A.his} own feet", tip="Listen to the music first", end="danced all evening", at="in the village square"),
        dict(skill="climb", first="slid back down", tip="Hold on with both hands", end="sat at the very top of the tree", at="in the forest"),
        dict(skill="juggle", first="dropped every ball", tip="Start with one ball", end="juggled {n} balls at once", at="in the garden"),
        dict(skill="read", first="mixed up all the letters", tip="Read one word at a time", end="read a whole book to {C}", at="under the old tree"),
        dict(skill="play the flute", first="made a terrible noise", tip="Blow softly", end="played a beautiful song for everybody", at="on the hill"),
    ],
    beats=[
        ["{A} wanted to learn to {t.skill}.", "More than anything, {A} wanted to {t.skill}.", "All {A.his} friends could {t.skill}, but {A} could not."],
        ["{morning} {A.he} tried it {t.at}, but {A.he} {t.first}.", "{morning} {A} tried for the first time. {A.He} {t.first}. [Everybody laughed|It was not a good start]."],
        ['"I [can not do it|will never learn it]," said {A}. {A.He} was sad.', "{A} [went home with wet eyes|sat down and did not want to try again]."],
        ['"Nobody can {t.skill} on the first day," said {C}. "{t.tip}."', '{friend} sat down next to {A.him}. "I could not do it at first," said {B}. "{t.tip}."'],
        ["So {A} tried again. And again. And again.", "The next day {A} tried again, and it went a little better.", "Every day {A} practiced {t.at}."],
        ["After {n} days, {A} {t.end}!", "And one day, all at once, it worked. {A} {t.end}!", "Then it was easy: {A} {t.end}."],
        ['"[Look at me|I can do it|I did it]!" {A} shouted.', "{friend2} clapped {B.his} hands.", "Everybody [cheered|clapped]."],
    ],
    ending=["{A} learned that practice makes you better.", "{A} never said \"I can not do it\" again. Instead {A.he} said: \"I can not do it yet.\""],
)  # fmt: skip

PLOTS["truth"] = plot(
    links=[
        dict(obj="vase", how="It fell from the table", fix="glued it together"), dict(obj="window", how="The ball flew too high", fix="put in new glass"),
        dict(obj="blue cup", how="It slipped from {A.his} hands", fix="made a flower pot of it"), dict(obj="clock", how="It fell off the wall", fix="repaired it"),
    ],
    beats=[
        ["{morning} {A} was playing with a ball in the house.", "{morning} {A} and {friend} were running around the house."],
        ["{how_q} Crash! {t.how}. The {t.obj} was broken.", "Bang! {t.how}, and {C}'s {t.obj} broke."],
        ["{A} was scared. \"[What will {C.he} say|What shall I do]?\" {A.he} thought.", "{A} looked at the pieces. {A.His} heart felt heavy."],
        ["{A} wanted to hide the pieces under the bed.", "\"I could say that the cat did it,\" thought {A}."],
        ["But that did not feel right. {A} went to {C} and said, \"I broke the {t.obj}. I am sorry.\"",
         "But {A} did not want to lie. \"It was me,\" {A.he} told {C}. \"I am so sorry about the {t.obj}.\""],
        ['{C.Name} looked at {A.him} for a moment. Then {C.he} smiled. "[Thank you for telling me the truth|That was brave]," {C.he} said.',
         '"I am sad about the {t.obj}," said {C}, "but I am glad that you told me."'],
        ["Together they {t.fix}.", "They {t.fix}, and it looked almost [like new|better than before]."],
    ],
    ending=["{A} learned that the truth makes a heavy heart light.", "After that, {A} played with the ball outside."],
)  # fmt: skip

PLOTS["quarrel"] = plot(
    beats=[
        ["{morning} {A} and {friend} were playing {place.at} with a {colour} {thing}.", "{A} and {friend} did everything together. {morning} they found a {colour} {thing} {place.at}."],
        ['"It is my turn!" said {A}. "No, it is mine!" said {B}.', '"I saw it first!" cried {B}. "No, I did!" shouted {A}.'],
        ["They pulled and pulled, and the {thing} [broke|fell into the mud].", "They pulled so hard that [both fell down|the {thing} flew into a bush]."],
        ["{B} went home without a word. {A} was angry.", '"I will never play with you again," said {A}, and they both walked away.'],
        ["But [at home|after an hour], {A} was bored. Playing alone was no fun. {pause}", "That night {A} could not sleep. {A.He} missed {A.his} friend."],
        ['"[A {thing} can be bought, but not a friend|Somebody has to say sorry first]," said {C}.', "{A} thought about all the good days with {B}."],
        ["The next morning, {A} [ran|went] to {B}'s house. {B} was already at the door. \"I am sorry,\" they both said at the same time, and they had to laugh.",
         'So {A} went to {B} and said, "I am sorry. You may have it." "No," said {B}, "[we can share it|let us play together]."'],
        ["They [mended|cleaned] the {thing} and took turns all day.", "They played until it was dark."],
    ],
    ending=["{A} learned that a friend is more important than a {thing}.", "They still quarreled sometimes, but never for long."],
)  # fmt: skip

PLOTS["way_home"] = plot(
    links=[
        dict(chase="a blue butterfly", sign="the smoke from {A.his} own chimney"), dict(chase="a rolling ball", sign="the bell of the village"),
        dict(chase="a trail of berries", sign="the old stone bridge"), dict(chase="a little white cloud", sign="the light in {A.his} window"),
    ],
    beats=[
        ["{morning} {A} followed {t.chase}, farther and farther into the woods.", "{morning} {A} ran after {t.chase} and did not look where {A.he} was going."],
        ["When {A.he} stopped, nothing looked the same. {A} was lost.", "Then {A.he} looked around. [Trees, trees and more trees|Every path looked the same]. \"Where am I?\" said {A}."],
        ["It got [dark|late|cold]. {A} sat down on a stone and cried a little.", "{A} called, but nobody answered. {pause}"],
        ['A {D.kind} came out of the bushes. "[Why are you so sad|Are you lost]?" {D.he} asked. "[I am lost|I can not find my way home]," said {A}.',
         'Then {A.he} saw a {D.kind}. "I am {D}," said the {D.kind}. "Who are you?" "I am {A}, and I am lost."'],
        ['"I know every path here," said the {D.kind}. "Follow me!"', '"[Follow the river|Walk toward the evening star]," said the {D.kind}. "I will come with you."'],
        ["They walked [over the hill|along the river|past a waterfall] and [through tall grass|across a little bridge].", "It was a long way, but they sang and were not afraid."],
        ["At last {A} saw {t.sign}. {A.He} was home!", "And then, far away, {A} could see {t.sign}."],
        ['{C.Name} ran out of the door. "There you are!" {C.he} cried and held {A.him} tight.', '"[I was so worried!|Where have you been?]" said {C}. The {D.kind} got a big bowl of {food_of}.'],
    ],
    ending=["After that, {A} always told {C} where {A.he} was going.", "{A} and the {D.kind} stayed friends."],
)  # fmt: skip

PLOTS["birthday"] = plot(
    thing=True,
    beats=[
        ["It was {A}'s birthday. {A.He} was {m} years old.", "{A} woke up early. Today was {A.his} birthday!", "{A} had waited for this day for weeks. Today {A.he} was {m} years old."],
        ["But [at breakfast|all morning] nobody said a word about it. {B} was not at home. {C.Name} was busy.", "But everybody seemed to have forgotten. {friend} only said hello and [hurried away|walked on]."],
        ["{A} was sad. {A.He} went {place.to} all alone. {pause}", '"Nobody remembers," thought {A}, and went {place.to}.'],
        ["When {A.he} came home, the house was dark and quiet. {A} opened the door.", "In the evening {A} walked slowly home."],
        ['"Surprise!" shouted {n} voices. All {A.his} friends were there!', '"[Happy birthday|Surprise], {A}!" everybody called. There were candles and [balloons|flowers] everywhere.'],
        ["{B} gave {A.him} a {colour} {thing} with a ribbon around it. {C.Name} had made {food}.", "There was {food} for everybody, and a present: a {colour} {thing}!"],
        ['"You did not forget me," said {A}. "[We would never forget you|How could we]!" said {B}.', "They [danced|sang|played games] until the candles burned out."],
    ],
    ending=["It was the best birthday ever.", "{A} kept the {thing} for many years."],
)  # fmt: skip

PLOTS["garden"] = plot(
    where="garden",
    weather="fine",
    links=[
        dict(seed="sunflower", grown="a sunflower, taller than {C}", use="gave the seeds to the birds in winter"),
        dict(seed="pumpkin", grown="a pumpkin, as big as a wagon", use="made pumpkin soup for the whole village"),
        dict(seed="apple", grown="a little apple tree", use="picked {n} sweet apples in autumn"),
        dict(seed="bean", grown="a beanstalk that reached the roof", use="cooked beans for everybody"),
        dict(seed="strawberry", grown="a row of strawberries", use="made jam with {C}"),
    ],
    beats=[
        ["{morning} {C} gave {A} a tiny seed. \"Put it in the ground and wait,\" {C.he} said.", "{morning} {A} found a {t.seed} seed. {A.He} dug a small hole in the garden and put it in."],
        ["{A} gave it water every day.", "Every morning {A} brought water, and every evening {A.he} looked. {pause}"],
        ["But nothing happened. One day, two days, three days. Nothing!", "A week went by. The ground was still [bare|brown and empty]."],
        ['"It does not like me," said {A}. "[Give it time|Wait a little longer]," said {C}. "[Good things grow slowly|It is sleeping]."',
         '{friend} laughed. "You only planted a stone," said {B}. But {A} [did not give up|kept on watering].'],
        ["Then, after a night of rain, there was a little green tip!", "One morning, two small leaves looked out of the earth."],
        ["It grew and grew. By the end of summer it was {t.grown}.", "Week by week it grew, until it was {t.grown}."],
        ["{A} {t.use}.", "{A} [was so proud|called everybody to see it]. In the end, {A.he} {t.use}."],
    ],
    ending=["{A} learned that good things take time.", "The next spring, {A} planted {n} more seeds."],
)  # fmt: skip

PLOTS["race"] = plot(
    beats=[
        ["{morning} there was a race {place.at}. {A} and {friend} wanted to win.", 'One day, {B} said to {A}: "I am faster than you!" "[We will see|Let us race, then]," said {A}.'],
        ["Everybody came to watch. \"Ready, steady, go!\" called {C}.", "They met at the big tree. One, two, three, and off they ran!"],
        ["{B} ran like the wind. {A} was soon far behind.", "At first {A} was in front. {B} was right behind {A.him}."],
        ["But half way, {B} [fell over a root|stepped into a hole] and [cried out|hurt {B.his} foot].", "Then {A} heard a cry. {B} had fallen and could not get up."],
        ["{A} could win now! The end of the race was so near. But {A.he} stopped.", "{A} looked at the finish line. Then {A.he} looked back at {B}."],
        ['"Come," said {A}, "[lean on me|I will help you]." Arm in arm they walked on.', "{A} helped {B} up, and they went on together, slowly."],
        ["They crossed the line at the same time. Everybody cheered!", "Nobody was first and nobody was last. They both got a {colour} {thing} as a prize."],
    ],
    ending=["{A} learned that there are more important things than winning.", '"You are the real winner," said {C}.'],
)  # fmt: skip

PLOTS["treasure"] = plot(
    links=[
        dict(found="an old map", how="in the attic"), dict(found="a strange drawing", how="inside a book"),
        dict(found="a bottle with a map", how="on the shore"), dict(found="a golden key", how="in {A.his} shoe"),
    ],
    beats=[
        ["{morning} {A} found {t.found} {t.how}.", '"What is this?" said {A} one morning. There was {t.found} {t.how}.'],
        ['{A} showed it to {friend}. "[It leads to a treasure|There must be a treasure]!" said {B}.', '"[A treasure|An adventure]!" cried {friend}. "We must go at once!"'],
        ["They went {place.to}, crossed [a bridge|a stream], and climbed over [a wall|rocks]. {pause}", "The way led {place.to}. They walked for {n} hours. {pause}"],
        ["By [the crooked tree|a round stone], they began to dig.", "There, behind [a waterfall|thick bushes], was a small door.", None],
        ['"[Here is something|I found it]!" shouted {B}. It was an old wooden box.', "{A}'s hands trembled. They had found a box!"],
        ["They opened it. Inside was no gold. There was only a {colour} {thing} and a letter.", "Inside lay {n} [shiny stones|old coins] and a letter."],
        ['The letter said: "The real treasure is the friend who came with you."', 'In the letter was written: "Whoever finds this: share it with a friend."'],
        ["{A} and {B} looked at each other and smiled.", '"That is true," said {A}, and {B} nodded.', "So they shared everything."],
    ],
    ending=["They hid the box again for [the next children|somebody else to find].", "{A} put the letter [above {A.his} bed|in a frame]."],
)  # fmt: skip

PLOTS["sick"] = plot(
    beats=[
        ["{morning} {friend} did not come to play. \"Where is {B}?\" asked {A}.", "{morning} {A} heard that {friend} was ill."],
        ['"{B} has a fever and must stay in bed," said {C}.', "{A} went to {B}'s house. {B} lay in bed with a red nose and a sad face."],
        ['"I will bring {B.him} something," said {A}. {A.He} cooked soup with {C}.', "{A} thought about what would help. {A.He} picked flowers {place.at} and packed {food}.",
         "{A} took {A.his} {colour} {thing}, the one that {A.he} loved most, and went to see {B}."],
        ["The way was long, and it {weather_bad}. But {A} did not turn back.", "{pause} {A} walked as fast as {A.he} could."],
        ['"[You came to see me|You came all this way]!" said {B}. {B.His} eyes were shining.', '"Knock, knock," said {A}. "Here is something to make you well again."'],
        ["{A} sat by the bed and read {n} stories. {B} laughed so much that {B.he} forgot to be ill.", "{B} ate everything, and {A} told {B.him} all the news."],
        ["{n2} days later {B} was well again.", "Soon {B} was up and could play outside."],
    ],
    ending=["{A} learned that a visit is the best medicine.", "And when {A} was ill in winter, {B} brought soup."],
)  # fmt: skip

PLOTS["thief"] = plot(
    beats=[
        ["{C.Name} had baked {n} {treat} cakes and put them on the window sill.", "{morning} {A} and {friend} had lunch {place.at}. They had {food} and {n} {treat}s."],
        ["But when {A} [looked again|came back], one was gone!", "They turned around for a moment, and then something was missing."],
        ['"[Who did that|Did you eat it]?" asked {A}. "Not me," said {B}.', "{A} counted again. There was no mistake. Somebody had taken it."],
        ["They [hid behind a bush|waited behind the door] and waited. {pause}", '"Let us [find the thief|follow the crumbs]," said {B}. There were crumbs on the ground.'],
        ["After a while, a {D.kind} came, [on tiptoe|very quietly]. {D.He} took a piece and wanted to run.", "The crumbs led to a {D.kind} with a full mouth."],
        ['"Stop!" cried {A}. The {D.kind} turned red. "I am sorry," {D.he} said. "[I was so hungry|My little ones have nothing to eat]."',
         '"It was you!" said {B}. The {D.kind} [looked at the ground|began to cry]. "It smelled so good," {D.he} said.'],
        ['"[You only have to ask|Next time, just ask]," said {A}, and gave {D.him} another piece.', "{A} was not angry anymore. \"Come and eat with us,\" {A.he} said."],
    ],
    ending=["The {D.kind} never took anything again without asking.", "{A} learned that a kind word is better than an angry one."],
)  # fmt: skip

PLOTS["winter"] = plot(
    weather="snowy",
    beats=[
        ["It was winter. {sky.line} It was very cold.", "In the night it had snowed. {A} [ran outside|looked out of the window]: everything was white!"],
        ["{A} put on {A.his} {colour} [hat|scarf|mittens] and went outside.", '"Come out, {B}!" called {A}. "[It snowed|There is snow]!"'],
        ["{friend} came too. They [threw snowballs|slid down the hill|made tracks in the snow] all morning.", "{A} and {friend} built a snowman with a carrot nose."],
        ["Then they saw {n} little birds on a branch. They looked cold and hungry.", "Under a tree sat a little {D.kind}, shaking with cold."],
        ['"[We must help|They find nothing to eat under the snow]," said {A}.', '"What can we do?" asked {B}. {A} had an idea.'],
        ["They ran home and brought seeds, nuts and [a warm blanket|an old basket].", "They made a small house of wood, with hay inside and food in front of it."],
        ["Soon there was [singing|a happy noise] in the cold air.", "All winter long, {A} brought food every day."],
        ["In spring, the birds sang the most beautiful song under {A}'s window.", None, "Then they went home and drank hot chocolate by the fire."],
    ],
    ending=["{A} learned that nobody should be alone in winter.", "{A} loved the snow, but {A.he} loved the warm fire even more."],
)  # fmt: skip

PLOTS["star"] = plot(
    links=[
        dict(wish="to touch a star", climb="the highest hill", got="a glowworm that shone like a star"),
        dict(wish="to see the sea", climb="the last hill", got="a {colour} shell that sounds like waves"),
        dict(wish="to see where the sun sleeps", climb="the long road to the west", got="a warm round stone, as red as the evening sun"),
        dict(wish="to catch the moon", climb="the tall tower", got="the moon in a bucket of water"),
    ],
    beats=[
        ["{A} had a big wish. {A.He} wanted {t.wish}.", "Every evening {A} sat at the window. {A.He} wanted {t.wish}."],
        ['"That is [impossible|too far]," said {friend}. But {A} did not listen.', '"Then you must [go and try|go a long way]," said {C}, and gave {A.him} {food} for the way.'],
        ["{morning} {A} set out. {pause}", "So {A} packed a bag and went, {place.to} and beyond."],
        ["On the way {A.he} met a {D.kind}. \"Where are you going?\" asked the {D.kind}. \"I want {t.wish},\" said {A}. \"[May I come too|I will go with you]?\"",
         "A {D.kind} named {D} walked along for a while and showed {A.him} the way."],
        ["They climbed {t.climb}. It was hard, and they had to rest {n} times.", "After {n} hours, {A} had climbed {t.climb}."],
        ["And there {A} found {t.got}.", "At the top, there was a surprise: {t.got}."],
        ["It was not what {A} had looked for. It was better.", '"It is beautiful," whispered {A}.', "{A} took it home and showed it to everybody."],
    ],
    ending=["{A} learned that you find wonderful things on the way.", "Whenever {A} was sad, {A.he} thought of that [night|journey]."],
)  # fmt: skip

PLOTS["new_friend"] = plot(
    beats=[
        ["A new family moved in next door. {A} was [curious|a little shy].", "{A} had no one to play with. {A.He} [was often alone|often talked to the trees]."],
        ["{morning} {A} saw somebody behind the fence. It was {B.intro}.", "{morning} {A} met {B.intro} {place.at}."],
        ['"Hello," said {A}. "What is your name?" "I am {B}," said {B.he}.', "At first neither of them said a word. {A} looked at {A.his} feet."],
        ['"Do you like [to climb trees|to swim|to look at clouds|stories|puddles]?" asked {A}. "[Yes, very much|I love it]!" said {B}.', '"I have a {colour} {thing}," said {B}. "[Do you want to see it|Shall we play with it]?"'],
        ["{A} showed {B} [the best places|{A.his} secret path|the biggest tree] {place.at}. {pause}", "They played [hide and seek|catch|pirates] {place.at} all afternoon."],
        ["{B} told {A.him} about [the far city|the mountains|the island] where {B.he} came from.", "They found out that they both loved {food}."],
        ['"[Will you come again tomorrow|Can we play tomorrow]?" asked {A}. "[Of course|Every day]!" said {B}.', "When it was time to go home, they did not want to part."],
    ],
    ending=["That is how {A} and {B} became friends.", "{A} learned that a friend can begin with one small hello."],
)  # fmt: skip

PLOTS["market"] = plot(
    where="village",
    links=[
        dict(buy="milk, eggs and flour", forgot="the eggs", make="pancakes"), dict(buy="bread, cheese and apples", forgot="the apples", make="a big lunch"),
        dict(buy="carrots, potatoes and salt", forgot="the salt", make="soup"), dict(buy="sugar, butter and plums", forgot="the plums", make="plum cake"),
    ],
    beats=[
        ['{morning} {C} said to {A}: "Please go to the market and buy {t.buy}."', "{morning} {A} was allowed to go to the market alone for the first time. {A.He} was to buy {t.buy}."],
        ['"{t.buy2}," {A} said to {A.himself} on the way. {pause}', "{A} took the basket and walked to the village. {sky.line}"],
        ["At the market there was so much to see: [a man with a drum|a woman with balloons|a dancing dog], {n} [white geese|little goats], and cakes of every kind.",
         "On the way {A.he} met {friend}, and they talked [for a long time|about the weather]."],
        ["{A} came home with a full basket. But {A.he} had forgotten {t.forgot}!", "At the gate, {A} looked into the basket. Something was missing. {A.He} had forgotten {t.forgot}!"],
        ["\"Oh dear,\" said {A}. {A.He} [turned around|ran back] as fast as {A.he} could.", '"I am sorry," said {A}. "I will go again." "We will go together," said {C}.'],
        ["Just then {friend} came up the road. {B.He} was carrying {t.forgot}! \"You left this on the wall,\" said {B}.", "Luckily the market was still open. {A} bought {t.forgot} and was back before dark."],
        ["Then they made {t.make}, and {A} got the first [bite|plate].", "That evening there was {t.make} for everybody."],
    ],
    ending=["The next time, {A} [made a list|tied a knot in {A.his} scarf].", "{A} learned to think first and look around later."],
)  # fmt: skip

PLOTS["song"] = plot(
    beats=[
        ["{A} loved to sing. {A.He} sang in the morning and in the evening.", "{A} had a very small voice. When {A.he} sang, nobody heard it."],
        ["But {A} was too shy to sing when others listened.", '"[You are too quiet|Sing louder]," said the others and laughed. So {A} only sang when {A.he} was alone.'],
        ["{morning} {A} sat {place.at} and sang to the [clouds|flowers|stones]. {pause}", "{morning} {A} went {place.to}, where nobody could hear {A.him}, and sang."],
        ["{friend} was behind a tree and heard it. \"[That is beautiful|Who is singing so well]?\" thought {B}.", "A {D.kind} stopped and listened. \"Please go on,\" said the {D.kind}."],
        ['"You must sing at the [summer|autumn|village] fair!" said {B}. "I am afraid," said {A}. "I will stand next to you," said {B}.', '{B} asked {A.him} to sing at {B.his} birthday. {A} [turned red|shook {A.his} head], but then {A.he} said yes.'],
        ["When the day came, {A}'s knees shook. {A.He} looked at {B}, closed {A.his} eyes and began.", "Everybody was there. {A} took a deep breath and sang, first softly, then louder and louder."],
        ["It was so quiet that you could hear the wind. Then everybody clapped.", '"[Again|One more song]!" they called. {A} sang {n} more songs.'],
    ],
    ending=["{A} was not shy anymore.", "{A} learned that a small voice can fill a big place."],
)  # fmt: skip


def tell(rng, about=None, plot_name=None):
    """One story as text, and what it was about (for questions afterwards). `about`: see world.fields_for."""
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
    fields["t"] = SimpleNamespace(**link, buy2=link.get("buy", "").capitalize())
    fields.update(_small_fields(rng, fields, link))

    sentences = [expand(rng, rng.choice(OPENINGS), fields)]
    friend_came = False
    pauses = [p for p in PAUSES if fields["sky"].season != "winter" or not ("butterfly" in p or "flower" in p)]
    for ways in chosen.beats:
        way = rng.choice(ways)
        if way is None:
            continue
        fields["pause"] = expand(rng, rng.choice(pauses), fields) if rng.random() < 0.6 else ""
        friend = fields["B"].name if friend_came else fields["friend"]
        if "{friend" not in way and "{B.intro}" not in way:
            way = way.replace("{B}", "{friend}", 1)  # the first mention says who it is
        sentence = expand(rng, way, {**fields, "friend": friend, "friend2": friend[0].upper() + friend[1:]})
        friend_came = friend_came or fields["B"].name in sentence
        sentences.append(sentence)
    ends = [rng.choice(chosen.ending)] if rng.random() < 0.7 else []
    if not ends or rng.random() < 0.6:
        ends.append(rng.choice([e for e in ENDINGS if friend_came or "{B}" not in e]))
    sentences += [expand(rng, e, fields) for e in ends]
    return tidy(_paragraphs(rng, sentences)), SimpleNamespace(plot=name, friend_came=friend_came, **fields)


def _small_fields(rng, fields, link):
    noise = link.get("noise", "")
    return {
        "morning": expand(rng, rng.choice(MORNINGS), fields), "when": rng.choice(["one day", "one morning", "this morning", "one evening"]),
        "noise": noise.capitalize(), "how_q": rng.choice(["They were having fun.", "It was great fun.", ""]),
        "t2": rng.choice(["did not look where I was going", "was too curious", "ran too fast", "fell down"]),
        "food_of": rng.choice(["soup", "milk", "berries", "nuts"]), "n2": rng.choice(["Two", "Three", "Four"]),
        "weather_bad": rng.choice(["was raining", "began to rain", "was cold", "was getting dark"]),
    }  # fmt: skip


def _paragraphs(rng, sentences):
    """Most stories are one block; some break into two or three paragraphs."""
    if rng.random() < 0.6:
        return " ".join(sentences)
    text = sentences[0]
    for i, sentence in enumerate(sentences[1:], 1):
        text += ("\n\n" if i in (2, len(sentences) - 2) else " ") + sentence
    return text


def subjects(rng):
    """Something that a story can be told about: how a person names it, and `about` for tell()."""
    from world import CHILDREN, HERO_ANIMALS, WEATHERS

    kind = rng.choice(["animal", "animal", "animal", "hero", "hero", "place", "thing", "plot", "weather"])
    if kind == "animal":
        noun = rng.choice(HERO_ANIMALS).noun
        return "a " + noun, {"animal": noun}, None
    if kind == "hero":
        name, pronoun = rng.choice(CHILDREN)
        return rng.choice([name, f"a {'girl' if pronoun == 'she' else 'boy'} named {name}"]), {"hero": name}, None
    if kind == "place":
        place = rng.choice([p for p in PLACES if p not in ("garden", "village")])
        return "the " + place, {"place": place}, rng.choice(["lost", "rescue", "sharing", "quarrel", "new_friend", "treasure"])
    if kind == "thing":
        thing = rng.choice(THINGS)
        return "a " + thing, {"thing": thing}, None
    if kind == "weather":
        return rng.choice([("snow", {"weather": "snowy"}, "winter"), ("winter", {"weather": "snowy"}, "winter"), ("rain", {}, "storm"), ("a storm", {}, "storm"), ("a rainbow", {}, "storm")])
    return rng.choice([
        ("a treasure", {}, "treasure"), ("a birthday", {}, "birthday"), ("a race", {}, "race"), ("friendship", {}, "new_friend"),
        ("friends", {}, "quarrel"), ("sharing", {}, "sharing"), ("a garden", {}, "garden"), ("a lost toy", {}, "lost"), ("the night", {}, "noise"),
        ("a song", {}, "song"), ("the market", {}, "market"), ("being brave", {}, "noise"), ("somebody who gets lost", {}, "way_home"),
        ("telling the truth", {}, "truth"), ("the moon", {}, "star"), ("a star", {}, "star"), ("a seed", {}, "garden"), ("cake", {}, "sharing"),
    ])  # fmt: skip
