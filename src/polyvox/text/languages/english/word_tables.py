# SPDX-License-Identifier: Apache-2.0
"""Tables of English words for units, money, signs, formulas, abbreviations and emoji."""


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
FULL_MONTH = "|".join(MONTHS)
WEEKDAYS = _words(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
# Names followed by a Roman ordinal, and nouns followed by a Roman number even if it is one letter.
REGNAL = _words(
    """
    Albert Alexander Alfonso Amenhotep Baudouin Benedict Boniface Carol Catherine Charles Christian Clement
    Cleopatra Constantine Darius Edmund Edward Elizabeth Eric Ferdinand Francis Franz Frederick George Gregory
    Gustav Haakon Harald Harold Henry Innocent Isabella Ivan James John Joseph Julius Kenneth Leo Leopold Louis
    Ludwig Margaret Mary Maximilian Mehmed Murad Napoleon Nicholas Olaf Olav Otto Paul Pedro Peter Philip Pius
    Ptolemy Ramesses Ramses Richard Robert Rudolf Selim Sixtus Stephen Thutmose Umberto Urban Victor Vittorio
    Wilhelm William Xerxes
    """
)
NUMBERED_NOUNS = _words(
    """
    Act Appendix Article Book Bowl Category Chapter Class Episode Exhibit Figure Grade Group Level Mark Part
    Phase Round Scene Schedule Section Stage Step Table Tier Title Type Unit Volume War Vol. vol. Ch. ch.
    """
)
# Nouns before a number that names a kind and is followed by another noun: "Type I diabetes".
KINDS = _words(
    """
    Bowl Category Class Grade Group Level Mark Phase Stage Tier Title Type War
    """
)
# Words after which I, V and X are letters; verbs after "I"; words after a year that are not plurals.
NOT_NAMES = _words(
    """
    Am An And As But If In My No So That The Then This When
    """
)
VERBS_AFTER_I = _words(
    """
    am believe can can't could do don't feel guess have hope know like love may might must need never said saw
    say shall should think thought want will wish won't would wrote
    """
)
NOT_PLURALS = _words(
    """
    across always as does has is its plus this us versus vs was
    """
)
# Lower-case words that no quantity qualifies: "the $5 was lost", "my 20% for you".
NOT_NOUNS = _words(
    """
    a about above after again all also although among an and any are as at away back be because been before
    behind below between both but by came can cost could did do does down during each either else even ever
    every extra for from gain goes had has have he her here hers him his how i if in instead into is it its just
    later less many may me might mine more most must my near needed never no nor not now of off on once only or
    other our out over owed paid per she should since so some soon spent still such than that the their them
    then there these they this those though through till to today together too under until up upon us was we
    well went were what when where which while who whom whose why will with within without won would yet you
    your
    """
)
MAGNITUDES = _table(
    """
    k = thousand; K = thousand; M = million; m = million; mn = million; B = billion; b = billion; bn = billion;
    T = trillion; tn = trillion
    """
)
# singular, plural, coins
MONEY = _rows(
    """
    $ = dollar, dollars, cents; € = euro, euros, cents; £ = pound, pounds, pence; ¥ = yen, yen; ₹ = rupee,
    rupees, paise; ₩ = won, won; ₽ = ruble, rubles, kopecks; ₿ = bitcoin, bitcoins; ₺ = lira, lira; ฿ = baht,
    baht; ₫ = dong, dong; ₪ = shekel, shekels; ₴ = hryvnia, hryvnias; ₦ = naira, naira; ₱ = peso, pesos; ₡ =
    colón, colones; ₲ = guaraní, guaraníes; ₸ = tenge, tenge; R$ = real, reais, centavos; kr = krone, kroner;
    USD = US dollar, US dollars, cents; EUR = euro, euros, cents; GBP = British pound, British pounds, pence;
    JPY = Japanese yen, Japanese yen; CHF = Swiss franc, Swiss francs, centimes; CNY = Chinese yuan, Chinese
    yuan; INR = Indian rupee, Indian rupees, paise; CAD = Canadian dollar, Canadian dollars, cents; AUD =
    Australian dollar, Australian dollars, cents; NZD = New Zealand dollar, New Zealand dollars, cents; HKD =
    Hong Kong dollar, Hong Kong dollars, cents; SGD = Singapore dollar, Singapore dollars, cents; SEK = Swedish
    krona, Swedish kronor; NOK = Norwegian krone, Norwegian kroner; DKK = Danish krone, Danish kroner; PLN =
    Polish zloty, Polish zlotys; CZK = Czech koruna, Czech korunas; MXN = Mexican peso, Mexican pesos; BRL =
    Brazilian real, Brazilian reais; KRW = Korean won, Korean won; RUB = Russian ruble, Russian rubles; TRY =
    Turkish lira, Turkish lira; ZAR = South African rand, South African rand; BTC = bitcoin, bitcoins
    """
)
COUNTRIES = _table(
    """
    US = US; CA = Canadian; C = Canadian; AU = Australian; A = Australian; NZ = New Zealand; HK = Hong Kong; S =
    Singapore; NT = New Taiwan; MX = Mexican
    """
)
STATES = _words(
    """
    AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK
    OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC
    """
)
# singular, and plural if it is not singular + s
UNITS = _rows(
    """
    km = kilometer; m = meter; cm = centimeter; mm = millimeter; μm = micrometer; nm = nanometer; mi = mile; yd
    = yard; in = inch, inches; ft = foot, feet; kg = kilogram; g = gram; mg = milligram; μg = microgram; lb =
    pound; lbs = pound; oz = ounce; L = liter; l = liter; ml = milliliter; mL = milliliter; dl = deciliter; gal
    = gallon; ha = hectare; dL = deciliter; cl = centiliter; tsp = teaspoon; tbsp = tablespoon; pt = point; pts
    = point; qt = quart; fl oz = fluid ounce; kt = knot; mph = mile per hour, miles per hour; Hz = hertz, hertz;
    kHz = kilohertz, kilohertz; MHz = megahertz, megahertz; mol = mole; GHz = gigahertz, gigahertz; THz =
    terahertz, terahertz; W = watt; kW = kilowatt; MW = megawatt; GW = gigawatt; Wh = watt-hour; V = volt; mV =
    millivolt; kWh = kilowatt-hour; MWh = megawatt-hour; kV = kilovolt; A = amp; mA = milliamp; μA = microamp;
    hp = horsepower, horsepower; μF = microfarad; nF = nanofarad; pF = picofarad; mH = millihenry; kN =
    kilonewton; lm = lumen; rad = radian; Ah = amp-hour; mAh = milliamp-hour; Ω = ohm; kΩ = kilohm; J = joule;
    kJ = kilojoule; kcal = kilocalorie; cal = calorie; Pa = pascal; hPa = hectopascal; kPa = kilopascal; MPa =
    megapascal; bar = bar; dB = decibel; psi = pound per square inch, pounds per square inch; KB = kilobyte; kB
    = kilobyte; MB = megabyte; GB = gigabyte; TB = terabyte; PB = petabyte; KiB = kibibyte; MiB = mebibyte; GiB
    = gibibyte; TiB = tebibyte; kbps = kilobit per second, kilobits per second; px = pixel; MP = megapixel; Mbps
    = megabit per second, megabits per second; Gbps = gigabit per second, gigabits per second; Kbit = kilobit;
    Mbit = megabit; Gbit = gigabit; mpg = mile per gallon, miles per gallon; ppm = part per million, parts per
    million; kph = kilometer per hour, kilometers per hour; rpm = revolution per minute, revolutions per minute;
    fps = frame per second, frames per second; ms = millisecond; μs = microsecond; ns = nanosecond; s = second;
    sec = second; secs = second; min = minute; mins = minute; h = hour; hr = hour; hrs = hour; yr = year; yrs =
    year; wk = week; wks = week; mo = month; °C = degree Celsius, degrees Celsius; °F = degree Fahrenheit,
    degrees Fahrenheit; ° = degree; % = percent, percent; ‰ = per mille, per mille
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
    greater than or equal to; ≠ = not equal to; ≈ = approximately; ∞ = infinity; √ = square root of; ° =
    degrees; § = section; ¶ = paragraph; © = copyright; → = to; ⇒ = implies; ← = from; ↔ = to and from; ∑ = sum;
    ∆ = delta; ∫ = integral of; ∂ = partial; ∈ = in; − = minus; % = percent; ‰ = per mille; @ = at; ^ = caret; \
    = backslash; # = hash; № = number; ＜ = less than; ＞ = greater than; < = less than; > = greater than; $ =
    dollar; € = euro; £ = pound; ¥ = yen; ₹ = rupee; ₩ = won; ₽ = ruble; ₿ = bitcoin; ₺ = lira; ₪ = shekel; ₫ =
    dong; ₦ = naira; ₴ = hryvnia; ₱ = peso; ¢ = cents; ® = registered; ™ = trademark
    """
)
GREEK = _table(
    """
    α = alpha; β = beta; γ = gamma; δ = delta; ε = epsilon; ζ = zeta; η = eta; θ = theta; ι = iota; κ = kappa; λ
    = lambda; μ = mu; ν = nu; ξ = xi; π = pi; ρ = rho; σ = sigma; τ = tau; φ = phi; χ = chi; ψ = psi; ω = omega;
    Γ = gamma; Δ = delta; Θ = theta; Λ = lambda; Ξ = xi; Π = pi; Σ = sigma; Φ = phi; Ψ = psi; Ω = omega
    """
)
# Commands of LaTeX without arguments; all others are silent.
LATEX = {name: name for name in GREEK.values()} | _table(
    r"""
    times = times; cdot = times; div = divided by; pm = plus or minus; mp = minus or plus; leq = less than or
    equal to; le = less than or equal to; geq = greater than or equal to; ge = greater than or equal to; lt =
    less than; gt = greater than; neq = not equal to; ne = not equal to; approx = approximately; equiv =
    equivalent to; sim = similar to; propto = proportional to; infty = infinity; sum = sum of; prod = product
    of; int = integral of; partial = partial; nabla = nabla; in = in; notin = not in; subset = subset of; cup =
    union; cap = intersection; emptyset = empty set; forall = for all; exists = there exists; to = to;
    rightarrow = to; Rightarrow = implies; implies = implies; leftarrow = from; iff = if and only if; ldots =
    and so on; dots = and so on; cdots = and so on; lim = limit of; log = log; ln = natural log of; sin = sine
    of; cos = cosine of; tan = tangent of; exp = e to the; min = minimum of; max = maximum of; degree = degrees;
    circ = degrees; percent = percent; Gamma = gamma; Delta = delta; Theta = theta; Lambda = lambda; Xi = xi; Pi
    = pi; Sigma = sigma; Phi = phi; Psi = psi; Omega = omega; varepsilon = epsilon; varphi = phi
    """
)
# words, and what must follow: a name, a number or anything; "end" may also end a sentence, as a "day" does. A "street"
# follows a name.
ABBREVIATIONS = _rows(
    """
    Mr = Mister, any; Mrs = Missus, any; Ms = Ms, any; Dr = Doctor, name; Prof = Professor, name; Gen = General,
    name; Sen = Senator, name; Rep = Representative, name; Gov = Governor, name; Pres = President, name; Capt =
    Captain, name; Lt = Lieutenant, name; Sgt = Sergeant, name; Cpl = Corporal, name; Col = Colonel, name; Maj =
    Major, name; Adm = Admiral, name; Rev = Reverend, name; Hon = Honorable, name; Mt = Mount, name; Ft = Fort,
    name; St = Saint, name; Jr = Junior, end; Sr = Senior, end; Ave = Avenue, end; Blvd = Boulevard, end; Rd =
    Road, end; Ln = Lane, street; Ct = Court, street; Pl = Place, street; Sq = Square, street; Ter = Terrace,
    street; Cir = Circle, street; Pkwy = Parkway, street; Expy = Expressway, street; Hwy = Highway, street or
    number; Rte = Route, street or number; Rt = Route, number; Apt = Apartment, number; Ste = Suite, number;
    Bldg = Building, number; Fl = Floor, number; Rm = Room, number; ext = extension, number; Ext = Extension,
    number; Inc = Incorporated, end; Ltd = Limited, end; Corp = Corporation, end; Co = Company, end; etc = et
    cetera, end; vs = versus, any; approx = approximately, any; Approx = Approximately, any; dept = department,
    end; Dept = Department, any; e.g = for example, any; i.e = that is, any; a.k.a = also known as, any; al =
    al, end; est = established, number; fig = figure, number; Fig = Figure, number; figs = figures, number; Figs
    = Figures, number; vol = volume, number; Vol = Volume, number; ch = chapter, number; Ch = Chapter, number; p
    = page, number; pp = pages, number; sec = section, number; Sec = Section, number; Art = Article, number; No
    = number, number; no = number, number; nos = numbers, number; Nos = numbers, number; ca = circa, number; c =
    circa, number; max = maximum, any; min = minimum, number; incl = including, any; excl = excluding, any; govt
    = government, any; Mon = Monday, day; Tue = Tuesday, day; Tues = Tuesday, day; Wed = Wednesday, day; Thu =
    Thursday, day; Thur = Thursday, day; Thurs = Thursday, day; Fri = Friday, day; Sat = Saturday, day; Sun =
    Sunday, day
    """
)
EMOJI = _table(
    """
    😂 = tears of joy; 🤣 = rolling on the floor laughing; ❤ = red heart; 👍 = thumbs up; 👎 = thumbs down; 😀 =
    grinning face; 😊 = smiling face; 🙏 = folded hands; 🎉 = party popper; 🔥 = fire; ✅ = check mark; ✔ = check
    mark; ❌ = cross mark; ⚠ = warning; 🚀 = rocket; 💯 = hundred points; 😭 = loudly crying face; 😍 = heart eyes; 🤔
    = thinking face; 💻 = laptop; 👩 = woman; 👨 = man; 👧 = girl; 👦 = boy; ⭐ = star; ☀ = sun; ☺ = smiling face; ♥ =
    heart; 🦄 = unicorn; ➡ = to; ✨ = sparkles
    """
)
TOP_DOMAINS = _words(
    """
    com org net edu gov io dev ai app info co uk de fr eu us ca au me ly gg tv xyz tech cloud blog news wiki
    page jp cn
    """
)
FILE_ENDINGS = _words(
    """
    py txt md json js jsx ts tsx css csv pdf htm html yaml yml toml wav mp3 mp4 m4a ogg flac avi mov mkv cpp hpp
    rs go sh bat exe dll png jpg jpeg gif svg webp zip tar gz bz2 xz log ini cfg conf xml doc docx xls xlsx ppt
    pptx rtf tex sql ipynb php rb kt swift java iso apk dmg epub parquet
    """
)
