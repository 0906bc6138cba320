//! The requester's side of a slot table: which slot and sequence number the next request takes (RFC 8881 §2.10.6.1).

/// A slot taken for one request, with the sequence number to send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// The slot.
    pub slot: u32,
    /// The sequence number.
    pub sequence: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Sequence number of the next request.
    next: u32,
    busy: bool,
    /// Whether the peer may not have seen the request before `next`, because its reply never came.
    unsure: bool,
}

impl Entry {
    /// The first request on a slot carries 1 (§2.10.6.1).
    const FRESH: Entry = Entry { next: 1, busy: false, unsure: false };
}

/// The requester's slots of one channel: used by the client for requests and by the server for callbacks.
#[derive(Clone, Debug)]
pub struct Slots {
    entries: Vec<Entry>,
    /// Slots up to this one are used.
    target: u32,
}

impl Slots {
    /// `count` slots, at least one, none of them used.
    pub fn new(count: u32) -> Self {
        let count = count.max(1);
        Slots { entries: vec![Entry::FRESH; count as usize], target: count - 1 }
    }

    /// The lowest free slot that the peer wants to be used; `None` when all are taken.
    pub fn acquire(&mut self) -> Option<Ticket> {
        let slot = self.entries.iter().take(self.target as usize + 1).position(|e| !e.busy)?;
        let entry = &mut self.entries[slot];
        entry.busy = true;
        Some(Ticket { slot: slot as u32, sequence: entry.next })
    }

    /// The highest slot in use (`sa_highest_slotid`).
    pub fn highest_used(&self) -> Option<u32> {
        self.entries.iter().rposition(|e| e.busy).map(|slot| slot as u32)
    }

    /// Number of slots in use.
    pub fn used(&self) -> usize {
        self.entries.iter().filter(|e| e.busy).count()
    }

    /// Number of slots that may be used at once.
    pub fn usable(&self) -> usize {
        self.target as usize + 1
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.slot as usize).filter(|e| e.busy && e.next == ticket.sequence)
    }

    /// The peer executed the request: the slot moves on.
    pub fn done(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            *entry = Entry { next: ticket.sequence.wrapping_add(1), busy: false, unsure: false };
        }
        self.shrink();
    }

    /// The request was not sent, or the peer's SEQUENCE failed: the slot is as before.
    ///
    /// If it is unknown whether the request before was seen, the refusal tells: it was not, and its number is free.
    pub fn refused(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            let next = if entry.unsure { ticket.sequence.wrapping_sub(1) } else { ticket.sequence };
            *entry = Entry { next, busy: false, unsure: false };
        }
        self.shrink();
    }

    /// The request was given up without a reply, so nobody knows whether the peer has seen it.
    ///
    /// The next request takes the next number; should the peer refuse that, [`Slots::refused`] goes back. Only for
    /// requests that need not happen exactly once; others are sent again with the same ticket.
    pub fn lost(&mut self, ticket: Ticket) {
        if let Some(entry) = self.entry(ticket) {
            let unsure = !entry.unsure;
            let next = if unsure { ticket.sequence.wrapping_add(1) } else { ticket.sequence };
            *entry = Entry { next, busy: false, unsure: true };
        }
        self.shrink();
    }

    /// Obeys what the peer grants: `highest` is the highest slot it accepts, `target` the highest it wants used.
    ///
    /// Neither is taken beyond `limit` slots. Slots that are given up begin again at 1 when they come back.
    pub fn grant(&mut self, highest: u32, target: u32, limit: u32) {
        let limit = limit.max(1) - 1;
        self.target = target.min(highest).min(limit);
        if self.entries.len() <= self.target as usize {
            self.entries.resize(self.target as usize + 1, Entry::FRESH);
        }
        self.shrink();
    }

    /// Forgets free slots above the target.
    fn shrink(&mut self) {
        let keep = self.target.max(self.highest_used().unwrap_or(0)) as usize + 1;
        self.entries.truncate(keep);
    }
}
