//! Repairs of stored counts: link counts, entry and subdirectory counts, totals of extended attributes, the inode
//! count, and the next inode number.

use crate::check::Mended;
use crate::engine::{Expect, Value, Walk};
use crate::schema::{self, Core, Dentry, Record, Tail, XattrTally};
use crate::tx::Tx;
use types::{FileId, FileKind, Status};

type Mending = Result<Mended, Status>;

/// Returns the number of entries of a directory, including damaged entries, and the number of subdirectories among the
/// entries.
pub(super) fn inside(tx: &Tx<'_>, dir: FileId) -> Result<(u64, u64), Status> {
    let (mut entries, mut subdirs) = (0, 0);
    let (from, to) = (schema::dentry_key(dir, 0), schema::dentries_end(dir));
    tx.survey(&from, &to, usize::MAX, &mut |_, value| {
        entries += 1;
        let entry = value.and_then(Dentry::look);
        subdirs += u64::from(entry.is_some_and(|entry| entry.kind == FileKind::Directory));
        Walk::On
    })?;
    Ok((entries, subdirs))
}

/// Sets the link count of a file to `found`, the number of directory entries that `weir fsck` found. Does nothing if
/// the core record of the file no longer equals `core`, the record that `weir fsck` read.
pub(super) fn links(tx: &mut Tx<'_>, id: FileId, found: u32, core: &Value) -> Mending {
    let key = schema::core_key(id);
    if tx.get(&key)?.as_ref() != Some(core) {
        return Ok(Mended::Gone);
    }
    tx.expect(Expect::Reads(key, core.clone()));
    let mut core = Core::from_value(core.clone())?;
    core.names = found;
    tx.put_core(id, &core);
    Ok(Mended::Yes)
}

/// Repairs the entry and subdirectory counts of a directory. Every batch that changes an entry also changes the tail
/// record of the directory, which has these counts. So a precondition on the tail record ensures that the new counts
/// are correct at the commit.
pub(super) fn directory(tx: &mut Tx<'_>, dir: FileId) -> Mending {
    let key = schema::tail_key(dir);
    let Some(value) = tx.get(&key)? else { return Ok(Mended::Gone) };
    let mut tail = Tail::from_value(value.clone())?;
    let (entries, subdirs) = inside(tx, dir)?;
    let subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
    if (tail.size, tail.subdirs) == (entries, subdirs) {
        return Ok(Mended::Gone);
    }
    tx.expect(Expect::Reads(key.clone(), value));
    (tail.size, tail.subdirs, tail.change) = (entries, subdirs, tail.change.saturating_add(1));
    tx.put(key, tail.to_value());
    Ok(Mended::Yes)
}

/// Repairs the totals of extended attributes in a file's inode.
pub(super) fn xattrs(tx: &mut Tx<'_>, id: FileId) -> Mending {
    let mut core = match tx.rely_on(id) {
        Err(Status::Stale) => return Ok(Mended::Gone),
        core => core?,
    };
    let mut found = XattrTally { changes: core.xattrs.changes, ..XattrTally::default() };
    let (from, to) = (schema::xattr_key(id, b""), schema::xattrs_end(id));
    tx.survey(&from, &to, usize::MAX, &mut |key, value| {
        found.count = found.count.saturating_add(1);
        let bytes = schema::xattr_name(key).len() + value.unwrap_or_default().len();
        found.bytes = found.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        Walk::On
    })?;
    if core.xattrs == found {
        return Ok(Mended::Gone);
    }
    // Increment the counter of attribute changes, so that batches with a precondition on the old core record conflict.
    core.xattrs = XattrTally { changes: found.changes.wrapping_add(1), ..found };
    tx.put_core(id, &core);
    Ok(Mended::Yes)
}

/// Repairs the inode count of the store by adding the difference between the counted and the stored number of inodes,
/// which `weir fsck` found. Concurrent creates and removals do not change this difference.
pub(super) fn files(tx: &mut Tx<'_>, told: u64, found: u64) -> Mending {
    let difference = i128::from(found) - i128::from(told);
    let Ok(difference) = i64::try_from(difference) else { return Ok(Mended::No) };
    tx.count_files(difference);
    Ok(Mended::Yes)
}

/// Raises the next inode number above `used`, an inode number that is in use.
pub(super) fn next_id(tx: &mut Tx<'_>, used: FileId) -> Mending {
    let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
    let next = schema::NextId::from_value(value.clone())?;
    if next.0 > used.0 {
        return Ok(Mended::Gone);
    }
    tx.expect(Expect::Reads(schema::NEXT_ID.to_vec(), value));
    let next = schema::NextId(used.0.checked_add(1).ok_or(Status::Corrupt)?);
    tx.put(schema::NEXT_ID.to_vec(), next.to_value());
    Ok(Mended::Yes)
}
