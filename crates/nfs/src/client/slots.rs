//! The requester's side of a slot table: which slot and sequence number the next request takes (RFC 8881 §2.10.6.1).

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
    /// Nobody knows its sequence number any more; never used again.
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Sequence number of the next request.
    next: u32,
    state: Use,
    /// Whether the peer may not have seen the request before `next`, because its reply never came.
    unsure: bool,
}

impl Entry {
    /// The first request on a slot carries 1 (§2.10.6.1).
    const FRESH: Entry = Entry { next: 1, state: Use::Free, unsure: false };

    fn free(next: u32) -> Self {
        Entry { next, ..Entry::FRESH }
    }
}

/// The requester's slots of one channel: used by the client for requests and by the server for callbacks.
#[derive(Clone, Debug)]
pub struct Slots {
    /// One per slot that the peer accepts, and above them those still in use.
    entries: Vec<Entry>,
    /// The highest slot that the peer accepts.
    highest: u32,
    /// Slots up to this one are used; at most `highest`.
    target: u32,
}

impl Slots {
    /// `count` slots, at least one, none of them used.
    pub fn new(count: u32) -> Self {
        let count = count.max(1);
        Slots { entries: vec![Entry::FRESH; count as usize], highest: count - 1, target: count - 1 }
    }

    /// The lowest free slot that the peer wants to be used; `None` when all are taken.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let slot = self.entries.iter().take(self.target as usize + 1).position(|e| e.state == Use::Free)?;
        let entry = &mut self.entries[slot];
        entry.state = Use::Busy;
        Some(Ticket { slot: slot as u32, sequence: entry.next })
    }

    /// The highest slot in use (`sa_highest_slotid`).
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

    /// Whether this request is in flight.
    pub fn is_busy(&self, ticket: Ticket) -> bool {
        let entry = self.entries.get(ticket.slot as usize);
        entry.is_some_and(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.slot as usize).filter(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    /// The peer executed the request: the slot moves on.
    pub fn done(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            *entry = Entry::free(ticket.sequence.wrapping_add(1));
        }
        self.shrink();
    }

    /// The request was not sent, or the peer's SEQUENCE failed with anything but SEQ_MISORDERED: the slot is as before.
    pub fn refused(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            entry.state = Use::Free;
        }
        self.shrink();
    }

    /// The peer's SEQUENCE failed with SEQ_MISORDERED. If it was unknown whether the peer had seen the request before,
    /// now it is known that it had not, and its number is free; otherwise the slot is of no use any more.
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

    /// The request was given up without a reply, so nobody knows whether the peer has seen it.
    ///
    /// The next request takes the next number; should the peer find that misordered, [`Slots::misordered`] goes back.
    /// Only for requests that need not happen exactly once; others are sent again with the same ticket. A slot that
    /// loses two replies in a row is given up.
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

    /// Whether no slot will ever be free again.
    pub fn is_dead(&self) -> bool {
        self.entries.iter().take(self.usable()).all(|e| e.state == Use::Dead)
    }

    /// Obeys what the peer grants: `highest` is the highest slot it accepts, `target` the highest it wants used.
    ///
    /// Neither is taken beyond `limit` slots. Slots that the peer does not accept any more begin again at 1 when they
    /// come back; those it only does not want used keep their numbers.
    pub fn grant(&mut self, highest: u32, target: u32, limit: u32) {
        self.highest = highest.min(limit.max(1) - 1);
        self.target = target.min(self.highest);
        if self.entries.len() <= self.highest as usize {
            self.entries.resize(self.highest as usize + 1, Entry::FRESH);
        }
        self.shrink();
    }

    /// Asks for fewer slots to be used, without a word on how many the peer accepts.
    pub fn aim(&mut self, target: u32) {
        self.target = target.min(self.highest);
    }

    /// Forgets slots that the peer does not accept, once they are free.
    fn shrink(&mut self) {
        let busy = self.highest_used().unwrap_or(0);
        self.entries.truncate(self.highest.max(busy) as usize + 1);
    }
}
