//! The check of inodes: both records of each inode, its stored counts, its link count, and for directories the chain of
//! parents up to the root.

use super::{Check, Checked, Fault, Seen, inode_in};
use crate::engine::Value;
use crate::schema::{self, Body, Core, Counts, NextId, Record, Tail, XattrTally};
use bytes::Bytes;
use types::{FileId, FileKind};

/// The inodes of one range of inode numbers, in ascending order, each with the number of directory entries that the
/// check has found for the inode.
#[derive(Default)]
pub(super) struct Part {
    inodes: Vec<Counted>,
}

struct Counted {
    id: FileId,
    /// The link count recorded in the inode; `None` if the core record (type, owner, layout) is damaged.
    told: Option<u32>,
    found: u32,
}

impl Part {
    /// Counts a directory entry that refers to the inode `id`. Returns how many entries the check has counted for this
    /// inode so far; 0 if the inode is not in this range of inode numbers.
    pub(super) fn name(&mut self, id: FileId) -> u32 {
        match self.inodes.binary_search_by_key(&id, |counted| counted.id) {
            Ok(index) => {
                let found = &mut self.inodes[index].found;
                *found = found.saturating_add(1);
                *found
            }
            Err(_) => 0,
        }
    }
}

/// Which of the two records of the current inode the check has read: the core record (type, owner, layout), the tail
/// record (size, times, change attribute), or both.
struct Half {
    id: FileId,
    core: bool,
    tail: bool,
}

impl Half {
    fn of(id: FileId) -> Self {
        Half { id, core: false, tail: false }
    }
}

