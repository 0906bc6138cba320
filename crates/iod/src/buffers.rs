//! Payload buffers: page-aligned, of one size, borrowed only while a request is in hand, and only so many at a time.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use types::Machine;
use types::limits::{IOD_BUFFERS_MAX, PAYLOAD_MAX};
use types::machine::is_share_full;

use crate::lock::lock;

const PAGE: usize = 4096;
/// A payload and its XDR padding.
pub(crate) const BUFFER_LEN: usize = PAYLOAD_MAX + PAGE;
/// Buffers kept for later; more are made under load and freed after it.
const KEPT: usize = 64;

/// Lends buffers and takes them back. Whoever asks while all are lent waits: peers that hold them and stand still are cut
/// off soon then.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    returned: Condvar,
    most: usize,
}

#[derive(Default)]
struct State {
    free: Vec<Memory>,
    lent: usize,
    /// To the connections of each machine.
    by_machine: HashMap<Machine, usize>,
    /// How many connections of each machine wait for one.
    waiting: HashMap<Machine, usize>,
}

impl State {
    fn is_full(&self, machine: Machine, most: usize) -> bool {
        is_share_full(self.by_machine.get(&machine).copied().unwrap_or(0), self.lent, most)
    }
}

/// Counts one less for a machine.
fn take_one(counts: &mut HashMap<Machine, usize>, machine: Machine) {
    if let Some(count) = counts.get_mut(&machine) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&machine);
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool::new(IOD_BUFFERS_MAX)
    }
}

impl Pool {
    /// Lends at most `most` buffers at a time.
    pub(crate) fn new(most: usize) -> Self {
        Pool(Arc::new(Shared { state: Mutex::default(), returned: Condvar::new(), most }))
    }

    /// The right to hold as much memory as a buffer has, for a request from this machine. None has more than it leaves to the others.
    pub(crate) fn permit(&self, machine: Machine) -> Permit {
        let mut state = lock(&self.0.state);
        while state.is_full(machine, self.0.most) {
            *state.waiting.entry(machine).or_default() += 1;
            state = self.0.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
            take_one(&mut state.waiting, machine);
        }
        state.lent += 1;
        *state.by_machine.entry(machine).or_default() += 1;
        Permit { pool: self.clone(), machine }
    }

    /// A buffer of [`BUFFER_LEN`] bytes with arbitrary content, for a request from this machine.
    pub(crate) fn borrow(&self, machine: Machine) -> Buffer {
        let permit = self.permit(machine);
        let memory = lock(&self.0.state).free.pop();
        Buffer { memory: Some(memory.unwrap_or_else(Memory::new)), permit }
    }

    /// Whether half of the buffers are lent.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.0.state).lent >= self.0.most / 2
    }
}

/// The right to hold memory; goes back to its pool when dropped.
pub(crate) struct Permit {
    pool: Pool,
    machine: Machine,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.0.state);
        state.lent -= 1;
        take_one(&mut state.by_machine, self.machine);
        // All wake up, and each one looks. So nobody is woken while those who wait are of machines that have their share: a machine that sends nothing
        // for its hundreds of requests would cost the others that much for each of theirs.
        if state.waiting.keys().any(|machine| !state.is_full(*machine, self.pool.0.most)) {
            self.pool.0.returned.notify_all();
        }
    }
}

/// Memory that begins on a page boundary somewhere inside a larger allocation.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new() -> Self {
        let bytes = vec![0; BUFFER_LEN + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Memory { bytes, start }
    }
}

/// A borrowed buffer; goes back to its pool when dropped.
pub(crate) struct Buffer {
    memory: Option<Memory>,
    permit: Permit,
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &m.bytes[m.start..m.start + BUFFER_LEN])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |m| &mut m.bytes[m.start..m.start + BUFFER_LEN])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let free = &mut lock(&self.permit.pool.0.state).free;
            if free.len() < KEPT {
                free.push(memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Machine = Machine::Local(1);
    const OTHER: Machine = Machine::Local(2);

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Pool::default();
        let mut first = pool.borrow(ONE);
        first[0] = 7;
        assert_eq!(first.len(), BUFFER_LEN);
        assert_eq!(first.as_ptr() as usize % PAGE, 0);
        let address = first.as_ptr();
        drop(first);
        let again = pool.borrow(ONE);
        assert_eq!(again.as_ptr(), address);
        let other = pool.borrow(ONE);
        assert_ne!(other.as_ptr(), address);
        assert_eq!(other.as_ptr() as usize % PAGE, 0);
    }

    #[test]
    fn a_machine_has_no_more_than_it_leaves_and_others_need_not_wait() {
        let pool = Pool::new(4);
        let mut held: Vec<_> = (0..2).map(|_| pool.borrow(ONE)).collect();
        assert!(pool.is_short());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(pool.borrow(ONE).len()).unwrap());
            // It waits for its own, and nobody else for it.
            held.push(pool.borrow(OTHER));
            assert!(receiver.try_recv().is_err());
            held.truncate(1);
            assert_eq!(receiver.recv().unwrap(), BUFFER_LEN);
        });
        held.clear();
        assert!(!pool.is_short());
    }
}
