# SPDX-License-Identifier: Apache-2.0
"""Everyday English from templates with random slots, and common short phrases."""

import random
import re

from polyvox.bench.wer import spell_out

SLOTS = {
    "name": "Anna Ben Clara David Emma Frank Grace Henry Iris Jack Karen Leo Maria Noah Olivia Peter Rosa Sam Tara "
    "Victor Wendy Alice Bruno Chloe Daniel Ethan Fiona George Hannah Julia Tom Mary John Sarah Michael Linda James "
    "Laura Robert Susan Paul Nancy Mark Lisa Kevin Amy Eric Rachel Steve Diana Oscar Nina Martin Helen Simon Kate",
    "place": "London Paris Tokyo Berlin Chicago Boston Madrid Sydney Toronto Dublin Oslo Rome Vienna Seattle Austin "
    "Denver Geneva Lisbon Prague Athens Texas Canada France Germany Japan India China Mexico Spain Italy Brazil Egypt "
    "California Florida Scotland Norway Amsterdam Brussels Moscow Istanbul Cairo Bangkok Singapore Mumbai",
    "month": "January February March April May June July August September October November December",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "thing": "car house book phone table chair door window garden ticket passport bag suitcase coat shirt hat dress "
    "jacket glass cup plate knife fork spoon bottle box letter email message photo picture movie song game computer "
    "laptop keyboard screen printer battery camera radio television lamp key lock clock watch calendar newspaper "
    "magazine pencil pen bed sofa pillow blanket mirror towel bicycle guitar piano umbrella wallet charger recipe "
    "package invoice contract report document password account project meeting appointment reservation order blanket "
    "candle basket bucket ladder hammer carpet curtain drawer fridge kettle oven toaster vacuum scarf sweater boots",
    "food": "bread cheese butter rice pasta salad soup chicken fish beef pizza coffee tea milk water juice wine beer "
    "cake chocolate sugar salt pepper honey yogurt sandwich breakfast lunch dinner fruit sausage bacon garlic onion "
    "lettuce spinach mushrooms potatoes tomatoes carrots apples oranges bananas grapes lemons strawberries cookies",
    "where": "kitchen garden school office store bank park street bridge river lake beach mountain forest restaurant "
    "hotel airport station museum library church market farm factory hospital pharmacy bathroom bedroom cellar garage "
    "theater stadium harbor village city suburbs countryside bakery gym classroom basement balcony hallway attic",
    "who": "doctor nurse teacher student lawyer driver manager engineer artist writer singer friend neighbor brother "
    "sister mother father son daughter uncle aunt cousin grandmother grandfather boss colleague customer waiter "
    "plumber farmer pilot dentist mechanic baker judge soldier husband wife guest stranger roommate landlord",
    "animal": "dog cat horse bird fish rabbit cow sheep mouse duck chicken goat squirrel fox owl bear wolf spider bee",
    "adj": "big small old new young good bad nice great beautiful happy sad angry tired hungry hot cold warm cool fast "
    "slow easy hard difficult simple early late long short high low tall wide narrow deep heavy light dark bright "
    "clean dirty dry wet full empty cheap expensive busy quiet loud strong weak safe dangerous important interesting "
    "boring funny strange different wrong ready healthy sick rich poor famous popular modern perfect terrible "
    "wonderful delicious fresh sweet bitter soft smooth rough sharp green blue red yellow white black brown gray "
    "purple pink little favorite extra comfortable friendly lonely polite rude honest lazy nervous calm gentle",
    "did": "bought sold found lost opened closed broke fixed cleaned painted moved carried watched saw forgot wanted "
    "remembered loved liked needed used made built ordered brought took sent received changed checked left dropped "
    "picked washed borrowed returned showed shared kept hid chose tested played finished started threw caught pulled "
    "pushed covered copied designed explained followed guarded handled ignored invented joined locked measured noticed",
    "do": "buy sell find lose open close break fix clean paint move carry watch see forget remember love like need use "
    "make build order bring take send receive change check leave drop pick wash borrow return show share keep hide "
    "choose test play finish start throw catch pull push cover copy design explain follow handle ignore join lock",
    "doing": "reading writing cooking eating sleeping working walking running swimming talking listening waiting "
    "driving dancing singing painting cleaning shopping studying traveling playing laughing thinking learning teaching "
    "building climbing fishing gardening knitting skiing camping baking jogging complaining whispering dreaming",
    "adv": "quickly slowly carefully quietly loudly today yesterday tomorrow tonight again later soon now already "
    "always never often sometimes usually really probably finally suddenly together alone outside inside upstairs",
    "weather": "rain snow wind sunshine fog thunder clouds ice hail frost",
    "feel": "happy sad tired hungry thirsty bored excited nervous proud sick better worse fine great lonely surprised "
    "worried confused relieved embarrassed disappointed grateful jealous curious hopeful",
    "color": "red blue green yellow white black brown gray purple pink orange silver golden",
    "body": "head arm leg hand foot back knee shoulder stomach throat tooth finger ear eye neck ankle elbow wrist",
    "person": "Einstein Newton Darwin Shakespeare Mozart Beethoven Picasso Napoleon Cleopatra Lincoln Washington Obama "
    "Churchill Gandhi Mandela Galileo Columbus Leonardo Rembrandt Tolstoy Dickens Hemingway Tesla Edison Curie Hawking "
    "Aristotle Plato Socrates Caesar Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Anderson "
    "Taylor Thompson Nguyen Robinson Kowalski Schmidt Ivanov Tanaka Singh Patel O'Brien McDonald Fitzgerald Kennedy",
    "acronym": "NASA FBI CIA USA UK UN EU NATO UNESCO BBC CNN CEO CFO HR IT TV DVD PDF GPS USB CPU GPU API URL HTML AI "
    "DNA ATM PIN ID FAQ VIP NBA NFL FIFA MIT UCLA IBM NHS GDP VAT SUV RSVP ASAP DIY OK PhD HIV MRI",
    "unit": "minutes hours days weeks months years dollars miles people pounds degrees meters pages seconds kilometers",
    "list": "things",
    "time": "numbers",
    "amount": "numbers",
    "digits": "numbers",
    "count": "numbers",
    "small": "numbers",
}  # fmt: skip

