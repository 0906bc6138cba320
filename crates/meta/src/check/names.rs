//! The check of names: the files that they stand for, their cookies, and the counts of their directories.

use super::inodes::Part;
use super::{At, Check, Checked, Fault, Seen, inode_in};
use crate::engine::Walk;
use crate::schema::{self, Body, CookieKey, Core, Dentry, Record, Tail};
use bytes::Bytes;
use types::{FileId, FileKind};

/// The directory that a walk over names is in.
#[derive(Default)]
struct Inside {
    dir: Option<FileId>,
    names: u64,
    subdirs: u64,
    /// Names with the hash of the last one: few names, next to one another.
    alike: Vec<Bytes>,
    bucket: u64,
}

impl Check<'_> {
    /// Reads all names and counts those of a part. With `cookies` it also checks the names, which happens once, with
    /// the first part.
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

    /// Checks that a name has a cookie that its hash allows, and occurs only once.
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

    /// Checks the file that a name stands for.
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
            // If the recorded parent has a name for the directory, this name is a second one; otherwise the recorded
            // parent is wrong.
            return match self.named_in(parent, at.child)?.is_empty() {
                false => self.found(Fault::Second { at }),
                true => self.found(Fault::Parent { at, parent }),
            };
        }
        // The count of names reveals a second name in the same directory.
        Ok(())
    }

    /// Returns the names of `child` in `dir`. The cost is linear in the number of names in `dir`.
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

    /// Reports the extra names that a directory has in its recorded parent: all except the first one. The check of each
    /// name (`target`) has already reported extra names in other directories.
    pub(super) fn second_names(&mut self, id: FileId, core: &Core) -> Checked {
        let Body::Directory { parent } = core.body else { return Ok(()) };
        for at in self.named_in(parent, id)?.into_iter().skip(1) {
            self.found(Fault::Second { at })?;
        }
        Ok(())
    }

    /// Checks the counts of a directory after a walk has passed all its names.
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

    /// Finds directories that count names but have none, because a walk over names does not meet them.
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
