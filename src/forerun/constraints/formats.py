"""JSON schema's formats as patterns of bare text, for strings that stand outside JSON.

The library knows formats inside JSON strings alone. What these match is of the format; of some formats it is not all
(labels of hosts up to 40 letters, times without leap seconds, ASCII alone).
"""

from __future__ import annotations

_TWO = "[0-9]{2}"
_LEAP = f"({_TWO}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    f"([0-9]{{4}}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_CLOCK})"
_N = "[0-9]{1,9}"
_PART_OF_DAY = f"T({_N}H({_N}M({_N}S)?)?|{_N}M({_N}S)?|{_N}S)"
_PART_OF_YEAR = f"({_N}D|{_N}M({_N}D)?|{_N}Y({_N}M({_N}D)?)?)"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_WORD = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,12}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}:){{1,7}}:", f":(:{_GROUP}){{1,7}}", "::"]
    + [f"({_GROUP}:){{1,{num}}}(:{_GROUP}){{1,{7 - num}}}" for num in range(1, 7)]
)
_CODED = f"%{_HEX}{{2}}"
_NAMED = f"([A-Za-z0-9._~!$&'()*+,;=-]|{_CODED})"
_SIGN = f"([A-Za-z0-9._~!$&'()*+,;=:@-]|{_CODED})"
_PATH = f"(/{_SIGN}*)*"
_TAIL = f"([A-Za-z0-9._~!$&'()*+,;=:@/?-]|{_CODED})*"

TEXT_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_N}W|{_PART_OF_YEAR}({_PART_OF_DAY})?|{_PART_OF_DAY})",
    "email": rf"{_WORD}(\.{_WORD}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:(//{_NAMED}*(:[0-9]*)?{_PATH}|/({_SIGN}+{_PATH})?|{_SIGN}+{_PATH})"
    rf"(\?{_TAIL})?(#{_TAIL})?",
}
