"""Short words for tests of the leader: a coordinator machine, and workers that do all that they are told, unless a test
says that they keep something to themselves. See coordinator_kit."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypedDict, Unpack

from coordinator_kit import PLAN, Recorded, gone, published, said, vnode_map

from upriver.coordinator.cluster import ServedFlow
from upriver.coordinator.group import MembershipConfig
from upriver.ids import Epoch, FeedId, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol import coordinator_events, messages
from upriver.protocol.rules import ALL_RULES, Rules

THIRDS = (0, 0, 1, 1, 2, 2)
"""What workers 0, 1 and 2 own."""


Said = messages.FromWorker | messages.FromShare
"""What a worker says, or its share of the only flow."""


class Config(TypedDict, total=False):
    """Fields of ``MembershipConfig``."""

    max_warmup_replicas: int
    scale_down_timeout_ms: int | None


class Group:
    """Workers 0, 1 and so on, incarnations 1, 2 and so on, each on an executor of its own if not said otherwise."""

    def __init__(
        self,
        owners: Sequence[int] = THIRDS,
        standbys: int = 1,
        plans: Sequence[DataflowPlan] = (PLAN,),
        instances: Sequence[str] = (),
        rules: Rules = ALL_RULES,
        silent: Iterable[type[Said]] = (),
        **config: Unpack[Config],
    ) -> None:
        """owners: of the vnodes. instances: of workers 0, 1 and so on. silent: as below. config: of membership,
        besides ``standbys``."""
        settings = MembershipConfig(num_standby_replicas=standbys, **config)
        self.machine = Recorded(vnode_map(owners), tuple(plans), rules, {}, membership=settings)
        self.instances = dict(enumerate(instances))
        self.silent = set(silent)
        """What workers keep to themselves for now."""
        self.unsaid: list[tuple[Incarnation, Said]] = []
        self.log: list[coordinator_events.CoordinatorAction] = []
        """All that ever came out."""
        self.feeds: dict[FeedId, tuple[int, messages.Follow]] = {}
        """By whose incarnation, and what it follows."""
        self.places: dict[int, int] = {}
        """The workers that are there: by worker, the incarnation."""
        self._told: deque[coordinator_events.Tell] = deque()
        self._at: dict[int, Epoch] = {}
        """How far each incarnation is."""
        self._last = 0
        self.come(*sorted(set(owners)))

    # What happens

    def happens(self, *events: coordinator_events.CoordinatorEvent) -> list[coordinator_events.CoordinatorAction]:
        """What comes of these, all that the workers then do included."""
        before = len(self.log)
        for event in events:
            self._step(event)
        while self._told:
            self._obey(self._told.popleft())
        return self.log[before:]

    def come(self, *workers: int) -> list[coordinator_events.CoordinatorAction]:
        """A process comes to each of these places."""
        before = len(self.log)
        for worker in workers:
            self._last += 1
            self.places[worker] = self._last
            instance = self.instances.get(worker, f"executor-{worker}")
            self.happens(
                coordinator_events.WorkerRegistered(
                    worker=WorkerId(worker),
                    incarnation=Incarnation(self._last),
                    address=f"host-{self._last}",
                    instance=instance,
                )
            )
        return self.log[before:]

    def lose(self, *workers: int) -> list[coordinator_events.CoordinatorAction]:
        """The channels of these close."""
        return self.happens(*(gone(self.places.pop(worker)) for worker in workers))

    def lease_over(self, *incarnations: int) -> list[coordinator_events.CoordinatorAction]:
        return self.happens(
            *(coordinator_events.LeaseOver(incarnation=Incarnation(incarnation)) for incarnation in incarnations)
        )

    def epoch(self) -> list[coordinator_events.CoordinatorAction]:
        """One more epoch, of no rows."""
        return self.happens(published(self.machine.published + 1))

    def says(self, worker: int, message: Said) -> list[coordinator_events.CoordinatorAction]:
        return self.happens(said(self.places[worker], message))

    def cannot_reach(self, worker: int, peer: int) -> list[coordinator_events.CoordinatorAction]:
        """A worker's channel to another is gone."""
        meeting = [tell.message.meeting for tell in self.tells() if isinstance(tell.message, messages.Meet)][-1]
        return self.says(worker, messages.PeersLost(meeting=meeting, why="silence", peer=WorkerId(peer)))

    def speak(self) -> list[coordinator_events.CoordinatorAction]:
        """Workers say what they have kept to themselves, and all that there is to say from now on."""
        self.silent.clear()
        return self.say()

    def say(self, *kinds: type[Said]) -> list[coordinator_events.CoordinatorAction]:
        """Workers say what they have kept to themselves so far; of these kinds only, if any are named."""
        saying = [(who, message) for who, message in self.unsaid if not kinds or isinstance(message, kinds)]
        self.unsaid = [(who, message) for who, message in self.unsaid if kinds and not isinstance(message, kinds)]
        return self.happens(*(said(who, message) for who, message in saying))

    # What there is to be seen

    @property
    def owners(self) -> tuple[int, ...]:
        return tuple(map(int, self.machine.vnode_map.owners))

    @property
    def workers(self) -> tuple[int, ...]:
        """Those that take part."""
        return tuple(map(int, self.machine.cluster.workers))

    @property
    def flow(self) -> ServedFlow:
        """The first one."""
        return next(iter(self.machine.cluster))

    @property
    def ended(self) -> int:
        return self.flow.ledger.ended

    def standing(self) -> tuple[int, int, int]:
        """Standbys of each vnode that are wanted, vnodes that have so many, vnodes that are being learned."""
        wanted, ready, learners, _ = self.machine.leader.standing().values()
        return wanted, ready, learners

    def followed(self) -> dict[int, list[int]]:
        """By vnode, the workers that follow it."""
        there = {incarnation: worker for worker, incarnation in self.places.items()}
        vnodes = range(len(self.owners))
        feeds = [(there[incarnation], feed.vnodes) for incarnation, feed in self.feeds.values() if incarnation in there]
        return {vnode: sorted(worker for worker, followed in feeds if vnode in followed) for vnode in vnodes}

    def tells(self) -> list[coordinator_events.Tell]:
        """All that any worker was ever told."""
        return [action for action in self.log if isinstance(action, coordinator_events.Tell)]

    # What workers do

    def _step(self, event: coordinator_events.CoordinatorEvent) -> None:
        actions = self.machine.step(event)
        self.log += actions
        self._told += [action for action in actions if isinstance(action, coordinator_events.Tell)]

    def _obey(self, told: coordinator_events.Tell) -> None:
        if told.incarnation not in self.places.values():
            return
        for answer in self._answers(told.incarnation, told.message):
            if type(answer) in self.silent:
                self.unsaid.append((told.incarnation, answer))
            else:
                self._step(said(told.incarnation, answer))

    def _answers(self, me: Incarnation, order: messages.ToWorker | messages.ToShare) -> list[Said]:
        match order:
            case messages.Assign():
                self.feeds = {feed: following for feed, following in self.feeds.items() if following[0] != me}
                is_new = me not in self._at
                self._at[me] = order.start_at
                anew = [] if is_new else [messages.StartedAnew(generation=order.generation)]
                return [*anew, *([messages.Restored()] if order.chain else [])]
            case messages.Resume():
                self._at[me] = order.at
                self._give_up(order)
                return [messages.StartedAnew(generation=order.generation), *self._caught_up(me)]
            case messages.Meet(meeting=meeting):
                return [messages.MetPeers(meeting=meeting)]
            case messages.OpenEpoch(epoch=epoch):
                self._at[me] = epoch
                staged = self.flow.ledger.is_staged
                done = messages.EpochFinished(epoch=epoch, read={}, applied={}, stats={})
                return [done, *([] if staged else self._caught_up(me))]
            case messages.BeginStage(epoch=epoch, stage=stage):
                is_last = stage == self.flow.ledger.deepest
                return [
                    messages.StageDone(epoch=epoch, stage=stage, stats={}),
                    *(self._caught_up(me) if is_last else []),
                ]
            case messages.Follow():
                self.feeds[order.feed] = me, order
                return [messages.CaughtUp(feed=order.feed, epoch=self._at[me])]
            case messages.Unfollow():
                self._unfollow(order)
            case messages.Probe(probe=probe):
                return [messages.Here(probe=probe)]
            case messages.Retire():
                self.places = {worker: i for worker, i in self.places.items() if i != me}
        return []

    def _caught_up(self, me: Incarnation) -> list[Said]:
        mine = [feed for feed, (follower, _) in self.feeds.items() if follower == me]
        return [messages.CaughtUp(feed=feed, epoch=self._at[me]) for feed in mine]

    def _unfollow(self, order: messages.Unfollow) -> None:
        if order.feed in self.feeds:
            me, feed = self.feeds.pop(order.feed)
            left = tuple(vnode for vnode in feed.vnodes if vnode not in order.vnodes)
            if left:
                self.feeds[order.feed] = me, messages.Follow(feed=feed.feed, owner=feed.owner, vnodes=left)

    def _give_up(self, order: messages.Resume) -> None:
        """What changes hands is followed no more."""
        owners = next(iter(order.maps.values())).owners
        for number, (_, feed) in list(self.feeds.items()):
            moved = tuple(vnode for vnode in feed.vnodes if owners[vnode] != feed.owner)
            self._unfollow(messages.Unfollow(feed=number, vnodes=moved))
