//! Looking for damage: everything that must hold in a store, checked against one view of it.
//!
//! All of it holds after every batch, so what is found in one view is damage, however busy the store is meanwhile.
//! Memory is bounded: names are counted for so many inodes at a time, and looked through once for each such part.

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

/// What a check tells while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Something is wrong.
    Found(Fault),
    /// So many records were looked at since the last time.
    Looked(u64),
}

/// How much memory a check may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Inodes whose names are counted at a time, each 24 bytes; fewer mean that the names are looked through more often.
    pub inodes: usize,
    /// Directories remembered as reachable, about 24 bytes each; fewer mean longer ways up the tree.
    pub directories: usize,
}

impl Default for Memory {
    /// About 50 MiB: 10^7 inodes are ten parts.
    fn default() -> Self {
        Memory { inodes: 1 << 20, directories: 1 << 20 }
    }
}

/// Why a check has ended before its end.
enum End {
    Broken(Broken),
    /// Whoever is told wanted no more.
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
            // Whatever lies behind cannot be found.
            damage => End::Broken(Broken::new(damage)),
        }
    }
}

type Checked<T = ()> = Result<T, End>;

/// Looks at a key and its value.
type Each<'e, C> = dyn FnMut(&mut C, &[u8], &[u8]) -> Checked + 'e;

/// Records between two [`Event::Looked`].
const LOOKED: u64 = 4096;

/// Everything that is wrong in the store that `view` shows.
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

/// As [`check`], telling `sink` of every fault when it is found; it may end the check.
pub fn check_into(view: &dyn View, memory: Memory, sink: &mut dyn FnMut(Event) -> Walk) -> Result<(), Broken> {
    let mut check = Check { view, memory, sink, looked: 0, reachable: HashSet::new(), circular: HashSet::new() };
    match check.run() {
        Ok(()) | Err(End::Enough) => Ok(()),
        Err(End::Broken(broken)) => Err(broken),
    }
}

/// A check at work.
struct Check<'a> {
    view: &'a dyn View,
    memory: Memory,
    sink: &'a mut dyn FnMut(Event) -> Walk,
    looked: u64,
    /// Directories from which the root is reached.
    reachable: HashSet<FileId>,
    /// Directories from which it is not, as they are in a circle or below one.
    circular: HashSet<FileId>,
}

/// An inode as far as it can be read.
enum Seen {
    /// There is none.
    Absent,
    /// It is damaged.
    Damaged,
    /// It is this.
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

    /// Counts a record that was looked at.
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

    /// The value of `key`; one that does not match its checksum counts as empty, which no record is that decodes.
    fn read(&self, key: &[u8]) -> Checked<Option<Value>> {
        match self.view.get(key) {
            Ok(value) => Ok(value),
            Err(Unreadable::Corrupt(_)) => Ok(Some(Value::new())),
            Err(Unreadable::Broken(broken)) => Err(broken.into()),
        }
    }

    /// Shows every record of a range to `each`, which may look elsewhere in the view; the value as [`Self::read`] has it.
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

/// The inode in a key of ten bytes or more; 0, which no inode has, in any other.
fn inode_in(key: &[u8]) -> FileId {
    schema::id_of(key.get(..9).unwrap_or_default()).unwrap_or(FileId(0))
}