TEMPLATES = """
Hello {name}, how are you today?
Good morning, {name}.
Good evening, this is {name} speaking.
My name is {name} and I come from {place}.
I live in {place} with my {who} and two {animal}s.
{name} and {name} went to {place} last {day}.
Have you ever been to {place}?
I would love to visit {place} in {month}.
The train to {place} leaves at {clock}.
My flight to {place} was late because of the {weather}.
It is {clock} in {place}.
The temperature in {place} is {small} degrees.
There will be {weather} in {place} on {day}.
The weather is {adj} and {adj} {adv}.
We expect {weather} in the morning and {weather} in the afternoon.
Your {thing} will arrive on {day}, {month} {ordinal}.
Your order number is {digits}.
The code is {digits}.
Please call {digits} for more information.
The total comes to {count} dollars and {small} cents.
That will be {price}, please.
The {thing} costs {price}.
I paid {count} dollars for this {thing}.
We have been waiting for {small} {unit}.
It takes about {small} {unit} to get to the {where}.
She is {small} years old.
In {year}, {name} {did} the {adj} {thing}.
He was born in {year} in {place}.
The meeting is on {day} at {clock}.
Can we move the meeting to {clock} on {day}?
Chapter {small}. The {adj} {who}.
There are {count} {thing}s in the {where}.
I need {small} {thing}s and {small} {thing}s.
Room {count} is on the {ordinal} floor.
The answer is {small} percent.
About {small} percent of the {food} is gone.
Can you tell me where the {where} is?
Where did you put the {thing}?
Who {did} my {thing}?
Why is the {where} so {adj}?
When will the {who} be back?
What is the name of your {who}?
How much is the {adj} {thing}?
How many {thing}s do you have?
Which {thing} do you want, the {color} one or the {color} one?
Is this your {thing}?
Are you {doing} or {doing}?
Do you like {food} with {food}?
Do you know how to {do} a {thing}?
Did you {do} the {thing} yesterday?
Could you {do} the {thing}, please?
Would you like some {food} or some {food}?
Should we {do} the {thing} before {day}?
Can I have the {food}, please?
I would like {food} and {food}, please.
I am going to the {where} to {do} some {food}.
We had {food} and {food} for {meal}.
The {food} at that restaurant is {adj}.
She does not like {food}, but she loves {food}.
Please {do} the {thing} and {do} the {thing}.
Please do not {do} the {thing} in the {where}.
Do not forget to {do} your {thing}.
I forgot to {do} the {thing} again.
I will {do} it {adv}.
Let us {do} the {thing} together.
You should {do} the {thing} before it is too late.
I think the {who} {did} the {thing}.
I am sure that {name} will {do} it.
I am sorry, I {did} your {thing}.
Thank you for the {adj} {thing}, {name}.
The {adj} {thing} is on the {thing}.
The {thing} is under the {thing} in the {where}.
There is a {adj} {animal} in the {where}.
The {animal} is {doing} behind the {where}.
A {adj} {animal} ran across the {where}.
My {who} has a {color} {thing} and a {color} {thing}.
My {body} hurts when I am {doing}.
I have a pain in my {body}.
The {who} looked at my {body} and smiled.
{name} feels {feel} because the {thing} is {adj}.
I feel {feel} today.
She was {feel}, and he was {feel}.
He said that he was {feel} about the {thing}.
I was {doing} when the {who} came into the {where}.
They are {doing} in the {where}.
We spent the whole {day} {doing} and {doing}.
My {who} enjoys {doing} in {place}.
{name} has been {doing} since {clock}.
If it rains on {day}, we will stay in the {where}.
If you see {name}, tell him that I {did} the {thing}.
When I was a child, I {did} my {thing} every {day}.
Before we leave, please {do} the {thing}.
After {doing}, they went to the {where} for some {food}.
The {who} {did} the {thing}, and the {who} {did} the {thing}.
This {thing} is {adj}, but that {thing} is {adj}.
It was a {adj} day, and everybody was {feel}.
The {adj} {who} and the {adj} {who} met in the {where}.
Nobody {did} the {adj} {thing}.
Somebody {did} my {color} {thing}.
There is nothing {adj} in the {where}.
I have never seen such a {adj} {thing}.
That is the most {adj} {thing} in {place}.
Turn left at the {where}, then go straight to the {where}.
The {where} is next to the {where}.
The {where} is closed on {day}.
Open the {thing} and look inside.
Close the {thing}, it is {adj} in here.
Turn on the {thing} in the {where}.
Set a timer for {small} minutes.
Remind me to {do} the {thing} at {clock}.
Play some music in the {where}.
Send {name} a message about the {thing}.
Add {food} and {food} to the shopping list.
Your {thing} has been {did} by {name}.
We are sorry, the {thing} is not ready.
Welcome to {place}. The local time is {clock}.
Thank you for waiting, {name}. Your {thing} is ready.
Excuse me, is this the way to the {where}?
Well, I guess the {thing} was {adj}.
Okay, let me {do} the {thing}.
Yes, I {did} it on {day}.
No, I never {did} the {thing}.
Maybe the {who} will {do} it {adv}.
Of course, the {who} is {adj}.
The {thing}, the {thing}, and the {thing} are in the {where}.
{Thing}, {food}, {animal}, and {where}.
{Adj}, {adj}, and {adj}.
He {did} {adv}.
She {did} it {adv}.
They {did} the {thing} {adv}.
It is {adj}.
Look at the {animal}!
What a {adj} {thing}!
Where is {name}?
Who is your {who}?
I know.
The {where} opens at {time} and closes at {time}.
Our flight to {place} leaves at {time} on {day}.
The call is at {time}, not at {time}.
Please be at the {where} before {time}.
Is {time} on {day} too early for you?
It was {time} when the {who} came home.
{person} was born in {year}.
Did {person} really meet {person} in {place}?
Doctor {person} and Professor {person} work for {acronym}.
Mr. {person} will see you in the {where} at {time}.
Have you read the letter from {person} to {person}?
{name} {person} lives in {place}.
My name is {name} {person}.
The {acronym} opened an office in {place} in {year}.
She works for the {acronym} in {place}.
Does the {acronym} know about the {thing}?
Send the {acronym} to {name} {person}.
First {acronym}, then {acronym}, and finally {acronym}.
You need three things: {list}.
We have to buy the following: {list}.
There is one problem: the {thing} is {adj}.
Remember this: never {do} the {thing} in the {where}.
Her answer was short: {feel}.
On the menu: {food}, {food}, and {food}.
I asked {name}, {name}, {person}, and {name}.
One, {thing}. Two, {thing}. Three, {thing}.
{Adj}.
{Feel}.
{Thing}.
{Adv}.
{day}.
{name}?
{small}.
{time}.
{acronym}.
Yes, {adv}.
No, on {day}.
{Adj} or {adj}?
Do you mean {person}?
Is it {adj} or {adj}?
Will {name} be there at {time}?
It costs {amount}.
The bill was {amount}, so we paid {amount} each.
On {month} {ordinal}, {year}, the {who} {did} the {thing}.
The speed limit is {small} miles per hour.
It is {small} degrees, {small} percent humidity, and the wind is {small} miles per hour.
Take the {ordinal} door on the left, room {small}.
""".strip().splitlines()

