//! Rights on the direct path: the capabilities and data servers' filehandles that the mgr has granted and that may
//! still be valid.
//!
//! When a change of permissions takes away a right, the mgr finds the right in this table and revokes it. A right is
//! valid until it expires, even if the client returned the layout long before.

use crate::volume::Volume;
use meta::Changed;
use nfs::fs::Ctx;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Attrs, FileId, FileKind, SetAttrs, Status};

/// Largest number of files in the table of rights. When the table is full, the mgr clears it. The mgr then assumes that
/// many users have rights to each file without an entry.
const FILES_MAX: usize = 1 << 19;

/// Which users have rights to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// Only processes of the user with this id have rights to the file.
    One(u32),
    /// Processes of several users have rights to the file.
    Many,
}

/// The rights to a file that the mgr has granted since it last revoked the rights to this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GrantedRights {
    who: Who,
    /// When the last of the granted rights to the file expires, in Unix seconds.
    until: u64,
}

/// The rights that this start of the mgr has granted.
#[derive(Debug)]
pub(crate) struct Rights {
    /// Lowest inode number that was unallocated at the start of the mgr. Earlier starts granted no rights to files with
    /// this number or a higher one.
    first: FileId,
    /// When the last right that earlier starts of the mgr granted expires, in Unix seconds.
    earlier_until: AtomicU64,
    table: Mutex<RightsTable>,
}

#[derive(Debug, Default)]
struct RightsTable {
    files: HashMap<FileId, GrantedRights>,
    /// Until this time, in Unix seconds, files without an entry may have valid rights, because the mgr cleared the full
    /// table.
    forgotten_until: u64,
    /// Number of table entries at which the mgr next removes expired rights.
    look_at: usize,
}

/// The rights that the mgr has to revoke when a user loses the permission to use a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ToRevoke {
    /// Whether to revoke all rights that earlier starts of the mgr granted, for all files, because the mgr does not
    /// know which of these rights exist.
    earlier: bool,
    /// Whether to revoke all rights to the file.
    file: bool,
}

