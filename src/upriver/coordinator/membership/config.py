"""The settings of membership that the assignor itself goes by, under their names in document 002 (and in KIP-441)."""

from dataclasses import dataclass

from upriver.errors import DeclarationError


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Document 002's configs, with its defaults where it gives any. Raises DeclarationError for what cannot be."""

    num_standby_replicas: int = 0
    """Copies of each stateful task that follow the active one, each on an instance of its own (``num.standby``)."""
    max_warmup_replicas: int = 2
    """Learners that may load at one time, over all workers. Those where a standby is already do not count: they load
    nothing. Document 002 has no such bound; the name, the default and the meaning are KIP-441's."""
    acceptable_lag_epochs: int = 1
    """A copy at most so many epochs behind is ready to take over. KIP-441 counts offsets; the default is ours."""
    scale_down_timeout_ms: int | None = None
    """A worker that was told to leave so long ago is not waited for any more (``scale.down.timeout.ms``). None: it is
    waited for as long as it takes, the document's "infinity"."""
    learner_partial_rebalance: bool = True
    """A worker asks for a round whenever one of its learners is ready (``learner.partial.rebalance``); else only when
    all of them are."""
    eventual_balance: bool = True
    """Any worker with little to do learns tasks of those with more, which the document leaves to its version 4.0.
    False: as in its first version, only workers that are new do."""

    def __post_init__(self) -> None:
        _check_count("num_standby_replicas", self.num_standby_replicas, least=0)
        _check_count("max_warmup_replicas", self.max_warmup_replicas, least=1)
        _check_count("acceptable_lag_epochs", self.acceptable_lag_epochs, least=0)
        if self.scale_down_timeout_ms is not None:
            _check_count("scale_down_timeout_ms", self.scale_down_timeout_ms, least=0)
        _check_switch("learner_partial_rebalance", self.learner_partial_rebalance)
        _check_switch("eventual_balance", self.eventual_balance)


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DeclarationError(f"{name} must be a whole number, {least} or more, not {value!r}")


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"{name} must be True or False, not {value!r}")
