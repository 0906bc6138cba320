//! The check of the metadata store for `weir fsck`: verifies every invariant of the store in one consistent view.
//!
//! All invariants hold after every batch, so a violated invariant in one view is damage, even while clients change the
//! store. To bound memory, the check divides the inodes into ranges of inode numbers. For each range, it reads all
//! directory entries of the store once and counts those that refer to inodes of the range.

mod faults;
mod inodes;
mod lists;
mod names;

pub use faults::{At, Fault, Mended};

use crate::engine::{Broken, Unreadable, Value, View, Walk};
use crate::schema::{self, Core, FormatRecord, Record};
use inodes::Part;
use std::collections::HashSet;
use types::FileId;

/// A progress report of a check, passed to the caller's sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The check found a fault.
    Found(Fault),
    /// The check has read this many records since the previous [`Event::Looked`].
    Looked(u64),
}

/// Limits on the memory that a check of the metadata store uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Number of inodes whose links the check counts in one pass over all directory entries. Each inode needs 24 bytes
    /// of memory. With a lower limit, the check needs more passes.
    pub inodes: usize,
    /// Number of directories that the check remembers as reachable from the root. Each directory needs about 24 bytes
    /// of memory. With a lower limit, the check follows more chains of parents up to the root.
    pub directories: usize,
}

impl Default for Memory {
    /// Limits with which the check uses about 50 MiB of memory. For a store with 10^7 inodes, the check then needs ten
    /// passes over the directory entries.
    fn default() -> Self {
        Memory { inodes: 1 << 20, directories: 1 << 20 }
    }
}

/// The reason why a check of the metadata store ended early.
enum End {
    Broken(Broken),
    /// The caller's sink ended the check: it returned [`Walk::Stop`].
    Enough,
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        End::Broken(broken)
    }
}

impl From<Unreadable> for End {
    fn from(cause: Unreadable) -> Self {
        match cause {
            Unreadable::Broken(broken) => End::Broken(broken),
            // Damage in the database hides all later records of the key range, so the check cannot read them and
            // ends.
            damage => End::Broken(Broken::new(damage)),
        }
    }
}

type Checked<T = ()> = Result<T, End>;

/// A callback for each record of a key range; the callback receives the key and the value.
type Each<'e, C> = dyn FnMut(&mut C, &[u8], &[u8]) -> Checked + 'e;

/// Number of records between two [`Event::Looked`] reports.
const LOOKED: u64 = 4096;

/// Checks the store of `view` and returns all faults, with the default memory limits.
pub fn check(view: &dyn View) -> Result<Vec<Fault>, Broken> {
    let mut faults = Vec::new();
    check_into(view, Memory::default(), &mut |event| {
        if let Event::Found(fault) = event {
            faults.push(fault);
        }
        Walk::On
    })?;
    Ok(faults)
}

/// Checks the store of `view` and passes each fault to `sink` as soon as the check finds it. If `sink` returns
/// [`Walk::Stop`], the check ends early.
pub fn check_into(view: &dyn View, memory: Memory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Broken> {
    let mut check = Check { view, memory, sink, looked: 0, reachable: HashSet::new(), circular: HashSet::new() };
    match check.run() {
        Ok(()) | Err(End::Enough) => Ok(()),
        Err(End::Broken(broken)) => Err(broken),
    }
}

/// The state of a running check of the metadata store.
struct Check<'a> {
    view: &'a dyn View,
    memory: Memory,
    sink: &'a mut dyn FnMut(Event) -> Walk,
    looked: u64,
    /// Directories from which the chain of parents does not lead into a loop. The chain normally ends at the root.
    reachable: HashSet<FileId>,
    /// Directories from which the chain of parents does not reach the root, because the chain leads into a loop.
    circular: HashSet<FileId>,
}

/// The result of reading the core record of an inode.
enum Seen {
    /// The store has no core record for the inode.
    Absent,
    /// The core record of the inode is damaged.
    Damaged,
    /// The core record of the inode is valid.
    Core(Core),
}

impl Check<'_> {
    fn run(&mut self) -> Checked {
        let format = self.read(schema::FORMAT)?.and_then(|value| FormatRecord::look(&value));
        let Some(format) = format else {
            return self.found(Fault::Record { key: schema::FORMAT.to_vec() });
        };
        self.lists()?;
        let mut after = None;
        loop {
            let mut part = Part::default();
            let first = after.is_none();
            after = self.inodes(after, &mut part)?;
            self.names(first.then_some(&format.cookies), &mut part)?;
            self.count(&part)?;
            if after.is_none() {
                return self.tell();
            }
        }
    }

    fn found(&mut self, fault: Fault) -> Checked {
        match (self.sink)(Event::Found(fault)) {
            Walk::On => Ok(()),
            Walk::Stop => Err(End::Enough),
        }
    }

    /// Counts a record that the check has read, and reports progress after every [`LOOKED`] records.
    fn look(&mut self) -> Checked {
        self.looked += 1;
        if self.looked < LOOKED { Ok(()) } else { self.tell() }
    }

    fn tell(&mut self) -> Checked {
        match (self.sink)(Event::Looked(std::mem::take(&mut self.looked))) {
            Walk::On => Ok(()),
            Walk::Stop => Err(End::Enough),
        }
    }

    fn inode(&self, id: FileId) -> Checked<Seen> {
        Ok(match self.read(&schema::core_key(id))? {
            None => Seen::Absent,
            Some(value) => Core::look(&value).map_or(Seen::Damaged, Seen::Core),
        })
    }

    /// Returns the value of `key`. If the value does not match its checksum, returns an empty value, which decodes to
    /// no valid record.
    fn read(&self, key: &[u8]) -> Checked<Option<Value>> {
        match self.view.get(key) {
            Ok(value) => Ok(value),
            Err(Unreadable::Corrupt(_)) => Ok(Some(Value::new())),
            Err(Unreadable::Broken(broken)) => Err(broken.into()),
        }
    }

    /// Passes every record of a key range to `each`, which may also read other records of the same view. If a record is
    /// damaged, `each` receives an empty value for it.
    fn walk(&mut self, from: &[u8], to: &[u8], limit: usize, each: &mut Each<'_, Self>) -> Checked<Option<Vec<u8>>> {
        let view = self.view;
        let mut outcome = Ok(());
        let next = view.survey(from..to, limit, &mut |key, value| {
            outcome = self.look().and_then(|()| each(self, key, value.unwrap_or_default()));
            if outcome.is_ok() { Walk::On } else { Walk::Stop }
        })?;
        outcome.map(|()| next)
    }
}

/// Returns the inode number in a key of at least nine bytes. For a key of fewer bytes, returns 0, which is not the
/// number of any inode.
fn inode_in(key: &[u8]) -> FileId {
    schema::id_of(key.get(..9).unwrap_or_default()).unwrap_or(FileId(0))
}
