//! A history of concurrent reads and writes of registers, with a linearizability check. All writes in the history have
//! unique values.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A register: a fixed position in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(pub usize);

/// A write to a register that has begun and has not returned.
pub struct Write {
    slot: Slot,
    by: usize,
    value: u64,
    begun: u64,
}

impl Write {
    /// Returns the value to write, which is unique in the history. The initial value of every register is 0.
    pub fn value(&self) -> u64 {
        self.value
    }
}

/// A read of a register that has begun and has not returned.
pub struct Read {
    slot: Slot,
    by: usize,
    begun: u64,
}

/// A read or write that has returned: its process, its value, and the values of the logical clock at its begin and end.
#[derive(Clone, Copy)]
struct Call {
    by: usize,
    value: u64,
    begun: u64,
    ended: u64,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {} from {} to {}", self.value, self.by, self.begun, self.ended)
    }
}

#[derive(Default)]
struct Calls {
    writes: Vec<Call>,
    reads: Vec<Call>,
}

/// The history of all calls on all registers.
pub struct History {
    clock: AtomicU64,
    slots: Vec<Mutex<Calls>>,
}

impl History {
    /// Creates an empty history of `slots` registers, all with the initial value 0.
    pub fn new(slots: usize) -> Self {
        let first = Call { by: 0, value: 0, begun: 0, ended: 0 };
        let calls = || Mutex::new(Calls { writes: vec![first], reads: Vec::new() });
        History { clock: AtomicU64::new(1), slots: (0..slots).map(|_| calls()).collect() }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// Records that the process `by` is about to write.
    pub fn begin_write(&self, slot: Slot, by: usize) -> Write {
        let begun = self.tick();
        Write { slot, by, value: begun, begun }
    }

    /// Records that a write has returned.
    pub fn end_write(&self, Write { slot, by, value, begun }: Write) {
        let ended = self.tick();
        self.slots[slot.0].lock().unwrap().writes.push(Call { by, value, begun, ended });
    }

    /// Records that the process `by` is about to read.
    pub fn begin_read(&self, slot: Slot, by: usize) -> Read {
        Read { slot, by, begun: self.tick() }
    }

    /// Records that a read has returned `value`.
    pub fn end_read(&self, Read { slot, by, begun }: Read, value: u64) {
        let ended = self.tick();
        self.slots[slot.0].lock().unwrap().reads.push(Call { by, value, begun, ended });
    }

    /// Checks the history. Panics if a read returned a value that no process wrote, that a process wrote only after the
    /// read had ended, or that a later write had overwritten before the read began. With `atomic`, also panics if a
    /// read returned an older value than a read that had ended before this read began.
    pub fn check(&self, atomic: bool) {
        for (number, calls) in self.slots.iter().enumerate() {
            let calls = calls.lock().unwrap();
            let write = |read: &Call| {
                let found = calls.writes.iter().find(|write| write.value == read.value);
                *found.unwrap_or_else(|| panic!("place {number}: {read} returned what no client wrote"))
            };
            for read in &calls.reads {
                let of = write(read);
                assert!(of.begun < read.ended, "place {number}: {read} returned what {of} wrote later");
                let between = |other: &&Call| other.begun > of.ended && other.ended < read.begun;
                if let Some(newer) = calls.writes.iter().find(between) {
                    panic!("place {number}: {read} returned what {of} wrote and {newer} had replaced");
                }
                let earlier = calls.reads.iter().filter(|earlier| atomic && earlier.ended < read.begun);
                if let Some(back) = earlier.into_iter().find(|earlier| write(earlier).begun > of.ended) {
                    panic!("place {number}: {read} returned what {of} wrote, after {back} returned newer bytes");
                }
            }
        }
    }
}
