"""Who waits, and who is next: by priority, by whose turn it is, by who came first."""

from __future__ import annotations

import heapq

from meshwright.serving.policy.sequence import Sequence


class WaitingQueue:
    """Sequences that wait (or are swapped out), by user. With fairness, the user who has been served the fewest tokens
    is next among those of the best priority (the virtual token counter of Sheng et al., "Fairness in Serving Large
    Language Models", 2024); without it all are one user.
    """

    def __init__(self, is_fair: bool = False, has_priorities: bool = True) -> None:
        self._is_fair, self._has_priorities = is_fair, has_priorities
        self._queues: dict[str, list[tuple[int, int, Sequence]]] = {}
        self._served: dict[str, int] = {}
        self._members: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._members)

    def push(self, sequence: Sequence) -> None:
        """It waits from now on, at the place of its priority and of when it first came."""
        user = sequence.request.user if self._is_fair else ""
        queue = self._queues.setdefault(user, [])
        if not queue and self._is_fair:
            # Who comes back does not find the turns saved up that others did not have to share with him.
            active = [
                self._served[name] for name, held in self._queues.items() if held and name in self._served
            ]
            self._served[user] = max([self._served.get(user, 0), *([min(active)] if active else [])])
        heapq.heappush(queue, (*self._key(sequence), sequence))
        self._members.add(sequence)

    def head(self) -> Sequence | None:
        """Who is next."""
        best = self._best()
        return best[0][2] if best else None

    def pop(self) -> Sequence:
        """Who was `head` leaves the queue."""
        best = self._best()
        assert best, "nobody waits"
        sequence = heapq.heappop(best)[2]
        self._members.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """One waits no longer; nothing where it never did."""
        if sequence not in self._members:
            return
        self._members.remove(sequence)
        queue = self._queues[sequence.request.user if self._is_fair else ""]
        queue.remove((*self._key(sequence), sequence))
        heapq.heapify(queue)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Tokens that its user has been served."""
        if self._is_fair:
            user = sequence.request.user
            self._served[user] = self._served.get(user, 0) + num_tokens

    def _key(self, sequence: Sequence) -> tuple[int, int]:
        return (sequence.request.priority if self._has_priorities else 0), sequence.order

    def _best(self) -> list[tuple[int, int, Sequence]] | None:
        if not self._members:
            return None
        if not self._is_fair:
            return self._queues[""]
        held = [
            (queue[0][0], self._served[user], queue[0][1], user)
            for user, queue in self._queues.items()
            if queue
        ]
        return self._queues[min(held)[3]]
