# SPDX-License-Identifier: Apache-2.0
"""Entries that the lexicon lacks or has wrong, weak forms of function words, and abbreviations read as letters."""

# In the format of the lexicon: the default pronunciation, then `FORM=phonemes`.
ENTRIES = {
    "lead": "lˈid NOUN=lˈɛd",
    "resume": "ɹəzˈum NOUN=ɹˈɛzəmˌA",
    "resumes": "ɹəzˈumz NOUN=ɹˈɛzəmˌAz",
    "résumé": "ɹˈɛzəmˌA",
    "résumés": "ɹˈɛzəmˌAz",
    "affect": "əfˈɛkt",
    "affects": "əfˈɛkts",
    "Anna": "ˈænə",
    "Karen": "kˈɛɹən",
    "cursed": "kˈɜɹst",
    "perfume": "pˈɜɹfjˌum",
    "vs": "vˈɜɹsəs",
    "st": "sˈAnt",
    "Prof": "pɹəfˈɛsəɹ",
    "Jr": "ʤˈunjəɹ",
    "Sr": "sˈinjəɹ",
    "Ms": "mˈɪz",
    "brr": "bˈɜɹ",
    "WWI": "wˌɜɹldwˌɔɹwˈʌn",
    "WWII": "wˌɜɹldwˌɔɹtˈu",
    "hmm": "hˈəm",
    "hm": "hˈəm",
    "mm": "ˈəm",
    "shh": "ʃˈʌʃ",
    "psst": "pˈɪst",
    "Bezos": "bˈAzOs",
    "Camus": "kæmˈu",
    "Chopin": "ʃˈOpˌæn",
    "CUDA": "kˈudə",
    "Djokovic": "ʤˈOkəvˌɪʧ",
    "Dostoevsky": "dˌɔstəjˈɛfski",
    "Ethereum": "əθˈɪɹiəm",
    "Goethe": "ɡˈɜɹTə",
    "Greta": "ɡɹˈɛTə",
    "Hermione": "həɹmˈIəni",
    "LaTeX": "lˈAtˌɛk",
    "Macron": "məkɹˈɔn",
    "Marseille": "mɑɹsˈA",
    "nginx": "ˌɛnʤənˈɛks",
    "Pichai": "pɪʧˈI",
    "PostgreSQL": "pˈOstɡɹəskjˌuˌɛl",
    "Siobhan": "ʃəvˈɔn",
    "Thunberg": "tˈunbˌɜɹɡ",
    "Xiaomi": "ʃWmˈi",
    "Xi": "ʃˈi",
    "Tchaikovsky": "ʧIkˈɔfski",
    "Kubernetes": "kˌubəɹnˈɛTiz",
    "Beyonce": "biˈɑnsˌA",
    "Zelensky": "zəlˈɛnski",
    "Polyvox": "pˈɑlivˌɑks",
    "ChatGPT": "ʧˈætʤˌipˌitˈi",
    "GitHub": "ɡˈɪthˌʌb",
    "YouTube": "jˈutˌub",
    "WiFi": "wˈIfˌI",
    "wifi": "wˈIfˌI",
    "JSON": "ʤˈAsən",
    "YAML": "jˈæmᵊl",
    "regex": "ɹˈɛʤˌɛks",
    "async": "ˈAsˌɪŋk",
    "PhD": "pˌiˌAʧdˈi",
    "PyTorch": "pˈItˌɔɹʧ",
    "MacBook": "mˈækbˌʊk",
    "iPad": "ˈIpˌæd",
    "iOS": "ˌIˌOˈɛs",
    "macOS": "mˌækˌOˈɛs",
    "eBay": "ˈibˌA",
    "OAuth": "ˈOˌɔθ",
}

# Function words: before a vowel, before a consonant, and at the end of a phrase.
ARTICLES = {
    "the": ("ði", "ðə", "ðə"),
    "to": ("tʊ", "tə", "tˈu"),
}
# Function words that stand alone, and at the end of a phrase.
WEAK_FORMS = {
    "in": ("ɪn", "ˈɪn"),
    "am": ("ɐm", "ˈæm"),
    "for": ("fɔɹ", "fˈɔɹ"),
    "of": ("ʌv", "ˈʌv"),
    "at": ("æt", "ˈæt"),
    "from": ("fɹʌm", "fɹˈʌm"),
    "with": ("wɪð", "wˈɪð"),
    "are": ("ɑɹ", "ˈɑɹ"),
    "is": ("ɪz", "ˈɪz"),
    "was": ("wʌz", "wˈʌz"),
    "were": ("wɜɹ", "wˈɜɹ"),
}
FIXED_FORMS = {"a": "ɐ", "an": "ɐn", "i": "ˌI"}

# Abbreviations in capitals that are also words: read as letters unless a neighbour is in capitals too.
LETTER_WORDS = frozenset(
    {"US", "IT", "WHO", "SEC", "AA", "AD", "ID", "UN", "ER", "TA", "AP", "BA", "MA", "MS", "PM", "AM", "ADD", "EST"}
    | {"ETA", "GI", "HR", "MD", "OS", "OT", "PI", "PR", "EMS", "CV", "AT", "UPS", "CO"}
)
# Abbreviations that could be pronounced as words but are read as letters.
LETTERS_ONLY = frozenset(
    {"UCLA", "IEEE", "USAID", "ASPCA", "UCSB", "IAEA", "AARP", "OECD", "AWS", "ROI", "ATM", "CIA", "CIO", "COO", "CPA"}
    | {"EPA", "SOS", "IOU", "EU", "UAE", "API", "IPO", "ISP", "USA", "IDE", "UI", "UX", "QA", "EV"}
)
