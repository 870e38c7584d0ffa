"""The dispatch rules by name, and the flags that set their parameters: ``hexgen-paper+alpha=0.3+queue=true``."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from queuetheory_llm.dispatch.fastest import FASTEST
from queuetheory_llm.dispatch.hexgen_paper import HEXGEN_PAPER
from queuetheory_llm.dispatch.hexgen_released import HEXGEN_RELEASED
from queuetheory_llm.dispatch.least_outstanding import LEAST_OUTSTANDING
from queuetheory_llm.dispatch.random import RANDOM, RANDOM_LP, RANDOM_PROPORTIONAL
from queuetheory_llm.dispatch.round_robin import ROUND_ROBIN
from queuetheory_llm.dispatch.shortest_expected_delay import SHORTEST_EXPECTED_DELAY
from queuetheory_llm.dispatch.token_queue import TOKEN_QUEUE
from queuetheory_llm.dispatch.view import READINGS, Dispatcher, DispatchRule
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.dispatch import STATION_RULES

#: Every rule the command line knows.
DISPATCH_RULES: Mapping[str, DispatchRule] = {
    rule.name: rule
    for rule in (
        RANDOM,
        RANDOM_PROPORTIONAL,
        RANDOM_LP,
        ROUND_ROBIN,
        LEAST_OUTSTANDING,
        SHORTEST_EXPECTED_DELAY,
        TOKEN_QUEUE,
        FASTEST,
        HEXGEN_PAPER,
        HEXGEN_RELEASED,
    )
}

_READING = "queue"  # the flag that sets `Dispatcher.reading`


def parse_dispatcher(text: str) -> Dispatcher:
    """The rule named by ``text`` with the parameters of its flags.

    Flags are ``+NAME=NUMBER``, or ``+NAME=WORD`` where the rule has words, and ``+queue=true`` or ``estimated`` of a
    rule that reads t_queue.

    Raises
    ------
    InvalidInput
        If the name or a flag is unknown, a flag is given twice, or a value is out of range.

    Examples
    --------
    >>> parse_dispatcher("hexgen-paper+alpha=0.3+queue=true").values
    {'alpha': 0.3, 'beta': 1.0}
    """
    name, *flags = text.strip().split("+")
    rule = DISPATCH_RULES.get(name)
    if rule is None:
        raise InvalidInput(f"--dispatch: {shown(name)} is not a known rule; {_nearest(name, DISPATCH_RULES)}")
    values, reading, given = dict(rule.defaults), READINGS[0], set()
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals or key not in _flags(rule):
            raise InvalidInput(
                f"--dispatch: {shown(text)}: unknown flag {shown('+' + flag)}; {_known_flags(rule, key)}"
            )
        if key in given:
            raise InvalidInput(f"--dispatch: {shown(text)} sets {key} twice; keep one of the flags")
        given.add(key)
        if key == _READING:
            reading = value
        else:
            values[key] = _number(rule, key, value)
    try:
        return Dispatcher(rule=rule, values=values, reading=reading, text=text.strip())
    except InvalidInput as error:
        raise InvalidInput([f"--dispatch: {fault}" for fault in error.faults]) from None


def to_dispatcher(rule: Dispatcher | DispatchRule | str) -> Dispatcher:
    """A dispatcher as it is, a rule with its defaults, a name by `parse_dispatcher`.

    Raises
    ------
    InvalidInput
        Also if it is none of the three.
    """
    if isinstance(rule, Dispatcher):
        return rule
    if isinstance(rule, DispatchRule):
        return Dispatcher(rule=rule, values=dict(rule.defaults))
    if not isinstance(rule, str):
        raise InvalidInput(f"dispatch: {shown(rule)} is no dispatch rule; give a name, a DispatchRule or a Dispatcher")
    return parse_dispatcher(rule)


def packaged_name(rule: DispatchRule) -> str | None:
    """The name of a packaged rule; None of a rule of one's own, also of one that bears the name of a packaged one.

    What is proved of a rule is proved of its function, and not of its name.
    """
    known = DISPATCH_RULES.get(rule.name)
    return rule.name if known is not None and known == rule and known.choose is rule.choose else None


def require_dispatch(name: str) -> None:
    """Refuse what is no rule of equal engines, one of `STATION_RULES`.

    Raises
    ------
    InvalidInput
    """
    if name in STATION_RULES:
        return
    known = ", ".join(STATION_RULES)
    plain = name.partition("+")[0]
    if plain in STATION_RULES:
        raise InvalidInput(f"--dispatch: {shown(name)}: flags are not for equal engines; write {plain}")
    if plain in DISPATCH_RULES:
        raise InvalidInput(f"--dispatch: {plain} weighs seconds at unlike instances; equal engines take {known}")
    raise InvalidInput(f"--dispatch: {shown(name)} is not a dispatch rule; known: {known}")


def _number(rule: DispatchRule, key: str, value: str) -> float:
    words = rule.words.get(key)
    if words is None:
        try:
            return float(to_fraction(value))
        except InvalidInput as error:
            raise InvalidInput(f"--dispatch: {key}: {error}") from None
    if value not in words:
        raise InvalidInput(f"--dispatch: {key}: {shown(value)} is not known; {_nearest(value, words)}")
    return words[value]


def _flags(rule: DispatchRule) -> tuple[str, ...]:
    return (*rule.defaults, *[_READING] * rule.reads_queued)


def _known_flags(rule: DispatchRule, key: str) -> str:
    flags = _flags(rule)
    if not flags:
        return f"{rule.name} takes none"
    near = get_close_matches(key, flags, n=1)
    return f"did you mean +{near[0]}=?" if near else f"{rule.name} takes {', '.join(f'+{each}=' for each in flags)}"


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
