"""The simulator in Hypothesis' hands: it searches for the shortest schedule that breaks a rule."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.session_sim import SessionSim, World

WINDOWS = st.lists(st.integers(0, 8), min_size=1, max_size=3, unique=True).map(tuple)
MESSAGE_TOKENS = (1, 4, 64)


class SessionMachine(RuleBasedStateMachine):
    """Every rule is one action of the world; the world checks itself after each, and settles at the end."""

    @initialize(vocab_size=st.integers(2, 5), windows=WINDOWS, k=st.integers(1, 4))
    def open(self, vocab_size: int, windows: tuple[int, ...], k: int):
        world = World(vocab_size=vocab_size, windows=windows, k=k, length=64, message_tokens=MESSAGE_TOKENS, losses=3)
        self.sim = SessionSim(world)

    def possible(self, name: str) -> bool:
        return any(action == name for action, _ in self.sim.actions())

    @precondition(lambda self: self.possible("draw"))
    @rule(right=st.booleans(), token=st.integers(0, 4))
    def draw(self, right: bool, token: int):
        world, drafter = self.sim.world, self.sim.drafter
        self.sim.apply(("draw", world.target(tuple(drafter.tokens)) if right else token % world.vocab_size))

    @precondition(lambda self: self.possible("begin"))
    @rule()
    def begin(self):
        self.sim.apply(("begin", 0))

    @precondition(lambda self: self.possible("finish"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject):
        self.sim.apply(("finish", data.draw(st.sampled_from(self.sim.world.windows))))

    @precondition(lambda self: self.possible("grant"))
    @rule(data=st.data())
    def grant(self, data: st.DataObject):
        self.sim.apply(("grant", data.draw(st.sampled_from(self.sim.world.windows))))

    @precondition(lambda self: self.possible("send_drafts"))
    @rule(max_tokens=st.sampled_from(MESSAGE_TOKENS))
    def send_drafts(self, max_tokens: int):
        self.sim.apply(("send_drafts", max_tokens))

    @precondition(lambda self: self.possible("send_commits"))
    @rule(max_tokens=st.sampled_from(MESSAGE_TOKENS))
    def send_commits(self, max_tokens: int):
        self.sim.apply(("send_commits", max_tokens))

    @precondition(lambda self: self.possible("deliver_drafts"))
    @rule()
    def deliver_drafts(self):
        self.sim.apply(("deliver_drafts", 0))

    @precondition(lambda self: self.possible("deliver_commits"))
    @rule()
    def deliver_commits(self):
        self.sim.apply(("deliver_commits", 0))

    @precondition(lambda self: self.possible("lose_stream"))
    @rule(how=st.sampled_from(["lose_stream", "reassign", "give_up"]))
    def lose(self, how: str):
        if self.possible(how):
            self.sim.apply((how, 0))

    def teardown(self):
        if hasattr(self, "sim"):
            self.sim.settle()


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
