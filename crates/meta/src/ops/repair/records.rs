//! Repairs of single records: damaged records, missing records of inodes, the lists of orphans and doomed files,
//! intents, and data of missing files.

use crate::check::Mended;
use crate::engine::{Expect, Walk};
use crate::schema::{self, Body, Core, Dentry, Intent, Record, Tail};
use crate::tx::Tx;
use crate::{Doomed, Unused};
use bytes::Bytes;
use types::{FileId, FileKind, Status, limits};

type Mending = Result<Mended, Status>;

/// The result of reading a record: the record is missing, damaged, or valid.
enum Read<R> {
    Absent,
    Damaged,
    Is(R),
}

fn read<R: Record>(tx: &Tx<'_>, key: &[u8]) -> Result<Read<R>, Status> {
    Ok(match tx.get(key) {
        Ok(None) => Read::Absent,
        Ok(Some(value)) => R::look(&value).map_or(Read::Damaged, Read::Is),
        Err(Status::Corrupt) => Read::Damaged,
        Err(e) => return Err(e),
    })
}

/// Repairs or removes the damaged record `key`.
pub(super) fn damaged(tx: &mut Tx<'_>, key: &[u8]) -> Mending {
    let gone = |here: bool| if here { Mended::Yes } else { Mended::Gone };
    Ok(match key.first() {
        Some(b'd') if key.len() == 17 => {
            let here = matches!(read::<Dentry>(tx, key)?, Read::Damaged);
            if here {
                let dir = schema::id_of(&key[..9])?;
                tx.delete(key.to_vec());
                // Subtract the damaged directory entry from the directory's entry count. If the subdirectory count
                // included the damaged entry too, the next check reports the subdirectory count as wrong.
                if matches!(read::<Tail>(tx, &schema::tail_key(dir))?, Read::Is(tail) if tail.size > 0) {
                    tx.change_dir(dir, -1, 0);
                }
            }
            gone(here)
        }
        Some(b'g') => remove_if(tx, key, |tx, key| {
            let whole = |doomed: &Doomed| schema::doomed_key(doomed.id) == key;
            Ok(!matches!(read::<Doomed>(tx, key)?, Read::Is(doomed) if whole(&doomed)))
        })?,
        Some(b'u') => remove_if(tx, key, |tx, key| {
            let whole = |unused: &Unused| schema::unused_key(unused.file) == key;
            Ok(!matches!(read::<Unused>(tx, key)?, Read::Is(unused) if whole(&unused)))
        })?,
        Some(b'w') => remove_if(tx, key, |tx, key| {
            let kind = schema::intent_of(key).map(|(_, kind)| kind);
            Ok(!matches!(read::<Intent>(tx, key)?, Read::Is(intent) if Ok(intent.kind()) == kind))
        })?,
        Some(b'o') => {
            let whole = matches!(tx.get(key), Ok(Some(value)) if value.is_empty());
            if !whole {
                tx.put(key.to_vec(), Bytes::new());
            }
            gone(!whole)
        }
        Some(b'i') if key.len() == 10 && key[9] == 1 => no_tail(tx, schema::id_of(&key[..9])?)?,
        _ => Mended::No,
    })
}

fn remove_if(tx: &mut Tx<'_>, key: &[u8], bad: impl FnOnce(&Tx<'_>, &[u8]) -> Result<bool, Status>) -> Mending {
    if matches!(tx.get(key), Ok(None)) || !bad(tx, key)? {
        return Ok(Mended::Gone);
    }
    tx.delete(key.to_vec());
    Ok(Mended::Yes)
}

/// Writes a new tail record (size, times, change attribute) for an inode whose tail record is missing or damaged.
pub(super) fn no_tail(tx: &mut Tx<'_>, id: FileId) -> Mending {
    if matches!(read::<Tail>(tx, &schema::tail_key(id))?, Read::Is(_)) {
        return Ok(Mended::Gone);
    }
    let core = match read::<Core>(tx, &schema::core_key(id))? {
        Read::Is(core) => core,
        // A tail record (size, times, change attribute) is useless without the core record of the inode, so remove the
        // tail record.
        Read::Absent => {
            tx.delete(schema::tail_key(id));
            return Ok(Mended::Yes);
        }
        Read::Damaged => return Ok(Mended::No),
    };
    tx.rely_on(id)?;
    let mut tail = Tail::new(tx.now, 0);
    // The old change attribute is lost, so choose a value that exceeds every value that the old change attribute can
    // have reached.
    tail.change = u64::try_from(tx.now.secs).unwrap_or(0).max(1) << 24;
    match &core.body {
        Body::Directory { .. } => {
            let (entries, subdirs) = super::counts::inside(tx, id)?;
            (tail.size, tail.subdirs) = (entries, u32::try_from(subdirs).unwrap_or(u32::MAX));
        }
        Body::Symlink { target } => tail.size = target.len() as u64,
        Body::Regular { .. } => {
            // The lost tail record had the file size. The intent `Written` makes the mgr query the iods for the size.
            tx.put(schema::intent_key(id, Intent::Written.kind()), Intent::Written.to_value());
        }
        _ => {}
    }
    tx.put(schema::tail_key(id), tail.to_value());
    Ok(Mended::Yes)
}