impl Rights {
    /// Creates an empty table of rights. `next` is the lowest unallocated inode number at the start of the mgr. Rights
    /// of earlier starts may be valid until `earlier_until`, in Unix seconds.
    pub(crate) fn new(next: FileId, earlier_until: u64) -> Self {
        Rights { first: next, earlier_until: AtomicU64::new(earlier_until), table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, RightsTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the mgr grants a process of the user `uid` a right to a file. The right is valid until `until`, in
    /// Unix seconds.
    pub(crate) fn give(&self, file: FileId, uid: u32, now: u64, until: u64) {
        let mut table = self.table();
        if table.files.len() >= table.look_at.max(1024) && !table.files.contains_key(&file) {
            table.evict(now);
        }
        let out = table.files.entry(file).or_insert(GrantedRights { who: Who::One(uid), until });
        out.until = out.until.max(until);
        if out.who != Who::One(uid) {
            out.who = Who::Many;
        }
    }

    /// Records that the mgr has revoked all rights to a file.
    fn ended(&self, file: FileId) {
        self.table().files.remove(&file);
    }

    /// Records that the mgr has revoked all rights that earlier starts of the mgr granted.
    pub(crate) fn earlier_ended(&self) {
        self.earlier_until.store(0, Relaxed);
    }

    /// Returns which rights the mgr has to revoke when a file's attributes change from `before` to `after`. `now` is in
    /// Unix seconds.
    fn to_end(&self, before: &Attrs, after: &Attrs, now: u64) -> ToRevoke {
        let earlier = before.id < self.first && self.earlier_until.load(Relaxed) > now;
        let table = self.table();
        let who = match table.files.get(&before.id) {
            Some(out) if out.until > now => Some(out.who),
            _ => (table.forgotten_until > now).then_some(Who::Many),
        };
        ToRevoke {
            earlier: earlier && is_taken(before, after, Who::Many),
            file: who.is_some_and(|who| is_taken(before, after, who)),
        }
    }
}

impl RightsTable {
    /// Removes expired rights from the table. Clears the table if it is full even without the expired rights.
    fn evict(&mut self, now: u64) {
        self.files.retain(|_, out| out.until > now);
        if self.files.len() >= FILES_MAX {
            let last = self.files.values().map(|out| out.until).max();
            self.forgotten_until = self.forgotten_until.max(last.unwrap_or(0));
            self.files = HashMap::new();
        }
        self.look_at = (self.files.len() * 2).min(FILES_MAX);
    }
}

/// Returns whether a change of mode or owner takes a permission from users with rights. The superuser never loses a
/// permission. Nor does a user who owns the file before and after the change, because the owner can restore any
/// permission.
fn is_taken(before: &Attrs, after: &Attrs, who: Who) -> bool {
    let owners = (before.uid, before.gid) != (after.uid, after.gid);
    let bits = before.mode & !after.mode & 0o777 != 0;
    match who {
        Who::One(0) => false,
        Who::One(uid) if uid == before.uid && uid == after.uid => false,
        _ => owners || bits,
    }
}

impl Volume {
    /// Sets attributes of a file other than the size. Then makes the iods refuse the rights that this change takes
    /// away.
    pub(crate) async fn set_attributes(
        &self,
        ctx: &Ctx,
        file: FileId,
        set: &SetAttrs,
        opened: bool,
    ) -> Result<Attrs, Status> {
        let Changed { before, after } = self.names(ctx).setattr(&ctx.cred, ctx.now, file, set, opened).await?;
        self.end_rights(ctx, &before, &after).await?;
        Ok(after)
    }

    /// Revokes rights after a change of a file's attributes. When this function returns, the iods refuse users who have
    /// lost the permission to read or write the file. An iod that is down refuses these users before it serves any
    /// client again.
    pub(crate) async fn end_rights(&self, ctx: &Ctx, before: &Attrs, after: &Attrs) -> Result<(), Status> {
        let who = |attrs: &Attrs| (attrs.mode, attrs.uid, attrs.gid);
        if before.kind != FileKind::Regular || who(before) == who(after) {
            return Ok(());
        }
        let end = self.rights.to_end(before, after, net::clock::unix_now());
        if end.earlier {
            self.iods.end_earlier_rights().await?;
            self.rights.earlier_ended();
        }
        if end.file { self.end_rights_to(ctx, before.id).await } else { Ok(()) }
    }

    async fn end_rights_to(&self, ctx: &Ctx, file: FileId) -> Result<(), Status> {
        // Clear the file's table entry before the fence. Rights that the mgr grants during the fence have the new
        // generation, and the table must keep the entry of these rights.
        self.rights.ended(file);
        match self.outdate(ctx, file).await {
            // The file was deleted, so no client can use a right to it.
            Err(Status::Stale) => Ok(()),
            outdated => outdated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Timestamp;

    const FILE: FileId = FileId(100);

    fn attrs(mode: u32, uid: u32, gid: u32) -> Attrs {
        let time = Timestamp::default();
        Attrs {
            id: FILE,
            kind: FileKind::Regular,
            mode,
            nlink: 1,
            uid,
            gid,
            size: 0,
            used: 0,
            holes: false,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            change: 0,
            rdev: (0, 0),
        }
    }

    #[test]
    fn a_change_revokes_rights_only_of_users_who_lose_a_permission() {
        let owner = attrs(0o644, 5, 50);
        // Each row has the attributes after a change, and whether the change takes a right from root, from the owner,
        // from another user, and from many users.
        for (after, taken) in [
            (attrs(0o664, 5, 50), [false; 4]),
            (attrs(0o4755, 5, 50), [false; 4]),
            (attrs(0o600, 5, 50), [false, false, true, true]),
            (attrs(0o444, 5, 50), [false, false, true, true]),
            (attrs(0o644, 6, 50), [false, true, true, true]),
            (attrs(0o644, 5, 60), [false, false, true, true]),
        ] {
            let whom = [Who::One(0), Who::One(5), Who::One(7), Who::Many];
            assert_eq!(whom.map(|who| is_taken(&owner, &after, who)), taken, "{:o}", after.mode);
        }
    }

    #[test]
    fn valid_rights_are_revoked_exactly_once() {
        let rights = Rights::new(FILE, 1000);
        let (before, after) = (attrs(0o644, 5, 50), attrs(0o600, 5, 50));
        let file = |now| rights.to_end(&before, &after, now).file;
        assert!(!file(10));
        rights.give(FILE, 5, 10, 100);
        assert!(!file(20), "the owner can restore the permission at any time");
        rights.give(FILE, 7, 20, 90);
        assert!(file(30) && file(99) && !file(100));
        rights.ended(FILE);
        assert!(!file(30));
    }

    #[test]
    fn rights_of_earlier_starts_are_revoked_only_for_older_files() {
        let (before, after) = (attrs(0o644, 5, 50), attrs(0o600, 5, 50));
        let newer = Rights::new(FILE, 1000);
        assert!(!newer.to_end(&before, &after, 10).earlier);
        let older = Rights::new(FileId(FILE.0 + 1), 1000);
        assert!(older.to_end(&before, &after, 999).earlier && !older.to_end(&before, &after, 1000).earlier);
        assert!(!older.to_end(&after, &before, 10).earlier, "no permission is removed");
        older.earlier_ended();
        assert!(!older.to_end(&before, &after, 10).earlier);
    }

    #[test]
    fn a_forgotten_file_counts_as_granted_to_many_users() {
        let rights = Rights::new(FILE, 0);
        let (before, after) = (attrs(0o644, 5, 50), attrs(0o600, 5, 50));
        (0..FILES_MAX as u64 + 2000).for_each(|n| rights.give(FileId(1 << 32 | n), 7, 10, 500 + n % 2));
        assert!(rights.table().files.len() < FILES_MAX);
        assert!(rights.to_end(&before, &after, 500).file && !rights.to_end(&before, &after, 501).file);
        // The table drops expired rights, so it does not become full, and the mgr does not clear it.
        let rights = Rights::new(FILE, 0);
        (0..FILES_MAX as u64 * 2).for_each(|n| rights.give(FileId(1 << 32 | n), 7, n, n + 500));
        assert!(!rights.to_end(&before, &after, FILES_MAX as u64 * 2).file);
    }
}
