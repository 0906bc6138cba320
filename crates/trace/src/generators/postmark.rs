//! Generator for PostMark, a benchmark that creates and removes many small files (Katcher, "PostMark: a new file
//! system benchmark", 1997).
//!
//! The file sizes are those of Hildebrand, Ward and Honeyman, "Large files, small writes, and pNFS", 2006, section
//! 5.2.

use crate::rng::Rng;
use crate::{Action, Op};

/// Least and greatest length of a new file in bytes.
const SIZE: [u64; 2] = [1 << 10, 500 << 10];
/// Length of an append in bytes.
const APPEND: u32 = 1 << 10;
/// Length in bytes of the requests that write new files and read files.
const BLOCK: u64 = 4 << 10;
/// Approximate upper bound of the number of operations per file or transaction.
pub(super) const OPS_EACH: u64 = 256;

/// The files that exist, and the operations generated so far.
struct Store {
    rng: Rng,
    ops: Vec<Op>,
    /// File number and length in bytes of each existing file.
    files: Vec<(u32, u64)>,
    next: u32,
    fsync: bool,
}

pub(super) fn generate(seed: u64, files: u32, transactions: u32, fsync: bool) -> Vec<Op> {
    let mut store = Store { rng: Rng::new(seed), ops: Vec::new(), files: Vec::new(), next: 0, fsync };
    (0..files).for_each(|_| store.create());
    for _ in 0..transactions {
        match store.rng.below(2) {
            0 => store.create(),
            _ => store.remove(),
        }
        match store.rng.below(2) {
            0 => store.read(),
            _ => store.append(),
        }
    }
    while !store.files.is_empty() {
        store.remove();
    }
    store.ops
}

impl Store {
    fn blocks(&mut self, action: Action, file: u32, size: u64) {
        let blocks = (0..size.div_ceil(BLOCK)).map(|block| block * BLOCK);
        self.ops.extend(blocks.map(|offset| Op { action, file, offset, len: (size - offset).min(BLOCK) as u32 }));
    }

    fn close_written(&mut self, file: u32) {
        self.ops.extend(self.fsync.then(|| Op::of(Action::Fsync, file)));
        self.ops.push(Op::of(Action::Close, file));
    }

    fn create(&mut self) {
        let (file, size) = (self.next, self.rng.between(SIZE[0], SIZE[1]));
        self.next += 1;
        self.ops.push(Op::of(Action::Open, file));
        self.blocks(Action::Write, file, size);
        self.close_written(file);
        self.files.push((file, size));
    }

    fn choose(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.rng.below(self.files.len() as u64) as usize)
    }

    fn remove(&mut self) {
        let Some(at) = self.choose() else { return };
        let (file, _) = self.files.swap_remove(at);
        self.ops.push(Op::of(Action::Remove, file));
    }

    fn read(&mut self) {
        let Some(at) = self.choose() else { return };
        let (file, size) = self.files[at];
        self.ops.push(Op::of(Action::Open, file));
        self.blocks(Action::Read, file, size);
        self.ops.push(Op::of(Action::Close, file));
    }

    fn append(&mut self) {
        let Some(at) = self.choose() else { return };
        let (file, size) = self.files[at];
        self.files[at].1 += u64::from(APPEND);
        self.ops.extend([Op::of(Action::Open, file), Op::write(file, size, APPEND)]);
        self.close_written(file);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Action, Generator, parse, print};

    #[test]
    fn a_postmark_trace_creates_and_removes_files() {
        let trace = Generator::Postmark { files: 100, transactions: 2000, fsync: true }.generate(5).unwrap();
        let count = |action| trace.ops().filter(|op| op.action == action).count();
        // The test expects that half of the transactions create a file, and half of them append to a file.
        let appended = trace.ops().filter(|op| op.action == Action::Write && op.len == 1024 && op.offset > 0).count();
        assert!((950..1050).contains(&appended), "{appended}");
        assert!((1050..1150).contains(&count(Action::Remove)), "all that were made");
        assert_eq!(count(Action::Open), count(Action::Close));
        assert_eq!(count(Action::Fsync) + 2000 - appended, count(Action::Close), "an fsync for each file written");
        // The parser accepts only a valid sequence of operations, so parse the generated trace.
        assert_eq!(parse(print(&trace).as_bytes()).unwrap(), trace);
    }
}
