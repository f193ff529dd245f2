# SPDX-License-Identifier: Apache-2.0
"""Chinese text rules."""

import re

from polyvox.text.languages.cjk_rules import CjkGrammar, build_language
from polyvox.text.languages.grammar import words
from polyvox.text.rules import Rules, before

_DIGITS = "零一二三四五六七八九"
_POWERS = ("", "十", "百", "千")
_MYRIADS = ("", "万", "亿", "万亿")
# Counters before which 2 is 两.
_COUNTERS = re.compile(
    r" ?(?:[个只条本张件次天岁倍块杯瓶碗位名家种周辆双座间头匹颗棵片份套支枝把盒袋箱]"
    r"|[层点米斤吨升元秒届场遍趟步句篇部台架艘幅朵群对小公分千万亿人]|年(?!级))"
)
_NOT_TWO = re.compile(r"[第初十百千万]$")
_EMERGENCY_BEFORE = re.compile(r"(?:拨打|打|电话|热线)$")


def _group(value: int) -> str:
    """A number below ten thousand."""
    spoken, zero = "", False
    for power in range(3, -1, -1):
        digit = value // 10**power % 10
        if digit == 0:
            zero = bool(spoken)
            continue
        name = "两" if digit == 2 and power == 3 else _DIGITS[digit]
        spoken += ("零" if zero else "") + name + _POWERS[power]
        zero = False
    return spoken


class ChineseGrammar(CjkGrammar):
    name = "chinese"
    digit_names = _DIGITS
    phone_digits = "零 幺 二 三 四 五 六 七 八 九"
    units = words(
        "km = 公里; m = 米; cm = 厘米; mm = 毫米; km² = 平方公里; m² = 平方米; m2 = 平方米; cm² = 平方厘米; "
        "m³ = 立方米; kg = 公斤; g = 克; mg = 毫克; t = 吨; L = 升; l = 升; ml = 毫升; mL = 毫升; "
        "km/h = 公里每小时; m/s = 米每秒; W = 瓦; kW = 千瓦; kWh = 千瓦时; V = 伏; Hz = 赫兹; MHz = 兆赫兹; "
        "GHz = 吉赫兹; kcal = 千卡; dB = 分贝; min = 分钟; h = 小时; s = 秒; hPa = 百帕; KB = KB; MB = MB; GB = GB; "
        "TB = TB"
    )
    money = words(
        "¥ = 元; ￥ = 元; RMB = 元; CNY = 元; $ = 美元; US$ = 美元; USD = 美元; € = 欧元; EUR = 欧元; £ = 英镑; "
        "HK$ = 港元; ₩ = 韩元"
    )
    to, versus, point = "到", "比", "点"
    signs = words("- = 负; + = 加; = = 等于; × = 乘; ÷ = 除以; ± = 正负; & = 和; % = 百分之")

    def integer(self, value: int) -> str:
        if value == 0:
            return "零"
        groups, rest = [], value
        while rest:
            rest, group = divmod(rest, 10_000)
            groups.append(group)
        spoken = ""
        for index in range(len(groups) - 1, -1, -1):
            group = groups[index]
            if not group:
                continue
            needs_zero = bool(spoken) and (
                group < 1000 or (index + 1 < len(groups) and groups[index + 1] % 10 == 0 and group < 1000)
            )
            name = "两" if group == 2 and index else _group(group)
            spoken += ("零" if needs_zero else "") + name + _MYRIADS[index]
        return re.sub("^一十", "十", spoken)

    def minus(self, text: str) -> str:
        return {"-": "负", "−": "负", "±": "正负"}.get(text[:1], "")

    def counted(self, text: str, before: str, after: str) -> str | None:
        bare = text.replace(",", "")
        if len(bare) == 4 and bare.isdigit() and after.startswith("年") and before[-1:] not in ("满", "近", "约"):
            return self.digits(bare)
        if text == "2" and _COUNTERS.match(after) and not _NOT_TWO.search(before):
            return "二" if re.match(" ?(?:点[0-9零一二三四五六七八九]|层楼)", after) else "两"
        return None

    def date(self, year: str, month: int, day: int) -> str:
        return f"{self.digits(year)}年{self.integer(month)}月{self.integer(day)}日"

    def clock(self, hour: int, minute: int) -> str:
        spoken = ("两" if hour == 2 else self.integer(hour)) + "点"
        return spoken + (f"{'零' if minute < 10 else ''}{self.integer(minute)}分" if minute else "")

    def percent(self, text: str) -> str:
        return f"{self.minus(text)}百分之{self.number(text.lstrip('-−+±'))}"

    def degrees(self, text: str, scale: str) -> str:
        bare = text.lstrip("-−+")
        return (
            ("零下" if text[0] in "-−" and scale else self.minus(text))
            + self.number(bare)
            + {"C": "摄氏度", "F": "华氏度"}.get(scale, "度")
        )

    def fraction(self, over: str, under: str) -> str:
        return f"{self.cardinal(under)}分之{self.cardinal(over)}"

    def measure(self, text: str, unit: str) -> str:
        return ("两" if text == "2" else self.number(text)) + self.units[unit]


GRAMMAR = ChineseGrammar()
_RULES = Rules()


@_RULES("telephone", r"(?<![0-9])(?:110|119|120|122|12\d{3})(?![0-9])")
def _emergency(match: re.Match[str]) -> str | None:
    return GRAMMAR.phone(match[0]) if _EMERGENCY_BEFORE.search(before(match)) else None


LANGUAGE = build_language(GRAMMAR, "万亿", _RULES)
