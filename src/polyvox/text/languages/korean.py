# SPDX-License-Identifier: Apache-2.0
"""Korean text rules: Sino-Korean numbers, and native numbers before the counters that take them."""

import re

from num2words import num2words

from polyvox.text.languages.cjk_rules import CjkGrammar, build_language
from polyvox.text.languages.grammar import words
from polyvox.text.rules import Rules

_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_NATIVE_COUNTERS = re.compile(
    r" ?(?:개(?!월|년|국|사)|명|마리|살|병|잔|권|장(?!을|이|에)|대(?![0-9 ])|시간|시(?!간|즌|장|리)|벌|켤레|송이"
    r"|그루|채|척|가지|사람|달(?!러)|군데|쌍|곳|그릇|조각|번째|배|큰술|작은술|컵|봉지|숟가락)"
)
_SPACED_COUNTERS = re.compile(
    r"(?:원|쪽|명|개|분(?!기|의)|초|세기|세(?!요)|호(?![가-힣]{2}선)|도|번(?!째)|킬로|미터|회|위|층|인분|페이지|달러|유로|주)"
)
_MONTHS = {6: "유", 10: "시"}


class KoreanGrammar(CjkGrammar):
    name = "korean"
    digit_names = "영일이삼사오육칠팔구"
    phone_digits = "공 일 이 삼 사 오 육 칠 팔 구"
    phone_gap = ", "
    gap = " "
    units = words(
        "km = 킬로미터; m = 미터; cm = 센티미터; mm = 밀리미터; km² = 제곱킬로미터; m² = 제곱미터; m2 = 제곱미터; "
        "cm² = 제곱센티미터; m³ = 세제곱미터; kg = 킬로그램; g = 그램; mg = 밀리그램; t = 톤; L = 리터; l = 리터; "
        "ml = 밀리리터; mL = 밀리리터; m/s = 미터 매 초; W = 와트; kW = 킬로와트; kWh = 킬로와트시; V = 볼트; "
        "Hz = 헤르츠; MHz = 메가헤르츠; GHz = 기가헤르츠; KB = 킬로바이트; MB = 메가바이트; GB = 기가바이트; "
        "TB = 테라바이트; kcal = 킬로칼로리; dB = 데시벨; hPa = 헥토파스칼"
    )
    money = words("₩ = 원; KRW = 원; $ = 달러; US$ = 달러; USD = 달러; € = 유로; EUR = 유로; £ = 파운드; ¥ = 엔")
    to, versus, point = "에서 ", " 대 ", " 점 "
    signs = words("- = 마이너스; + = 플러스; = = 는; × = 곱하기; ÷ = 나누기; ± = 플러스마이너스; & = 앤드; % = 퍼센트")

    def integer(self, value: int) -> str:
        return num2words(value, lang="ko")

    def native(self, value: int) -> str:
        """A native number before a counter, from 1 to 99."""
        tens, ones = divmod(value, 10)
        return "스무" if value == 20 else _TENS[tens] + _ONES[ones]

    def counted(self, text: str, before: str, after: str) -> str | None:
        if not text.replace(",", "").isdigit():
            return self.range_end(text, after)
        value = int(text.replace(",", ""))
        is_ordinal = before.endswith("제")
        if after.startswith("월") and value in _MONTHS:
            return _MONTHS[value]
        if 0 < value < 100 and not is_ordinal and (counter := _NATIVE_COUNTERS.match(after)):
            if counter[0] == "시" and value > 12:
                return self.integer(value) + " "
            name = "첫" if value == 1 and after.lstrip().startswith("번째") else self.native(value)
            return name + ("" if after[0] == " " else " ")
        return None if is_ordinal else self.range_end(text, after)

    def range_end(self, text: str, after: str) -> str:
        has_counter = _SPACED_COUNTERS.match(after) or _NATIVE_COUNTERS.match(after)
        return self.number(text) + (" " if has_counter and not after.startswith(" ") else "")

    def date(self, year: str, month: int, day: int) -> str:
        return f"{self.integer(int(year))}년 {_MONTHS.get(month) or self.integer(month)}월 {self.integer(day)}일"

    def clock(self, hour: int, minute: int) -> str:
        spoken = (self.native(hour) if 0 < hour <= 12 else self.integer(hour)) + " 시"
        return spoken + (f" {self.integer(minute)} 분" if minute else "")

    def span(self, first: str, last: str) -> str:
        return f"{first}{'부터 ' if first.endswith(('시', '분')) else self.to}{last}"

    def percent(self, text: str) -> str:
        return f"{self.number(text)} 퍼센트"

    def degrees(self, text: str, scale: str) -> str:
        below = text[0] in "-−"
        prefix = "영하 " if below else {"C": "섭씨 ", "F": "화씨 "}.get(scale, "")
        return f"{prefix}{self.number(text.lstrip('-−+'))} 도"

    def degrees_span(self, first: str, last: str, scale: str) -> str:
        return f"{self.degrees(first, scale)}에서 {self.degrees(last, '')}"

    def fraction(self, over: str, under: str) -> str:
        return f"{self.cardinal(under)}분의 {self.cardinal(over)}"


GRAMMAR = KoreanGrammar()
_RULES = Rules()


@_RULES("measure", r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?) ?km/h(?![A-Za-z])")
def _speed(match: re.Match[str]) -> str:
    return f"시속 {GRAMMAR.number(match[1])} 킬로미터"


LANGUAGE = build_language(GRAMMAR, "만억조천", _RULES)