impl Check<'_> {
    /// Checks the inodes from the key `from` on, up to the maximum number of inodes in one range. Returns the key at
    /// which the next range begins, or `None` after the last inode.
    pub(super) fn inodes(&mut self, from: Option<Vec<u8>>, part: &mut Part) -> Checked<Option<Vec<u8>>> {
        let start = from.unwrap_or_else(|| schema::core_key(FileId(0)));
        let end = schema::past_all(&start);
        let mut half = Half::of(FileId(0));
        // Each inode has two records, so an even limit on the number of records normally ends a range between two
        // inodes.
        let limit = self.memory.inodes.max(1) * 2;
        let next = self.walk(&start, &end, limit, &mut |check, key, value| {
            let (Some(which @ (0 | 1)), 10) = (key.get(9).copied(), key.len()) else {
                return check.found(Fault::Key { key: key.to_vec() });
            };
            let id = inode_in(key);
            if half.id != id {
                check.halves(&half)?;
                half = Half::of(id);
            }
            if which == 1 {
                half.tail = true;
                return match Tail::look(value) {
                    Some(_) => Ok(()),
                    None => check.found(Fault::Record { key: key.to_vec() }),
                };
            }
            half.core = true;
            let core = Core::look(value);
            part.inodes.push(Counted { id, told: core.as_ref().map(|core| core.names), found: 0 });
            match core {
                Some(core) => check.core(id, &core),
                None => check.found(Fault::Record { key: key.to_vec() }),
            }
        })?;
        // If a damaged inode has only one of its two records, the limit on the records of a range can fall between the
        // two records of a later inode. Then also check the second record of the later inode, and begin the next range
        // after it.
        if let Some(next) = &next
            && next.len() == 10
            && next[9] == 1
            && next[..9] == schema::core_key(half.id)[..9]
        {
            let tail = self.read(next)?;
            if tail.is_some_and(|value| Tail::look(&value).is_none()) {
                self.found(Fault::Record { key: next.clone() })?;
            }
            return Ok(Some(schema::core_key(FileId(half.id.0.saturating_add(1)))));
        }
        self.halves(&half)?;
        Ok(next)
    }

    fn halves(&mut self, half: &Half) -> Checked {
        match (half.core, half.tail) {
            (true, false) => self.found(Fault::NoTail { id: half.id }),
            (false, true) => self.found(Fault::NoCore { id: half.id }),
            _ => Ok(()),
        }
    }

    fn core(&mut self, id: FileId, core: &Core) -> Checked {
        if core.xattrs.count > 0 || core.xattrs.bytes > 0 {
            self.xattrs(id, core)?;
        }
        match core.body {
            Body::Directory { parent } if id != FileId::ROOT => self.way_up(id, parent),
            Body::Regular { .. } if core.names == 0 && self.read(&schema::orphan_key(id))?.is_none() => {
                self.found(Fault::LostOrphan { id })
            }
            _ => Ok(()),
        }
    }

    /// Compares the number and the length of a file's extended attributes with the totals in the file's inode.
    pub(super) fn xattrs(&mut self, id: FileId, core: &Core) -> Checked {
        let (from, to) = (schema::xattr_key(id, b""), schema::xattrs_end(id));
        let mut found = XattrTally { changes: core.xattrs.changes, ..XattrTally::default() };
        self.walk(&from, &to, usize::MAX, &mut |_, key, value| {
            found.count = found.count.saturating_add(1);
            let bytes = schema::xattr_name(key).len() + value.len();
            found.bytes = found.bytes.saturating_add(bytes.try_into().unwrap_or(u32::MAX));
            Ok(())
        })?;
        match found == core.xattrs {
            true => Ok(()),
            false => self.found(Fault::Xattrs { id, told: core.xattrs, found }),
        }
    }

    /// Checks that the chain of parents of a directory reaches the root. If the chain ends at an inode that is missing
    /// or is not a directory, reports nothing, because other checks report this fault.
    fn way_up(&mut self, id: FileId, parent: FileId) -> Checked {
        let mut way = vec![id];
        let mut at = parent;
        let circular = loop {
            if at == FileId::ROOT || self.reachable.contains(&at) {
                break false;
            }
            if self.circular.contains(&at) {
                break true;
            }
            if let Some(entered) = way.iter().position(|on_the_way| *on_the_way == at) {
                let lowest = way[entered..].iter().min().copied().unwrap_or(at);
                self.found(Fault::Circle { id: lowest })?;
                break true;
            }
            way.push(at);
            match self.inode(at)? {
                Seen::Core(Core { body: Body::Directory { parent }, .. }) => at = parent,
                _ => break false,
            }
        };
        let memory = self.memory.directories;
        let known = if circular { &mut self.circular } else { &mut self.reachable };
        if known.len() + way.len() > memory {
            known.clear();
        }
        known.extend(way);
        Ok(())
    }

    /// Compares the link count in each inode of a range with the number of directory entries that the check found for
    /// the inode.
    pub(super) fn count(&mut self, part: &Part) -> Checked {
        for Counted { id, told, found } in &part.inodes {
            let (id, found) = (*id, *found);
            let Some(told) = *told else { continue };
            if (told == found && told > 0) || (id == FileId::ROOT && found == 0) {
                continue;
            }
            let Some(value) = self.read(&schema::core_key(id))? else { continue };
            let Some(core) = Core::look(&value) else { continue };
            match (core.kind(), found) {
                // A regular file without directory entries must be in the orphan list. The check of core records has
                // already verified this.
                (FileKind::Regular, 0) if told == 0 => {}
                (_, 0) => self.found(Fault::Nameless { id, core: value })?,
                (FileKind::Directory, _) if told == 1 => self.second_names(id, &core)?,
                _ => self.found(Fault::Links { id, told, found, core: value })?,
            }
        }
        Ok(())
    }

    /// Checks the counters of the store: the inode count and the next inode number.
    pub(super) fn counters(&mut self) -> Checked {
        let (mut files, mut used) = (0, FileId(0));
        let from = schema::core_key(FileId(0));
        self.walk(&from, &schema::past_all(&from), usize::MAX, &mut |_, key, _| {
            if key.len() == 10 && key[9] == 0 {
                files += 1;
                used = inode_in(key).max(used);
            }
            Ok(())
        })?;
        match self.single::<Counts>(schema::COUNTS)? {
            Some(counts) if counts.files != files => {
                self.found(Fault::Files { told: counts.files, found: files })?;
            }
            _ => {}
        }
        match self.single::<NextId>(schema::NEXT_ID)? {
            Some(NextId(next)) if next <= used.0 => self.found(Fault::NextId { next, used }),
            _ => Ok(()),
        }
    }

    /// Reads a record of which the store must have exactly one. Reports a fault if the record is missing or damaged.
    fn single<R: Record>(&mut self, key: &[u8]) -> Checked<Option<R>> {
        let record = self.read(key)?.and_then(|value: Value| R::look(&Bytes::clone(&value)));
        if record.is_none() {
            self.found(Fault::Record { key: key.to_vec() })?;
        }
        Ok(record)
    }
}
