"""Who reads a prompt for whom: choices of one prompt, and requests that begin alike, start from forks of one cache."""

from __future__ import annotations

from forerun.drafting.caches import MIN_SHARED, common_length
from forerun.engine.kept import KeptTexts
from forerun.engine.scheduler import Scheduler
from forerun.engine.sequence import Sequence
from forerun.errors import ContractError
from forerun.runtime.base import Model


class SharedPrompts:
    """Who waits for whose prompt. A follower is scheduled once its leader has read the prompt and forked when it is
    admitted, so no more caches are held than sequences run, but for the leader's own: that one is held until its last
    follower has started, also when the leader has ended, unless memory is short.

    With `kept`, texts that have ended and texts that are running lend their beginnings to every new one, and a new one
    waits for another that is about to read most of it.
    """

    def __init__(self, target: Model, scheduler: Scheduler, kept: KeptTexts | None = None) -> None:
        self._target, self._scheduler, self._kept = target, scheduler, kept
        self._followers: dict[int, list[Sequence]] = {}  # by leader: those who have not started
        self._read: set[int] = set()  # leaders whose cache holds the prompt
        self._ended: dict[int, None] = {}  # of these, the ones that are only held for their followers, in order

    def join(self, sequence: Sequence, leader: Sequence) -> bool:
        """Make `sequence` start from the leader's cache; False where that can no longer be, so that it starts alone."""
        if sequence.tokens[: sequence.prompt_length] != leader.tokens[: leader.prompt_length]:
            raise ContractError("a sequence was added with a leader of another prompt")
        key = leader.sequence_id
        if leader.finish_reason is not None or leader.num_output:
            return False
        self._followers.setdefault(key, []).append(sequence)
        sequence.leader_id = key
        return True

    def note_read(self, leader: Sequence) -> None:
        """The leader's prompt has been read: let its followers be scheduled."""
        key = leader.sequence_id
        if key in self._followers and key not in self._read:
            self._read.add(key)
            for follower in self._followers[key]:
                self._scheduler.add(follower)

    def give_way(self, sequence: Sequence) -> None:
        """Free the cache of a sequence that is to be resumed later. Whoever waits for its prompt goes on waiting."""
        key = sequence.sequence_id
        self._forget_reading(key)
        self._target.free(key)

    @property
    def num_held(self) -> int:
        """Tokens in caches that are only held for followers."""
        return sum(self._target.length(key) for key in self._ended)

    def shrink(self, num_tokens: int) -> None:
        """Hold at most so many tokens for followers: where there are more, those read their prompt again."""
        while self.num_held > num_tokens:
            key = next(iter(self._ended))
            self._forget_reading(key)
            self._hand_over(key)
            del self._ended[key]
            self._target.free(key)

    def begin(self, sequence: Sequence) -> bool:
        """Give a sequence its cache; False where it had better wait for another that reads the same. May be done again
        after it was interrupted."""
        if sequence.leader_id in self._read:
            # The prompt's last token is fed again, for the row after it.
            source, length = sequence.leader_id, sequence.prompt_length - 1
        elif self._kept is None:
            source, length = None, 0
        else:
            source, length = self._kept.nearest(sequence, self._scheduler.running)
            if self._is_being_read(sequence, length):
                return False
        self._target.free(sequence.sequence_id)
        if source is None:
            self._target.begin(sequence.sequence_id)
        else:
            self._target.fork(source, sequence.sequence_id, length)
        if not sequence.num_output:  # what it shares when it is resumed is its own text
            sequence.num_shared = length
        sequence.is_begun = True
        self._leave(sequence)
        return True

    def _is_being_read(self, sequence: Sequence, num_shared: int) -> bool:
        """Whether a running sequence is about to read much more of this one's text than can be had now, and will not be
        kept from it by others that go first."""
        if self._kept is None or sequence.num_unscored:
            return False
        for other in self._scheduler.running:
            is_reading = other.is_begun and other is not sequence and other.num_missing > 1
            if is_reading and other.service.priority <= sequence.service.priority:
                saved = common_length(other.tokens, sequence.tokens) - num_shared
                is_much = saved >= max(MIN_SHARED, (len(sequence.tokens) - num_shared) / 2)
                if is_much and self._kept.may_share(sequence, other):
                    return True
        return False

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended: free what nobody needs any more, and find a new reader if it was to read for others.
        May be done again after it was interrupted."""
        self._leave(sequence)
        key = sequence.sequence_id
        if key not in self._followers:
            if self._kept is None or not self._kept.keep(sequence):
                self._target.free(key)
        elif key in self._read:
            self._target.keep(key, sequence.prompt_length - 1)
            self._ended[key] = None
        else:
            self._hand_over(key)
            self._target.free(key)
        sequence.is_begun = False

    def _forget_reading(self, key: int) -> None:
        """A leader's cache is about to be lost: its followers are no longer to be scheduled."""
        if key in self._read:
            self._read.remove(key)
            for follower in self._followers[key]:
                self._scheduler.remove(follower)

    def _hand_over(self, key: int) -> None:
        """Have the first follower read for the others, in place of a leader that does not."""
        first, *rest = self._followers[key]
        first.leader_id = None
        if rest:
            self._followers[first.sequence_id] = rest
            for follower in rest:
                follower.leader_id = first.sequence_id
        self._scheduler.add(first)
        del self._followers[key]

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence off the list of those that wait for its leader."""
        key, sequence.leader_id = sequence.leader_id, None
        if key is None:
            return
        self._followers[key] = [other for other in self._followers[key] if other is not sequence]
        if not self._followers[key]:
            del self._followers[key]
            self._read.discard(key)
            if key in self._ended:
                del self._ended[key]
                self._target.free(key)