PHRASES = (
    """
Yes.|No.|Maybe.|Okay.|Sure.|Thanks.|Thank you.|Thank you very much.|Please.|Sorry.|I am sorry.|Excuse me.|Hello.|Hi.
Hello, world!|Hi there.|Goodbye.|Bye.|See you later.|See you tomorrow.|Good morning.|Good afternoon.|Good evening.
Good night.|Welcome.|You are welcome.|Of course.|Of course not.|All right.|Really?|Why?|What?|Who?|Where?|When?|How?
Why not?|What is that?|Who is it?|Where are you?|How are you?|I am fine, thanks.|I do not know.|I do not think so.
I think so.|I hope so.|I see.|I understand.|That is right.|That is wrong.|That sounds great!|Great!|Good.|Very good.
Wonderful!|Perfect.|Excellent.|Exactly.|Never mind.|No problem.|Not at all.|Not yet.|Not now.|One moment, please.
Just a second.|Wait a minute.|Come in.|Come here.|Go away.|Sit down, please.|Stand up.|Stop!|Help!|Look!|Listen.
Be careful!|Hurry up!|Slow down.|Let us go.|Let me see.|Let me check that for you.|Here you are.|There you go.
Here we are.|Congratulations!|Happy birthday!|Merry Christmas!|Good luck!|Have a nice day.|Take care.|Cheers!
What time is it?|How much is it?|How old are you?|What do you mean?|What do you think?|What happened?|Who said that?
Could you say that again?|Could you repeat that, please?|Can you help me?|May I come in?|Is anybody there?
It does not matter.|It is up to you.|It is a pleasure to meet you.|Nice to meet you.|Pleased to meet you.
I love you.|I miss you.|I agree.|I disagree.|I am hungry.|I am tired.|I am lost.|I am here.|I am ready.|I am late.
I'm sorry.|I don't know.|I can't hear you.|It's okay.|That's fine.|Don't worry.|Let's go.|You're right.|We're here.
They're gone.|He's busy.|She's asleep.|I'll be back.|I've got it.|It isn't true.|We didn't know.|You won't believe it.
I'd like some water.|What's your name?|Where's my phone?|There's no time.|Who's calling?|How's the weather?
One.|Two.|Three.|Four.|Five.|Six.|Seven.|Eight.|Nine.|Ten.|Zero.|One, two, three.|Eleven.|Twelve.|A hundred.
Is there anything else I can help you with?|I am sorry, I did not understand that.|Your call is important to us.
Please hold the line.|Please leave a message after the tone.|The number you have dialed is not available.
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

ORDINALS = (  # noqa: SIM905
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
).split()


class Everyday:
    """A seeded generator of sentences; two of three numbers are spelled out."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = {slot: words.split() for slot, words in SLOTS.items()}

    def sentence(self) -> str:
        template = self._random.choice(TEMPLATES)
        text = re.sub(r"\{(\w+)\}", lambda slot: self.fill(slot[1]), template)
        text = text.replace(".m..", ".m.")
        return text[0].upper() + text[1:]

    def paragraph(self) -> str:
        """Two to four sentences."""
        return " ".join(self.sentence() for _ in range(self._random.randrange(2, 5)))

    def phrase(self) -> str:
        return self._random.choice(PHRASES)

    def fill(self, slot: str) -> str:
        """A random value for a slot."""
        pick = self._random
        if slot == "meal":
            return pick.choice(["breakfast", "lunch", "dinner"])
        if slot == "ordinal":
            return pick.choice(ORDINALS)
        if slot == "clock":
            hour = pick.randrange(1, 13)
            if pick.random() < 0.3:
                return f"{hour}:{pick.randrange(10, 60)}"
            return f"{spell_out(hour)} {pick.choice(['thirty', 'fifteen', 'forty five', 'ten', 'twenty', 'o clock'])}"
        if slot == "time":
            minutes = pick.choice(["", "", ":15", ":30", ":45", f":{pick.randrange(10, 60)}"])
            return f"{pick.randrange(1, 13)}{minutes} {pick.choice(['a.m.', 'p.m.'])}"
        if slot == "amount":
            return f"${pick.randrange(1, 400)}" + (f".{pick.randrange(10, 100)}" if pick.random() < 0.5 else "")
        if slot == "list":
            kind = pick.choice(["thing", "food", "animal", "name"])
            items = pick.sample(self._words[kind], pick.randrange(3, 6))
            return f"{', '.join(items[:-1])} and {items[-1]}"
        if slot == "year":
            year = pick.randrange(1100, 2000)
            return str(year) if pick.random() < 0.4 else f"{spell_out(year // 100)} {spell_out(max(year % 100, 10))}"
        if slot == "price":
            return f"{spell_out(pick.randrange(1, 90))} dollars"
        if slot == "digits":
            digits = [str(pick.randrange(10)) for _ in range(pick.randrange(3, 7))]
            return " ".join(digits if pick.random() < 0.3 else [spell_out(int(digit)) for digit in digits])
        if slot in ("count", "small"):
            number = pick.randrange(2, 1000 if slot == "count" else 100)
            return str(number) if pick.random() < 0.33 else spell_out(number)
        word = pick.choice(self._words[slot.lower()])
        return word.capitalize() if slot[0].isupper() else word
