//! The requester's slot table of a session channel: which slots are in use, and their next sequence numbers (RFC 8881
//! §2.10.6.1).

/// A slot that one request occupies, and the sequence number of the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// The slot id (`sa_slotid`).
    pub slot: u32,
    /// The sequence number of the request on the slot (`sa_sequenceid`).
    pub sequence: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Busy,
    /// The requester does not know which sequence number the peer expects on the slot, so it never uses the slot again.
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The sequence number of the next request on the slot, or of the request in flight.
    next: u32,
    state: Use,
    /// Whether the reply to the previous request on the slot never arrived, so that the peer may not have received that
    /// request.
    unsure: bool,
}

impl Entry {
    /// A slot that was never used: the first request has sequence number 1 (§2.10.6.1).
    const FRESH: Entry = Entry { next: 1, state: Use::Free, unsure: false };

    fn free(next: u32) -> Self {
        Entry { next, ..Entry::FRESH }
    }
}

/// The requester's slot table of one channel: the client's on the fore channel, the server's on the backchannel.
#[derive(Clone, Debug)]
pub struct Slots {
    /// One entry for each slot that the peer grants, and for each higher slot with a request still in flight.
    entries: Vec<Entry>,
    /// The highest slot id that the peer grants.
    highest: u32,
    /// The highest slot id that new requests use; at most `highest`.
    target: u32,
}

impl Slots {
    /// Creates a table of `count` free slots, at least one.
    pub fn new(count: u32) -> Self {
        let count = count.max(1);
        Slots { entries: vec![Entry::FRESH; count as usize], highest: count - 1, target: count - 1 }
    }

    /// Occupies the free slot with the lowest id. Returns `None` if no slot that new requests may use is free.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let slot = self.entries.iter().take(self.target as usize + 1).position(|e| e.state == Use::Free)?;
        let entry = &mut self.entries[slot];
        entry.state = Use::Busy;
        Some(Ticket { slot: slot as u32, sequence: entry.next })
    }

    /// Returns the highest slot id in use (`sa_highest_slotid`).
    pub fn highest_used(&self) -> Option<u32> {
        self.entries.iter().rposition(|e| e.state == Use::Busy).map(|slot| slot as u32)
    }

    /// Returns the number of slots with a request in flight.
    pub fn used(&self) -> usize {
        self.entries.iter().filter(|e| e.state == Use::Busy).count()
    }

    /// Returns the number of slots that new requests may use.
    pub fn usable(&self) -> usize {
        self.target as usize + 1
    }

    /// Returns whether the request with the slot and sequence number of this ticket is in flight.
    pub fn is_busy(&self, ticket: Ticket) -> bool {
        let entry = self.entries.get(ticket.slot as usize);
        entry.is_some_and(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.slot as usize).filter(|e| e.state == Use::Busy && e.next == ticket.sequence)
    }

    /// Frees the slot of a request that the peer executed. The sequence number of the slot advances by 1.
    pub fn done(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            *entry = Entry::free(ticket.sequence.wrapping_add(1));
        }
        self.shrink();
    }

    /// Frees the slot of a request that was not sent, or whose SEQUENCE failed with an error other than SEQ_MISORDERED.
    /// The slot keeps its sequence number.
    pub fn refused(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            entry.state = Use::Free;
        }
        self.shrink();
    }

    /// Handles SEQ_MISORDERED. If the reply to the previous request on the slot never arrived, the error shows that
    /// the peer did not receive that previous request. The slot then returns to the sequence number of that previous
    /// request. Otherwise the slot becomes unusable.
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

    /// Frees the slot of a request that the requester abandons without a reply; the peer may or may not have executed
    /// the request.
    ///
    /// The next request on the slot uses the next sequence number. If the peer replies SEQ_MISORDERED,
    /// [`Slots::misordered`] returns to the previous sequence number. After two missing replies in a row the slot is
    /// unusable. Do not call this method for a request that is not idempotent: send such a request again with the same
    /// slot and sequence number.
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

    /// Returns whether every slot that new requests may use is unusable, because the requester does not know the
    /// sequence number that the peer expects. The client then needs a new session.
    pub fn is_dead(&self) -> bool {
        self.entries.iter().take(self.usable()).all(|e| e.state == Use::Dead)
    }

    /// Sets the slots that the peer grants: `highest` is the highest slot id that the peer accepts, `target` the
    /// highest slot id that the peer wants the requester to use.
    ///
    /// The table uses at most `limit` slots. A slot that the peer withdraws and later grants again starts at sequence
    /// number 1. A slot above `target` that the peer still accepts keeps its sequence number.
    pub fn grant(&mut self, highest: u32, target: u32, limit: u32) {
        self.highest = highest.min(limit.max(1) - 1);
        self.target = target.min(self.highest);
        if self.entries.len() <= self.highest as usize {
            self.entries.resize(self.highest as usize + 1, Entry::FRESH);
        }
        self.shrink();
    }

    /// Changes the highest slot id that new requests use, without changing which slots the peer accepts.
    pub fn aim(&mut self, target: u32) {
        self.target = target.min(self.highest);
    }

    /// Removes the table entries of free slots above the peer's highest slot id.
    fn shrink(&mut self) {
        let busy = self.highest_used().unwrap_or(0);
        self.entries.truncate(self.highest.max(busy) as usize + 1);
    }
}
