"""A trace in words: one line per step, with what it took and what it sent."""

from collections.abc import Iterable, Iterator

from simulator.icadd_node import ProtocolViolation
from simulator.icadd_rows import brief, key_name
from simulator.icadd_world import Channels, IcaddStep, IcaddWorld
from upriver.ids import WorkerId
from upriver.migration.events import AbortAsked, Interrogated
from upriver.migration.messages import Done, Final, Kept, Mark, Redistribute, RelayedMark, Sets


def told(world: IcaddWorld, steps: Iterable[IcaddStep]) -> list[str]:
    """What each step did; the last line is what the checkers found. The world is changed."""
    lines = []
    violation: ProtocolViolation | None = None
    for step in steps:
        what = _about(world, step)
        before, phase = dict(world.channels), _phase(world, step)
        try:
            world.take(step)
        except ProtocolViolation as found:
            violation = found
        sent = ", ".join(_sent(before, world.channels, step))
        now = _phase(world, step)
        lines.append(what + (f" [{now}]" if now != phase else "") + (f"; sends {sent}" if sent else ""))
    if violation is None:
        try:
            world.check_end()
        except ProtocolViolation as found:
            violation = found
    return lines if violation is None else [*lines, str(violation)]


def _about(world: IcaddWorld, step: IcaddStep) -> str:
    region = _region(world, step.region)
    match step.kind:
        case "receive":
            of, message, _ = world.channels[step.peer, step.worker][0]
            return f"{step.worker} receives from {step.peer}{_region(world, of)}: {brief(message)}"
        case "input":
            part = world.parts[step.worker, step.region]
            item = world.input_of(step.worker, step.region)[part.position]
            return f"{step.worker} has from upstream{region}: {item}"
        case "order":
            order = world.parts[step.worker, step.region].orders[0]
            return f"{step.worker} hears of the {'abort' if isinstance(order, AbortAsked) else 'rescale'}{region}"
        case "answer":
            answer = world.parts[step.worker, step.region].answer
            if isinstance(answer, Interrogated):
                return f"{step.worker} is told by its operators{region}: keys {_names(answer.keys.tolist())}"
            assert answer is not None
            return f"{step.worker} is given by its operators{region}: the state of {_names(answer.keys.tolist())}"
        case "align":
            return f"{step.worker} receives from {step.peer}: the barrier"
        case "ask" | "abort" | "end epoch":
            return {"ask": "a rescale is asked for", "abort": "an abort is asked for"}.get(step.kind, "an epoch ends")
        case _:
            doing = {
                "collect": "collects",
                "close": "closes its input",
                "operate": "lets its operators work",
                "barrier": "sends its barrier to all",
            }
            return f"{step.worker} {doing[step.kind]}{region}"


def _region(world: IcaddWorld, region: str) -> str:
    return f" ({region})" if len(world.scenario.maps) > 1 else ""


def _names(keys: list[int]) -> str:
    return ", ".join(map(key_name, keys)) or "none"


def _phase(world: IcaddWorld, step: IcaddStep) -> str:
    regions = [step.region] if step.kind != "receive" else sorted(world.scenario.maps)
    parts = [world.parts.get((step.worker, region)) for region in regions]
    return ", ".join(type(part.machine.phase).__name__ for part in parts if part is not None)


def _sent(before: Channels, after: Channels, step: IcaddStep) -> Iterator[str]:
    for (source, target), queue in sorted(after.items()):
        old = len(before.get((source, target), ()))
        old -= step.kind == "receive" and (source, target) == (step.peer, step.worker)
        for _, message, _ in queue[old:]:
            yield f"{_sized(brief(message), message)} to {target}"


def _sized(text: str, message: object) -> str:
    match message:
        case Done(vnode=vnode) | Mark(vnode=vnode):
            return f"{text}({vnode})"
        case RelayedMark(vnode=vnode, origin=origin):
            return f"{text}({vnode} of {WorkerId(origin)})"
        case Kept(vnodes=vnodes):
            return f"{text}({', '.join(map(str, vnodes))})"
        case Sets(whitelist=whitelist, hold=hold):
            return f"{text}(whitelist {_names(whitelist.tolist())}; hold {_names(hold.tolist())})"
        case Final(keys=keys):
            return f"{text}({_names(keys.tolist())})"
        case Redistribute(keys=keys, following=following, added=added):
            parts = [("", keys), ("following ", following), ("added ", added)]
            return f"{text}({'; '.join(what + _names(some.tolist()) for what, some in parts)})"
        case _:
            return text
