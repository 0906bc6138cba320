//! The requester's slot table: the slot and the sequence number of the next request (RFC 8881 §2.10.6.1).

/// A slot taken for one request, with the sequence number to send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// The slot.
    pub slot: u32,
    /// The sequence number.
    pub sequence: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Busy,
    /// The sequence number is unknown; the slot is never used again.
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Sequence number of the next request.
    next: u32,
    state: Use,
    /// Whether the peer may not have received the request before `next`, because its reply never arrived.
    unsure: bool,
}

impl Entry {
    /// The first request on a slot has sequence number 1 (§2.10.6.1).
    const FRESH: Entry = Entry { next: 1, state: Use::Free, unsure: false };

    fn free(next: u32) -> Self {
        Entry { next, ..Entry::FRESH }
    }
}

/// The requester's slots of one channel: the client uses them for requests, the server for callbacks.
#[derive(Clone, Debug)]
pub struct Slots {
    /// One entry for each slot that the peer accepts, and entries above for slots still in use.
    entries: Vec<Entry>,
    /// The highest slot that the peer accepts.
    highest: u32,
    /// Only slots up to this one are used; at most `highest`.
    target: u32,
}

impl Slots {
    /// Creates `count` slots, at least one, all free.
    pub fn new(count: u32) -> Self {
        let count = count.max(1);
        Slots { entries: vec![Entry::FRESH; count as usize], highest: count - 1, target: count - 1 }
    }

    /// Takes the lowest free slot up to the target; `None` if all are taken.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let slot = self.entries.iter().take(self.target as usize + 1).position(|e| e.state == Use::Free)?;
        let entry = &mut self.entries[slot];
        entry.state = Use::Busy;
        Some(Ticket { slot: slot as u32, sequence: entry.next })
    }

    /// Returns the highest slot in use (`sa_highest_slotid`).
    pub fn highest_used(&self) -> Option<u32> {
        self.entries.iter().rposition(|e| e.state == Use::Busy).map(|slot| slot as u32)
    }

    /// Number of slots in use.
    pub fn used(&self) -> usize {
        self.entries.iter().filter(|e| e.state == Use::Busy).count()
    }

    /// Number of slots that may be used at once.
    pub fn usable(&self) -> usize {
        self.target as usize + 1
    }

    /// Returns whether this request is in flight.
    pub fn is_busy(&self, ticket: Ticket) -> bool {
        let entry = self.entries.get(ticket.slot as usize);
        entry.is_some_and(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.slot as usize).filter(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    /// Ends a request that the peer executed: the slot's sequence number advances.
    pub fn done(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            *entry = Entry::free(ticket.sequence.wrapping_add(1));
        }
        self.shrink();
    }

    /// Ends a request that was not sent, or whose SEQUENCE failed with an error other than SEQ_MISORDERED: the slot is
    /// unchanged.
    pub fn refused(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            entry.state = Use::Free;
        }
        self.shrink();
    }

    /// Handles SEQ_MISORDERED. If it was unknown whether the peer had received the previous request, it is now known
    /// that it had not, and its number is free. Otherwise the slot is unusable.
    pub fn misordered(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            if entry.unsure {
                *entry = Entry::free(ticket.sequence.wrapping_sub(1));
            } else {
                entry.state = Use::Dead;
            }
        }
        self.shrink();
    }

    /// Ends a request that was abandoned without a reply, so that it is unknown whether the peer received it.
    ///
    /// The next request uses the next number; if the peer reports it as misordered, [`Slots::misordered`] steps back.
    /// Only for requests that need not execute exactly once; other requests are sent again with the same ticket. A slot
    /// that loses two replies in a row is given up.
    pub fn lost(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            if entry.unsure {
                entry.state = Use::Dead;
            } else {
                *entry = Entry { unsure: true, ..Entry::free(ticket.sequence.wrapping_add(1)) };
            }
        }
        self.shrink();
    }

    /// Returns whether no slot will ever be free again.
    pub fn is_dead(&self) -> bool {
        self.entries.iter().take(self.usable()).all(|e| e.state == Use::Dead)
    }

    /// Applies the peer's grant: `highest` is the highest slot that it accepts, `target` the highest that it wants
    /// used.
    ///
    /// Uses at most `limit` slots. Slots that the peer no longer accepts start again at 1 when they come back; slots
    /// above the target that it still accepts keep their numbers.
    pub fn grant(&mut self, highest: u32, target: u32, limit: u32) {
        self.highest = highest.min(limit.max(1) - 1);
        self.target = target.min(self.highest);
        if self.entries.len() <= self.highest as usize {
            self.entries.resize(self.highest as usize + 1, Entry::FRESH);
        }
        self.shrink();
    }

    /// Lowers or raises the target without changing how many slots the peer accepts.
    pub fn aim(&mut self, target: u32) {
        self.target = target.min(self.highest);
    }

    /// Drops free slots that the peer does not accept.
    fn shrink(&mut self) {
        let busy = self.highest_used().unwrap_or(0);
        self.entries.truncate(self.highest.max(busy) as usize + 1);
    }
}
