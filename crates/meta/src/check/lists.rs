//! The check of all records other than inodes and directory entries: orphans, doomed files, unused objects, intents,
//! inline bytes, extended attributes of missing files, and unknown keys.

use super::{Check, Checked, Fault, Seen};
use crate::engine::Walk;
use crate::schema::{self, Body, Core, Intent, Record};
use crate::{Doomed, Unused};
use types::{FileId, FileKind};

/// The tag bytes (first bytes) of all keys that this version knows, in ascending order.
const TAGS: &[u8] = b"bdfginorsuwx";

impl Check<'_> {
    /// Checks all records except those of inodes and directory entries.
    pub(super) fn lists(&mut self) -> Checked {
        self.unknown()?;
        self.opaque()?;
        match self.inode(FileId::ROOT)? {
            Seen::Core(core) if core.kind() != FileKind::Directory => self.found(Fault::Root)?,
            Seen::Absent => self.found(Fault::Root)?,
            _ => {}
        }
        self.counters()?;
        self.orphans()?;
        self.doomed()?;
        self.unused()?;
        self.intents()?;
        self.bytes()?;
        self.stray_xattrs()
    }

    /// Checks that inline bytes exist only for regular files without objects.
    fn bytes(&mut self) -> Checked {
        let from = schema::bytes_key(FileId(0));
        let each = &mut |check: &mut Self, key: &[u8], _: &[u8]| {
            let Ok(id) = schema::id_of(key) else { return check.found(Fault::Key { key: key.to_vec() }) };
            match check.inode(id)? {
                Seen::Core(Core { body: Body::Regular { layout: Some(layout), .. }, .. }) if !layout.is_final() => {
                    Ok(())
                }
                Seen::Damaged => Ok(()),
                _ => check.found(Fault::StrayBytes { id }),
            }
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }

    /// Reports keys whose tag byte (first byte) is unknown. Some tag bytes, such as the tag byte of the inode count,
    /// are complete keys. The function also reports each key that continues after such a tag byte.
    fn unknown(&mut self) -> Checked {
        let mut from = Vec::new();
        for tag in TAGS {
            self.no_keys(&from, &[*tag])?;
            if matches!(tag, b'f' | b'n' | b's') {
                self.no_keys(&[*tag, 0], &[*tag + 1])?;
            }
            from = vec![*tag + 1];
        }
        self.no_keys(&from, &[0xff; 16])
    }

    /// Verifies the checksums of records of arbitrary bytes, such as inline bytes. Only a wrong checksum can reveal
    /// damage in such a record.
    fn opaque(&mut self) -> Checked {
        for tag in b"borx" {
            let mut damaged = Vec::new();
            self.view.survey(&[*tag][..]..&[*tag + 1][..], usize::MAX, &mut |key, value| {
                if value.is_none() {
                    damaged.push(key.to_vec());
                }
                Walk::On
            })?;
            for key in damaged {
                self.found(Fault::Record { key })?;
            }
        }
        Ok(())
    }

    fn no_keys(&mut self, from: &[u8], to: &[u8]) -> Checked {
        let each = &mut |check: &mut Self, key: &[u8], _: &[u8]| check.found(Fault::Key { key: key.to_vec() });
        self.walk(from, to, usize::MAX, each).map(drop)
    }

    fn orphans(&mut self) -> Checked {
        let from = schema::orphan_key(FileId(0));
        let each = &mut |check: &mut Self, key: &[u8], value: &[u8]| {
            let Ok(id) = schema::id_of(key) else { return check.found(Fault::Key { key: key.to_vec() }) };
            if !value.is_empty() {
                check.found(Fault::Record { key: key.to_vec() })?;
            }
            match check.inode(id)? {
                Seen::Core(Core { names: 0, body: Body::Regular { .. }, .. }) | Seen::Damaged => Ok(()),
                _ => check.found(Fault::StrayOrphan { id }),
            }
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }

    fn doomed(&mut self) -> Checked {
        let from = schema::doomed_key(FileId(0));
        let each = &mut |check: &mut Self, key: &[u8], value: &[u8]| {
            let Ok(id) = schema::id_of(key) else { return check.found(Fault::Key { key: key.to_vec() }) };
            if Doomed::look(value).is_none_or(|doomed| doomed.id != id) {
                check.found(Fault::Record { key: key.to_vec() })?;
            }
            match check.inode(id)? {
                Seen::Absent => Ok(()),
                _ => check.found(Fault::DoomedAlive { id }),
            }
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }

    /// Checks the records of unused objects. The file of such a record may be deleted already, so the check does not
    /// look for the file.
    fn unused(&mut self) -> Checked {
        let from = schema::unused_key(FileId(0));
        let each = &mut |check: &mut Self, key: &[u8], value: &[u8]| {
            let Ok(id) = schema::id_of(key) else { return check.found(Fault::Key { key: key.to_vec() }) };
            if Unused::look(value).is_none_or(|unused| unused.file != id) {
                check.found(Fault::Record { key: key.to_vec() })?;
            }
            Ok(())
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }

    fn intents(&mut self) -> Checked {
        let from = schema::intent_key(FileId(0), 0);
        let each = &mut |check: &mut Self, key: &[u8], value: &[u8]| {
            let Ok((id, kind)) = schema::intent_of(key) else {
                return check.found(Fault::Key { key: key.to_vec() });
            };
            if Intent::look(value).is_none_or(|intent| intent.kind() != kind) {
                check.found(Fault::Record { key: key.to_vec() })?;
            }
            match check.inode(id)? {
                Seen::Core(Core { body: Body::Regular { .. }, .. }) | Seen::Damaged => Ok(()),
                _ => check.found(Fault::StrayIntent { id, kind }),
            }
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }

    /// Reports extended attributes that belong to a missing inode, or to an inode whose stored totals say that it has
    /// none. The check of inodes covers all other inodes.
    fn stray_xattrs(&mut self) -> Checked {
        let from = schema::xattr_key(FileId(0), b"");
        let mut last = None;
        let each = &mut |check: &mut Self, key: &[u8], _: &[u8]| {
            let Ok(id) = schema::id_of(key.get(..9).unwrap_or_default()) else {
                return check.found(Fault::Key { key: key.to_vec() });
            };
            if last.replace(id) == Some(id) {
                return Ok(());
            }
            match check.inode(id)? {
                Seen::Absent => check.found(Fault::StrayXattrs { id }),
                Seen::Core(core) if core.xattrs.count == 0 && core.xattrs.bytes == 0 => check.xattrs(id, &core),
                _ => Ok(()),
            }
        };
        self.walk(&from, &schema::past_all(&from), usize::MAX, each).map(drop)
    }
}
