# SPDX-License-Identifier: Apache-2.0
"""Words with several pronunciations: which one is chosen in which context."""

import pytest

from polyvox.text.phonemes import phonemize

# A sentence with the heteronym in brackets, and its phonemes.
CASES = """
I have [read] it. | ɹˈɛd
I will [read] it. | ɹˈid
She [read] the letter twice. | ɹˈɛd
Did you [read] this? | ɹˈid
I want to [read] a book. | ɹˈid
It was widely [read]. | ɹˈɛd
They [live] in Rome. | lˈɪv
We are [live] now. | lˈIv
It is a [live] stream. | lˈIv
He [lives] in Paris. | lˈɪvz
It saved many [lives]. | lˈIvz
She will [record] the song. | ɹəkˈɔɹd
He broke the [record]. | ɹˈɛkəɹd
[Record] the meeting. | ɹəkˈɔɹd
Police [records] are public. | ɹˈɛkəɹdz
They [lead] the team. | lˈid
The [lead] pipe broke. | lˈɛd
It is made of [lead]. | lˈɛd
The [wind] is strong. | wˈɪnd
Please [wind] the clock. | wˈInd
[Close] the window. | klˈOz
Stay [close] to me. | klˈOs
We [close] at nine. | klˈOz
It was a [close] call. | klˈOs
How do I [use] it? | jˈuz
What is the [use]? | jˈus
It has many [uses]. | jˈusᵻz
He [uses] a hammer. | jˈuzᵻz
I [used] to swim. | jˈust
It is [used] to cut bread. | jˈuzd
A tool [used] to cut bread. | jˈuzd
The [present] is here. | pɹˈɛzᵊnt
Let me [present] the plan. | pɹizˈɛnt
The [object] fell. | ˈɑbʤəkt
They [object] to it. | əbʤˈɛkt
The [subject] is closed. | sˈʌbʤɛkt
I would not [subject] you to it. | səbʤˈɛkt
The [project] failed. | pɹˈɑʤˌɛkt
We [project] a loss. | pɹəʤˈɛkt
We [produce] cheese. | pɹədˈus
Fresh [produce] of the farm. | pɹˈOdˌus
They made [progress]. | pɹˈɑɡɹəs
You will [progress] quickly. | pɹəɡɹˈɛs
You need a [permit]. | pˈɜɹmɪt
They will not [permit] it. | pəɹmˈɪt
The [contract] ended. | kˈɑntɹˌækt
Muscles can [contract]. | kəntɹˈækt
In [contrast], it is new. | kˈɑntɹˌæst
The colors should [contrast]. | kəntɹˈæst
He is a [convict]. | kˈɑnvˌɪkt
They could not [convict] him. | kənvˈɪkt
The [desert] is dry. | dˈɛzəɹt
He would never [desert] us. | dəzˈɜɹt
The [increase] is small. | ˈɪnkɹˌis
Prices will [increase]. | ɪnkɹˈis
The [insult] hurt. | ˈɪnsˌʌlt
Do not [insult] me. | ɪnsˈʌlt
A [rebel] leader spoke. | ɹˈɛbᵊl
They will [rebel]. | ɹəbˈɛl
I [refuse] to go. | ɹəfjˈuz
Put out the [refuse]. | ɹˈɛfjˌus
The [suspect] ran. | sˈʌspˌɛkt
I [suspect] him. | səspˈɛkt
Take a [separate] room. | sˈɛpəɹət
We [separate] the parts. | sˈɛpəɹˌAt
They are [separate]. | sˈɛpəɹət
An [estimate] of cost. | ˈɛstəmət
We [estimate] the cost. | ˈɛstəmˌAt
She is a [graduate]. | ɡɹˈæʤəwət
You will [graduate] soon. | ɡɹˈæʤʊˌAt
An [elaborate] plan works. | əlˈæbəɹət
Please [elaborate]. | əlˈæbəɹˌAt
A [deliberate] choice was made. | dəlˈɪbəɹət
Juries [deliberate] for days. | dəlˈɪbəɹˌAt
A [minute] later it rained. | mˈɪnət
Every [minute] counts. | mˈɪnət
She told it in [minute] detail. | mInˈut
The [content] is new. | kˈɑntɛnt
She was [content]. | kəntˈɛnt
He will [tear] the paper. | tˈɛɹ
A [tear] ran down. | tˈɪɹ
The [wound] healed. | wˈund
She [wound] up in jail. | wˈWnd
He took a [bow]. | bˈW
Tie a [bow]. | bˈO
He plays [bass] guitar. | bˈAs
They caught [bass]. | bˈæs
Send me your [resume]. | ɹˈɛzəmˌA
Let us [resume] work. | ɹəzˈum
No [excuse] is needed. | ɪkskjˈus
[Excuse] me. | ɪkskjˈuz
Drug [abuse] of course. | əbjˈus
Do not [abuse] it. | əbjˈuz
We [house] the poor. | hˈWz
The [house] burned. | hˈWs
A [perfect] day came. | pˈɜɹfəkt
I will [perfect] it. | pəɹfˈɛkt
The [conflict] grew. | kˈɑnflˌɪkt
These accounts [conflict]. | kənflˈɪkt
The rules may [conflict]. | kənflˈɪkt
Her [conduct] was good. | kˈɑndˌʌkt
They will [conduct] a test. | kəndˈʌkt
The [import] of oil fell. | ˈɪmpˌɔɹt
We [import] oil. | ɪmpˈɔɹt
[Import] the file. | ɪmpˈɔɹt
An [upset] child cried. | ˌʌpsˈɛt
Please [duplicate] it. | dˈupləkˌAt
It is a [duplicate]. | dˈupləkət
That [affects] me. | əfˈɛkts
A [moderate] wind blew. | mˈɑdəɹət
She will [moderate] it. | mˈɑdəɹˌAt
They [advocate] for peace. | ˈædvəkˌAt
She is an [advocate]. | ˈædvəkət
An [alternate] route exists. | ˈɔltəɹnət
We [alternate] days. | ˈɔltəɹnˌAt
The [survey] ended. | sˈɜɹvˌA
They [survey] the land. | səɹvˈA
Her letter [upsets] him. | ˌʌpsˈɛts
His [learned] friend spoke. | lˈɜɹnɪd
I [learned] it. | lˈɜɹnd
Wait until the lights [close]. | klˈOz
She is a woman who [lives] across the street. | lˈɪvz
Try recipes that [use] up the pumpkin. | jˈuz
He could not even [read] it. | ɹˈid
My wife [objects] to it. | əbʤˈɛkts
The letter [purports] to help. | pəɹpˈɔɹts
They built [elaborate] forms. | əlˈæbəɹət
You should freely [insult] him. | ɪnsˈʌlt
[Convert] into a sulfate. | kənvˈɜɹt
Others just [refuse]. | ɹəfjˈuz
[Increases] in price hurt. | ˈɪnkɹˌisᵻz
He looks at the [contents]. | kˈɑntɛnts
It is an office that [houses] two clerks. | hˈWzᵻz
Everyone [deserts] him. | dəzˈɜɹts
"""
ROWS = [tuple(row.split(" | ")) for row in CASES.strip().splitlines()]


@pytest.mark.parametrize(("text", "phonemes"), ROWS)
def test_a_heteronym_is_pronounced_by_its_context(text: str, phonemes: str) -> None:
    words = text.split()
    position = next(index for index, word in enumerate(words) if "[" in word)
    spoken = phonemize(text.replace("[", "").replace("]", "")).split()
    assert len(spoken) == len(words)
    assert spoken[position].strip(".,?") == phonemes


def test_at_least_30_heteronyms_are_tested() -> None:
    words = {text[text.index("[") + 1 : text.index("]")].lower() for text, _ in ROWS}
    assert len(words) >= 30
