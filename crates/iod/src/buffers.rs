//! A pool of page-aligned payload buffers of one size, which limits the memory that requests in progress use.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use types::Machine;
use types::limits::{IOD_BUFFERS_MAX, PAYLOAD_MAX};
use types::machine::is_share_full;

use crate::lock::lock;

const PAGE: usize = 4096;
/// Length of a buffer in bytes: the largest payload and its XDR padding.
pub(crate) const BUFFER_LEN: usize = PAYLOAD_MAX + PAGE;
/// Maximum number of free buffers that the pool keeps for reuse. The pool frees the memory of all other buffers when
/// their borrowers return them.
const KEPT: usize = 64;

/// A pool that lends buffers to connections. The pool makes a caller wait while all buffers are lent. While at least
/// half of the buffers are lent, the iod disconnects a peer that stalls for two seconds inside a request or reply.
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
    /// Number of buffers lent to the connections of each peer machine.
    by_machine: HashMap<Machine, usize>,
    /// Number of connections of each peer machine that wait for a buffer.
    waiting: HashMap<Machine, usize>,
}

impl State {
    fn is_full(&self, machine: Machine, most: usize) -> bool {
        is_share_full(self.by_machine.get(&machine).copied().unwrap_or(0), self.lent, most)
    }
}

/// Subtracts one from the count of `machine` in `counts`. Removes the entry when the count is zero.
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
    /// Makes a pool that lends at most `most` buffers at the same time.
    pub(crate) fn new(most: usize) -> Self {
        Pool(Arc::new(Shared { state: Mutex::default(), returned: Condvar::new(), most }))
    }

    /// Waits for a permit to allocate memory of the size of one buffer, for a request from the client machine
    /// `machine`. Waits while no buffer is free, and while requests from `machine` hold at least as many buffers as are
    /// free (`is_share_full`).
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

    /// Waits for a free buffer of [`BUFFER_LEN`] bytes, and lends it to a request from the client machine `machine`.
    /// The content of the buffer is arbitrary.
    pub(crate) fn borrow(&self, machine: Machine) -> Buffer {
        let permit = self.permit(machine);
        let memory = lock(&self.0.state).free.pop();
        Buffer { memory: Some(memory.unwrap_or_else(Memory::new)), permit }
    }

    /// Returns whether at least half of the buffers of the pool are lent.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.0.state).lent >= self.0.most / 2
    }
}

/// A permit to allocate memory of the size of one buffer. Dropping it returns the permit to its pool.
pub(crate) struct Permit {
    pool: Pool,
    machine: Machine,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.0.state);
        state.lent -= 1;
        take_one(&mut state.by_machine, self.machine);
        // `notify_all` wakes every thread that waits for a buffer. So call `notify_all` only if one of these threads
        // can get a buffer, because its client machine holds fewer buffers than are free. Otherwise a machine with
        // hundreds of stalled requests would slow down the requests of other machines.
        if state.waiting.keys().any(|machine| !state.is_full(*machine, self.pool.0.most)) {
            self.pool.0.returned.notify_all();
        }
    }
}

/// A page-aligned buffer inside a larger allocation.
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

/// A borrowed buffer; returned to its pool when dropped.
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
    fn buffers_are_aligned_and_return_to_the_pool() {
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
    fn one_machine_takes_at_most_half_of_the_free_buffers_and_others_do_not_wait() {
        let pool = Pool::new(4);
        let mut held: Vec<_> = (0..2).map(|_| pool.borrow(ONE)).collect();
        assert!(pool.is_short());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(pool.borrow(ONE).len()).unwrap());
            // The spawned thread waits for a buffer: machine `ONE` holds two of the four buffers, and only two are
            // free. A connection of machine `OTHER` gets a buffer at once.
            held.push(pool.borrow(OTHER));
            assert!(receiver.try_recv().is_err());
            held.truncate(1);
            assert_eq!(receiver.recv().unwrap(), BUFFER_LEN);
        });
        held.clear();
        assert!(!pool.is_short());
    }
}
