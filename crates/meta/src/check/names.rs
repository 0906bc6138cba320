//! The check of directory entries: the files that they refer to, their cookies, and the entry counts of directories.

use super::inodes::Part;
use super::{At, Check, Checked, Fault, Seen, inode_in};
use crate::engine::Walk;
use crate::schema::{self, Body, CookieKey, Core, Dentry, Record, Tail};
use bytes::Bytes;
use types::{FileId, FileKind};

/// The directory whose entries the check is reading, with the numbers of entries and subdirectories that the check has
/// read so far.
#[derive(Default)]
struct Inside {
    dir: Option<FileId>,
    names: u64,
    subdirs: u64,
    /// The names in the current hash bucket: names with the same hash. A bucket has few names, and their entries are
    /// adjacent in key order.
    alike: Vec<Bytes>,
    bucket: u64,
}

impl Check<'_> {
    /// Reads all directory entries and counts those that refer to inodes of the range `part`. If `cookies` has the
    /// secret key of the directory cookies, also checks each entry. The caller passes the key only for the first
    /// range, so each entry is checked once.
    pub(super) fn names(&mut self, cookies: Option<&CookieKey>, part: &mut Part) -> Checked {
        let from = schema::dentry_key(FileId(0), 0);
        let mut inside = Inside::default();
        self.walk(&from, &schema::past_all(&from), usize::MAX, &mut |check, key, value| {
            if key.len() != 17 {
                return if cookies.is_some() { check.found(Fault::Key { key: key.to_vec() }) } else { Ok(()) };
            }
            let (dir, cookie) = (inode_in(key), schema::cookie_of(key).unwrap_or_default());
            let entry = Dentry::look(value);
            if let Some(entry) = &entry {
                part.name(entry.child);
            }
            let Some(cookies) = cookies else { return Ok(()) };
            if inside.dir != Some(dir) {
                check.leave(&inside)?;
                inside = Inside { dir: Some(dir), ..Inside::default() };
            }
            inside.names += 1;
            let Some(entry) = entry else { return check.found(Fault::Record { key: key.to_vec() }) };
            inside.subdirs += u64::from(entry.kind == FileKind::Directory);
            let at = At { dir, cookie, name: entry.name, child: entry.child, kind: entry.kind };
            check.place(cookies, &mut inside, &at)?;
            check.target(at)
        })?;
        if cookies.is_none() {
            return Ok(());
        }
        self.leave(&inside)?;
        self.empty()
    }

    /// Checks that a directory entry has a valid name and a cookie in the hash range of the name, and that the
    /// directory has no earlier entry with the same name.
    fn place(&mut self, cookies: &CookieKey, inside: &mut Inside, at: &At) -> Checked {
        let bucket = schema::bucket(cookies, &at.name);
        if !bucket.contains(&at.cookie) || types::name::check(&at.name).is_err() {
            return self.found(Fault::Cookie { at: at.clone() });
        }
        if inside.bucket != bucket.start {
            inside.bucket = bucket.start;
            inside.alike.clear();
        }
        if inside.alike.contains(&at.name) {
            return self.found(Fault::Twice { at: at.clone() });
        }
        inside.alike.push(at.name.clone());
        Ok(())
    }

    /// Checks the inode to which a directory entry refers: the inode must exist and have the file kind in the entry.
    /// If the inode is a directory, the parent recorded in the inode must be the directory with this entry.
    fn target(&mut self, at: At) -> Checked {
        let core = match self.inode(at.child)? {
            Seen::Absent => return self.found(Fault::Dangling { at }),
            Seen::Damaged => return Ok(()),
            Seen::Core(core) => core,
        };
        if core.kind() != at.kind {
            return self.found(Fault::Kind { at, kind: core.kind() });
        }
        let Body::Directory { parent } = core.body else { return Ok(()) };
        if at.child == FileId::ROOT {
            return self.found(Fault::Second { at });
        }
        if parent != at.dir {
            // If the recorded parent has an entry for the directory, the entry `at` in another directory is surplus.
            // Otherwise the recorded parent is wrong.
            return match self.named_in(parent, at.child)?.is_empty() {
                false => self.found(Fault::Second { at }),
                true => self.found(Fault::Parent { at, parent }),
            };
        }
        // If the recorded parent has two entries for the directory, the number of entries differs from the link count,
        // so the check of link counts finds the second entry.
        Ok(())
    }

    /// Returns the entries in `dir` that refer to `child`. The cost is linear in the number of entries in `dir`.
    fn named_in(&mut self, dir: FileId, child: FileId) -> Checked<Vec<At>> {
        let (from, to) = (schema::dentry_key(dir, 0), schema::dentries_end(dir));
        let mut found = Vec::new();
        self.view.survey(&from[..]..&to[..], usize::MAX, &mut |key, value| {
            if let (Some(entry), Ok(cookie)) = (Dentry::look(value.unwrap_or_default()), schema::cookie_of(key))
                && entry.child == child
            {
                found.push(At { dir, cookie, name: entry.name, child, kind: entry.kind });
            }
            Walk::On
        })?;
        Ok(found)
    }

    /// Reports all entries that refer to a directory in its recorded parent, except the first one. The check
    /// has already reported entries in other directories that refer to this directory.
    pub(super) fn second_names(&mut self, id: FileId, core: &Core) -> Checked {
        let Body::Directory { parent } = core.body else { return Ok(()) };
        for at in self.named_in(parent, id)?.into_iter().skip(1) {
            self.found(Fault::Second { at })?;
        }
        Ok(())
    }

    /// Compares the entry count and the subdirectory count that a directory's inode records with the numbers that the
    /// check found.
    fn leave(&mut self, inside: &Inside) -> Checked {
        let Some(dir) = inside.dir else { return Ok(()) };
        match self.inode(dir)? {
            Seen::Core(core) if core.kind() == FileKind::Directory => {}
            Seen::Damaged => return Ok(()),
            _ => return self.found(Fault::NoDirectory { dir, names: inside.names }),
        }
        let Some(tail) = self.read(&schema::tail_key(dir))?.and_then(|value| Tail::look(&value)) else {
            return Ok(());
        };
        if tail.size != inside.names {
            self.found(Fault::Entries { dir, told: tail.size, found: inside.names })?;
        }
        if u64::from(tail.subdirs) != inside.subdirs {
            self.found(Fault::Subdirs { dir, told: tail.subdirs, found: inside.subdirs })?;
        }
        Ok(())
    }

    /// Reports directories whose recorded count of entries or subdirectories is not zero although they have no entries.
    /// The check of all directory entries does not find such directories.
    fn empty(&mut self) -> Checked {
        let from = schema::core_key(FileId(0));
        self.walk(&from, &schema::past_all(&from), usize::MAX, &mut |check, key, value| {
            if key.len() != 10 || key[9] != 0 {
                return Ok(());
            }
            let Some(Core { body: Body::Directory { .. }, .. }) = Core::look(value) else { return Ok(()) };
            let dir = inode_in(key);
            let Some(tail) = check.read(&schema::tail_key(dir))?.and_then(|value| Tail::look(&value)) else {
                return Ok(());
            };
            if tail.size == 0 && tail.subdirs == 0 {
                return Ok(());
            }
            let (first, end) = (schema::dentry_key(dir, 0), schema::dentries_end(dir));
            let mut any = false;
            check.view.survey(&first[..]..&end[..], 1, &mut |_, _| {
                any = true;
                Walk::Stop
            })?;
            if any {
                return Ok(());
            }
            if tail.size > 0 {
                check.found(Fault::Entries { dir, told: tail.size, found: 0 })?;
            }
            if tail.subdirs > 0 {
                check.found(Fault::Subdirs { dir, told: tail.subdirs, found: 0 })?;
            }
            Ok(())
        })?;
        Ok(())
    }
}
