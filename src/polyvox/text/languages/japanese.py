# SPDX-License-Identifier: Apache-2.0
"""Japanese text rules. Numbers become kanji numerals, so that the model chooses the reading with the counter."""

import re

from num2words import num2words

from polyvox.text.languages.cjk_rules import CjkGrammar, build_language
from polyvox.text.languages.grammar import words


class JapaneseGrammar(CjkGrammar):
    name = "japanese"
    digit_names = "〇一二三四五六七八九"
    phone_digits = "ゼロ 一 二 三 四 五 六 七 八 九"
    phone_gap = "、"
    units = words(
        "km = キロメートル; m = メートル; cm = センチメートル; mm = ミリメートル; km² = 平方キロメートル; "
        "m² = 平方メートル; m2 = 平方メートル; cm² = 平方センチメートル; m³ = 立方メートル; kg = キログラム; "
        "g = グラム; mg = ミリグラム; t = トン; L = リットル; l = リットル; ml = ミリリットル; mL = ミリリットル; "
        "cc = シーシー; m/s = メートル毎秒; W = ワット; kW = キロワット; kWh = キロワット時; V = ボルト; "
        "Hz = ヘルツ; MHz = メガヘルツ; GHz = ギガヘルツ; KB = キロバイト; MB = メガバイト; GB = ギガバイト; "
        "TB = テラバイト; kcal = キロカロリー; dB = デシベル; hPa = ヘクトパスカル; km/h = キロメートル"
    )
    money = words(
        "¥ = 円; ￥ = 円; JPY = 円; $ = ドル; US$ = ドル; USD = ドル; € = ユーロ; EUR = ユーロ; £ = ポンド; ₩ = ウォン"
    )
    to, versus, point = "から", "対", "点"
    signs = words(
        "- = マイナス; + = プラス; = = イコール; × = かける; ÷ = わる; ± = プラスマイナス; & = アンド; % = パーセント"
    )

    def integer(self, value: int) -> str:
        return "零" if value == 0 else num2words(value, lang="ja")

    def date(self, year: str, month: int, day: int) -> str:
        return f"{self.integer(int(year))}年{self.integer(month)}月{self.integer(day)}日"

    def clock(self, hour: int, minute: int) -> str:
        return f"{self.integer(hour)}時" + (f"{self.integer(minute)}分" if minute else "")

    def percent(self, text: str) -> str:
        return f"{self.number(text)}パーセント"

    def degrees(self, text: str, scale: str) -> str:
        return ("華氏" if scale == "F" else "") + f"{self.number(text)}度"

    def fraction(self, over: str, under: str) -> str:
        return f"{self.cardinal(under)}分の{self.cardinal(over)}"

    def counted(self, text: str, before: str, after: str) -> str | None:
        if re.fullmatch("[0-9]{3}", text) and "0" in text[1:2] and after.startswith("号"):
            return self.digits(text)  # the number of an apartment
        return None


GRAMMAR = JapaneseGrammar()
LANGUAGE = build_language(GRAMMAR, "万億兆千百")
