//! The check of the metadata store: verifies every invariant of a store in one view of it (`weir fsck`).
//!
//! All invariants hold after every batch, so every violation in one view is damage, however busy the store is. Memory
//! is bounded: names are counted for a limited number of inodes at a time (a part), with one pass over all names for
//! each part.

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

/// What a check passes to its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A fault was found.
    Found(Fault),
    /// So many records were read since the last such event.
    Looked(u64),
}

/// Limits on the memory of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Inodes whose names are counted at a time, 24 bytes each; a lower limit means more passes over the names.
    pub inodes: usize,
    /// Directories remembered as reachable, about 24 bytes each; a lower limit means longer walks up the tree.
    pub directories: usize,
}

impl Default for Memory {
    /// About 50 MiB: 10^7 inodes are ten parts.
    fn default() -> Self {
        Memory { inodes: 1 << 20, directories: 1 << 20 }
    }
}

/// Why a check ended early.
enum End {
    Broken(Broken),
    /// The caller's sink stopped the check.
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
            // Records after the damage cannot be found.
            damage => End::Broken(Broken::new(damage)),
        }
    }
}

type Checked<T = ()> = Result<T, End>;

/// Receives a key and its value.
type Each<'e, C> = dyn FnMut(&mut C, &[u8], &[u8]) -> Checked + 'e;

/// Number of records between two [`Event::Looked`].
const LOOKED: u64 = 4096;

/// Returns all faults in the store of `view`.
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

/// As [`check`], but passes each fault to `sink` when it is found; `sink` may stop the check.
pub fn check_into(view: &dyn View, memory: Memory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Broken> {
    let mut check = Check { view, memory, sink, looked: 0, reachable: HashSet::new(), circular: HashSet::new() };
    match check.run() {
        Ok(()) | Err(End::Enough) => Ok(()),
        Err(End::Broken(broken)) => Err(broken),
    }
}

/// A running check.
struct Check<'a> {
    view: &'a dyn View,
    memory: Memory,
    sink: &'a mut dyn FnMut(Event) -> Walk,
    looked: u64,
    /// Directories from which the way up reaches the root.
    reachable: HashSet<FileId>,
    /// Directories from which the way up does not reach the root, as they are in a loop or below one.
    circular: HashSet<FileId>,
}

/// An inode, as far as it can be read.
enum Seen {
    /// The inode does not exist.
    Absent,
    /// The inode is damaged.
    Damaged,
    /// The inode has this core.
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

    /// Counts a record that was read.
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

    /// Returns the value of `key`. A value that does not match its checksum is returned as empty, which decodes to no
    /// record.
    fn read(&self, key: &[u8]) -> Checked<Option<Value>> {
        match self.view.get(key) {
            Ok(value) => Ok(value),
            Err(Unreadable::Corrupt(_)) => Ok(Some(Value::new())),
            Err(Unreadable::Broken(broken)) => Err(broken.into()),
        }
    }

    /// Passes every record of a range to `each`, which may also read other records of the view. Values are as in
    /// [`Self::read`].
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

/// Returns the inode in a key of ten bytes or more; 0, which no inode has, for other keys.
fn inode_in(key: &[u8]) -> FileId {
    schema::id_of(key.get(..9).unwrap_or_default()).unwrap_or(FileId(0))
}
