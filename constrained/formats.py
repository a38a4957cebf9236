"""The string formats that are enforced, as terms. A format that is not here is an annotation, as the specification has it.

Each term holds only strings that are valid, and all valid ones but these: leap seconds and the year 0000 in dates and times; quoted local
parts and address literals in email; names beyond ASCII in idn-hostname and idn-email; groups nested deeper than four in regex.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from .grammar import ANY_CHAR, EMPTY, NOTHING, Term, alt, both, lit, minus, rep, seq
from .regex import from_regex

# RFC 3339, section 5.6
_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP = r"(?:(?:\d\d)(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = rf"P(?:\d+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})"

# RFC 1123, section 2.1, and RFC 5321, section 4.1.2
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME}"

# RFC 3986, appendix A
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_H16}:){{6}}{_LS32}|::(?:{_H16}:){{5}}{_LS32}|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    + "".join(rf"|(?:(?:{_H16}:){{0,{n}}}{_H16})?::{rest}" for n, rest in [
        (1, rf"(?:{_H16}:){{3}}{_LS32}"), (2, rf"(?:{_H16}:){{2}}{_LS32}"), (3, rf"{_H16}:{_LS32}"), (4, _LS32), (5, _H16), (6, "")])
    + ")"
)  # fmt: skip


def _uri(letters: str = "", private: str = "") -> tuple[Term, Term]:
    """(URI, URI reference), with more `letters` than ASCII's among the unreserved and `private` ones in queries, as RFC 3987 has them.

    Made of terms, not of text: each part is parsed once."""
    plain = rf"A-Za-z0-9._~!$&'()*+,;={letters}\-"
    escaped = "%[0-9A-Fa-f]{2}"
    char, no_colon, host = (from_regex(rf"[{plain}{more}]|{escaped}") for more in (":@", "@", ""))
    user, query, fragment = (from_regex(rf"[{plain}{more}]|{escaped}") for more in (":", f":@/?{private}", ":@/?"))
    slash, segments = lit("/"), rep(seq(lit("/"), rep(char)))
    literal = alt(_term("ipv6"), from_regex(r"[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"))
    authority = seq(_maybe(seq(rep(user), lit("@"))), alt(seq(lit("["), literal, lit("]")), rep(host)), from_regex(r"(?::\d*)?"))
    rooted = alt(seq(lit("//"), authority, segments), seq(slash, _maybe(seq(rep(char, 1), segments))))
    tail = seq(_maybe(seq(lit("?"), rep(query))), _maybe(seq(lit("#"), rep(fragment))))
    uri = seq(from_regex(r"[A-Za-z][A-Za-z0-9+.-]*:"), alt(rooted, seq(rep(char, 1), segments), EMPTY), tail)
    return uri, alt(uri, seq(alt(rooted, seq(rep(no_colon, 1), segments), EMPTY), tail))


def _maybe(term: Term) -> Term:
    return alt(EMPTY, term)


_UCSCHAR = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(f"{chr(n << 16)}-{chr((n << 16) + 0xFFFD)}" for n in range(1, 15))
_IPRIVATE = "\ue000-\uf8ff" + "".join(f"{chr(n << 16)}-{chr((n << 16) + 0xFFFD)}" for n in (15, 16))

# RFC 6901; RFC 6570, section 2
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9]\d{0,3}|\*)?"
_TEMPLATE = rf"(?:[^\x00-\x20\x7f-\x9f\"'%<>\\^`{{|}}]|%[0-9A-Fa-f]{{2}}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"


def _regex(depth: int = 4) -> Term:
    """ECMA-262 patterns, in the form that is an error in no mode, with groups to `depth`."""
    escape = from_regex(r"\\(?:[dDwWsSbBtnvfr0^$\\.*+?()\[\]{}|/]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})")
    member = r"(?:[^\]\\\n\r^-]|\\(?:[dDwWsStnvfrb0^$\\.*+?()\[\]{}|/-]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))"
    klass = from_regex(rf"\[\^?-?(?:a-z|A-Z|0-9|a-f|A-F|1-9|0-5|a-zA-Z|{member})+-?\]")
    ordered = "|".join(rf"{n},[{n}-9]" for n in range(10))
    quantifier = from_regex(rf"(?:(?:[*+?]|\{{(?:\d+,?|{ordered}|\d,[1-9]\d)\}})\??)?")
    plain = alt(from_regex(r"[^\\^$*+?()\[\]{}|\n\r]"), escape, klass)
    inner = EMPTY
    for level in range(depth):
        group = seq(from_regex(r"\((?:\?:)?"), inner, lit(")")) if level else NOTHING
        look = seq(from_regex(r"\(\?<?[=!]"), inner, lit(")")) if level else NOTHING
        inner = rep(alt(seq(alt(plain, group), quantifier), from_regex(r"[\^$|]"), look))
    return inner


_SOURCES = {
    "date": _DATE, "time": _TIME, "date-time": rf"{_DATE}[Tt]{_TIME}", "duration": _DURATION,
    "email": _EMAIL, "idn-email": _EMAIL, "hostname": _HOSTNAME, "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4, "ipv6": _IPV6, "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri-template": _TEMPLATE, "json-pointer": _POINTER, "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}  # fmt: skip
_MADE: dict[str, Callable[[], Term]] = {
    "uri": lambda: _uri()[0], "uri-reference": lambda: _uri()[1],
    "iri": lambda: _uri(_UCSCHAR, _IPRIVATE)[0], "iri-reference": lambda: _uri(_UCSCHAR, _IPRIVATE)[1], "regex": _regex,
}  # fmt: skip
NAMES = frozenset((*_SOURCES, *_MADE))
"""The formats that are enforced."""
_WIDEST = {
    "date": r"\d{4}-\d\d-\d\d", "time": r"\d\d:\d\d:\d\d[^a-y]*", "date-time": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d[^a-y]*",
    "email": r"(?s).*@.*", "idn-email": r"(?s).*@.*", "idn-hostname": r"(?s).*", "regex": r"(?s).*",
}  # fmt: skip
"""Where the term leaves valid strings out: what holds all of them, and is what the format is when it is negated."""
_LONGEST = {"hostname": 253, "idn-hostname": 253}


def term(name: str) -> Term | None:
    """The strings of a format; None if it is not enforced."""
    return _term(name) if name in NAMES else None


@lru_cache(maxsize=64)
def _term(name: str) -> Term:
    found = _MADE[name]() if name in _MADE else from_regex(_SOURCES[name])
    if name == "idn-hostname":
        found = minus(found, from_regex(r"(?:.*\.)?..--.*"))  # an A-label is valid only if what it encodes is
    return both(found, rep(ANY_CHAR, 0, _LONGEST[name])) if name in _LONGEST else found


@lru_cache(maxsize=64)
def widest(name: str) -> Term:
    """Strings of which every other one is certainly not of the format: what `not` takes out. The format must be known."""
    return from_regex(_WIDEST[name]) if name in _WIDEST else _term(name)