/// Removes a tail record (size, times, change attribute) of an inode whose core record is missing.
pub(super) fn no_core(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let there = !matches!(read::<Tail>(tx, &schema::tail_key(id))?, Read::Absent);
    if !there || !absent(tx, id)? {
        return Ok(Mended::Gone);
    }
    tx.delete(schema::tail_key(id));
    Ok(Mended::Yes)
}

/// Returns whether an inode has no core record. If so, adds a precondition that the core record is still missing at the
/// commit.
pub(super) fn absent(tx: &mut Tx<'_>, id: FileId) -> Result<bool, Status> {
    let absent = matches!(read::<Core>(tx, &schema::core_key(id))?, Read::Absent);
    if absent {
        tx.expect(Expect::Absent(schema::core_key(id)));
    }
    Ok(absent)
}

/// Removes extended attributes of a missing inode, at most as many as fit in one batch.
pub(super) fn stray_xattrs(tx: &mut Tx<'_>, id: FileId) -> Mending {
    if !absent(tx, id)? {
        return Ok(Mended::Gone);
    }
    let mut keys = Vec::new();
    let (from, to) = (schema::xattr_key(id, b""), schema::xattrs_end(id));
    tx.survey(&from, &to, limits::XATTRS_MAX, &mut |key, _| {
        keys.push(key.to_vec());
        Walk::On
    })?;
    let any = !keys.is_empty();
    keys.into_iter().for_each(|key| tx.delete(key));
    Ok(if any { Mended::Yes } else { Mended::Gone })
}

/// Removes inline bytes of a file that is missing or that has objects.
pub(super) fn stray_bytes(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let key = schema::bytes_key(id);
    if matches!(tx.get(&key), Ok(None)) {
        return Ok(Mended::Gone);
    }
    if !absent(tx, id)?
        && let Body::Regular { layout: Some(layout), .. } = tx.rely_on(id)?.body
        && !layout.is_final()
    {
        return Ok(Mended::Gone);
    }
    tx.delete(key);
    Ok(Mended::Yes)
}

/// Adds a regular file without directory entries to the orphan list, so that the mgr deletes it.
pub(super) fn lost_orphan(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let key = schema::orphan_key(id);
    if !matches!(read::<Core>(tx, &schema::core_key(id))?, Read::Is(_)) || tx.get(&key)?.is_some() {
        return Ok(Mended::Gone);
    }
    let core = tx.rely_on(id)?;
    if core.names > 0 || core.kind() != FileKind::Regular {
        return Ok(Mended::Gone);
    }
    tx.put(key, Bytes::new());
    Ok(Mended::Yes)
}

/// Removes a file from the orphan list, because the file has directory entries, is not a regular file, or is missing.
pub(super) fn stray_orphan(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let key = schema::orphan_key(id);
    if matches!(tx.get(&key), Ok(None)) {
        return Ok(Mended::Gone);
    }
    if !absent(tx, id)? {
        let core = tx.rely_on(id)?;
        if core.names == 0 && core.kind() == FileKind::Regular {
            return Ok(Mended::Gone);
        }
    }
    tx.delete(key);
    Ok(Mended::Yes)
}

/// Removes a file from the list of doomed files, because the file still exists.
pub(super) fn doomed_alive(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let key = schema::doomed_key(id);
    if matches!(tx.get(&key), Ok(None)) || matches!(read::<Core>(tx, &schema::core_key(id))?, Read::Absent) {
        return Ok(Mended::Gone);
    }
    tx.delete(key);
    Ok(Mended::Yes)
}

/// Removes an intent of a file that is missing or is not a regular file.
pub(super) fn stray_intent(tx: &mut Tx<'_>, id: FileId, kind: u8) -> Mending {
    let key = schema::intent_key(id, kind);
    if matches!(tx.get(&key), Ok(None)) {
        return Ok(Mended::Gone);
    }
    if !absent(tx, id)? && tx.rely_on(id)?.kind() == FileKind::Regular {
        return Ok(Mended::Gone);
    }
    tx.delete(key);
    Ok(Mended::Yes)
}
