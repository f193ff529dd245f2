# SPDX-License-Identifier: Apache-2.0
"""Tables of English words for units, money, signs, abbreviations and emoji."""


def _words(text: str) -> list[str]:
    return text.split()


def _table(text: str) -> dict[str, str]:
    """`short = words`, separated by semicolons."""
    entries = (" ".join(entry.split()).rpartition(" = ") for entry in text.split(";"))
    return {short: words for short, _, words in entries}


def _rows(text: str) -> dict[str, list[str]]:
    """Like `_table`, with several values per entry, separated by commas."""
    return {short: words.split(", ") for short, words in _table(text).items()}


MONTHS = _words(
    """
    January February March April May June July August September October November December
    """
)
WEEKDAYS = _words(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
# Names followed by a Roman ordinal, and nouns followed by a Roman number even if it is one letter.
REGNAL = _words(
    """
    Benedict Catherine Charles Edward Elizabeth Emperor Francis Frederick George Gregory Henry Ivan James John King
    Leo Louis Mary Napoleon Paul Peter Philip Pius Pope Queen Richard Tsar Wilhelm William
    """
)
NUMBERED_NOUNS = _words(
    """
    Act Appendix Article Book Bowl Category Chapter Class Episode Exhibit Figure Grade Group Level Mark Part Phase
    Round Scene Schedule Section Stage Step Table Tier Title Type Unit Volume War Vol. vol. Ch. ch.
    """
)
# Words after which I, V and X are letters; words after a year that are not plurals.
NOT_NAMES = _words(
    """
    Am An And As But If In My No So That The Then This When
    """
)
NOT_PLURALS = _words(
    """
    across always as does has is its plus this us versus vs was
    """
)
MAGNITUDES = _table(
    """
    k = thousand; K = thousand; M = million; m = million; mn = million; B = billion; b = billion; bn = billion; T =
    trillion; tn = trillion
    """
)
# singular, plural, cents
MONEY = _rows(
    """
    $ = dollar, dollars, cents; € = euro, euros, cents; £ = pound, pounds, pence; ¥ = yen, yen; ₹ = rupee, rupees,
    paise; ₩ = won, won; ₽ = ruble, rubles, kopecks; ₿ = bitcoin, bitcoins; USD = US dollar, US dollars, cents; EUR
    = euro, euros, cents; GBP = British pound, British pounds, pence; JPY = Japanese yen, Japanese yen; CHF = Swiss
    franc, Swiss francs, centimes; CNY = Chinese yuan, Chinese yuan; INR = Indian rupee, Indian rupees, paise
    """
)
COUNTRIES = _table(
    """
    US = US; CA = Canadian; C = Canadian; A = Australian; AU = Australian; NZ = New Zealand
    """
)
# singular, and plural if it is not singular + s
UNITS = _rows(
    """
    km = kilometer; m = meter; cm = centimeter; mm = millimeter; μm = micrometer; nm = nanometer; mi = mile; yd =
    yard; in = inch, inches; ft = foot, feet; kg = kilogram; g = gram; mg = milligram; μg = microgram; lb = pound;
    lbs = pound; oz = ounce; L = liter; l = liter; ml = milliliter; mL = milliliter; dl = deciliter; gal = gallon;
    ha = hectare; Hz = hertz, hertz; kHz = kilohertz, kilohertz; MHz = megahertz, megahertz; mol = mole; GHz =
    gigahertz, gigahertz; THz = terahertz, terahertz; W = watt; kW = kilowatt; MW = megawatt; GW = gigawatt; Wh =
    watt-hour; V = volt; mV = millivolt; kWh = kilowatt-hour; MWh = megawatt-hour; kV = kilovolt; mA = milliamp; Ah
    = amp-hour; mAh = milliamp-hour; Ω = ohm; kΩ = kilohm; J = joule; kJ = kilojoule; kcal = kilocalorie; cal =
    calorie; Pa = pascal; hPa = hectopascal; kPa = kilopascal; MPa = megapascal; bar = bar; dB = decibel; psi =
    pound per square inch, pounds per square inch; KB = kilobyte; kB = kilobyte; MB = megabyte; GB = gigabyte; TB =
    terabyte; PB = petabyte; KiB = kibibyte; MiB = mebibyte; GiB = gibibyte; TiB = tebibyte; kbps = kilobit per
    second, kilobits per second; px = pixel; MP = megapixel; Mbps = megabit per second, megabits per second; Gbps =
    gigabit per second, gigabits per second; ppm = part per million, parts per million; mph = mile per hour, miles
    per hour; kph = kilometer per hour, kilometers per hour; rpm = revolution per minute, revolutions per minute;
    fps = frame per second, frames per second; ms = millisecond; μs = microsecond; ns = nanosecond; s = second; sec
    = second; secs = second; min = minute; mins = minute; h = hour; hr = hour; hrs = hour; yr = year; yrs = year; wk
    = week; wks = week; mo = month; °C = degree Celsius, degrees Celsius; °F = degree Fahrenheit, degrees
    Fahrenheit; ° = degree; % = percent, percent; ‰ = per mille, per mille; pt = point; pts = point
    """
)
PER = _table(
    """
    s = second; sec = second; min = minute; h = hour; hr = hour; d = day; mo = month; yr = year
    """
)
# ＜ and ＞ are what &lt; and &gt; become.
SIGNS = _table(
    r"""
    & = and; + = plus; = = equals; × = times; ÷ = divided by; ± = plus or minus; ≤ = less than or equal to; ≥ =
    greater than or equal to; ≠ = not equal to; ≈ = approximately; ∞ = infinity; √ = square root of; ° = degrees; π
    = pi; μ = micro; § = section; ¶ = paragraph; © = copyright; → = to; ⇒ = implies; ← = from; ↔ = to and from; ∑ =
    sum; ∆ = delta; ∈ = in; − = minus; % = percent; ‰ = per mille; @ = at; ^ = caret; \ = backslash; # = hash; № =
    number; ＜ = less than; ＞ = greater than; < = less than; > = greater than; $ = dollar; € = euro; £ = pound; ¥ =
    yen; ₹ = rupee; ₩ = won; ₽ = ruble; ₿ = bitcoin; ¢ = cents; ® = registered; ™ = trademark
    """
)
# words, and what must follow: a name, a number or anything; "end" may also end a sentence.
ABBREVIATIONS = _rows(
    """
    Mr = Mister, any; Mrs = Missus, any; Ms = Ms, any; Dr = Doctor, name; Prof = Professor, name; Gen = General,
    name; Sen = Senator, name; Rep = Representative, name; Gov = Governor, name; Capt = Captain, name; Lt =
    Lieutenant, name; Sgt = Sergeant, name; Col = Colonel, name; Rev = Reverend, name; Hon = Honorable, name; Mt =
    Mount, name; Ft = Fort, name; St = Saint, name; Jr = Junior, end; Sr = Senior, end; Ave = Avenue, end; Blvd =
    Boulevard, end; Rd = Road, end; Inc = Incorporated, end; Ltd = Limited, end; Corp = Corporation, end; Co =
    Company, end; etc = et cetera, end; vs = versus, any; approx = approximately, any; dept = department, end; Dept
    = Department, any; e.g = for example, any; i.e = that is, any; a.k.a = also known as, any; al = al, end; est =
    established, number; fig = figure, number; Fig = Figure, number; vol = volume, number; Vol = Volume, number; ch
    = chapter, number; Ch = Chapter, number; p = page, number; pp = pages, number; sec = section, number; Sec =
    Section, number; No = number, number; no = number, number; Nos = numbers, number; ca = circa, number; c = circa,
    number; max = maximum, any; min = minimum, number; incl = including, any; excl = excluding, any; govt =
    government, any
    """
)
EMOJI = _table(
    """
    😂 = tears of joy; 🤣 = rolling on the floor laughing; ❤ = red heart; 👍 = thumbs up; 👎 = thumbs
    down; 😀 = grinning face; 😊 = smiling face; 🙏 = folded hands; 🎉 = party popper; 🔥 = fire; ✅ = check
    mark; ✔ = check mark; ❌ = cross mark; ⚠ = warning; 🚀 = rocket; 💯 = hundred points; 😭 = loudly
    crying face; 😍 = heart eyes; 🤔 = thinking face; 💻 = laptop; 👩 = woman; 👨 = man; 👧 = girl; 👦 = boy;
    ⭐ = star; ☀ = sun; ☺ = smiling face; ♥ = heart; 🦄 = unicorn; ➡ = to; ✨ = sparkles
    """
)
TOP_DOMAINS = _words(
    """
    com org net edu gov io dev ai app info co uk de fr eu us ca au me ly gg tv xyz tech cloud blog news wiki page jp
    cn
    """
)
FILE_ENDINGS = _words(
    """
    py txt md json js ts tsx csv pdf htm html yaml yml toml wav mp3 mp4 cpp rs go sh exe png jpg jpeg gif zip log
    ini cfg xml doc docx xls xlsx
    """
)
